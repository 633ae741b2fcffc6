"""Chat templates as transformers compiles and runs them: the names that one reads, and the text of one conversation."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from spiral_stream.errors import PlanError, cut
from spiral_stream.extras import need

# transformers keeps one compiled template per text, and notes spans in it while it runs.
_TRACKING: Final = threading.Lock()


def names_read(text: str) -> set[str]:
    """Return the names that a template takes from outside.

    Raises:
        PlanError: it is no template.
        MissingExtraError: transformers or Jinja is not installed.
    """
    need("jinja2", "ChatTemplate")
    need("transformers", "ChatTemplate")
    from jinja2 import TemplateError, meta
    from transformers.utils.chat_template_utils import _compile_jinja_template

    try:
        compiled = _compile_jinja_template(text)
        return set(meta.find_undeclared_variables(compiled.environment.parse(text)))
    except TemplateError as error:
        msg = f"ChatTemplate: the template is no Jinja ({type(error).__name__}: {cut(str(error))}). Correct it"
        raise PlanError(msg) from error


def run(
    text: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Any,
    given: Mapping[str, Any],
    *,
    tracked: bool,
    prompting: bool,
) -> tuple[str, list[tuple[int, int]]]:
    """Render one conversation. Raises whatever the template raises.

    Args:
        text: the template.
        messages: the conversation.
        tools: a list of tools, or None.
        given: what else the template reads.
        tracked: whether the spans of ``{% generation %}`` are wanted.
        prompting: ``add_generation_prompt``.

    Returns:
        The text, and the spans of characters; none if they are not wanted.
    """
    need("transformers", "ChatTemplate")
    from transformers.utils.chat_template_utils import render_jinja_template

    options: dict[str, Any] = {"tools": tools, "chat_template": text, "add_generation_prompt": prompting, **given}
    if not tracked:
        return render_jinja_template([list(messages)], **options)[0][0], []
    with _TRACKING:
        texts, spans = render_jinja_template([list(messages)], return_assistant_tokens_mask=True, **options)
    return texts[0], spans[0]

"""Compile and run chat templates as transformers does: the names that one reads, and the text of one conversation."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from spiral_stream.errors import PlanError, cut
from spiral_stream.extras import need

# transformers keeps one compiled template per text, and notes spans in it while it runs. Whoever renders an equal text in
# another thread meanwhile writes spans into those. So ours are texts of their own that render the same: the comment is
# dropped together with the end of its line.
TRACKED: Final = "{# spiral, tracked #}\n"
_PLAIN: Final = "{# spiral #}\n"
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


def need_located_marks(text: str) -> None:
    """Refuse a template whose ``{% generation %}`` stands where its place in the text is not known.

    What a macro, a ``{% set %}`` block, a filter block, a call or a recursive loop writes is collected before it is put
    into the text. transformers counts from the text alone, so it would mark other characters.

    Raises:
        PlanError: says in what it stands.
    """
    from jinja2 import nodes
    from transformers.utils.chat_template_utils import _compile_jinja_template

    collecting = {nodes.Macro: "macro", nodes.AssignBlock: "set", nodes.FilterBlock: "filter", nodes.CallBlock: "call"}
    tree = _compile_jinja_template(text).environment.parse(text)
    blocks = [(each, f"{{% {name} %}}") for kind, name in collecting.items() for each in tree.find_all(kind)]
    blocks += [(each, "a recursive loop") for each in tree.find_all(nodes.For) if each.recursive]
    for block, name in blocks:
        if any(_is_mark(each) for each in block.find_all(nodes.CallBlock)):
            what = "{% generation %}" if _is_mark(block) else name
            msg = (
                f"ChatTemplate: line {block.lineno} of the template: {{% generation %}} stands inside {what}, where its place in "
                "the text is not known. Put it around the outermost {{ ... }} that writes the assistant's text, or leave it out"
            )
            raise PlanError(msg)


def _is_mark(node: Any) -> bool:
    """Whether a node of a template is ``{% generation %}``."""
    call = getattr(node, "call", None)
    return getattr(getattr(call, "node", None), "name", "") == "_generation_support"


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

    chats = [list(messages)]
    options: dict[str, Any] = {"tools": tools, "add_generation_prompt": prompting, **given}
    if not tracked:
        return render_jinja_template(chats, chat_template=_PLAIN + text, **options)[0][0], []
    with _TRACKING:
        texts, spans = render_jinja_template(
            chats, chat_template=TRACKED + text, return_assistant_tokens_mask=True, **options
        )
    return texts[0], spans[0]

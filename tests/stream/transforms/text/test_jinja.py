"""Templates render as transformers renders them, whoever else renders at the same time."""

import pytest
from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

from spiral_stream.errors import PlanError
from spiral_stream.transforms.text import jinja
from tests.fixtures.chats import MARKED, PLAIN, conversations

BEGINNINGS = ["", "\n", "\n\n  ", "   ", "{%- if 1 -%} a {% endif %}", "  {% if 1 %}\n\nb{% endif %}\n", "{# c #}\n\nd"]


@pytest.mark.parametrize("template", [first + each for first in BEGINNINGS for each in (PLAIN, MARKED + "\n")])
def test_text_and_spans_are_those_of_transformers(template: str) -> None:
    (chat,) = conversations(1)

    (text,), (spans,) = render_jinja_template([chat], chat_template=template, return_assistant_tokens_mask=True)

    assert jinja.run(template, chat, None, {}, tracked=True, prompting=False) == (text, spans)
    assert jinja.run(template, chat, None, {}, tracked=False, prompting=False) == (text, [])


def test_a_rendering_elsewhere_shares_no_spans() -> None:
    (chat,) = conversations(1)
    text, spans = jinja.run(MARKED, chat, None, {}, tracked=True, prompting=False)
    theirs: list[tuple[int, int]] = []

    # a rendering of the same template by transformers, in another thread, has come so far
    with _compile_jinja_template(MARKED).environment.activate_tracker([], theirs):
        assert jinja.run(MARKED, chat, None, {}, tracked=True, prompting=False) == (text, spans)
        assert jinja.run(MARKED, chat, None, {}, tracked=False, prompting=False) == (text, [])
    # and one of a stream with a mask, while a stream without one renders
    with _compile_jinja_template(jinja.TRACKED + MARKED).environment.activate_tracker([], theirs):
        assert jinja.run(MARKED, chat, None, {}, tracked=False, prompting=False) == (text, [])

    assert len(spans) == sum(each["role"] == "assistant" for each in chat)
    assert theirs == []


MARK = "{% generation %}{{ m.content }}{% endgeneration %}"
COLLECTED = {
    "macro": "{% macro say(m) %}<a>" + MARK + "{% endmacro %}{% for m in messages %}{{ say(m) }}{% endfor %}",
    "set": "{% for m in messages %}{% set x %}<a>" + MARK + "{% endset %}{{ x }}{% endfor %}",
    "filter": "{% for m in messages %}{% filter upper %}<a>" + MARK + "{% endfilter %}{% endfor %}",
    "recursive": "{% for m in messages recursive %}<a>" + MARK + "{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}<a>" + MARK + "{% endgeneration %}{% endfor %}",
}


@pytest.mark.parametrize("block", COLLECTED)
def test_marks_whose_place_is_not_known_are_refused(block: str) -> None:
    with pytest.raises(
        PlanError, match=rf"line 1 of the template.* stands inside .*{block}.*Put it around the outermost"
    ):
        jinja.need_located_marks(COLLECTED[block])


@pytest.mark.parametrize("template", [PLAIN, MARKED, "{% macro say(m) %}{{ m.content }}{% endmacro %}" + MARKED])
def test_marks_in_the_text_are_accepted(template: str) -> None:
    jinja.need_located_marks(template)

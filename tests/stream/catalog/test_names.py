"""A misspelled name brings close names, or what there is; the sentence stays short whatever was typed."""

from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.catalog.names import suggestions


def test_close_names_come_first_and_otherwise_all() -> None:
    assert suggestions("lable", ["label", "width"]) == "did you mean label?"
    assert suggestions("zzz", ["label", "width"]) == "there are label, width."
    assert suggestions("zzz", []) == "there are none."
    assert suggestions("zzz", [f"column-{i:02d}" for i in range(13)]).endswith("column-11 ...")


@given(name=st.text(max_size=3_000), known=st.lists(st.text(min_size=1, max_size=300), max_size=40))
def test_the_sentence_is_short(name: str, known: list[str]) -> None:
    assert len(suggestions(name, known)) < 12 * 70 + 30

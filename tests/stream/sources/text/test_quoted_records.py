import csv
import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spiral_stream.sources.text.csv_records import Records

LETTERS = st.text(st.sampled_from('a,"\n'), max_size=30)


def by_hand(text: str) -> tuple[list[int], int]:
    """Ends of records and the open quote, letter by letter: a quote opens where a field begins."""
    ends, open_at, inside, begins, at = [], -1, False, True, 0
    while at < len(text):
        letter = text[at]
        if inside and letter == '"' and text[at + 1 : at + 2] == '"':
            at += 1
        elif inside and letter == '"':
            inside = False
        elif not inside and letter == '"' and begins:
            inside, open_at = True, at
        elif not inside and letter == "\n":
            ends.append(at + 1)
        begins = not inside and letter in ",\n"
        at += 1
    return ends, open_at if inside else -1


@given(LETTERS)
@example('a,"b""')  # two quotes stand for one, and the first of all is open
def test_records_end_where_no_quote_is_open(text: str) -> None:
    found = Records(text.encode(), ",", '"')
    assert (found.ends.tolist(), found.open_at) == by_hand(text)
    assert found.lines.tolist() == [at for at, letter in enumerate(text) if letter == "\n"]


@given(LETTERS, st.integers(4_080, 4_100), st.sampled_from(["", '"', "\n"]))
def test_they_end_there_wherever_the_bytes_are_cut_to_be_looked_at(text: str, before: int, begin: str) -> None:
    long = f"{begin}{'a' * before},{text}"

    found = Records(long.encode(), ",", '"')

    assert (found.ends.tolist(), found.open_at) == by_hand(long)


@given(st.lists(st.lists(st.text('a,"\n', max_size=4), min_size=1, max_size=3), min_size=1, max_size=5))
def test_what_csv_writes_has_as_many_records_as_rows(rows: list[list[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    found = Records(text.getvalue().encode(), ",", '"')

    assert (len(found.ends), found.open_at) == (len(rows), -1)


@pytest.mark.parametrize("text", ['5" pipe\n', '"a\n"', '"a""b\n'])
def test_without_a_quote_every_line_end_ends_a_record(text: str) -> None:
    found = Records(text.encode(), ",", None)
    assert (found.ends.tolist(), found.open_at) == ([text.index("\n") + 1], -1)

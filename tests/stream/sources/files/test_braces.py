from itertools import islice

import pytest
from braceexpand import UnbalancedBracesError, braceexpand
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.sources.files.listing import expanded

PIECES = st.sampled_from(["{", "}", ",", "..", "0", "1", "03", "12", "-2", "a", "c", "x", "/"])


@pytest.mark.parametrize(
    "pattern",
    [
        "plain.tar",
        "part-{000..007}.tar",
        "{b,a}/part-{9..11}.tar",
        "{train,val{1,2}}-{a..c}.jsonl",
        "{10..1..3}",
        "{-3..3}",
        "{,.backup}x",
        "{x}{1..2}",
    ],
)
def test_a_pattern_stands_for_what_webdataset_reads(pattern: str) -> None:
    assert list(expanded(pattern)) == list(braceexpand(pattern, escape=False))


@given(st.lists(PIECES, max_size=12).map("".join))
def test_every_pattern_with_closed_braces_stands_for_what_braceexpand_says(pattern: str) -> None:
    try:
        expected = list(islice(braceexpand(pattern, escape=False), 500))
    except UnbalancedBracesError:
        return
    assert list(islice(expanded(pattern), 500)) == expected


def test_an_open_brace_is_a_letter_like_others() -> None:
    assert list(expanded("a{b,{1..2}.tar")) == ["a{b,1.tar", "a{b,2.tar"]


def test_a_long_range_is_not_written_out() -> None:
    assert next(expanded("{000000000000..999999999999}/{0..999999999}")) == "000000000000/0"

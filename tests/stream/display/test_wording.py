"""How people read values: nothing is lost that changes what a number or a moment says."""

import datetime as dt
import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.display.wording import bars, counted, moment, number, one_line, share, size
from spiral_stream.report import written


@given(st.floats(-1e300, 1e300))
def test_a_number_has_four_digits_and_keeps_its_exponent(value: float) -> None:
    shown = number(value)

    assert float(shown.replace(",", "")) == pytest.approx(value, rel=6e-4, abs=5e-324)
    assert len(shown) <= 14


def test_numbers_as_people_write_them() -> None:
    texts = [number(each) for each in (1.876011932466781e-07, 12345.678, 5118.0, 1e12, math.nan, -math.inf)]

    assert texts == ["1.876e-07", "12,346", "5,118", "1e+12", "NaN", "-∞"]


@given(
    st.integers(-(2**52), 2**52).map(
        lambda us: dt.datetime.fromtimestamp(0, dt.UTC).replace(tzinfo=None) + dt.timedelta(microseconds=us)
    )
)
def test_a_moment_is_never_cut(value: dt.datetime) -> None:
    text = pa.array([value], pa.timestamp("us")).cast(pa.utf8())[0].as_py()

    assert dt.datetime.fromisoformat(counted(text, pa.timestamp("us"))) == value
    assert moment(text, whole=True) == str(value.replace(microsecond=0))


def test_moments_end_without_zeros() -> None:
    assert moment("2026-01-01 00:00:00.000000Z") == "2026-01-01 00:00:00Z"
    assert moment("2026-01-01 00:00:00.120000") == "2026-01-01 00:00:00.12"
    assert (moment("2026-01-10"), moment("12:30:00")) == ("2026-01-10", "12:30:00")


@given(st.text(), st.integers(2, 80))
def test_a_text_is_one_line_and_says_that_it_is_cut(text: str, most: int) -> None:
    line = one_line(text, most)

    assert len(line) <= most
    assert line.isprintable()
    if len(text) <= most and text.isprintable():
        assert line == text


def test_values_of_every_kind_are_written() -> None:
    values = [None, True, 1_234_567, 0.5, b"12345", {"uri": "a.mp4", "offset": 0}, ["a", "b"]]

    assert [written(each) for each in values] == [
        *("null", "true", "1,234,567", "0.5", "5 bytes", "uri: a.mp4, offset: 0", "['a', 'b']"),
    ]
    assert counted("1234567", pa.int64()) == "1,234,567"
    assert counted(None, pa.float64()) == ""
    assert counted("0.10", pa.decimal128(5, 2)) == "0.1"


@given(st.integers(0, 2**60))
def test_sizes_have_three_digits(count: int) -> None:
    digits = size(count).split()[0]

    assert len(digits.replace(".", "")) <= 4
    assert size(117_399_456) == "117 MB"
    assert size(999_600) == "1 MB"


def test_little_is_not_nothing_and_nearly_all_is_not_all() -> None:
    assert [share(*each) for each in ((0, 9), (1, 10**6), (999_999, 10**6), (9, 9), (1, 3))] == [
        *("0 %", "<0.01 %", ">99.99 %", "100 %", "33.3 %"),
    ]


@given(st.lists(st.integers(0, 1000), max_size=30))
def test_a_bin_is_blank_if_and_only_if_it_is_empty(counts: list[int]) -> None:
    line = bars(counts)

    if not any(counts):
        assert line == ""
        return
    assert [each == " " for each in line] == [count == 0 for count in counts]
    assert line[counts.index(max(counts))] == "█"

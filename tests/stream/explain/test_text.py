"""How facts are shown."""

from typing import Any

from spiral_stream.explain import SECTIONS
from spiral_stream.results import Explanation


def shown(**sections: Any) -> str:
    return str(Explanation(dict.fromkeys(SECTIONS, "none") | sections))


def test_long_tables_are_cut_and_say_so() -> None:
    rows = [{"stream": f"s{i}", "quota": i} for i in range(1_000)]
    text = shown(mix={"epoch_size": 10, "streams": rows})

    assert "s39" in text
    assert "s40 " not in text
    assert "960 more rows are in to_dict()" in text


def test_numbers_are_readable_at_any_size() -> None:
    text = shown(mix=[{"small": 0.123456, "large": 19_553_072.6, "whole": 1_234_567, "yes": True, "none": None}])

    assert text.count("0.1235") == text.count("19,553,073") == text.count("1,234,567") == 1
    assert "yes" in text


def test_pairs_come_before_tables() -> None:
    text = shown(batch={"rows": [{"a": 1}], "after": "x"})
    lines = text.partition("BATCH\n")[2].splitlines()

    assert [line.strip() for line in lines[:3]] == ["after    x", "a", "1"]

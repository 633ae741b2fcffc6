"""A figure is one number with its unit; text shows it for people, JSON as it is."""

import json

import numpy as np
import pytest

from spiral_stream.explain.figure import Figure, Phrase, joined, marked, phrase, plain, ratio


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Figure(25_398, "rows"), "25,398"),
        (Figure(25_398, "rows", "estimated"), "~25,398"),
        (Figure(0.5, "s", "measured", form=".2f"), "! 0.50"),
        (Figure(0.123456, "ratio"), "0.1235"),
        (ratio(1, 3), "33.3% (1/3)"),
        (ratio(0, 0), "0.0% (0/0)"),
        (ratio(25_398, 60_000, "estimated"), "~42.3% (25,398/60,000)"),
    ],
)
def test_text_shows_a_figure_as_people_read_it(figure: Figure, text: str) -> None:
    assert str(figure) == text


def test_json_has_the_number_its_unit_mark_operands_and_source() -> None:
    assert ratio(25_398, 60_000, "estimated", "statistics").to_json() == {
        "value": 0.4233,
        "unit": "ratio",
        "mark": "estimated",
        "operands": [25_398, 60_000],
        "source": "statistics",
    }
    assert json.loads(json.dumps(plain({"a": [Figure(np.int64(3), "rows")]})))["a"][0]["value"] == 3


def test_a_line_has_the_mark_of_the_figure_to_trust_least() -> None:
    found = phrase(
        "{sign}min {low} / max {high}", low=Figure(1, "rows"), high=Figure(2_000, "rows", marked(exact=False))
    )

    assert str(found) == "~min 1 / max 2,000"
    assert found.to_json()["figures"]["high"]["value"] == 2_000
    both = joined([found, "and words"], "; ")
    assert isinstance(both, Phrase)
    assert (str(both), set(both.figures)) == ("~min 1 / max 2,000; and words", {"low", "high"})

"""What a file refers to is in this repository: decisions by number, other files by path."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_house import ROOT, tracked

pytestmark = pytest.mark.lint

DECISIONS = ROOT / "docs" / "decisions"
BY_NUMBER = re.compile(r"decisions/(\d+)((?:-[\w-]+)?(?:\.md)?)")
IN_WORDS = re.compile(r"\[decision (\d+)\]\([^)]*decisions/(\d{4})-[^)]*\)")

# Documents that this repository was written after and that are not in it; in pieces, so that this file passes.
OUTSIDE = re.compile(
    "|".join(
        [
            r"\bdecisions?" + r" \d",
            r"\bfacts" + r"/\w",
            r"\bseeds" + r"/\w",
            r"\b[Ss]eed(?:'s)? " + r"(?:program|document)",
            r"\b(?:house|design|requirements|review|issue\d*)" + r"\.md\b",
            r"\bSP" + r"-[A-Z]+-\d",
        ]
    )
)

# A path with a folder in it, of a kind of file that is kept here. Dated reports and the change log name what there was.
PATH = re.compile(r"(?<![\w./<>*-])((?:[A-Za-z_][\w-]*/)+[\w-]+\.(?:py|pyi|c|h|md|toml))(?![\w/])")
OF_THEIR_DAY = ("docs/benchmarks/", "CHANGELOG.md")
FROM = ("", "spiral_stream", "docs", "tests", "tests/stream")


def lines() -> Iterator[tuple[Path, int, str]]:
    for path in tracked():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            yield path, number, line


def decisions() -> dict[str, str]:
    return {path.name[:4]: path.name for path in sorted(DECISIONS.glob("*.md"))}


def test_each_decision_has_a_number_of_its_own() -> None:
    names = sorted(path.name for path in DECISIONS.glob("[0-9]*.md"))

    assert [name[:5] for name in names] == [f"{number:04d}-" for number in range(1, len(names) + 1)]


@pytest.mark.parametrize("name", decisions().values())
def test_a_decision_says_what_was_asked_what_was_chosen_and_what_would_reverse_it(name: str) -> None:
    text = (DECISIONS / name).read_text()

    assert re.match(rf"# {name[:4]}:? \S", text)
    for part in ("Question", "Choice|What we do|Semantics", "What would reverse it"):
        assert re.search(rf"\*\*(?:{part})\b", text), part


def test_references_to_decisions_lead_to_one() -> None:
    have = decisions()
    named = [(path, at, *found) for path, at, line in lines() for found in BY_NUMBER.findall(line)]
    astray = [
        f"{path.relative_to(ROOT)}:{at}: {number}{rest}"
        for path, at, number, rest in named
        if number not in have or (rest.endswith(".md") and number + rest != have[number])
    ]

    assert len(named) > len(have)
    assert astray == []


def test_a_link_in_words_names_the_decision_that_it_leads_to() -> None:
    links = [(path, at, *found) for path, at, line in lines() for found in IN_WORDS.findall(line)]

    assert [f"{path.relative_to(ROOT)}:{at}" for path, at, said, is_ in links if int(said) != int(is_)] == []


def test_no_file_names_a_document_that_is_not_here() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{at}: {line.strip()[:100]}"
        for path, at, line in lines()
        if OUTSIDE.search(IN_WORDS.sub("", line))
    ]

    assert found == []


def test_paths_that_are_named_are_there() -> None:
    named = {
        (path, at, name)
        for path, at, line in lines()
        if not str(path.relative_to(ROOT)).startswith(OF_THEIR_DAY) and "://" not in line
        for name in PATH.findall(line)
    }
    astray = [
        f"{path.relative_to(ROOT)}:{at}: {name}"
        for path, at, name in sorted(named)
        if not any((folder / name).exists() for folder in (path.parent, *(ROOT / each for each in FROM)))
    ]

    assert named
    assert astray == []

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream.sources import pins as numbers
from spiral_stream.sources.pins import Collected, Numbers

WORDS = st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=25)
@given(
    parts=st.lists(st.lists(st.tuples(st.text(max_size=4), WORDS, WORDS, WORDS), max_size=8), max_size=4),
    spill=st.integers(1, 20),
)
def test_every_name_gives_what_was_put_under_it_whatever_went_to_disk(
    parts: list[list[tuple[str, int, int, int]]], spill: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("numbers") / "file"
    with pytest.MonkeyPatch.context() as patch, Collected() as collected:
        patch.setattr(numbers, "SPILL", spill)
        for part in parts:
            collected.add([name for name, *_ in part], [(a, b, c) for _, a, b, c in part])
        digest = collected.write(path)
    with Collected() as other:  # in another order, in one piece
        rows = [row for part in parts for row in part][::-1]
        other.add([name for name, *_ in rows], [(a, b, c) for _, a, b, c in rows])
        assert other.write(path.with_name("other")) == digest
    found = Numbers(path)
    want: dict[str, set[tuple[int, int, int]]] = {}
    for name, *values in rows:
        want.setdefault(name, set()).add(tuple(values))

    assert path.read_bytes() == path.with_name("other").read_bytes()
    assert len(found) == sum(map(len, want.values()))
    assert {name: set(found.find(name)) for name in want} == want
    assert found.find("no such name") == []


def test_a_file_that_is_cut_or_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with Collected() as collected:
        collected.add(["a", "b"], [(1, 2, 3), (4, 5, 6)])
        collected.write(path)
    data = path.read_bytes()
    for held in (data[:-1], data + b"\0", b"", data[:20], b"x" * len(data)):
        path.write_bytes(held)
        with pytest.raises(ValueError, match="cut, or another kind"):
            Numbers(path)

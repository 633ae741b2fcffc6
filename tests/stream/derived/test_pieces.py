"""Pieces are mapped when they are read and verified when they are touched; what is not as it was written is named."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spiral_stream.derived import build as room
from spiral_stream.derived import pieces as pieces_room
from spiral_stream.derived.index import Roster, RosterFile, keys_of
from spiral_stream.derived.kinds.column import Column
from spiral_stream.derived.kinds.gather import NarrowColumn, located
from spiral_stream.derived.part import verify_file
from spiral_stream.derived.pieces import Pieces
from spiral_stream.errors import CacheError, DamageError
from spiral_stream.integrity.blocks import BLOCK, moment, sound
from tests.fixtures.named_shards import Shards, content, flip, numbers, pieces_of

X = Column("x", pa.int64())
ROWS = 6 * 20_000  # of 8 bytes: some blocks per piece


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Shards:
    """Six shards that become six parts."""
    monkeypatch.setattr(room, "CHUNK_ROWS", ROWS // 6)
    return Shards(numbers(ROWS), (ROWS // 6,) * 6, batch_rows=ROWS)


def read(pieces: Pieces, rows: list[int]) -> list[int]:
    starts = np.arange(0, ROWS + 1, ROWS // 6, dtype=np.uint64)
    return NarrowColumn(X, pieces).arrow(*located(starts, np.array(rows, np.uint64))).to_pylist()


def part_of(pieces: Pieces, shard: int) -> Path:
    return pieces._file.part_path(pieces._parts[int(pieces._part[shard])])


def test_a_part_is_mapped_when_a_row_of_it_is_read(
    tmp_path: Path, source: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    open_part = pieces_room.open_part
    monkeypatch.setattr(
        pieces_room, "open_part", lambda path, *facts: (opened.append(path), open_part(path, *facts))[1]
    )
    pieces = pieces_of(source, X, tmp_path)

    assert (opened, pieces.owners(), pieces.parts) == ([], (), 6)
    read(pieces, [2, 3, ROWS - 1, 1])
    assert set(opened) == {part_of(pieces, 0), part_of(pieces, 5)}
    pieces.map_all()
    read(pieces, [0, ROWS // 2])
    assert len(opened) == len(set(opened)) == len(pieces.owners()) == 6


def test_all_threads_that_read_first_read_the_same(tmp_path: Path, source: Shards) -> None:
    pieces, expected = pieces_of(source, X, tmp_path), source.table["x"].to_pylist()
    start, found = threading.Barrier(6), dict[int, bool]()

    def reads(seed: int) -> None:
        rows = np.random.default_rng(seed).integers(0, ROWS, 300).tolist()
        start.wait()
        found[seed] = read(pieces, rows) == [expected[row] for row in rows]

    threads = [threading.Thread(target=reads, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == dict.fromkeys(range(6), True)


def test_a_shard_without_a_piece_is_refused(tmp_path: Path) -> None:
    file = RosterFile(tmp_path, X)
    keys = keys_of(Shards(numbers(4), (2, 2)).manifest.content_keys)

    with pytest.raises(CacheError, match=r"2 of 2 shards have no piece. Prepare the stream again"):
        Pieces(file, Roster.empty(X), keys)


def test_a_flipped_bit_is_found_when_its_block_is_read_and_not_before(tmp_path: Path, source: Shards) -> None:
    pieces = pieces_of(source, X, tmp_path)
    part = part_of(pieces, 1)
    flip(part, BLOCK + 5)
    first = ROWS // 6

    assert read(pieces, [first, 0]) == [source.table["x"][first].as_py(), source.table["x"][0].as_py()]
    with pytest.raises(DamageError, match=rf"{part.name} is damaged: bytes 65,536 to 131,072"):
        read(pieces, [first + BLOCK // 8])
    assert len(RosterFile(tmp_path, X).load().keys) == 5  # the others stay
    assert content(pieces_of(source, X, tmp_path)) == content(pieces_of(source, X, tmp_path / "anew"))


@pytest.mark.parametrize("how", ["sums", "data", "both", "missing"])
def test_a_part_that_is_not_its_own_is_taken_out_and_made_again(tmp_path: Path, source: Shards, how: str) -> None:
    pieces = pieces_of(source, X, tmp_path)
    first, other = part_of(pieces, 0), part_of(pieces, 1)
    for suffix in {"sums": [".sums"], "data": [".piece"], "both": [".sums", ".piece"], "missing": []}[how]:
        first.with_suffix(suffix).write_bytes(other.with_suffix(suffix).read_bytes())
    if how == "missing":
        first.unlink()

    with pytest.raises(DamageError, match=f"{first.stem}.* is damaged"):
        read(pieces, [0])
    again = pieces_of(source, X, tmp_path)
    assert read(again, [0, ROWS - 1]) == [source.table["x"][0].as_py(), source.table["x"][-1].as_py()]
    assert not first.exists()


def test_a_part_that_is_cut_under_a_reader_gives_no_zeros(tmp_path: Path, source: Shards) -> None:
    pieces = pieces_of(source, X, tmp_path)
    pieces.map_all()
    since = moment()
    last = ROWS // 6 - 1
    assert read(pieces, [last]) == [source.table["x"][last].as_py()]  # verified now
    with part_of(pieces, 0).open("r+b") as file:
        file.truncate(BLOCK)
    with pytest.raises(DamageError, match="became shorter"), sound(since):
        assert read(pieces, [last]) == [0]

    with pytest.raises(DamageError):
        read(pieces, [BLOCK // 8])
    del pieces  # nothing is published while what was cut is in use
    with pytest.raises(DamageError, match="it has 65,536 bytes, 160,000 were written"):
        pieces_of(source, X, tmp_path).map_all()
    assert read(pieces_of(source, X, tmp_path), [last]) == [source.table["x"][last].as_py()]


def test_every_file_is_listed_with_a_check_that_finds_one_flipped_bit(tmp_path: Path, source: Shards) -> None:
    pieces = pieces_of(source, X, tmp_path)
    files = list(pieces.files())
    beside = [path for path in tmp_path.rglob("*") if path.suffix in {".piece", ".json"}]

    assert set(files) == set(beside)
    assert len(files) == 7
    for path in files:
        verify_file(path)
    for path in files:
        flip(path, 50)
        with pytest.raises(DamageError, match=f"{path.name} is damaged"):
            verify_file(path)
        flip(path, 50)


@pytest.mark.parametrize("slot", ["data", "valid"])
def test_arrays_are_given_whole(tmp_path: Path, slot: str) -> None:
    table = pa.table({"x": pa.array([1, None, 3, 4, 5], pa.int64())})
    pieces = pieces_of(Shards(table, (2, 0, 3)), X, tmp_path)
    wanted: dict[str, list[Any]] = {
        "data": [[1, 0], [], [3, 4, 5]],
        "valid": [[1, 0], [], []],  # only where there is a null
    }
    found = [pieces.array(slot, k) for k in range(3)]

    assert [(each.view("<i8") if slot == "data" else each).tolist() for each in found] == wanted[slot]

"""What a derivation's folder holds: live and dead bytes of parts, and builders that came together."""

import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from spiral_stream.derived.build import make_chunk
from spiral_stream.derived.folder import StoredPieces, described
from spiral_stream.derived.index import Keys, RosterFile, keys_of
from spiral_stream.derived.kinds.column import Column
from spiral_stream.derived.part import DATA
from spiral_stream.derived.work.executors import Shared
from spiral_stream.integrity.locks import lock
from tests.fixtures.shards import Rows, made

COLUMN = Column("n", pa.int64())


def rows(*sizes: int) -> Rows:
    return Rows([pa.table({"n": np.arange(size) + 1000 * k}) for k, size in enumerate(sizes)])


def keys(of: Rows) -> Keys:
    return keys_of(of.manifest.content_keys)


def committed(root: Path, of: Rows, shards: list[int], name: str) -> None:
    """Make a part of some shards without a lease, as on a file system without locks."""
    file = RosterFile(root, COLUMN)
    file.prepare()
    draft = file.parts / f".{name}.{'0' * 32}"
    draft.touch()
    held = lock(draft, alone=True)
    assert held is not None
    [written] = make_chunk(Shared(of), [COLUMN], [np.array(shards)], [draft])
    file.commit([(draft, keys(of)[shards], written)])
    held.release()


def parts_on_disk(root: Path) -> list[str]:
    return sorted(path.stem for path in root.rglob(f"*{DATA}"))


def test_two_builders_of_the_same_pieces_leave_one_part(tmp_path: Path) -> None:
    of = rows(100, 200)
    committed(tmp_path, of, [0, 1], "first")
    committed(tmp_path, of, [0, 1], "second")

    assert parts_on_disk(tmp_path) == ["first"]
    assert list(tmp_path.rglob(".*")) == []
    (part,) = StoredPieces(tmp_path, RosterFile(tmp_path, COLUMN).folder).parts(keys(of))
    assert part.live_bytes == part.bytes


def test_what_a_part_holds_twice_counts_as_dead(tmp_path: Path) -> None:
    of = rows(100, 200)
    committed(tmp_path, of, [0], "first")
    committed(tmp_path, of, [0, 1], "second")
    found = {part.name: part for part in StoredPieces(tmp_path, RosterFile(tmp_path, COLUMN).folder).parts(keys(of))}

    assert found["first"].live_bytes == found["first"].bytes
    assert found["second"].bytes - found["second"].live_bytes == 832  # 100 numbers, padded to 64 bytes


def test_parts_go_whose_pieces_are_all_dead_and_others_stay_with_their_dead_bytes(tmp_path: Path) -> None:
    of = rows(10, 20, 30)
    committed(tmp_path, of, [0, 1], "mixed")
    committed(tmp_path, of, [2], "gone")
    stored = StoredPieces(tmp_path, RosterFile(tmp_path, COLUMN).folder)
    present = keys(of)[:1]
    dead = {part.name: part.bytes - part.live_bytes for part in stored.parts(present)}

    assert dead["mixed"] == 192
    assert stored.remove_dead(present, before=0.0)  # all are younger
    assert parts_on_disk(tmp_path) == ["gone", "mixed"]
    assert stored.remove_dead(present, time.time() + 60)
    assert parts_on_disk(tmp_path) == ["mixed"]
    kept = RosterFile(tmp_path, COLUMN).load()
    assert (kept.find(keys(of)) >= 0).tolist() == [True, True, False]


def test_nothing_goes_while_pieces_are_open_and_they_map_their_parts_later(tmp_path: Path) -> None:
    of = rows(10, 20)
    pieces = made(of, COLUMN, tmp_path)  # nothing is mapped yet
    stored = StoredPieces(tmp_path, RosterFile(tmp_path, COLUMN).folder)
    nothing = np.zeros((0, 2), np.uint64)

    assert not stored.remove_dead(nothing, time.time() + 60)
    assert pieces.array("data", 1).view(np.int64).tolist() == list(range(1000, 1020))
    del pieces
    assert stored.remove_dead(nothing, time.time() + 60)
    assert parts_on_disk(tmp_path) == []
    assert made(of, COLUMN, tmp_path).array("data", 0).view(np.int64).tolist() == list(range(10))


def test_facts_are_told_without_what_the_folder_says_already() -> None:
    assert described({"kind": "columns", "column": "n", "version": 1}) == '{"column": "n"}'

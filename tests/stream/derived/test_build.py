"""Builders make each piece once, together, whoever of them is killed or stopped; what goes wrong is named."""

import errno
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Expr, col
from spiral_stream.derived import build as room
from spiral_stream.derived.build import build, chunks, make_chunk, shard_rows
from spiral_stream.derived.derivation import Derivation, Piece, ShardRows
from spiral_stream.derived.index import RosterFile, keys_of
from spiral_stream.derived.kinds.column import Column
from spiral_stream.derived.part import PartWriter, Written
from spiral_stream.derived.work import cooperative_build as together
from spiral_stream.derived.work.executors import Builders, Shared, Threads
from spiral_stream.errors import CacheError, DamageError, SourceError, SpiralWarning
from spiral_stream.expr import bind
from spiral_stream.keeping.leases import Claims
from tests.fixtures.builders import SHARDS, experiment
from tests.fixtures.named_shards import Shards, content, flip, need_tidy, numbers, one_thread, pieces_of
from tests.fixtures.open_files import open_below

X = Column("x", pa.int64())


def source(tmp_path: Path, rows: int = 60, shards: int = 6, **more: Any) -> Shards:
    return Shards(numbers(rows), (rows // shards,) * shards, log=tmp_path / "log", **more)


@dataclass(frozen=True)
class Passing(Derivation):
    """Where the rows lie that pass."""

    KIND: ClassVar[str] = "passing"
    SUMMARY: ClassVar[tuple[str, ...]] = ("rows", "passing")
    below: int

    @property
    def columns(self) -> tuple[str, ...]:
        return ("x",)

    @property
    def predicate(self) -> Expr:
        return bind(col("x") < self.below, numbers(1).schema)

    @property
    def slots(self) -> Mapping[str, np.dtype[Any]]:
        return {"offsets": np.dtype("<u8"), "values": np.dtype("<i8")}

    def facts(self) -> dict[str, object]:
        return {"below": self.below}

    def piece(self, shard: ShardRows) -> Piece:
        values = shard.table["x"].to_numpy()
        return Piece(
            {"offsets": shard.offsets.astype("<u8"), "values": values}, {"rows": shard.rows, "passing": len(values)}
        )


def never() -> Builders:
    raise AssertionError("there was nothing to make")


@given(
    rows=st.lists(st.integers(0, 30), min_size=1, max_size=30),
    row_bytes=st.none() | st.integers(0, 50),
    limits=st.tuples(st.integers(1, 60), st.integers(1, 600)),
)
def test_chunks_are_all_shards_in_order_none_of_them_cut(
    rows: list[int], row_bytes: int | None, limits: tuple[int, int]
) -> None:
    table = Shards(numbers(1), tuple(rows)).manifest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "CHUNK_ROWS", limits[0])
        patch.setattr(room, "CHUNK_BYTES", limits[1])
        cut = chunks(table, row_bytes)

    assert np.concatenate(cut).tolist() == list(range(len(rows)))
    for chunk in cut:
        assert len(chunk)
        assert sum(rows[shard] for shard in chunk[:-1]) <= limits[0]  # the last shard alone takes it over the limit
        assert sum(rows[shard] * (row_bytes or 0) for shard in chunk[:-1]) <= limits[1]


@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    below=st.sampled_from([-1, 300, 2_000]),
    backwards=st.booleans(),
    data=st.data(),
)
def test_rows_come_shard_by_shard_whatever_the_order_of_the_scan(
    sizes: list[int], below: int, backwards: bool, data: st.DataObject
) -> None:
    class Backwards(Shards):
        def scan(self, columns: Sequence[str], predicate: Any = None, shards: Any = None) -> Any:
            batches = list(super().scan(columns, predicate, shards))
            return iter(batches[::-1] if backwards else batches)

    table = numbers(sum(sizes))
    rows = Backwards(table, tuple(sizes), batch_rows=2)
    wanted = sorted(data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1)))
    predicate = bind(col("x") < below, table.schema)
    values, starts = table["x"].to_pylist(), rows.manifest.starts.tolist()

    found = list(shard_rows(rows, ["x"], predicate, np.array(wanted)))

    assert [shard for shard, _ in found] == wanted
    for shard, own in found:
        some = [k for k in range(sizes[shard]) if values[starts[shard] + k] < below]
        assert own.rows == sizes[shard]
        assert own.offsets.tolist() == some
        assert own.table["x"].to_pylist() == [values[starts[shard] + k] for k in some]
        assert own.table["x"].type == pa.int64()


@pytest.mark.parametrize("below", [-1, 500, 5_000])
def test_a_predicate_that_few_or_no_rows_pass_makes_pieces_of_every_shard(tmp_path: Path, below: int) -> None:
    rows = Shards(numbers(30), (0, 10, 0, 20), log=tmp_path / "log")
    values = np.array(numbers(30)["x"])

    pieces = pieces_of(rows, Passing(below), tmp_path)

    assert pieces.summary["rows"].tolist() == [0, 10, 0, 20]
    found = np.concatenate([pieces.array("values", k) for k in range(4)])
    assert found.tolist() == values[values < below].tolist()


def test_a_relation_of_empty_shards_has_empty_pieces(tmp_path: Path) -> None:
    pieces = pieces_of(Shards(numbers(0), (0, 0)), X, tmp_path)
    pieces.map_all()

    assert pieces.summary["rows"].tolist() == [0, 0]
    assert pieces_of(Shards(numbers(0), ()), X, tmp_path).parts == 0


def test_derivations_of_one_predicate_are_made_in_one_pass(tmp_path: Path) -> None:
    table = numbers(60).append_column("y", pa.array([float(k) for k in range(60)]))
    rows = Shards(table, (10,) * 6, log=tmp_path / "log")
    built = [X, Column("y", pa.float64())]

    build(rows, [*built, Passing(400)], tmp_path, one_thread)

    assert sorted(rows.read()) == sorted([*range(6), *range(6)])  # once for both columns, once for the predicate
    assert content(pieces_of(rows, X, tmp_path, never))[1][0]["data"] == np.array(table["x"])[10:20].tobytes()
    assert content(pieces_of(rows, built[1], tmp_path, never))[5][0]["data"] == np.array(table["y"])[50:].tobytes()


def test_only_what_is_missing_is_read(tmp_path: Path) -> None:
    rows = source(tmp_path, names=("a", "b", "c", "d", "e", "f"))
    build(rows, [X], tmp_path, one_thread)
    assert rows.read() == [0, 1, 2, 3, 4, 5]
    build(rows, [X], tmp_path, never)

    changed = replace(rows, names=("a", "new", "c", "d", "e", "f"))
    build(changed, [X], tmp_path, one_thread)

    assert changed.read() == [0, 1, 2, 3, 4, 5, 1]
    build(rows, [X], tmp_path, never)  # what it was before is there still
    need_tidy(RosterFile(tmp_path, X))


def test_shards_of_equal_content_have_one_piece(tmp_path: Path) -> None:
    same = pa.concat_tables([numbers(10), numbers(10), numbers(10)])
    rows = Shards(same, (10, 10, 10), names=("a", "b", "a"))

    pieces = pieces_of(rows, X, tmp_path)

    assert len(need_tidy(RosterFile(tmp_path, X)).keys) == 2
    assert content(pieces)[0] == content(pieces)[2]


def test_progress_rises_to_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "CHUNK_ROWS", 10)
    monkeypatch.setattr(room, "COMMIT_EVERY_S", 0.0)
    seen: list[tuple[int, int]] = []
    build(source(tmp_path), [X], tmp_path, one_thread, lambda *done: seen.append(done))

    assert seen[-1] == (60, 60)
    assert seen == sorted(seen)
    assert len(seen) > 1


def test_what_was_done_before_an_error_stays_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "CHUNK_ROWS", 10)
    made = room.make_chunk

    def fails(rows: Any, derivations: Any, shards: Any, drafts: Any) -> list[Written]:
        if shards[0].tolist() == [3]:
            raise SourceError("the disk of shard 3 is gone")
        return made(rows, derivations, shards, drafts)

    rows = source(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(room, "make_chunk", fails)
        patch.setattr(together, "hash", lambda _: 0, raising=False)  # begins at the first chunk
        with pytest.raises(SourceError, match="shard 3 is gone"):
            build(rows, [X], tmp_path, one_thread)
    roster = RosterFile(tmp_path, X).load()

    assert len(roster.keys) >= 3
    assert not [path for path in RosterFile(tmp_path, X).parts.iterdir() if path.name.startswith(".")]
    build(rows, [X], tmp_path, one_thread)
    read = Counter(rows.read())
    assert sorted(read) == [0, 1, 2, 3, 4, 5]
    assert [read[shard] for shard in (0, 1, 2, 3, 5)] == [1] * 5
    assert read[4] <= 2  # it may have been under way when shard 3 failed
    need_tidy(RosterFile(tmp_path, X))


@pytest.mark.parametrize(
    ("number", "way_out"),
    [(errno.ENOSPC, "The disk is full: free space"), (errno.EROFS, "set \\$SPIRAL_CACHE to a folder that can be")],
)
def test_a_disk_that_takes_no_bytes_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, way_out: str
) -> None:
    def full(*_: object) -> Written:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(PartWriter, "add", full)
    with pytest.raises(CacheError, match=f"cannot be written .*{way_out}"):
        build(source(tmp_path), [X], tmp_path, one_thread)
    assert list(RosterFile(tmp_path, X).parts.iterdir()) == []


@pytest.mark.parametrize("place", ["", "derived", "derived/columns"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, place: str) -> None:
    blocked = tmp_path / "root" / place
    blocked.parent.mkdir(parents=True, exist_ok=True)
    blocked.write_text("a file")

    with pytest.raises(CacheError, match=r"root.* cannot be written"):
        build(source(tmp_path), [X], tmp_path / "root", one_thread)


def test_no_lease_and_no_descriptor_stays_after_an_error(tmp_path: Path) -> None:
    open_after: list[int] = []
    for _ in range(4):
        with pytest.raises(SourceError, match="gone"):
            build(source(tmp_path, fails=SourceError("gone")), [X, Passing(3)], tmp_path, one_thread)
        open_after.append(len(open_below(tmp_path)))

    assert max(open_after[1:]) <= open_after[0]  # the first may open the folder's list of readers, once per process
    assert len(build(source(tmp_path), [X], tmp_path, one_thread)[0].keys) == 6


@pytest.mark.parametrize("name", ["roster.sealed.arrow", ".piece", ".sums"])
def test_one_flipped_bit_is_named_and_the_next_build_mends_it(tmp_path: Path, name: str) -> None:
    rows = source(tmp_path)
    sound = content(pieces_of(rows, X, tmp_path))
    file = RosterFile(tmp_path, X)
    flip(next(path for path in file.folder.rglob(f"*{name}")), 100)

    if name.startswith("."):
        with pytest.raises(DamageError, match=rf"\{name} is damaged"):
            content(pieces_of(rows, X, tmp_path))
        found = pieces_of(rows, X, tmp_path)
    else:
        with pytest.warns(SpiralWarning, match=r"roster\.sealed\.arrow is damaged.*is built again now"):
            found = pieces_of(rows, X, tmp_path)

    assert content(found) == sound
    need_tidy(file)


def test_a_draft_that_a_sweeper_takes_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch, swept = Path.touch, list[Path]()

    def sweeping(self: Path, *how: Any, **more: Any) -> None:
        touch(self, *how, **more)
        if self.parent.name == "parts" and self.suffix != ".sums" and not swept:
            swept.append(self)
            self.unlink()

    monkeypatch.setattr(Path, "touch", sweeping)

    assert len(build(source(tmp_path), [X], tmp_path, one_thread)[0].keys) == 6
    assert len(swept) == 1


def test_pieces_that_others_commit_while_a_roster_is_read_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, load = source(tmp_path), room.load
    before: list[bool] = []

    def meanwhile(file: RosterFile) -> Any:
        roster = load(file)
        if not before:
            before.append(True)
            build(rows, [X], tmp_path, one_thread)
        return roster

    with monkeypatch.context() as patch:
        patch.setattr(room, "load", meanwhile)
        build(rows, [X], tmp_path, one_thread)

    assert sorted(rows.read()) == [0, 1, 2, 3, 4, 5]  # once, by the other


def test_builders_that_start_together_make_each_piece_once(tmp_path: Path) -> None:
    for found in experiment(tmp_path, "together", rounds=2, seed=1):
        assert found["codes"] == [0] * 4
        assert found["sound"]
        assert (found["shards"], found["reads"], found["found"]) == (SHARDS, SHARDS, 1)


def need_finished(found: dict[str, Any]) -> None:
    assert found["codes"] == [0, 0]
    assert found["sound"]
    assert (found["shards"], found["found"]) == (SHARDS, 1)
    assert found["most_reads"] <= 2  # by the dead one, and by who made it in the end
    assert found["most_reads_by_one"] == 1


@pytest.mark.slow
def test_what_a_killed_builder_leaves_is_made_by_the_others(tmp_path: Path) -> None:
    found = experiment(tmp_path, "killed", rounds=6, seed=2)

    for each in found:
        need_finished(each)
    assert sum(each["died"] for each in found) >= 1  # the others had finished all before they were killed


@pytest.mark.slow
def test_what_a_hundred_killed_builders_leave_is_made_by_the_others(tmp_path: Path) -> None:
    for each in experiment(tmp_path, "killed", rounds=100, seed=3):
        need_finished(each)


def test_all_that_others_held_is_made_whoever_of_them_ends_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "CHUNK_ROWS", 10)
    monkeypatch.setattr(together, "PAUSES_S", (0.001, 0.002))
    rows, file = source(tmp_path), RosterFile(tmp_path, X)
    file.prepare()
    keys = keys_of(rows.manifest.content_keys)[:, 0].tolist()
    others = [Claims(file.folder), Claims(file.folder)]
    assert others[0].take(keys[1])
    assert others[1].take(keys[4])
    free = RosterFile.stamp

    def looked(self: RosterFile) -> Any:  # one ends once the rest is made, the other after that
        made = len(self.load().keys)
        if made >= 4:
            others[0].close()
        if made >= 5:
            others[1].close()
        return free(self)

    monkeypatch.setattr(RosterFile, "stamp", looked)
    (roster,) = build(rows, [X], tmp_path, one_thread)

    assert len(roster.keys) == 6
    assert sorted(rows.read()) == [0, 1, 2, 3, 4, 5]
    assert rows.read()[-2:] == [1, 4]


def test_the_work_of_a_stopped_builder_is_done_once_it_was_waited_for(tmp_path: Path) -> None:
    for found in experiment(tmp_path, "stopped", rounds=2, seed=4):
        need_finished(found)
        assert found["waited"] >= 0.4
        assert found["before"] < SHARDS


def test_one_chunk_is_written_as_one_part_per_derivation(tmp_path: Path) -> None:
    drafts = [tmp_path / "a", tmp_path / "b"]
    for draft in drafts:
        draft.touch()

    made = make_chunk(Shared(source(tmp_path)), [X, Passing(400)], [np.array([1, 4]), np.array([4])], drafts)

    assert [len(each.offsets) for each in made] == [2, 1]
    assert [each.size for each in made] == [draft.stat().st_size for draft in drafts]
    assert Threads(1).width == 1

"""The roster's laws: each key once and found, the older of two pieces stays, and files are those that it names."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.derived import index as room
from spiral_stream.derived.derivation import Piece
from spiral_stream.derived.index import Keys, PartFacts, Roster, RosterFile, keys_of
from spiral_stream.derived.kinds.column import Column
from spiral_stream.derived.part import DATA, SUMS, Written, write_part
from spiral_stream.derived.pieces import Pieces
from spiral_stream.errors import CacheError, DamageError
from spiral_stream.integrity import seal
from spiral_stream.integrity.locks import lock
from tests.fixtures.named_shards import flip, need_tidy

COLUMN = Column("x", pa.int64())
WORDS = st.sampled_from([0, 1, 2, 2**63, 2**64 - 1])  # few, so that keys share words
KEY = st.tuples(WORDS, WORDS)


def keys(of: Sequence[tuple[int, int]]) -> Keys:
    return np.array(of, np.uint64).reshape(-1, 2)


def made(count: int, tag: int) -> Written:
    """What was written for some keys; its offsets say which part and which place."""
    places = np.arange(count, dtype=np.uint64) + np.uint64(100 * tag)
    return Written(
        places,
        np.column_stack([places, places + np.uint64(1)]),
        np.column_stack([places.astype(np.int64)] * len(COLUMN.SUMMARY)),
        np.zeros(1, np.uint64),
        64,
    )


def facts(tag: int) -> PartFacts:
    return PartFacts(f"part{tag}", 64, "0" * 32)


def drawn(parts: list[list[tuple[int, int]]]) -> tuple[Roster, dict[tuple[int, int], tuple[str, int]]]:
    """A roster of parts that came one after another, and what the law says of each key: the oldest wins."""
    roster, law = Roster.empty(COLUMN), {}
    for tag, own in enumerate(parts):
        roster = roster.with_parts([(facts(tag), keys(own), made(len(own), tag))])
        for at, key in enumerate(own):
            law.setdefault(key, (f"part{tag}", 100 * tag + at))
    return roster, law


PARTS = st.lists(st.lists(KEY, max_size=6), max_size=5)


@given(PARTS, st.lists(KEY, max_size=12))
def test_every_key_is_found_once_with_the_oldest_of_its_pieces(
    parts: list[list[tuple[int, int]]], asked: list[tuple[int, int]]
) -> None:
    roster, law = drawn(parts)

    assert [tuple(key) for key in roster.keys.tolist()] == sorted(law)
    found = roster.find(keys(asked)).tolist()
    for key, row in zip(asked, found, strict=True):
        if key not in law:
            assert row == -1
            continue
        assert tuple(roster.keys[row].tolist()) == key
        assert (roster.parts[roster.part[row]].name, int(roster.offsets[row])) == law[key]
        assert roster.counts[row].tolist() == [law[key][1], law[key][1] + 1]
        assert set(roster.summaries[row].tolist()) == {law[key][1]}
    assert {facts.name for facts in roster.parts} == {name for name, _ in law.values()}


@given(PARTS, PARTS, st.lists(KEY, max_size=12))
def test_keys_that_another_roster_was_asked_for_are_found_as_by_a_search(
    parts: list[list[tuple[int, int]]], others: list[list[tuple[int, int]]], asked: list[tuple[int, int]]
) -> None:
    roster, law = drawn(parts)
    (other, _), (twin, _), all_keys = drawn(others), drawn(parts), keys(sorted(law))
    for wanted in (keys(asked), all_keys):
        other.all_of(wanted)
        assert roster.all_of(wanted, other).tolist() == roster.find(wanted).tolist()
        assert roster.all_of(wanted) is roster.known(wanted), "the same array is not searched again"

    assert twin.all_of(all_keys, roster) is roster.known(all_keys), "nor where another roster has the same keys"


@given(PARTS)
def test_parts_that_come_together_are_as_those_that_come_one_by_one(parts: list[list[tuple[int, int]]]) -> None:
    one_by_one, _ = drawn(parts)
    together = Roster.empty(COLUMN).with_parts(
        [(facts(tag), keys(own), made(len(own), tag)) for tag, own in enumerate(parts)]
    )

    assert same(one_by_one, together)


@given(PARTS, st.randoms(use_true_random=False))
def test_some_rows_keep_their_parts_and_no_others(parts: list[list[tuple[int, int]]], random: Any) -> None:
    roster, law = drawn(parts)
    mask = np.array([random.random() < 0.5 for _ in range(len(roster.keys))], np.bool_)

    some = roster.only(mask)

    left = [tuple(key) for key in roster.keys[mask].tolist()]
    assert [tuple(key) for key in some.keys.tolist()] == left
    assert [some.parts[part].name for part in some.part] == [law[key][0] for key in left]
    assert {facts.name for facts in some.parts} == {law[key][0] for key in left}
    assert same(some, roster.only(np.flatnonzero(mask)))


def same(a: Roster, b: Roster) -> bool:
    names = ([a.parts[part] for part in a.part], [b.parts[part] for part in b.part])
    arrays = [(getattr(a, name), getattr(b, name)) for name in ("keys", "offsets", "counts", "summaries")]
    return names[0] == names[1] and all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in arrays)


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=5), st.integers(0, 5))
def test_content_keys_become_words(digests: list[bytes], start: int) -> None:
    text = pa.array([digest.hex() for digest in digests], pa.utf8()).slice(min(start, len(digests)))

    assert keys_of(text).tobytes() == b"".join(digests[start:])
    assert keys_of(text).shape == (len(text), 2)


def commit(file: RosterFile, own: list[tuple[int, int]], value: int = 0) -> str:
    """Make and enter a part with one number per key; returns its name."""
    name = f"{value:032x}"
    draft = file.parts / f".{name}.{'0' * 32}"
    file.prepare()
    draft.touch()
    held = lock(draft, alone=True)
    assert held is not None
    summary = dict.fromkeys(COLUMN.SUMMARY, value)
    pieces = [Piece({"data": np.full(8, value, "u1")}, summary) for _ in own]
    file.commit([(draft, keys(own), write_part(draft, COLUMN, pieces))])
    held.release()
    return name


@given(st.lists(st.lists(KEY, min_size=1, max_size=4, unique=True), min_size=1, max_size=4))
def test_what_is_committed_is_read_again_and_no_other_file_stays(parts: list[list[tuple[int, int]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = RosterFile(Path(folder), COLUMN)
        law: dict[tuple[int, int], int] = {}
        for value, own in enumerate(parts):
            commit(file, own, value)
            for key in own:
                law.setdefault(key, value)
        roster = need_tidy(file)
        found = Pieces(file, roster, keys(sorted(law)))

        assert [int(found.array("data", k)[0]) for k in range(len(law))] == [law[key] for key in sorted(law)]
        assert found.summary["rows"].tolist() == [law[key] for key in sorted(law)]


def test_a_part_whose_pieces_others_made_leaves_no_file(tmp_path: Path) -> None:
    file = RosterFile(tmp_path, COLUMN)
    commit(file, [(1, 1), (2, 2)], 1)
    before = file.stamp()
    commit(file, [(2, 2)], 2)

    assert [facts.name for facts in need_tidy(file).parts] == [f"{1:032x}"]
    assert file.stamp() == before


def test_a_commit_returns_the_stamp_of_its_own_roster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RosterFile(tmp_path, COLUMN)
    seen: list[object] = []
    stamp = RosterFile.stamp

    def watched(self: RosterFile) -> object:
        seen.append(lock(self.folder / "commits", alone=True))
        return stamp(self)

    monkeypatch.setattr(RosterFile, "stamp", watched)
    commit(file, [(1, 1)])

    assert seen == [None]  # the lock was held while the stamp was taken


def test_a_dropped_part_takes_its_pieces_and_files_with_it(tmp_path: Path) -> None:
    file = RosterFile(tmp_path, COLUMN)
    commit(file, [(1, 1), (3, 3)], 1)
    commit(file, [(2, 2)], 2)
    file.drop(next(facts for facts in file.load().parts if facts.name == f"{1:032x}"))

    assert need_tidy(file).keys.tolist() == [[2, 2]]
    file.drop(PartFacts("nobody's", 1, ""))
    assert need_tidy(file).keys.tolist() == [[2, 2]]


def test_a_part_stays_where_the_folder_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RosterFile(tmp_path, COLUMN)
    commit(file, [(1, 1)], 1)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(room, "turn", refused)
    file.drop(file.load().parts[0])  # the reader then says what is damaged, and not that this failed

    assert len(file.load().keys) == 1


def test_beginning_anew_leaves_what_another_process_began(tmp_path: Path) -> None:
    file = RosterFile(tmp_path, COLUMN)
    file.prepare()
    file.begin()
    assert len(need_tidy(file).keys) == 0
    commit(file, [(1, 1)], 1)
    file.begin()
    assert len(need_tidy(file).keys) == 1
    file.path.unlink()
    file.begin()
    assert len(need_tidy(file).keys) == 0


def test_files_of_killed_makers_go_with_the_next_commit(tmp_path: Path) -> None:
    file = RosterFile(tmp_path, COLUMN)
    file.prepare()
    dead = [file.parts / f"{'d' * 32}{suffix}" for suffix in (DATA, SUMS)]
    dead.append(file.parts / f".{'d' * 32}.{'e' * 32}")
    for path in dead:
        path.touch()
    living = file.parts / f".{'f' * 32}.{'e' * 32}"
    living.touch()
    held = lock(living, alone=True)
    commit(file, [(1, 1)])

    assert not any(path.exists() for path in dead)
    assert held is not None
    assert living.exists()


def test_a_roster_that_nobody_wrote_is_empty(tmp_path: Path) -> None:
    file = RosterFile(tmp_path, COLUMN)

    assert file.stamp() is None
    assert len(file.load().keys) == 0
    assert file.load().find(keys([(1, 2)])).tolist() == [-1]
    assert not file.folder.exists()


def test_a_committer_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RosterFile(tmp_path, COLUMN)
    file.prepare()
    (file.folder / "commits").touch()
    held = lock(file.folder / "commits", alone=True)
    monkeypatch.setattr(room, "DEADLINE_S", 0.05)

    with pytest.raises(CacheError, match=r"is locked by a process that commits, for 0\.05 s. End it"):
        file.begin()
    assert held is not None


@given(place=st.integers(0, 2**16), bit=st.integers(0, 7))
def test_one_flipped_bit_of_a_roster_is_found(place: int, bit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = RosterFile(Path(folder), COLUMN)
        commit(file, [(1, 1), (2, 2)])
        flip(file.path, place, bit)

        with pytest.raises(DamageError, match=r"roster\.sealed\.arrow is damaged"):
            file.load()


def test_a_roster_of_many_shards_is_read_with_one_read_and_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards, each = 100_000, 1_000
    file, rng = RosterFile(tmp_path, COLUMN), np.random.default_rng(3)
    own = rng.integers(0, 2**64, (shards, 2), dtype=np.uint64)
    added = [(facts(k), own[k * each : (k + 1) * each], made(each, k)) for k in range(shards // each)]
    file.prepare()
    file.publish(Roster.empty(COLUMN).with_parts(added))
    read: list[Path] = []
    table = seal.table
    monkeypatch.setattr(seal, "table", lambda path, **how: (read.append(path), table(path, **how))[1])
    monkeypatch.setattr(Path, "iterdir", lambda _: pytest.fail("a folder was listed"))

    pieces = Pieces(file, file.load(), own[::-1])  # no part exists: opening one would fail

    assert read == [file.path]
    assert pieces.parts == 100
    assert pieces.summary["rows"][:3].tolist() == [99 * 100 + 999, 99 * 100 + 998, 99 * 100 + 997]
    assert file.path.stat().st_size < 110 * shards

"""Builders that want different, overlapping things make each of them once, also if one is killed."""

import tempfile
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream.derived import build as room
from spiral_stream.derived.build import build
from spiral_stream.derived.derivation import Derivation, Piece, ShardRows
from spiral_stream.derived.index import RosterFile, keys_of
from spiral_stream.derived.work import cooperative_build as together
from spiral_stream.derived.work.executors import Threads
from tests.fixtures.builders import OVERLAPPING, SHARDS, experiment
from tests.fixtures.named_shards import Shards, need_tidy, numbers

MADE: list[tuple[str, int]] = []  # derivation and first value of each shard, once per piece


@dataclass(frozen=True)
class Wide(Derivation):
    """Values of a column that is said to be of some width, so that chunks are cut by it."""

    KIND: ClassVar[str] = "wide"
    name: str
    width: int

    @property
    def columns(self) -> tuple[str, ...]:
        return ("x",)

    @property
    def slots(self) -> Mapping[str, np.dtype[Any]]:
        return {"values": np.dtype("<i8")}

    @property
    def row_bytes(self) -> int:
        return self.width

    def facts(self) -> dict[str, object]:
        return {"name": self.name}

    def piece(self, shard: ShardRows) -> Piece:
        MADE.append((self.name, shard.table["x"][0].as_py()))
        return Piece({"values": shard.table["x"].to_numpy()})


ALL = [Wide("a", 1), Wide("b", 7), Wide("c", 40), Wide("d", 200)]


@settings(deadline=None)
@given(
    wanted=st.lists(st.sets(st.integers(0, 3), min_size=1).map(sorted), min_size=2, max_size=4),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    limit=st.integers(20, 2_000),
)
def test_builders_of_overlapping_sets_never_make_a_piece_twice(
    wanted: list[list[int]], sizes: list[int], limit: int
) -> None:
    MADE.clear()
    source = Shards(numbers(sum(sizes)), tuple(sizes))
    errors: list[BaseException] = []

    def one(mine: list[int], folder: Path) -> None:
        try:
            start.wait()
            rosters = build(source, [ALL[k] for k in mine], folder, lambda: Threads(2))
            assert all((roster.find(keys) >= 0).all() for roster in rosters)
        except BaseException as error:  # noqa: BLE001  a thread has nobody to raise to
            errors.append(error)

    keys, start = keys_of(source.manifest.content_keys), threading.Barrier(len(wanted))
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(room, "CHUNK_BYTES", limit)
        patch.setattr(room, "COMMIT_EVERY_S", 0.0)
        patch.setattr(together, "PAUSES_S", (0.001, 0.01))
        threads = [threading.Thread(target=one, args=(mine, Path(folder))) for mine in wanted]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        for k in {k for mine in wanted for k in mine}:
            need_tidy(RosterFile(Path(folder), ALL[k]))

    assert errors == []
    asked = {ALL[k].name for mine in wanted for k in mine}
    assert set(Counter(MADE).values()) == {1}
    assert len(MADE) == len(asked) * len(sizes)


def test_equal_shards_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MADE.clear()
    monkeypatch.setattr(room, "CHUNK_ROWS", 4)
    same = Shards(numbers(8).slice(0, 4).take([0, 1, 2, 3] * 3), (4, 4, 4), names=("a", "b", "a"))

    build(same, ALL[:1], tmp_path, lambda: Threads(1))

    assert len(MADE) == 2


def test_leases_are_few_while_much_waits_to_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[int] = []
    commit = RosterFile.commit

    def counted(self: RosterFile, made: Any) -> Any:
        commits.append(sum(len(keys) for _, keys, _ in made))
        return commit(self, made)

    monkeypatch.setattr(RosterFile, "commit", counted)
    monkeypatch.setattr(room, "CHUNK_SHARDS", 2)
    monkeypatch.setattr(room, "COMMIT_EVERY_S", 60.0)
    monkeypatch.setattr(together, "LEASES", 5)

    build(Shards(numbers(40), (1,) * 40), ALL[:1], tmp_path, lambda: Threads(1))

    assert sum(commits) == 40
    assert max(commits) <= 10


def test_processes_of_overlapping_sets_make_each_piece_once(tmp_path: Path) -> None:
    for found in experiment(tmp_path, "overlapping", rounds=3, seed=5):
        assert found["codes"] == [0] * 3
        assert (found["made"], found["most"]) == (SHARDS * len(OVERLAPPING), 1)


@pytest.mark.slow
def test_of_overlapping_sets_what_a_killed_builder_leaves_is_made_by_the_others(tmp_path: Path) -> None:
    found = experiment(tmp_path, "overlapping killed", rounds=4, seed=6)

    for each in found:
        assert each["codes"] == [0, 0]
        assert each["most"] <= 2  # by the dead one, and by who made it in the end
        assert each["sound"]
    assert sum(each["died"] for each in found) >= 1

"""Leases of builders on several machines: one owner at a time, and none for ever."""

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream.keeping import store_leases
from spiral_stream.keeping.leases import Claims
from spiral_stream.keeping.share import Share
from spiral_stream.keeping.store_leases import StoreLeases
from tests.fixtures.waits import until

KEYS = [0, 1, 2**47, 2**64 - 1]


def machine(root: Path, name: str) -> StoreLeases:
    folder = root / name / "derived" / "columns" / "f"
    folder.mkdir(parents=True, exist_ok=True)
    share = Share(root / name, f"memory://leases{abs(hash(root))}/prepared", name)
    return StoreLeases(share, folder, Claims(folder))


@settings(max_examples=10)
@given(steps=st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.sampled_from(KEYS)), max_size=12))
def test_a_lease_has_one_owner(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bool, int]]) -> None:
    root = tmp_path_factory.mktemp("leases")
    both = [machine(root, "a"), machine(root, "b")]
    owner: dict[int, int] = {}
    for who, takes, key in steps:
        if takes:
            assert both[who].take_all([key]) == [owner.get(key, who) == who]
            owner.setdefault(key, who)
        else:
            both[who].give_back_all([key])
            if owner.get(key) == who:
                del owner[key]
    both[0].close()
    assert all(both[1].take_all(KEYS))
    both[1].close()


def test_of_many_that_take_at_once_each_lease_goes_to_one(tmp_path: Path) -> None:
    machines = [machine(tmp_path, name) for name in "abc"]
    got: list[list[bool]] = [[] for _ in machines]

    def work(at: int) -> None:
        for key in range(8):
            got[at] += machines[at].take_all([key])

    threads = [threading.Thread(target=work, args=(at,)) for at in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [sum(taken) for taken in zip(*got, strict=True)] == [1] * 8
    for each in machines:
        each.close()


def fall_silent(builder: Any) -> None:
    """Say nothing more, as a process that is killed."""
    builder._ended.set()
    builder._heart.join()


def test_what_a_silent_builder_has_is_free_after_a_while_and_what_a_living_one_has_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, beat_s = [0.0], 2**-6
    monkeypatch.setattr("spiral_stream.threads.monotonic", lambda: now[0])
    monkeypatch.setattr(store_leases, "BEAT_S", beat_s)
    monkeypatch.setattr(store_leases, "DEAD_S", 6 * beat_s)
    monkeypatch.setattr(store_leases, "LOOK_EVERY_S", 0.0)
    living, other = machine(tmp_path, "a"), machine(tmp_path, "b")
    assert living.take_all([1]) == [True]

    def moved() -> bool:
        assert not other.is_free(1)
        return other.are_moving()

    for _ in range(10):
        now[0] += beat_s
        until(moved)
    fall_silent(living)
    assert not other.is_free(1)  # it saw the last beat
    for _ in range(6):
        now[0] += beat_s
        assert not other.is_free(1)
    now[0] += beat_s
    assert other.is_free(1)
    assert other.take_all([1, 2]) == [True, True]
    other.close()


def test_who_stood_still_takes_nobody_for_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("spiral_stream.threads.monotonic", lambda: now[0])
    living, other = machine(tmp_path, "a"), machine(tmp_path, "b")
    assert living.take_all([1]) == [True]
    assert other.take_all([1]) == [False]
    now[0] += 3_600.0  # longer than a builder is silent: both machines, or the one that they are on, were paused
    assert not other.is_free(1)
    now[0] += 3_600.0
    assert other.take_all([1, 2]) == [False, True]
    for each in (living, other):
        each.close()


def test_what_a_dead_builder_of_the_same_folder_has_is_free_at_once(tmp_path: Path) -> None:
    dead = machine(tmp_path, "a")
    assert dead.take_all([1, 2]) == [True, True]
    fall_silent(dead)
    dead._local.close()
    again = machine(tmp_path, "a")
    assert again.is_free(1)
    assert again.take_all([1, 2]) == [True, True]
    again.close()

"""A file that was removed comes back after its bytes came 32 times for nothing, and never by chance."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.storage.node_cache.eviction import TIMES, LyingFile, Room, owed
from spiral_stream.storage.node_cache.file import NODE, NodeKey

SIZE = 1 << 20


def removed(room: Room, key: NodeKey) -> None:
    """Remove a file for others."""
    room.remove(LyingFile(room.root / (key.digest + NODE), 0, 0))


def refused(room: Room, key: NodeKey, asked: int) -> int:
    """How often it is not kept, until it is."""
    return next(times for times in range(10**6) if room.keeps(key, asked))


@given(st.text(min_size=1), st.integers(SIZE // 8, SIZE))
def test_a_debt_is_due_every_32_times_the_size_of_the_file(uri: str, asked: int) -> None:
    debt, dues, asks = 0, 0, 20 * TIMES * SIZE // asked
    for _ in range(asks):
        debt, due = owed(uri, debt, asked, SIZE)
        dues += due
    assert abs(dues - 20) <= 1


def test_files_come_back_one_after_the_other(tmp_path: Path) -> None:
    room, keys = Room(tmp_path, 1), [NodeKey(f"s3://b/{at}", "1", SIZE) for at in range(320)]
    assert all(room.keeps(key, SIZE) for key in keys)  # nothing was removed
    for key in keys:
        removed(room, key)
    back = [sum(room.keeps(key, SIZE) for key in keys) for _ in range(TIMES)]

    assert back == sorted(back)  # what is kept again stays so
    assert back[-1] == 320
    assert 2 <= back[0] <= 20


def test_what_is_kept_again_is_owed_anew_when_it_is_removed_once_more(tmp_path: Path) -> None:
    key = NodeKey("s3://b/some", "1", SIZE)
    removed(Room(tmp_path, 1), key)
    assert 0 < refused(Room(tmp_path, 1), key, SIZE) < TIMES  # any process of the node
    assert refused(Room(tmp_path, 1), key, SIZE) == 0
    removed(Room(tmp_path, 1), key)
    assert abs(refused(Room(tmp_path, 1), key, SIZE // 4) - 4 * TIMES) <= 4


def test_what_is_asked_for_ahead_of_its_use_owes_nothing(tmp_path: Path) -> None:
    room, key = Room(tmp_path, 1), NodeKey("s3://b/other", "1", SIZE)
    removed(room, key)
    assert not any(room.keeps(key, SIZE, ahead=True) for _ in range(3 * TIMES))
    before = refused(room, key, SIZE)
    assert room.keeps(key, SIZE, ahead=True)
    assert before < TIMES

"""The threads of a build: rows come in order whatever their number, in runs that follow their bytes, and they end."""

import pickle
import threading
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.cache.kinds.tokens import TokenKind
from spiral_stream.cache.row_workers import Hands, ShardWork
from tests.fixtures.kinds import ByteEncoder
from tests.fixtures.streams import our_threads

pytestmark = pytest.mark.usefixtures("no_threads_left")
KIND = TokenKind("rows", "text", ByteEncoder())


class Texts:
    """A relation of texts, which notes what was asked of it."""

    base = ""

    def __init__(self, texts: list[str]) -> None:
        self.texts, self.asked = pa.array(texts), list[int]()

    def fetch(self, ordinals: Any, columns: Any) -> pa.Table:
        assert columns == ("text",)
        self.asked.append(len(ordinals))
        return pa.table({"text": self.texts.take(pa.array(ordinals))})


def work(offsets: Any, first: int = 0, rows: int = 10_000) -> ShardWork:
    return ShardWork("s", "0" * 32, first, rows, np.asarray(offsets, dtype=np.uint64))


@given(
    threads=st.integers(1, 4),
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=120),
    first=st.integers(0, 50),
    data=st.data(),
)
def test_the_rows_of_a_shard_come_once_and_in_order(threads: int, sizes: list[int], first: int, data: Any) -> None:
    relation = Texts([""] * first + [chr(97 + k % 26) * size for k, size in enumerate(sizes)])
    wanted = sorted(data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1)))
    hands = Hands(relation, KIND, threads)
    chunks = list(hands.shard(work(wanted, first)))
    hands.close()

    assert np.concatenate([offsets for offsets, _ in chunks]).tolist() == wanted
    assert np.concatenate([rows.sizes for _, rows in chunks]).tolist() == [2 * sizes[k] for k in wanted]


def test_writers_of_one_process_share_the_threads() -> None:
    hands = Hands(Texts(["some text"] * 4_000), KIND, 3)
    found: list[int] = []

    def write(first: int) -> None:
        found.append(sum(len(offsets) for offsets, _ in hands.shard(work(range(2_000), first))))

    writers = [threading.Thread(target=write, args=(first,)) for first in (0, 2_000)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()

    assert found == [2_000, 2_000]
    assert len(our_threads()) <= 3
    hands.close()


def test_whoever_waits_for_rows_of_hands_that_are_closed_gets_none() -> None:
    hands = Hands(Texts(["some text"] * 4_000), KIND, 1)
    chunks = hands.shard(work(range(4_000)))
    next(chunks)
    hands.close()

    with pytest.raises(CancelledError):
        list(chunks)
    with pytest.raises(CancelledError):
        list(hands.shard(work(range(4))))


def test_a_copy_has_threads_of_its_own() -> None:
    hands = Hands(Texts(["a", "bc"]), KIND, 1)
    copy = pickle.loads(pickle.dumps(hands))
    hands.close()

    [(offsets, rows)] = copy.shard(work([0, 1]))
    assert (offsets.tolist(), rows.sizes.tolist()) == ([0, 1], [2, 4])
    copy.close()


def test_runs_grow_and_shrink_with_the_bytes_of_their_rows() -> None:
    relation = Texts(["x" * 100_000] * 200 + ["ab"] * 9_800)
    hands = Hands(relation, KIND, 1)
    stored = sum(int(rows.sizes.sum()) for _, rows in hands.shard(work(range(10_000))))
    hands.close()

    assert stored == 2 * (200 * 100_000 + 2 * 9_800)
    assert relation.asked[:3] == [32, 32, 32]  # begun before the first was done
    assert relation.asked[3:23] == [5] * 20  # as many as a megabyte holds, of what is kept: two bytes a byte read
    assert relation.asked[-2] == KIND.RUN_ROWS

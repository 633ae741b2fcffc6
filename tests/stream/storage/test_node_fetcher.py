import threading
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from spiral_stream.errors import SourceError, StreamError
from spiral_stream.storage import node_download
from spiral_stream.storage.node_cache import NodeCache
from spiral_stream.storage.node_fetcher import Fetcher, Want
from spiral_stream.storage.node_files import BLOCK, NodeKey
from tests.fixtures.range_server import drawn

pytestmark = pytest.mark.usefixtures("no_threads_left")


def want(number: int, asked: list[int], size: int = BLOCK) -> Want:
    data = drawn(number, size)

    def download(offset: int, length: int) -> bytes:
        asked.append(number)
        return data[offset : offset + length]

    return Want(NodeKey(f"s3://b/{number}", "v", size), download)


def until(what: object) -> None:
    """Wait until something holds; the test's own deadline ends it otherwise."""
    assert callable(what)
    while not what():
        time.sleep(0.002)


def test_it_stays_a_number_of_bytes_ahead_of_what_was_taken(tmp_path: Path) -> None:
    asked: list[int] = []
    wants = [want(number, asked) for number in range(12)]
    with NodeCache(tmp_path) as cache, Fetcher(cache, wants, ahead_bytes=3 * BLOCK) as fetcher:
        until(lambda: len(asked) == 3)
        for at, each in enumerate(wants):
            with fetcher.take(each) as held:
                assert held.view() == drawn(at, BLOCK)
            assert fetcher.ahead_bytes <= 3 * BLOCK
            until(lambda at=at: len(asked) == min(12, at + 4))

    assert sorted(asked) == list(range(12))
    assert cache.counters.downloads == 12


def test_what_the_next_epoch_needs_first_is_fetched_before_this_one_ends(tmp_path: Path) -> None:
    asked: list[int] = []
    epochs = [[want(number, asked) for number in numbers] for numbers in ((0, 1), (2, 0))]
    with NodeCache(tmp_path) as cache, Fetcher(cache, chain(*epochs), ahead_bytes=3 * BLOCK) as fetcher:
        fetcher.take(epochs[0][0]).release()
        until(lambda: 2 in asked)
        for each in (epochs[0][1], *epochs[1]):
            fetcher.take(each).release()

    assert sorted(asked) == [0, 1, 2]


def test_what_was_fetched_ahead_is_not_removed_before_it_is_taken(tmp_path: Path) -> None:
    asked: list[int] = []
    wants = [want(number, asked) for number in range(20)]
    with NodeCache(tmp_path, 8 * BLOCK) as cache, Fetcher(cache, wants) as fetcher:
        for at, each in enumerate(wants):
            with fetcher.take(each) as held:
                assert held.view() == drawn(at, BLOCK)

    assert sorted(asked) == list(range(20))


def test_things_may_be_taken_out_of_order_or_dropped_and_others_are_fetched_at_once(tmp_path: Path) -> None:
    asked: list[int] = []
    wants = [want(number, asked) for number in range(4)]
    with NodeCache(tmp_path) as cache, Fetcher(cache, wants, ahead_bytes=2 * BLOCK) as fetcher:
        until(lambda: len(asked) == 2)
        fetcher.take(wants[3]).release()
        fetcher.take(wants[1]).release()
        fetcher.drop(wants[0])
        until(lambda: sorted(asked) == [0, 1, 2, 3])


def test_an_error_is_raised_where_the_file_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_download, "FIRST_PAUSE_S", 0.001)
    asked: list[int] = []
    wants = [want(0, asked), Want(NodeKey("s3://b/bad", "v", 9), lambda _, __: b""), want(1, asked)]
    with NodeCache(tmp_path) as cache, Fetcher(cache, wants) as fetcher:
        fetcher.take(wants[0]).release()
        with pytest.raises(SourceError, match=r"s3://b/bad: bytes 0 to 9 cannot be fetched"):
            fetcher.take(wants[1])
        fetcher.take(wants[2]).release()


def test_an_order_that_fails_is_named(tmp_path: Path) -> None:
    asked: list[int] = []

    def order() -> Iterator[Want]:
        yield want(0, asked)
        msg = "no more"
        raise ValueError(msg)

    with NodeCache(tmp_path) as cache, Fetcher(cache, order()) as fetcher:
        until(lambda: fetcher._error is not None)
        with pytest.raises(StreamError, match=r"its order failed \(ValueError: no more\). Correct the order"):
            fetcher.take(want(0, asked))


def test_closing_in_mid_download_ends_its_threads_and_holds_nothing(tmp_path: Path) -> None:
    begun, asked = threading.Event(), []

    def slow(_: int, length: int) -> Iterator[bytes]:
        for _ in range(length // 100):
            begun.set()
            time.sleep(0.01)
            yield b"x" * 100

    wants = [want(0, asked), Want(NodeKey("s3://b/slow", "v", 50 * BLOCK), slow), want(1, asked)]
    with NodeCache(tmp_path) as cache:
        fetcher = Fetcher(cache, wants)
        begun.wait()
        until(lambda: len(asked) == 2)
        fetcher.close()
        with pytest.raises(StreamError, match=r"closed. Open another one"):
            fetcher.take(wants[0])
        cache.close()
        assert [each.uri for each in cache.files() if each.held] == []

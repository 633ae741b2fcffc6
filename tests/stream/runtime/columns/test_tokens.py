"""Tokens by row address: what is built changes neither tokens nor errors, and lengths cost no payload."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.cache.kinds.tokens import TokenKind
from spiral_stream.cache.materialize import build
from spiral_stream.cache.store.reader import CacheReader
from spiral_stream.cache.store.store import CacheStore
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.runtime.columns.tokens import TokenFeed
from spiral_stream.runtime.metrics import Metrics
from tests.fixtures.kinds import BAD, CASES, ROWS, ByteEncoder, sequences, texts, works

PREFIX = CASES["tokens"].kind
GOOD = [row for row in range(ROWS) if row not in BAD]
BUILT = {"some": [range(20, 70)], "two": [range(20, 70), range(60, 75)], "all": [range(ROWS)]}  # part by part


@dataclass(frozen=True)
class Shelf:
    """One relation, and readers of caches of it that hold less or more."""

    relation: OpenRelation
    caches: dict[str, CacheReader | None]

    def feed(self, built: str) -> tuple[TokenFeed, Metrics]:
        metrics = Metrics()
        return TokenFeed(self.relation, PREFIX, self.caches[built], metrics), metrics


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    folder = tmp_path_factory.mktemp("texts")
    with OpenRelation(CASES["tokens"].catalog(folder).entry("rows")) as relation:
        caches: dict[str, CacheReader | None] = {"none": None}
        for name, parts in BUILT.items():
            store = CacheStore(folder / name, PREFIX.facts())
            for rows in parts:
                build(relation, PREFIX, store, works(relation, rows), 2)
            caches[name] = store.open()
        yield Shelf(relation, caches)


def expected(row: int) -> list[int]:
    text = texts()[row]
    assert isinstance(text, str)
    return [256 + each for each in text.encode()]


@given(rows=st.lists(st.sampled_from(GOOD), max_size=60), built=st.sampled_from(["none", "some", "two", "all"]))
def test_rows_come_in_the_order_asked_whatever_is_built(shelf: Shelf, rows: list[int], built: str) -> None:
    feed, _ = shelf.feed(built)
    asked = np.array(rows, dtype=np.uint64)
    ragged = feed.tokens(asked)

    assert [each.tolist() for each in sequences(ragged)] == [expected(row) for row in rows]
    assert feed.lengths(asked).tolist() == ragged.lengths.tolist() == [len(expected(row)) for row in rows]
    assert set(ragged.item_bytes.tolist()) <= {2}
    assert not ragged.signed
    assert not (ragged.addresses % np.uint64(2)).any()


@given(rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=20))
def test_the_first_refused_row_is_named_whatever_is_built(shelf: Shelf, rows: list[int]) -> None:
    asked = np.array([*rows, BAD[0]], dtype=np.uint64)
    found = []
    for built in shelf.caches:
        feed, _ = shelf.feed(built)
        for read in (feed.tokens, feed.lengths):
            with pytest.raises(sp.errors.DataError, match=r"(?i:filter the row out)") as error:
                read(asked)
            found.append((error.value.row, str(error.value)))

    assert len(set(found)) == 1
    assert found[0][0] == next(at for at, row in enumerate(asked.tolist()) if row in BAD)


def test_a_full_cache_reads_no_text_and_lengths_touch_no_token(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    feed, metrics = shelf.feed("all")
    monkeypatch.setattr(OpenRelation, "fetch", refuse)
    monkeypatch.setattr(ByteEncoder, "encode", refuse)
    asked = np.array(GOOD, dtype=np.uint64)
    feed.lengths(asked)
    assert metrics.cached_rows == 0
    feed.tokens(asked)

    assert metrics.cached_rows == len(GOOD)
    assert (metrics.source_rows, metrics.source_bytes) == (0, 0)


def test_rows_that_are_not_cached_are_counted_with_their_bytes(shelf: Shelf) -> None:
    feed, metrics = shelf.feed("some")
    asked = np.array(GOOD, dtype=np.uint64)
    left = np.flatnonzero(feed.missing(asked)).tolist()
    feed.tokens(asked)

    assert [GOOD[at] for at in left] == [row for row in GOOD if not 20 <= row < 70]
    assert metrics.cached_rows + metrics.source_rows == len(GOOD)
    assert metrics.source_rows == len(left)
    assert metrics.source_bytes == sum(len(expected(GOOD[at])) for at in left)


def test_refused_rows_are_not_missing(shelf: Shelf) -> None:
    everything = np.arange(ROWS, dtype=np.uint64)

    assert not shelf.feed("all")[0].missing(everything).any()
    assert shelf.feed("none")[0].missing(everything).all()


def test_threads_share_a_feed(shelf: Shelf) -> None:
    feed, metrics = shelf.feed("some")
    asked = np.array(GOOD[::-1], dtype=np.uint64)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: [each.tolist() for each in sequences(feed.tokens(asked))], range(24)))

    assert all(each == found[0] for each in found)
    assert metrics.cached_rows + metrics.source_rows == 24 * len(GOOD)


def test_tokens_outlive_the_reader_that_gave_them(tmp_path: Path, shelf: Shelf) -> None:
    store = CacheStore(tmp_path, PREFIX.facts())
    build(shelf.relation, PREFIX, store, works(shelf.relation), 2)
    ragged = TokenFeed(shelf.relation, PREFIX, store.open(), Metrics()).tokens(np.array([40, 3], dtype=np.uint64))

    assert [each.tolist() for each in sequences(ragged)] == [expected(40), expected(3)]


def test_a_cache_of_another_item_size_is_refused(shelf: Shelf) -> None:
    wider = TokenKind("rows", "text", ByteEncoder(dtype=np.uint32))
    feed = TokenFeed(shelf.relation, wider, shelf.caches["all"], Metrics())

    with pytest.raises(
        sp.errors.CacheError, match=r"tokens of 4 bytes at addresses.*multiples of 2 only. Drop the cache folder"
    ):
        feed.tokens(np.arange(30, dtype=np.uint64))

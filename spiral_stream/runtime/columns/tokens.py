"""Tokens of a text column, or of conversations, by row address: from the cache where it has them, else encoded now.

Both ways give addresses in memory, so a batch does not depend on which caches are built. Lengths come from the
cache's descriptors, so no token is read to know them. Rows are looked up shard by shard, after one sort of the shard
numbers; a call costs about 3 us per shard and 0.1 us per row. A mixture's token columns are read stream by stream.

Unreadable samples get no tokens and null values; the reason is recorded in a separate column (`lineage.Refusal`). A
user's function is called with the readable samples only (`runtime.columns.functions`), so it does not have to handle the others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.cache.kinds.kind import Rows
from spiral_stream.cache.store.reader import CachedShard, CacheReader
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.errors import CacheError, DataError, renumbered
from spiral_stream.fields.ragged import Ragged
from spiral_stream.plan.verbs.maps import SampleTokens
from spiral_stream.planner.columns.streams import ordinals, split
from spiral_stream.planner.stages import Stages, TokenStage
from spiral_stream.runtime.metrics import Metrics, timed
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.sampling.order import UInt64
from spiral_stream.threads import doing

if TYPE_CHECKING:
    from spiral_stream.cache.kinds.chats import ChatKind
    from spiral_stream.cache.kinds.tokens import TokenKind
    from spiral_stream.transforms.text.chat_encoder import ChatEncoder
    from spiral_stream.transforms.text.encoder import TextEncoder

TOGETHER: Final = 512  # texts that one task fetches and encodes: about a megabyte

Int64 = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True, eq=False)
class _StoredTokens:
    """Where the tokens of S rows lie, as far as the cache has them."""

    addresses: UInt64  # [S]
    sizes: Int64  # [S] bytes
    refused: dict[int, str]  # place -> reason
    missing: Int64  # places of rows that the cache does not have
    owners: list[Any]  # keep the memory alive

    def need_accepted(self) -> None:
        """Raise the error of the first refused place. So the error does not depend on what is cached."""
        if self.refused:
            row = min(self.refused)
            raise DataError(self.refused[row], row=row)


@final
class TokenFeed:
    """The tokens of one column of an open relation. Thread-safe.

    Text that is not cached is encoded in the caller's thread, or by the threads of ``pool`` if it is long.
    """

    def __init__(
        self,
        relation: OpenRelation,
        kind: "TokenKind | ChatKind",
        cache: CacheReader | None,
        metrics: Metrics,
        pool: Executor | None = None,
    ) -> None:
        self._relation = relation
        self._kind = kind
        self._cache = cache
        self._metrics = metrics
        self._pool = pool
        self._keys: list[str] = relation.manifest.content_keys.to_pylist()
        self._shard_rows: list[int] = relation.manifest.shard_rows.tolist()

    def tokens(self, ordinals: UInt64, refused: dict[int, str] | None = None) -> Ragged:
        """The tokens of rows.

        Args:
            ordinals: shape [S], uint64: logical ordinals, in any order, repeats allowed.
            refused: if given, unreadable rows get no tokens, and the reason is put here, by place.

        Returns:
            S sequences, in the order of ``ordinals``.

        Raises:
            DataError: a row's text is null or not UTF-8, and ``refused`` is None; ``row`` is the first such place.
            SourceError: storage failed.
            DamageError: the cache's files are not what was written.
        """
        found = self._find(ordinals)
        self._metrics.add(cached_rows=len(ordinals) - len(found.missing))
        if self._cache is not None:
            with timed(self._metrics, "fetch_s"):
                self._cache.verify(found.addresses, found.sizes)
        if len(found.missing):
            self._encode(ordinals, found)
        if refused is None:
            found.need_accepted()
        else:
            refused.update(found.refused)
        items = np.full(len(ordinals), self._kind.item_bytes, dtype=np.uint8)
        return Ragged(found.addresses, self._kind.lengths(found.sizes), items, signed=False, owners=tuple(found.owners))

    def lengths(self, ordinals: UInt64, refused: dict[int, str] | None = None) -> Int64:
        """Return the number of tokens of each row, shape [S]; reads no token of the cache. Arguments as in `tokens`.

        Like `tokens`, it encodes rows that are not cached.
        """
        found = self._find(ordinals)
        if len(found.missing):
            self._encode(ordinals, found)
        if refused is None:
            found.need_accepted()
        else:
            refused.update(found.refused)
        return self._kind.lengths(found.sizes)

    def missing(self, ordinals: UInt64) -> NDArray[np.bool_]:
        """Return which rows the cache lacks, so that their text would be read: shape [S], bool. It holds refused rows."""
        out = np.zeros(len(ordinals), dtype=np.bool_)
        out[self._find(ordinals).missing] = True
        return out

    def _find(self, ordinals: UInt64) -> _StoredTokens:
        count = len(ordinals)
        if self._cache is None:
            return _StoredTokens(np.zeros(count, np.uint64), np.zeros(count, np.int64), {}, np.arange(count), [])
        with timed(self._metrics, "fetch_s"):
            return self._look_up(self._cache, ordinals)

    def _look_up(self, cache: CacheReader, ordinals: UInt64) -> _StoredTokens:
        count = len(ordinals)
        manifest = self._relation.manifest
        shards = manifest.shard_of(ordinals)
        order = _grouping(shards, len(self._keys))
        sorted_shards = shards if order is None else shards[order]
        ordered = ordinals if order is None else ordinals[order]
        offsets: Int64 = (ordered - manifest.starts[sorted_shards]).astype(np.int64)
        addresses, sizes = np.zeros(count, dtype=np.uint64), np.zeros(count, dtype=np.int64)
        missing: list[Int64] = []
        refused: dict[int, str] = {}
        owners: list[Any] = []
        for shard, part in _groups(sorted_shards):  # 3 us each
            stored = cache.shard(self._keys[shard])
            if stored is None:
                missing.append(np.arange(part.start, part.stop))
                continue
            self._need_aligned(stored, cache)
            at = offsets[part]
            if stored.leading == self._shard_rows[shard]:  # all of them, so every row stands at its offset
                addresses[part], sizes[part] = stored.addresses[at], stored.sizes[at]
            else:
                at = stored.find(at)
                have = at >= 0
                missing.append(np.flatnonzero(~have) + part.start)
                addresses[part][have], sizes[part][have] = stored.locate(at[have])
            owners.append(stored)
            if stored.any_refused:
                refused |= _refused(stored, at, part.start)
        left = np.concatenate(missing) if missing else np.empty(0, dtype=np.int64)
        if order is None:
            return _StoredTokens(addresses, sizes, refused, left, owners)
        at_rows = np.empty(count, dtype=np.int64)
        at_rows[order] = np.arange(count)
        return _StoredTokens(
            addresses[at_rows],
            sizes[at_rows],
            {int(order[at]): why for at, why in refused.items()},
            order[left],
            owners,
        )

    def _need_aligned(self, stored: CachedShard, cache: CacheReader) -> None:
        item = self._kind.item_bytes
        if stored.alignment % item:
            msg = (
                f"cache: version {cache.version} of {self._kind.fingerprint} has tokens of {item} bytes at addresses that are "
                f"multiples of {stored.alignment} only. Drop the cache folder and build it again"
            )
            raise CacheError(msg)

    def _encode(self, ordinals: UInt64, found: _StoredTokens) -> None:
        """Encode the rows that are not cached, and enter their places."""
        missing = found.missing[np.argsort(ordinals[found.missing], kind="stable")]  # in storage order no source copies
        parts = [missing[at : at + TOGETHER] for at in range(0, len(missing), TOGETHER)]
        run = map if self._pool is None or len(parts) == 1 else self._pool.map
        for part, rows in zip(parts, run(self._truncated, [ordinals[part] for part in parts]), strict=True):
            found.owners.append(rows.payload)
            begins = np.cumsum(rows.sizes) - rows.sizes
            found.addresses[part] = np.uint64(rows.payload.ctypes.data) + begins.astype(np.uint64)
            found.sizes[part] = rows.sizes
            found.refused.update({int(part[at]): reason for at, reason in rows.refused.items()})
            self._metrics.read(len(part), {self._kind.column: rows.source_bytes})

    def _truncated(self, ordinals: UInt64) -> Rows:
        """Return what a cache would hold for these rows."""
        column, relation = self._kind.column, self._relation.entry.name
        with timed(self._metrics, "fetch_s"), doing(f"reading column {column} of relation {relation}"):
            table = self._relation.fetch(ordinals, list(self._kind.columns))
        with (
            timed(self._metrics, "map_s", f"tokenize {column}"),
            doing(f"tokenizing column {column} of relation {relation}"),
        ):
            return self._kind.keep_rows(table, self._relation.base)


def _grouping(shards: NDArray[np.intp], count: int) -> NDArray[np.intp] | None:
    """Return the order that brings equal shards together; None if they are together already."""
    if bool((shards[1:] >= shards[:-1]).all()):
        return None
    small = shards.astype(np.uint16) if count <= 1 << 16 else shards  # NumPy sorts 16 bits by radix
    return np.argsort(small, kind="stable")


def _groups(shards: NDArray[np.intp]) -> Iterator[tuple[int, slice]]:
    """Yield each shard, and the slice of its rows."""
    if not len(shards):
        return
    starts = np.concatenate([[0], np.flatnonzero(shards[1:] != shards[:-1]) + 1])
    bounds = [*starts.tolist(), len(shards)]
    for at, shard in enumerate(shards[starts].tolist()):
        yield shard, slice(bounds[at], bounds[at + 1])


def _refused(stored: CachedShard, at: Int64, start: int) -> dict[int, str]:
    """Return the reasons of the refused rows among rows ``at`` of a shard, by place."""
    empty = np.flatnonzero((at >= 0) & (stored.sizes[at] == 0)).tolist()  # a refused row has no payload
    reasons = ((row, stored.refused(int(at[row]))) for row in empty)
    return {row + start: reason for row, reason in reasons if reason is not None}


def encoded(encoder: "TextEncoder | ChatEncoder", texts: pa.Table, refused: dict[int, str] | None) -> Ragged:
    """Tokenize computed columns.

    Args:
        encoder: the tokenizer.
        texts: the columns of the transform, S rows: first the text, by the name that reasons give it.
        refused: if given, unreadable texts get no tokens, and the reason is put here, by place.

    Raises:
        DataError: a text cannot be read, and ``refused`` is None; ``row`` is its place.
    """
    from spiral_stream.cache.kinds.chats import ChatKind
    from spiral_stream.cache.kinds.tokens import TokenKind
    from spiral_stream.transforms.text.chat_encoder import ChatEncoder

    name, *others = texts.column_names
    kind: TokenKind | ChatKind
    if isinstance(encoder, ChatEncoder):
        kind = ChatKind("", name, tuple(others), encoder)
    elif refused is None:
        return Ragged.of_flat(*encoder.encode(texts[name]))
    else:
        kind = TokenKind("", name, encoder)
    rows = kind.keep_rows(texts, "")
    if refused is not None:
        refused.update(rows.refused)
    elif rows.refused:
        row = min(rows.refused)
        raise DataError(rows.refused[row], row=row)
    begins = (np.cumsum(rows.sizes) - rows.sizes).astype(np.uint64)
    items = np.full(len(rows.sizes), kind.item_bytes, np.uint8)
    addresses = np.uint64(rows.payload.ctypes.data) + begins
    return Ragged(addresses, kind.lengths(rows.sizes), items, signed=False, owners=(rows.payload,))


def reasons(refused: Mapping[int, str], count: int) -> pa.Array:
    """Return the reasons as a column of text, one per sample: null for samples that can be read."""
    if not refused:
        return pa.nulls(count, pa.utf8())
    return pa.array([refused.get(row) for row in range(count)], pa.utf8())


V = TypeVar("V")
Refused = dict[int, str]  # place of a sample -> why its text cannot be read


@final
class TokenColumns:
    """The token columns of a plan, by the number of the map that makes each. Thread-safe."""

    def __init__(self, stages: Stages, metrics: Metrics, pool: Executor | None) -> None:
        """Open the caches.

        Args:
            stages: the lowered plan.
            metrics: where reads are counted.
            pool: encodes long texts that no cache holds; None leaves them to the caller's thread.
        """
        self._stages, self._metrics = stages, metrics
        made = [at for at, step in enumerate(stages.maps) if isinstance(step, SampleTokens)]
        self._tokens = dict(zip(made, stages.tokens, strict=True))  # by the map, for two may give one name
        self._feeds = {at: _feeds(stages, stage, metrics, pool) for at, stage in self._tokens.items()}

    def computed(self, at: int) -> bool:
        """Whether the text of map ``at`` is computed, so that it has to be given."""
        return not self._feeds[at]

    def of_texts(self, at: int, texts: pa.Table, refused: Refused | None) -> Ragged:
        """Encode texts that the plan computes."""
        with timed(self._metrics, "map_s", f"tokenize {', '.join(texts.column_names)}"):
            return encoded(self._tokens[at].encoder, texts, refused)

    def tokens(self, at: int, stream_rows: StreamRows, refused: Refused | None) -> Ragged:
        """Return the tokens of samples.

        Args:
            at: number of the map.
            stream_rows: S samples.
            refused: if given, unreadable samples get no tokens, and the reason is put here, by place.

        Raises:
            DataError: a text cannot be read, and ``refused`` is None; ``row`` is the first such place.
        """
        found = self._answers(at, stream_rows, refused, TokenFeed.tokens)
        if not found:
            return Ragged.of_flat(np.empty(0, dtype=np.uint16), np.zeros(1, dtype=np.int64))
        return found[0][1] if len(found) == 1 else Ragged.concat([tokens for _, tokens in found]).take(_order(found))

    def lengths(self, at: int, stream_rows: StreamRows, refused: Refused | None) -> pa.Array:
        """Return how many tokens samples have, as integers: from a cache no token is read. Arguments as in `tokens`."""
        found = self._answers(at, stream_rows, refused, TokenFeed.lengths)
        if not found:
            return pa.array(np.empty(0, np.int64))
        return pa.array(found[0][1] if len(found) == 1 else np.concatenate([each for _, each in found])[_order(found)])

    def _answers(
        self,
        at: int,
        stream_rows: StreamRows,
        refused: Refused | None,
        ask: Callable[[TokenFeed, UInt64, Refused | None], V],
    ) -> list[tuple[Int64, V]]:
        """What each stream's feed answers, and for which samples."""
        feeds = self._feeds[at]
        groups = [(0, np.arange(len(stream_rows)))]
        out = []
        for stream, where in groups if len(feeds) == 1 else split(stream_rows):
            rows = ordinals(self._stages.streams, stream, stream_rows.rows[where])
            out.append((where, _at_rows(feeds[stream], rows, where, refused, ask)))
        return out


def _order(found: Sequence[tuple[Int64, Any]]) -> Int64:
    """Where, among the values of several streams' samples one after the other, that of each sample stands."""
    return np.argsort(np.concatenate([where for where, _ in found]), kind="stable")


def _feeds(stages: Stages, stage: TokenStage, metrics: Metrics, pool: Executor | None) -> list[TokenFeed]:
    return [
        TokenFeed(stream.base, cache.kind, cache.store.open(), metrics, pool)
        for stream, cache in zip(stages.streams, stage.caches, strict=False)
    ]


def _at_rows(
    feed: TokenFeed,
    rows: UInt64,
    where: Int64,
    refused: Refused | None,
    ask: Callable[[TokenFeed, UInt64, Refused | None], V],
) -> V:
    """Ask one stream's feed. The row of an error, and refused rows, count among all samples."""
    found: Refused | None = None if refused is None else {}
    with renumbered(where):
        answer = ask(feed, rows, found)
    if refused is not None and found:
        refused.update({int(where[row]): reason for row, reason in found.items()})
    return answer

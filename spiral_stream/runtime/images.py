"""Pixels of a payload column by row address: from the cache where it has them, else on the fly."""

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.cache.prefix import Pixels, Prefix
from spiral_stream.cache.store import CacheReader
from spiral_stream.catalog.opened import OpenRelation
from spiral_stream.errors import DataError, SourceError
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.sources.reference import resolve


@final
class ImageFeed:
    """One payload column of an open relation. Thread-safe."""

    def __init__(self, relation: OpenRelation, prefix: Prefix, cache: CacheReader | None, metrics: Metrics) -> None:
        self._relation = relation
        self._prefix = prefix
        self._cache = cache
        self._metrics = metrics

    def pixels(self, ordinals: NDArray[np.uint64]) -> list[Pixels]:
        """Images by logical ordinal, in the order asked.

        Args:
            ordinals: shape [P], uint64.

        Returns:
            P arrays [H, W, 3] uint8; raw cached ones are views of the mapped file.

        Raises:
            DataError: an image's bytes are bad; ``row`` is its place in ``ordinals``.
            SourceError: storage failed.
        """
        out: list[Any] = [None] * len(ordinals)
        missing = self._cached(ordinals, out)
        if len(missing):
            self._direct(ordinals, missing, out)
        return out

    def _cached(self, ordinals: NDArray[np.uint64], out: list[Any]) -> NDArray[np.int64]:
        """Fill what the cache holds; return the places it does not."""
        everything = np.arange(len(ordinals))
        if self._cache is None:
            return everything
        manifest = self._relation.manifest
        shards = manifest.shard_of(ordinals)
        missing = []
        with self._metrics.timed("transform_s"):
            for shard in np.unique(shards):
                places = everything[shards == shard]
                stored = self._cache.shard(manifest.content_keys[int(shard)].as_py())
                if stored is None:
                    missing.append(places)
                    continue
                found = stored.find(ordinals[places] - manifest.starts[shard])
                missing.append(places[found < 0])
                for place, at in zip(places[found >= 0], found[found >= 0], strict=True):  # 2 us a row for the view
                    reason = stored.refused(int(at))
                    if reason is not None:
                        raise _at(int(place), DataError(reason))
                    out[place] = self._prefix.read(stored.payload(at), int(stored.heights[at]), int(stored.widths[at]))
        left = np.concatenate(missing)
        self._metrics.add(cached_rows=len(ordinals) - len(left))
        return left

    def _direct(self, ordinals: NDArray[np.uint64], places: NDArray[np.int64], out: list[Any]) -> None:
        column = self._prefix.column
        places = places[np.argsort(ordinals[places], kind="stable")]  # in storage order no source copies to reorder
        with self._metrics.timed("fetch_s"):
            table = self._relation.fetch(ordinals[places], [column])
            try:
                data = resolve(table[column], self._relation.base)
            except SourceError as error:
                raise _at(int(places[getattr(error, "row", 0)]), error) from error
        with self._metrics.timed("transform_s"):
            for place, encoded in zip(places, data, strict=True):  # beside 800 us of decoding each
                try:
                    out[place] = self._prefix.pixels(encoded)
                except DataError as error:
                    raise _at(int(place), error) from error
        self._metrics.add(source_rows=len(places), source_bytes=sum(len(d) for d in data))


def _at(row: int, error: SourceError) -> SourceError:
    error.row = row  # type: ignore[attr-defined]  # read by whoever knows the batch's identities
    return error

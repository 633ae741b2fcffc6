"""Images of a payload column by row address: from the cache where it has them, else on the fly.

Both ways give what the profile keeps (`Kept`), so a batch does not depend on what is built. Kept
JPEGs are decoded a few at a time into the thread's scratch, only as far as the crop needs
(`decoders.region`); raw pixels are resized straight from the mapped file.
"""

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.cache.prefix import Kept, Pixels, Prefix
from spiral_stream.cache.store import CacheReader
from spiral_stream.catalog.opened import OpenRelation
from spiral_stream.decoders import region
from spiral_stream.errors import DataError, SourceError
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.sampling.order import UInt64
from spiral_stream.sources.reference import resolve
from spiral_stream.transforms.image import ImageProgram


@final
class ImageFeed:
    """One payload column of an open relation. Thread-safe."""

    def __init__(self, relation: OpenRelation, prefix: Prefix, cache: CacheReader | None, metrics: Metrics) -> None:
        self._relation = relation
        self._prefix = prefix
        self._cache = cache
        self._metrics = metrics
        self._by_region = prefix.keeps_jpeg and region.available

    def render(self, ordinals: UInt64, keys: UInt64, program: ImageProgram, out: NDArray[Any]) -> None:
        """Fetch, decode and transform images into ``out``.

        Args:
            ordinals: shape [P], uint64: logical ordinals, in any order.
            keys: shape [P], uint64: the samples' own random keys.
            program: the compiled transforms.
            out: shape [P, *program.output_shape].

        Raises:
            DataError: an image's bytes are bad; ``row`` is its place in ``ordinals``.
            SourceError: storage failed; likewise.
        """
        kept = self._kept(ordinals)
        with self._metrics.timed("transform_s"):
            if self._by_region:
                self._regions(kept, keys, program, out)
            else:
                program.run(self._whole(kept, 0), keys, out)

    def pixels(self, ordinals: UInt64) -> list[Pixels]:
        """Whole images, in the order asked; raw cached ones are views of the mapped file.

        Raises:
            DataError: see `render`.
        """
        kept = self._kept(ordinals)
        with self._metrics.timed("transform_s"):
            return self._whole(kept, 0)

    def _whole(self, kept: list[Kept], first: int) -> list[Pixels]:
        out = []
        for row, each in enumerate(kept, first):  # 1 us a row beside 100 us of resizing
            try:
                out.append(self._prefix.read(each))
            except DataError as error:
                raise _at(row, error) from error
        return out

    def _regions(self, kept: list[Kept], keys: UInt64, program: ImageProgram, out: NDArray[Any]) -> None:
        images = [memoryview(each.payload) for each in kept]
        eligible = region.sizes(images)[0] > 0
        heights = np.array([each.height for each in kept], dtype=np.int32)
        widths = np.array([each.width for each in kept], dtype=np.int32)
        placed = program.geometry(heights, widths, keys)
        boxes = placed.boxes()[:, :4]
        for start in range(0, len(kept), region.TOGETHER):
            part = slice(start, start + region.TOGETHER)
            decoded = region.decode_regions(images[part], boxes[part]) if eligible[part].all() else None
            if decoded is None:  # progressive, CMYK or damaged: the full decoder reads it, or says why not
                program.run(self._whole(kept[part], start), keys[part], out[part])
            else:
                inside = placed.inside_boxes(part)
                program.render(inside, *decoded, inside.crop_h, inside.crop_w, out[part])

    def _kept(self, ordinals: UInt64) -> list[Kept]:
        out: list[Any] = [None] * len(ordinals)
        missing = np.arange(len(ordinals)) if self._cache is None else self._cached(self._cache, ordinals, out)
        if len(missing):
            self._direct(ordinals, missing, out)
        return out

    def _cached(self, cache: CacheReader, ordinals: UInt64, out: list[Any]) -> NDArray[np.int64]:
        """Fill what the cache holds; return the places it does not."""
        manifest = self._relation.manifest
        shards = manifest.shard_of(ordinals)
        missing = []
        with self._metrics.timed("fetch_s"):
            for shard in np.unique(shards):
                places = np.flatnonzero(shards == shard)
                stored = cache.shard(manifest.content_keys[int(shard)].as_py())
                if stored is None:
                    missing.append(places)
                    continue
                found = stored.find(ordinals[places] - manifest.starts[shard])
                missing.append(places[found < 0])
                for place, at in zip(places[found >= 0].tolist(), found[found >= 0].tolist(), strict=True):
                    reason = stored.refused(at)
                    if reason is not None:
                        raise _at(place, DataError(reason))
                    out[place] = Kept(stored.payload(at), int(stored.heights[at]), int(stored.widths[at]))
        left = np.concatenate(missing)
        self._metrics.add(cached_rows=len(ordinals) - len(left))
        return left

    def _direct(self, ordinals: UInt64, places: NDArray[np.int64], out: list[Any]) -> None:
        column = self._prefix.column
        places = places[np.argsort(ordinals[places], kind="stable")]  # in storage order no source copies to reorder
        with self._metrics.timed("fetch_s"):
            table = self._relation.fetch(ordinals[places], [column])
            try:
                data = resolve(table[column], self._relation.base)
            except SourceError as error:
                raise _at(int(places[getattr(error, "row", 0)]), error) from error
        with self._metrics.timed("transform_s"):
            for place, encoded in zip(places.tolist(), data, strict=True):  # beside 800 us of decoding each
                try:
                    out[place] = self._prefix.keep(encoded)
                except DataError as error:
                    raise _at(place, error) from error
        self._metrics.add(source_rows=len(places), source_bytes=sum(len(d) for d in data))


def _at(row: int, error: SourceError) -> SourceError:
    error.row = row  # type: ignore[attr-defined]  # read by whoever knows the batch's identities
    return error

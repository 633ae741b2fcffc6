"""Images of samples that come from one or several streams: each stream's own feed, in the samples' order."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import SourceError
from spiral_stream.planner.physical import ImageStage
from spiral_stream.planner.streams import split
from spiral_stream.runtime.images import ImageFeed
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.sampling.epoch import Places
from spiral_stream.sampling.order import UInt64
from spiral_stream.transforms.image import ImageProgram


@final
class Pictures:
    """One image field of a plan. Thread-safe."""

    def __init__(self, stage: ImageStage, metrics: Metrics) -> None:
        self._payloads = stage.payloads
        self._feeds = [
            ImageFeed(payload.relation, prefix, store.open(), metrics)
            for payload, prefix, store in zip(stage.payloads, stage.prefixes, stage.stores, strict=True)
        ]

    def render(self, places: Places, keys: UInt64, program: ImageProgram, out: NDArray[Any]) -> None:
        """`ImageFeed.render` for samples."""
        if len(self._feeds) == 1:
            self._feeds[0].render(self._payloads[0].ordinals(places.rows), keys, program, out)
            return
        for stream, where in split(places):
            own = np.empty((len(where), *out.shape[1:]), dtype=out.dtype)
            with at_rows(where):
                rows = self._payloads[stream].ordinals(places.rows[where])
                self._feeds[stream].render(rows, keys[where], program, own)
            out[where] = own

    def pixels(self, places: Places) -> list[NDArray[np.uint8]]:
        """`ImageFeed.pixels` for samples."""
        out: list[Any] = [None] * len(places)
        for stream, where in split(places):
            with at_rows(where):
                found = self._feeds[stream].pixels(self._payloads[stream].ordinals(places.rows[where]))
            for at, image in zip(where.tolist(), found, strict=True):  # references, beside decoding
                out[at] = image
        return out


@contextmanager
def at_rows(where: NDArray[np.int64]) -> Iterator[None]:
    """Count an error's row among all samples."""
    try:
        yield
    except SourceError as error:
        row = getattr(error, "row", None)
        if row is not None:
            error.row = int(where[row])  # type: ignore[attr-defined]  # read by whoever knows the batch's identities
        raise

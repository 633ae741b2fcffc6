"""A batch whose fields are being filled."""

from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.batching.formation import Membership
from spiral_stream.errors import StreamError
from spiral_stream.runtime.bad_samples import BatchRefusals
from spiral_stream.runtime.columns.samples import Samples
from spiral_stream.runtime.fields.geometry import BatchFollowers
from spiral_stream.sampling.order import UInt64


@final
@dataclass(slots=True, eq=False)
class Draft:
    """A batch whose fields are being filled."""

    samples: Samples
    shape: Membership
    keys: UInt64  # [S] random keys of the samples; zeros where nothing draws
    refusals: BatchRefusals
    pool: Executor
    fields: dict[str, Any]
    following: BatchFollowers
    parts: list[Future[None]] = field(default_factory=list)
    listed: int = 0  # bytes of the fields that are lists


def spread(done: NDArray[Any], rows: NDArray[np.int64], count: int) -> NDArray[Any]:
    """Spread the rows of an array over ``count`` rows. The other rows are zeros."""
    out = np.zeros((count, *done.shape[1:]), dtype=done.dtype)
    out[rows] = done
    return out


def all_skipped(epoch: int, number: int) -> StreamError:
    """Return the error for a batch of which the run skips every sample."""
    msg = f"batch {number:,} of epoch {epoch:,}: all of its samples are skipped. Skip it as well: stream.skip(batches=[{number}])"
    return StreamError(msg)

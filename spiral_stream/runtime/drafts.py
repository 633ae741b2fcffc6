"""A batch whose fields are being filled."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.batching.formation import Membership
from spiral_stream.errors import StreamError
from spiral_stream.fields.labels import LabelField
from spiral_stream.fields.ragged import Ragged
from spiral_stream.fields.sequence import Placed, TokenField
from spiral_stream.planner.lineage import Key, Made, Stored
from spiral_stream.planner.physical import SequenceStage
from spiral_stream.runtime.bad_samples import BatchRefusals
from spiral_stream.runtime.following import BatchFollowers
from spiral_stream.runtime.placing import as_ragged, null_items
from spiral_stream.runtime.samples import Samples
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


@final
@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """The fields of one token column, and the masks of its labels."""

    column: str
    keys: Mapping[str, Stored | Made]  # by column: of the tokens, then of the masks
    fields: Sequence[SequenceStage]

    def found(self, gathered: Mapping[str, Ragged], columns: Mapping[Key, pa.Array | Ragged]) -> dict[str, Ragged]:
        """The sequences of a batch, by column: those that were gathered, else those of its samples."""
        return {
            name: gathered[name] if name in gathered else as_ragged(columns[key]) for name, key in self.keys.items()
        }

    def with_nulls(
        self, gathered: Mapping[str, Ragged], columns: Mapping[Key, pa.Array | Ragged]
    ) -> dict[str, pa.Array]:
        """The columns of a batch that may hold null items: none that was gathered."""
        own = {name: columns[key] for name, key in self.keys.items() if name not in gathered}
        return {name: each for name, each in own.items() if isinstance(each, pa.Array) and null_items(each)}

    def longest(self, found: Mapping[str, Mapping[str, Ragged]]) -> NDArray[np.int64] | None:
        """The length of each sample's longest sequence in the columns that share the width; None if it is one column."""
        lengths = [found[name][name].lengths for name in self.fields[0].together]
        return np.maximum.reduce(lengths) if lengths else None

    def write(
        self,
        found: Mapping[str, Ragged],
        part: Placed,
        pieces: slice,
        written: Sequence[tuple[TokenField, NDArray[Any]]],
    ) -> None:
        """Write the fields of some rows of a batch.

        Args:
            found: the sequences of the whole batch, by column.
            part: the rows.
            pieces: which sequences lie in them.
            written: each field with its rows.

        Raises:
            DataError: a token does not fit, or a mask does not fit its tokens; ``row`` counts from the first piece.
        """
        whole = len(part.rows) == len(found[self.column])
        some = {name: v if whole else v.take(np.arange(pieces.start, pieces.stop)) for name, v in found.items()}
        for each, out in written:
            each.fill_tokens(some[self.column], part, out)
            if isinstance(each, LabelField) and each.mask is not None:
                each.ignore(some[each.mask], some[self.column], part, out)


def spread(done: NDArray[Any], rows: NDArray[np.int64], count: int) -> NDArray[Any]:
    """Spread the rows of an array over ``count`` rows. The other rows are zeros."""
    out = np.zeros((count, *done.shape[1:]), dtype=done.dtype)
    out[rows] = done
    return out


def all_skipped(epoch: int, number: int) -> StreamError:
    """Return the error for a batch of which the run skips every sample."""
    msg = f"batch {number:,} of epoch {epoch:,}: all of its samples are skipped. Skip it as well: stream.skip(batches=[{number}])"
    return StreamError(msg)

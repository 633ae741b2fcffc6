"""Name the sample that an error is about.

An error carries a row on its way up. Here, where the identity can be read, the row becomes the sample's identity.
"""

from typing import Any, final

import numpy as np
import pyarrow as pa

from spiral_stream.errors import DataError, SourceError, shown
from spiral_stream.plan.verbs.maps import SampleAssembly, SampleFlatMap
from spiral_stream.plan.verbs.mix import STREAM_ID
from spiral_stream.planner.columns.lineage import Stored, identity_keys
from spiral_stream.planner.columns.streams import fetch
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.columns.samples import Samples


def identity_table(stages: Stages, samples: Samples) -> pa.Table:
    """Return the columns that identify samples: the stream's name if several are mixed, and the identity."""
    keys = identity_keys(stages)
    columns = {key.name: samples.columns[key] for key in keys}
    if stages.mixed and all(isinstance(key, Stored) for key in keys):
        names = pa.array([stream.name for stream in stages.streams])
        columns = {STREAM_ID: names.take(pa.array(samples.stream_rows.streams)), **columns}
    return pa.table(columns)


def identities(stages: Stages, samples: Samples) -> list[Any]:
    """Return the identity of each sample.

    It is a value, or a tuple: stream name (mixtures only), identity columns, part number (after flat_map).
    """
    columns = [column.to_pylist() for column in identity_table(stages, samples).columns]
    made = [step for step in stages.maps if isinstance(step, SampleFlatMap | SampleAssembly)]
    if made and isinstance(made[-1], SampleFlatMap):
        columns.append(samples.parts.tolist())
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def read_identity(stages: Stages, samples: Samples) -> None:
    """Fetch the identity's columns that a relation stores and the samples lack."""
    keys = [key for key in identity_keys(stages) if isinstance(key, Stored) and key not in samples.columns]
    if keys:
        table = fetch(stages.streams, samples.stream_rows, [key.name for key in keys])
        samples.columns.update({key: table[key.name].combine_chunks() for key in keys})


@final
class blaming:  # noqa: N801  read as a word: ``with blaming(stages, samples):``
    """Name the sample in the message of a `SourceError` that passes through. The identity is read only then.

    A class, because a generator costs three times as much, and every batch has five of these.

    Args:
        stages: of the stream.
        samples: the samples that an error's ``row`` counts in. An error with ``samples`` of its own is about the first.
        start: place in ``samples`` of the error's row 0.
        skippable: whether ``on_error="skip"`` would let the plan go on without the sample; the message then says so.
    """

    __slots__ = ("_samples", "_skippable", "_stages", "_start")

    def __init__(
        self, stages: Stages, samples: Samples | None = None, start: int = 0, *, skippable: bool = False
    ) -> None:
        self._stages, self._samples, self._start, self._skippable = stages, samples, start, skippable

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, SourceError):
            return
        row = None
        if isinstance(error.samples, Samples):
            one = error.samples.take(np.array([0]))
        elif self._samples is not None and error.row is not None:
            row = self._start + error.row
            one = self._samples.take(np.array([row]))
        else:
            return
        read_identity(self._stages, one)
        values = identity_table(self._stages, one).to_pylist()[0]
        raise _named(self._stages, values, error, row, skippable=self._skippable) from error


def _named(
    stages: Stages, values: dict[str, Any], error: SourceError, row: int | None, *, skippable: bool
) -> SourceError:
    who = ", ".join(f"{name}={shown(value)}" for name, value in values.items())
    name = stages.identity[0]
    where = stages.streams[0].base.entry.name
    if STREAM_ID in values and stages.mixed:
        where = next(s.base.entry.name for s in stages.streams if s.name == values[STREAM_ID])
    msg = (
        f"{where}: sample {who}: {error}. "
        f'Mend it, or leave it out with .filter(col("{name}") != {shown(values[name])}) before sample'
    )
    bad = isinstance(error, DataError)
    if bad and skippable:
        msg += ', or go on without such samples: collate(..., on_error="skip"), which takes the run\'s saved states'
    named = DataError(msg) if bad else SourceError(msg)
    named.place = row
    return named

"""Which sample an error is of: errors carry a place while they rise, and a name once the identity can be read."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from spiral_stream.errors import DataError, SourceError, shown
from spiral_stream.plan.maps import SampleAssembly, SampleFlatMap
from spiral_stream.plan.mix import STREAM_ID
from spiral_stream.planner.lineage import Stored, identity_keys
from spiral_stream.planner.physical import Stages
from spiral_stream.planner.streams import fetch
from spiral_stream.runtime.samples import Samples


def identity_table(stages: Stages, samples: Samples) -> pa.Table:
    """What tells samples apart: the stream's name where there are several, the identity's columns."""
    keys = identity_keys(stages)
    columns = {key.name: samples.columns[key] for key in keys}
    if stages.mixed and all(isinstance(key, Stored) for key in keys):
        names = pa.array([stream.name for stream in stages.streams])
        columns = {STREAM_ID: names.take(pa.array(samples.places.streams)), **columns}
    return pa.table(columns)


def identities(stages: Stages, samples: Samples) -> list[Any]:
    """The identity of each sample: a value, or a tuple of several; the last of them the part, where flat_map made it."""
    columns = [column.to_pylist() for column in identity_table(stages, samples).columns]
    made = [step for step in stages.maps if isinstance(step, SampleFlatMap | SampleAssembly)]
    if made and isinstance(made[-1], SampleFlatMap):
        columns.append(samples.parts.tolist())
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def read_identity(stages: Stages, samples: Samples) -> None:
    """Add the identity's columns, as far as they are missing and a relation has them."""
    keys = [key for key in identity_keys(stages) if isinstance(key, Stored) and key not in samples.columns]
    if keys:
        table = fetch(stages.streams, samples.places, [key.name for key in keys])
        samples.columns.update({key: table[key.name].combine_chunks() for key in keys})


@contextmanager
def blaming(
    stages: Stages, samples: Samples | None = None, start: int = 0, *, skippable: bool = False
) -> Iterator[None]:
    """Put the sample's identity before an error; it is read only then.

    The error carries ``samples``, whose first it is, or ``row``, its place in the samples given from ``start`` on. With
    ``skippable`` it is one that the plan could go on without.
    """
    try:
        yield
    except SourceError as error:
        if isinstance(error.samples, Samples):
            one = error.samples.take(np.array([0]))
        elif samples is not None and error.row is not None:
            one = samples.take(np.array([start + error.row]))
        else:
            raise
        read_identity(stages, one)
        raise _named(stages, identity_table(stages, one).to_pylist()[0], error, skippable=skippable) from error


def _named(stages: Stages, values: dict[str, Any], error: SourceError, *, skippable: bool) -> SourceError:
    who = ", ".join(f"{name}={shown(value)}" for name, value in values.items())
    name = stages.identity[0]
    where = stages.base.entry.name
    if STREAM_ID in values and stages.mixed:
        where = next(s.base.entry.name for s in stages.streams if s.name == values[STREAM_ID])
    msg = (
        f"{where}: sample {who}: {error}. "
        f'Mend it, or leave it out with .filter(col("{name}") != {shown(values[name])}) before sample'
    )
    if isinstance(error, DataError):
        more = ', or go on without such samples: collate(..., on_error="skip"), which takes the run\'s saved states'
        return DataError(msg + more if skippable else msg)
    return SourceError(msg)

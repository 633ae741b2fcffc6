"""Name the sample that an error is about.

An error carries a row on its way up. Here, where the identity can be read, the row becomes the sample's identity.
"""

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
    """Return the columns that identify samples: the stream's name if several are mixed, and the identity."""
    keys = identity_keys(stages)
    columns = {key.name: samples.columns[key] for key in keys}
    if stages.mixed and all(isinstance(key, Stored) for key in keys):
        names = pa.array([stream.name for stream in stages.streams])
        columns = {STREAM_ID: names.take(pa.array(samples.places.streams)), **columns}
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
        table = fetch(stages.streams, samples.places, [key.name for key in keys])
        samples.columns.update({key: table[key.name].combine_chunks() for key in keys})


@contextmanager
def blaming(
    stages: Stages, samples: Samples | None = None, start: int = 0, *, skippable: bool = False
) -> Iterator[None]:
    """Name the sample in the message of a `SourceError` that passes through. The identity is read only then.

    Args:
        stages: of the stream.
        samples: the samples that an error's ``row`` counts in. An error with ``samples`` of its own is about the first.
        start: place in ``samples`` of the error's row 0.
        skippable: whether ``on_error="skip"`` would let the plan go on without the sample; the message then says so.
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
    where = stages.streams[0].base.entry.name
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

"""How much memory a batch takes: its arrays by the plan, its lists by facts; the rest is unknown until it runs.

Arrays are counted by shape. The values of lists are Python objects. Their size is known for numbers, for columns stored
with the selection, and for text that ``catalog.measure`` has counted. Any other size is unknown, never guessed: the
running stream measures it (``peak_batch_bytes``), and its budget bounds it.
"""

from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spiral_stream.batching.packing import Packed
from spiral_stream.batching.tail import KeepPartial
from spiral_stream.batching.windowed import WindowedBucket
from spiral_stream.catalog.statistics.measure import KNOWN, load_statistics
from spiral_stream.explain.figure import Figure, Phrase, marked
from spiral_stream.explain.skew import MADE
from spiral_stream.explain.subject import Subject
from spiral_stream.expr import Col
from spiral_stream.fields.field import FieldSpec
from spiral_stream.host_dtypes import host_dtype
from spiral_stream.plan.nodes import Collate
from spiral_stream.plan.tree import need
from spiral_stream.plan.verbs.mix import STREAM_ID
from spiral_stream.planner.columns.lineage import Stored
from spiral_stream.planner.columns.streams import StreamStage
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.fields.size import OBJECT_BYTES, fixed_bytes, row_bytes
from spiral_stream.semantic import is_ragged

_RUNNING = "the running stream's metrics()['peak_batch_bytes'] counts them"


@final
@dataclass(slots=True)
class Size:
    """Bytes of a step's batch, as far as they are known."""

    arrays: int
    mark: str = ""  # before ``arrays``
    lists: float | None = None  # bytes of the lists that are known; None if there are none
    unknown: list[str] = field(default_factory=list)  # fields that are not counted, and where to learn their size

    @property
    def shown(self) -> Phrase | Figure:
        """The size as EXPLAIN shows it."""
        arrays = Figure(self.arrays, "bytes", marked(not self.mark), source=self.mark.strip())
        if not self.mark and self.lists is None and not self.unknown:
            return arrays
        parts, figures = [f"{self.mark}{self.arrays:,}"], {"arrays": arrays}
        if self.lists is not None:
            lists = Figure(round(self.lists), "bytes", "estimated", source="mean bytes of the columns")
            parts.append(f"and {lists:m} in lists" if self.arrays else f"in arrays, {lists:m} in lists")
            figures["lists"] = lists
        if self.unknown:
            parts.append(f"and unknown: {'; '.join(self.unknown)}")
        return Phrase(" ".join(parts), figures)


def batch_size(subject: Subject) -> Size:
    """Return the size of a step's batch."""
    size = _arrays(subject, subject.stages)
    plains = [stage for stage in subject.stages.plains if stage.spec.dtype is None]
    samples = _samples(subject)
    if plains and samples is None:
        names = ", ".join(stage.name for stage in plains)
        size.unknown.append(f"{names} (how many samples a batch has shows when it is formed; {_RUNNING})")
        return size
    untold: dict[str, list[str]] = {}
    for stage in plains:
        found = _value_bytes(subject, stage.field.column)
        if isinstance(found, str):
            untold.setdefault(found, []).append(stage.name)
        else:
            size.lists = (size.lists or 0.0) + found * (samples or 0)
    size.unknown += [f"{', '.join(names)} ({way_out})" for way_out, names in untold.items()]
    return size


# ---- arrays


def widened_fields(subject: Subject) -> list[str]:
    """The fields of token ids that torch gets in a wider dtype than batches are written in."""
    return [stage.name for stage in subject.stages.fields if stage.spec.widened]


def delivered_arrays(subject: Subject) -> int:
    """Bytes of a step's arrays as torch has them, as far as `batch_size` counts arrays."""
    fields = [
        replace(stage, spec=replace(stage.spec, dtype=stage.spec.widened)) if stage.spec.widened else stage
        for stage in subject.stages.fields
    ]
    return _arrays(subject, replace(subject.stages, fields=tuple(fields))).arrays


def _arrays(subject: Subject, stages: Stages) -> Size:
    """Bytes of a step's arrays: counted, or at most those of a full budget."""
    merge = subject.bound.merge
    formation = stages.formation
    token = sum(np.dtype(stage.spec.dtype).itemsize for stage in stages.sequences if stage.spec.dtype)
    flat_bytes, flat, untold = _of_no_row(subject)
    sizes = {
        stage.name: _item_bytes(stage.spec)
        for stage in stages.fields
        if stage not in stages.sequences and stage.name not in flat
    }
    unsized = [name for name, each in sizes.items() if each is None]
    unknown = [f"{', '.join(unsized)} (each image has its own size; {_RUNNING})"] if unsized else []
    unknown += (
        [f"{', '.join(untold)} (max_images and max_patches of the formation bound them; {_RUNNING})"] if untold else []
    )
    sample = sum(each or 0 for each in sizes.values())
    budget = formation.budget if isinstance(formation, WindowedBucket) else None
    if formation is None:
        if stages.sequences:
            names = ", ".join(stage.name for stage in stages.sequences)
            unknown.append(f"{names} (as wide as the longest sample of each batch; {_RUNNING})")
        return Size(sample * _fixed_samples(subject), unknown=unknown)
    if isinstance(formation, Packed):
        row = row_bytes(stages, formation.most_tokens(1))
        return Size((row * stages.batches.batch_size + flat_bytes) * merge, "at most ", unknown=unknown)
    if budget is not None and budget.max_tokens is not None and budget.count == "padded":
        most = budget.max_tokens * token + formation.window_size * sample + flat_bytes
        return Size(most * merge, "at most ", unknown=unknown)
    frames = sum(stage.frames for stage in stages.fields)
    if budget is not None and budget.max_frames is not None and frames and budget.oversize != "alone":
        rows = min(budget.max_frames // frames, subject.forming.batch_size or formation.window_size)
        return Size(rows * sample * merge, "at most ", unknown=unknown)
    first = subject.first
    if not isinstance(first, str) and first.batches:
        return Size(int((first.rows * (first.widths * token + sample)).max()) * merge, "~", unknown=unknown)
    return Size(0, unknown=[f"arrays (no batch is formed yet; {_RUNNING})"])


def _of_no_row(subject: Subject) -> tuple[int, list[str], list[str]]:
    """Fields whose items no row counts: bytes of those that a budget bounds, the names of all, and of those that none does."""
    stages, formation = subject.stages, subject.stages.formation
    per_row = {name for name, each in need(stages.plan, Collate).fields if each.PER_ROW}
    if formation is None:
        flat = [stage.name for stage in stages.fields if stage.name not in per_row and stage not in stages.sequences]
        return 0, flat, flat
    found = {stage.name: stage.formed_bytes(formation, stages.batches.batch_size) for stage in stages.fields}
    flat = [name for name, most in found.items() if most != 0]
    return sum(most or 0 for most in found.values()), flat, [name for name in flat if found[name] is None]


def _item_bytes(spec: FieldSpec) -> int | None:
    """Bytes of one sample's value in an array; 0 for Python values, None if it depends on the data."""
    if spec.dtype is None:
        return 0
    known = [n for n in spec.shape if n is not None]
    if len(known) < len(spec.shape):
        return None
    return int(np.prod(known, dtype=np.int64)) * host_dtype(spec.dtype).itemsize


# ---- lists


def _fixed_samples(subject: Subject) -> int:
    """Samples of a step's batch of fixed size; a short epoch has no more than it has."""
    stages = subject.stages
    size = stages.batches.batch_size * subject.bound.merge
    return (
        min(size, stages.epochs.length(subject.bound.epoch)) if isinstance(stages.batches.last, KeepPartial) else size
    )


def _samples(subject: Subject) -> int | None:
    """Samples of a step's batch: counted, or those of the largest of the first batches."""
    stages, merge = subject.stages, subject.bound.merge
    if stages.formation is None:
        return _fixed_samples(subject)
    first = subject.first
    if isinstance(first, str) or not first.batches:
        return None
    return max(len(batch.samples) for batch in first.batches) * merge


def _value_bytes(subject: Subject, column: str) -> float | str:
    """Mean bytes of a column's values as Python objects; or where to learn them."""
    kind = need(subject.stages.plan, Collate).source.schema().field(column).type
    fixed = fixed_bytes(kind)
    if fixed is not None:
        return fixed
    if not isinstance(subject.reader.lineage.key(column, subject.reader.end), Stored):
        return f"a map makes them; {_RUNNING}"
    total, rows = 0.0, 0
    for stream in subject.stages.streams:
        mean = _mean_bytes(stream, column, kind)
        if isinstance(mean, str):
            return mean
        total, rows = total + mean * stream.selected.total, rows + stream.selected.total
    return total / max(1, rows)


def _mean_bytes(stream: StreamStage, column: str, kind: pa.DataType) -> float | str:
    """Mean bytes in one stream: from the column stored with the selection, else from the relation's statistics."""
    if column == STREAM_ID and stream.name:
        return float(OBJECT_BYTES + len(stream.name.encode()))
    mean = stream.selected.narrow.mean_bytes(column)
    if mean is not None and not is_ragged(kind):
        return OBJECT_BYTES + mean
    leaf: Any = stream.selected.columns.env[column]
    name = stream.base.entry.name
    if isinstance(leaf, Col) and leaf.name in stream.base.schema.names and pa.types.is_string(kind):
        statistics = load_statistics(stream.base.entry)
        if statistics is None:
            if stream.base.entry.source.KIND in MADE:
                return _RUNNING
            return f'catalog.measure("{name}") counts them'
        shards = statistics.shards.filter(pc.equal(statistics.shards["column"], leaf.name))
        if len(shards) and set(shards["mark"].to_pylist()) == {KNOWN}:
            return float(OBJECT_BYTES + pc.sum(shards["bytes"]).as_py() / max(1, pc.sum(shards["rows"]).as_py()))
    return _RUNNING

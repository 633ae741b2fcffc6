"""Shapes of batches in EXPLAIN DATA: how many batches and samples each has, which are short, and what is left out of which."""

from typing import Any

import numpy as np

from spiral_stream.batching.formation import Int64
from spiral_stream.batching.shapes.one_shape import OneShape
from spiral_stream.batching.tail import DropPartial
from spiral_stream.explain.figure import Figure, FigureSource
from spiral_stream.explain.formed import FirstBatches
from spiral_stream.explain.subject import Subject

# J batches, K shapes


def shape_facts(subject: Subject, first: FirstBatches) -> dict[str, Any]:
    """Return the lines of a formation whose batches have shapes of a list; none of others."""
    formation = first.formation
    if not isinstance(formation, OneShape):
        return {}
    count = len(formation.shapes)
    of_J = np.array([formation.shapes.index(batch.size) for batch in first.batches], dtype=np.int64)
    rows_J, source = first.rows, first.source
    full = rows_J == subject.forming.rows
    moved, left = _moved(formation, first, of_J), _left_out(subject, first)
    totals = np.bincount(of_J, minlength=count)
    lines = [
        {
            "shape": named(shape),
            "batches": source(int(totals[k]), "batches"),
            "of them short": source(int(np.count_nonzero(~full[of_J == k])), "batches"),
            "samples": source(int(rows_J[of_J == k].sum()), "samples"),
            "lent by other shapes": source(int(moved[k]), "samples"),
            **({} if left is None else {"left out": Figure(int(left[k]), "samples", source=source.name)}),
        }
        for k, shape in enumerate(formation.shapes)
        if totals[k] or (left is not None and left[k])
    ]
    out: dict[str, Any] = {"shapes": lines}
    unused = count - len(lines)
    if unused and first.is_complete:
        out["shapes of no batch"] = FigureSource(source.name)(unused, "shapes")
    if left is not None and left.any() and not totals.any():
        subject.warnings.add(
            f"no shape has samples for {formation.batches:,} batches in a row, and DropPartial leaves all out. Give "
            "last=KeepPartial, fewer batches in a row or a smaller batch_size"
        )
    return out


def named(shape: tuple[int, ...]) -> str:
    """Return a shape as text: ``[16 x] 512 x 768 (height x width)`` without the words."""
    return " x ".join(map(str, shape))


def _moved(formation: OneShape, first: FirstBatches, of_J: Int64) -> Int64:
    """How many samples of each shape's batches have another shape as their nearest; shape [K]."""
    out = np.zeros(len(formation.shapes), dtype=np.int64)
    for k, keys in zip(of_J.tolist(), first.keys, strict=True):
        out[k] += np.count_nonzero(formation.choose(*keys) != k)
    return out


def _left_out(subject: Subject, first: FirstBatches) -> Int64 | None:
    """How many samples of each shape `DropPartial` leaves out, shape [K]; None unless all of the epoch was looked at."""
    formation, total = first.formation, subject.stages.epochs.total
    assert isinstance(formation, OneShape)
    is_all = first.is_complete and first.joined + first.filtered == total
    if not is_all or not isinstance(subject.stages.batches.last, DropPartial):
        return None
    there = [formation.choose(*window.keys) for window in first.windows if len(window.samples)]
    every = np.concatenate([np.empty(0, dtype=np.int64), *there])
    nearest = [formation.choose(*keys) for keys in first.keys]
    delivered = np.concatenate([np.empty(0, dtype=np.int64), *nearest])
    count = len(formation.shapes)
    return np.bincount(every, minlength=count) - np.bincount(delivered, minlength=count)

"""What batches cost, or come to, from columns that are known before payload is read: ``collate(cost=...)``, `StepTotal`.

A batch costs the sum over its samples, and a packed row the sum over its documents. A document that is cut or truncated
counts by the tokens that it has there, where the expression names its length: ``len(tokens)``, or the column that the
formation takes lengths from. Sums are added up in the order of the samples, so they are the same on every machine.
"""

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream import expr
from spiral_stream.errors import BindError, DataError
from spiral_stream.plan.nodes import Collate
from spiral_stream.plan.tree import need
from spiral_stream.plan.verbs.maps import SampleColumns, SampleTokens
from spiral_stream.planner.binding.bindings import Bound
from spiral_stream.planner.columns.lineage import Key, Made
from spiral_stream.planner.prepared_data.build import is_built
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.columns.samples import SampleReader, Samples, lengths_of
from spiral_stream.runtime.numbering.drawn import Drawn

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

# N batches, S samples or pieces of them


@final
class BatchCosts:
    """The cost of batches that are drawn.

    Args:
        stages: of a plan that says a cost.
        reader: reads the columns that it is made of.
        text: the expression.
        name: of the argument that it is, as errors name it.
    """

    def __init__(self, stages: Stages, reader: SampleReader, text: str, name: str = "cost") -> None:
        self._stages, self._reader, self.text, self._name = stages, reader, text, name
        self._source = need(stages.plan, Collate).source
        self._expr = expr.parse(text)
        self._keys: list[Key] = list(reader.lineage.expression_keys(self._expr, reader.end))
        sequences = {stage.field.column for stage in stages.sequences}
        formation = stages.formation
        stated = formation.length_texts if formation is not None and not formation.widths else ()
        measured = sequences if len(sequences) == 1 or (formation is not None and formation.cuts_samples) else set()
        columns = {each.name for each in map(expr.parse, stated) if isinstance(each, expr.Col)}
        self._by_length = (measured | columns) & self._expr.columns()

    def of_samples(self, epoch: int, drawn: Sequence[Drawn]) -> list[Float64]:
        """Return what each sample of some batches costs, or each piece of one: shape [S] each.

        Raises:
            DataError: a cost is null, negative, or no finite number.
        """
        samples = Samples.concat([each.samples.only(self._keys) for each in drawn])
        self._reader.need(epoch, samples, self._keys)
        values = self._reader.value(samples, self._expr, self._source, self._reader.end, self._lengths(drawn))
        found = np.asarray(pc.cast(values, "float64").to_numpy(zero_copy_only=False), dtype=np.float64)
        wrong = ~(np.isfinite(found) & (found >= 0))
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            said = "null" if not values[at].is_valid else f"{values[at].as_py()}"
            msg = (
                f"collate: {self._name}={self.text!r} is {said} for a sample. Only finite numbers from 0 up count: mend the "
                "column, or filter such rows out"
            )
            raise DataError(msg, row=at)
        return np.split(found, np.cumsum([len(each.samples) for each in drawn])[:-1])

    def of(self, epoch: int, drawn: Sequence[Drawn]) -> Float64:
        """Return what each of some batches costs, shape [N]. Rows that only fill a batch cost what their samples do.

        Raises:
            DataError: as for `of_samples`.
        """
        found = self.of_samples(epoch, drawn)
        batch_of = np.repeat(np.arange(len(drawn)), [len(each) for each in found])
        weights = np.concatenate(found)  # `bincount` adds in order, everywhere
        return np.bincount(batch_of, weights=weights, minlength=len(drawn)).astype(np.float64)

    def longest(self, epoch: int, drawn: Sequence[Drawn]) -> Int64 | None:
        """Return how wide each sample of some batches is, shape [S]; None if all rows are equally wide, or nothing is padded."""
        shapes = [each.membership for each in drawn]
        if self._stages.formation is None or any(each.packing is not None for each in shapes):
            return None
        known = [each.lengths for each in shapes if each.lengths is not None]
        if len(known) == len(shapes):
            return np.concatenate(known)
        columns = sorted({stage.field.column for stage in self._stages.sequences})
        if not columns:
            return None
        keys = [self._reader.lineage.length_key(column) for column in columns]
        samples = Samples.concat([each.samples.only(keys) for each in drawn])
        self._reader.need(epoch, samples, keys)
        found: Int64 = np.maximum.reduce([lengths_of(samples.columns[key]) for key in keys])
        return found

    def total(self, epoch: int, drawn: Sequence[Drawn]) -> float:
        """Return the sum over all samples of some batches, without rows that only fill one.

        Raises:
            DataError: as for `of_samples`.
        """
        parts = []
        for each, values in zip(drawn, self.of_samples(epoch, drawn), strict=True):
            shape = each.membership
            rows = np.arange(len(values)) if shape.packing is None else shape.packing.rows
            parts.append(values if shape.filler is None else values[~np.isin(rows, shape.filler)])
        every = np.concatenate(parts)
        return float(np.bincount(np.zeros(len(every), dtype=np.int64), weights=every, minlength=1)[0])

    def _lengths(self, drawn: Sequence[Drawn]) -> Mapping[str, Int64]:
        """Tokens as delivered, by the columns that stand for them; empty where samples are never cut."""
        if not self._by_length:
            return {}
        lengths = [_tokens(each) for each in drawn]
        known = [each for each in lengths if each is not None and each.ndim == 1]
        return dict.fromkeys(self._by_length, np.concatenate(known)) if len(known) == len(lengths) else {}

    def unknown(self) -> str | None:
        """Return what has to be computed before a cost is known, in words; None if all of it is stored."""
        stages = self._stages
        made = [key for key in self._reader.lineage.rests_on(self._keys) if isinstance(key, Made)]
        for key in sorted(made, key=lambda made_key: (made_key.at, made_key.name)):
            step = stages.maps[key.at]
            built = any(stage.name == key.name and is_built(stages, stage) for stage in stages.tokens)
            if key in stages.cached or built or isinstance(step, SampleColumns):
                continue
            return f"len({key.name})" if isinstance(step, SampleTokens) else f"{key.name!r}, which {step.VERB} makes"
        return None

    def need_known(self, bound: Bound, workers: int) -> None:
        """Refuse several readers if each would have to compute it for all samples of a step.

        Raises:
            BindError: says which map makes a column of the cost, and the ways out.
        """
        if bound.world_size * workers == 1:
            return
        if (unknown := self.unknown()) is not None:
            msg = (
                f"bind: {self._name}={self.text!r} needs {unknown}, which no cache holds, so every rank would compute it for all "
                "samples of a step. Call stream.materialize() first, or take stored columns"
            )
            raise BindError(msg)


def _tokens(drawn: Drawn) -> Int64 | None:
    packing = drawn.membership.packing
    return drawn.membership.lengths if packing is None else packing.lengths

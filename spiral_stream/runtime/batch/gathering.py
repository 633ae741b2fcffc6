"""Which fields of a batch are gathered from kept columns: no Arrow array lies between the mapped rows and the batch.

A field is, where it copies a column as it is (`Field.copies`) and the base relation of the only stream keeps that column
without nulls. So is a token column that nothing but fields of sequences reads: it is gathered as addresses. For 1,024 rows
of an integer, 32 floats and a text this takes 0.15 ms; through Arrow it takes 0.45 ms.
"""

from typing import final

from spiral_stream.batching.packing import Packed
from spiral_stream.derived.kinds.gather import KeptColumn
from spiral_stream.planner.columns.lineage import Lineage, Stored
from spiral_stream.planner.selection.mapped_column import MappedColumn
from spiral_stream.planner.stages import PlainStage, Stages
from spiral_stream.runtime.columns.samples import Int64, Samples
from spiral_stream.sampling.order import UInt64


@final
class Gathering:
    """The kept columns that fields of a stream are gathered from.

    Attributes:
        plains: by field.
        tokens: by column.
    """

    def __init__(self, stages: Stages, lineage: Lineage) -> None:
        self._stages, self._lineage = stages, lineage
        own = {stage.name: self._copied(stage) for stage in stages.plains}
        only = lineage.sequences_only(stages)
        columns = dict.fromkeys(name for stage in stages.sequences for name in stage.field.columns)
        checked = stages.formation is not None and bool(stages.formation.length_texts)  # with the columns that are read
        addressed = {name: self._own(name) for name in columns if name in only and not checked}
        self.plains: dict[str, KeptColumn] = {name: kept for name, kept in own.items() if kept is not None}
        self.tokens: dict[str, KeptColumn | MappedColumn] = {
            name: kept for name, kept in addressed.items() if kept is not None
        }
        names = dict.fromkeys(kept.column.name for kept in (*self.plains.values(), *self.tokens.values()))
        self.words = f"reading column {', '.join(names)} of relation {stages.streams[0].base.entry.name}"

    def __bool__(self) -> bool:
        return bool(self.plains or self.tokens)

    def located(self, samples: Samples) -> tuple[Int64, UInt64]:
        """Return where samples lie in the kept columns; shape [S] each."""
        return self._stages.streams[0].selected.kept.located(samples.places.rows)

    def _copied(self, stage: PlainStage) -> KeptColumn | None:
        if isinstance(self._stages.formation, Packed):  # a row is no sample there
            return None
        kept = self._own(stage.field.column)
        return kept if isinstance(kept, KeptColumn) and kept.copies and stage.field.copies(kept.column.kind) else None

    def _own(self, name: str) -> KeptColumn | MappedColumn | None:
        """The kept column of the base that a column after all maps is a copy of."""
        streams, lineage = self._stages.streams, self._lineage
        if len(streams) > 1 or lineage.key(name, lineage.end) != Stored(name):
            return None
        return streams[0].selected.kept.own(name)

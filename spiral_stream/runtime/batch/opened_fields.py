"""What the batches of an opened plan are made of: which fields copy a column, gather, decode or follow, and what they read.

The plan and its relations decide all of it, so it is found once for an opened plan, and every pass and every batch that
is built by itself shares it. Nothing here changes: the memory of batches, what is read ahead and what is refused belong
to the `BatchBuilder` of a pass.

Some fields are gathered from narrow columns, with no Arrow array between the mapped rows and the batch: a field that copies
a column as it is (`Field.copies`), where the base relations of all streams have that narrow column without nulls; and a
token column that only fields of sequences read, which is gathered as addresses. For 1,024 rows of an integer, 32 floats and
a text this takes 0.15 ms; through Arrow it takes 0.45 ms.
"""

from collections.abc import Sequence
from typing import final

import numpy as np

from spiral_stream.batching.packing import Packed
from spiral_stream.batching.tail import fills_with_value
from spiral_stream.derived.kinds.gather import NarrowColumn, RowCopies
from spiral_stream.plan.verbs.maps import SampleTokens
from spiral_stream.planner.columns.lineage import Key, Lineage, Stored
from spiral_stream.planner.field_stages import PlainStage
from spiral_stream.planner.selection.narrow_columns import MappedColumn
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.batch.deferred import calls_of
from spiral_stream.runtime.columns.samples import Int64
from spiral_stream.runtime.fields.geometry import BatchFollowers, Followers
from spiral_stream.runtime.fields.pixels import pixel_stages
from spiral_stream.runtime.fields.sequences import SequenceColumns
from spiral_stream.runtime.fields.size import batch_bytes
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.sampling.order import UInt64
from spiral_stream.transforms.chain import Program


@final
class Gathering:
    """The kept columns that fields of a stream are gathered from.

    Attributes:
        plains: the columns that plain fields copy, by field.
        copies: copies their rows, in the same order.
        tokens: the columns that are gathered as addresses of tokens, by column.
    """

    def __init__(self, stages: Stages, lineage: Lineage) -> None:
        self._stages, self._lineage = stages, lineage
        self._narrow, self._mixed = stages.streams[0].selected.narrow, stages.mixed_columns
        copied = {stage.name: self._copied(stage) for stage in stages.plains}
        only = lineage.sequences_only(stages)
        columns = dict.fromkeys(name for stage in stages.sequences for name in stage.field.columns)
        checked = stages.formation is not None and bool(stages.formation.length_texts)  # with the columns that are read
        addressed = {name: self._copied_column(name) for name in columns if name in only and not checked}
        self.plains: dict[str, NarrowColumn] = {name: column for name, column in copied.items() if column is not None}
        self.copies = RowCopies(list(self.plains.values()))
        self.tokens: dict[str, NarrowColumn | MappedColumn] = {
            name: column for name, column in addressed.items() if column is not None
        }
        read = (*self.plains.values(), *self.tokens.values())
        names = dict.fromkeys(column.column.name for column in read)
        relations = dict.fromkeys(stream.base.entry.name for stream in stages.streams)
        self.words = f"reading column {', '.join(names)} of relation {', '.join(relations)}"

    def located(self, some: Sequence[StreamRows]) -> tuple[Int64, UInt64]:
        """Return where the rows of S samples lie in the kept columns: shard and offset, shape [S] each."""
        if self._mixed is not None:
            return self._mixed.located(StreamRows.concat(some))
        return self._narrow.located(some[0].rows if len(some) == 1 else np.concatenate([each.rows for each in some]))

    def _copied(self, stage: PlainStage) -> NarrowColumn | None:
        if isinstance(self._stages.formation, Packed):  # a row is no sample there
            return None
        column = self._copied_column(stage.field.column)
        return (
            column
            if isinstance(column, NarrowColumn) and column.copies and stage.field.copies(column.column.kind)
            else None
        )

    def _copied_column(self, name: str) -> NarrowColumn | MappedColumn | None:
        """The kept column of the base, or of all bases together, that a column after all maps is a copy of."""
        lineage = self._lineage
        if lineage.key(name, lineage.end) != Stored(name):
            return None
        return self._narrow.base_column(name) if self._mixed is None else self._mixed.column(name)


@final
class OpenedFields:
    """The fields of an opened plan, sorted by how a batch is filled with them.

    Attributes:
        stages: the lowered plan.
        followers: which fields follow an image.
        nothing_follows: what follows the images of a batch where no field does; all batches share it.
        gathering: the narrow columns that fields are gathered from.
        gathers: whether any field is.
        gathered: the fields that copy rows of narrow columns, each with its column.
        plains: the fields that are copied from a column that is read, with that column.
        sequences: the columns of token sequences.
        keys: the columns that are read for a batch.
        calls: whether a user's function has to be called for some of them.
        stored: those of them that are stored.
        draws: whether any field draws random numbers.
        light: whether addresses are all that is kept of samples before their batch is begun.
        brings_near: whether samples come with addresses of tokens, from the windows that were formed.
        neighbours: whether rows near those of a batch are worth fetching with them.
        values: whether rows that fill a batch hold a value, and no samples.
    """

    def __init__(self, stages: Stages, lineage: Lineage) -> None:
        self.stages = stages
        self.draws = any(stage.draws for stage in stages.fields)
        self.followers = Followers(stages)
        self.nothing_follows: BatchFollowers | None = None
        if not self.followers.wanted:
            self.nothing_follows = BatchFollowers(self.followers, 0, np.empty(0, dtype=np.uint64))
        self.gathering = gathering = Gathering(stages, lineage)
        self.gathers = bool(gathering.plains or gathering.tokens)
        self.gathered = [
            (stage, gathering.plains[stage.name]) for stage in stages.plains if stage.name in gathering.plains
        ]
        others = [
            stage for stage in stages.plains if not (stage.name in gathering.plains or stage.FILLED or stage.read)
        ]
        self.plains = [(stage, lineage.key(stage.column, lineage.end)) for stage in others]
        self.sequences = SequenceColumns(stages, lineage)
        self.keys: list[Key] = [key for _, key in self.plains]
        self.keys += [key for name, key in self.sequences.keys.items() if name not in gathering.tokens]
        self.keys += [lineage.key(name, lineage.end) for stage in stages.fields for name in stage.read]
        self.calls = calls_of(stages, lineage, self.keys)
        self.stored = [key for key in self.keys if isinstance(key, Stored)]
        self._bytes: dict[int, int] = {}  # by merge
        self._programs: dict[frozenset[str], dict[str, Program]] = {}  # by the fields that end on a device
        self.neighbours = any(stage.NEIGHBOURS for stage in stages.fields)
        self.values = fills_with_value(stages.batches.last)
        self.light = all(isinstance(step, SampleTokens) for step in stages.maps)
        self.brings_near = self.light and stages.formed

    def batch_bytes(self, merge: int) -> int:
        """Return the bytes of a batch's arrays, about; ``merge`` of them are delivered as one."""
        if merge not in self._bytes:
            self._bytes[merge] = batch_bytes(self.stages, merge)
        return self._bytes[merge]

    def programs(self, split: frozenset[str]) -> dict[str, Program]:
        """Return what is done to the pixels of each field, without what a device does to the fields of ``split``."""
        if split not in self._programs:
            self._programs[split] = {
                stage.name: stage.program.on_device()[0]  # type: ignore[union-attr]  # those of masks end on the host
                if stage.name in split and stage.ends_on_device
                else stage.program
                for stage in pixel_stages(self.stages)
            }
        return self._programs[split]

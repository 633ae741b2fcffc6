"""Kept clips as a kind of cache (stub of the lead; helper C writes it)."""

from dataclasses import dataclass
from typing import ClassVar, final

import pyarrow as pa

from spiral_stream.cache.kind import Kind, Rows
from spiral_stream.decoders.selection import FrameSelection
from spiral_stream.plan.profiles import Frames


@final
@dataclass(frozen=True, slots=True)
class ClipKind(Kind):
    """Clips in one form."""

    RUN_BYTES: ClassVar[int] = 64 << 20
    RUN_ROWS: ClassVar[int] = 4

    relation: str
    column: str
    selection: FrameSelection
    profile: Frames
    timed: bool

    def facts(self) -> dict[str, object]:
        return {"relation": self.relation, "column": self.column}

    def keep_rows(self, table: pa.Table, base: str) -> Rows:
        raise NotImplementedError

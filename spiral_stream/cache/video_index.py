"""The video index as a kind of cache (stub of the lead; helper A writes it)."""

from dataclasses import dataclass
from typing import ClassVar, final

import pyarrow as pa

from spiral_stream.cache.kind import Kind, Rows


@final
@dataclass(frozen=True, slots=True)
class IndexKind(Kind):
    """Where the frames of a relation's videos lie."""

    RUN_BYTES: ClassVar[int] = 64 << 20
    RUN_ROWS: ClassVar[int] = 64

    relation: str
    column: str

    def facts(self) -> dict[str, object]:
        return {"relation": self.relation, "column": self.column, "index": 1}

    def keep_rows(self, table: pa.Table, base: str) -> Rows:
        raise NotImplementedError

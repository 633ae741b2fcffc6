"""Where rows are stored: each room a format, read as Arrow columns.

Start at: `source` (the interface).
May not know: plans, catalogs.
"""

from spiral_stream.sources.arrow.table import MemoryReader
from spiral_stream.sources.import_source import ImportedSource, ImportUnit, Refused
from spiral_stream.sources.row_filter import needed, passing
from spiral_stream.sources.source import ROW, Reader, Source, Unit, content_key

__all__ = [
    "ROW",
    "ImportUnit",
    "ImportedSource",
    "MemoryReader",
    "Reader",
    "Refused",
    "Source",
    "Unit",
    "content_key",
    "needed",
    "passing",
]

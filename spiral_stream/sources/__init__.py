"""Where rows are stored: each room a format, read as Arrow columns.

Start at: `source` (the interface).
May not know: plans, catalogs.

It is also the public namespace of sources, of what one of your own derives from, and of the writer:
``spiral.sources.Parquet``.
"""

from typing import TYPE_CHECKING, Final

from spiral_stream.habits import door

if TYPE_CHECKING:
    from spiral_stream.sources.arrow.table import Arrow, MemoryReader
    from spiral_stream.sources.change_detection import content_key
    from spiral_stream.sources.columnar.huggingface import HuggingFace
    from spiral_stream.sources.columnar.parquet import Parquet
    from spiral_stream.sources.columnar.vortex import Vortex
    from spiral_stream.sources.image_folder import ImageFolder, VideoFolder
    from spiral_stream.sources.import_source import ImportedSource, ImportUnit, Refused
    from spiral_stream.sources.lance.source import Lance
    from spiral_stream.sources.mds.source import Mds
    from spiral_stream.sources.pins import Pin
    from spiral_stream.sources.row_filter import needed, passing
    from spiral_stream.sources.serialize import declared_source
    from spiral_stream.sources.source import ROW, Known, Reader, RowRuns, Source, Spans, Unit
    from spiral_stream.sources.tar.webdataset import WebDataset
    from spiral_stream.sources.text.csv import Csv
    from spiral_stream.sources.text.jsonl import Jsonl
    from spiral_stream.sources.text.text_files import TextFiles
    from spiral_stream.sources.tokens.source import Tokens
    from spiral_stream.sources.writing.writer import Writer, WriteResult
    from spiral_stream.storage.node_cache.user_bytes import read_kept

__all__ = [
    "ROW",
    "Arrow",
    "Csv",
    "HuggingFace",
    "ImageFolder",
    "ImportUnit",
    "ImportedSource",
    "Jsonl",
    "Known",
    "Lance",
    "Mds",
    "MemoryReader",
    "Parquet",
    "Pin",
    "Reader",
    "Refused",
    "RowRuns",
    "Source",
    "Spans",
    "TextFiles",
    "Tokens",
    "Unit",
    "VideoFolder",
    "Vortex",
    "WebDataset",
    "WriteResult",
    "Writer",
    "content_key",
    "declared_source",
    "needed",
    "passing",
    "read_kept",
]

_LATE: Final = {
    "Arrow": "spiral_stream.sources.arrow.table",
    "Csv": "spiral_stream.sources.text.csv",
    "HuggingFace": "spiral_stream.sources.columnar.huggingface",
    "ImageFolder": "spiral_stream.sources.image_folder",
    "ImportUnit": "spiral_stream.sources.import_source",
    "ImportedSource": "spiral_stream.sources.import_source",
    "Jsonl": "spiral_stream.sources.text.jsonl",
    "Known": "spiral_stream.sources.source",
    "Lance": "spiral_stream.sources.lance.source",
    "Mds": "spiral_stream.sources.mds.source",
    "MemoryReader": "spiral_stream.sources.arrow.table",
    "Parquet": "spiral_stream.sources.columnar.parquet",
    "Pin": "spiral_stream.sources.pins",
    "ROW": "spiral_stream.sources.source",
    "Reader": "spiral_stream.sources.source",
    "Refused": "spiral_stream.sources.import_source",
    "RowRuns": "spiral_stream.sources.source",
    "Source": "spiral_stream.sources.source",
    "Spans": "spiral_stream.sources.source",
    "TextFiles": "spiral_stream.sources.text.text_files",
    "Tokens": "spiral_stream.sources.tokens.source",
    "Unit": "spiral_stream.sources.source",
    "VideoFolder": "spiral_stream.sources.image_folder",
    "Vortex": "spiral_stream.sources.columnar.vortex",
    "WebDataset": "spiral_stream.sources.tar.webdataset",
    "WriteResult": "spiral_stream.sources.writing.writer",
    "Writer": "spiral_stream.sources.writing.writer",
    "content_key": "spiral_stream.sources.change_detection",
    "declared_source": "spiral_stream.sources.serialize",
    "needed": "spiral_stream.sources.row_filter",
    "passing": "spiral_stream.sources.row_filter",
    "read_kept": "spiral_stream.storage.node_cache.user_bytes",
}

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours
    __getattr__, __dir__ = door(__name__, _LATE)

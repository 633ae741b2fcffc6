"""Where rows are stored: each room a format, read as Arrow columns.

Start at: `source` (the interface).
May not know: plans, catalogs.

It is also the public namespace of sources, of what one of your own derives from, and of the writer:
``spiral.sources.Parquet``.
"""

from typing import TYPE_CHECKING

from spiral_stream.habits import door

if TYPE_CHECKING:  # the alias exports a name to type checkers
    from spiral_stream.sources.arrow.table import Arrow as Arrow
    from spiral_stream.sources.arrow.table import MemoryReader as MemoryReader
    from spiral_stream.sources.change_detection import content_key as content_key
    from spiral_stream.sources.columnar.huggingface import HuggingFace as HuggingFace
    from spiral_stream.sources.columnar.parquet import Parquet as Parquet
    from spiral_stream.sources.columnar.vortex import Vortex as Vortex
    from spiral_stream.sources.image_folder import ImageFolder as ImageFolder
    from spiral_stream.sources.image_folder import VideoFolder as VideoFolder
    from spiral_stream.sources.import_source import ImportedSource as ImportedSource
    from spiral_stream.sources.import_source import ImportUnit as ImportUnit
    from spiral_stream.sources.import_source import Refused as Refused
    from spiral_stream.sources.lance.source import Lance as Lance
    from spiral_stream.sources.mds.source import Mds as Mds
    from spiral_stream.sources.pins import Pin as Pin
    from spiral_stream.sources.row_filter import needed as needed
    from spiral_stream.sources.row_filter import passing as passing
    from spiral_stream.sources.serialize import declared_source as declared_source
    from spiral_stream.sources.source import ROW as ROW
    from spiral_stream.sources.source import Known as Known
    from spiral_stream.sources.source import Reader as Reader
    from spiral_stream.sources.source import RowRuns as RowRuns
    from spiral_stream.sources.source import Source as Source
    from spiral_stream.sources.source import Spans as Spans
    from spiral_stream.sources.source import Unit as Unit
    from spiral_stream.sources.tar.webdataset import WebDataset as WebDataset
    from spiral_stream.sources.text.csv import Csv as Csv
    from spiral_stream.sources.text.jsonl import Jsonl as Jsonl
    from spiral_stream.sources.text.text_files import TextFiles as TextFiles
    from spiral_stream.sources.tokens.source import Tokens as Tokens
    from spiral_stream.sources.writing.writer import Writer as Writer
    from spiral_stream.sources.writing.writer import WriteResult as WriteResult
    from spiral_stream.storage.node_cache.user_bytes import read_kept as read_kept

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours
    __all__, __getattr__, __dir__ = door(
        __name__,
        {
            "sources.arrow.table": ["Arrow", "MemoryReader"],
            "sources.change_detection": ["content_key"],
            "sources.columnar.huggingface": ["HuggingFace"],
            "sources.columnar.parquet": ["Parquet"],
            "sources.columnar.vortex": ["Vortex"],
            "sources.image_folder": ["ImageFolder", "VideoFolder"],
            "sources.import_source": ["ImportUnit", "ImportedSource", "Refused"],
            "sources.lance.source": ["Lance"],
            "sources.mds.source": ["Mds"],
            "sources.pins": ["Pin"],
            "sources.row_filter": ["needed", "passing"],
            "sources.serialize": ["declared_source"],
            "sources.source": ["Known", "ROW", "Reader", "RowRuns", "Source", "Spans", "Unit"],
            "sources.tar.webdataset": ["WebDataset"],
            "sources.text.csv": ["Csv"],
            "sources.text.jsonl": ["Jsonl"],
            "sources.text.text_files": ["TextFiles"],
            "sources.tokens.source": ["Tokens"],
            "sources.writing.writer": ["WriteResult", "Writer"],
            "storage.node_cache.user_bytes": ["read_kept"],
        },
    )

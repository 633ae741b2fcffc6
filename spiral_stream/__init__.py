"""Training streams that are planned, explained and replayable.

Importing this brings what plans are made of. What runs them (`PreparedStream`, `Progress`, `index_videos`,
`report_relation`) is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from spiral_stream.batching.budget import BatchBudget
from spiral_stream.batching.composition import OneStream, StratifiedByStream
from spiral_stream.batching.packing import Packed
from spiral_stream.batching.tail import DropPartial, KeepPartial, PadPartial
from spiral_stream.batching.windowed import BucketKey, WindowedBucket
from spiral_stream.catalog.row_identity import RowIdentity
from spiral_stream.connection import Catalog, cache_fingerprint, connect, open_stream, sql, table
from spiral_stream.errors import (
    BindError,
    CacheError,
    CatalogError,
    DamageError,
    DataError,
    MissingExtraError,
    PlanError,
    ResumeError,
    SourceError,
    SpiralError,
    SpiralWarning,
    StreamError,
    TrustError,
)
from spiral_stream.expr import col, len_, lit
from spiral_stream.fields.boxes import Boxes, BoxLabels, KeyPoints
from spiral_stream.fields.labels import Labels, ShiftedLabels
from spiral_stream.fields.list import List
from spiral_stream.fields.pad import Pad, PadMask
from spiral_stream.fields.segments import CuSeqlens, Positions, Segments
from spiral_stream.fields.stack import Stack
from spiral_stream.mixing import Stream, concat, mix
from spiral_stream.params import RuntimeParam
from spiral_stream.plan.profiles import Frames, Jpeg, Original, Raw
from spiral_stream.relation import Relation
from spiral_stream.sampling.assignment import DataParallel
from spiral_stream.sampling.hash_bucketed import HashBucketed, ShuffleBuckets
from spiral_stream.sampling.sequential import Sequential
from spiral_stream.sampling.shard_aware import ShardAwareShuffle
from spiral_stream.sampling.shard_order import ExpandedRange, WithinShards
from spiral_stream.sampling.shuffle import GlobalShuffle
from spiral_stream.sampling.weighted import Weighted
from spiral_stream.sampling.window_shuffle import WindowShuffle
from spiral_stream.sampling.with_replacement import WithReplacement
from spiral_stream.sources.arrow import Arrow
from spiral_stream.sources.csv_files import Csv
from spiral_stream.sources.folder import ImageFolder, VideoFolder
from spiral_stream.sources.huggingface import HuggingFace
from spiral_stream.sources.jsonl import Jsonl
from spiral_stream.sources.lance import Lance
from spiral_stream.sources.mds import Mds
from spiral_stream.sources.parquet import Parquet
from spiral_stream.sources.saved import declared_source
from spiral_stream.sources.source import Source
from spiral_stream.sources.text_files import TextFiles
from spiral_stream.sources.tokens import Tokens
from spiral_stream.sources.vortex import Vortex
from spiral_stream.sources.webdataset import WebDataset
from spiral_stream.sources.writer import Writer
from spiral_stream.storage.profiles import use_storage
from spiral_stream.transforms.chat import ChatTemplate
from spiral_stream.transforms.color import ColorJitter, GaussianBlur, Grayscale, RandomGrayscale
from spiral_stream.transforms.crop_and_resize import (
    CenterCrop,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from spiral_stream.transforms.erasing import RandomErasing
from spiral_stream.transforms.python import fn
from spiral_stream.transforms.rand_augment import RandAugment
from spiral_stream.transforms.text import Tokenize
from spiral_stream.transforms.warp import RandomAffine, RandomRotation

if TYPE_CHECKING:
    from spiral_stream.cache.materialize import Progress
    from spiral_stream.catalog.source_facts import SourceFacts, source_facts
    from spiral_stream.planner.build import CacheStatus
    from spiral_stream.planner.retention import PreparedData
    from spiral_stream.planner.videos import index_videos
    from spiral_stream.prepared import PreparedStream
    from spiral_stream.report.charts import Picture, draw_bars, draw_curves
    from spiral_stream.report.making import Report, report_relation
    from spiral_stream.version import __version__
    from spiral_stream.wording import written

__all__ = [
    "Arrow",
    "BatchBudget",
    "BindError",
    "BoxLabels",
    "Boxes",
    "BucketKey",
    "CacheError",
    "CacheStatus",
    "Catalog",
    "CatalogError",
    "CenterCrop",
    "ChatTemplate",
    "ColorJitter",
    "Csv",
    "CuSeqlens",
    "DamageError",
    "DataError",
    "DataParallel",
    "DropPartial",
    "ExpandedRange",
    "Frames",
    "GaussianBlur",
    "GlobalShuffle",
    "Grayscale",
    "HashBucketed",
    "HuggingFace",
    "ImageFolder",
    "Jpeg",
    "Jsonl",
    "KeepPartial",
    "KeyPoints",
    "Labels",
    "Lance",
    "List",
    "Mds",
    "MissingExtraError",
    "Normalize",
    "OneStream",
    "Original",
    "Packed",
    "Pad",
    "PadMask",
    "PadPartial",
    "Parquet",
    "Picture",
    "PlanError",
    "Positions",
    "PreparedData",
    "PreparedStream",
    "Progress",
    "RandAugment",
    "RandomAffine",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomRotation",
    "Raw",
    "Relation",
    "Report",
    "Resize",
    "ResumeError",
    "RowIdentity",
    "RuntimeParam",
    "Segments",
    "Sequential",
    "ShardAwareShuffle",
    "ShiftedLabels",
    "ShuffleBuckets",
    "Source",
    "SourceError",
    "SourceFacts",
    "SpiralError",
    "SpiralWarning",
    "Stack",
    "StratifiedByStream",
    "Stream",
    "StreamError",
    "TextFiles",
    "Tokenize",
    "Tokens",
    "TrustError",
    "VideoFolder",
    "Vortex",
    "WebDataset",
    "Weighted",
    "WindowShuffle",
    "WindowedBucket",
    "WithReplacement",
    "WithinShards",
    "Writer",
    "__version__",
    "cache_fingerprint",
    "col",
    "concat",
    "connect",
    "declared_source",
    "draw_bars",
    "draw_curves",
    "fn",
    "index_videos",
    "len_",
    "lit",
    "mix",
    "open_stream",
    "report_relation",
    "source_facts",
    "sql",
    "table",
    "use_storage",
    "written",
]

_LATE: Final = {
    "CacheStatus": "spiral_stream.planner.build",
    "Picture": "spiral_stream.report.charts",
    "PreparedData": "spiral_stream.planner.retention",
    "SourceFacts": "spiral_stream.catalog.source_facts",
    "source_facts": "spiral_stream.catalog.source_facts",
    "PreparedStream": "spiral_stream.prepared",
    "Progress": "spiral_stream.cache.materialize",
    "Report": "spiral_stream.report.making",
    "__version__": "spiral_stream.version",
    "draw_bars": "spiral_stream.report.charts",
    "draw_curves": "spiral_stream.report.charts",
    "index_videos": "spiral_stream.planner.videos",
    "report_relation": "spiral_stream.report.making",
    "written": "spiral_stream.wording",
}


if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours

    def __getattr__(name: str) -> Any:
        if name not in _LATE:
            habits = import_module("spiral_stream.habits")
            raise AttributeError(habits.lacking("spiral_stream", name, habits.OF_DOOR, __all__))
        found = globals()[name] = getattr(import_module(_LATE[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})

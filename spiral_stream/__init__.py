"""Training streams that are planned, explained and replayable.

Importing this costs hundredths of a second: the room of a name is imported when the name is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from spiral_stream import (
        adapters,
        batching,
        errors,
        fields,
        orders,
        profiles,
        report,
        results,
        sources,
        testing,
        transforms,
    )
    from spiral_stream.batching.budget import BatchBudget
    from spiral_stream.batching.composition import OneStream, StratifiedByStream
    from spiral_stream.batching.packing import Packed
    from spiral_stream.batching.tail import DropPartial, KeepPartial, PadPartial
    from spiral_stream.batching.windowed import BucketKey, WindowedBucket
    from spiral_stream.cache.materialize import Progress
    from spiral_stream.catalog.relation.row_identity import RowIdentity
    from spiral_stream.catalog.relation.source_facts import SourceFacts, source_facts
    from spiral_stream.connection import Catalog, cache_fingerprint, connect, open_stream, sql, table
    from spiral_stream.display.wording import written
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
    from spiral_stream.expr import Expr, col, len_, lit
    from spiral_stream.extras import __version__
    from spiral_stream.fields.boxes import Boxes, BoxLabels, KeyPoints
    from spiral_stream.fields.labels import Labels, ShiftedLabels
    from spiral_stream.fields.list import List
    from spiral_stream.fields.pad import Pad, PadMask
    from spiral_stream.fields.segments import CuSeqlens, Positions, Segments
    from spiral_stream.fields.stack import Stack
    from spiral_stream.mixing import Stream, concat, mix
    from spiral_stream.params import RuntimeParam
    from spiral_stream.plan.fields.profiles import Frames, Jpeg, Original, Raw
    from spiral_stream.planner.prepared_data.build import CacheStatus
    from spiral_stream.planner.prepared_data.retention import PreparedData
    from spiral_stream.planner.prepared_data.video_index import index_videos
    from spiral_stream.prepared import PreparedStream
    from spiral_stream.relation import Relation
    from spiral_stream.report.build import Report, report_relation
    from spiral_stream.report.charts import Picture, draw_bars, draw_curves
    from spiral_stream.sampling.assignment import DataParallel
    from spiral_stream.sampling.orders.hash_bucketed import HashBucketed, ShuffleBuckets
    from spiral_stream.sampling.orders.sequential import Sequential
    from spiral_stream.sampling.orders.shard_aware import ShardAwareShuffle
    from spiral_stream.sampling.orders.shard_order import ExpandedRange, WithinShards
    from spiral_stream.sampling.orders.shuffle import GlobalShuffle
    from spiral_stream.sampling.orders.weighted import Weighted
    from spiral_stream.sampling.orders.window_shuffle import WindowShuffle
    from spiral_stream.sampling.orders.with_replacement import WithReplacement
    from spiral_stream.sources.arrow.table import Arrow
    from spiral_stream.sources.columnar.huggingface import HuggingFace
    from spiral_stream.sources.columnar.parquet import Parquet
    from spiral_stream.sources.columnar.vortex import Vortex
    from spiral_stream.sources.image_folder import ImageFolder, VideoFolder
    from spiral_stream.sources.lance.source import Lance
    from spiral_stream.sources.mds.source import Mds
    from spiral_stream.sources.serialize import declared_source
    from spiral_stream.sources.source import Source
    from spiral_stream.sources.tar.webdataset import WebDataset
    from spiral_stream.sources.text.csv import Csv
    from spiral_stream.sources.text.jsonl import Jsonl
    from spiral_stream.sources.text.text_files import TextFiles
    from spiral_stream.sources.tokens.source import Tokens
    from spiral_stream.sources.writing.writer import Writer
    from spiral_stream.storage.profiles import use_storage
    from spiral_stream.transforms.image.color import ColorJitter, GaussianBlur, Grayscale, RandomGrayscale
    from spiral_stream.transforms.image.crop_and_resize import (
        CenterCrop,
        Normalize,
        RandomCrop,
        RandomHorizontalFlip,
        RandomResizedCrop,
        Resize,
    )
    from spiral_stream.transforms.image.erasing import RandomErasing
    from spiral_stream.transforms.image.rand_augment import RandAugment
    from spiral_stream.transforms.image.warp import RandomAffine, RandomRotation
    from spiral_stream.transforms.python import fn
    from spiral_stream.transforms.text.chat import ChatTemplate
    from spiral_stream.transforms.text.tokenize import Tokenize

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
    "Expr",
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
    "adapters",
    "batching",
    "cache_fingerprint",
    "col",
    "concat",
    "connect",
    "declared_source",
    "draw_bars",
    "draw_curves",
    "errors",
    "fields",
    "fn",
    "index_videos",
    "len_",
    "lit",
    "mix",
    "open_stream",
    "orders",
    "profiles",
    "report",
    "report_relation",
    "results",
    "source_facts",
    "sources",
    "sql",
    "table",
    "testing",
    "transforms",
    "use_storage",
    "written",
]

_NAMESPACES: Final = (
    "adapters",
    "batching",
    "errors",
    "fields",
    "orders",
    "profiles",
    "report",
    "results",
    "sources",
    "testing",
    "transforms",
)
_LATE: Final = {
    "Arrow": "spiral_stream.sources.arrow.table",
    "BatchBudget": "spiral_stream.batching.budget",
    "BindError": "spiral_stream.errors",
    "BoxLabels": "spiral_stream.fields.boxes",
    "Boxes": "spiral_stream.fields.boxes",
    "BucketKey": "spiral_stream.batching.windowed",
    "CacheError": "spiral_stream.errors",
    "CacheStatus": "spiral_stream.planner.prepared_data.build",
    "Catalog": "spiral_stream.connection",
    "CatalogError": "spiral_stream.errors",
    "CenterCrop": "spiral_stream.transforms.image.crop_and_resize",
    "ChatTemplate": "spiral_stream.transforms.text.chat",
    "ColorJitter": "spiral_stream.transforms.image.color",
    "Csv": "spiral_stream.sources.text.csv",
    "CuSeqlens": "spiral_stream.fields.segments",
    "DamageError": "spiral_stream.errors",
    "DataError": "spiral_stream.errors",
    "DataParallel": "spiral_stream.sampling.assignment",
    "DropPartial": "spiral_stream.batching.tail",
    "Expr": "spiral_stream.expr",
    "ExpandedRange": "spiral_stream.sampling.orders.shard_order",
    "Frames": "spiral_stream.plan.fields.profiles",
    "GaussianBlur": "spiral_stream.transforms.image.color",
    "GlobalShuffle": "spiral_stream.sampling.orders.shuffle",
    "Grayscale": "spiral_stream.transforms.image.color",
    "HashBucketed": "spiral_stream.sampling.orders.hash_bucketed",
    "HuggingFace": "spiral_stream.sources.columnar.huggingface",
    "ImageFolder": "spiral_stream.sources.image_folder",
    "Jpeg": "spiral_stream.plan.fields.profiles",
    "Jsonl": "spiral_stream.sources.text.jsonl",
    "KeepPartial": "spiral_stream.batching.tail",
    "KeyPoints": "spiral_stream.fields.boxes",
    "Labels": "spiral_stream.fields.labels",
    "Lance": "spiral_stream.sources.lance.source",
    "List": "spiral_stream.fields.list",
    "Mds": "spiral_stream.sources.mds.source",
    "MissingExtraError": "spiral_stream.errors",
    "Normalize": "spiral_stream.transforms.image.crop_and_resize",
    "OneStream": "spiral_stream.batching.composition",
    "Original": "spiral_stream.plan.fields.profiles",
    "Packed": "spiral_stream.batching.packing",
    "Pad": "spiral_stream.fields.pad",
    "PadMask": "spiral_stream.fields.pad",
    "PadPartial": "spiral_stream.batching.tail",
    "Parquet": "spiral_stream.sources.columnar.parquet",
    "Picture": "spiral_stream.report.charts",
    "PlanError": "spiral_stream.errors",
    "Positions": "spiral_stream.fields.segments",
    "PreparedData": "spiral_stream.planner.prepared_data.retention",
    "PreparedStream": "spiral_stream.prepared",
    "Progress": "spiral_stream.cache.materialize",
    "RandAugment": "spiral_stream.transforms.image.rand_augment",
    "RandomAffine": "spiral_stream.transforms.image.warp",
    "RandomCrop": "spiral_stream.transforms.image.crop_and_resize",
    "RandomErasing": "spiral_stream.transforms.image.erasing",
    "RandomGrayscale": "spiral_stream.transforms.image.color",
    "RandomHorizontalFlip": "spiral_stream.transforms.image.crop_and_resize",
    "RandomResizedCrop": "spiral_stream.transforms.image.crop_and_resize",
    "RandomRotation": "spiral_stream.transforms.image.warp",
    "Raw": "spiral_stream.plan.fields.profiles",
    "Relation": "spiral_stream.relation",
    "Report": "spiral_stream.report.build",
    "Resize": "spiral_stream.transforms.image.crop_and_resize",
    "ResumeError": "spiral_stream.errors",
    "RowIdentity": "spiral_stream.catalog.relation.row_identity",
    "RuntimeParam": "spiral_stream.params",
    "Segments": "spiral_stream.fields.segments",
    "Sequential": "spiral_stream.sampling.orders.sequential",
    "ShardAwareShuffle": "spiral_stream.sampling.orders.shard_aware",
    "ShiftedLabels": "spiral_stream.fields.labels",
    "ShuffleBuckets": "spiral_stream.sampling.orders.hash_bucketed",
    "Source": "spiral_stream.sources.source",
    "SourceError": "spiral_stream.errors",
    "SourceFacts": "spiral_stream.catalog.relation.source_facts",
    "SpiralError": "spiral_stream.errors",
    "SpiralWarning": "spiral_stream.errors",
    "Stack": "spiral_stream.fields.stack",
    "StratifiedByStream": "spiral_stream.batching.composition",
    "Stream": "spiral_stream.mixing",
    "StreamError": "spiral_stream.errors",
    "TextFiles": "spiral_stream.sources.text.text_files",
    "Tokenize": "spiral_stream.transforms.text.tokenize",
    "Tokens": "spiral_stream.sources.tokens.source",
    "TrustError": "spiral_stream.errors",
    "VideoFolder": "spiral_stream.sources.image_folder",
    "Vortex": "spiral_stream.sources.columnar.vortex",
    "WebDataset": "spiral_stream.sources.tar.webdataset",
    "Weighted": "spiral_stream.sampling.orders.weighted",
    "WindowShuffle": "spiral_stream.sampling.orders.window_shuffle",
    "WindowedBucket": "spiral_stream.batching.windowed",
    "WithReplacement": "spiral_stream.sampling.orders.with_replacement",
    "WithinShards": "spiral_stream.sampling.orders.shard_order",
    "Writer": "spiral_stream.sources.writing.writer",
    "__version__": "spiral_stream.extras",
    "cache_fingerprint": "spiral_stream.connection",
    "col": "spiral_stream.expr",
    "concat": "spiral_stream.mixing",
    "connect": "spiral_stream.connection",
    "declared_source": "spiral_stream.sources.serialize",
    "draw_bars": "spiral_stream.report.charts",
    "draw_curves": "spiral_stream.report.charts",
    "fn": "spiral_stream.transforms.python",
    "index_videos": "spiral_stream.planner.prepared_data.video_index",
    "len_": "spiral_stream.expr",
    "lit": "spiral_stream.expr",
    "mix": "spiral_stream.mixing",
    "open_stream": "spiral_stream.connection",
    "report_relation": "spiral_stream.report.build",
    "source_facts": "spiral_stream.catalog.relation.source_facts",
    "sql": "spiral_stream.connection",
    "table": "spiral_stream.connection",
    "use_storage": "spiral_stream.storage.profiles",
    "written": "spiral_stream.display.wording",
}


if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours

    def __getattr__(name: str) -> Any:
        if name in _NAMESPACES:
            return import_module(f"spiral_stream.{name}")
        if name not in _LATE:
            habits = import_module("spiral_stream.habits")
            raise AttributeError(habits.lacking("spiral_stream", name, habits.OF_DOOR, __all__))
        found = globals()[name] = getattr(import_module(_LATE[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE, *_NAMESPACES})

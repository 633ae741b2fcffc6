"""Training streams that are planned, explained and replayable.

Importing this costs hundredths of a second: the room of a name is imported when the name is first asked for.

The names of a first program are here. A namespace has all names of a kind: ``spiral.sources``, ``spiral.orders``,
``spiral.fields``, ``spiral.transforms``, ``spiral.batching``, ``spiral.profiles``, ``spiral.adapters``, ``spiral.report``,
``spiral.results``, ``spiral.errors`` and ``spiral.testing``.
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
    from spiral_stream.batching.composition import StratifiedByStream
    from spiral_stream.batching.tail import DropPartial, KeepPartial
    from spiral_stream.batching.windowed import BucketKey, WindowedBucket
    from spiral_stream.catalog.relation.row_identity import RowIdentity
    from spiral_stream.connection import Catalog, connect, open_stream, sql, table
    from spiral_stream.errors import SpiralError, SpiralWarning
    from spiral_stream.expr import Expr, col, len_, lit
    from spiral_stream.extras import __version__
    from spiral_stream.fields.labels import ShiftedLabels
    from spiral_stream.fields.list import List
    from spiral_stream.fields.pad import Pad, PadMask
    from spiral_stream.fields.stack import Stack
    from spiral_stream.mixing import Stream, concat, mix
    from spiral_stream.params import RuntimeParam
    from spiral_stream.plan.fields.profiles import Frames, Raw
    from spiral_stream.planner.prepared_data.video_index import index_videos
    from spiral_stream.prepared import PreparedStream
    from spiral_stream.relation import Relation
    from spiral_stream.sampling.assignment import DataParallel
    from spiral_stream.sampling.orders.hash_bucketed import HashBucketed, ShuffleBuckets
    from spiral_stream.sampling.orders.sequential import Sequential
    from spiral_stream.sampling.orders.shard_aware import ShardAwareShuffle
    from spiral_stream.sampling.orders.shuffle import GlobalShuffle
    from spiral_stream.sources.arrow.table import Arrow
    from spiral_stream.sources.columnar.parquet import Parquet
    from spiral_stream.sources.image_folder import ImageFolder
    from spiral_stream.sources.lance.source import Lance
    from spiral_stream.storage.profiles import use_storage
    from spiral_stream.transforms.image.crop_and_resize import Normalize, RandomHorizontalFlip, RandomResizedCrop
    from spiral_stream.transforms.text.tokenize import Tokenize

if TYPE_CHECKING:  # older places of names: as `_OLDER`; the alias alone exports them to type checkers
    from spiral_stream.batching import OneStream as OneStream
    from spiral_stream.batching import Packed as Packed
    from spiral_stream.batching import PadPartial as PadPartial
    from spiral_stream.errors import BindError as BindError
    from spiral_stream.errors import CacheError as CacheError
    from spiral_stream.errors import CatalogError as CatalogError
    from spiral_stream.errors import DamageError as DamageError
    from spiral_stream.errors import DataError as DataError
    from spiral_stream.errors import MissingExtraError as MissingExtraError
    from spiral_stream.errors import PlanError as PlanError
    from spiral_stream.errors import ResumeError as ResumeError
    from spiral_stream.errors import SourceError as SourceError
    from spiral_stream.errors import StreamError as StreamError
    from spiral_stream.errors import TrustError as TrustError
    from spiral_stream.fields import Boxes as Boxes
    from spiral_stream.fields import BoxLabels as BoxLabels
    from spiral_stream.fields import CuSeqlens as CuSeqlens
    from spiral_stream.fields import KeyPoints as KeyPoints
    from spiral_stream.fields import Labels as Labels
    from spiral_stream.fields import Positions as Positions
    from spiral_stream.fields import Segments as Segments
    from spiral_stream.orders import ExpandedRange as ExpandedRange
    from spiral_stream.orders import Weighted as Weighted
    from spiral_stream.orders import WindowShuffle as WindowShuffle
    from spiral_stream.orders import WithinShards as WithinShards
    from spiral_stream.orders import WithReplacement as WithReplacement
    from spiral_stream.profiles import Jpeg as Jpeg
    from spiral_stream.profiles import Original as Original
    from spiral_stream.profiles import cache_fingerprint as cache_fingerprint
    from spiral_stream.report import Picture as Picture
    from spiral_stream.report import Report as Report
    from spiral_stream.report import SourceFacts as SourceFacts
    from spiral_stream.report import draw_bars as draw_bars
    from spiral_stream.report import draw_curves as draw_curves
    from spiral_stream.report import report_relation as report_relation
    from spiral_stream.report import source_facts as source_facts
    from spiral_stream.report import written as written
    from spiral_stream.results import CacheStatus as CacheStatus
    from spiral_stream.results import PreparedData as PreparedData
    from spiral_stream.results import Progress as Progress
    from spiral_stream.sources import Csv as Csv
    from spiral_stream.sources import HuggingFace as HuggingFace
    from spiral_stream.sources import Jsonl as Jsonl
    from spiral_stream.sources import Mds as Mds
    from spiral_stream.sources import Source as Source
    from spiral_stream.sources import TextFiles as TextFiles
    from spiral_stream.sources import Tokens as Tokens
    from spiral_stream.sources import VideoFolder as VideoFolder
    from spiral_stream.sources import Vortex as Vortex
    from spiral_stream.sources import WebDataset as WebDataset
    from spiral_stream.sources import Writer as Writer
    from spiral_stream.sources import declared_source as declared_source
    from spiral_stream.transforms import CenterCrop as CenterCrop
    from spiral_stream.transforms import ChatTemplate as ChatTemplate
    from spiral_stream.transforms import ColorJitter as ColorJitter
    from spiral_stream.transforms import GaussianBlur as GaussianBlur
    from spiral_stream.transforms import Grayscale as Grayscale
    from spiral_stream.transforms import RandAugment as RandAugment
    from spiral_stream.transforms import RandomAffine as RandomAffine
    from spiral_stream.transforms import RandomCrop as RandomCrop
    from spiral_stream.transforms import RandomErasing as RandomErasing
    from spiral_stream.transforms import RandomGrayscale as RandomGrayscale
    from spiral_stream.transforms import RandomRotation as RandomRotation
    from spiral_stream.transforms import Resize as Resize
    from spiral_stream.transforms import fn as fn

__all__ = [
    "Arrow",
    "BatchBudget",
    "BucketKey",
    "Catalog",
    "DataParallel",
    "DropPartial",
    "Expr",
    "Frames",
    "GlobalShuffle",
    "HashBucketed",
    "ImageFolder",
    "KeepPartial",
    "Lance",
    "List",
    "Normalize",
    "Pad",
    "PadMask",
    "Parquet",
    "PreparedStream",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Raw",
    "Relation",
    "RowIdentity",
    "RuntimeParam",
    "Sequential",
    "ShardAwareShuffle",
    "ShiftedLabels",
    "ShuffleBuckets",
    "SpiralError",
    "SpiralWarning",
    "Stack",
    "StratifiedByStream",
    "Stream",
    "Tokenize",
    "WindowedBucket",
    "__version__",
    "adapters",
    "batching",
    "col",
    "concat",
    "connect",
    "errors",
    "fields",
    "index_videos",
    "len_",
    "lit",
    "mix",
    "open_stream",
    "orders",
    "profiles",
    "report",
    "results",
    "sources",
    "sql",
    "table",
    "testing",
    "transforms",
    "use_storage",
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
    "BucketKey": "spiral_stream.batching.windowed",
    "Catalog": "spiral_stream.connection",
    "DataParallel": "spiral_stream.sampling.assignment",
    "DropPartial": "spiral_stream.batching.tail",
    "Expr": "spiral_stream.expr",
    "Frames": "spiral_stream.plan.fields.profiles",
    "GlobalShuffle": "spiral_stream.sampling.orders.shuffle",
    "HashBucketed": "spiral_stream.sampling.orders.hash_bucketed",
    "ImageFolder": "spiral_stream.sources.image_folder",
    "KeepPartial": "spiral_stream.batching.tail",
    "Lance": "spiral_stream.sources.lance.source",
    "List": "spiral_stream.fields.list",
    "Normalize": "spiral_stream.transforms.image.crop_and_resize",
    "Pad": "spiral_stream.fields.pad",
    "PadMask": "spiral_stream.fields.pad",
    "Parquet": "spiral_stream.sources.columnar.parquet",
    "PreparedStream": "spiral_stream.prepared",
    "RandomHorizontalFlip": "spiral_stream.transforms.image.crop_and_resize",
    "RandomResizedCrop": "spiral_stream.transforms.image.crop_and_resize",
    "Raw": "spiral_stream.plan.fields.profiles",
    "Relation": "spiral_stream.relation",
    "RowIdentity": "spiral_stream.catalog.relation.row_identity",
    "RuntimeParam": "spiral_stream.params",
    "Sequential": "spiral_stream.sampling.orders.sequential",
    "ShardAwareShuffle": "spiral_stream.sampling.orders.shard_aware",
    "ShiftedLabels": "spiral_stream.fields.labels",
    "ShuffleBuckets": "spiral_stream.sampling.orders.hash_bucketed",
    "SpiralError": "spiral_stream.errors",
    "SpiralWarning": "spiral_stream.errors",
    "Stack": "spiral_stream.fields.stack",
    "StratifiedByStream": "spiral_stream.batching.composition",
    "Stream": "spiral_stream.mixing",
    "Tokenize": "spiral_stream.transforms.text.tokenize",
    "WindowedBucket": "spiral_stream.batching.windowed",
    "__version__": "spiral_stream.extras",
    "col": "spiral_stream.expr",
    "concat": "spiral_stream.mixing",
    "connect": "spiral_stream.connection",
    "index_videos": "spiral_stream.planner.prepared_data.video_index",
    "len_": "spiral_stream.expr",
    "lit": "spiral_stream.expr",
    "mix": "spiral_stream.mixing",
    "open_stream": "spiral_stream.connection",
    "sql": "spiral_stream.connection",
    "table": "spiral_stream.connection",
    "use_storage": "spiral_stream.storage.profiles",
}

# Names that were here once, and the namespace of each. They work and warn in this version; the next one removes them.
_OLDER: Final = {
    "BindError": "errors",
    "BoxLabels": "fields",
    "Boxes": "fields",
    "CacheError": "errors",
    "CacheStatus": "results",
    "CatalogError": "errors",
    "CenterCrop": "transforms",
    "ChatTemplate": "transforms",
    "ColorJitter": "transforms",
    "Csv": "sources",
    "CuSeqlens": "fields",
    "DamageError": "errors",
    "DataError": "errors",
    "ExpandedRange": "orders",
    "GaussianBlur": "transforms",
    "Grayscale": "transforms",
    "HuggingFace": "sources",
    "Jpeg": "profiles",
    "Jsonl": "sources",
    "KeyPoints": "fields",
    "Labels": "fields",
    "Mds": "sources",
    "MissingExtraError": "errors",
    "OneStream": "batching",
    "Original": "profiles",
    "Packed": "batching",
    "PadPartial": "batching",
    "Picture": "report",
    "PlanError": "errors",
    "Positions": "fields",
    "PreparedData": "results",
    "Progress": "results",
    "RandAugment": "transforms",
    "RandomAffine": "transforms",
    "RandomCrop": "transforms",
    "RandomErasing": "transforms",
    "RandomGrayscale": "transforms",
    "RandomRotation": "transforms",
    "Report": "report",
    "Resize": "transforms",
    "ResumeError": "errors",
    "Segments": "fields",
    "Source": "sources",
    "SourceError": "errors",
    "SourceFacts": "report",
    "StreamError": "errors",
    "TextFiles": "sources",
    "Tokens": "sources",
    "TrustError": "errors",
    "VideoFolder": "sources",
    "Vortex": "sources",
    "WebDataset": "sources",
    "Weighted": "orders",
    "WindowShuffle": "orders",
    "WithReplacement": "orders",
    "WithinShards": "orders",
    "Writer": "sources",
    "cache_fingerprint": "profiles",
    "declared_source": "sources",
    "draw_bars": "report",
    "draw_curves": "report",
    "fn": "transforms",
    "report_relation": "report",
    "source_facts": "report",
    "written": "report",
}


if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours

    def __getattr__(name: str) -> Any:
        if name in _NAMESPACES:
            return import_module(f"spiral_stream.{name}")
        if name in _LATE:
            found = getattr(import_module(_LATE[name]), name)
        elif name in _OLDER:
            found = _of_namespace(name)
        else:
            habits = import_module("spiral_stream.habits")
            raise AttributeError(habits.lacking("spiral_stream", name, habits.OF_DOOR, __all__))
        globals()[name] = found
        return found


def _of_namespace(name: str) -> Any:
    """Import a name that has moved, and warn of its older place."""
    place = _OLDER[name]
    found = getattr(import_module(f"spiral_stream.{place}"), name)
    from spiral_stream.errors import warn

    warn(
        f"spiral.{name} is an older name, and the next version removes it. "
        f"Write spiral.{place}.{name}, or from spiral_stream.{place} import {name}"
    )
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE, *_NAMESPACES} - _OLDER.keys())

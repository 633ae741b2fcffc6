"""Training streams that are planned, explained and replayable.

Importing this costs hundredths of a second: the room of a name is imported when the name is first asked for.

The names of a first program are here. A namespace has all names of a kind: ``spiral.sources``, ``spiral.orders``,
``spiral.fields``, ``spiral.transforms``, ``spiral.batching``, ``spiral.profiles``, ``spiral.adapters``, ``spiral.report``,
``spiral.results``, ``spiral.errors`` and ``spiral.testing``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # the alias exports a name to type checkers
    from spiral_stream import adapters as adapters
    from spiral_stream import batching as batching
    from spiral_stream import errors as errors
    from spiral_stream import fields as fields
    from spiral_stream import orders as orders
    from spiral_stream import profiles as profiles
    from spiral_stream import report as report
    from spiral_stream import results as results
    from spiral_stream import sources as sources
    from spiral_stream import testing as testing
    from spiral_stream import transforms as transforms
    from spiral_stream.batching.budget import BatchBudget as BatchBudget
    from spiral_stream.batching.composition import StratifiedByStream as StratifiedByStream
    from spiral_stream.batching.tail import DropPartial as DropPartial
    from spiral_stream.batching.tail import KeepPartial as KeepPartial
    from spiral_stream.batching.windowed import BucketKey as BucketKey
    from spiral_stream.batching.windowed import WindowedBucket as WindowedBucket
    from spiral_stream.catalog.relation.row_identity import RowIdentity as RowIdentity
    from spiral_stream.connection import Catalog as Catalog
    from spiral_stream.connection import connect as connect
    from spiral_stream.connection import open_stream as open_stream
    from spiral_stream.connection import sql as sql
    from spiral_stream.connection import table as table
    from spiral_stream.errors import SpiralError as SpiralError
    from spiral_stream.errors import SpiralWarning as SpiralWarning
    from spiral_stream.expr import Expr as Expr
    from spiral_stream.expr import col as col
    from spiral_stream.expr import len_ as len_
    from spiral_stream.expr import lit as lit
    from spiral_stream.extras import __version__ as __version__
    from spiral_stream.fields.labels import ShiftedLabels as ShiftedLabels
    from spiral_stream.fields.list import List as List
    from spiral_stream.fields.pad import Pad as Pad
    from spiral_stream.fields.pad import PadMask as PadMask
    from spiral_stream.fields.stack import Stack as Stack
    from spiral_stream.mixing import Stream as Stream
    from spiral_stream.mixing import concat as concat
    from spiral_stream.mixing import mix as mix
    from spiral_stream.params import RuntimeParam as RuntimeParam
    from spiral_stream.plan.fields.profiles import Frames as Frames
    from spiral_stream.plan.fields.profiles import Raw as Raw
    from spiral_stream.planner.prepared_data.video_index import index_videos as index_videos
    from spiral_stream.prepared import PreparedStream as PreparedStream
    from spiral_stream.relation import Relation as Relation
    from spiral_stream.sampling.assignment import DataParallel as DataParallel
    from spiral_stream.sampling.orders.hash_bucketed import HashBucketed as HashBucketed
    from spiral_stream.sampling.orders.hash_bucketed import ShuffleBuckets as ShuffleBuckets
    from spiral_stream.sampling.orders.sequential import Sequential as Sequential
    from spiral_stream.sampling.orders.shard_aware import ShardAwareShuffle as ShardAwareShuffle
    from spiral_stream.sampling.orders.shuffle import GlobalShuffle as GlobalShuffle
    from spiral_stream.sources.arrow.table import Arrow as Arrow
    from spiral_stream.sources.columnar.parquet import Parquet as Parquet
    from spiral_stream.sources.image_folder import ImageFolder as ImageFolder
    from spiral_stream.sources.lance.source import Lance as Lance
    from spiral_stream.storage.profiles import use_storage as use_storage
    from spiral_stream.transforms.image.crop_and_resize import Normalize as Normalize
    from spiral_stream.transforms.image.crop_and_resize import RandomHorizontalFlip as RandomHorizontalFlip
    from spiral_stream.transforms.image.crop_and_resize import RandomResizedCrop as RandomResizedCrop
    from spiral_stream.transforms.text.tokenize import Tokenize as Tokenize

if TYPE_CHECKING:  # older places of names: as `_MOVED`
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

# The names of each room. A room is imported when one of its names is first asked for.
_ROOMS: Final = {
    "batching.budget": ["BatchBudget"],
    "batching.composition": ["StratifiedByStream"],
    "batching.tail": ["DropPartial", "KeepPartial"],
    "batching.windowed": ["BucketKey", "WindowedBucket"],
    "catalog.relation.row_identity": ["RowIdentity"],
    "connection": ["Catalog", "connect", "open_stream", "sql", "table"],
    "errors": ["SpiralError", "SpiralWarning"],
    "expr": ["Expr", "col", "len_", "lit"],
    "extras": ["__version__"],
    "fields.labels": ["ShiftedLabels"],
    "fields.list": ["List"],
    "fields.pad": ["Pad", "PadMask"],
    "fields.stack": ["Stack"],
    "mixing": ["Stream", "concat", "mix"],
    "params": ["RuntimeParam"],
    "plan.fields.profiles": ["Frames", "Raw"],
    "planner.prepared_data.video_index": ["index_videos"],
    "prepared": ["PreparedStream"],
    "relation": ["Relation"],
    "sampling.assignment": ["DataParallel"],
    "sampling.orders.hash_bucketed": ["HashBucketed", "ShuffleBuckets"],
    "sampling.orders.sequential": ["Sequential"],
    "sampling.orders.shard_aware": ["ShardAwareShuffle"],
    "sampling.orders.shuffle": ["GlobalShuffle"],
    "sources.arrow.table": ["Arrow"],
    "sources.columnar.parquet": ["Parquet"],
    "sources.image_folder": ["ImageFolder"],
    "sources.lance.source": ["Lance"],
    "storage.profiles": ["use_storage"],
    "transforms.image.crop_and_resize": ["Normalize", "RandomHorizontalFlip", "RandomResizedCrop"],
    "transforms.text.tokenize": ["Tokenize"],
}

# Names that were here once, by their namespace. They work and warn in this version; the next one removes them.
_MOVED: Final = {
    "batching": ["OneStream", "Packed", "PadPartial"],
    "errors": [
        "BindError",
        "CacheError",
        "CatalogError",
        "DamageError",
        "DataError",
        "MissingExtraError",
        "PlanError",
        "ResumeError",
        "SourceError",
        "StreamError",
        "TrustError",
    ],
    "fields": ["BoxLabels", "Boxes", "CuSeqlens", "KeyPoints", "Labels", "Positions", "Segments"],
    "orders": ["ExpandedRange", "Weighted", "WindowShuffle", "WithReplacement", "WithinShards"],
    "profiles": ["Jpeg", "Original", "cache_fingerprint"],
    "report": [
        "Picture",
        "Report",
        "SourceFacts",
        "draw_bars",
        "draw_curves",
        "report_relation",
        "source_facts",
        "written",
    ],
    "results": ["CacheStatus", "PreparedData", "Progress"],
    "sources": [
        "Csv",
        "HuggingFace",
        "Jsonl",
        "Mds",
        "Source",
        "TextFiles",
        "Tokens",
        "VideoFolder",
        "Vortex",
        "WebDataset",
        "Writer",
        "declared_source",
    ],
    "transforms": [
        "CenterCrop",
        "ChatTemplate",
        "ColorJitter",
        "GaussianBlur",
        "Grayscale",
        "RandAugment",
        "RandomAffine",
        "RandomCrop",
        "RandomErasing",
        "RandomGrayscale",
        "RandomRotation",
        "Resize",
        "fn",
    ],
}


_ROOM_OF: Final = {name: room for room, names in _ROOMS.items() for name in names}
_NAMES: Final = sorted([*_NAMESPACES, *_ROOM_OF])
_OLDER: Final = {name: place for place, names in _MOVED.items() for name in names}

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours
    __all__ = list(_NAMES)

    def __getattr__(name: str) -> Any:
        if name in _NAMESPACES:
            return import_module(f"spiral_stream.{name}")
        if name in _ROOM_OF:
            found = getattr(import_module(f"spiral_stream.{_ROOM_OF[name]}"), name)
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
    return sorted({*globals(), *_NAMES} - _OLDER.keys())

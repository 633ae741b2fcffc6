"""The stages of a lowered plan, as values. Relations are open; no payload is read and nothing runs.

A field that is decoded, and a column that is tokenized, hold one value per stream of the plan, in the order of
`Stages.streams`: what that stream reads, in which form it is cached, and where.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Final, Generic, TypeVar, final

import numpy as np

from spiral_stream.batching.fixed import FixedBatches
from spiral_stream.batching.formation import Formation
from spiral_stream.cache.kinds.chats import ChatKind
from spiral_stream.cache.kinds.clips import ClipKind
from spiral_stream.cache.kinds.image_lists import ImageListKind
from spiral_stream.cache.kinds.images import ImageKind
from spiral_stream.cache.kinds.kind import Kind
from spiral_stream.cache.kinds.tokens import TokenKind
from spiral_stream.cache.kinds.video_index import IndexKind
from spiral_stream.cache.store.store import CacheStore
from spiral_stream.decoders.limits import SampleLimits
from spiral_stream.decoders.sound.sound_selection import SoundSelection
from spiral_stream.decoders.video.frame_selection import FrameSelection
from spiral_stream.fields.field import Field, FieldSpec
from spiral_stream.fields.sequence import SequenceField
from spiral_stream.host_dtypes import host_dtype
from spiral_stream.plan.nodes import Collate, Deliver, Sampled
from spiral_stream.plan.tree import need
from spiral_stream.planner.columns.lineage import Made
from spiral_stream.planner.columns.payload import Payload
from spiral_stream.planner.columns.streams import StreamStage
from spiral_stream.planner.columns.values import CachedValues
from spiral_stream.planner.made_relations import DerivedRelation
from spiral_stream.sampling.epoch import EpochOrder
from spiral_stream.sampling.order import Order
from spiral_stream.transforms.chain import ImageChain, MaskProgram, Program, random_moves
from spiral_stream.transforms.image.image import ImageProgram
from spiral_stream.transforms.text.chat_encoder import ChatEncoder
from spiral_stream.transforms.text.encoder import TextEncoder

K = TypeVar("K", bound=Kind)
_UNKNOWN_LENGTH: Final = 256  # items that a dimension counts for where only the data knows it
UNKNOWN_IMAGES: Final = 4  # likewise, of lists of images


@final
@dataclass(frozen=True, slots=True, eq=False)
class PlainStage:
    """A field copied from a column, or a list of the bytes that a column names."""

    name: str
    field: Field
    spec: FieldSpec
    payloads: tuple[Payload, ...] = ()  # where the bytes lie, per stream; none for a column that names none
    draws: ClassVar[bool] = False  # random numbers

    @property
    def column(self) -> str:
        """The column that is copied, or names the bytes."""
        return self.field.column

    def shape(self, rows: int) -> tuple[int, ...]:
        """Return the array's shape for this many rows."""
        return (rows, *(n for n in self.spec.shape if n is not None))


@final
@dataclass(frozen=True, slots=True, eq=False)
class SequenceStage:
    """A field of token sequences: padded, or placed by a packing."""

    name: str
    field: SequenceField
    spec: FieldSpec
    multiple: int = 1  # widths are multiples of this, for all fields of the column
    length: int | None = None  # the width of every batch, if one of the column's fields says it
    together: tuple[str, ...] = ()  # the columns that share their width, this one included; empty if it is alone
    payloads: ClassVar[tuple[Payload, ...]] = ()
    draws: ClassVar[bool] = False

    @property
    def column(self) -> str:
        """The column of the sequences."""
        return self.field.column


@final
@dataclass(frozen=True, slots=True, eq=False)
class PayloadCache(Generic[K]):
    """A payload column as one stream reads it, the form it is cached in, and the cache's folder."""

    payload: Payload
    kind: K
    store: CacheStore


@final
@dataclass(frozen=True, slots=True, eq=False)
class ClipSource:
    """The clips of one stream: where the frames lie in its files, and the cache of frames if the plan declares one."""

    index: PayloadCache[IndexKind]
    frames: PayloadCache[ClipKind] | None

    @property
    def built(self) -> PayloadCache[IndexKind] | PayloadCache[ClipKind]:
        """The cache that `materialize` builds: frames if they are cached, else the index."""
        return self.frames or self.index


@final
@dataclass(frozen=True, slots=True, eq=False)
class ListedImages:
    """Several images per row: how many there are in a batch, and how they draw."""

    length: int | None  # None: the longest list of the batch
    alike: bool  # whether the images of a row draw alike


@final
@dataclass(frozen=True, slots=True, eq=False)
class ImageStage:
    """A field of images: fetched, decoded and transformed."""

    name: str
    column: str
    spec: FieldSpec
    program: Program
    view: str | None  # of its random numbers
    caches: tuple[PayloadCache[ImageKind] | PayloadCache[ImageListKind], ...]  # one per stream
    listed: ListedImages | None = None  # None: one image per row

    @property
    def payloads(self) -> tuple[Payload, ...]:
        """Where the bytes lie, per stream."""
        return tuple(each.payload for each in self.caches)

    @property
    def draws(self) -> bool:
        """Whether an image draws random numbers."""
        return not self.program.deterministic

    @property
    def ends_on_device(self) -> bool:
        """Whether a device may normalize the images; padding of lists and masks would change there."""
        return self.listed is None and not isinstance(self.program, MaskProgram)


@final
@dataclass(frozen=True, slots=True, eq=False)
class ClipStage:
    """A field of clips: which frames are taken, from which files or caches, and how each frame is transformed."""

    name: str
    column: str
    spec: FieldSpec
    selection: FrameSelection
    limits: SampleLimits  # per sample
    program: ImageProgram | ImageChain  # per frame
    view: str | None  # of its random numbers
    sources: tuple[ClipSource, ...]  # one per stream

    @property
    def draws(self) -> bool:
        """Whether a clip draws random numbers, for its frames or for what is done to them."""
        return not (self.program.deterministic and self.selection.deterministic)

    @property
    def ends_on_device(self) -> bool:
        """Whether a device may normalize the frames."""
        return True

    @property
    def caches(self) -> tuple[PayloadCache[IndexKind] | PayloadCache[ClipKind], ...]:
        """What `materialize` builds, per stream."""
        return tuple(each.built for each in self.sources)

    @property
    def frames(self) -> int:
        """Frames per clip (T)."""
        return self.selection.sequence_length

    @property
    def payloads(self) -> tuple[Payload, ...]:
        """Where the files are named, per stream."""
        return tuple(each.index.payload for each in self.sources)


@final
@dataclass(frozen=True, slots=True, eq=False)
class SoundStage:
    """A field of sound: which part of each recording, read anew for every batch."""

    name: str
    column: str
    spec: FieldSpec
    selection: SoundSelection
    limits: SampleLimits
    payloads: tuple[Payload, ...]  # one per stream
    times: tuple[str, ...]  # columns that say where the row's segment lies in its file; none: it is the whole file
    view: str | None  # of the random numbers

    @property
    def draws(self) -> bool:
        """Whether the part of a recording is drawn."""
        return not self.selection.deterministic


FieldStage = PlainStage | SequenceStage | ImageStage | ClipStage | SoundStage


@final
@dataclass(frozen=True, slots=True, eq=False)
class TokenStage:
    """A column of tokens. It is cached where the text is a column of each stream's own relation."""

    name: str
    column: str
    encoder: TextEncoder | ChatEncoder
    caches: tuple[
        PayloadCache[TokenKind] | PayloadCache[ChatKind], ...
    ]  # one per stream; empty where the text is computed

    @property
    def payloads(self) -> tuple[Payload, ...]:
        """Where the text lies, per stream; empty where it is computed."""
        return tuple(each.payload for each in self.caches)


@final
@dataclass(frozen=True, eq=False)
class Stages:
    """The stage list of a stream: selections -> order -> maps -> batches -> fields -> delivery.

    Nothing of it changes, so what is said of the list is found once, when somebody asks.
    """

    plan: Deliver
    fingerprint: str
    canonical: Any
    data_versions: Mapping[str, str]
    streams: tuple[StreamStage, ...]
    epochs: EpochOrder
    batches: FixedBatches  # of the epoch's positions; where there is a formation, for its lanes only
    formation: Formation | None
    identity: tuple[str, ...]
    maps: tuple[Sampled, ...]  # in order, first after sample first
    fields: tuple[FieldStage, ...]  # in the order of the batch's keys
    tokens: tuple[TokenStage, ...]
    warnings: tuple[str, ...]
    derived: tuple[DerivedRelation, ...] = ()  # relations that the plan makes itself
    values: tuple[CachedValues, ...] = ()  # of functions, one for each `.cache()` after sample

    @cached_property
    def cached(self) -> frozenset[Made]:
        """The columns of maps whose values are kept, for every row."""
        return frozenset(key for each in self.values for key in each.keys)

    @cached_property
    def plains(self) -> tuple[PlainStage, ...]:
        """The fields that copy a column."""
        return tuple(each for each in self.fields if isinstance(each, PlainStage))

    @cached_property
    def sequences(self) -> tuple[SequenceStage, ...]:
        """The fields of token sequences."""
        return tuple(each for each in self.fields if isinstance(each, SequenceStage))

    @cached_property
    def images(self) -> tuple[ImageStage, ...]:
        """The fields of images."""
        return tuple(each for each in self.fields if isinstance(each, ImageStage))

    @cached_property
    def mask_pairs(self) -> tuple[tuple[str, str], ...]:
        """Masks, each with its image: the first of the same view whose random moves the mask shares."""
        images = [each for each in self.images if not isinstance(each.program, MaskProgram)]
        out = []
        for mask in self.images:
            moves = random_moves(mask.program) if isinstance(mask.program, MaskProgram) else []
            for image in images if moves else ():
                theirs = iter(random_moves(image.program))
                both = (image.listed is None) == (mask.listed is None)
                if both and image.view == mask.view and all(each in theirs for each in moves):  # in this order
                    out.append((mask.name, image.name))
                    break
        return tuple(out)

    @cached_property
    def clips(self) -> tuple[ClipStage, ...]:
        """The fields of clips."""
        return tuple(each for each in self.fields if isinstance(each, ClipStage))

    @property
    def pixels(self) -> tuple[ImageStage | ClipStage, ...]:
        """The fields of images, then those of clips."""
        return (*self.images, *self.clips)

    @cached_property
    def sounds(self) -> tuple[SoundStage, ...]:
        """The fields of sound."""
        return tuple(each for each in self.fields if isinstance(each, SoundStage))

    @property
    def order(self) -> Order:
        """The plan's order."""
        return self.epochs.order

    def batches_of(self, epoch: int) -> FixedBatches:
        """Return the batches of an epoch: `batches`, except where the epoch has fewer positions than others."""
        length = self.epochs.length(epoch)
        if length == self.batches.total:
            return self.batches
        return replace(self.batches, lanes=replace(self.batches.lanes, total=length))

    @property
    def mixed(self) -> bool:
        """Whether there are several streams."""
        return self.epochs.mixture is not None

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The small columns that every batch reads, identity first."""
        names = dict.fromkeys([*self.identity, *(stage.column for stage in self.plains)])
        return tuple(names)

    @cached_property
    def field_names(self) -> tuple[str, ...]:
        """The batch's keys, in order."""
        return tuple(name for name, _ in need(self.plan, Collate).fields)

    def multiple(self, column: str) -> int:
        """Return the number that widths of a token column's fields are multiples of; all of them share one."""
        return next(stage.multiple for stage in self.sequences if stage.column == column)

    @property
    def formed(self) -> bool:
        """Whether formation, not arithmetic, says who shares a batch."""
        return self.formation is not None

    def close(self) -> None:
        """Release the relations."""
        for stream in self.streams:
            stream.selected.close()
        for each in self.derived:
            each.held.release()

    @cached_property
    def specs(self) -> tuple[FieldSpec, ...]:
        """The specification of every field of a batch."""
        return tuple(stage.spec for stage in self.fields)

    def batch_bytes(self, rows: int) -> int:
        """Return bytes of a batch's arrays; unknown dimensions count as 256, and those of lists of images as 4."""
        total = 0
        lists = [image.spec for image in self.images if image.listed is not None]
        for spec in self.specs:
            if spec.dtype is not None:
                unknown = UNKNOWN_IMAGES if spec in lists else _UNKNOWN_LENGTH
                shape = [unknown if n is None else n for n in spec.shape]
                total += rows * int(np.prod(shape, dtype=np.int64)) * host_dtype(spec.dtype).itemsize
        return total

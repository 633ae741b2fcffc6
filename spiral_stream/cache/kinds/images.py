"""The cache kind of images: bytes as they are, smaller JPEGs, or raw pixels, as the profile says.

Height and width are stored next to the payload. A row that is not stored goes through `keep` on the fly.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.cache.fingerprint import image_facts
from spiral_stream.cache.kinds.kind import Kind, Rows
from spiral_stream.decoders.decoder import Decoder
from spiral_stream.decoders.image import region
from spiral_stream.decoders.image.image import JpegDecoder, decode_jpeg, encode_jpeg
from spiral_stream.decoders.image.oriented import Oriented, inner_of
from spiral_stream.errors import DataError, SourceError
from spiral_stream.plan.fields.profiles import Jpeg, Original, Profile, Raw
from spiral_stream.sources.references.policy import Reach
from spiral_stream.sources.references.resolve import resolve_or_errors

Pixels = NDArray[np.uint8]  # [H, W, 3]
Bytes = bytes | memoryview


@final
@dataclass(frozen=True, slots=True)
class StoredImage:
    """The payload of one row."""

    payload: Bytes
    height: int
    width: int


@final
@dataclass(frozen=True, slots=True)
class ImageKind(Kind):
    """One image column of one relation, read by one decoder, kept in one form."""

    RUN_BYTES: ClassVar[int] = 8 << 20
    RUN_ROWS: ClassVar[int] = (
        32  # about 3 MB of JPEGs: below the size at which the allocator maps and unmaps every read
    )
    FIRST_ROWS: ClassVar[int] = 8  # all of a run's images are held at once, and may be large

    relation: str
    column: str
    decoder: Decoder
    profile: Profile

    @property
    def form(self) -> str:
        return str(self.profile)

    def facts(self) -> dict[str, object]:
        return image_facts(self.relation, self.column, self.decoder, self.profile)

    def keep_rows(self, table: pa.Table, base: Reach | str) -> Rows:
        """Make the payload of P references; see `Kind.keep_rows`."""
        column = table[self.column]
        payloads: list[Bytes] = []
        height, width = (np.zeros(len(column), dtype=np.int32) for _ in range(2))
        sizes = np.zeros(len(column), dtype=np.int64)
        refused: dict[int, str] = {}
        source_bytes = 0
        found = resolve_or_errors(column, base, self.decoder.limits.bytes, DataError)
        for at, data in enumerate(found):  # 1 us per row; decoding takes 800
            if isinstance(data, SourceError):
                refused[at] = str(data)
                continue
            source_bytes += len(data)
            try:
                payload = self.for_cache(data)
            except DataError as error:
                refused[at] = str(error)
                continue
            payloads.append(payload.payload)
            sizes[at], height[at], width[at] = len(payload.payload), payload.height, payload.width
        return Rows(b"".join(payloads), sizes, refused, {"height": height, "width": width}, source_bytes)

    def keep(self, data: Bytes) -> StoredImage:
        """Make the payload of one row from its encoded bytes.

        Raises:
            DataError: the bytes cannot be decoded.
        """
        profile = self.profile
        if isinstance(profile, Original):
            return StoredImage(data, *self.decoder.size(data))
        pixels = self.decoder.decode(data)
        side = getattr(profile, "shorter_side", None)
        if side is not None:
            pixels = self.decoder.shrunk(pixels, side)
        if isinstance(profile, Jpeg):
            return StoredImage(encode_jpeg(pixels, profile.quality), *pixels.shape[:2])
        return StoredImage(pixels.reshape(-1).view(np.uint8).data, *pixels.shape[:2])

    def for_cache(self, data: Bytes) -> StoredImage:
        """Make the payload of one row as a cache has it: a JPEG with an index of its bits, which changes no pixel.

        Raises:
            DataError: the bytes cannot be decoded.
        """
        made = self.keep(data)
        return replace(made, payload=region.indexed(made.payload)) if self.keeps_jpeg else made

    def read(self, stored: StoredImage) -> Pixels:
        """Return the pixels of a kept row; of raw pixels a view, not a copy.

        Raises:
            DataError: the bytes cannot be decoded.
        """
        if isinstance(self.profile, Raw):
            shape = (stored.height, stored.width, self.decoder.channels)
            return np.frombuffer(stored.payload, dtype=self.decoder.dtype).reshape(shape)
        if isinstance(self.profile, Jpeg):
            return decode_jpeg(stored.payload, self.decoder.limits.pixels)
        return self.decoder.decode(stored.payload)

    @property
    def keeps_pixels(self) -> bool:
        """Whether the payload is packed RGB pixels."""
        return isinstance(self.profile, Raw)

    @property
    def keeps_jpeg(self) -> bool:
        """Whether the payload is a JPEG, so that a crop can be decoded alone."""
        return isinstance(self.profile, Jpeg) or (
            not isinstance(self.profile, Raw) and isinstance(inner_of(self.decoder), JpegDecoder)
        )

    @property
    def turns(self) -> bool:
        """Whether kept bytes may have to be turned after they are decoded."""
        return isinstance(self.profile, Original) and isinstance(self.decoder, Oriented)

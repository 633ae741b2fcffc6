"""The cache kind of lists of images: every image as in the kind of single images, packed to one payload per row.

The payload is int64 words (the count; height, width and bytes of each image), then the images end to end. The count is
stored next to the payload, of refused rows too, so a batch has one shape whatever is cached.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.cache.fingerprint import image_facts
from spiral_stream.cache.kinds.images import ImageKind, StoredImage
from spiral_stream.cache.kinds.kind import Kind, Rows
from spiral_stream.decoders.decoder import Decoder
from spiral_stream.errors import DataError
from spiral_stream.plan.fields.profiles import Profile
from spiral_stream.sources.references.policy import Reach
from spiral_stream.sources.references.resolve import resolve

COUNT: Final = "count"  # column: images of the row
NULL_LIST: Final = "the list is null. Filter the row out (~col(...).is_null()), or store an empty list"
_WORDS: Final = 3  # per image

Int64 = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True)
class ImageListKind(Kind):
    """One column of lists of images, of one relation."""

    RUN_BYTES: ClassVar[int] = ImageKind.RUN_BYTES
    RUN_ROWS: ClassVar[int] = 8
    FIRST_ROWS: ClassVar[int] = 8

    relation: str
    column: str
    decoder: Decoder
    profile: Profile

    @property
    def one(self) -> ImageKind:
        """The kind of each image."""
        return ImageKind(self.relation, self.column, self.decoder, self.profile)

    @property
    def form(self) -> str:
        return f"lists of {self.one.form}"

    @property
    def title(self) -> str:
        return self.one.form

    def facts(self) -> dict[str, object]:
        return image_facts(self.relation, self.column, self.decoder, self.profile, lists=True)

    def keep_rows(self, table: pa.Table, base: Reach | str) -> Rows:
        """Make the payload of P lists; see `Kind.keep_rows`."""
        column = table[self.column].combine_chunks()
        counts: NDArray[np.int32] = pc.list_value_length(column).fill_null(0).to_numpy().astype(np.int32)
        payloads: list[bytes] = []
        sizes = np.zeros(len(column), dtype=np.int64)
        refused: dict[int, str] = {}
        source_bytes = 0
        for at in range(len(column)):  # 20 us per row; decoding takes 800 per image
            try:
                encoded = self.encoded(column[at], base)
                source_bytes += sum(map(len, encoded))
                payload = pack([self._for_cache(item, data) for item, data in enumerate(encoded)])
            except DataError as error:
                refused[at] = str(error)
                continue
            payloads.append(payload)
            sizes[at] = len(payload)
        return Rows(b"".join(payloads), sizes, refused, {COUNT: counts}, source_bytes)

    def keep(self, item: int, data: bytes | memoryview) -> StoredImage:
        """Make the stored form of one image of a list.

        Raises:
            DataError: the bytes cannot be decoded; says which image it is.
        """
        try:
            return self.one.keep(data)  # a kind is made in 1 us
        except DataError as error:
            raise of_item(item, error) from error

    def _for_cache(self, item: int, data: bytes | memoryview) -> StoredImage:
        try:
            return self.one.for_cache(data)
        except DataError as error:
            raise of_item(item, error) from error

    def encoded(self, value: pa.Scalar, base: Reach | str) -> list[memoryview]:
        """Return the bytes of a row's images.

        Raises:
            DataError: the list, or one of its references, is null.
            SourceError: storage failed.
        """
        if not value.is_valid:
            raise DataError(NULL_LIST)
        return resolve(value.values, base, self.decoder.limits.bytes)


def of_item(item: int, error: DataError, row: int | None = None) -> DataError:
    """Return an error of one image as that of its list."""
    return DataError(f"image {item} of the list: {error}", row=row)


def pack(images: Sequence[StoredImage]) -> bytes:
    """Return the payload of one row."""
    words = [len(images), *(word for each in images for word in (each.height, each.width, len(each.payload)))]
    return b"".join([np.array(words, "<i8").tobytes(), *(bytes(each.payload) for each in images)])


def unpack(payload: NDArray[np.uint8]) -> tuple[Int64, Int64]:
    """Return what a payload holds.

    Args:
        payload: shape [N], uint8: of one row.

    Returns:
        shape [count, 3]: height, width and bytes of each image; shape [count]: where each begins in the payload.
    """
    count = int(payload[:8].view("<i8")[0])
    facts = payload[8 : 8 * (1 + _WORDS * count)].view("<i8").reshape(count, _WORDS)
    starts = 8 * (1 + _WORDS * count) + np.cumsum(facts[:, 2]) - facts[:, 2]
    return facts, starts

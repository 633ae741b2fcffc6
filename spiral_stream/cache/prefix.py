"""What may be kept of an image column, and under which fingerprint.

A prefix is the deterministic, per-row part of a plan that touches one payload
column: the decoder and the profile. Its fingerprint covers exactly that; filter,
join, order and data never enter it (decision 11). A row that is not stored goes
through `keep` on the fly, so a cache changes only the speed.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.decoders.decoder import Decoder
from spiral_stream.decoders.image import JpegDecoder, codec_version, decode_jpeg, encode_jpeg, shrink
from spiral_stream.plan.canonical import encode_value
from spiral_stream.plan.fingerprint import digest
from spiral_stream.plan.profiles import Jpeg, Profile, Raw

Pixels = NDArray[np.uint8]  # [H, W, 3]
Bytes = bytes | memoryview


@final
@dataclass(frozen=True, slots=True)
class Kept:
    """What a cache stores for one row."""

    payload: Bytes
    height: int
    width: int


@final
@dataclass(frozen=True, slots=True)
class Prefix:
    """One payload column of one relation, read by one decoder, kept in one form."""

    relation: str
    column: str
    decoder: Decoder
    profile: Profile

    def facts(self) -> dict[str, object]:
        """What the fingerprint covers; written beside the cache for people."""
        facts: dict[str, object] = {
            "relation": self.relation,
            "column": self.column,
            "profile": encode_value(self.profile),
        }
        if isinstance(self.profile, Raw | Jpeg):
            facts["decoder"] = [self.decoder.NAME, self.decoder.VERSION]
        if self.profile.lossy:
            facts["encoder"] = codec_version()
        return facts

    @property
    def fingerprint(self) -> str:
        return digest(self.facts())

    def keep(self, data: Bytes) -> Kept:
        """What to store for one row's encoded bytes.

        Raises:
            DataError: the bytes cannot be decoded.
        """
        if isinstance(self.profile, Raw):
            pixels = self._shrunk(data)
            return Kept(pixels.reshape(-1).data, *pixels.shape[:2])
        if isinstance(self.profile, Jpeg):
            pixels = self._shrunk(data)
            return Kept(encode_jpeg(pixels, self.profile.quality), *pixels.shape[:2])
        return Kept(data, *self.decoder.size(data))

    def read(self, kept: Kept) -> Pixels:
        """The pixels of a kept row; of raw pixels a view, not a copy.

        Raises:
            DataError: the bytes cannot be decoded.
        """
        if isinstance(self.profile, Raw):
            return np.frombuffer(kept.payload, dtype=np.uint8).reshape(kept.height, kept.width, 3)
        decode = decode_jpeg if isinstance(self.profile, Jpeg) else self.decoder.decode
        return decode(kept.payload)

    @property
    def keeps_pixels(self) -> bool:
        """Whether what is kept is packed RGB pixels."""
        return isinstance(self.profile, Raw)

    @property
    def keeps_jpeg(self) -> bool:
        """Whether what is kept is a JPEG, of which a crop can be decoded alone."""
        return isinstance(self.profile, Jpeg) or (
            not isinstance(self.profile, Raw) and isinstance(self.decoder, JpegDecoder)
        )

    def _shrunk(self, data: Bytes) -> Pixels:
        pixels = self.decoder.decode(data)
        side = getattr(self.profile, "shorter_side", None)
        return pixels if side is None else shrink(pixels, side)

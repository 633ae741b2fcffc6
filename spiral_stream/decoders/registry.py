"""The decoders by name: what ``decode=`` may say."""

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

from spiral_stream.decoders.decoder import Decoder
from spiral_stream.decoders.image.image import JpegDecoder, PillowDecoder
from spiral_stream.decoders.sound.sound_selection import SoundSelection
from spiral_stream.errors import PlanError

DECODERS: Final[Mapping[str, Decoder]] = MappingProxyType(
    {JpegDecoder.NAME: JpegDecoder(), PillowDecoder.NAME: PillowDecoder()}
)
CLIPS: Final[Mapping[str, int]] = MappingProxyType({"h264": 1})  # video codecs, and the version of their frames
SOUNDS: Final[Mapping[str, int]] = MappingProxyType({"audio": SoundSelection.VERSION})  # likewise, of sound


def decoder(name: str) -> Decoder:
    """Return the image decoder of this name, with its default limits.

    Raises:
        PlanError: no such decoder.
    """
    known = [*DECODERS, *CLIPS, *SOUNDS]
    if name not in DECODERS:
        near = get_close_matches(name, known, 1)
        way_out = f"Did you mean {near[0]!r}?" if near else "Give one of them"
        msg = f"decode: {name!r} is unknown; known are {', '.join(known)}. {way_out}"
        raise PlanError(msg)
    return DECODERS[name]


def decode_version(name: str) -> int:
    """Return the version of the pixels that ``decode=name`` gives; fingerprints hold it.

    Raises:
        PlanError: no such decoder.
    """
    others = {**CLIPS, **SOUNDS}
    return others[name] if name in others else decoder(name).VERSION

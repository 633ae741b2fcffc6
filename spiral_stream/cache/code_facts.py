"""What decides the bytes of a cache as far as code and settings do: known from a plan's words, without any data.

The kinds build their fingerprints on it. `spiral.cache_fingerprint` uses it to answer before a relation is registered,
so this room opens no file and imports neither a video decoder nor a tokenizer.
"""

from dataclasses import astuple
from typing import Final

from spiral_stream.decoders.frame_selection import FrameSelection
from spiral_stream.decoders.image import codec_version
from spiral_stream.decoders.limits import CLIPS, SampleLimits
from spiral_stream.decoders.registry import decode_version
from spiral_stream.plan.canonical import encode_value
from spiral_stream.plan.profiles import Frames
from spiral_stream.transforms.text import Tokenize

CLIPS_VERSION: Final = 1  # of the form in which clips are stored
TOKENS_VERSION: Final = 1  # of the form in which tokens are stored


def clip_facts(
    relation: str, column: str, selection: FrameSelection, profile: Frames, limits: SampleLimits, *, timed: bool
) -> dict[str, object]:
    """Return what the fingerprint of a clip cache covers."""
    facts: dict[str, object] = {
        "kind": ["clips", CLIPS_VERSION],
        "relation": relation,
        "column": column,
        "timed": timed,
        "profile": encode_value(profile),
        "decoder": ["h264", decode_version("h264")],
        "selection": [FrameSelection.VERSION, *_chosen(selection)],
    }
    if profile.lossy:
        facts["encoder"] = codec_version()
    if limits != CLIPS:  # they decide which rows are refused
        facts["limits"] = astuple(limits)
    return facts


def token_code_facts(relation: str, column: str, tokenize: Tokenize) -> dict[str, object]:
    """Return what decides a token cache, with the tokenizer's name in place of its content, which is data."""
    return {
        "kind": ["tokens", TOKENS_VERSION],
        "relation": relation,
        "column": column,
        "transform": encode_value(tokenize),
    }


def _chosen(selection: FrameSelection) -> list[object]:
    """The frames that are stored of a segment. A random start is drawn when the cache is read: all are stored."""
    return [selection.sequence_length, selection.stride, selection.short] if selection.deterministic else ["all"]

"""What makes a cache stale: the facts that the fingerprint of each kind covers.

If a fact changes, the fingerprint does, and another fingerprint is another cache. So no cache is ever wrong; one that no
plan names any more is only not used. Data is no such fact: shards whose content changed are built anew (`materialize`).

The facts are known from a plan's words. `spiral.profiles.cache_fingerprint` uses them before a relation is registered, so
this room opens no file and imports neither a video decoder nor a tokenizer.
"""

from dataclasses import astuple
from typing import Final

from spiral_stream.decoders.decoder import Decoder
from spiral_stream.decoders.image.image import codec_version
from spiral_stream.decoders.image.oriented import Oriented, inner_of
from spiral_stream.decoders.limits import CLIPS, IMAGES, SampleLimits
from spiral_stream.decoders.registry import decode_version
from spiral_stream.decoders.video.frame_selection import FrameSelection
from spiral_stream.decoders.video.video_index import VERSION
from spiral_stream.plan.fields.profiles import Frames, Jpeg, Profile, Raw
from spiral_stream.plan.saving.canonical import encode_value
from spiral_stream.transforms.text.tokenize import Tokenize

CLIPS_VERSION: Final = 1  # of the form in which clips are stored
LISTS_VERSION: Final = 1  # of the form in which lists of images are stored
TOKENS_VERSION: Final = 1  # of the form in which tokens are stored


def image_facts(
    relation: str, column: str, decoder: Decoder, profile: Profile, *, lists: bool = False
) -> dict[str, object]:
    """Return what the fingerprint of an image cache covers; ``lists``: of one with several images per row."""
    facts: dict[str, object] = {
        "relation": relation,
        "column": column,
        "profile": encode_value(profile),
    }
    if isinstance(profile, Raw | Jpeg):
        facts["decoder"] = [decoder.kind, inner_of(decoder).VERSION]
    if isinstance(decoder, Oriented):  # height and width are stored of the turned image
        facts["oriented"] = decoder.VERSION
    if profile.lossy:
        facts["encoder"] = codec_version()
    if decoder.limits != IMAGES:  # they decide which rows are refused
        facts["limits"] = astuple(decoder.limits)
    return {**facts, "lists": LISTS_VERSION} if lists else facts


def index_facts(relation: str, column: str, columns: int, *, timed: bool) -> dict[str, object]:
    """Return what the fingerprint of a video index covers; ``columns`` are stored next to the payload."""
    facts: dict[str, object] = {
        "kind": ["video index", VERSION, columns],
        "relation": relation,
        "column": column,
    }
    return {**facts, "timed": True} if timed else facts


def token_facts(relation: str, column: str, encoder: str, item_bytes: int) -> dict[str, object]:
    """Return what the fingerprint of a token cache covers; ``encoder`` is the digest of tokenizer and options."""
    return {
        "kind": ["tokens", TOKENS_VERSION],
        "relation": relation,
        "column": column,
        "encoder": encoder,
        "item_bytes": item_bytes,
    }


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

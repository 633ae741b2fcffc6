"""Every kind of cache has the same shape: run sizes, a form in words, and a fingerprint of what decides its payload."""

from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spiral_stream import Frames, Raw
from spiral_stream.cache.kinds.chats import ChatKind
from spiral_stream.cache.kinds.clips import ClipKind
from spiral_stream.cache.kinds.image_lists import ImageListKind
from spiral_stream.cache.kinds.images import ImageKind
from spiral_stream.cache.kinds.kind import Kind
from spiral_stream.cache.kinds.tokens import TokenKind
from spiral_stream.cache.kinds.video_index import IndexKind
from spiral_stream.decoders.registry import DECODERS
from spiral_stream.decoders.video.frame_selection import FrameSelection
from tests.fixtures.kinds import ByteEncoder


class ChatBytes:
    """What a kind asks of the encoder of conversations."""

    masked, digest, dtype = True, "chat-bytes", np.dtype(np.uint16)

    def encode(self, rows: pa.Table) -> Any:
        raise AssertionError(rows)


KINDS: dict[str, Kind] = {
    "images": ImageKind("r", "c", DECODERS["jpeg"], Raw(shorter_side=8)),
    "lists of images": ImageListKind("r", "c", DECODERS["jpeg"], Raw(shorter_side=8)),
    "tokens": TokenKind("r", "c", ByteEncoder()),
    "chats": ChatKind("r", "c", ("p",), ChatBytes()),
    "clips": ClipKind("r", "c", FrameSelection(4), Frames(shorter_side=8), timed=False),
    "video index": IndexKind("r", "c"),
}
FORMS = {
    "images": "Raw(shorter_side=8)",
    "lists of images": "lists of Raw(shorter_side=8)",
    "tokens": "uint16",
    "chats": "uint16 and loss mask",
    "clips": str(Frames(shorter_side=8)),
    "video index": "video index",
}


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_a_frozen_value_of_one_column(name: str) -> None:
    kind = KINDS[name]

    assert kind.columns[0] == kind.column == "c"
    assert kind.form == FORMS[name]
    assert kind.RUN_BYTES > 0 < kind.FIRST_ROWS
    assert kind.RUN_ROWS > 0
    with pytest.raises(FrozenInstanceError):
        kind.column = "d"


@pytest.mark.parametrize("name", KINDS)
def test_the_fingerprint_covers_relation_and_column(name: str) -> None:
    kind = KINDS[name]
    others = [replace(kind, relation="s"), replace(kind, column="d")]

    assert replace(kind).fingerprint == kind.fingerprint
    assert len({kind.fingerprint, *(each.fingerprint for each in others)}) == 3


def test_kinds_of_one_column_have_fingerprints_of_their_own() -> None:
    assert len({kind.fingerprint for kind in KINDS.values()}) == len(KINDS)


def test_fingerprints_are_those_of_caches_that_were_built_before() -> None:
    """A cache on disk is found by these: a change of one is a change of the payload's form."""
    found = {name: KINDS[name].fingerprint for name in ("tokens", "video index")}

    assert found == {"tokens": "e76b3bdabadd574d112f0326f717724a", "video index": "a4aed115a3a351315c4072d7639b52a1"}


def test_every_subclass_of_kind_is_known_here() -> None:
    known = {type(kind).__name__ for kind in KINDS.values()}

    assert known == {kind.__name__ for kind in Kind.__subclasses__()}  # a slotted dataclass is two classes of one name

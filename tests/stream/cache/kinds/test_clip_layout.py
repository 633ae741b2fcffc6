"""How a kept clip lies in memory: frames come back as they went in, and a damaged payload is refused, never followed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream.cache.kinds.clip_layout import NARROW, Clips, bytes_at, pack
from spiral_stream.cache.kinds.kind import Rows
from spiral_stream.decoders.video.frame_selection import ClipSegment, FrameSelection
from spiral_stream.errors import CacheError, DataError

PICTURES = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=12)
MS = 1_000


def clip(payload: bytes, pictures: int, *, short: bool = False) -> Clips:
    """One clip, as a cache gives it."""
    clips = Clips(1)
    beside = dict(zip(NARROW, np.array([[1], [1], [pictures], [short]], dtype=np.int32), strict=True))
    clips.put_rows(np.array([0]), Rows(payload, np.array([len(payload)]), {}, beside, 0))
    return clips


def read(clips: Clips, selection: FrameSelection, draw: float = 0.0, at: int = 0) -> tuple[list[bytes], bool]:
    """The frames of a clip, and whether its segment is short."""
    picked = clips.pick(selection, np.full(len(clips.sizes), draw))
    frames = zip(picked.addresses[at].tolist(), picked.lengths[at].tolist(), strict=True)
    return [bytes(bytes_at(address, length)) for address, length in frames], bool(picked.short[at])


@given(pictures=PICTURES, places=st.lists(st.integers(0, 11), min_size=1, max_size=20), short=st.booleans())
def test_frames_chosen_before_are_the_pictures_they_were(pictures: list[bytes], places: list[int], short: bool) -> None:
    table = np.array(places) % len(pictures)
    payload = b"".join(pack(pictures, ClipSegment(3, 9, 1, 2), table, chosen=True))

    assert len(payload) % 8 == 0
    assert read(clip(payload, len(pictures), short=short), FrameSelection(len(places))) == (
        [pictures[each] for each in table],
        short,
    )


@given(
    pictures=PICTURES,
    length=st.integers(1, 6),
    stride=st.integers(1, 3),
    draw=st.floats(0, 1, exclude_max=True),
    short=st.sampled_from(["pad", "loop"]),
    first=st.integers(0, 5),
)
def test_a_random_start_chooses_of_the_kept_frames_as_of_the_file(
    pictures: list[bytes], length: int, stride: int, draw: float, short: str, first: int
) -> None:
    selection = FrameSelection(length, stride=stride, random_start=True, short=short)  # type: ignore[arg-type]  # drawn from both
    times = np.arange(30) * 40 * MS
    segment = ClipSegment(first, first + len(pictures), int(times[first]), int(times[first + len(pictures)]))
    payload = b"".join(pack(pictures, segment, times[first : segment.stop], chosen=False))
    of_file, is_short = selection.choose(times, segment, draw)

    assert read(clip(payload, len(pictures)), selection, draw) == ([pictures[at - first] for at in of_file], is_short)


def test_clips_of_several_owners_stay_apart() -> None:
    payloads = [
        b"".join(pack([bytes([k]) * (k + 1)], ClipSegment(0, 1, 0, 1), np.array([0]), chosen=True)) for k in range(3)
    ]
    clips = Clips(3)
    beside = {name: np.ones(2, dtype=np.int32) for name in NARROW}
    clips.put_rows(
        np.array([2, 0]),
        Rows(payloads[2] + payloads[0], np.array([*map(len, (payloads[2], payloads[0]))]), {}, beside, 0),
    )
    held = np.frombuffer(payloads[1], dtype=np.uint8)
    one = {name: np.ones(1, dtype=np.int32) for name in NARROW}
    clips.put(np.array([1]), np.array([held.ctypes.data], dtype=np.uint64), np.array([len(held)]), one, held)

    assert [read(clips, FrameSelection(1), at=at)[0] for at in range(3)] == [[bytes([k]) * (k + 1)] for k in range(3)]


@settings(max_examples=200)
@given(data=st.data(), chosen=st.booleans())
def test_a_damaged_payload_is_refused_or_stays_inside_itself(data: st.DataObject, chosen: bool) -> None:
    pictures = [b"abc", b"defgh", b"i"]
    table = np.array([0, 2]) if chosen else np.arange(3) * 40 * MS
    payload = bytearray(b"".join(pack(pictures, ClipSegment(0, 3, 0, 120 * MS), table, chosen=chosen)))
    for _ in range(data.draw(st.integers(0, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    clips = clip(cut, data.draw(st.integers(-1, 5)))
    try:
        picked = clips.pick(FrameSelection(2, stride=1, random_start=not chosen), np.zeros(1))
    except CacheError as error:
        assert "Drop the cache folder and build it again" in str(error)  # noqa: PT017  either outcome is right
        return

    first, last = int(clips.addresses[0]), int(clips.addresses[0]) + len(cut)
    assert ((picked.addresses >= first) & (picked.lengths > 0)).all()
    assert (picked.addresses + picked.lengths.astype(np.uint64) <= last).all()


def test_a_clip_kept_for_another_number_of_frames_is_refused() -> None:
    payload = b"".join(pack([b"a"], ClipSegment(0, 1, 0, 1), np.array([0, 0]), chosen=True))

    with pytest.raises(
        CacheError, match=r"2 frames were chosen of it, not 3\). Drop the cache folder and build it again"
    ):
        clip(payload, 1).pick(FrameSelection(3), np.zeros(1))


def test_too_short_a_segment_is_dropped_by_name() -> None:
    payload = b"".join(pack([b"a"], ClipSegment(0, 1, 0, 40 * MS), np.array([0]), chosen=False))
    clips = Clips(2)
    beside = {name: np.ones(2, dtype=np.int32) for name in NARROW}
    clips.put_rows(np.arange(2), Rows(payload * 2, np.full(2, len(payload)), {}, beside, 0))

    with pytest.raises(DataError, match="filter on frame_count") as raised:
        clips.pick(FrameSelection(2, stride=1, random_start=True, short="drop"), np.zeros(2))
    assert raised.value.row == 0

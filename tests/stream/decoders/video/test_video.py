import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.decoders.video import contexts
from spiral_stream.decoders.video.frame_selection import ClipSegment
from spiral_stream.decoders.video.probe import probe
from spiral_stream.decoders.video.video import decode, feed_plan
from spiral_stream.decoders.video.video_index import VideoIndex
from spiral_stream.errors import DataError, SourceError
from tests.fixtures.examples import few
from tests.fixtures.videos import Made, cut, planes_of, reference_frames, write_video

SLICES = (("x264-params", "keyint=12:slices=4:threads=1:bframes=2:b-adapt=0:scenecut=0"),)
KINDS = {
    "constant rate": ("mp4", Made(frames=40)),
    "variable rate": ("mp4", Made(frames=40, variable=True)),
    "long group": ("mp4", Made(frames=60, gop=250, b_frames=3)),
    "no B frames": ("mp4", Made(frames=30, b_frames=0)),
    "B frames that are referred to": ("mp4", Made(frames=40, b_frames=7, options=(("preset", "slow"), ("refs", "4")))),
    "open groups": ("mp4", Made(frames=50, open_gop=True, b_frames=3)),
    "gradual refresh": ("mp4", Made(frames=40, options=(("x264-params", "keyint=12:intra-refresh=1:threads=1"),))),
    "slices, no CABAC": ("mp4", Made(frames=30, options=(*SLICES, ("coder", "vlc")))),
    "interlaced": ("mp4", Made(frames=30, options=(("x264-params", "keyint=12:interlaced=1:threads=1"),))),
    "turned": ("mov", Made(frames=24, rotation=90)),
    "4:4:4": ("mp4", Made(frames=24, pix_fmt="yuv444p")),
    "with sound": ("mp4", Made(frames=40, audio="aac")),
    "Matroska": ("mkv", Made(frames=40)),
    "transport stream": ("ts", Made(frames=40)),
}
SMALL = ("constant rate", "open groups", "slices, no CABAC", "transport stream")


class File:
    """A video file in memory, its index, and every frame as a full decode of the container gives it."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        self.index = probe(self.read, len(self.data), path.name, stamp=0)
        self.times, frames = reference_frames(path)
        self.frames = [b"".join(plane.tobytes() for plane in frame) for frame in frames]
        self.reads: list[tuple[int, int]] = []

    def read(self, offset: int, length: int) -> memoryview:
        return memoryview(self.data)[offset : offset + length]

    def decode(self, wanted: list[int], data: bytes | None = None, index: VideoIndex | None = None) -> list[bytes]:
        held = memoryview(self.data if data is None else data)
        frames = decode(index or self.index, lambda at, n: held[at : at + n], np.array(wanted, np.int64), len(held))
        return [b"".join(plane.tobytes() for plane in planes_of(frame)) for frame in frames]

    def outcome(self, wanted: list[int], data: bytes) -> list[bytes] | str:
        try:
            return self.decode(wanted, data)
        except DataError as error:
            return str(error)


@cache
def folder() -> Path:
    return Path(mkdtemp())


@cache
def file(kind: str) -> File:
    suffix, made = KINDS[kind]
    return File(write_video(folder() / f"{len(list(folder().iterdir()))}.{suffix}", made))


def forget() -> None:
    """Let the next clip have a new context."""
    contexts.idle.contexts.clear()


CLIPS = st.lists(
    st.tuples(st.sampled_from(sorted(KINDS)), st.lists(st.integers(0, 10**6), min_size=1, max_size=9)),
    min_size=1,
    max_size=6,
)


@few(30, 80)
@given(clips=CLIPS)
def test_any_frames_of_any_clips_in_any_order_are_those_of_a_full_decode(clips):
    for kind, drawn in clips:
        it = file(kind)
        wanted = [number % len(it.frames) for number in drawn]

        assert it.decode(wanted) == [it.frames[frame] for frame in wanted]


@pytest.mark.parametrize("kind", KINDS)
def test_all_frames_are_those_of_a_full_decode(kind):
    it = file(kind)

    assert it.index.times_F.tolist() == it.times.tolist()
    assert it.decode(list(range(len(it.frames)))) == it.frames
    for frame in range(0, len(it.frames), 7):
        assert it.decode([frame]) == [it.frames[frame]]


@st.composite
def indexes(draw):
    """The numbers of a made-up file: keys, disposable packets, frames out of order, some packets not shown."""
    packets = draw(st.integers(1, 40))
    flags = st.lists(st.booleans(), min_size=packets, max_size=packets)
    keys, disposable = np.array(draw(flags)), np.array(draw(flags))
    keys[0] = True
    order = np.argsort(
        np.arange(packets) + np.array(draw(st.lists(st.floats(-3, 3), min_size=packets, max_size=packets)))
    )
    shown = order[: draw(st.integers(1, packets))] if draw(st.booleans()) else order
    return replace(
        file("constant rate").index,
        packets_F=shown.astype(np.int32),
        times_F=np.arange(len(shown)) * 40_000,
        keys_P=keys,
        disposable_P=disposable,
        offsets_P=np.arange(packets) * 100,
        sizes_P=np.full(packets, 100, np.int32),
    )


def fed_one_by_one(index, wanted):
    """What `feed_plan` says, packet by packet."""
    shown = {int(packet): frame for frame, packet in enumerate(index.packets_F)}
    spans = set()
    for frame in wanted:
        target = int(index.packets_F[frame])
        keys = [k for k in range(target + 1) if index.keys_P[k]]
        first = keys[-1]
        if shown.get(first, -1) > frame and len(keys) > 1:
            first = keys[-2]
        spans |= {(first, target)}
    goals = {target for _, target in spans} | {first for first, _ in spans}
    inside = sorted({packet for first, target in spans for packet in range(first, target + 1)})
    fed = [packet for packet in inside if packet in goals or not index.disposable_P[packet]]
    begins = [packet for packet in inside if packet - 1 not in inside]
    return fed, [fed.index(packet) for packet in begins]


@few(60, 200)
@given(index=indexes(), data=st.data())
def test_a_plan_feeds_each_run_from_its_key_packet_without_what_nothing_needs(index, data):
    frames = st.integers(0, len(index.packets_F) - 1)
    wanted = data.draw(st.lists(frames, min_size=1, max_size=8))

    feed = feed_plan(index, np.array(wanted))

    assert (feed.packets.tolist(), feed.starts.tolist()) == fed_one_by_one(index, wanted)
    assert feed.decoded == len(feed.packets)


def test_groups_between_wanted_frames_are_neither_read_nor_decoded(monkeypatch):
    it, fed, read = file("constant rate"), [], []
    borrow = contexts.borrow

    class Counting:
        def __init__(self, context):
            self.context = context

        def decode(self, packet):
            fed.extend([] if packet is None else [packet.pts])
            return self.context.decode(packet)

    monkeypatch.setattr(contexts, "borrow", lambda index, strict: Counting(borrow(index, strict)))
    monkeypatch.setattr(contexts, "give_back", lambda *_: None)
    monkeypatch.setattr("spiral_stream.decoders.video.packets.GAP", 0)
    held = memoryview(it.data)

    def counted(at, n):
        read.append(n)
        return held[at : at + n]

    decode(it.index, counted, np.array([2, 37]), len(held))

    keys = np.flatnonzero(it.index.keys_P).tolist()
    assert keys == [0, 12, 24, 36]
    expected = feed_plan(it.index, np.array([2, 37])).packets.tolist()
    assert fed == expected
    assert {packet for packet in fed if 12 <= packet < 36} == set()
    assert len(fed) == 7
    assert sum(read) == it.index.sizes_P[expected].sum()


def test_half_of_the_packets_of_x264_are_left_out():
    it = file("long group")

    feed = feed_plan(it.index, np.array([59]))

    assert feed.decoded < 0.6 * 60


def test_frames_that_the_file_hides_are_decoded_and_not_shown(tmp_path):
    source = write_video(tmp_path / "a.mp4", Made(frames=36))
    it = File(cut(source, tmp_path / "b.mp4", first=12, frames=24, hidden=5))

    assert len(it.frames) == 19
    assert it.decode([0, 18, 7]) == [it.frames[k] for k in (0, 18, 7)]


@pytest.mark.parametrize("kind", ["constant rate", "open groups", "long group"])
def test_the_part_of_an_index_that_a_segment_needs_gives_the_same_frames(kind):
    it = file(kind)
    for first in range(0, 33, 4):
        part = it.index.within(ClipSegment(first, first + 7, 0, 0))

        assert it.decode(list(range(7)), index=part) == it.frames[first : first + 7]


def test_order_and_repeats_are_the_callers():
    it = file("constant rate")
    held = memoryview(it.data)

    frames = decode(it.index, lambda at, n: held[at : at + n], np.array([9, 3, 9]), len(held))

    assert frames[0] is frames[2]
    assert [frame.pts for frame in frames] == it.index.packets_F[[9, 3, 9]].tolist()
    assert decode(it.index, it.read, np.array([], np.int64), len(held)) == []


def test_threads_decode_at_once():
    files = [file(kind) for kind in SMALL]

    def work(k):
        it = files[k % len(files)]
        wanted = [(k * 7 + j * 5) % len(it.frames) for j in range(4)]
        return it.decode(wanted) == [it.frames[frame] for frame in wanted]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(60)))


# ---- reuse


def test_a_context_serves_the_next_clip_of_the_same_kind():
    forget()
    it = file("constant rate")
    it.decode([5])
    (context,) = contexts.idle.contexts.values()

    it.decode([30, 3])

    assert list(contexts.idle.contexts.values()) == [context]


@pytest.mark.parametrize("kind", ["transport stream", "4:4:4"])
def test_a_context_that_may_have_learned_something_is_dropped(kind):
    forget()
    file(kind).decode([5])

    assert not contexts.idle.contexts


def test_contexts_stay_with_their_thread_and_are_few():
    forget()
    for kind in KINDS:
        file(kind).decode([0])
    found = []
    thread = threading.Thread(target=lambda: found.append(len(contexts.idle.contexts)))
    thread.start()
    thread.join()

    assert found == [0]
    assert len(contexts.idle.contexts) <= 4


# ---- damage


@few(40, 120)
@given(kind=st.sampled_from(SMALL), data=st.data())
def test_damage_is_told_or_harmless_and_leaves_nothing_behind(kind, data):
    """Valid streams of other pixels exist, so pixels may differ; but they do not depend on what came before."""
    it = file(kind)
    packet = data.draw(st.integers(0, len(it.index.sizes_P) - 1))
    at, size = int(it.index.offsets_P[packet]), int(it.index.sizes_P[packet])
    bad = bytearray(it.data)
    for _ in range(data.draw(st.integers(1, 4))):
        bad[at + data.draw(st.integers(0, size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    wanted = data.draw(st.lists(st.integers(0, len(it.frames) - 1), min_size=1, max_size=6))
    untouched = packet not in feed_plan(it.index, np.array(wanted)).packets

    first = it.outcome(wanted, bytes(bad))
    forget()
    anew = it.outcome(wanted, bytes(bad))

    assert first == anew
    if untouched and it.index.direct:
        assert first == [it.frames[frame] for frame in wanted]
    assert it.decode(wanted) == [it.frames[frame] for frame in wanted]


def damaged(it: File, packet: int, change) -> bytes:
    at, size = int(it.index.offsets_P[packet]), int(it.index.sizes_P[packet])
    bad = bytearray(it.data)
    bad[at : at + size] = change(bytearray(bad[at : at + size]))
    assert len(bad) == len(it.data)
    return bytes(bad)


@pytest.mark.parametrize("kind", ["constant rate", "long group", "open groups", "slices, no CABAC"])
def test_an_emptied_packet_is_named_with_frame_and_time(kind):
    it = file(kind)
    packet = next(p for p in range(13, 40) if not it.index.disposable_P[p] and not it.index.keys_P[p])
    frame = it.index.packets_F.tolist().index(packet)
    bad = damaged(it, packet, lambda data: bytes(len(data)))
    needed = rf"video: frame {frame} \({it.index.times_F[frame] / 1e6:.3f} s\) cannot be decoded: .*on_error=\"skip\""

    with pytest.raises(DataError, match=needed):
        it.decode([frame], bad)
    later = next(f for f in range(frame + 1, 48) if packet in feed_plan(it.index, np.array([f])).packets)
    with pytest.raises(DataError, match=rf"frame {frame} \(.*, which frame {later} \(.* s\) may need, cannot"):
        it.decode([later], bad)
    assert it.decode([0], bad) == it.frames[:1]


def test_a_slice_that_is_missing_is_not_concealed():
    it = file("slices, no CABAC")
    packet = next(p for p in range(13, 24) if not it.index.disposable_P[p])
    frame = it.index.packets_F.tolist().index(packet)

    def hide_second_slice(data):
        at = 0
        for kind in (1, None):
            while kind and data[at + 4] & 31 != kind:
                at += 4 + int.from_bytes(data[at : at + 4], "big")
            at += (4 + int.from_bytes(data[at : at + 4], "big")) if kind else 0
        data[at + 4] = data[at + 4] & 0xE0 | 12  # filler
        return data

    with pytest.raises(DataError, match=rf"frame {frame} .* cannot be decoded: the decoder marks it as damaged"):
        it.decode([frame], damaged(it, packet, hide_second_slice))


def test_damage_in_a_packet_that_is_not_needed_is_not_seen():
    it = file("constant rate")
    packet = next(p for p in range(1, 12) if it.index.disposable_P[p])
    bad = damaged(it, packet, lambda data: bytes(len(data)))

    assert it.decode([11, 20], bad) == [it.frames[11], it.frames[20]]


def test_a_frame_of_another_size_is_refused():
    it = file("constant rate")

    with pytest.raises(DataError, match=r"frame 4 .*: it is 96 x 64 where 96 x 48 is right"):
        it.decode([4], index=replace(it.index, height=48))


@pytest.mark.parametrize("kind", ["constant rate", "transport stream"])
def test_a_failure_to_read_is_the_readers_own(kind):
    it = file(kind)
    calls = iter(range(10**6))

    def broken(at, n):
        if next(calls) >= (kind == "transport stream"):
            raise SourceError("a.mp4 ends early")
        return it.read(at, n)

    with pytest.raises(SourceError, match=r"a.mp4 ends early"):
        decode(it.index, broken, np.array([5]), len(it.data))


def test_a_file_that_no_longer_fits_its_index_is_refused():
    it = file("transport stream")
    half = it.data[: len(it.data) // 2 // 188 * 188]

    with pytest.raises(
        DataError, match=r"the demuxer does not find packets .* as the index says. Index the file again"
    ):
        it.decode([39], half)

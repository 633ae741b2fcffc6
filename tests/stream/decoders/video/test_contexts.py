"""A decoder that is used again knows only the parameter sets of its file; what may leave traces is not kept."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import av
import numpy as np
import pytest

from spiral_stream.decoders.video import contexts
from spiral_stream.decoders.video.contexts import begins_anew, borrow, give_back
from spiral_stream.decoders.video.probe import probe
from spiral_stream.decoders.video.video_index import VideoIndex
from tests.fixtures.videos import Made, planes_of, reference_frames, write_video

KINDS: dict[str, tuple[str, Made]] = {
    "plain": ("mp4", Made(frames=12, gop=4)),
    "other": ("mp4", Made(frames=12, gop=12, first=100)),
    "transport stream": ("ts", Made(frames=12, gop=4)),
    "4:4:4": ("mp4", Made(frames=12, gop=4, pix_fmt="yuv444p")),
}
Opened = tuple[VideoIndex, list[bytes], Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Opened]:
    """A file of a kind: its index and its packets in decode order, as they lie in the file."""
    folder, done = tmp_path_factory.mktemp("contexts"), {}

    def make(kind: str) -> Opened:
        if kind not in done:
            suffix, how = KINDS[kind]
            path = write_video(folder / f"{kind[:3].replace(':', '')}.{suffix}", how)
            data = path.read_bytes()
            index = probe(lambda at, n: memoryview(data[at : at + n]), len(data), kind, 1)
            with av.open(str(path)) as container:
                packets = [bytes(packet) for packet in container.demux(video=0) if packet.size]
            done[kind] = index, packets, path
        return done[kind]

    return make


@pytest.fixture(autouse=True)
def nothing_idle() -> Iterator[None]:
    contexts.idle.contexts.clear()
    yield
    contexts.idle.contexts.clear()


def decoded(context: Any, packets: list[bytes]) -> list[Any]:
    frames = [frame for packet in packets for frame in context.decode(av.Packet(packet))]
    return [planes_of(frame) for frame in [*frames, *context.decode(None)]]


def test_a_context_that_has_seen_another_clip_gives_the_bits_of_a_full_decode(made: Callable[[str], Opened]) -> None:
    index, packets, path = made("plain")
    first = borrow(index, True)
    decoded(first, packets[4:8])
    give_back(index, True, first, packets[4:8])
    again = borrow(index, True)

    assert again is first
    _, expected = reference_frames(path)
    for one, other in zip(decoded(again, packets), expected, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("kind", "kept"), [("plain", True), ("transport stream", False), ("4:4:4", False), ("parameter sets", False)]
)
def test_a_context_is_kept_unless_what_it_saw_may_leave_traces(
    kind: str, kept: bool, made: Callable[[str], Opened]
) -> None:
    index, packets, _ = made("plain" if kind == "parameter sets" else kind)
    if kind == "parameter sets":
        packets = [b"\0\0\0\2\x67\0" + packets[0]]
    context = borrow(index, False)
    give_back(index, False, context, packets)

    assert (borrow(index, False) is context) == kept


def test_a_context_is_lent_once_to_its_own_thread_for_its_own_parameter_sets(made: Callable[[str], Opened]) -> None:
    index, packets, _ = made("plain")
    context = borrow(index, True)
    give_back(index, True, context, packets)
    elsewhere: list[object] = []
    thread = Thread(target=lambda: elsewhere.append(borrow(index, True)))
    thread.start()
    thread.join()
    others = [borrow(index, False), borrow(replace(index, height=48), True), *elsewhere]

    assert all(other is not context for other in others)
    assert borrow(index, True) is context
    assert borrow(index, True) is not context


def test_the_context_that_was_idle_longest_goes_first(made: Callable[[str], Opened]) -> None:
    index, packets, _ = made("plain")
    sizes = [replace(index, height=16 * (n + 1)) for n in range(contexts.MOST_IDLE + 1)]
    for each in sizes:
        give_back(each, True, borrow(each, True), packets)

    assert [held[2] for held in contexts.idle.contexts] == [each.height for each in sizes[1:]]


def test_only_a_picture_that_refers_to_nothing_before_it_begins_anew(made: Callable[[str], Opened]) -> None:
    for kind, gop in (("plain", 4), ("other", 12), ("transport stream", 4)):
        index, packets, _ = made(kind)
        assert [at for at, packet in enumerate(packets) if begins_anew(index, packet)] == list(range(0, 12, gop))

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream.decoders.video import packets as room
from spiral_stream.decoders.video.packets import demux_packets, read_packets
from spiral_stream.decoders.video.probe import probe
from spiral_stream.decoders.video.video_index import VideoIndex
from spiral_stream.errors import DataError
from tests.fixtures.videos import Made, write_video


class Counted:
    """A file in memory that notes what is read of it."""

    def __init__(self, path: Path) -> None:
        self.data, self.reads = path.read_bytes(), []
        self.index: VideoIndex = probe(self.read, len(self.data), path.name, stamp=0)
        with av.open(str(path)) as container:
            self.packets = [bytes(packet) for packet in container.demux(video=0) if packet.size]
        self.reads.clear()

    def read(self, offset: int, length: int) -> memoryview:
        assert 0 <= offset <= offset + length <= len(self.data)
        self.reads.append((offset, length))
        return memoryview(self.data)[offset : offset + length]


@cache
def direct() -> Counted:
    return Counted(write_video(Path(mkdtemp()) / "a.mp4", Made(frames=40, audio="aac")))


@cache
def stream() -> Counted:
    return Counted(
        write_video(
            Path(mkdtemp()) / "a.ts", Made(frames=450, open_gop=True, b_frames=3, audio="aac", options=(("crf", "2"),))
        )
    )


@given(wanted=st.sets(st.integers(0, 39), min_size=1), gap=st.sampled_from([0, 10, 500, 1 << 16]))
def test_packets_are_read_whole_and_near_ones_together(wanted, gap):
    it, chosen = direct(), np.array(sorted(wanted))
    it.reads.clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "GAP", gap)
        got = read_packets(it.index, it.read, chosen)

    assert [bytes(packet) for packet in got] == [it.packets[place] for place in chosen]
    ends = [offset + length for offset, length in it.reads]
    assert all(offset - end > gap for (offset, _), end in zip(it.reads[1:], ends, strict=False))


@settings(max_examples=10)
@given(wanted=st.sets(st.integers(0, 449), min_size=1, max_size=20))
def test_a_demuxer_finds_the_same_packets(wanted):
    it, chosen = stream(), np.array(sorted(wanted))

    got = demux_packets(it.index, it.read, len(it.data), chosen)

    assert [bytes(packet) for packet in got] == [it.packets[place] for place in chosen]


def test_a_demuxer_is_sent_near_the_packets_and_stops_after_them(monkeypatch):
    monkeypatch.setattr(room, "BLOCK", 1 << 12)
    monkeypatch.setattr(room, "PROBE", 1 << 14)
    it = stream()
    it.reads.clear()
    demux_packets(it.index, it.read, len(it.data), np.array([400, 404]))
    sought = sum(length for _, length in it.reads)

    monkeypatch.setattr(room, "NEAR", 10**6)
    it.reads.clear()
    demux_packets(it.index, it.read, len(it.data), np.array([400, 404]))

    assert sought < 0.5 * sum(length for _, length in it.reads)


def test_where_offsets_do_not_tell_the_place_packets_are_counted_from_the_start():
    it = stream()
    index = replace(it.index, offsets_P=np.full_like(it.index.offsets_P, -1))

    got = demux_packets(index, it.read, len(it.data), np.array([300, 401]))

    assert [bytes(packet) for packet in got] == [it.packets[300], it.packets[401]]


def test_an_index_of_other_packets_is_refused_with_the_way_out():
    it = stream()
    index = replace(it.index, sizes_P=it.index.sizes_P + 1)

    with pytest.raises(DataError, match=r"does not find packets 3 to 400 as the index says. Index the file again"):
        demux_packets(index, it.read, len(it.data), np.array([3, 400]))

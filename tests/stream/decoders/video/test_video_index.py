import resource
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.decoders.video.frame_selection import ClipSegment
from spiral_stream.decoders.video.probe import probe
from spiral_stream.decoders.video.video import feed_plan
from spiral_stream.decoders.video.video_index import VideoIndex
from spiral_stream.errors import CacheError, DataError, SourceError
from spiral_stream.sources.references.ranged import Located, locate
from tests.fixtures.open_files import open_below
from tests.fixtures.videos import (
    Made,
    corrupt,
    cut,
    planes_of,
    reference_frames,
    truncate,
    write_sound,
    write_tar,
    write_video,
)

# 36 frames, a key frame every 12, some of them out of order
PLAIN = Made(frames=36, width=64, height=48)
KINDS: dict[str, tuple[str, Made]] = {
    "plain": ("a.mp4", PLAIN),
    "without B-frames": ("b.mp4", replace(PLAIN, b_frames=0)),
    "B-frames that others refer to": ("c.mp4", replace(PLAIN, b_frames=4, options=(("b-pyramid", "normal"),))),
    "open groups": ("d.mp4", replace(PLAIN, open_gop=True, b_frames=3)),
    "intra refresh": ("e.mp4", replace(PLAIN, b_frames=0, options=(("intra-refresh", "1"),))),
    "variable frame rate": ("f.mp4", replace(PLAIN, variable=True)),
    "slices": ("g.mp4", replace(PLAIN, options=(("slices", "4"),))),
    "interlaced": (
        "q.mp4",
        replace(PLAIN, height=64, options=(("flags", "+ildct+ilme"), ("x264-params", "tff=1:keyint=12"))),
    ),
    "many references": (
        "r.mkv",
        replace(PLAIN, options=(("x264-params", "ref=8:bframes=7:b-adapt=0:b-pyramid=strict:keyint=15:open-gop=1"),)),
    ),
    "late and uneven": (
        "s.mp4",
        replace(PLAIN, frames=6, ticks=(600_000, 602_500, 602_501, 609_000, 609_100, 700_000)),
    ),
    "one group": ("h.mov", replace(PLAIN, gop=200)),
    "29.97": ("i.mp4", replace(PLAIN, fps=Fraction(30_000, 1_001))),
    "rotated": ("j.mp4", replace(PLAIN, rotation=90)),
    "fragmented": ("k.mp4", replace(PLAIN, mux=(("movflags", "frag_keyframe+empty_moov"),))),
    "with sound": ("l.mp4", replace(PLAIN, audio="aac")),
    "Matroska": ("m.mkv", replace(PLAIN, audio="pcm_s16le", open_gop=True)),
    "MPEG-TS": ("n.ts", PLAIN),
    "FLV": ("o.flv", PLAIN),
    "4:4:4": ("p.mp4", replace(PLAIN, pix_fmt="yuv444p")),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of one kind, written once."""
    folder = tmp_path_factory.mktemp("videos")

    @cache
    def file(kind: str) -> Path:
        name, how = KINDS[kind]
        return write_video(folder / name, how)

    return file


@pytest.fixture(scope="module")
def plain(made: Callable[[str], Path]) -> Path:
    return made("plain")


def located(path: Path) -> Located:
    return locate(pa.array([str(path)]), "")[0]


def index_of(path: Path) -> VideoIndex:
    place = located(path)
    return probe(place.read, place.size, place.name, place.stamp())


def decoded_alone(index: VideoIndex, path: Path, frame: int) -> list[np.ndarray]:
    """One frame by the rule of the room: from its key packet on, the disposable ones left out, without a container."""
    data = path.read_bytes()
    target = int(index.packets_F[frame])
    shown = dict(zip(index.packets_F.tolist(), range(len(index.packets_F)), strict=True))
    keys = np.flatnonzero(index.keys_P[: target + 1]).tolist()
    start = keys[-1] if shown.get(keys[-1], -1) <= frame else keys[-2]
    codec: Any = av.CodecContext.create("h264", "r")
    codec.extradata, codec.thread_count = index.extradata, 1
    frames = []
    for p in range(start, target + 1):
        if index.disposable_P[p] and p != target:
            continue
        at = int(index.offsets_P[p])
        packet = av.Packet(data[at : at + int(index.sizes_P[p])])
        packet.pts = p
        frames += codec.decode(packet)
    frames += codec.decode(None)
    (found,) = [each for each in frames if each.pts == target]
    return planes_of(found)


# ---- laws


@pytest.mark.parametrize("kind", KINDS)
def test_frames_and_times_are_those_of_a_full_decode(kind: str, made: Callable[[str], Path]) -> None:
    index = index_of(made(kind))
    times, _ = reference_frames(made(kind), "luma")

    assert index.times_F.tolist() == times.tolist()
    assert len(set(index.packets_F.tolist())) == len(times)
    assert index.duration > times[-1]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "MPEG-TS"])
def test_every_frame_decodes_from_its_key_packet_to_the_bits_of_a_full_decode(
    kind: str, made: Callable[[str], Path]
) -> None:
    index = index_of(made(kind))
    _, frames = reference_frames(made(kind))

    assert index.direct
    for place, planes in enumerate(frames):
        alone = decoded_alone(index, made(kind), place)
        assert all(np.array_equal(a, b) for a, b in zip(alone, planes, strict=True)), place


@given(data=st.data())
@pytest.mark.parametrize("kind", ["plain", "open groups", "Matroska", "one group"])
def test_part_of_an_index_reads_the_same_packets_for_its_frames(
    kind: str, data: st.DataObject, made: Callable[[str], Path]
) -> None:
    index = index_of(made(kind))
    first = data.draw(st.integers(0, 35))
    stop = data.draw(st.integers(first + 1, 36))
    wanted = np.array(sorted(data.draw(st.sets(st.integers(first, stop - 1), min_size=1))))
    part = index.within(ClipSegment(first, stop, 0, 0))
    whole_feed, part_feed = feed_plan(index, wanted), feed_plan(part, wanted - first)

    assert part.offsets_P[part_feed.packets].tolist() == index.offsets_P[whole_feed.packets].tolist()
    assert part_feed.starts.tolist() == whole_feed.starts.tolist()
    assert part.times_F.tolist() == index.times_F[first:stop].tolist()
    assert part.duration == index.duration
    assert VideoIndex.from_bytes(memoryview(part.to_bytes())).to_bytes() == part.to_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_and_back_is_the_same_index(kind: str, made: Callable[[str], Path]) -> None:
    index = index_of(made(kind))
    again = VideoIndex.from_bytes(memoryview(index.to_bytes()))

    for name in VideoIndex.__slots__:
        assert np.array_equal(getattr(again, name), getattr(index, name)), name


@given(at=st.integers(0, 10_000), bits=st.integers(1, 255), end=st.integers(0, 10_000))
def test_changed_or_cut_index_bytes_are_refused(at: int, bits: int, end: int, made: Callable[[str], Path]) -> None:
    data = bytearray(_bytes_of(made("plain")))
    data[at % len(data)] ^= bits
    for held in (bytes(data), bytes(data[: end % len(data)])):
        with pytest.raises(CacheError, match="Build it anew"):
            VideoIndex.from_bytes(memoryview(held))


@cache
def _bytes_of(path: Path) -> bytes:
    return index_of(path).to_bytes()


@given(changes=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), min_size=1, max_size=5))
@pytest.mark.parametrize("kind", ["plain", "fragmented", "Matroska", "MPEG-TS", "FLV"])
def test_a_changed_file_gives_an_index_or_a_data_error(
    kind: str, changes: list[tuple[float, bytes]], made: Callable[[str], Path]
) -> None:
    data = bytearray(made(kind).read_bytes())
    for place, noise in changes:  # half of the changes go where an MP4 has its index
        at = int((place if place < 0.5 else 1 - (1 - place) / 8) * (len(data) - 8))
        data[at : at + len(noise)] = noise
    index = index_or_refusal(lambda: index_in(bytes(data)))
    if isinstance(index, str):
        assert index.startswith("inline bytes")
    else:
        assert VideoIndex.from_bytes(memoryview(index.to_bytes())).to_bytes() == index.to_bytes()


def index_or_refusal(make: Callable[[], VideoIndex]) -> VideoIndex | str:
    """Nothing else may come of any bytes."""
    try:
        return make()
    except DataError as error:
        return str(error)


def index_in(data: bytes) -> VideoIndex:
    (place,) = locate(pa.array([data]), "")
    return probe(place.read, place.size, place.name, place.stamp())


# ---- examples


def test_half_of_the_packets_of_a_plain_file_are_disposable_and_left_out_without_harm(plain: Path) -> None:
    index = index_of(plain)

    assert 10 <= np.count_nonzero(index.disposable_P) <= 18  # proven harmless by the law above
    assert np.flatnonzero(index.keys_P).tolist() == [0, 12, 24]
    assert index.fps == pytest.approx(24, abs=1e-4)
    assert index.key_distance == (12, 12)
    assert index.codec == "h264"
    assert (index.width, index.height, index.displayed) == (64, 48, (48, 64))


def test_rows_of_a_tar_have_offsets_in_their_own_bytes(plain: Path, tmp_path: Path) -> None:
    second = write_video(tmp_path / "second.mp4", PLAIN, first=40)
    (_, (offset, length)) = write_tar(tmp_path / "both.tar", [plain, second])
    row = {"uri": str(tmp_path / "both.tar"), "offset": offset, "length": length}
    (place,) = locate(pa.array([row]), "")
    index = probe(place.read, place.size, place.name, place.stamp())

    assert index.to_bytes() == index_of(second).to_bytes()


@pytest.mark.parametrize(("rotation", "displayed"), [(0, (48, 64)), (90, (64, 48)), (180, (48, 64)), (270, (64, 48))])
def test_rotation_is_what_shows_the_frame_upright(rotation: int, displayed: tuple[int, int], tmp_path: Path) -> None:
    index = index_of(write_video(tmp_path / "a.mp4", frames=2, width=64, height=48, rotation=rotation))

    assert (index.rotation, index.displayed) == (rotation, displayed)


def test_mirrored_pictures_are_refused(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", frames=2, width=64, height=48)
    data = bytearray(path.read_bytes())
    matrix = data.rindex(struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30))
    struct.pack_into(">i", data, matrix, -(1 << 16))

    with pytest.raises(DataError, match=r"mirrored.*Re-encode it"):
        index_in(bytes(data))


@pytest.mark.parametrize(
    ("changes", "full_range", "matrix"),
    [({}, False, 2), ({"full_range": True, "matrix": 1}, True, 1), ({"pix_fmt": "yuvj420p"}, True, 2)],
)
def test_colours_are_those_of_the_stream(
    changes: dict[str, Any], full_range: bool, matrix: int, tmp_path: Path
) -> None:
    index = index_of(write_video(tmp_path / "a.mp4", frames=2, width=64, height=48, **changes))

    assert (index.full_range, index.matrix) == (full_range, matrix)


def test_key_packets_whose_pictures_recover_later_start_nothing(made: Callable[[str], Path]) -> None:
    """x264 with intra refresh calls one packet a period a key packet, and has no whole one after the first."""
    assert np.flatnonzero(index_of(made("intra refresh")).keys_P).tolist() == [0]


def test_frames_that_an_edit_list_hides_are_decoded_and_not_shown(plain: Path, tmp_path: Path) -> None:
    hidden = cut(plain, tmp_path / "hidden.mp4", 12, 24, hidden=5)
    index = index_of(hidden)
    times, frames = reference_frames(hidden)

    assert len(index.keys_P) == 24
    assert index.times_F.tolist() == times.tolist()
    assert len(times) == 19
    for place in (0, 6, 7, 18):
        alone = decoded_alone(index, hidden, place)
        assert all(np.array_equal(a, b) for a, b in zip(alone, frames[place], strict=True))


@pytest.mark.parametrize("first", [3, 14])
def test_a_stream_cut_within_a_group_begins_with_its_first_key_frame(
    first: int, made: Callable[[str], Path], tmp_path: Path
) -> None:
    """Nothing shows the frames before it, in a full decode neither; open groups lose those shown before it as well."""
    whole, part = made("Matroska"), tmp_path / "part.mkv"
    with av.open(str(whole)) as read, av.open(str(part), "w") as write:
        stream = read.streams.video[0]
        copied = write.add_stream_from_template(stream)
        for packet in [p for p in read.demux(stream) if p.size][first:]:
            packet.stream = copied
            write.mux(packet)
    index = index_of(part)
    _, frames = reference_frames(part)
    alone = [decoded_alone(index, part, place) for place in range(len(index.times_F))]

    assert len(alone) == len(frames)
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(alone, frames, strict=True))


def test_a_damaged_first_packet_shifts_no_times(plain: Path, tmp_path: Path) -> None:
    index = index_of(corrupt(plain, tmp_path / "damaged.mp4", packet=0))

    assert index.times_F.tolist() == index_of(plain).times_F.tolist()


def test_a_damaged_packet_in_the_middle_is_left_to_who_decodes_it(plain: Path, tmp_path: Path) -> None:
    index = index_of(corrupt(plain, tmp_path / "damaged.mp4", packet=20))

    assert index.times_F.tolist() == index_of(plain).times_F.tolist()


def test_ten_bit_files_are_indexed(tmp_path: Path) -> None:
    index = index_of(write_video(tmp_path / "a.mp4", frames=3, width=64, height=48, pix_fmt="yuv420p10le"))

    assert len(index.times_F) == 3


def test_a_file_is_read_once_in_large_blocks(plain: Path) -> None:
    place, asked = located(plain), []
    index = probe(lambda o, n: (asked.append(n), place.read(o, n))[1], place.size, place.name, 7)

    assert len(asked) <= 3
    assert index.stamp == 7


# ---- bad input


@pytest.mark.parametrize(
    ("data", "way_out"),
    [
        (b"", "it is empty, which is no MP4.*filter its rows out"),
        (b"no video at all, only some text that is long enough to look at", "no MP4.*ffmpeg -i in -c copy"),
        (b"#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n", "no MP4, MOV"),
        (b"\0\0\0\x14ftypisom\0\0\0\0isom" + bytes(64), "cannot be read.*Restore the file"),
    ],
)
def test_bytes_that_are_no_video_are_refused(data: bytes, way_out: str) -> None:
    with pytest.raises(DataError, match=way_out):
        index_in(data)


def test_a_file_without_pictures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no video stream, only audio \(aac\).*Name a file that has one"):
        index_of(write_sound(tmp_path / "sound.mp4"))


def test_another_codec_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"its video is mpeg4.*ffmpeg -i in -c:v libx264"):
        index_of(write_video(tmp_path / "a.mp4", PLAIN, codec="mpeg4"))


@pytest.mark.parametrize("name", ["a.avi", "a.h264"])
def test_files_without_presentation_times_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"ffmpeg -i in -c copy out.mp4"):
        index_of(write_video(tmp_path / name, PLAIN))


def test_a_truncated_mp4_is_refused(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be read.*Restore the file"):
        index_of(truncate(plain, tmp_path / "no index.mp4"))
    early = write_video(tmp_path / "early.mp4", PLAIN, faststart=True)
    with pytest.raises(
        DataError, match=r"ends early: it has \d+ bytes, .* 36 packets up to byte \d+\. Restore the file"
    ):
        index_of(truncate(early, tmp_path / "cut.mp4", 0.7))


@pytest.mark.parametrize("kind", ["Matroska", "MPEG-TS"])
def test_a_truncated_stream_holds_the_frames_that_are_there(
    kind: str, made: Callable[[str], Path], tmp_path: Path
) -> None:
    path = truncate(made(kind), tmp_path / made(kind).name)
    times, _ = reference_frames(path, "luma")

    assert index_of(path).times_F.tolist() == times.tolist()


def test_times_that_begin_again_are_refused(made: Callable[[str], Path]) -> None:
    with pytest.raises(DataError, match=r"times go back at packet 36\. Put it into an MP4"):
        index_in(made("MPEG-TS").read_bytes() * 2)


@pytest.mark.parametrize(
    "claim",
    [
        (b"stsz", 4, (1, 80_000_000)),  # of a byte each: 4 GB of index
        (b"stsz", 4, (0, 80_000_000)),
        (b"stsc", 12, (80_000_000,)),
        (b"stts", 4, (2**31 - 1,)),
        (b"ctts", 4, (2**31 - 1,)),
        (b"stco", 4, (2**31 - 1,)),
        (b"elst", 4, (100_000,)),
        (b"trak", -8, (2**31 - 1,)),
    ],
)
def test_an_absurd_index_is_refused_or_harmless_and_costs_neither_time_nor_memory(
    claim: tuple[bytes, int, tuple[int, ...]], plain: Path
) -> None:
    box, offset, values = claim
    data = bytearray(plain.read_bytes())
    struct.pack_into(f">{len(values)}I", data, data.rindex(box) + 4 + offset, *values)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.thread_time()
    index = index_or_refusal(lambda: index_in(bytes(data)))

    assert not isinstance(index, str) or index.startswith("inline bytes")
    assert time.thread_time() - began < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_a_failure_of_storage_stays_one(
    plain: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    place = located(plain)
    for room in ("probing", "probed_file"):
        monkeypatch.setattr(f"spiral_stream.decoders.video.{room}.BLOCK_BYTES", 2_048)
    for good in (0, 1, 3, 7):
        left = [good]

        def failing(offset: int, length: int, left: list[int] = left) -> memoryview:
            left[0] -= 1
            if left[0] == -1:
                msg = "the disk is gone"
                raise SourceError(msg)
            return place.read(offset, length)

        with pytest.raises(SourceError, match="the disk is gone") as caught:
            probe(failing, place.size, place.name, 0)
        assert not isinstance(caught.value, DataError)
    assert capfd.readouterr().err == ""


def test_a_file_whose_packets_jump_to_and_fro_is_not_read_for_ever(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for room in ("probing", "probed_file"):
        monkeypatch.setattr(f"spiral_stream.decoders.video.{room}.BLOCK_BYTES", 256)
    monkeypatch.setattr("spiral_stream.decoders.video.probed_file.BLOCKS", 1)
    monkeypatch.setattr("spiral_stream.decoders.video.probed_file.TIMES_OVER", 1)

    with pytest.raises(DataError, match=r"read 1 times over\. Put it into an MP4"):
        index_of(plain)


def test_probing_leaves_no_file_open(plain: Path) -> None:
    before = len(open_below(plain.parent))
    for _ in range(5):
        index_of(plain)

    assert len(open_below(plain.parent)) <= before  # what earlier tests left may close meanwhile

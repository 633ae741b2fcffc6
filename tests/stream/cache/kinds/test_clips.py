"""Kept clips give the frames that decoding their files gives, stored or made on the fly; a bad one is refused alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from spiral_stream import Frames
from spiral_stream.cache.kinds.clip_layout import Clips, bytes_at
from spiral_stream.cache.kinds.clips import ClipKind
from spiral_stream.cache.kinds.kind import Rows
from spiral_stream.cache.kinds.probes import index_of
from spiral_stream.cache.store.store import CacheStore
from spiral_stream.decoders.image import region
from spiral_stream.decoders.image.image import decode_jpeg, encode_jpeg, shrink
from spiral_stream.decoders.video.frame_selection import FrameSelection, segment_of
from spiral_stream.decoders.video.video import decode, to_rgb
from spiral_stream.errors import CacheError, DataError, SourceError
from spiral_stream.sources.references.ranged import locate
from spiral_stream.transforms.image.image import CenterCrop, RandomResizedCrop, Resize, compile_image
from tests.fixtures.examples import few
from tests.fixtures.videos import Made, number_of, truncate, write_video

FILES: Final = (
    Made(frames=30, gop=12),
    Made(frames=30, width=64, height=96, gop=24, rotation=90),
    Made(frames=30, variable=True, gop=30, first=100),
    Made(frames=5, pix_fmt="gray", width=128, height=96),
)
SELECTIONS: Final = (
    FrameSelection(4),
    FrameSelection(7, short="loop"),
    FrameSelection(3, stride=4),
    FrameSelection(3, stride=4, random_start=True),
    FrameSelection(9, stride=1, random_start=True, short="loop"),
)
CHAINS: Final[tuple[tuple[Any, ...], ...]] = (
    (Resize(40), CenterCrop((40, 32))),
    (Resize((24, 48)),),
    (RandomResizedCrop(24),),
)
TIMES: Final = ((0, 400), (250, 500), (0, 125))  # (start, duration) in ms: the last holds 3 or 4 frames

Pixels = NDArray[np.uint8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files")
    for at, made in enumerate(FILES):
        write_video(path / f"{at}.mp4", made)
    return path


def kind(selection: FrameSelection, profile: Frames, *, timed: bool = False) -> ClipKind:
    return ClipKind("r", "clip_ref", selection, profile, timed)


def rows_of(files: Sequence[str | None], times: Sequence[tuple[int, int]] | None = None) -> pa.Table:
    table = pa.table({"clip_ref": pa.array(files, pa.utf8())})
    if times is None:
        return table
    starts, durations = zip(*times, strict=True)
    return table.append_column("start_time_ms", pa.array(starts, pa.int64())).append_column(
        "duration_ms", pa.array(durations, pa.int64())
    )


def in_memory(rows: Rows) -> Clips:
    assert not rows.refused
    clips = Clips(len(rows.sizes))
    clips.put_rows(np.arange(len(rows.sizes)), rows)
    return clips


def rendered(made: ClipKind, clips: Clips, draws: list[float], chain: tuple[Any, ...], keys: list[int]) -> Any:
    program = compile_image(chain, dtype="uint8", layout="nhwc")
    assert program.output_shape is not None
    out = np.zeros((len(draws), made.selection.sequence_length, *program.output_shape), np.uint8)
    short = made.render(clips, np.array(draws), np.array(keys, np.uint64), program, out)
    return out, short


def decoded(
    path: Path, selection: FrameSelection, draw: float, times: tuple[int, int] | None
) -> tuple[list[Pixels], bool]:
    """Whole upright frames of a sample, straight from its file."""
    located = locate(pa.array([str(path)]), "")[0]
    index = index_of(located)
    frames, short = selection.choose(index.times_F, segment_of(index.times_F, index.duration, *(times or ())), draw)
    wanted, back = np.unique(frames, return_inverse=True)
    height, width = index.displayed
    boxes = np.tile(np.array([0, 0, height, width], np.int32), (len(wanted), 1))
    found = decode(index, located.read, wanted, located.size)
    addresses, strides, _ = to_rgb(found, boxes, index.rotation, index.full_range, index.matrix)
    rows = [bytes_at(int(a), int(s) * height).reshape(height, -1) for a, s in zip(addresses, strides, strict=True)]
    pixels = [row[:, : 3 * width].reshape(height, width, 3).copy() for row in rows]
    return [pixels[at] for at in back], short


def from_file(frames: list[Pixels], chain: tuple[Any, ...], key: int) -> NDArray[np.uint8]:
    """Transformed frames; they share one draw."""
    program = compile_image(chain, dtype="uint8", layout="nhwc")
    out = np.zeros((len(frames), *(program.output_shape or ())), np.uint8)
    program.run(frames, np.full(len(frames), key, np.uint64), out)
    return out


# ---- laws


@few(10, 25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), side=st.none() | st.sampled_from([40, 48, 500]), quality=st.none() | st.integers(50, 95))
def test_kept_frames_are_those_of_the_file_stored_or_made_on_the_fly(
    folder: Path, data: st.DataObject, side: int | None, quality: int | None
) -> None:
    selection, chain = data.draw(st.sampled_from(SELECTIONS)), data.draw(st.sampled_from(CHAINS))
    files = data.draw(st.lists(st.integers(0, len(FILES) - 1), min_size=1, max_size=3))
    timed = data.draw(st.booleans())
    times = [data.draw(st.sampled_from(TIMES)) if file < 3 else (0, 125) for file in files] if timed else None
    draws = [data.draw(st.floats(0, 1, exclude_max=True)) for _ in files]
    keys = [data.draw(st.integers(0, 2**64 - 1)) for _ in files]
    made = kind(selection, Frames(shorter_side=side, quality=quality), timed=timed)
    table = rows_of([f"{file}.mp4" for file in files], times)

    stored = rendered(made, in_memory(made.keep_rows(table, str(folder))), draws, chain, keys)
    fly = rendered(made, in_memory(made.keep_rows(table, str(folder), np.array(draws))), draws, chain, keys)

    assert np.array_equal(stored[0], fly[0])
    assert stored[1].tolist() == fly[1].tolist()
    for at, file in enumerate(files):
        frames, short = decoded(folder / f"{file}.mp4", selection, draws[at], times[at] if times else None)
        frames = frames if side is None else [shrink(frame, side) for frame in frames]
        frames = frames if quality is None else [decode_jpeg(encode_jpeg(frame, quality)) for frame in frames]
        assert np.array_equal(stored[0][at], from_file(frames, chain, keys[at]))
        assert stored[1][at] == short


def test_jpegs_that_are_kept_have_an_index_and_those_made_on_the_fly_have_none(folder: Path) -> None:
    made = kind(FrameSelection(5), Frames(quality=90))
    table = rows_of(["3.mp4"])

    kept, fly = (bytes(made.keep_rows(table, str(folder), draws).payload) for draws in (None, np.array([0.0])))

    assert kept.count(b"SpiralM") == 5
    assert b"SpiralM" not in fly
    assert len(fly) < len(kept)


@few(5, 10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(file=st.integers(0, len(FILES) - 1), selection=st.sampled_from(SELECTIONS), key=st.integers(0, 2**64 - 1))
def test_the_side_that_a_plan_resizes_to_changes_no_pixel(
    folder: Path, file: int, selection: FrameSelection, key: int
) -> None:
    chain = (Resize(40), CenterCrop(32))
    made = kind(selection, Frames(shorter_side=40))
    clips = in_memory(made.keep_rows(rows_of([f"{file}.mp4"]), str(folder)))

    frames, _ = decoded(folder / f"{file}.mp4", selection, 0.5, None)
    assert np.array_equal(rendered(made, clips, [0.5], chain, [key])[0][0], from_file(frames, chain, key))


# ---- examples


def test_frames_are_the_ones_that_were_drawn(folder: Path) -> None:
    made = kind(FrameSelection(5), Frames())
    out, _ = rendered(
        made, in_memory(made.keep_rows(rows_of(["3.mp4"]), str(folder))), [0.0], (Resize((96, 128)),), [0]
    )

    assert [number_of(frame[:, :, 0]) for frame in out[0]] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("short", "numbers"), [("pad", [0, 1, 2, 3, 4, 4, 4]), ("loop", [0, 1, 2, 3, 4, 0, 1])])
@pytest.mark.parametrize("quality", [None, 90])
def test_a_short_clip_repeats_frames_that_are_kept_once(
    folder: Path, short: Any, numbers: list[int], quality: int | None
) -> None:
    made = kind(FrameSelection(7, stride=1, short=short), Frames(quality=quality))
    rows = made.keep_rows(rows_of(["3.mp4"]), str(folder))
    out, was_short = rendered(made, in_memory(rows), [0.0], (Resize((96, 128)),), [0])

    assert [number_of(frame[:, :, 0]) for frame in out[0]] == numbers
    assert was_short.tolist() == [True]
    assert rows.narrow["frames"].tolist() == [5]
    assert rows.narrow["short"].tolist() == [1]


def test_a_random_start_keeps_the_segment_and_serves_every_length(folder: Path) -> None:
    wide = kind(FrameSelection(2, stride=1, random_start=True), Frames(), timed=True)
    narrow = kind(FrameSelection(3, stride=2, random_start=True, short="loop"), Frames(), timed=True)
    table = rows_of(["0.mp4"], [(250, 500)])
    rows = wide.keep_rows(table, str(folder))

    assert wide.fingerprint == narrow.fingerprint
    assert rows.narrow["frames"].tolist() == [12]
    fly = in_memory(narrow.keep_rows(table, str(folder), np.array([0.9])))
    assert fly.narrow["frames"].tolist() == [3]
    whole = rendered(narrow, in_memory(rows), [0.9], (Resize((64, 96)),), [0])[0]
    assert np.array_equal(whole, rendered(narrow, fly, [0.9], (Resize((64, 96)),), [0])[0])


def test_clips_come_back_from_disk(folder: Path, tmp_path: Path) -> None:
    made = kind(FrameSelection(4), Frames(shorter_side=40))
    rows = made.keep_rows(rows_of(["0.mp4", "1.mp4"]), str(folder))
    store = CacheStore(tmp_path, made.facts())
    store.write("k", 5, iter([(np.array([1, 4], np.uint32), rows)]))
    store.commit()
    reader = store.open()
    assert reader is not None
    shard = reader.shard("k")
    assert shard is not None
    found = shard.find(np.array([4, 1]))
    clips = Clips(2)
    clips.put(np.arange(2), *shard.locate(found), {name: a[found] for name, a in shard.narrow.items()}, shard)

    from_disk = rendered(made, clips, [0.0, 0.0], (Resize((40, 40)),), [0, 0])[0]
    assert np.array_equal(from_disk[::-1], rendered(made, in_memory(rows), [0.0, 0.0], (Resize((40, 40)),), [0, 0])[0])
    assert shard.alignment >= 8


def test_without_region_decode_the_pixels_are_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = kind(FrameSelection(4), Frames(shorter_side=48, quality=90))
    clips = in_memory(made.keep_rows(rows_of(["0.mp4", "1.mp4"]), str(folder)))
    fast = rendered(made, clips, [0.0, 0.0], (RandomResizedCrop(24),), [1, 2])[0]
    monkeypatch.setattr(region, "available", False)

    assert np.array_equal(rendered(made, clips, [0.0, 0.0], (RandomResizedCrop(24),), [1, 2])[0], fast)


def test_making_a_clip_reads_its_packets_and_not_the_file(folder: Path) -> None:
    size = (folder / "0.mp4").stat().st_size
    one = kind(FrameSelection(1, stride=1), Frames()).keep_rows(rows_of(["0.mp4"]), str(folder))

    assert 0 < one.source_bytes < size / 2


@pytest.mark.parametrize("most", [1, 5, 12])
def test_a_long_segment_is_decoded_in_parts(folder: Path, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = kind(FrameSelection(2, stride=1, random_start=True), Frames(shorter_side=32))
    files = rows_of(["0.mp4", "2.mp4"])
    whole = made.keep_rows(files, str(folder))
    monkeypatch.setattr("spiral_stream.cache.kinds.clips.FEWEST", most)
    monkeypatch.setattr("spiral_stream.cache.kinds.clips.DECODED", 0)
    parts = []

    def counted(*given: Any) -> list[Any]:
        parts.append(len(given[2]))
        return decode(*given)

    monkeypatch.setattr("spiral_stream.cache.kinds.clips.decode", counted)

    assert bytes(made.keep_rows(files, str(folder)).payload) == bytes(whole.payload)
    assert sum(parts) == 60
    assert max(parts) <= most


def test_a_fingerprint_covers_what_is_kept() -> None:
    base = kind(FrameSelection(4), Frames(shorter_side=40))
    others: list[Callable[[], ClipKind]] = [
        lambda: base,
        lambda: replace(base, relation="other"),
        lambda: replace(base, column="other"),
        lambda: replace(base, timed=True),
        lambda: replace(base, profile=Frames(shorter_side=41)),
        lambda: replace(base, profile=Frames(shorter_side=40, quality=90)),
        lambda: replace(base, profile=Frames(shorter_side=40, quality=91)),
        lambda: replace(base, selection=FrameSelection(5)),
        lambda: replace(base, selection=FrameSelection(4, stride=1)),
        lambda: replace(base, selection=FrameSelection(4, short="loop")),
        lambda: replace(base, selection=FrameSelection(4, stride=1, random_start=True)),
    ]

    assert len({make().fingerprint for make in others}) == len(others)
    assert replace(base, index_of=lambda _: None).fingerprint == base.fingerprint  # type: ignore[arg-type,return-value]  # never called
    assert "simplejpeg" in str(replace(base, profile=Frames(quality=90)).facts()["encoder"])
    assert "encoder" not in base.facts()


def test_columns_are_the_reference_and_the_times_of_a_timed_relation() -> None:
    assert kind(FrameSelection(4), Frames()).columns == ("clip_ref",)
    assert kind(FrameSelection(4), Frames(), timed=True).columns == ("clip_ref", "start_time_ms", "duration_ms")


# ---- bad input


def test_a_bad_clip_is_refused_and_its_neighbours_are_kept(folder: Path) -> None:
    truncate(folder / "0.mp4", folder / "truncated.mp4")
    (folder / "text.mp4").write_bytes(b"no video at all")
    files = ["0.mp4", "truncated.mp4", None, "text.mp4", "0.mp4", "0.mp4", "0.mp4", "1.mp4"]
    times = [(0, 400), (0, 400), (0, 400), (0, 400), (900, 5_000), (0, 0), (-5, 100), (0, 400)]
    made = kind(FrameSelection(4), Frames(), timed=True)
    rows = made.keep_rows(rows_of(files, times), str(folder))

    assert sorted(rows.refused) == [1, 2, 3, 4, 5, 6]
    assert "truncated.mp4" in rows.refused[1]
    assert "null" in rows.refused[2]
    assert "text.mp4" in rows.refused[3]
    assert "beyond the end of the file" in rows.refused[4]
    assert "at least 1 ms" in rows.refused[5]
    assert (rows.sizes > 0).tolist() == [at not in rows.refused for at in range(len(files))]
    alone = made.keep_rows(rows_of(["0.mp4", "1.mp4"], [(0, 400), (0, 400)]), str(folder))
    assert bytes(rows.payload) == bytes(alone.payload)


def test_a_segment_too_short_is_refused_where_the_selection_drops_those(folder: Path) -> None:
    rows = kind(FrameSelection(7, short="drop"), Frames()).keep_rows(rows_of(["3.mp4", "0.mp4"]), str(folder))

    assert list(rows.refused) == [0]
    assert "filter on frame_count" in rows.refused[0]


def test_storage_that_fails_is_an_error_and_not_a_refused_row(folder: Path) -> None:
    with pytest.raises(SourceError) as raised:
        kind(FrameSelection(4), Frames()).keep_rows(rows_of(["0.mp4", "not there.mp4"]), str(folder))
    assert not isinstance(raised.value, DataError)


@pytest.mark.parametrize("available", [True, False])
def test_a_damaged_jpeg_of_the_cache_is_refused_by_name(
    folder: Path, available: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kind(FrameSelection(2), Frames(quality=90))
    rows = made.keep_rows(rows_of(["0.mp4"]), str(folder))
    payload = bytearray(rows.payload)
    payload[-60:] = bytes(60)
    clips = in_memory(replace(rows, payload=bytes(payload)))
    monkeypatch.setattr(region, "available", available and region.available)

    with pytest.raises(CacheError, match="Drop the cache folder and build it again"):
        rendered(made, clips, [0.0], (Resize((64, 96)),), [0])


def test_pixels_of_another_size_are_refused_by_name(folder: Path) -> None:
    made = kind(FrameSelection(2), Frames())
    rows = made.keep_rows(rows_of(["0.mp4"]), str(folder))
    clips = in_memory(replace(rows, narrow={**rows.narrow, "height": rows.narrow["height"] * 2}))

    with pytest.raises(CacheError, match="not of its height and width"):
        rendered(made, clips, [0.0], (Resize((64, 96)),), [0])

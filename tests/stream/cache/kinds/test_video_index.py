from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spiral_stream.cache.kinds import probes
from spiral_stream.cache.kinds.probes import Probes, index_of
from spiral_stream.cache.kinds.video_index import NARROW, IndexKind
from spiral_stream.decoders.video.frame_selection import FrameSelection, segment_of
from spiral_stream.decoders.video.probe import probe
from spiral_stream.decoders.video.video_index import VideoIndex
from spiral_stream.errors import DataError, SourceError
from spiral_stream.sources.references.ranged import Located, locate
from tests.fixtures.videos import Made, corrupt, write_sound, write_tar, write_video

MADE = Made(frames=36, width=64, height=48)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    write_video(folder / "long.mp4", MADE)
    write_video(folder / "turned.mp4", MADE, rotation=90, frames=24, gop=6, fps=12)
    write_sound(folder / "sound.mp4")
    return folder


@pytest.fixture(autouse=True)
def probed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is probed, by name; with a memory of the test's own."""
    names: list[str] = []

    def counted(read: Any, size: int, name: str, stamp: int) -> VideoIndex:
        names.append(name)
        return probe(read, size, name, stamp)

    monkeypatch.setattr(probes, "probe", counted)
    monkeypatch.setattr(probes, "of_process", cache(Probes))
    return names


def table(uris: Sequence[Any], times: Sequence[tuple[int | None, int | None]] = ()) -> pa.Table:
    columns = {"clip": pa.array(uris)}
    if times:
        start, duration = zip(*times, strict=True)
        columns |= {"start_time_ms": pa.array(start, pa.int64()), "duration_ms": pa.array(duration, pa.int64())}
    return pa.table(columns)


def payloads(rows: Any) -> list[VideoIndex | None]:
    ends = np.cumsum(rows.sizes)
    parts = [memoryview(rows.payload)[end - size : end] for end, size in zip(ends, rows.sizes, strict=True)]
    return [VideoIndex.from_bytes(part) if len(part) else None for part in parts]


def located(path: Path) -> Located:
    return locate(pa.array([str(path)]), "")[0]


# ---- the kind


def test_rows_are_indexes_with_what_statistics_ask_beside(folder: Path) -> None:
    rows = IndexKind("clips", "clip").keep_rows(table(["long.mp4", "turned.mp4"]), str(folder))
    long, turned = payloads(rows)

    assert long is not None
    assert turned is not None
    assert long.to_bytes() == index_of(located(folder / "long.mp4")).to_bytes()
    assert set(rows.narrow) == set(NARROW)
    assert all(values.dtype == np.int32 for values in rows.narrow.values())
    assert {name: values.tolist() for name, values in rows.narrow.items()} == {
        "frames": [36, 24],
        "duration_ms": [1_500, 2_000],
        "height": [48, 64],
        "width": [64, 48],
        "milli_fps": [24_000, 12_000],
        "key_distance": [12, 6],
        "rotation": [0, 90],
        "segment_frames": [36, 24],
    }


def test_rows_of_one_file_are_probed_once_and_the_file_is_counted_once(folder: Path, probed: list[str]) -> None:
    kind = IndexKind("clips", "clip")
    rows = kind.keep_rows(table(["long.mp4"] * 5), str(folder))

    assert len(probed) == 1
    assert rows.source_bytes == (folder / "long.mp4").stat().st_size
    assert kind.keep_rows(table(["long.mp4"]), str(folder)).source_bytes == 0
    assert len(probed) == 1
    assert all(index is not None for index in payloads(rows))


def test_a_row_that_names_a_segment_keeps_the_part_it_needs(folder: Path) -> None:
    times = [(0, 250), (500, 500), (1_000, 500), (60_000, 1_500)]
    kind = IndexKind("clips", "clip", timed=True)
    rows = kind.keep_rows(table(["long.mp4"] * 4, times), str(folder))
    whole = index_of(located(folder / "long.mp4"))

    assert kind.columns == ("clip", "start_time_ms", "duration_ms")
    assert rows.narrow["frames"].tolist() == [36] * 4  # of the file
    for (start, duration), part in zip(times, payloads(rows), strict=True):
        assert part is not None
        of_whole = segment_of(whole.times_F, whole.duration, start, duration)
        of_part = segment_of(part.times_F, part.duration, start, duration)
        for selection in (FrameSelection(4), FrameSelection(2, 3)):
            chosen, short = selection.choose(whole.times_F, of_whole)
            again, short_again = selection.choose(part.times_F, of_part)
            assert part.times_F[again].tolist() == whole.times_F[chosen].tolist()
            assert short == short_again
    assert rows.sizes[0] < rows.sizes[3] == len(whole.to_bytes())


def test_bad_rows_are_refused_with_their_reason_and_the_others_kept(folder: Path) -> None:
    uris = ["sound.mp4", "long.mp4", "long.mp4", "long.mp4"]
    rows = IndexKind("clips", "clip", timed=True).keep_rows(
        table(uris, [(0, 500), (1_400, 1_000), (0, 500), (None, 500)]), str(folder)
    )

    assert sorted(rows.refused) == [0, 1, 3]
    assert "no video stream" in rows.refused[0]
    assert "beyond the end" in rows.refused[1]
    assert "null" in rows.refused[3]
    assert rows.sizes.astype(bool).tolist() == [False, False, True, False]
    assert rows.narrow["frames"].tolist() == [0, 0, 36, 0]
    assert IndexKind("clips", "clip").keep_rows(table([None, "long.mp4"]), str(folder)).refused.keys() == {0}


def test_inline_clips_and_ranges_of_a_tar_are_indexed(folder: Path, probed: list[str]) -> None:
    parts = write_tar(folder / "both.tar", [folder / "turned.mp4", folder / "long.mp4"])
    ranges = [{"uri": "both.tar", "offset": offset, "length": length} for offset, length in parts]
    inline = [(folder / name).read_bytes() for name in ("turned.mp4", "long.mp4")]
    kind = IndexKind("clips", "clip")

    a, b = (kind.keep_rows(table(uris), str(folder)) for uris in (ranges, inline))
    assert bytes(a.payload) == bytes(b.payload)
    assert len(probed) == 4


def test_a_missing_file_is_told_and_another_fault_of_storage_is_raised(folder: Path, tmp_path: Path) -> None:
    refused = IndexKind("clips", "clip").keep_rows(table(["none.mp4"]), str(folder)).refused
    assert "none.mp4: No such file" in refused[0]

    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(SourceError, match="folder.mp4: it is a folder, not a file") as caught:  # noqa: RUF043
        IndexKind("clips", "clip").keep_rows(table(["folder.mp4"]), str(tmp_path))
    assert not isinstance(caught.value, DataError)


def test_fingerprints_tell_relations_columns_and_segments_apart() -> None:
    kinds = [
        IndexKind("a", "clip"),
        IndexKind("b", "clip"),
        IndexKind("a", "other"),
        IndexKind("a", "clip", timed=True),
    ]

    assert len({kind.fingerprint for kind in kinds}) == 4
    assert IndexKind("a", "clip").fingerprint == kinds[0].fingerprint


def test_a_damaged_packet_is_no_reason_to_refuse_an_index(folder: Path) -> None:
    corrupt(folder / "long.mp4", folder / "damaged.mp4", 20)

    assert not IndexKind("clips", "clip").keep_rows(table(["damaged.mp4"]), str(folder)).refused

"""What EXPLAIN says of decoding clips is what decoding them does; and no byte of a video is read to say it."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.explain.clips import footage
from spiral_stream.sources.references.ranged import STAMP_BYTES, Located
from tests.fixtures import clips, videos
from tests.fixtures.inner import stages_of
from tests.stream.explain import footages
from tests.stream.explain.batch.test_batch import operands
from tests.stream.explain.words import in_words

FILES, EACH = 5, 2


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    """Ten segments of five files; their video index is built."""
    catalog = clips.video_catalog(tmp_path_factory.mktemp("clips"), FILES, EACH).catalog
    sp.index_videos(catalog, clips.SEGMENTS, "clip_ref")
    return catalog


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    """Made-up segments, nothing built."""
    return footages.made_up(tmp_path_factory.mktemp("bare"))


def told(stream: sp.PreparedStream, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = in_words(stream.explain(**options))["materialize"]
    return found


def warnings(stream: sp.PreparedStream) -> str:
    return "\n".join(in_words(stream.explain())["warnings"])


@pytest.mark.parametrize(
    "rule", [{}, {"sequence_length": 3}, {"sequence_length": 5, "stride": 4}, {"sequence_length": 60, "short": "loop"}]
)
def test_over_read_and_short_clips_are_those_of_the_run(catalog: sp.Catalog, rule: dict[str, Any]) -> None:
    with footages.program(catalog, max_frames=None, **rule) as stream:
        before = told(stream)
        list(stream)
        after, metrics = told(stream, analyze=True), stream.metrics()

    over_read = before["over-read of frames"]
    assert operands(over_read) == (metrics["frames_decoded"], metrics["frames_kept"])
    assert over_read.endswith("of 8 of 8 clips, by the video index")
    assert not over_read.startswith("~")
    assert after["over-read of frames"] == f"{over_read}; ! {over_read.partition(' frames')[0]}"
    assert operands(before["short clips of frames"]) == (metrics["short_clips"], 8)
    assert after["short clips of frames"].endswith(f"; ! {metrics['short_clips']} met")


def test_decode_bytes_are_those_of_the_packets_that_are_read(
    catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with footages.program(catalog) as stream:
        found = told(stream)["decode bytes of frames"]
        assert any(each.frames for each in stages_of(stream).fields)
        most = int(re.findall(r"max ([\d,]+)", found)[0].replace(",", ""))
        lengths: list[int] = []
        read = Located.read

        def counted(self: Located, offset: int, length: int) -> memoryview:
            lengths.append(length)
            return read(self, offset, length)

        monkeypatch.setattr(Located, "read", counted)
        list(stream)

    mean = int(re.findall(r"mean ([\d,]+)", found)[0].replace(",", ""))
    packets = sum(length for length in lengths if length != STAMP_BYTES)
    assert 8 * mean <= packets < 1.5 * 8 * mean  # neighbouring packets are read in one go, with what lies between
    assert mean <= most


def test_a_random_start_is_an_estimate(catalog: sp.Catalog) -> None:
    with footages.program(catalog, sequence_length=4, stride=2, random_start=True) as stream:
        found = told(stream)
        list(stream)
        metrics = stream.metrics()

    assert found["selection of frames"] == "4 frames a sample, every 2 frames from a random start"
    assert found["over-read of frames"].startswith("~")
    said = float(found["over-read of frames"][1:].split()[0])
    assert said == pytest.approx(metrics["frames_decoded"] / metrics["frames_kept"], rel=0.5)


def test_some_clips_stand_for_many(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footage, "PLANNED", 3)
    with footages.program(catalog) as stream:
        found = told(stream)["over-read of frames"]

    assert found.startswith("~")
    assert found.endswith("of 3 of 8 clips, by the video index")


def test_nothing_of_a_video_is_read(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    with footages.program(catalog) as stream:
        assert any(each.frames for each in stages_of(stream).fields)
        monkeypatch.setattr(Located, "read", lambda *_: pytest.fail("explain read a video"))
        monkeypatch.setattr(Located, "stamp", lambda *_: pytest.fail("explain read a video"))
        assert in_words(stream.explain())["relation"]["payload bytes read to decide"] == 0


def test_a_field_of_clips_says_where_it_is_made_and_what_it_weighs(catalog: sp.Catalog) -> None:
    with footages.program(catalog) as stream:
        row = told(stream)["fields"][0]
    with footages.program(catalog, formation=None) as stream:
        fixed = told(stream)["fields"][0]

    assert row["where"] == "after membership: all keys are columns; the host (chosen)"
    assert fixed["where"] == "after membership; the host (chosen)"
    assert row["out/sample"] == "301,056 (16 x 3 x 56 x 56 x 2 bytes)"
    assert re.fullmatch(r"originals; video index [0-9a-f]{8}", row["cache"])
    assert (row["built"], row["hit"]) == ("100% (8/8)", "-")


def test_what_the_index_would_tell_is_unknown_without_it(bare: sp.Catalog) -> None:
    with footages.program(bare) as stream:
        found, warned = told(stream), warnings(stream)
    with footages.program(bare, profile=sp.Frames(shorter_side=64)) as stream:
        kept, kept_warned = told(stream), warnings(stream)

    assert found["over-read of frames"] == "unknown: materialize asset video_index, or stream.materialize()"
    index = 'spiral_stream.index_videos(catalog, "video.training_segments", "clip_ref")'
    assert kept["over-read of frames"].startswith(f"unknown: materialize asset video_index, or {index}; paid once")
    for name in ("decode bytes", "key-frame distance", "refused"):
        assert found[f"{name} of frames"] == "unknown: materialize asset video_index"
    assert "86 of 86 rows are not in the video index, so their files are looked through in every pass" in warned
    assert "86 of 86 clips are in no cache, so they are decoded from originals in every pass" in kept_warned


@pytest.mark.parametrize("short", ["pad", "loop", "drop"])
def test_short_clips_are_counted_exactly_by_the_relation_s_own_column(bare: sp.Catalog, short: str) -> None:
    with footages.program(bare, sequence_length=40, short=short) as stream:
        found, warned = told(stream)["short clips of frames"], warnings(stream)
        rows = [name for batch in footages.samples(stream) for name in batch]
    frames = footages.column(bare, "frame_count")
    few = sum(frames[name] < 40 for name in rows)

    assert operands(found) == (few, len(rows))
    assert found.endswith(
        {"pad": ": padded", "loop": ": looped", "drop": ": left out, by a filter on frame_count"}[short]
    )
    assert (few > 0) == (short != "drop")
    assert ("clips repeat frames; filter on frame_count >= 40, or short=" in warned) == (short != "drop")


def without_count(table: pa.Table) -> pa.Table:
    return table.drop_columns(["frame_count"])


def test_without_the_column_the_index_or_the_cache_tells_what_is_short(tmp_path: Path) -> None:
    made = clips.video_catalog(tmp_path, 2, 2)
    plain = sp.connect(str(tmp_path / "plain"))
    clips.register(plain, without_count(made.segments), made.labels)
    options: dict[str, Any] = {"keys": ["width * height"], "sequence_length": 60, "max_frames": None}
    with footages.program(plain, **options) as stream:
        before = told(stream)["short clips of frames"]
        stream.materialize(lambda _: None)
        after = told(stream)["short clips of frames"]
    with footages.program(plain, profile=sp.Frames(shorter_side=64), **options) as stream:
        stream.materialize(lambda _: None)
        kept = told(stream)

    assert before == "unknown: materialize asset video_index; padded"
    assert after == "100.0% (3/3) have fewer than 60 frames, by the video index: padded"
    assert kept["short clips of frames"] == "100.0% (3/3) have fewer than 60 frames, by the clip cache: padded"
    assert kept["refused of frames"] == "0.0% (0/3) of the clips in the clip cache"
    assert re.fullmatch(r"Frames\(shorter_side=64.*\) [0-9a-f]{8}", kept["fields"][0]["cache"])


def test_far_key_frames_are_warned_of_where_nothing_is_kept(catalog: sp.Catalog) -> None:
    with footages.program(catalog, sequence_length=2) as stream:
        found = told(stream)
        assert float(found["over-read of frames"].split()[0]) > 4
        assert "Keep decoded clips with .cache(clip_ref=Frames(...)), or encode the files with key frames" in warnings(
            stream
        )
        distance = re.findall(r"max (\d+) frames", found["key-frame distance of frames"])
    with footages.program(catalog, sequence_length=2, profile=sp.Frames(shorter_side=64)) as stream:
        assert "key frames" not in warnings(stream)
        assert told(stream)["over-read of frames"].endswith("paid once, when the cache is built")
    with footages.program(catalog) as stream:
        assert warnings(stream) == ""

    assert distance == [str(clips.FRAMES)]


def test_files_that_cannot_be_used_come_first_and_with_their_reason(tmp_path: Path) -> None:
    made = clips.video_catalog(tmp_path, 2, 2)
    lost = videos.truncate(made.paths[1], tmp_path / "lost.mp4", 0.5)
    references = made.segments["clip_ref"].to_pylist()
    references[2] = references[3] = {"uri": str(lost), "offset": 0, "length": lost.stat().st_size}
    at = made.segments.schema.get_field_index("clip_ref")
    table = made.segments.set_column(
        at, made.segments.schema.field(at), pa.array(references, clips.relations.RANGE_REF)
    )
    catalog = sp.connect(str(tmp_path / "lost"))
    clips.register(catalog, table, made.labels)
    sp.index_videos(catalog, clips.SEGMENTS, "clip_ref")
    with footages.program(catalog) as stream:
        found, warned = told(stream)["refused of frames"], warnings(stream)

    assert operands(found) == (2, 3)
    assert "lost.mp4" in found
    assert warned.startswith("1 frames: 2 of 3 clips cannot be decoded: ")
    assert 'collate(on_error="skip")' in warned


def test_many_rows_are_looked_at_in_runs() -> None:
    rows, whole = footage.spaced(10_000_000, footage.MOST_ROWS)

    assert not whole
    assert len(rows) == footage.MOST_ROWS
    assert (np.diff(rows.astype(np.int64)) > 0).all()
    assert (rows[0], rows[-1]) == (0, 9_999_999)
    assert footage.spaced(7, 10)[1]

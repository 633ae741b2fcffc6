"""Drawn damage to stored video indexes: damage is told by the checksum; an index that somebody made up decodes or is refused."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash

import spiral_stream as sp
from spiral_stream.decoders.limits import CLIPS, need_frames, need_pixels
from spiral_stream.decoders.video.frame_selection import FrameSelection, segment_of
from spiral_stream.decoders.video.probe import probe
from spiral_stream.decoders.video.video import decode, feed_plan
from spiral_stream.decoders.video.video_index import VideoIndex
from spiral_stream.errors import CacheError
from spiral_stream.semantic import H264_REF
from spiral_stream.sources.references.ranged import Located, locate
from tests.fixtures.mutations import COUNTS, mutated_bytes, survives
from tests.fixtures.videos import Made, write_video


@pytest.fixture(scope="module", params=["a.mp4", "b.ts"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Located:
    path = write_video(tmp_path_factory.mktemp("indexed") / request.param, Made(frames=10, gop=5, width=32, height=32))
    return locate(pa.array([str(path)]), "")[0]


def pixels(data: bytes, place: Located) -> bytes:
    """What a clip reads through an index, as the runtime does it."""
    index = VideoIndex.from_bytes(memoryview(data))
    segment = segment_of(index.times_F, index.duration, None, None)
    chosen, _ = FrameSelection(3).choose(index.times_F, segment, 0.0)
    wanted = np.unique(chosen)
    fed = feed_plan(index, wanted)
    need_pixels(place.name, index.height, index.width, CLIPS.pixels)
    need_frames(fed.decoded, int(index.sizes_P[fed.packets].sum(dtype=np.int64)), CLIPS)
    frames = decode(index, place.read, wanted, place.size, fed)
    return b"".join(bytes(frame.planes[0]) for frame in frames)


@pytest.mark.parametrize("count", COUNTS)
def test_a_damaged_index_is_refused_by_its_checksum(place: Located, count: int) -> None:
    data = probe(place.read, place.size, place.name, place.stamp()).to_bytes()
    want = pixels(data, place)
    for seed in range(count):
        damaged = mutated_bytes(data, seed)
        refused = survives(lambda damaged=damaged: pixels(damaged, place), want, says=f"seed {seed}")
        assert refused or damaged == data


@pytest.mark.parametrize("count", COUNTS)
def test_an_index_that_was_made_up_is_refused_or_decodes_frames_of_its_file(place: Located, count: int) -> None:
    data = probe(place.read, place.size, place.name, place.stamp()).to_bytes()
    want = pixels(data, place)
    for seed in range(count):
        forged = bytearray(mutated_bytes(data, seed))
        if len(forged) >= 16:
            struct.pack_into("<Q", forged, 8, xxhash.xxh3_64_intdigest(memoryview(forged)[16:]))
        survives(lambda forged=bytes(forged): pixels(forged, place), want, says=f"seed {seed}", other_is_fine=True)
    assert pixels(data, place) == want


def test_a_damaged_index_on_disk_is_named_and_no_sample_is_skipped_for_it(tmp_path: Path) -> None:
    """Under ``on_error="skip"`` a sample is left out for its own bytes, never for what was derived of them."""
    names = [f"{at}.mp4" for at in range(3)]
    for at, name in enumerate(names):
        write_video(tmp_path / name, Made(frames=10, gop=5, width=32, height=32, first=40 * at))
    catalog = sp.connect(str(tmp_path / "catalog"))
    table = pa.table({"sample_id": names, "clip_ref": names})
    catalog.register("clips", sp.Arrow(table, base=str(tmp_path)), semantic={"clip_ref": H264_REF})
    sp.index_videos(catalog, "clips", "clip_ref")

    def read() -> Any:
        field = sp.Stack("clip_ref", decode="h264", sequence_length=3, crop=16)
        sampled = catalog.table("clips").sample(identity="sample_id", order=sp.Sequential())
        plan = sampled.collate(batch_size=3, fields={"x": field}, on_error="skip", error_budget=3)
        with plan.to_numpy() as stream:
            return [batch["x"].copy() for batch in stream]

    (want,) = read()
    stores = [
        path for path in (catalog.root / "prepared" / "caches").rglob("*.blob") if b"spvideo" in path.read_bytes()
    ]
    assert stores
    at = stores[0].read_bytes().index(b"spvideo") + 130
    with stores[0].open("r+b") as file:
        file.seek(at)
        file.write(bytes([stores[0].read_bytes()[at] ^ 4]))
    with pytest.raises(CacheError):
        read()
    sp.index_videos(catalog, "clips", "clip_ref", afresh=True)
    (again,) = read()
    assert np.array_equal(again, want)

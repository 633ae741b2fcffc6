"""Clips of originals are found in one look at a batch, and who builds the field says where indexes come from."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spiral_stream as sp
from spiral_stream.cache.kinds.probes import index_of
from spiral_stream.decoders.video.video_index import VideoIndex
from spiral_stream.errors import DataError
from spiral_stream.runtime.fields.clips import TASK_CACHED_CLIPS, TASK_CLIPS, ClipField
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.sources.references.ranged import Located
from tests.fixtures.clips import SEGMENTS, Clips, video_catalog
from tests.fixtures.inner import drawn_of, stages_of

pytestmark = pytest.mark.usefixtures("no_threads_left")

BATCH = 6


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Clips:
    folder: Path = tmp_path_factory.mktemp("clips")
    return video_catalog(folder, files=2)


@pytest.fixture(scope="module", params=[None, sp.Frames(shorter_side=40)])
def stream(shelf: Clips, request: pytest.FixtureRequest) -> Iterator[Any]:
    relation = shelf.catalog.table(SEGMENTS)
    if request.param is not None:
        relation = relation.cache(clip_ref=request.param)
    field = sp.Stack("clip_ref", decode="h264", sequence_length=2, resize_shorter=32, crop=24)
    sampled = relation.sample(identity="sample_id", order=sp.Sequential(), epoch=0)
    with sampled.collate(batch_size=BATCH, fields={"frames": field}).to_numpy() as made:
        yield made


def rendered(stream: Any, field: ClipField) -> Any:
    """The pixels of the first batch, piece by piece."""
    (stage,) = (each for each in stages_of(stream).fields if each.frames)
    samples = drawn_of(stream, 0, 0).samples
    out = np.zeros((BATCH, stage.frames, *stage.program.output_shape), stage.program.dtype)
    for (feed, found, part, rows), _ in field.find(samples.stream_rows, np.zeros(len(samples.stream_rows), np.uint64)):
        own = np.empty((len(part), *out.shape[1:]), out.dtype)
        feed.render(found, part, np.zeros(len(part), np.uint64), stage.program, own)
        out[rows] = own
    return out


def test_every_clip_of_a_batch_is_in_one_piece(stream: Any) -> None:
    (stage,) = (each for each in stages_of(stream).fields if each.frames)
    places = drawn_of(stream, 0, 0).samples.stream_rows
    pieces = [task for task, _ in ClipField(stage, Metrics()).find(places, np.zeros(len(places), np.uint64))]
    most = TASK_CLIPS if stage.sources[0].frames is None else TASK_CACHED_CLIPS

    assert sorted(row for *_, rows in pieces for row in rows.tolist()) == list(range(BATCH))
    assert all(0 < len(part) == len(rows) <= most for _, _, part, rows in pieces)


def test_pieces_together_are_the_batch(stream: Any) -> None:
    (stage,) = (each for each in stages_of(stream).fields if each.frames)

    assert (rendered(stream, ClipField(stage, Metrics())) == stream.batch(0)["frames"]).all()


def test_indexes_come_from_whom_the_field_was_given(stream: Any) -> None:
    (stage,) = (each for each in stages_of(stream).fields if each.frames)
    asked: list[str] = []

    def counted(located: Located) -> VideoIndex:
        asked.append(located.name)
        return index_of(located)

    rendered(stream, ClipField(stage, Metrics(), counted))
    assert len(asked) == (BATCH if stage.sources[0].frames is None else 0)  # a kind of clips has a source of its own


@pytest.mark.parametrize("stream", [None], indirect=True)
def test_an_original_that_cannot_be_read_carries_its_place(stream: Any) -> None:
    (stage,) = (each for each in stages_of(stream).fields if each.frames)

    def failing(located: Located) -> VideoIndex:
        message = f"broken: {located.name}"
        raise DataError(message)

    field = ClipField(stage, Metrics(), failing)
    places = drawn_of(stream, 0, 0).samples.stream_rows
    for (feed, found, part, _), _fetch in field.find(places, np.zeros(len(places), np.uint64)):
        out = np.empty((len(part), stage.frames, *stage.program.output_shape), stage.program.dtype)
        with pytest.raises(DataError, match="broken") as caught:
            feed.render(found, part, np.zeros(len(part), np.uint64), stage.program, out)
        assert caught.value.row == 0

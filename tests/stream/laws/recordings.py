"""Subjects of video and sound: drawn plans of clips, bad ones, pairs of a clip and a label, random parts of recordings."""

from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.testing import MakeStream
from tests.fixtures import bad_clips, drawn_clips, labelled_clips, sound_streams
from tests.fixtures.clips import SEGMENTS, register, video_catalog
from tests.stream.laws.subject import Subject


def _clips(folder: Path) -> dict[str, sp.Catalog]:
    """The same clips without an index of their files and with it."""
    made = video_catalog(folder, files=5, each=3)
    indexed = sp.connect(str(folder / "indexed"))
    register(indexed, made.segments, made.labels)
    sp.index_videos(indexed, SEGMENTS, "clip_ref")
    return {"none": made.catalog, "index": indexed}


def _drawn(shelf: Any, drawn: Any) -> MakeStream:
    plan, built, epoch = drawn
    return lambda: plan.make(shelf[built], epoch=epoch)


CLIPS: Final = Subject(
    "clips",
    _clips,
    st.tuples(drawn_clips.plans(), st.sampled_from(["index", "none"]), st.integers(0, 1)),
    _drawn,
    by_day=2,
    by_night=125,
)


def _bad(folder: Path) -> sp.Catalog:
    return bad_clips.mixed_catalog(bad_clips.good_clip(folder), folder)


BAD: Final = [
    Subject(
        f"bad clips, {policy}",
        _bad,
        st.just(policy),
        lambda catalog, on_error: lambda: bad_clips.stream(catalog, on_error=on_error, error_budget=len(bad_clips.BAD)),
        by_night=5,
    )
    for policy in ("skip", "substitute")
]


def _pairs(catalog: sp.Catalog, order: Any) -> MakeStream:
    return lambda: labelled_clips.stream(labelled_clips.joined(catalog), ["sample_id", "label_id"], order)


PAIRS: Final = Subject(
    "pairs of a clip and a label",
    lambda folder: labelled_clips.make_catalog(folder)[0],
    st.just(sp.HashBucketed(seed=3, bucket_count=16, bucket_order=sp.ShuffleBuckets(seed=3))),
    _pairs,
    by_night=5,
)
SOUNDS: Final = Subject(
    "random parts of sounds",
    sound_streams.make_catalog,
    st.none(),
    lambda catalog, _: lambda: sound_streams.random_parts(catalog),
    by_night=10,
)

SUBJECTS: Final = (CLIPS, *BAD, PAIRS, SOUNDS)

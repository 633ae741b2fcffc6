"""The plan outline: a line a node, and what the planner moves."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.explain.outline import outline
from tests.fixtures import texts
from tests.stream.explain import footages
from tests.stream.explain.mixtures import SHARES, bucketed, make_catalog
from tests.stream.explain.words import in_words


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("outline"))


COLLATE = (
    "(12) Collate WindowedBucket window 128, keys len(tokens), budget max_tokens 1,000 padded, oversize raise, "
    "composition OneStream(batches=2), batch_size None, last DropPartial, fields ids, mask, sample_id"
)


def double(values: Any) -> Any:
    return values


def test_every_verb_has_its_line(catalog: sp.Catalog) -> None:
    docs = texts.mixed(catalog, SHARES, 1_000).filter(sp.col("quality") > 0).limit(50)
    late = (
        docs.sample(identity="sample_id", order=sp.GlobalShuffle(1))
        .map(sp.Tokenize("text", tokenizer="words", max_length=64, separator="w1") >> "tokens")
        .map(double, columns=["size"], name="twice", returns=pa.int64())
        .filter(sp.len_("tokens") > 2)
        .with_columns(half=sp.col("size") - 1)
        .collate(batch_size=None, formation=bucketed(), composition=sp.batching.OneStream(2), fields=texts.fields())
    )

    assert in_words(late.explain())["plan"] == [
        "(1) Scan fineweb",
        "(2) Scan wikipedia",
        "(3) Scan code",
        "(4) Mix fineweb 0.7, wikipedia 0.1, code 0.2, epoch_size 1,000   reads (1), (2) and (3)",
        "(5) Filter quality > 0",
        "(6) Limit count 50",
        "(7) Sample identity sample_id, order GlobalShuffle(seed=1, clump_size=1), lanes 1",
        "(8) Tokenize text -> tokens, tokenizer words, max_length 64, separator w1",
        "(9) Map double(size) -> twice",
        "(10) Filter after sample len(tokens) > 2",
        "(11) WithColumns half = size - 1",
        COLLATE,
        "filter, limit written after (4) run in (1) (2) (3)",
    ]


def test_counts_and_shares_of_streams_are_shown_as_written(catalog: sp.Catalog) -> None:
    streams = [
        sp.Stream("a", catalog.table("code"), repeat=1.5),
        sp.Stream("b", catalog.table("code"), choose=7),
        sp.Stream("c", catalog.table("code")),
    ]

    assert "Mix a x1.5, b 7 samples, c x1, epoch_size as counted" in outline(sp.mix(streams).node)[3]


def test_samples_made_of_samples_say_what_they_are(catalog: sp.Catalog) -> None:
    made = pa.schema([("sample_id", pa.utf8()), ("total", pa.int64())])
    late = catalog.table("code").sample(order=sp.Sequential()).assemble(double, columns=["size"], returns=made)

    assert in_words(late.explain())["plan"][-1] == "(3) Assemble double(size) -> sample_id, total"


def test_a_hundred_streams_are_one_line(tmp_path: Path) -> None:
    catalog = texts.make_catalog(tmp_path, {"one": 4})
    many = [sp.Stream(f"s{i}", catalog.table("one"), proportion=0.01) for i in range(100)]
    lines = outline(sp.mix(many, epoch_size="1k").filter(sp.col("size") > 1).node)

    assert lines[100].endswith("and 92 more, epoch_size 1,000   reads 100 of them, (1) to (100)")
    assert lines[-1] == "filter written after (101) runs in each of 100 scans"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"resize_shorter": 256, "crop": 224},
            (
                "uniform over the segment (at the middles of equal parts), shorter segments padded with their last frame; "
                "Resize(size=256), CenterCrop(size=224); float16 ntchw"
            ),
        ),
        (
            {"stride": 2, "random_start": True, "short": "loop"},
            "every 2 frames from a random start, shorter segments looped; Resize(size=64), CenterCrop(size=56); float16 ntchw",
        ),
        (
            {"stride": 1, "short": "drop", "layout": "nthwc", "dtype": "uint8"},
            (
                "every frame from the start, shorter segments left out by a filter; Resize(size=64), CenterCrop(size=56); "
                "uint8 nthwc"
            ),
        ),
    ],
)
def test_clips_say_which_frames_they_are_made_of(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    segments = (
        footages.made_up(tmp_path, 12).table("video.training_segments").cache(clip_ref=sp.Frames(shorter_side=256))
    )
    fields = {"label": sp.List("source"), "frames": footages.frames(**changes)}
    lines = segments.sample(order=sp.Sequential()).collate(batch_size=2, fields=fields).explain().facts["plan"]

    assert lines[-1] == f"    frames = 16 frames of clip_ref (h264), {says}"
    assert lines[-2].endswith("fields label, frames")
    assert any(re.match(r"\(\d\) Cache clip_ref as Frames\(shorter_side=256", line) for line in lines)

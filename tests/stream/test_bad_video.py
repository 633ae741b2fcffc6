"""Every way in which a clip can be bad: the error names the sample, what was found, and the way out."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.semantic import H264_REF
from spiral_stream.testing import same
from tests.fixtures.bad_clips import BAD, DURATION, catalog_of, good_clip, mixed_catalog, stream
from tests.fixtures.examples import few
from tests.fixtures.videos import Made, corrupt, truncate, write_video

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:register .* will be refused:spiral_stream.SpiralWarning"),
]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return good_clip(tmp_path_factory.mktemp("good"))


Bad = Callable[[Path, Path], tuple[Any, Any, Any]]


@pytest.mark.crossed
@pytest.mark.parametrize("profile", [None, sp.Frames(shorter_side=40)], ids=["originals", "profile"])
@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.__name__)
def test_a_bad_clip_is_named_with_the_way_out(good: Path, tmp_path: Path, bad: Bad, profile: Any) -> None:
    catalog = catalog_of(tmp_path, [(good, 0, DURATION), bad(good, tmp_path)])
    with pytest.raises(sp.errors.DataError, match=BAD[bad]) as refused, stream(catalog, profile) as made:
        list(made)
    text = str(refused.value)
    assert "clips: sample sample_id='clip-1': " in text
    assert "Mend it, or leave it out with .filter(col(\"sample_id\") != 'clip-1')" in text


@pytest.mark.crossed
@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.__name__)
@pytest.mark.parametrize("built", ["nothing", "index", "clips"])
def test_a_bad_clip_is_refused_alike_whatever_is_built(good: Path, tmp_path: Path, bad: Bad, built: str) -> None:
    catalog = catalog_of(tmp_path, [(good, 0, DURATION), bad(good, tmp_path)])
    texts = []
    for _ in range(2):
        with stream(catalog, sp.Frames(shorter_side=40) if built == "clips" else None) as made:
            with pytest.raises(sp.errors.DataError) as refused:
                list(made)
            texts.append(str(refused.value))
            if built != "nothing":
                made.materialize(lambda _: None)
    assert texts[0] == texts[1]


def test_a_missing_file_is_a_fault_of_storage(good: Path, tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path, [(good, 0, DURATION), (tmp_path / "gone.mp4", 0, DURATION)])
    says = r"clip-1.*gone.mp4: No such file.*Restore the file"
    with pytest.raises(sp.errors.SourceError, match=says) as refused, stream(catalog) as made:
        list(made)
    assert not isinstance(refused.value, sp.errors.DataError)


def test_a_file_that_changes_after_it_was_indexed_is_refused_until_the_relation_is_refreshed(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", Made(frames=48))
    catalog = catalog_of(tmp_path, [(path, 0, DURATION)])
    sp.index_videos(catalog, "clips", "clip_ref")
    write_video(path, Made(frames=60, gop=5, first=500))
    with (
        stream(catalog) as made,
        pytest.raises(sp.errors.SourceError, match=r'a.mp4 changed .*catalog.refresh\("clips"\)'),
    ):
        list(made)
    catalog.refresh("clips")
    with stream(catalog) as made:
        (found,) = [batch["x"].copy() for batch in made]
    (tmp_path / "other").mkdir()
    with stream(catalog_of(tmp_path / "other", [(path, 0, DURATION)])) as made:
        (fresh,) = [batch["x"].copy() for batch in made]
    assert np.array_equal(found, fresh)


@few(8, 250, suppress_health_check=list(HealthCheck), deadline=None)
@given(
    places=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=40),
    keep=st.floats(0.2, 1),
)
def test_no_bytes_end_the_process(good: Path, places: list[tuple[float, int]], keep: float) -> None:
    """Bytes changed anywhere, in the container and in the packets: frames, or an error of ours."""
    data = bytearray(good.read_bytes())
    for at, value in places:
        data[int(at * len(data))] = value
    data = data[: int(len(data) * keep)]
    table = pa.table({"sample_id": ["a"], "clip_ref": pa.array([bytes(data)], pa.large_binary())})
    with contextlib.suppress(sp.errors.DataError):
        assert decoded(table).shape == (1, 8, 3, 32, 32)


def decoded(table: pa.Table) -> np.ndarray[Any, Any]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        catalog = sp.connect(folder)
        catalog.register("clips", sp.Arrow(table), identity="sample_id", semantic={"clip_ref": H264_REF})
        with stream(catalog) as made:
            (batch,) = list(made)
            return np.asarray(batch["x"]).copy()


@pytest.mark.slow
def test_a_process_that_reads_thousands_of_damaged_clips_lives(good: Path, tmp_path: Path) -> None:
    code = """
import sys, numpy as np
from spiral_stream.decoders.video.video import decode
from spiral_stream.decoders.video.probe import probe
from spiral_stream.errors import DataError, SourceError
from tests.fixtures.examples import few
clean = bytearray(open(sys.argv[1], "rb").read())
index = probe(lambda o, n: memoryview(clean)[o:o + n], len(clean), "clip", 0)
rng, good = np.random.default_rng(1), 0
for _ in range(4000):
    data = clean.copy()
    for at in rng.integers(0, len(data), rng.integers(1, 60)):
        data[at] = rng.integers(256)
    read = lambda o, n: memoryview(data)[o:o + n]
    try:
        decode(index, read, np.arange(0, 48, 3), len(data))
        good += 1
    except (DataError, SourceError):
        pass
print(good)
"""
    done = subprocess.run([sys.executable, "-c", code, str(good)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 4_000


# ---- what on_error does about them


@pytest.fixture(scope="module")
def mixed(good: Path, tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    """Good clips, every kind of bad one among them."""
    return mixed_catalog(good, tmp_path_factory.mktemp("mixed"))


def batches(made: Any) -> list[dict[str, Any]]:
    with made:
        return [{"x": batch["x"].copy(), "name": list(batch["name"])} for batch in made]


@pytest.mark.parametrize("profile", [None, sp.Frames(shorter_side=40)], ids=["originals", "profile"])
def test_bad_clips_are_skipped_or_replaced_counted_and_named(mixed: sp.Catalog, profile: Any) -> None:
    found: dict[str, list[dict[str, Any]]] = {}
    for policy in ("skip", "substitute"):
        with stream(mixed, profile, on_error=policy, error_budget=len(BAD)) as made:
            found[policy] = [{"x": batch["x"].copy(), "name": list(batch["name"])} for batch in made]
            assert made.metrics()["refused"] == len(BAD)
            listed = made.quarantine().to_pylist()
        assert [row["sample_id"] for row in listed] == [f"clip-{2 * i + 1}" for i in range(len(BAD))]
        for row, says in zip(listed, BAD.values(), strict=True):
            assert re.search(says, row["reason"]), row
    assert [batch["name"] for batch in found["skip"]] == [
        [f"clip-{at}", f"clip-{at + 2}"] for at in range(0, 2 * len(BAD), 4)
    ]
    for skipped, replaced in zip(found["skip"], found["substitute"], strict=True):
        assert replaced["name"] == [skipped["name"][i] for i in (0, 1, 1, 0)]
        assert np.array_equal(replaced["x"], skipped["x"][[0, 1, 1, 0]])


@pytest.mark.parametrize("policy", ["skip", "substitute"])
def test_refusals_are_the_same_whatever_is_built(mixed: sp.Catalog, policy: str) -> None:
    def make(profile: Any = None) -> Any:
        return stream(mixed, profile, on_error=policy, error_budget=len(BAD))

    whole = batches(make())
    with make() as made:
        made.materialize(lambda _: None)
    assert all(same(a, b) for a, b in zip(batches(make()), whole, strict=True))


def test_more_bad_clips_than_the_budget_end_the_epoch(mixed: sp.Catalog) -> None:
    with pytest.raises(
        sp.errors.DataError, match=r"4 samples of epoch 0 could not be read, more than the 2"
    ) as refused:
        batches(stream(mixed, on_error="skip", error_budget=2))
    assert "stream.quarantine()" in str(refused.value)


def test_damage_that_a_random_start_misses_refuses_nothing_whatever_is_built(tmp_path: Path) -> None:
    """A cache keeps all frames of a segment that begins at random, and so meets damage that a sample may not."""
    path = write_video(tmp_path / "a.mp4", Made(frames=24, gop=12))
    catalog = catalog_of(tmp_path, [(corrupt(path, tmp_path / f"{i}.mp4", 0), 0, 1_000) for i in range(12)])
    clips = catalog.table("clips").cache(clip_ref=sp.Frames(shorter_side=40))
    field = sp.Stack("clip_ref", decode="h264", sequence_length=4, stride=2, random_start=True, crop=32)
    plan = clips.sample(identity="sample_id", order=sp.Sequential())
    fields = {"x": field, "name": sp.List("sample_id")}
    collated = plan.collate(batch_size=12, fields=fields, on_error="skip", error_budget=12)
    before = batches(collated.to_numpy())
    with collated.to_numpy() as made:
        made.materialize(lambda _: None)
    assert 0 < len(before[0]["name"]) < 12
    assert all(same(a, b) for a, b in zip(batches(collated.to_numpy()), before, strict=True))


@pytest.mark.parametrize("profile", [None, sp.Frames(shorter_side=40)], ids=["originals", "profile"])
def test_a_file_that_is_mended_is_served_again_whatever_was_built(good: Path, tmp_path: Path, profile: Any) -> None:
    bad = truncate(good, tmp_path / "bad.mp4", 0.5)
    catalog = catalog_of(tmp_path, [(good, 0, DURATION), (bad, 0, DURATION)])
    with stream(catalog, profile) as made:
        made.materialize(lambda _: None)
        with pytest.raises(sp.errors.DataError, match="ends early"):
            list(made)
    bad.write_bytes(good.read_bytes())
    with (
        stream(catalog, profile) as made,
        pytest.raises(sp.errors.SourceError, match=r'bad.mp4 changed .*refresh\("clips"\)'),
    ):
        list(made)
    catalog.refresh("clips")
    ((one, other),) = [batch["x"] for batch in batches(stream(catalog, profile))]
    assert np.array_equal(one, other)


@pytest.mark.parametrize("kind", [pa.utf8(), pa.duration("ms"), pa.bool_(), pa.float64()], ids=str)
def test_times_that_are_no_milliseconds_are_refused_by_the_plan(good: Path, tmp_path: Path, kind: pa.DataType) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    times = pa.array([1], pa.int64()).cast(kind)
    table = pa.table({"sample_id": ["a"], "clip_ref": [str(good)], "start_time_ms": [0], "duration_ms": times})
    catalog.register("clips", sp.Arrow(table), identity="sample_id", semantic={"clip_ref": H264_REF})
    with pytest.raises(
        sp.errors.PlanError, match=r"clips: 'duration_ms' is .*; .* whole milliseconds: store them as int64"
    ):
        stream(catalog)
    with pytest.raises(sp.errors.PlanError, match="store them as int64"):
        sp.index_videos(catalog, "clips", "clip_ref")


def test_a_path_that_cannot_be_one_is_told(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path, [("a\0b.mp4", 0, DURATION)])
    with pytest.raises(sp.errors.DataError, match=r"a\\x00b.mp4 holds a NUL character.*Correct it"):
        batches(stream(catalog))


def test_a_segment_past_a_long_pause_is_beyond_the_end(tmp_path: Path) -> None:
    ticks = tuple(60_000 * at for at in (0, 1, 2, 3, 900, 901))  # ten minutes and more without a frame
    path = write_video(tmp_path / "pause.mp4", Made(frames=6, ticks=ticks, fps=1))
    for start in (904_000, 905_000):
        (tmp_path / str(start)).mkdir()
        with pytest.raises(sp.errors.DataError, match="lies beyond the end"):
            batches(stream(catalog_of(tmp_path / str(start), [(path, start, 100_000)])))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: sp.Frames("256"),  # type: ignore[arg-type]
        lambda: sp.Frames(25.5),  # type: ignore[arg-type]
        lambda: sp.Frames(quality=90.5),  # type: ignore[arg-type]
        lambda: sp.Stack("c", decode="h264", crop=3, random_crop="no"),  # type: ignore[arg-type]
    ],
)
def test_values_of_another_type_are_refused_where_they_are_given(wrong: Callable[[], Any]) -> None:
    with pytest.raises(sp.errors.PlanError, match=r"Give|takes"):
        wrong()

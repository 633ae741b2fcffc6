"""The video workflow: segments and labels, the index by storage shard, statistics, the clip cache, the saved streams."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import dagster as dg
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spiral_stream as spiral
from spiral_assets.corpora.scenes import SAID
from spiral_assets.corpora.videos import DrawnVideos, write_video_relations
from spiral_assets.demo.killer import Killer
from spiral_assets.demo.proof import prove
from spiral_assets.plans import video as plans
from spiral_assets.relations.partitions import group_of
from tests.assets.conftest import VIDEO_SHARDS, VIDEOS, Place, built_on, data_version, evaluations, metadata
from tests.fixtures.folded_pages import rows_of
from tests.fixtures.videos import write_sound

SEGMENTS = "catalog/video/training_segments"
LABELS = "catalog/video/segment_labels"
SHARDS_INDEX = "caches/video_index"
INDEX = "catalog/video/index"
STATS = "stats/video/training_segments/clip_stats"
SKEW = "stats/video/training_segments/shard_stats"
CACHE = "caches/video_clips"
STREAM = "streams/video"
MODEL = "models/video_cnn"
STEPS = 30
ROWS = 5 * VIDEOS
UNUSABLE = f"1 of {VIDEOS + 4} files cannot be used: files/vid-0004.mp4"
TURNED = "files/vid-0002.mp4"


@pytest.fixture(scope="session")
def footage(tmp_path_factory: pytest.TempPathFactory) -> DrawnVideos:
    """Videos that no test writes to."""
    root = tmp_path_factory.mktemp("footage") / "videos"
    return write_video_relations(root, VIDEOS, shards=VIDEO_SHARDS, workers=0, progress=False)


@pytest.fixture
def own(footage: DrawnVideos, place: Place) -> Path:
    """A copy to spoil, where the location looks for it."""
    root = place.root / "data" / "videos"
    shutil.copytree(footage.root, root)
    record = root / "videos.json"
    record.write_text(record.read_text().replace(footage.root, str(root)))
    return root


@pytest.fixture(scope="module")
def prepared(
    footage: DrawnVideos, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Place, dg.ExecuteInProcessResult]]:
    """Everything but the training, once; for tests that only look."""
    with (
        dg.DagsterInstance.ephemeral() as instance,
        Place(tmp_path_factory.mktemp("prepared"), instance, Path(footage.root).parent).named() as place,
    ):
        yield place, place.run(job="prepare_video")


@pytest.fixture
def shown(footage: DrawnVideos, tmp_path: Path, instance: dg.DagsterInstance) -> Iterator[Place]:
    """A place that reads the videos that no test writes to."""
    with Place(tmp_path, instance, Path(footage.root).parent).named() as place:
        yield place


def catalog(place: Place) -> spiral.Catalog:
    return spiral.connect(str(place.root / "catalog"))


def looked_at(path: Path) -> dict[str, int]:
    """What PyAV finds in a file."""
    with av.open(str(path)) as file:
        frames = list(file.decode(video=0))
    keys = [place for place, frame in enumerate(frames) if frame.key_frame]
    turned = frames[0].rotation != 0
    sides = (frames[0].width, frames[0].height)
    return {
        "frames": len(frames),
        "width": sides[turned],
        "height": sides[not turned],
        "rotation": 90 if turned else 0,
        "key_distance": int(np.diff([*keys, len(frames)]).max()),
    }


def test_one_job_prepares_everything_and_all_checks_pass(prepared: tuple[Place, dg.ExecuteInProcessResult]) -> None:
    place, result = prepared

    assert result.success
    assert {name for name, each in evaluations(result).items() if not each.passed} == set()
    assert catalog(place).tables() == [plans.INDEX, plans.LABELS, plans.RELATION]
    assert catalog(place).streams() == [plans.TRAIN, plans.VALIDATION]
    facts = metadata(result, SEGMENTS)
    assert (facts["dagster/row_count"], facts["storage_shards"]) == (ROWS, VIDEO_SHARDS)
    columns = {column.name: column for column in facts["dagster/column_schema"].columns}
    assert columns[plans.COLUMN].type == "video/h264-ref"
    assert columns["sample_id"].constraints.unique
    assert data_version(place, SEGMENTS) == catalog(place).entry(plans.RELATION).data_version


def test_the_index_is_built_by_groups_of_storage_shards(prepared: tuple[Place, dg.ExecuteInProcessResult]) -> None:
    place, result = prepared
    entry = catalog(place).entry(plans.RELATION)
    shards = entry.manifest().shard_names.to_pylist()

    key = dg.AssetKey(SHARDS_INDEX.split("/"))
    groups = {f"group-{number:02d}" for number in range(4)}
    assert place.instance.get_materialized_partitions(key) == groups
    events = [event.materialization for event in result.get_asset_materialization_events() if event.asset_key == key]
    told = {event.partition: event for event in events if event.partition}
    assert sum(event.metadata["rows"].value for event in told.values()) == ROWS
    assert sum(event.metadata["files"].value for event in told.values()) == VIDEOS - 1 + 5  # the last is five clips
    assert {name: event.metadata["shards"].value for name, event in told.items()} == {
        group: sum(group_of(shard, 4) == group for shard in shards) for group in groups
    }


def test_the_relation_of_files_says_what_is_in_them(
    footage: DrawnVideos, prepared: tuple[Place, dg.ExecuteInProcessResult]
) -> None:
    rows = catalog(prepared[0]).table(plans.INDEX).to_arrow().to_pylist()

    assert len(rows) == VIDEOS - 1 + 5
    assert sum(row["segments"] for row in rows) == ROWS
    assert {row["error"] for row in rows} == {None}
    columns = metadata(prepared[1], INDEX)["dagster/column_schema"].columns
    assert all(column.description for column in columns if column.name != "storage_shard")
    for row in rows:
        if row["uri"].endswith(".mp4"):
            found = looked_at(Path(footage.root) / row["uri"])
            assert {name: row[name] for name in found} == found, row["uri"]
    assert [row["uri"] for row in rows if row["rotation"]] == [TURNED]
    assert sum(row["uri"].endswith(".tar") for row in rows) == 5


def test_statistics_are_counted_and_shown_in_plots(prepared: tuple[Place, dg.ExecuteInProcessResult]) -> None:
    place, result = prepared
    clips, skew = metadata(result, STATS), metadata(result, SKEW)
    rows = catalog(place).table(plans.RELATION).to_arrow()

    assert clips["dagster/row_count"] == skew["dagster/row_count"] == ROWS
    assert (clips["files"], clips["turned"], clips["refused"]) == (VIDEOS + 4, 1, 0)
    assert clips["hours"] == round(sum(rows["duration_ms"].to_pylist()) / 3_600_000, 3)
    sizes = {row["sizes"]: row["files"] for row in rows_of(clips["sizes"])}
    assert sizes["240 x 320"] == 2
    distances = [row["key_distances"] for row in rows_of(clips["key_distances"])]
    assert distances == sorted(distances)
    assert min(distances) == 12
    for name in ("segments_by_length", "files_by_sizes", "files_by_frame_rates", "files_by_key_distances"):
        assert name in clips[name]
    sources = rows["source"].to_pylist()
    assert skew["source_largest_share"] == pytest.approx(max(map(sources.count, sources)) / ROWS, rel=1e-3)
    assert 1 <= skew["source_effective"] <= len(set(sources)) + 1e-9
    assert skew["creator_id_effective"] > skew["source_effective"]
    assert skew["source_explained_by_time"] > 0.5


def test_the_cache_holds_every_clip_and_the_streams_read_it(prepared: tuple[Place, dg.ExecuteInProcessResult]) -> None:
    place, result = prepared
    built, saved = metadata(result, CACHE), metadata(result, STREAM)
    opened = catalog(place)

    assert (built["rows_built"], built["rows_refused"], built["shards_built"]) == (ROWS, 0, VIDEO_SHARDS)
    form = spiral.profiles.cache_fingerprint(
        plans.RELATION, plans.COLUMN, plans.profile(), plans.clips(random_crop=False), timed=True
    )
    assert built["fingerprint"] == form
    labels = {row["sample_id"]: row for row in opened.table(plans.LABELS).to_arrow().to_pylist()}
    seen: dict[str, set[str]] = {}
    for name in (plans.TRAIN, plans.VALIDATION):
        seen[name] = set()
        with opened.open_stream(name, device="cpu", epoch=0) as stream:
            for batch in stream:
                seen[name] |= set(batch["sample_id"])
                rows = len(batch["sample_id"])
                assert rows <= plans.BATCH
                assert tuple(batch["frames"].shape) == (rows, plans.FRAMES, 3, plans.SIDE, plans.SIDE)
                assert str(batch["frames"].dtype) == "torch.uint8"
                assert batch["caption"] == [labels[each]["caption"] for each in batch["sample_id"]]
                assert batch["label"].tolist() == [labels[each]["label_id"] for each in batch["sample_id"]]
                assert all(
                    caption.endswith(SAID[label])
                    for caption, label in zip(batch["caption"], batch["label"].tolist(), strict=True)
                )
            assert stream.metrics()["cache_hit_rate"] == 1.0
    assert {each.rpartition("-")[0][-1] for each in seen[plans.VALIDATION]} == {"3", "7"}
    assert not {each.rpartition("-")[0] for each in seen[plans.TRAIN]} & {
        each.rpartition("-")[0] for each in seen[plans.VALIDATION]
    }
    assert (saved["samples_per_epoch"], saved["validation_samples"]) == tuple(map(len, seen.values()))
    long = {
        row["sample_id"] for row in opened.table(plans.RELATION).to_arrow().to_pylist() if row["duration_ms"] >= 2_000
    }
    sure = {name for name, row in labels.items() if row["confidence"] >= np.float32(plans.SURE)}
    assert set().union(*seen.values()) == long & sure
    assert "frames" in saved["explain"]


@pytest.mark.slow  # test_caches does it for images
def test_a_second_run_builds_nothing_and_changes_no_version(
    prepared: tuple[Place, dg.ExecuteInProcessResult],
) -> None:
    place, _ = prepared
    keys = (SEGMENTS, LABELS, INDEX, STATS, SKEW, CACHE, STREAM)
    versions = {key: data_version(place, key) for key in keys}

    again = place.run(job="prepare_video")

    assert metadata(again, CACHE)["rows_built"] == 0
    assert {key: data_version(place, key) for key in keys} == versions


def test_a_run_for_a_partition_indexes_the_shards_of_that_group_alone(shown: Place) -> None:
    place = shown
    assert place.run(SEGMENTS).success
    shards = catalog(place).entry(plans.RELATION).manifest().shard_names.to_pylist()
    group = group_of(shards[0], 4)
    of_group = [shard for shard in shards if group_of(shard, 4) == group]

    result = place.run(SHARDS_INDEX, partitions={"partition_key": group})

    key = dg.AssetKey(SHARDS_INDEX.split("/"))
    assert place.instance.get_materialized_partitions(key) == {group}
    assert metadata(result, SHARDS_INDEX)["dagster/row_count"] == len(of_group) * 5 * VIDEOS // VIDEO_SHARDS
    assert len(list((place.root / "caches").glob("caches/*/ledger/*.json"))) == len(of_group)
    span = {"dagster/asset_partition_range_start": "group-00", "dagster/asset_partition_range_end": "group-03"}
    assert place.run(SHARDS_INDEX, partitions={"tags": span}).success
    assert len(place.instance.get_materialized_partitions(key)) == 4
    assert len(list((place.root / "caches").glob("caches/*/ledger/*.json"))) == VIDEO_SHARDS


def register_segments(place: Place, own: Path) -> None:
    """As they are; their asset also draws a sheet of clips, which takes 0.2 CPU s."""
    catalog(place).register(plans.RELATION, spiral.Parquet(str(own / "training_segments"), base=str(own)), unique=False)


def two_labels(own: Path) -> None:
    labels = pq.read_table(own / "segment_labels.parquet")
    pq.write_table(pa.concat_tables([labels, labels.slice(4, 1)]), own / "segment_labels.parquet")


def cut_short(own: Path) -> None:
    path = own / "files" / "vid-0004.mp4"
    path.write_bytes(path.read_bytes()[:9_000])
    measure(own)


def hold_sound_alone(own: Path) -> None:
    write_sound(own / "files" / "vid-0004.mp4")
    measure(own)


def measure(own: Path) -> None:
    """Let the references say how long their files are now."""
    for path in (own / "training_segments").iterdir():
        table = pq.read_table(path)
        rows = table.to_pylist()
        for row in rows:
            if row["clip_ref"]["uri"].endswith(".mp4"):
                row["clip_ref"]["length"] = (own / row["clip_ref"]["uri"]).stat().st_size
        pq.write_table(pa.Table.from_pylist(rows, table.schema), path)


def begin_too_late(own: Path) -> None:
    change(own, "start_time_ms", lambda value: value + 60_000)


def narrow(own: Path) -> None:
    for path in (own / "training_segments").iterdir():
        table = pq.read_table(path)
        at = table.schema.get_field_index("frame_count")
        pq.write_table(table.set_column(at, "frame_count", table["frame_count"].cast(pa.int64())), path)


def change(own: Path, column: str, to: Callable[[Any], Any]) -> None:
    """Change a column in the first row of the first shard."""
    path = own / "training_segments" / "part-0000.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[0][column] = to(rows[0][column])
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)


FILES = (SEGMENTS, SHARDS_INDEX, INDEX)


@pytest.mark.parametrize(
    ("spoil", "keys", "failing", "said", "stopped"),
    [
        (two_labels, (LABELS,), "identity_is_unique", "1 identities repeat: vid-", "streams__video"),
        (narrow, (SEGMENTS,), "schema_is_as_declared", "frame_count is int64, declared int32", "caches__video_index"),
        (cut_short, FILES, "files_are_usable", UNUSABLE, "caches__video_clips"),
        pytest.param(
            hold_sound_alone, FILES, "files_are_usable", UNUSABLE, "caches__video_clips", marks=pytest.mark.slow
        ),
        (
            begin_too_late,
            FILES,
            "segments_lie_in_their_files",
            "1 segments lie outside their file: vid-",
            "caches__video_clips",
        ),
    ],
)
def test_unsound_video_fails_one_check_that_blocks_what_is_built_on_it(
    place: Place, own: Path, spoil: Callable[[Path], None], keys: tuple[str, ...], failing: str, said: str, stopped: str
) -> None:
    spoil(own)
    register_segments(place, own)

    result = place.run(*keys)

    (found,) = [each for each in result.get_asset_check_evaluations() if not each.passed]
    assert found.check_name == failing
    assert found.blocking
    assert found.severity == dg.AssetCheckSeverity.ERROR
    assert said in (found.description or "")
    assert stopped in built_on(place, found.asset_key)


def test_segments_without_a_label_are_a_warning(place: Place, own: Path) -> None:
    labels = pq.read_table(own / "segment_labels.parquet")
    pq.write_table(labels.slice(2), own / "segment_labels.parquet")

    register_segments(place, own)

    found = evaluations(place.run(LABELS))["every_segment_is_labelled"]

    assert not found.passed
    assert not found.blocking
    assert "2 segments without a label, 0 labels without a segment" in (found.description or "")


# Dagster's own Pipes client uses a preview feature and a deprecated name of Dagster's; nothing here can avoid it.
@pytest.mark.filterwarnings("ignore:Function `PipesMessageReader.expected_writer_count`")
@pytest.mark.filterwarnings("ignore:AssetExecutionContext.run_id is deprecated")
@pytest.mark.slow  # a text model, an image model and the demo are killed by default
def test_a_killed_process_is_retried_and_goes_on_at_the_exact_next_batch(
    prepared: tuple[Place, dg.ExecuteInProcessResult],
) -> None:
    place, _ = prepared
    run_id = "11111111-2222-3333-4444-777777777777"
    ledger = place.data / "checkpoints" / run_id / "video_cnn" / "ledger.jsonl"
    killer = Killer(ledger)
    watching = threading.Thread(target=killer.watch, daemon=True)
    watching.start()

    ops = {"models__video_cnn": {"config": {"steps": STEPS, "save_every": 4}}}
    result = place.run(MODEL, ops=ops, run_id=run_id)

    killer.stop()
    watching.join(10)
    assert killer.killed is not None
    assert result.success
    proof = prove(str(place.root / "catalog"), ledger, plans.TRAIN, STEPS)
    assert proof.exact
    assert (proof.processes, proof.expected, proof.repeated_alike) == (2, STEPS, proof.repeated)
    assert proof.resumed_at > (0, 0)
    facts = metadata(result, MODEL)
    assert facts["processes"] == 2
    assert (facts["steps"], facts["clips_per_s"] > 0, facts["cache_hit_rate"]) == (STEPS, True, 1.0)
    assert facts["validated_on"] == metadata(place.run(STREAM), STREAM)["validation_samples"]
    assert evaluations(result)["beats_chance"].severity.value == "WARN"

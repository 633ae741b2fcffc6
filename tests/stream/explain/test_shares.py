"""Who makes up the rows, whether that follows ingest time, and what an order does about it."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.catalog.statistics.measure import measure, save_statistics
from spiral_stream.explain import skew
from tests.fixtures import clips, reads
from tests.fixtures.inner import stages_of
from tests.stream.explain import footages
from tests.stream.explain.batch.test_batch import operands
from tests.stream.explain.words import in_words

ROWS = 600


def by_time(table: pa.Table) -> pa.Table:
    """One source after the other, and creators that come and go."""
    values = {
        "source": ["upload" if i < 200 else "crawl" for i in range(ROWS)],
        "creator_id": [f"creator-{i // 60}" for i in range(ROWS)],
    }
    for name, column in values.items():
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(column))
    return table


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    """Sources and creators follow ingest time; labels do not."""
    return footages.measured(footages.made_up(tmp_path_factory.mktemp("shares"), ROWS, by_time))


def skew_of(stream: sp.PreparedStream) -> dict[str, Any]:
    found: dict[str, Any] = in_words(stream.explain())["skew"]
    return found


def rows_of(found: dict[str, Any], table: str) -> dict[str, dict[str, Any]]:
    return {row["column"]: row for row in found[table]}


def kept(stream: sp.PreparedStream) -> list[str]:
    return [name for batch in footages.samples(stream) for name in batch]


def test_shares_are_those_of_the_rows_that_the_plan_keeps(catalog: sp.Catalog) -> None:
    with footages.program(catalog) as stream:
        found, names = skew_of(stream), kept(stream)
    sources = Counter(footages.column(catalog, "source")[name] for name in names)
    creators = Counter(footages.column(catalog, "creator_id")[name] for name in names)
    shares = np.array(list(creators.values())) / len(names)
    row = rows_of(found, "values")

    assert list(row) == ["source", "creator_id", "label_id"]
    assert found["shares"].startswith(f"of all {len(names)} rows that the plan keeps")
    ((largest, count),) = sources.most_common(1)
    assert row["source"]["largest"] == f"{largest} {count / len(names):.1%} ({count}/{len(names)})"
    assert operands(row["creator_id"]["ten largest"]) == (len(names), len(names))
    assert row["creator_id"]["values"] == "10"
    assert float(row["creator_id"]["effective"]) == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), abs=0.06)
    assert float(row["creator_id"]["HHI"]) == pytest.approx((shares**2).sum(), abs=6e-4)


def test_what_follows_ingest_time_is_told_from_what_does_not(catalog: sp.Catalog) -> None:
    with footages.program(catalog) as stream:
        found = skew_of(stream)
    row = rows_of(found, "time")

    def explained(name: str) -> tuple[float, float]:
        ours, chance = re.findall(r"([\d.]+)%", row[name]["explained"])
        return float(ours), float(chance)

    assert found["ingest time"].startswith("upload_ts; ")
    assert explained("creator_id")[0] > 95
    assert 50 < explained("source")[0] < 90
    assert explained("label_id")[0] < 5 * explained("label_id")[1] < 20
    assert float(row["creator_id"]["tenths by time"]) > 0.8
    assert float(row["label_id"]["tenths by time"]) < 2 * float(row["label_id"]["a random tenth"])


def test_a_hashed_order_is_as_far_as_a_random_one_and_the_stored_order_is_not(catalog: sp.Catalog) -> None:
    with footages.program(catalog) as stream:
        found, hashed = skew_of(stream), "\n".join(in_words(stream.explain())["warnings"])
    with footages.program(catalog, order=sp.Sequential()) as stream:
        stored, warned = skew_of(stream), "\n".join(in_words(stream.explain())["warnings"])
    ours, theirs = rows_of(found, "time"), rows_of(stored, "time")

    for row in ours.values():
        assert float(row["tenths in the order"]) < 2 * float(row["a random tenth"])
    assert float(theirs["creator_id"]["tenths in the order"]) > 0.7  # shards come by name, rows of one as ingested
    assert found["order"].startswith("HashBucketed ignores ingest order: a row's place is a hash of its identity")
    assert stored["order"] == "Sequential keeps the order of storage, and with it that of ingest"
    assert "follow ingest time" not in hashed
    assert "batches follow ingest time: the tenths of the order are as far from the whole as source" in warned
    assert "HashBucketed and GlobalShuffle ignore it" in warned


def test_the_order_of_each_epoch_is_its_own(catalog: sp.Catalog) -> None:
    with footages.program(catalog) as stream:
        rows = [rows_of(in_words(stream.bind(epoch=n).explain())["skew"], "time") for n in (0, 1)]

    assert rows[0]["creator_id"]["tenths by time"] == rows[1]["creator_id"]["tenths by time"]
    assert rows[0]["creator_id"]["tenths in the order"] != rows[1]["creator_id"]["tenths in the order"]


def test_some_rows_stand_for_many(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    with footages.program(catalog) as stream:
        whole = rows_of(skew_of(stream), "values")["creator_id"]
        monkeypatch.setattr("spiral_stream.explain.skew.look_at", lambda *a: look(*a, 96))
        assert stages_of(stream).formed
        seen = reads.watch(monkeypatch)
        found = skew_of(stream)
    row = rows_of(found, "values")["creator_id"]

    assert max(seen.fetches.values()) <= 96
    assert seen.scans == {}
    assert found["shares"].startswith("of ~ 96 of the rows that the plan keeps")
    assert all(row[name].startswith("~") for name in ("values", "ten largest", "effective", "HHI"))
    assert float(row["effective"][1:]) == pytest.approx(float(whole["effective"]), rel=0.1)
    assert "label_id (rows kept)" not in rows_of(found, "columns")


look = skew.look_at


def test_a_joined_label_is_compared_by_shard_of_the_rows_that_are_kept(catalog: sp.Catalog) -> None:
    with footages.program(catalog) as stream:
        found, names = skew_of(stream), kept(stream)
    labels = catalog.table(clips.LABELS).to_arrow()
    label = dict(zip(labels["sample_id"].to_pylist(), labels["label_id"].to_pylist(), strict=True))
    shard = footages.column(catalog, "storage_shard")
    whole = Counter(label[name] for name in names)
    distances = []
    for each in set(shard.values()):
        own = Counter(label[name] for name in names if shard[name] == each)
        size = sum(own.values())
        distances.append(sum(abs(own[k] / size - whole[k] / len(names)) for k in whole) / 2)

    assert rows_of(found, "columns")["label_id (rows kept)"]["mean"] == pytest.approx(np.mean(distances))
    assert rows_of(found, "columns")["source"]["mean"] > 0.2


def test_nothing_is_said_without_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with footages.program(footages.made_up(tmp_path, 60)) as stream:
        assert stages_of(stream).formed
        seen = reads.watch(monkeypatch)
        assert in_words(stream.explain())["skew"] == (
            'unknown: call catalog.measure("video.training_segments"), or materialize asset shard_stats of '
            "video.training_segments"
        )

    assert not {name for _, name in seen.fetches} & {"source", "creator_id", "upload_ts"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.drop_columns(["upload_ts"]), "unknown: the relation has no timestamp column. Register one"),
        (
            lambda t: t.set_column(
                t.schema.get_field_index("upload_ts"), "upload_ts", pa.nulls(len(t), pa.timestamp("ns"))
            ),
            "unknown: too few rows have a value in upload_ts",
        ),
    ],
)
def test_without_times_only_shares_are_known(tmp_path: Path, change: Callable[[pa.Table], pa.Table], says: str) -> None:
    catalog = footages.measured(footages.made_up(tmp_path, 100, change))
    with footages.program(catalog) as stream:
        found = skew_of(stream)

    assert found["ingest time"].startswith(says)
    assert "time" not in found
    assert "source" in rows_of(found, "values")


def test_streams_of_a_mixture_are_told_apart(catalog: sp.Catalog) -> None:
    parts = [
        sp.Stream(name, catalog.table(clips.SEGMENTS).filter(sp.col("source") == name)) for name in ("upload", "crawl")
    ]
    fields = {"label": sp.List("frame_count"), "sample_id": sp.List("sample_id")}
    mixed = sp.mix(parts).sample(identity="sample_id", order=sp.GlobalShuffle(3)).collate(batch_size=10, fields=fields)
    with mixed.to_numpy() as stream:
        found = skew_of(stream)

    told = {(row["stream"], row["column"]): row for row in found["values"]}
    assert {name for _, name in told} == {"creator_id", "video_id"}  # each stream has one source
    assert operands(told["upload", "creator_id"]["largest"]) == (60, 200)
    assert operands(told["crawl", "creator_id"]["largest"]) == (60, 400)
    assert found["order"].startswith("GlobalShuffle ignores ingest order")


def test_pairs_of_segment_and_label_see_the_sources_of_their_segments(tmp_path: Path) -> None:
    catalog = footages.measured(footages.made_up(tmp_path, 100))
    table = catalog.table(clips.LABELS).to_arrow()
    twice = pa.concat_tables([table, table.set_column(1, "label_id", pa.array([7] * len(table)))])
    catalog.register("pairs", sp.Arrow(twice), identity=("sample_id", "label_id"))
    entry = catalog.entry("pairs")
    with OpenRelation(entry) as relation:
        save_statistics(entry, measure(relation))
    fields = {"frames": footages.frames(), "label": sp.Stack("label_id")}
    plan = catalog.table(clips.SEGMENTS).join(catalog.table("pairs"), on="sample_id")
    sampled = plan.sample(identity=("sample_id", "label_id"), order=sp.GlobalShuffle(1))
    with sampled.collate(batch_size=4, fields=fields).to_numpy() as stream:
        found = in_words(stream.explain())

    assert operands(rows_of(found["skew"], "values")["source"]["largest"]) == (100, 200)
    assert found["skew"]["ingest time"].startswith("upload_ts; ")
    assert found["materialize"]["fields"][0]["built"] == "0% (0/100)"  # a clip is kept once, however many labels it has

"""The caches of a plan: which there are, how far each is built, and what the stream says of it."""

from pathlib import Path
from typing import Any

import pytest

import spiral_stream as sp
from spiral_stream.derived.work.executors import Executor
from spiral_stream.display import progress
from tests.fixtures import streams, texts
from tests.fixtures.texts import SMALL_PLANS

pytestmark = SMALL_PLANS


def test_a_stream_says_how_far_its_caches_are_built(own: sp.Catalog, caches: Path) -> None:
    made = streams.plan(own.table("lance"), profile=sp.Raw(shorter_side=20), order=sp.Sequential())
    with made.to_numpy() as stream:
        (before,) = stream.caches()
        done = stream.materialize(lambda _: None)
        (after,) = stream.caches()

        assert stream.rows == streams.ROWS
        assert stream.data_versions == {"lance": own.entry("lance").data_version}
    assert (before.field, before.relation, before.column) == ("image", "lance", "image_ref")
    assert before.form == str(sp.Raw(shorter_side=20))
    assert before.fingerprint == sp.profiles.cache_fingerprint("lance", "image_ref", sp.Raw(shorter_side=20))
    assert before.folder == caches / "caches" / before.fingerprint
    assert (before.rows, before.built, before.payload_bytes, before.complete) == (streams.ROWS, 0, 0, False)
    assert (after.built, after.complete) == (streams.ROWS, True)
    assert after.payload_bytes == done.payload_bytes > 0


def test_only_the_rows_that_the_plan_reads_are_counted(own: sp.Catalog, caches: Path) -> None:
    def of(relation: sp.Relation) -> sp.PreparedStream:
        return streams.plan(relation, profile=sp.Raw(shorter_side=20)).to_numpy()

    with of(own.table("lance").filter(sp.col("label_id") == 2)) as few, of(own.table("lance")) as every:
        few.materialize(lambda _: None)

        assert 0 < few.rows < streams.ROWS
        assert [(each.rows, each.built) for each in few.caches()] == [(few.rows, few.rows)]
        assert [(each.rows, each.built) for each in every.caches()] == [(streams.ROWS, few.rows)]


def test_a_part_that_no_reader_sees_yet_is_not_built(own: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    with streams.plan(own.table("lance"), profile=sp.Raw(shorter_side=20)).to_numpy() as stream:
        monkeypatch.setattr("spiral_stream.cache.store.store.CacheStore.commit", lambda _: 0)
        stream.materialize(lambda _: None)

        (cache,) = stream.caches()
        assert cache.payload_bytes > 0
        assert cache.built == 0


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_selections_columns_and_caches_are_built_by_the_executor_that_is_asked_for(
    own: sp.Catalog, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    start = Executor.start
    monkeypatch.setattr(Executor, "start", lambda self: (asked.append(self.name), start(self))[1])
    made = streams.plan(own.table("lance").filter(sp.col("label_id") < 2), profile=sp.Raw(shorter_side=20))
    with made.to_numpy() as stream:
        done = stream.materialize(lambda _: None, workers=2, executor=executor)
        (cache,) = stream.caches()
        batches = [batch["image"].copy() for batch in stream]

    assert cache.complete
    assert 0 < done.rows == cache.built
    assert len(batches) > 0
    assert asked == [executor]  # once for all


def test_an_executor_that_there_is_not_is_refused(own: sp.Catalog) -> None:
    with (
        streams.plan(own.table("lance"), profile=sp.Raw(shorter_side=20)).to_numpy() as stream,
        pytest.raises(sp.errors.PlanError, match="Give one of threads, processes, ray"),
    ):
        stream.materialize(lambda _: None, executor="dask")


def test_the_line_names_each_cache_and_its_rows(own: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int | None, int | None]] = []
    tell = progress.Teller.__call__

    def watched(self: Any, done: int, total: int | None = None) -> None:
        seen.append((self.why, done, total))
        tell(self, done, total)

    monkeypatch.setattr(progress.Teller, "__call__", watched)
    mixed = sp.mix(
        [
            sp.Stream("a", own.table("lance"), proportion=0.5),
            sp.Stream("b", own.table("parquet"), proportion=0.5),
        ],
        epoch_size=10,
    )
    with streams.plan(mixed, profile=sp.Raw(shorter_side=20)).to_numpy() as stream:
        done = stream.materialize()

    last = {why: (at, total) for why, at, total in seen if why.startswith("building")}
    names = [f"building the cache of {name}.image_ref" for name in ("lance", "parquet")]
    assert last == dict.fromkeys(names, (streams.ROWS, streams.ROWS))
    assert (done.rows, done.rows_total) == (2 * streams.ROWS, 2 * streams.ROWS)


def test_each_stream_of_a_mixture_has_a_token_cache_of_its_own(tmp_path: Path, caches: Path) -> None:
    catalog = texts.make_catalog(tmp_path, {"a": 20, "b": 30})
    mixed = sp.mix([sp.Stream(name, catalog.table(name), proportion=0.5) for name in "ab"], epoch_size=10)
    plan = texts.tokenized(mixed, sp.GlobalShuffle(seed=0)).collate(batch_size=5, fields={"ids": sp.Pad("tokens")})
    with plan.to_numpy() as stream:
        found = stream.caches()

        assert stream.rows == 50
    assert [(each.field, each.relation, each.column, each.rows) for each in found] == [
        ("tokens", "a", "text", 20),
        ("tokens", "b", "text", 30),
    ]
    assert {each.form for each in found} == {"uint16"}
    assert len({each.folder for each in found}) == 2


def test_a_plan_that_decodes_nothing_has_no_cache(own: sp.Catalog) -> None:
    sampled = own.table("lance").sample(identity="sample_id", order=sp.Sequential())
    with sampled.collate(batch_size=8, fields={"label": sp.Stack("label_id")}).to_numpy() as stream:
        assert stream.caches() == []
        with pytest.warns(sp.SpiralWarning, match="nothing is built"):
            stream.materialize(lambda _: None)

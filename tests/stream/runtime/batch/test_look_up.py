"""Batches that are drawn and looked up together are those that are drawn and looked up one by one."""

import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from time import sleep
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.cursor import Cursor
from spiral_stream.fields.ragged import Ragged
from spiral_stream.runtime.batch import look_up as looking_up
from spiral_stream.runtime.batch.look_up import LookedUpBatch, LookingUp
from spiral_stream.runtime.batch.opened_fields import Gathering
from spiral_stream.runtime.columns.samples import Int64
from spiral_stream.runtime.numbering.steps import Steps
from spiral_stream.sampling.epoch import EpochOrder, StreamRows
from spiral_stream.sampling.order import UInt64
from spiral_stream.testing import same
from tests.fixtures.inner import numbering_of, stages_of
from tests.fixtures.texts import fields, make_catalog, tokenized

ROWS = 600
TOKENS = pa.array([list(range(row % 11 + 1)) for row in range(ROWS)], pa.list_(pa.int32()))
FORMED = sp.WindowedBucket(150, [sp.BucketKey("len(tokens)")], sp.BatchBudget(max_tokens=96))
WAYS: dict[str, dict[str, Any]] = {
    "counted": {"batch_size": 16},
    "kept": {"batch_size": 16, "last": sp.KeepPartial},
    "padded": {"batch_size": 16, "last": sp.batching.PadPartial},
    "formed": {"batch_size": None, "formation": FORMED},
    "packed": {
        "batch_size": 2,
        "formation": sp.batching.Packed(max_tokens=24, window_size=128),
        "last": sp.KeepPartial,
    },
    "split": {
        "batch_size": 2,
        "formation": sp.batching.Packed(max_tokens=24, strategy="concat_and_split", window_size=128),
        "last": sp.KeepPartial,
    },
}

pytestmark = [pytest.mark.usefixtures("no_threads_left")]


@pytest.fixture
def rows(tmp_path: Path) -> sp.Relation:
    table = pa.table({"id": range(ROWS), "tokens": TOKENS})
    lance.write_dataset(table, str(tmp_path / "rows.lance"), max_rows_per_file=170)
    catalog = sp.connect(tmp_path / "catalog")
    catalog.register("rows", sp.Lance(str(tmp_path / "rows.lance")), identity="id")
    return catalog.table("rows")


def collated(rows: sp.Relation, way: str) -> sp.Relation:
    fields: dict[str, Any] = {"tokens": sp.Pad("tokens"), "mask": sp.PadMask("tokens")}
    if way in ("counted", "kept", "padded", "formed"):
        fields["id"] = sp.Stack("id")
    return rows.sample(order=sp.GlobalShuffle(seed=2)).collate(fields=fields, **WAYS[way])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, looking up counts as quick."""
    monkeypatch.setattr(looking_up, "QUICK_S", 60.0)


class LookedUp:
    """How many samples each call of `Gathering.located` looks up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: list[int] = []
        located = Gathering.located

        def counting(gathering: Gathering, some: Sequence[StreamRows]) -> tuple[Int64, UInt64]:
            self.counts.append(sum(map(len, some)))
            return located(gathering, some)

        monkeypatch.setattr(Gathering, "located", counting)


@pytest.mark.crossed
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("merge", "rank", "ranks"), [(1, 0, 1), (2, 0, 1), (1, 1, 3)])
def test_batches_and_places_do_not_depend_on_how_many_are_looked_up_together(
    rows: sp.Relation, monkeypatch: pytest.MonkeyPatch, way: str, merge: int, rank: int, ranks: int
) -> None:
    relation, looked = collated(rows, way), LookedUp(monkeypatch)

    def read(most: int) -> tuple[list[Any], list[Any], int]:
        monkeypatch.setattr(looking_up, "BATCHES", most)
        looked.counts.clear()
        with relation.to_numpy(prefetch=2).bind(merge=merge, rank=rank, world_size=ranks) as stream:
            batches, states = [], []
            for batch in stream:
                batches.append(batch)
                states.append(stream.state_dict()["batch"])
            return batches, states, len(looked.counts)

    together, places, calls = read(16)
    alone, expected, each = read(1)

    assert places == expected
    assert len(together) == len(alone) > 5
    assert all(same(a, b) for a, b in zip(together, alone, strict=True))
    assert each == len(alone)
    assert calls < each / 2


def test_no_more_samples_are_looked_up_together_than_a_bound(
    rows: sp.Relation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking_up, "SAMPLES", 100)
    looked = LookedUp(monkeypatch)
    with collated(rows, "counted").to_numpy(prefetch=2) as stream:
        assert len(list(stream)) == ROWS // 16

    assert looked.counts[:4] == [16, 32, 64, 96]  # twice as many each time
    assert max(looked.counts) == 96
    assert sum(looked.counts) == ROWS // 16 * 16


@pytest.mark.parametrize("way", ["counted", "padded", "formed", "packed", "split"])
def test_a_stream_that_skips_looks_up_as_many_together(
    rows: sp.Relation, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    relation, looked = collated(rows, way), LookedUp(monkeypatch)

    def read(most: int) -> tuple[list[Any], int]:
        monkeypatch.setattr(looking_up, "BATCHES", most)
        with relation.to_numpy(prefetch=2) as stream:
            stream.skip(batches=[2, 3, 9], identities=[*stream.ledger(5)[:2], stream.ledger(7)[0]])
            looked.counts.clear()
            return list(stream), len(looked.counts)

    together, calls = read(16)
    alone, each = read(1)

    assert len(together) == len(alone) == each > 5
    assert all(same(a, b) for a, b in zip(together, alone, strict=True))
    assert calls < each / 2


def test_rows_that_take_long_are_looked_up_a_batch_at_a_time(
    rows: sp.Relation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking_up, "QUICK_S", 0.0)
    looked = LookedUp(monkeypatch)
    with collated(rows, "counted").to_numpy(prefetch=2) as stream:
        batches = list(stream)

    assert max(looked.counts) == 32
    assert len(looked.counts) >= len(batches) * 2 / 3


@pytest.mark.parametrize("way", ["counted", "formed"])
def test_an_error_of_looking_up_comes_at_its_batch(
    rows: sp.Relation, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    located = Gathering.located
    with collated(rows, way).to_numpy(prefetch=2) as stream:
        bad = stream.ledger(7)[0]

        def failing(gathering: Gathering, some: Sequence[StreamRows]) -> tuple[Int64, UInt64]:
            if any(bad in each.rows for each in some):
                msg = "row cannot be found"
                raise sp.errors.SourceError(msg)
            return located(gathering, some)

        whole = stream.count()
        monkeypatch.setattr(Gathering, "located", failing)
        seen: list[Any] = []
        with pytest.raises(sp.errors.SourceError, match="row cannot be found"):
            seen.extend(stream)
        assert len(seen) == 7
        assert stream.state_dict()["batch"] == 7
        monkeypatch.setattr(Gathering, "located", located)
        assert len(list(stream)) == whole - 7


def test_an_error_of_drawing_comes_at_its_batch(rows: sp.Relation, monkeypatch: pytest.MonkeyPatch) -> None:
    places = EpochOrder.stream_rows

    def failing(order: EpochOrder, epoch: int, positions: UInt64) -> StreamRows:
        if np.uint64(7 * 16) in positions:
            msg = "the order cannot be read"
            raise sp.errors.SourceError(msg)
        return places(order, epoch, positions)

    monkeypatch.setattr(EpochOrder, "stream_rows", failing)
    with collated(rows, "counted").to_numpy(prefetch=2) as stream:
        seen: list[Any] = []
        with pytest.raises(sp.errors.SourceError, match="the order cannot be read") as caught:
            seen.extend(stream)
        assert len(seen) == 7
        assert caught.value.__context__ is None  # it is told once


def test_batches_that_functions_make_are_drawn_one_by_one(rows: sp.Relation, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = LookedUp(monkeypatch)
    sampled = rows.sample(order=sp.Sequential())
    sampled = sampled.map(lambda row: row + 1, columns=["id"], name="next", returns=pa.int64())
    fields = {"id": sp.Stack("id"), "next": sp.Stack("next")}
    with sampled.collate(batch_size=16, fields=fields).to_numpy() as stream:
        batches = list(stream)

    assert looked.counts == [16] * len(batches)


@pytest.mark.parametrize("way", ["counted", "formed"])
def test_tokens_of_small_batches_are_near_when_they_are_written(
    rows: sp.Relation, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    near: list[bool] = []
    write = Ragged.write

    def writing(tokens: Ragged, *given: Any) -> int:
        near.append(tokens.is_near)
        return write(tokens, *given)

    monkeypatch.setattr(Ragged, "write", writing)
    with collated(rows, way).to_numpy() as stream:
        batches = list(stream)

    assert near == [True] * len(batches)  # ids and mask in one call


@pytest.fixture
def tokenized_texts(tmp_path: Path) -> sp.Relation:
    """Buckets of texts that are tokenized when their windows are formed, so batches are drawn with their tokens."""
    catalog = make_catalog(tmp_path, {"texts": ROWS})
    return tokenized(catalog.table("texts"), sp.GlobalShuffle(seed=2)).collate(
        batch_size=None, formation=FORMED, fields=fields()
    )


def test_an_error_that_comes_of_zeros_names_the_file_that_was_cut(
    rows: sp.Relation, monkeypatch: pytest.MonkeyPatch
) -> None:
    located = Gathering.located
    with collated(rows, "counted").to_numpy() as stream:
        stream.batch(0)  # the blocks of so small a file are verified
        narrow = stages_of(stream).streams[0].selected.narrow
        parts = {path for each in narrow.pieces() for path in each.files() if path.suffix != ".json"}

        def failing(gathering: Gathering, some: Sequence[StreamRows]) -> tuple[Int64, UInt64]:
            found = located(gathering, some)
            for path in parts:
                os.truncate(path, 0)
            for column in gathering.plains.values():
                column.arrow(*found)
            msg = "zeros are no rows"
            raise sp.errors.SourceError(msg)

        monkeypatch.setattr(Gathering, "located", failing)
        with pytest.raises(sp.errors.DamageError, match="could not be read: it became shorter") as refused:
            stream.batch(5)
        assert isinstance(refused.value.__cause__, sp.errors.SourceError)


def test_tokens_that_are_brought_near_together_are_few(
    tokenized_texts: sp.Relation, monkeypatch: pytest.MonkeyPatch
) -> None:
    most_bytes = 4 * 96 * 4  # of tokens of four bytes: those of four batches
    monkeypatch.setattr(looking_up, "FEW_BYTES", most_bytes)
    seen: list[tuple[int, int]] = []
    locate = LookingUp.locate

    def locating(looking: LookingUp, found: Sequence[LookedUpBatch]) -> None:
        locate(looking, found)
        lists = [values for each in found for values in each.drawn.samples.columns.values()]
        near = sum(values.nbytes for values in lists if isinstance(values, Ragged) and values.is_near)
        seen.append((len(found), near))

    monkeypatch.setattr(LookingUp, "locate", locating)
    with tokenized_texts.to_numpy() as stream:
        assert len(list(stream)) > 50

    assert all(near <= most_bytes for _, near in seen)
    assert max(batches for batches, _ in seen) == looking_up.BATCHES
    assert all(near for batches, near in seen if batches <= 4)


def test_bringing_tokens_near_counts_as_reading(tokenized_texts: sp.Relation, monkeypatch: pytest.MonkeyPatch) -> None:
    touched, asleep_s = [0], 0.05

    def touching(*_: Any) -> bool:
        touched[0] += 1
        sleep(asleep_s)
        return True

    monkeypatch.setattr("spiral_stream.fields._tokens.touch", touching)
    with tokenized_texts.to_numpy() as stream:
        for _ in islice(stream, 4):
            pass

    assert touched[0] >= 4
    assert stream.metrics()["fetch_s"] >= touched[0] * asleep_s


def test_of_a_run_of_steps_only_the_first_forms_a_window(rows: sp.Relation) -> None:
    with collated(rows, "formed").to_numpy() as stream:
        numbering = numbering_of(stream)
        runs = Steps(numbering, 0, Cursor().enter(1, 1), 0).due(0, 1)
        begun = 0
        for taken, run in zip(range(1, 4), runs, strict=False):
            (chapter,) = numbering.store.chapters.open.values()
            assert [each.start for each in run] == list(range(begun, len(chapter.batches)))
            assert chapter.formed <= 150 * taken  # and each window leaves some batches to wait
            drawn = numbering.draw(0, [each.start for each in run])
            assert [len(each.samples) for each in drawn] == [each.rows for each in chapter.batches[begun:]]
            assert numbering.ready(0, begun) == 0  # they are drawn
            begun += len(run)

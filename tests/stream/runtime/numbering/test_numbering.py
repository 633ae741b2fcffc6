from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.errors import SpiralWarning
from spiral_stream.runtime.numbering.numbering import CountedBatches, Numbering, batch_number
from tests.fixtures.inner import batches_of, drawn_of, numbering_of

ROWS = 23


def stream(tmp_path: Path, last: Any, **options: Any) -> Any:
    catalog = sp.connect(str(tmp_path / "catalog"))
    table = pa.table({"sample_id": [f"row-{i}" for i in range(ROWS)], "storage_shard": ["a"] * ROWS})
    catalog.register("rows", sp.Arrow(table), identity="sample_id", shard="storage_shard")
    sampled = catalog.table("rows").sample(order=sp.Sequential())
    return sampled.collate(batch_size=5, fields={"id": sp.List("sample_id")}, last=last).to_numpy(**options)


def test_who_draws_asks_five_questions(tmp_path: Path) -> None:
    members = {name for name in vars(Numbering) if name[0] != "_"}
    assert members == {"exists", "total", "draw", "find", "ready"}
    with stream(tmp_path, sp.DropPartial) as one:
        assert members <= set(vars(type(numbering_of(one))))


@pytest.mark.parametrize(("last", "count"), [(sp.DropPartial, 4), (sp.KeepPartial, 5), (sp.batching.PadPartial, 5)])
def test_counted_batches_are_known_without_forming_anything(tmp_path: Path, last: Any, count: int) -> None:
    with stream(tmp_path, last) as one:
        numbering = numbering_of(one)
        assert isinstance(batches_of(one), CountedBatches)
        assert numbering.unknown(7) == 0
        assert numbering.total(7) == count
        assert [numbering.exists(7, number) for number in (0, count - 1, count)] == [True, True, False]


def test_a_row_is_found_in_the_batch_that_draws_it(tmp_path: Path) -> None:
    with stream(tmp_path, sp.DropPartial) as one:
        drawn = [drawn_of(one, 0, number).samples.stream_rows.rows.tolist() for number in range(4)]
        for row in range(ROWS):
            assert list(numbering_of(one).find(0, 0, row)) == [
                number for number, rows in enumerate(drawn) if row in rows
            ]


def test_what_is_undelivered_begins_with_the_batch(tmp_path: Path) -> None:
    with stream(tmp_path, sp.KeepPartial) as one:
        owed, after = batches_of(one).undelivered(0, 3)
        assert (owed.tolist(), after) == ([], 15)
        assert batches_of(one).undelivered(0, 9)[1] == ROWS


@pytest.mark.parametrize("wrong", [1.5, "1", True, None])
def test_what_is_no_batch_number_is_refused(tmp_path: Path, wrong: Any) -> None:
    with stream(tmp_path, sp.KeepPartial) as one:
        assert batch_number(np.int32(3)) == 3
        with pytest.raises(TypeError, match=r"batch .* is a .*. Give an integer in \[0, stream.count\(\)\)"):
            one.ledger(wrong)


@pytest.mark.parametrize(
    ("last", "options", "why"),
    [
        (sp.DropPartial, {"world_size": 5}, r"4 batches do not make a step of 5 ranks.*Read with at most 4 ranks"),
        (sp.DropPartial, {"merge": 6}, r"4 batches do not make a step of 1 ranks with merge=6.*Lower merge"),
        (sp.KeepPartial, {"world_size": 6, "rank": 5}, r"its 5 batches go to the ranks before it"),
    ],
)
def test_a_rank_that_gets_nothing_is_told_why(tmp_path: Path, last: Any, options: dict[str, int], why: str) -> None:
    with stream(tmp_path, last) as one:
        one.bind(**{"rank": 0, "world_size": 1, "merge": 1, **options})
        with pytest.warns(SpiralWarning, match=f"iter: rank .* gets nothing.*{why}"):
            assert list(one) == []

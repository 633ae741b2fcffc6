"""Survivors are those of a filter of the whole table, whichever shards, executors and forms they are kept in."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream import Expr, col
from spiral_stream.derived.kinds.selected_rows import ALL, BITMAP, OFFSETS, Survivors, encoded, width_of
from spiral_stream.derived.work.executors import Processes
from spiral_stream.errors import PlanError
from spiral_stream.expr import canonical
from spiral_stream.relational.selection import Selection
from spiral_stream.sources import passing
from tests.fixtures.shards import Rows, made, parts

SCHEMA = pa.schema([("x", pa.float64()), ("k", pa.int32()), ("g", pa.utf8()), ("payload", pa.binary())])
PREDICATES: dict[str, Expr] = {
    "compared": col("x") > 0.5,
    "null": col("k").is_null(),
    "both": (col("x") <= 0.3) & (col("g") == "a"),
    "either": (col("k") == 3) | (col("g") == "b") | col("x").is_nan(),
    "not": ~(col("k") > 5),
    "computed": (col("k") * 2 + 1) > 7,
    "text": col("g").str.starts_with("a"),
    "none": col("x") > 99.0,
    "all": col("x").is_null() | col("x").is_nan() | (col("x") > -99.0),
}


def table(rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)

    def some(values: Any) -> pa.Array:
        return pa.array(values, mask=rng.random(rows) < 0.1)

    x = np.where(rng.random(rows) < 0.1, np.nan, rng.random(rows))
    columns = [some(x), some(rng.integers(0, 9, rows).astype(np.int32)), some(rng.choice(["a", "ab", "b"], rows))]
    return pa.table([*columns, pa.array([b"payload"] * rows, pa.binary())], schema=SCHEMA)


def survivors(predicate: Expr) -> Survivors:
    bound = canonical(predicate, SCHEMA)
    kinds = {name: SCHEMA.field(name).type for name in sorted(bound.columns())}
    return Survivors(bound, tuple((name, str(kind)) for name, kind in kinds.items()), "", width_of(kinds))


def expected(source: Rows, predicate: Expr) -> list[int]:
    whole = pa.concat_tables(source.shards)
    numbered = whole.append_column("at", pa.array(np.arange(len(whole))))
    return list(passing(numbered, canonical(predicate, SCHEMA), ["at"])["at"].to_pylist())


def found(selection: Selection) -> list[int]:
    return selection.ordinals(np.arange(selection.total, dtype=np.uint64)).tolist()


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.sampled_from([1, 2, 63, 64, 511, 512, 513, 2000]), min_size=1, max_size=6),
    kind=st.sampled_from(sorted(PREDICATES)),
    seed=st.integers(0, 2**20),
)
def test_the_rows_that_survive_are_those_of_a_filter_of_the_whole_table(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], kind: str, seed: int
) -> None:
    source = Rows([table(rows, seed + k) for k, rows in enumerate(sizes)])

    pieces = made(source, survivors(PREDICATES[kind]), tmp_path_factory.mktemp("s"))

    assert found(Selection(source.manifest.starts, pieces)) == expected(source, PREDICATES[kind])
    assert source.read == PREDICATES[kind].columns()
    assert sorted(source.looked_at) == list(range(len(sizes)))


@pytest.mark.parametrize("changed", ["appended", "replaced", "removed", "another threshold"])
def test_a_change_costs_the_shards_that_changed(tmp_path: Path, changed: str) -> None:
    before = [table(1000, k) for k in range(5)]
    predicate = PREDICATES["compared"]
    made(Rows(before), survivors(predicate), tmp_path)
    after = {
        "appended": [*before, table(500, 9)],
        "replaced": [*before[:2], table(700, 9), *before[3:]],
        "removed": before[1:],
        "another threshold": before,
    }[changed]
    predicate = col("x") > 0.25 if changed == "another threshold" else predicate
    source = Rows(after)

    pieces = made(source, survivors(predicate), tmp_path)

    wanted = {"appended": [5], "replaced": [2], "removed": [], "another threshold": [0, 1, 2, 3, 4]}
    assert source.looked_at == wanted[changed]
    assert source.read <= {"x"}
    assert found(Selection(source.manifest.starts, pieces)) == expected(source, predicate)


def test_processes_write_the_bytes_that_threads_write(tmp_path: Path) -> None:
    source, derivation = Rows([table(3000, k) for k in range(3)]), survivors(PREDICATES["both"])

    made(source, derivation, tmp_path / "threads")
    made(source, derivation, tmp_path / "processes", Processes)

    assert parts(tmp_path / "threads") == parts(tmp_path / "processes")
    assert len(parts(tmp_path / "threads")) == 1


def test_shards_are_kept_in_their_smallest_form() -> None:
    rows = 100_000
    forms = {}
    for share in (0.0, 0.001, 0.03, 0.04, 0.5, 0.999, 1.0):
        arrays, summary = encoded(np.arange(int(share * rows), dtype=np.uint64), rows)
        forms[share] = summary["form"]
        assert sum(each.nbytes for each in arrays.values()) <= rows * (64 + 4) / 512 + 200

    assert forms == {0.0: OFFSETS, 0.001: OFFSETS, 0.03: OFFSETS, 0.04: BITMAP, 0.5: BITMAP, 0.999: BITMAP, 1.0: ALL}


def test_a_shard_of_too_many_rows_is_refused() -> None:
    with pytest.raises(PlanError, match="Register the relation in smaller shards"):
        encoded(np.zeros(0, np.uint64), 2**32 + 1)


def test_types_and_names_of_shards_are_part_of_the_fingerprint() -> None:
    one = survivors(PREDICATES["compared"])

    others = [
        Survivors(one.passing, (("x", "float"),)),
        Survivors(one.passing, one.types, "names of shards"),
        survivors(col("x") > 0.25),
        survivors(col("x") >= 0.5),
    ]

    assert len({each.fingerprint for each in [one, *others]}) == 5
    assert survivors(0.5 < col("x")).fingerprint == one.fingerprint  # noqa: SIM300  another spelling

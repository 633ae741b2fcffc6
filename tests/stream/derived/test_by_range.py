"""Pieces of a shard that is read a range of rows at a time are the bytes of those that are read at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream import col
from spiral_stream.derived import build as room
from spiral_stream.derived.build import make_chunk
from spiral_stream.derived.derivation import Derivation
from spiral_stream.derived.kinds.column import Column, ListLengths
from spiral_stream.derived.kinds.selected_rows import Survivors
from spiral_stream.derived.work.executors import Shared
from spiral_stream.errors import SourceError
from spiral_stream.expr import bind
from tests.fixtures.examples import few
from tests.fixtures.named_shards import Shards, numbers

WORDS = st.text("aä中\0", max_size=5)
INTS = st.one_of(st.integers(0, 200), st.integers(-3, 3), st.integers(0, 2**16), st.integers(-(2**40), 2**40))
ITEMS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), INTS),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.timestamp("us"), st.integers(0, 2**50)),
    (pa.list_(pa.int16(), 3), st.lists(st.integers(-9, 9), min_size=3, max_size=3)),
    (pa.utf8(), WORDS),
    (pa.large_utf8(), WORDS),
    (pa.list_(pa.int64()), st.lists(INTS | st.none(), max_size=4)),
    (pa.large_list(pa.uint64()), st.lists(st.integers(0, 2**64 - 1), max_size=3)),
    (pa.list_(pa.int32()), st.lists(st.sampled_from([-1, 0, 127, 128, 255, 256, 65_535, 2**31 - 1]), max_size=4)),
]


@contextmanager
def held(rows: int, batch_bytes: int) -> Iterator[None]:
    """Shards of more rows are large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "LARGE_ROWS", rows)
        patch.setattr(room, "RANGE_BYTES", batch_bytes)
        yield


def written(source: Shards, derivations: list[Derivation]) -> list[tuple[Any, ...]]:
    """What a chunk of all shards writes."""
    with TemporaryDirectory() as folder:
        drafts = [Path(folder, str(k)) for k in range(len(derivations))]
        for draft in drafts:
            draft.touch()
        every = np.arange(len(source.manifest.starts) - 1)
        found = make_chunk(Shared(source), derivations, [every] * len(derivations), drafts)
        assert sorted(Path(folder).iterdir()) == drafts
        return [
            (
                draft.read_bytes(),
                *(each.tolist() for each in (one.offsets, one.counts, one.summaries, one.sums)),
                one.size,
            )
            for draft, one in zip(drafts, found, strict=True)
        ]


@few(60, 600)
@given(
    data=st.data(),
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    nulls=st.booleans(),
    large=st.integers(0, 8),
    batch_rows=st.integers(1, 5),
    batch_bytes=st.integers(1, 200),
    below=st.integers(-1, 1_000),
)
def test_ranges_leave_the_bytes_as_they_are(
    data: st.DataObject, sizes: list[int], nulls: bool, large: int, batch_rows: int, batch_bytes: int, below: int
) -> None:
    kind, values = data.draw(st.sampled_from(ITEMS))
    values = values | st.none() if nulls else values
    rows = pa.array(data.draw(st.lists(values, min_size=sum(sizes), max_size=sum(sizes))), kind)
    table = numbers(sum(sizes)).append_column("v", rows)
    source = Shards(table, tuple(sizes), batch_rows=batch_rows)
    derivations: list[Derivation] = [
        Column("v", kind),
        Column("x", pa.int64()),
        Survivors(bind(col("x") < below, table.schema), (("x", "int64"),)),
    ]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        derivations.append(ListLengths("v", kind))

    whole = written(source, derivations)
    with held(large, batch_bytes):
        assert written(source, derivations) == whole


def test_rows_out_of_order_are_refused(tmp_path: Path) -> None:
    class Backwards(Shards):
        def scan(self, *asked: Any) -> Any:
            return iter(list(super().scan(*asked))[::-1])

    (tmp_path / "draft").touch()
    source = Backwards(numbers(9), (9,), batch_rows=2)
    with held(5, 1), pytest.raises(SourceError, match="Yield them in physical order"):
        make_chunk(Shared(source), [Column("x", pa.int64())], [np.array([0])], [tmp_path / "draft"])


@pytest.mark.parametrize("kind", ["parquet", "lance", "jsonl", "csv"])
def test_streams_over_one_large_file_deliver_the_same(tmp_path: Path, kind: str) -> None:
    """A filter, a join, a text, a list where there are lists, and a number: one file is one shard."""
    rng = np.random.default_rng(0)
    count = 700
    table = pa.table(
        {
            "id": np.arange(count),
            "label": rng.integers(0, 9, count),
            "text": [f"text {k}" for k in range(count)],
        }
    )
    batches = {}
    for large in (False, True):
        folder = tmp_path / str(large)
        source = _stored(folder, kind, table)
        catalog = sp.connect(str(folder / "catalog"))
        catalog.register("rows", source, identity="id")
        catalog.register("names", sp.Arrow(pa.table({"label": range(7), "name": list("abcdefg")})), identity="label")
        plan = (
            catalog.table("rows")
            .filter(sp.col("id") % 3 < 2)
            .join(catalog.table("names"), on="label")
            .sample(order=sp.GlobalShuffle(seed=2))
            .collate(batch_size=16, fields={name: sp.List(name) for name in ("id", "label", "text", "name")})
        )
        with held(50 if large else 1 << 21, 500), plan.to_numpy() as stream:
            batches[large] = list(stream)
    assert batches[True] == batches[False]
    assert (
        sorted(k for batch in batches[True] for k in batch["id"])[:3]
        == [k for k in range(count) if k % 3 < 2 and table["label"][k].as_py() < 7][:3]
    )


def _stored(folder: Path, kind: str, table: pa.Table) -> Any:
    folder.mkdir()
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=64)
        return sp.Parquet(str(path))
    if kind == "lance":
        import lance

        lance.write_dataset(table, str(path))
        return sp.Lance(str(path))
    if kind == "jsonl":
        import json

        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
        return sp.sources.Jsonl(str(path))
    import pyarrow.csv as pc

    pc.write_csv(table, path)
    return sp.sources.Csv(str(path))

"""Streams over token files deliver what streams over the same lists in Lance deliver, and keep no copy of the ids."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.errors import SourceError
from spiral_stream.planner.selection.narrow_columns import MappedColumn, NarrowSource

DOCUMENTS = 600


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    folder = tmp_path_factory.mktemp("ids")
    rng = np.random.default_rng(0)
    documents = [np.append(rng.integers(1, 99, n), 0).astype(np.uint16) for n in rng.integers(1, 300, DOCUMENTS)]
    (folder / "files").mkdir()
    for k in range(3):
        np.concatenate(documents[k * 200 : (k + 1) * 200]).tofile(folder / "files" / f"{k}.bin")
    catalog = sp.connect(folder / "catalog")
    lists = pa.array([ids.tolist() for ids in documents], pa.list_(pa.uint16()))
    catalog.register("lists", sp.Arrow(pa.table({"id": range(DOCUMENTS), "tokens": lists})), identity="id")
    catalog.register("files", sp.sources.Tokens(folder / "files", separator=0), identity=sp.RowIdentity())
    return catalog


FORMS: dict[str, dict[str, Any]] = {
    "padded": {"batch_size": 16},
    "packed": {"batch_size": 4, "formation": sp.batching.Packed(max_tokens=512, oversize="split")},
}


@pytest.mark.parametrize("form", ["padded", "packed"])
def test_batches_are_those_of_the_same_lists(catalog: sp.Catalog, form: str) -> None:
    def batches(name: str) -> list[dict[str, Any]]:
        stream = (
            catalog.table(name)
            .sample(order=sp.Sequential())
            .collate(fields={"ids": sp.Pad("tokens"), "labels": sp.fields.Labels("tokens")}, **FORMS[form])
            .to_numpy()
        )
        return [{field: batch[field] for field in ("ids", "labels")} for batch in stream]

    files, lists = batches("files"), batches("lists")
    assert len(files) == len(lists) > 5
    for one, other in zip(files, lists, strict=True):
        np.testing.assert_array_equal(one["ids"], other["ids"])
        np.testing.assert_array_equal(one["labels"], other["labels"])


def test_a_filter_and_a_shuffle_read_the_documents_that_they_name(catalog: sp.Catalog) -> None:
    stream = (
        catalog.table("files")
        .filter(sp.col("length") > 200)
        .sample(order=sp.GlobalShuffle(seed=3))
        .collate(batch_size=8, fields={"ids": sp.Pad("tokens"), "length": sp.Stack("length")})
        .to_numpy()
    )
    seen = 0
    for batch in stream:
        ends = [int(np.flatnonzero(row == 0)[0]) + 1 for row in batch["ids"]]
        assert ends == batch["length"].tolist()
        seen += len(ends)
    lengths = catalog.table("files").to_arrow()["length"].to_numpy()
    assert seen == int((lengths > 200).sum()) // 8 * 8 > 0


def test_ids_are_addresses_in_the_files_and_no_piece_is_made(catalog: sp.Catalog, tmp_path: Path) -> None:
    with OpenRelation(catalog.entry("files")) as relation:
        kept = NarrowSource(relation, tmp_path)
        kept.keep(["tokens"], DOCUMENTS)
        column = kept.column("tokens")
        at = kept.located(np.arange(DOCUMENTS, dtype=np.uint64)[::-1].copy())

        assert isinstance(column, MappedColumn)
        assert "tokens" in kept
        assert list(kept.pieces()) == []
        assert not any(tmp_path.iterdir())
        ragged = column.ragged(*at)
        assert ragged.arrow().to_pylist() == column.arrow(*at).to_pylist()
        lengths = kept.lengths("tokens", np.arange(DOCUMENTS, dtype=np.uint64))
        assert column.lengths(*at).tolist() == ragged.lengths.tolist() == lengths[::-1].tolist()
        assert ragged.nbytes == 2 * int(ragged.lengths.sum())
        assert 0.5 < column.bytes / ragged.nbytes < 2
        assert kept.mean_bytes("tokens") == pytest.approx(column.bytes / DOCUMENTS)


def test_other_readers_have_no_columns_in_place(catalog: sp.Catalog) -> None:
    with OpenRelation(catalog.entry("lists")) as relation:
        assert relation.mapped_lists == frozenset()
        with pytest.raises(SourceError, match=r"does not lie in mapped files\. Use fetch"):
            relation.spans(np.array([0], np.uint64), "tokens")


def test_a_mixture_of_token_files_and_lists_delivers_the_documents_of_both(catalog: sp.Catalog) -> None:
    lists = pa.table({"tokens": pa.array([[7] * n for n in range(1, 101)], pa.list_(pa.uint16()))})
    catalog.register("sevens", sp.Arrow(lists), identity=sp.RowIdentity(), replace=True)
    streams = [
        sp.Stream(name, catalog.table(name).project("__row_id__", "tokens"), proportion=0.5)
        for name in ("files", "sevens")
    ]
    stream = (
        sp.mix(streams, epoch_size=200)
        .sample(identity="__row_id__", order=sp.GlobalShuffle(seed=2))
        .collate(batch_size=20, fields={"ids": sp.Pad("tokens", pad_value=-1), "of": sp.List("stream_id")})
        .to_numpy()
    )
    files = {tuple(ids) for ids in catalog.table("files").to_arrow()["tokens"].to_pylist()}
    seen = {"files": 0, "sevens": 0}
    for batch in stream:
        for row, name in zip(batch["ids"].tolist(), batch["of"], strict=True):
            ids = tuple(token for token in row if token != -1)
            assert ids in files if name == "files" else set(ids) == {7}
            seen[name] += 1
    assert seen == {"files": 100, "sevens": 100}


def test_a_run_over_token_files_goes_on_where_it_stopped(catalog: sp.Catalog) -> None:
    def stream() -> Any:
        rows = catalog.table("files").sample(order=sp.GlobalShuffle(seed=4))
        formation = sp.batching.Packed(max_tokens=512, oversize="split", length=sp.col("length"))
        return rows.collate(batch_size=4, formation=formation, fields={"ids": sp.Pad("tokens")}).to_numpy()

    whole = [batch["ids"].copy() for batch in stream()]
    with stream() as first:
        run = iter(first)
        head = [next(run)["ids"].copy() for _ in range(7)]
        state = first.state_dict()
    with stream() as second:
        second.load_state_dict(state)
        tail = [batch["ids"].copy() for batch in second]

    assert len(whole) == len(head) + len(tail) > 10
    for one, other in zip(whole, [*head, *tail], strict=True):
        np.testing.assert_array_equal(one, other)


def test_rows_joined_to_token_files_read_their_ids(catalog: sp.Catalog) -> None:
    keys = catalog.table("files").to_arrow().select(["__row_id__", "length"])
    chosen = keys.take(pa.array([5, 250, 599])).rename_columns(["sample_id", "n"])
    catalog.register("chosen", sp.Arrow(chosen), identity="sample_id", replace=True)
    joined = catalog.table("chosen").join(
        catalog.table("files").project("__row_id__", "tokens"), left_on="sample_id", right_on="__row_id__"
    )
    [batch] = (
        joined.sample(identity="sample_id", order=sp.Sequential())
        .collate(batch_size=3, fields={"ids": sp.Pad("tokens", pad_value=-1), "n": sp.Stack("n")})
        .to_numpy()
    )
    assert (batch["ids"] != -1).sum(1).tolist() == batch["n"].tolist()

"""Bad text: each is an error that says where, what was found and the way out, or is counted."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spiral_stream as sp
from tests.fixtures.inner import stages_of
from tests.fixtures.linked import linked
from tests.fixtures.texts import TOKENIZER, WORDS, documents, fields, ids_of, make_catalog, mixed, tokenized, tokenizer

pytestmark = pytest.mark.usefixtures("no_threads_left")

WINDOWED = sp.WindowedBucket(window_size=16, keys=[sp.BucketKey("len(tokens)")], budget=sp.BatchBudget(max_tokens=256))
ORDER = sp.GlobalShuffle(seed=1)


def two(folder: Path) -> sp.Catalog:
    return make_catalog(folder, {"a": 40, "b": 12})


@pytest.fixture
def catalog(tmp_path: Path) -> sp.Catalog:
    return linked(two, tmp_path)


def collated(relation: sp.Relation, *, stored: bool = False, **options: Any) -> sp.Relation:
    settings = {"batch_size": None, "formation": WINDOWED, "fields": fields(), "last": sp.KeepPartial, **options}
    return tokenized(relation, ORDER, stored=stored).collate(**settings)


def with_text(catalog: sp.Catalog, name: str, values: dict[int, Any], folder: Path | None = None) -> sp.Relation:
    """A relation with some texts exchanged; of bytes in Parquet where there is a folder."""
    table = documents(name, 30)
    texts = table["text"].to_pylist()
    for row, value in values.items():
        texts[row] = value
    kind = pa.utf8() if folder is None else pa.binary()
    column = pa.array([text.encode() if folder and isinstance(text, str) else text for text in texts], kind)
    table = table.set_column(1, "text", column)
    if folder is None:
        source: Any = sp.Arrow(table)
    else:
        pq.write_table(table, folder / f"{name}.parquet")
        source = sp.Parquet(str(folder / f"{name}.parquet"))
    catalog.register(name, source, identity="sample_id", shard="storage_shard")
    return catalog.table(name)


def refusal(plan: sp.Relation) -> str:
    with plan.to_numpy() as stream, pytest.raises(sp.errors.DataError) as caught:
        list(stream)
    return str(caught.value)


# ---- texts


def test_an_empty_document_is_a_sample_of_no_tokens(catalog: sp.Catalog) -> None:
    rows = with_text(catalog, "empty", {3: "", 4: "   "})
    for formation, size in ((WINDOWED, None), (None, 8), (sp.batching.Packed(max_tokens=24, window_size=8), 2)):
        with collated(rows, formation=formation, batch_size=size).to_numpy() as stream:
            batches = list(stream)
            assert sorted(ids_of(batches)) == sorted(f"empty-{i}" for i in range(30))
            if size != 2:
                lengths = {k: int(m.sum()) for b in batches for k, m in zip(b["sample_id"], b["mask"], strict=True)}
                assert lengths["empty-3"] == lengths["empty-4"] == 0


def test_a_relation_of_empty_documents_only_has_batches(catalog: sp.Catalog) -> None:
    rows = with_text(catalog, "nothing", dict.fromkeys(range(30), ""))
    with collated(rows, stored=False).to_numpy() as stream:
        assert {batch["ids"].shape[1] for batch in stream} == {8}


@pytest.mark.parametrize("formation", [WINDOWED, None])
def test_a_null_text_is_refused_by_its_name(catalog: sp.Catalog, formation: Any) -> None:
    rows = with_text(catalog, "holes", {7: None})
    message = refusal(collated(rows, formation=formation, batch_size=None if formation else 8))

    assert message.startswith("holes: sample sample_id='holes-7': text: the text is null")
    assert "Filter the row out" in message
    assert ".filter(col(\"sample_id\") != 'holes-7') before sample" in message


def test_a_null_in_one_stream_of_a_mixture_names_its_stream(catalog: sp.Catalog) -> None:
    with_text(catalog, "holes", {7: None})
    message = refusal(collated(mixed(catalog, {"a": 0.5, "holes": 0.5}, 100)))

    assert message.startswith("holes: sample stream_id='holes', sample_id='holes-7': text: the text is null")


def test_a_row_refused_while_caching_is_refused_alike(catalog: sp.Catalog) -> None:
    rows = with_text(catalog, "holes", {7: None})
    before = refusal(collated(rows))
    with collated(rows).to_numpy() as stream:
        assert stream.materialize(lambda _: None).refused == 1
    assert refusal(collated(rows)) == before


@pytest.mark.parametrize("formation", [WINDOWED, None])
def test_bytes_that_are_no_utf8_are_refused_by_their_place(catalog: sp.Catalog, tmp_path: Path, formation: Any) -> None:
    rows = with_text(catalog, "latin", {5: b"w1 caf\xe9 w2"}, tmp_path)
    message = refusal(collated(rows, formation=formation, batch_size=None if formation else 8))

    assert message.startswith("latin: sample sample_id='latin-5': ")
    assert "UTF-8" in message
    assert "Mend it, or leave it out" in message


def test_a_null_list_of_stored_tokens_is_empty(catalog: sp.Catalog) -> None:
    table = documents("lists", 20)
    tokens = table["tokens"].to_pylist()
    tokens[3] = None
    catalog.register(
        "lists", sp.Arrow(table.set_column(2, "tokens", pa.array(tokens, pa.list_(pa.uint16())))), identity="sample_id"
    )
    with collated(catalog.table("lists"), stored=True).to_numpy() as stream:
        rows = {k: int(m.sum()) for b in stream for k, m in zip(b["sample_id"], b["mask"], strict=True)}
    assert rows["lists-3"] == 0


# ---- a document above the budget


def above(catalog: sp.Catalog, oversize: str, **packed: Any) -> sp.Relation:
    """Two of 30 documents have 50 tokens; a batch may hold 32."""
    name = "long"
    if name not in catalog.tables():
        with_text(catalog, name, {4: "w1 " * 50, 9: "w2 " * 50})
    rows = tokenized(catalog.table(name), ORDER)
    if packed:
        return rows.collate(
            batch_size=2, formation=sp.batching.Packed(max_tokens=32, window_size=8, oversize=oversize), fields=fields(),
            last=sp.KeepPartial,
        )  # fmt: skip
    formation = sp.WindowedBucket(
        window_size=8,
        keys=[sp.BucketKey("len(tokens)")],
        budget=sp.BatchBudget(max_tokens=32, oversize=oversize),  # type: ignore[arg-type]  # a Literal
    )
    return rows.collate(batch_size=None, formation=formation, fields=fields(), last=sp.KeepPartial)


def test_a_document_above_the_budget_is_refused_by_its_name(catalog: sp.Catalog) -> None:
    message = refusal(above(catalog, "raise"))

    assert message.startswith("long: sample sample_id='long-")
    assert "has 50 tokens, and a batch may hold 32" in message
    assert "choose oversize='truncate' or 'alone' or 'drop' in BatchBudget" in message


def test_a_document_wider_than_a_row_is_refused_by_its_name(catalog: sp.Catalog) -> None:
    message = refusal(above(catalog, "raise", packed=True))

    assert message.startswith("long: sample sample_id='long-")
    assert "oversize=" in message


@pytest.mark.parametrize(("oversize", "packed"), [("truncate", False), ("truncate", True)])
def test_a_document_above_the_budget_is_cut_and_counted(catalog: sp.Catalog, oversize: str, packed: bool) -> None:
    with above(catalog, oversize, **({"packed": True} if packed else {})).to_numpy() as stream:
        batches = list(stream)
        assert stream.metrics()["truncated"] == 2
    assert sorted(ids_of(batches)) == sorted(f"long-{i}" for i in range(30))
    assert max(int(batch["mask"].sum(axis=1).max()) for batch in batches) == 32


@pytest.mark.parametrize("packed", [False, True])
def test_a_document_above_the_budget_is_dropped_and_counted(catalog: sp.Catalog, packed: bool) -> None:
    with above(catalog, "drop", **({"packed": True} if packed else {})).to_numpy() as stream:
        ids = ids_of(list(stream))
        assert stream.metrics()["dropped"] == 2
        assert stream.metrics()["samples"] == 28
        assert stream.locate("long-4", epoch=0) is None
    assert sorted(ids) == sorted(f"long-{i}" for i in range(30) if i not in (4, 9))


def test_a_document_above_the_budget_comes_alone_and_counted(catalog: sp.Catalog) -> None:
    with above(catalog, "alone").to_numpy() as stream:
        batches = list(stream)
        assert stream.metrics()["alone"] == 2
    assert sorted(ids_of(batches)) == sorted(f"long-{i}" for i in range(30))
    large = [batch for batch in batches if batch["ids"].size > 32]
    assert sorted(ids_of(large)) == ["long-4", "long-9"]
    assert all(len(batch["ids"]) == 1 for batch in large)


# ---- tokenizers


def changed() -> Any:
    made = tokenizer()
    made.add_tokens(["w1000"])
    return made


def test_a_tokenizer_that_changed_after_the_plan_was_saved_is_refused(catalog: sp.Catalog) -> None:
    catalog.save_stream("train", collated(catalog.table("a")).to_numpy())
    catalog.drop_tokenizer(TOKENIZER)
    catalog.register_tokenizer(TOKENIZER, changed())

    with (
        catalog.open_stream("train") as stream,
        pytest.raises(
            sp.errors.PlanError, match=r"tokenizer 'words' changed since this plan.*Make the plan again.*old tokenizer"
        ),
    ):
        next(iter(stream))


def test_a_cache_of_another_tokenizer_is_not_used(catalog: sp.Catalog) -> None:
    with collated(catalog.table("a")).to_numpy() as stream:
        stream.materialize(lambda _: None)
        list(stream)
        assert stream.metrics()["source_rows"] == 0
    catalog.drop_tokenizer(TOKENIZER)
    catalog.register_tokenizer(TOKENIZER, changed())

    with collated(catalog.table("a")).to_numpy() as stream:
        list(stream)
        assert stream.metrics()["cached_rows"] == 0
        assert stream.metrics()["source_rows"] >= 40


def test_an_unknown_tokenizer_is_refused_with_what_is_near(catalog: sp.Catalog) -> None:
    sampled = catalog.table("a").sample(order=ORDER)
    with pytest.raises(sp.SpiralError, match=r"wordz.*words"):
        sampled.map(sp.Tokenize("text", tokenizer="wordz") >> "tokens")


# ---- mixtures


@pytest.mark.parametrize("share", [-0.1, 0, float("nan"), float("inf"), "half", True])
def test_a_proportion_that_is_none_is_refused(catalog: sp.Catalog, share: Any) -> None:
    with pytest.raises(
        sp.errors.PlanError, match=r"stream 'b': proportion=.*Give a number above 0, or leave the stream out"
    ):
        mixed(catalog, {"a": 0.5, "b": share}, 100)


def test_proportions_that_do_not_sum_to_one_warn_and_are_relative(catalog: sp.Catalog) -> None:
    with pytest.warns(UserWarning, match="proportions sum to 1.2, not 1; they are taken in relation to that"):
        docs = mixed(catalog, {"a": 0.9, "b": 0.3}, 100)
    with collated(docs).to_numpy() as stream:
        assert stages_of(stream).epochs.mixture.quotas(0).tolist() == [75, 25]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mixed(catalog, {"a": 0.1 + 0.2, "b": 0.7}, 100)


def test_a_stream_that_is_empty_after_filters_is_named(catalog: sp.Catalog) -> None:
    docs = sp.mix(
        [
            sp.Stream("web", catalog.table("a"), proportion=0.5),
            sp.Stream("wiki", catalog.table("b").filter(sp.col("quality") > 5), proportion=0.5),
        ],
        epoch_size=100,
    )
    message = r"mix: stream 'wiki': no row of b is left.*Loosen the filter, or leave the stream out"
    with collated(docs).to_numpy() as stream, pytest.raises(sp.errors.PlanError, match=message):
        next(iter(stream))


@pytest.mark.parametrize("nested", [False, True])
def test_a_repeat_of_no_sample_is_refused(catalog: sp.Catalog, nested: bool) -> None:
    docs = sp.mix([sp.Stream("few", catalog.table("b"), repeat=0.01)])
    if nested:
        docs = sp.mix([sp.Stream("in", docs, proportion=0.5), sp.Stream("a", catalog.table("a"), proportion=0.5)])
    with (
        collated(docs).to_numpy() as stream,
        pytest.raises(
            sp.errors.PlanError, match=r"stream 'few': repeat=0.01 of 12 rows is no sample. Raise it, or leave"
        ),
    ):
        next(iter(stream))


def test_what_is_no_list_of_streams_is_refused_in_a_line(catalog: sp.Catalog) -> None:
    rows: Any = catalog.table("a")
    way_out = r"Give a list, \[Stream\(name, relation, proportion=...\), ...\]$"
    for streams, found in ((sp.Stream("a", rows), "a Stream"), ([rows, rows], "a list of Relation"), ([], "nothing")):
        with pytest.raises(sp.errors.PlanError, match=way_out) as caught:
            sp.mix(streams)  # type: ignore[arg-type]  # what it refuses
        assert found in str(caught.value)
        assert len(str(caught.value)) < 150
    with pytest.raises(
        sp.errors.PlanError, match=r"Stream 'a': relation is 'text\.x'\. .*catalog\.table\(\"text\.x\"\)"
    ):
        sp.Stream("a", "text.x", proportion=1.0)  # type: ignore[arg-type]  # as above
    with pytest.raises(
        sp.errors.PlanError, match=r"Stream 'a': relation is a int. Give a relation, for example catalog\.table"
    ):
        sp.Stream("a", 3)  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ([{0: 1.0}], r"schedule is a list. Give a dict of step -> proportions: \{0: \{"),
        ({0: 0.5}, r"schedule at step 0 is 0.5. Give a dict of stream -> proportion: \{0: \{"),
        ({0: {"a": "x"}}, r"schedule at step 0: 'a' has 'x'. Give a number of at least 0"),
        ({0: {"a": 1.0}, 9: {"a": 2.0}}, r"stream 'b' has proportion 0 at every point .* or leave the stream out"),
    ],
)
def test_a_schedule_that_is_none_is_refused_by_its_place(catalog: sp.Catalog, schedule: Any, message: str) -> None:
    with pytest.raises(sp.errors.PlanError, match=message):
        mixed(catalog, {"a": 0.5, "b": 0.5}, 100, schedule=schedule)


def test_an_epoch_size_needs_proportions(catalog: sp.Catalog) -> None:
    with pytest.raises(
        sp.errors.PlanError, match=r"no stream has a proportion.*Give each stream a proportion=, or drop"
    ):
        mixed(catalog, {"a": None, "b": None}, 100)
    with pytest.raises(
        sp.errors.PlanError, match=r"epoch_size with repeat= or choose= counts. Give each .*, or drop epoch_size"
    ):
        sp.mix([sp.Stream("a", catalog.table("a"), repeat=2)], epoch_size=100)


@pytest.mark.parametrize("wrong", [3, "state", None, ["state"]])
def test_rebase_takes_a_stream_or_a_state(catalog: sp.Catalog, wrong: Any) -> None:
    with (
        collated(mixed(catalog, {"a": 0.5, "b": 0.5}, 60)).to_numpy() as stream,
        pytest.raises(
            sp.errors.ResumeError, match=r"got a \w+\. Give .*old\.load_state_dict\(state\), then new\.rebase\(old\)"
        ),
    ):
        stream.rebase(wrong)


@pytest.mark.parametrize("count", [2.5, 0, -1, "ten"])
def test_a_chosen_count_is_whole(catalog: sp.Catalog, count: Any) -> None:
    with pytest.raises(sp.errors.PlanError, match=r"choose=.*Give a whole number above 0, or leave the stream out"):
        sp.mix([sp.Stream("a", catalog.table("a"), choose=count)])


# ---- collate


def test_unknown_columns_are_refused_with_what_is_near(catalog: sp.Catalog) -> None:
    rows = catalog.table("a")
    sampled = rows.sample(order=ORDER)
    with pytest.raises(sp.errors.PlanError, match=r"tokenize: 'txt' is not a column.*did you mean 'text'"):
        sampled.map(sp.Tokenize("txt", tokenizer=TOKENIZER) >> "tokens")
    with pytest.raises(sp.errors.PlanError, match=r"tokenize: 'size' is int64. Name a column of text"):
        sampled.map(sp.Tokenize("size", tokenizer=TOKENIZER) >> "tokens")
    with pytest.raises(sp.errors.PlanError, match=r"field 'ids'.*'tokns' is not a column.*did you mean 'tokens'"):
        collated(rows, fields={"ids": sp.Pad("tokns")})
    with pytest.raises(sp.errors.PlanError, match=r"Pad\('text'\): the column is string.*Tokenize\(\"text\""):
        collated(rows, fields={"ids": sp.Pad("text")})
    with pytest.raises(sp.errors.PlanError, match=r"bucket key 'len\(tokns\)'.*tokns"):
        collated(rows, formation=sp.WindowedBucket(keys=[sp.BucketKey("len(tokns)")]), batch_size=4)
    with pytest.raises(sp.errors.PlanError, match=r"bucket key 'text' is string. Give a number of each sample"):
        collated(rows, formation=sp.WindowedBucket(keys=[sp.BucketKey("text")]), batch_size=4)


@pytest.mark.parametrize("columns", ["text", 3, [3]])
def test_columns_of_a_function_are_a_list(catalog: sp.Catalog, columns: Any) -> None:
    sampled, kind = catalog.table("a").sample(order=ORDER), pa.int64()
    for verb, make in {
        "map": lambda: sampled.map(len, name="x", columns=columns, returns=kind),
        "filter": lambda: sampled.filter(len, columns=columns),
        "flat_map": lambda: sampled.flat_map(len, name="x", columns=columns, returns=kind, fan_out=2),
        "assemble": lambda: sampled.assemble(len, columns=columns, returns=pa.schema([])),
    }.items():
        with pytest.raises(sp.errors.PlanError, match=rf"^{verb}: columns=.*. Give a list of .*columns=\["):
            make()


@pytest.mark.parametrize("formation", [WINDOWED, None])
def test_batches_are_numbered_by_integers(catalog: sp.Catalog, formation: Any) -> None:
    plan = collated(catalog.table("a"), stored=True, formation=formation, batch_size=None if formation else 8)
    with plan.to_numpy() as stream:
        for bad in ("x", None, 1.5, True):
            for ask in (stream.batch, stream.ledger):
                with pytest.raises(TypeError, match=r"batch .* is a .*. Give an integer in \[0, stream.count\(\)\)"):
                    ask(bad)  # type: ignore[arg-type]  # what it refuses
        assert stream.ledger(np.int64(1)) == stream.batch(np.uint8(1))["sample_id"]  # type: ignore[arg-type]  # as good


@pytest.mark.parametrize("device", ["tpu", 0, "cuda:x", "CPU"])
def test_a_device_that_is_none_is_refused_where_it_is_named(catalog: sp.Catalog, device: Any) -> None:
    plan = collated(catalog.table("a"), stored=True)
    with (
        plan.to_numpy() as stream,
        pytest.raises(sp.errors.BindError, match=r'^bind: device=.*Give "cpu", "cuda", .*cuda:0.* or "auto"'),
    ):
        stream.bind(device=device)
    with pytest.raises(
        sp.errors.PlanError, match=r'^to_torch: device=.*Give "cpu", "cuda", a CUDA device .*"cuda:0".* or "auto"'
    ):
        plan.to_torch(device=device)


def test_text_through_a_dictionary_is_text(catalog: sp.Catalog) -> None:
    table = documents("coded", 20)
    catalog.register(
        "coded", sp.Arrow(table.set_column(1, "text", table["text"].dictionary_encode())), identity="sample_id"
    )
    wanted = dict(zip(table["sample_id"].to_pylist(), table["tokens"].to_pylist(), strict=True))
    for cached in (0, 20):
        with collated(catalog.table("coded")).to_numpy() as stream:
            batches = [(b["sample_id"], b["ids"], b["mask"]) for b in stream]
            assert stream.metrics()["cached_rows"] == cached
            stream.materialize(lambda _: None)
        found = {k: ids[m == 1].tolist() for batch in batches for k, ids, m in zip(*batch, strict=True)}
        assert found == wanted


def test_two_columns_of_one_name_are_refused_by_it() -> None:
    with pytest.raises(sp.errors.SourceError, match=r"Arrow: two columns are called 'x'\. .*table\.rename_columns"):
        sp.Arrow(pa.table([[1], [2], [3]], names=["x", "y", "x"]))


def test_what_bounds_no_batch_is_refused_with_the_plan(catalog: sp.Catalog) -> None:
    rows = catalog.table("a")
    with pytest.raises(sp.errors.PlanError, match=r"batch_size=None needs a formation that bounds a batch. Give"):
        collated(rows, formation=None)
    with pytest.raises(
        sp.errors.PlanError, match=r"batch_size is None and there is no budget. Give batch_size, or budget="
    ):
        collated(rows, formation=sp.WindowedBucket())
    with pytest.raises(sp.errors.PlanError, match=r"max_tokens is 4, but one row is already 8 wide.*Raise max_tokens"):
        collated(rows, formation=sp.WindowedBucket(budget=sp.BatchBudget(max_tokens=4)))
    with pytest.raises(sp.errors.PlanError, match=r"multiple of 8.*Give max_tokens=24 or 16"):
        collated(rows, formation=sp.batching.Packed(max_tokens=20), batch_size=2)
    with pytest.raises(sp.errors.PlanError, match=r"a budget of tokens, or packing, needs a field of tokens. Add one"):
        collated(rows, fields={"id": sp.List("sample_id")})
    with pytest.raises(
        sp.errors.PlanError, match=r"max_bytes of BatchBudget counts decoded frames.*use max_tokens, or batch_size"
    ):
        collated(rows, formation=sp.WindowedBucket(budget=sp.BatchBudget(max_bytes=100)))


def test_a_composition_needs_its_mixture(catalog: sp.Catalog) -> None:
    rows, docs = catalog.table("a"), mixed(catalog, {"a": 0.5, "b": 0.5}, 100)
    with pytest.raises(sp.errors.PlanError, match=r"nothing is mixed. Drop it, or begin with mix"):
        collated(rows, composition=sp.StratifiedByStream())
    with pytest.raises(
        sp.errors.PlanError, match=r"StratifiedByStream\('lang'\); a mixture's streams are in 'stream_id'"
    ):
        collated(docs, composition=sp.StratifiedByStream("lang"))
    with pytest.raises(sp.errors.PlanError, match=r"Packed.*Leave the composition out.*or use WindowedBucket"):
        collated(docs, formation=sp.batching.Packed(max_tokens=24), composition=sp.StratifiedByStream(), batch_size=2)


def test_a_packed_row_cannot_be_stacked(catalog: sp.Catalog) -> None:
    with pytest.raises(
        sp.errors.PlanError, match=r"field 'size': a packed row holds several.*Use List\('size'\), or another"
    ):
        collated(
            catalog.table("a"),
            formation=sp.batching.Packed(max_tokens=24),
            batch_size=2,
            fields=fields() | {"size": sp.Stack("size")},
        )


def test_a_null_bucket_key_is_refused(catalog: sp.Catalog) -> None:
    table = documents("keys", 20)
    sizes = [None if i == 3 else i for i in range(20)]
    catalog.register("keys", sp.Arrow(table.set_column(4, "size", pa.array(sizes))), identity="sample_id")
    plan = collated(catalog.table("keys"), formation=sp.WindowedBucket(keys=[sp.BucketKey("size")]), batch_size=4)

    with (
        plan.to_numpy() as stream,
        pytest.raises(
            sp.errors.PlanError, match=r"bucket key 'size' is null for 1 of 20 samples.*Filter those rows out"
        ),
    ):
        next(iter(stream))


def test_words_beyond_the_vocabulary_are_unknown_tokens(catalog: sp.Catalog) -> None:
    rows = with_text(catalog, "words", {2: "w1 zebra w2"})
    with collated(rows).to_numpy() as stream:
        found = {
            k: ids[m == 1].tolist()
            for b in stream
            for k, ids, m in zip(b["sample_id"], b["ids"], b["mask"], strict=True)
        }
    assert found["words-2"] == [1, WORDS, 2]


def lopsided(catalog: sp.Catalog, tokens: dict[int, int], labels: dict[int, int]) -> sp.Relation:
    """Two columns of tokens of six each, but for some rows."""
    table = pa.table(
        {
            "sample_id": [f"row-{i}" for i in range(12)],
            "tokens": pa.array([[1] * tokens.get(i, 6) for i in range(12)], pa.list_(pa.int32())),
            "labels": pa.array([[2] * labels.get(i, 6) for i in range(12)], pa.list_(pa.int32())),
        }
    )
    catalog.register("two", sp.Arrow(table), identity="sample_id")
    return catalog.table("two").sample(identity="sample_id", order=sp.Sequential())


def packed(sampled: sp.Relation, **options: Any) -> sp.Relation:
    fields = {"ids": sp.Pad("tokens"), "target": sp.Pad("labels", pad_value=-100), "sample_id": sp.List("sample_id")}
    formation = sp.batching.Packed(max_tokens=16, window_size=8, **options)
    return sampled.collate(batch_size=1, formation=formation, fields=fields, last=sp.KeepPartial)


@pytest.mark.crossed
@pytest.mark.parametrize("options", [{}, {"oversize": "truncate"}, {"strategy": "concat_and_split"}])
@pytest.mark.parametrize(("tokens", "labels"), [(6, 4), (6, 7), (6, 0), (3, 6)])
def test_packed_columns_of_unequal_lengths_are_refused_by_sample_and_column(
    catalog: sp.Catalog, tokens: int, labels: int, options: dict[str, Any]
) -> None:
    message = refusal(packed(lopsided(catalog, {9: tokens}, {9: labels}), **options))

    assert message.startswith("two: sample sample_id='row-9': collate: it has ")
    assert f"{labels} tokens in 'labels' and {tokens} in 'tokens'" in message
    assert "Make them equally long" in message
    assert "or use WindowedBucket" in message


@pytest.mark.parametrize(("oversize", "delivered"), [("truncate", 12), ("drop", 11)])
def test_packed_columns_may_differ_in_what_is_not_delivered(catalog: sp.Catalog, oversize: Any, delivered: int) -> None:
    with packed(lopsided(catalog, {9: 20}, {9: 18}), oversize=oversize).to_numpy() as stream:
        assert len(ids_of(list(stream))) == delivered

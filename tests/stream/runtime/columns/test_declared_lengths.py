"""A stored column stands for the lengths of tokens: the same batches, formed without their tokens."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.runtime.columns.tokens import TokenFeed
from tests.fixtures.examples import few
from tests.fixtures.inner import batches_of, stages_of
from tests.fixtures.texts import TOKENIZER, documents, tokenizer

ROWS = 500
OWN = few(4, 8, suppress_health_check=[HealthCheck.function_scoped_fixture])
FORMATIONS = {
    "bucket": lambda **own: sp.WindowedBucket(16, [sp.BucketKey("n")], sp.BatchBudget(max_tokens=128), **own),
    "truncated": lambda **own: sp.WindowedBucket(
        16, [sp.BucketKey("n")], sp.BatchBudget(max_tokens=16, oversize="truncate"), **own
    ),
    "best fit": lambda **own: sp.batching.Packed(max_tokens=24, window_size=16, **own),
    "cut": lambda **own: sp.batching.Packed(max_tokens=16, window_size=16, oversize="truncate", **own),
    "split": lambda **own: sp.batching.Packed(max_tokens=16, window_size=16, oversize="split", **own),
    "dropped": lambda **own: sp.batching.Packed(max_tokens=16, window_size=16, oversize="drop", **own),
    "concatenated": lambda **own: sp.batching.Packed(max_tokens=16, strategy="concat_and_split", window_size=16, **own),
}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    catalog = sp.connect(str(tmp_path_factory.mktemp("declared") / "catalog"))
    table = documents("a", ROWS)
    lengths = pa.array([len(each) for each in table["tokens"].to_pylist()], pa.uint16())
    wrong = [n + (row == 77) for row, n in enumerate(lengths.to_pylist())]
    holes = [None if row == 5 else n for row, n in enumerate(lengths.to_pylist())]
    below = [-1 if row == 5 else n for row, n in enumerate(lengths.to_pylist())]
    table = table.append_column("n", lengths).append_column("wrong", pa.array(wrong))
    table = table.append_column("holes", pa.array(holes)).append_column("below", pa.array(below))
    catalog.register("a", sp.Arrow(table), identity="sample_id", shard="storage_shard")
    catalog.register_tokenizer(TOKENIZER, tokenizer())
    return catalog


def plan(catalog: sp.Catalog, formation: Any, *, stored: bool = True, **options: Any) -> Any:
    sampled = catalog.table("a").sample(order=sp.GlobalShuffle(seed=1))
    sampled = sampled if stored else sampled.map(sp.Tokenize("text", tokenizer=TOKENIZER) >> "tokens")
    size = None if isinstance(formation, sp.WindowedBucket) else 2
    own = {"ids": sp.Pad("tokens", pad_value=-1), "sample_id": sp.List("sample_id")}
    settings = {"batch_size": size, "formation": formation, "fields": own, "last": sp.KeepPartial}
    return sampled.collate(**{**settings, **options}).to_numpy()


# ---- laws


@OWN
@given(kind=st.sampled_from(sorted(FORMATIONS)), stored=st.booleans(), epoch=st.integers(0, 3))
def test_a_stored_length_forms_the_same_batches(
    catalog: sp.Catalog, caches: Path, kind: str, stored: bool, epoch: int
) -> None:
    with (
        plan(catalog, FORMATIONS[kind](), stored=stored).bind(epoch=epoch) as one,
        plan(catalog, FORMATIONS[kind](length=sp.col("n")), stored=stored).bind(epoch=epoch) as other,
    ):
        assert one.fingerprint != other.fingerprint
        expected = [(batch["ids"].tolist(), batch["sample_id"]) for batch in one]
        assert [(batch["ids"].tolist(), batch["sample_id"]) for batch in other] == expected
        assert other.count(epoch) == len(expected)


# ---- examples


def test_several_ranks_need_no_cache_and_counting_asks_for_no_token(
    catalog: sp.Catalog, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = FORMATIONS["best fit"](length="n")
    asked: list[str] = []
    for name in ("tokens", "lengths"):
        inner = getattr(TokenFeed, name)
        monkeypatch.setattr(
            TokenFeed, name, lambda *args, _of=name, _in=inner, **own: (asked.append(_of), _in(*args, **own))[1]
        )
    with plan(catalog, made, stored=False).bind(data_parallel_world_size=2) as one:
        steps = one.steps_per_epoch
        assert asked == []
        assert steps == sum(1 for _ in one)
        assert "tokens" in asked


def test_counting_reads_lengths_of_a_token_cache_and_no_token(
    catalog: sp.Catalog, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sp.WindowedBucket(16, [sp.BucketKey("len(tokens)")], sp.BatchBudget(max_tokens=128))
    with plan(catalog, made, stored=False) as one:
        one.materialize(lambda _: None)
        expected = sum(1 for _ in one)

    def refused(*_: Any, **__: Any) -> Any:
        msg = "tokens were read"
        raise AssertionError(msg)

    with plan(catalog, made, stored=False) as one:
        (Path(batches_of(one).folder) / "epoch-0.index").unlink()
        monkeypatch.setattr(TokenFeed, "tokens", refused)
        assert one.count() == expected


def test_a_function_that_is_given_tokens_gets_them_while_an_epoch_is_counted(catalog: sp.Catalog, caches: Path) -> None:
    def even(tokens: Any) -> Any:
        return pa.array([len(each) % 2 == 0 for each in tokens.to_pylist()])

    sampled = catalog.table("a").sample(order=sp.GlobalShuffle(seed=1))
    sampled = sampled.map(sp.Tokenize("text", tokenizer=TOKENIZER) >> "tokens").filter(even, columns=["tokens"])
    formation = sp.batching.Packed(max_tokens=24, window_size=16)
    made = sampled.collate(batch_size=2, formation=formation, fields={"ids": sp.Pad("tokens")}, last=sp.KeepPartial)
    with made.to_numpy() as one:
        one.materialize(lambda _: None)
        assert one.count() == sum(1 for _ in one)


def test_a_wrong_length_is_refused_when_a_batch_reads_the_tokens(catalog: sp.Catalog, caches: Path) -> None:
    with plan(catalog, FORMATIONS["best fit"](length="wrong")) as one:
        assert one.count() > 0  # nothing is read
        place = one.locate("a-77")
        with pytest.raises(
            sp.errors.DataError, match=r"length='wrong' says \d+ tokens, and 'tokens' has \d+\. Mend that"
        ) as bad:
            one.batch(place["batch"])
        assert "sample_id='a-77'" in str(bad.value)
        assert one.batch((place["batch"] + 1) % one.count())["ids"].shape[1] == 24


@pytest.mark.parametrize(
    ("length", "error", "why"),
    [
        ("holes", sp.errors.PlanError, r"length='holes' is null for 1 of .* Filter those rows out"),
        ("below", sp.errors.DataError, r"length='below' is -1, and no sample is shorter than 0"),
    ],
)
def test_a_length_that_cannot_be_is_refused(
    catalog: sp.Catalog, caches: Path, length: str, error: type[Exception], why: str
) -> None:
    with plan(catalog, FORMATIONS["best fit"](length=length)) as one, pytest.raises(error, match=why):
        one.count()


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: sp.batching.Packed(max_tokens=8, length=5), r"length is 5\. Give a column"),
        (lambda: sp.batching.Packed(max_tokens=8, length="n +"), r"n \+"),
        (lambda: sp.WindowedBucket(length="n"), r"for the budget's max_tokens, which is not given"),
    ],
)
def test_a_length_that_is_no_column_is_refused(made: Any, why: str) -> None:
    with pytest.raises(sp.errors.PlanError, match=why):
        made()


def test_a_length_that_is_no_whole_number_is_refused(catalog: sp.Catalog) -> None:
    for text, why in (("text", r"length='text' is string"), ("quality", r"length='quality' is double"), ("no", "no")):
        with pytest.raises(sp.errors.PlanError, match=why):
            plan(catalog, sp.batching.Packed(max_tokens=24, length=text))


def test_a_plan_with_a_stored_length_is_saved_and_one_without_stays_as_it_was(
    catalog: sp.Catalog, caches: Path
) -> None:
    for name, length in (("with", sp.col("n") + 0), ("without", None)):
        with plan(catalog, sp.batching.Packed(max_tokens=24, length=length)) as one:
            catalog.save_stream(name, one)
            with catalog.open_stream(name) as again:
                assert again.fingerprint == one.fingerprint
                assert again.plan.source.formation == one.plan.source.formation
    assert sp.batching.Packed(max_tokens=24, length=sp.col("n")) == sp.batching.Packed(max_tokens=24, length="n")


def test_the_column_of_lengths_is_kept_so_that_counting_reads_no_source(catalog: sp.Catalog, caches: Path) -> None:
    with plan(catalog, sp.batching.Packed(max_tokens=24, length="n")) as one:
        assert one.count() > 0
        assert all("n" in stream.selected.narrow for stream in stages_of(one).streams)
        assert batches_of(one).forming.for_counting().reader.metrics.source_rows == 0


def test_the_explanation_says_where_lengths_come_from(catalog: sp.Catalog, caches: Path) -> None:
    with plan(catalog, sp.batching.Packed(max_tokens=24, length="n")) as one:
        batch = one.explain().to_dict()["batch"]

    assert batch["lengths"] == "stored as n"
    assert batch["decided by"] == "stored columns"

"""Maps between sample and collate: every chain delivers what a plain Python model says, wherever and however it runs."""

import importlib.util
import json
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, example, given

import spiral_stream as sp
from spiral_stream.errors import BindError, DataError, PlanError
from spiral_stream.plan.saving.canonical import to_json
from spiral_stream.testing import frozen, same
from tests.fixtures import chains
from tests.fixtures.chains import (
    DECIDED,
    SPAN,
    SPREAD,
    STEPS,
    expected,
    random_plan,
    reaches_keep,
    stream,
    words,
    words_plan,
)
from tests.fixtures.examples import few
from tests.fixtures.inner import numbering_of
from tests.fixtures.saved_plans import read_back
from tests.fixtures.texts import TOKENIZER, tokenizer

pytestmark = [pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(600)]

FEW = few(3, 125, suppress_health_check=[HealthCheck.too_slow])
Chain = list[str]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return chains.make_catalog(tmp_path_factory.mktemp("maps"))


def read(run: Any) -> list[dict[str, Any]]:
    with run:
        return [frozen(batch) for batch in run]


def rows(batches: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [row for batch in batches for row in zip(*(list(batch[name]) for name in names), strict=True)]


# ---- laws


@FEW
@given(chain=chains.chains())
@example(chain=["fan", "draw", "fan", "draw_all"])  # what a function draws depends on the flat_maps before it alone
@example(chain=["draw", "fan", "keep"])
@example(chain=["pairs", "draw", "draw_all"])
@example(chain=["is_even", "length", "fan", "pairs", "keep"])
def test_a_chain_delivers_what_the_model_says(catalog: sp.Catalog, chain: Chain) -> None:
    want = expected(catalog, chain, epoch=1)
    fanned = "fan" in chain and "pairs" not in chain
    with stream(catalog, chain, epoch=1) as run:
        batches = [frozen(batch) for batch in run]
        assert rows(batches, "sample_id", "n") == [(row.sample_id, row.n) for row in want]
        named = [identity for number in range(len(batches)) for identity in run.ledger(number, epoch=1)]
    assert max((len(batch["n"]) for batch in batches), default=0) <= 2
    if fanned:
        assert [part for (part,) in rows(batches, "part")] == [row.parts[-1] for row in want]
        numbers = [int(np.dot(row.parts[::-1], 4 ** np.arange(len(row.parts)))) for row in want]
        assert named == [(row.sample_id, number) for row, number in zip(want, numbers, strict=True)]
        assert len(set(named)) == len(named)
    else:
        assert named == [row.sample_id for row in want]


@FEW
@given(chain=chains.chains())
@example(chain=["fan", "pairs", "draw"])
def test_a_chain_resumes_after_every_step_and_any_batch_can_be_built_alone(catalog: sp.Catalog, chain: Chain) -> None:
    batches, states = [], []
    with stream(catalog, chain) as first:
        for batch in first:
            batches.append(frozen(batch))
            states.append(json.loads(json.dumps(first.state_dict())))
    with stream(catalog, chain, prefetch=1) as second:
        for at, state in enumerate(states[:-1]):
            second.load_state_dict(state)
            run = iter(second)
            assert same(next(run), batches[at + 1])
            run.close()
        for number in range(0, len(batches), 7):
            assert same(second.batch(number, epoch=0), batches[number])


@FEW
@given(chain=chains.chains().filter(lambda chain: not DECIDED & set(chain) and reaches_keep(chain)))
def test_several_ranks_are_refused_where_a_filter_sees_what_a_function_gave(catalog: sp.Catalog, chain: Chain) -> None:
    with pytest.raises(BindError, match=r"no cache holds what .* decides: put .cache\(\) after its functions"):
        read(stream(catalog, chain, data_parallel_rank=0, data_parallel_world_size=2))


@FEW
@given(chain=chains.chains())
def test_saved_and_opened_it_delivers_the_same(catalog: sp.Catalog, chain: Chain) -> None:
    with stream(catalog, chain) as made:
        catalog.save_stream("chain", made)
        with catalog.open_stream("chain") as opened:
            assert opened.fingerprint == made.fingerprint
            for number in range(3):
                if numbering_of(made).exists(0, number):
                    assert same(opened.batch(number), made.batch(number))


# ---- random functions


DRAWN = ("sample_id", "a", "b", "again", "bits")


def test_what_a_function_draws_is_its_own_the_samples_and_the_epochs(catalog: sp.Catalog) -> None:
    epochs = [dict_of(read(random_plan(catalog).to_numpy().bind(epoch=epoch))) for epoch in (0, 1)]

    values = [drawn[name] for own in epochs for drawn in own.values() for name in ("a", "b", "again")]
    assert len(set(values)) == len(values) == 2 * 150 * 3
    assert 0.4 < np.mean(values) < 0.6
    assert all(epochs[0][each]["bits"] != epochs[1][each]["bits"] for each in epochs[0])


def dict_of(batches: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row[0]: dict(zip(DRAWN, row, strict=True)) for row in rows(batches, *DRAWN)}


def test_what_is_drawn_depends_on_no_batch(catalog: sp.Catalog) -> None:
    base = dict_of(read(random_plan(catalog).to_numpy()))

    assert dict_of(read(random_plan(catalog, batch_size=7).to_numpy(prefetch=5))) == base


def test_a_run_seed_changes_what_is_drawn_and_nothing_else(catalog: sp.Catalog) -> None:
    one, two = (dict_of(read(random_plan(catalog).to_numpy().bind(run_seed=seed))) for seed in (1, 2))

    assert list(one) == list(two)
    assert all(one[each]["a"] != two[each]["a"] for each in one)


def test_eval_draws_the_same_in_every_epoch(catalog: sp.Catalog) -> None:
    with random_plan(catalog).to_numpy().bind(epoch=2) as run:
        training = dict_of([frozen(batch) for batch in run])
        run.set_epoch(2)
        with run.eval() as evaluation:
            first, second = (dict_of([frozen(batch) for batch in evaluation]) for _ in range(2))

    assert first == second == training


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_what_is_drawn_depends_on_no_worker(catalog: sp.Catalog, workers: int) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    base = dict_of(read(random_plan(catalog).to_numpy()))

    how = {"multiprocessing_context": "spawn", "timeout": 300} if workers else {}
    loader = torch_data.DataLoader(random_plan(catalog).to_torch(), batch_size=None, num_workers=workers, **how)
    batches = [{n: v if isinstance(v, list) else v.numpy() for n, v in batch.items()} for batch in loader]
    assert dict_of(batches) == base


# ---- columns


def repeated(n: pa.Array) -> list[list[int]]:
    return [[value] * (value % 5) for value in n.to_pylist()]


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int32())])
def test_a_list_that_a_function_makes_is_padded_bucketed_and_measured(catalog: sp.Catalog, kind: pa.DataType) -> None:
    plan = (
        catalog.table("d")
        .sample(identity="sample_id", order=SPREAD)
        .map(repeated, columns=["n"], name="z", returns=kind)
        .with_columns(size=sp.len_("z"))
        .filter(sp.len_("z") > 1)
        .collate(
            batch_size=8,
            formation=sp.WindowedBucket(window_size=64, keys=[sp.BucketKey("len(z)")]),
            fields={"z": sp.Pad("z", pad_value=-1), "n": sp.Stack("n"), "size": sp.Stack("size")},
            last=sp.KeepPartial,
        )
    )
    batches = read(plan.to_numpy())

    for z, n, size in rows(batches, "z", "n", "size"):
        assert size == n % 5 > 1
        assert z[z >= 0].tolist() == [n] * size
    assert sum(len(batch["n"]) for batch in batches) == sum(n % 5 > 1 for n in chains.table()["n"].to_pylist())
    assert all(np.ptp(batch["size"]) <= 1 for batch in batches)


def test_computed_columns_may_be_constant_rest_on_each_other_and_stand_for_old_ones(catalog: sp.Catalog) -> None:
    plan = (
        catalog.table("d")
        .sample(identity="sample_id", order=SPREAD)
        .with_columns(k=sp.lit(3), n=sp.col("n") + 1, was=sp.col("n"))
        .with_columns(sum=sp.col("n") + sp.col("k"), half=sp.col("n") / 2)
        .collate(batch_size=50, fields={name: sp.Stack(name) for name in ("k", "n", "was", "sum", "half")})
    )

    for k, n, was, total, half in rows(read(plan.to_numpy()), "k", "n", "was", "sum", "half"):
        assert (k, n, total, half) == (3, was + 1, was + 4, (was + 1) / 2)


def test_filters_that_leave_nothing_give_an_epoch_of_no_batch(catalog: sp.Catalog) -> None:
    plan = catalog.table("d").sample(order=SPREAD).filter(sp.col("n") < 0)
    with plan.collate(batch_size=4, fields={"n": sp.Stack("n")}).to_numpy() as run:
        with pytest.warns(
            sp.SpiralWarning, match=r"rank 0 gets nothing in epoch 0: no batch is left .* loosen the filters"
        ):
            assert [batch for batch in run] == []  # noqa: C416  list() asks for the length, which is counted elsewhere
        assert run.epoch == 1
        assert run.metrics()["filtered"] == chains.ROWS


def test_several_predicates_of_one_filter_hold_together(catalog: sp.Catalog) -> None:
    plan = catalog.table("d").sample(order=SPREAD).filter(sp.col("n") > 20, sp.col("n") < 60)
    found = read(
        plan.filter(lambda n: pc.not_equal(n, 37), columns=["n"])
        .collate(batch_size=4, fields={"n": sp.Stack("n")}, last=sp.KeepPartial)
        .to_numpy()
    )

    want = [n for n in chains.table()["n"].to_pylist() if 20 < n < 60 and n != 37]
    assert sorted(n for (n,) in rows(found, "n")) == sorted(want)


# ---- flat_map and assemble


def test_flat_map_makes_the_samples_that_its_lists_say(catalog: sp.Catalog) -> None:
    plan = words_plan(catalog)
    batches = read(plan.to_numpy())

    found: dict[str, list[str]] = {}
    for number, (each, part, word) in enumerate(rows(batches, "id", "part", "word")):
        assert part == len(found.setdefault(each, [])), number
        found[each].append(word)
    want = {row["sample_id"]: row["text"].split() for row in chains.table().to_pylist() if row["text"]}
    assert found == want
    assert all(len(batch["id"]) == 16 for batch in batches[:-2])
    with plan.to_numpy() as run:
        at = next(n for n, batch in enumerate(batches) if "d-17" in batch["id"])
        assert run.locate("d-17") == {"epoch": 0, "batch": at, "step": at, "rank": 0}
        assert ("d-17", 0) in run.ledger(at)


def test_a_sample_of_too_many_parts_is_named(catalog: sp.Catalog) -> None:
    sampled = catalog.table("d").sample(order=SPREAD)
    plan = sampled.flat_map(words, name="word", columns=["text"], returns=pa.utf8(), fan_out=8)

    with pytest.raises(
        DataError, match=r"sample_id='d-\d+': flat_map \(words\): .* 9 samples, fan_out is 8. Raise fan_out"
    ):
        read(plan.collate(batch_size=16, fields={"word": sp.List("word")}).to_numpy())


@pytest.mark.parametrize("prefetch", [1, 2, 7])
def test_an_assembler_begins_and_ends_with_its_chapter(catalog: sp.Catalog, prefetch: int) -> None:
    found = rows(read(stream(catalog, ["with_words", "pairs"], prefetch=prefetch)), "sample_id", "n")

    assert found == [(row.sample_id, row.n) for row in expected(catalog, ["with_words", "pairs"], 0)]
    odd = rows(read(stream(catalog, ["keep", "pairs"], prefetch=prefetch)), "sample_id")
    kept = [row.chapter for row in expected(catalog, ["keep"], 0)]
    ends = [each.split("@")[1] for (each,) in odd if "@" in each]
    assert ends == [str(chapter) for chapter, own in groupby(kept) if len(list(own)) % 2]
    assert chains.ROWS > SPAN  # so that there are two


def test_assembled_samples_need_no_field_of_their_identity(catalog: sp.Catalog) -> None:
    plan = (
        catalog.table("d")
        .sample(order=chains.ORDER)
        .assemble(chains.Pairs, columns=["sample_id", "n"], returns=chains.PAIRS)
    )
    with plan.collate(batch_size=4, fields={"n": sp.Stack("n")}).to_numpy() as run:
        want = [row.sample_id for row in expected(catalog, ["pairs"], 0)[:4]]  # of one chapter here
        assert run.ledger(0) == want
        with pytest.raises(KeyError, match="an assembled sample has no row of its own"):
            run.locate(want[0])


class Unmade:
    def __init__(self, context: Any) -> None:
        raise RuntimeError(context.chapter)


class Wordless:
    def __init__(self, context: Any) -> None:
        del context


class Wrong(Wordless):
    def push(self, samples: pa.Table) -> pa.Table:
        return samples.rename_columns(["x", "y"])

    def finish(self) -> None:
        return None


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        (Unmade, r"assemble \(Unmade\): RuntimeError: 0; it is called with a context"),
        (Wordless, r"assemble \(Wordless\): gave a Wordless. Give it push\(table\) and finish\(\)"),
        (Wrong, r"assemble \(Wrong\): .*; push and finish return a table with sample_id, n"),
    ],
)
def test_what_is_no_assembler_is_said(catalog: sp.Catalog, factory: type, says: str) -> None:
    plan = catalog.table("d").sample(order=SPREAD).assemble(factory, columns=["sample_id", "n"], returns=chains.PAIRS)

    with pytest.raises(DataError, match=says):
        read(plan.collate(batch_size=4, fields={"n": sp.Stack("n")}).to_numpy())


def test_an_assembler_must_give_the_identity(catalog: sp.Catalog) -> None:
    with pytest.raises(PlanError, match=r"no column 'sample_id', the identity. Add it to returns="):
        catalog.table("d").sample(order=SPREAD).assemble(
            chains.Pairs, columns=["n"], returns=pa.schema([("n", pa.int64())])
        )


# ---- functions that fail


def fails(n: int) -> int:
    return 1 // (n - 37)


def fails_together(n: pa.Array) -> pa.Array:
    return pc.divide(1, pc.subtract(n, 37))


def too_large(n: int) -> int:
    return 2**70 if n == 37 else n


def a_text(n: int) -> Any:
    return "x" if n == 37 else n


@pytest.mark.crossed
@pytest.mark.parametrize(
    ("function", "batched", "says"),
    [
        (fails, False, r"map \(fails\): failed: ZeroDivisionError"),
        (fails_together, True, r"map \(fails_together\): failed: ArrowInvalid: divide by zero"),
        (too_large, False, r"map \(too_large\): .*no int64 .*. State another returns="),
        (a_text, False, r"map \(a_text\): .*no int64 .*. State another returns="),
    ],
)
@pytest.mark.parametrize("chain", [[], ["fan"], ["keep"]])
def test_a_function_that_fails_names_the_sample(
    catalog: sp.Catalog, function: Callable[..., Any], batched: bool, says: str, chain: Chain
) -> None:
    sampled = catalog.table("d").sample(order=SPREAD).filter(sp.col("n").is_in([5, 6, 37]))
    sampled = sampled.with_columns(m=sp.col("n"))
    for name in chain:
        sampled = STEPS[name][0](sampled)
    plan = sampled.map(function, columns=["m"], name="z", returns=pa.int64(), batched=batched)
    bad = chains.table().filter(pc.field("n") == 37)["sample_id"].to_pylist()
    where = "|".join(bad)

    with pytest.raises(DataError, match=rf"d: sample sample_id='({where})': {says}.* or leave it out with .filter"):
        read(plan.collate(batch_size=4, fields={"z": sp.Stack("z")}, last=sp.KeepPartial).to_numpy())


def two(n: pa.Array) -> pa.Array:
    return n[:2]


def test_too_few_values_are_refused(catalog: sp.Catalog) -> None:
    plan = catalog.table("d").sample(order=SPREAD).map(two, columns=["n"], name="z", returns=pa.int64())

    with pytest.raises(
        DataError, match=r"returned 2 values for 4 samples, of which this is the first. Return one for each"
    ):
        read(plan.collate(batch_size=4, fields={"z": sp.Stack("z")}).to_numpy())


# ---- several readers


@pytest.mark.parametrize("name", sorted(DECIDED))
def test_several_ranks_are_refused_where_a_function_decides(catalog: sp.Catalog, name: str) -> None:
    ways = {"pairs": "plan with lanes= that the number of readers divides"}
    says = rf"2 ranks would .* Build it once: .*{ways.get(name, 'put .cache.. after its functions')}.*; or read with one rank"
    with pytest.raises(BindError, match=says):
        read(stream(catalog, [name], data_parallel_rank=1, data_parallel_world_size=2))


def test_several_workers_are_refused_where_a_function_decides(catalog: sp.Catalog) -> None:
    with stream(catalog, ["fan"]) as run:
        with pytest.raises(BindError, match=r"decided by flat_map fan.* 3 workers .* one rank and no workers"):
            next(run._worker_batches(0, 3))  # what each of a DataLoader's workers calls
        assert len(next(iter(run))["n"]) > 0


# ---- plans


def plan_of(catalog: sp.Catalog, function: Any, **options: Any) -> sp.Relation:
    sampled = catalog.table("d").sample(order=SPREAD)
    made = sampled.map(function, columns=["n"], name="z", returns=pa.int64(), **options)
    return made.collate(batch_size=4, fields={"z": sp.Stack("z")})


SOURCE = """
import pyarrow.compute as pc

def helper(n):
    {comment}
    return pc.multiply(n, {factor})

def function(n):
    return pc.add(helper(n), {term})
"""


def module_of(folder: Path, name: str, **values: Any) -> Any:
    file = folder / f"{name}.py"
    file.write_text(SOURCE.format(**{"comment": "# none", "factor": 2, "term": 1, **values}))
    spec = importlib.util.spec_from_file_location("mapped_functions", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_fingerprint_moves_with_a_functions_code_and_its_helpers_not_with_comments(
    catalog: sp.Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fingerprint(name: str, **values: Any) -> str:
        module = module_of(tmp_path, name, **values)
        monkeypatch.setitem(sys.modules, "mapped_functions", module)
        return plan_of(catalog, module.function).fingerprint

    base = fingerprint("base")
    assert fingerprint("comment", comment="# another word") == base
    assert fingerprint("helper", factor=3) != base
    assert fingerprint("own", term=4) != base


def test_a_version_stands_for_the_code(catalog: sp.Catalog) -> None:
    plain, one, also, two = (
        plan_of(catalog, chains.double, **options).fingerprint
        for options in ({}, {"version": "1"}, {"version": "1"}, {"version": "2"})
    )

    assert one == also
    assert len({plain, one, two}) == 3


def test_what_a_function_is_told_enters_the_fingerprint(catalog: sp.Catalog) -> None:
    prints = [
        plan_of(catalog, chains.double).fingerprint,
        plan_of(catalog, chains.double, random=True).fingerprint,
        plan_of(catalog, chains.double, batched=False).fingerprint,
        plan_of(catalog, chains.is_even).fingerprint,
    ]

    assert len(set(prints)) == 4


def test_a_lambda_streams_and_is_not_saved(catalog: sp.Catalog) -> None:
    plan = plan_of(catalog, lambda n: pc.add(n, 1))
    assert len(read(plan.to_numpy())) == chains.ROWS // 4

    with pytest.raises(
        PlanError, match=r"is a lambda, which has no name that another process could look up. Define it with `def`"
    ):
        catalog.save_stream("lambda", plan.to_numpy())

    kept = catalog.table("d").sample(order=SPREAD).filter(lambda n: pc.greater(n, 50), columns=["n"])
    kept = kept.collate(batch_size=4, fields={"n": sp.Stack("n")})
    assert min(n for (n,) in rows(read(kept.to_numpy()), "n")) == 51
    with pytest.raises(PlanError, match="is a lambda"):
        catalog.save_stream("lambda", kept.to_numpy())


def test_a_saved_function_that_is_gone_is_said(catalog: sp.Catalog) -> None:
    data = json.loads(json.dumps(to_json(plan_of(catalog, chains.double).node)).replace(":double", ":trouble"))
    with pytest.raises(
        PlanError,
        match=r"the name tests.fixtures.chains:trouble leads to nothing. Define it in tests.fixtures.chains again",
    ):
        read_back(data, catalog)


def test_eval_of_a_chain_keeps_what_training_would_drop(catalog: sp.Catalog) -> None:
    plan = catalog.table("d").sample(order=SPREAD).filter(sp.col("n") > 10)
    plan = plan.flat_map(chains.fan, columns=["n"], name="n", returns=pa.int64(), fan_out=4)
    with plan.collate(batch_size=32, fields={"n": sp.Stack("n")}).to_numpy() as run, run.eval() as evaluation:
        trained, evaluated = read(run), read(evaluation)
    total = sum(n % 4 for n in chains.table()["n"].to_pylist() if n > 10)
    assert sum(len(batch["n"]) for batch in evaluated) == total >= sum(len(batch["n"]) for batch in trained)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda t: t.map(chains.double, columns=["n"]), r"needs name= and returns="),
        (lambda t: t.map(3, columns=["n"], name="z", returns=pa.int64()), r"3 is no function"),
        (lambda t: t.map(chains.double, name="z", returns=pa.int64()), r"Name the columns that the function takes"),
        (lambda t: t.map(chains.double, columns=["m"], name="z", returns=pa.int64()), r"map \(double\): .*'m'"),
        (lambda t: t.map(chains.double, columns=["n"], name="z", returns=int), r"Give the Arrow type"),
        (lambda t: t.filter(sp.col("n") + 1), r"the predicate is int64, not bool. Compare it"),
        (
            lambda t: t.flat_map(chains.fan, columns=["n"], name="z", returns=pa.int64(), fan_out=0),
            r"fan_out.*at least 1|fan_out",
        ),
    ],
)
def test_what_is_no_map_is_refused(catalog: sp.Catalog, build: Callable[[Any], Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        build(catalog.table("d").sample(order=SPREAD))


def test_a_map_stands_between_sample_and_collate(catalog: sp.Catalog) -> None:
    with pytest.raises(PlanError, match=r"it comes after .sample\(...\) and before .collate"):
        catalog.table("d").map(chains.double, columns=["n"], name="z", returns=pa.int64())


# ---- what cannot be kept


def test_materializing_what_no_cache_keeps_says_why(tmp_path: Path) -> None:
    catalog = chains.make_catalog(tmp_path)
    catalog.register_tokenizer(TOKENIZER, tokenizer())
    base, fields = catalog.table("d").sample(order=SPREAD), {"id": sp.List("sample_id")}
    mapped = base.map(two, columns=["n"], name="z", returns=pa.int64()).filter(
        lambda n: pc.greater(n, 3), columns=["n"]
    )
    lower = base.map(chains.with_words, columns=["n", "text"], name="k", returns=pa.int64(), batched=False)
    upper = lower.with_columns(upper=sp.col("text"))
    tokens = upper.map(sp.Tokenize("upper", tokenizer=TOKENIZER) >> "tokens")
    for plan, says in (
        (
            mapped,
            r"what a Python function makes is not kept unless .* \(map .*two, filter .*lambda.*\).* .map\(f, ...\).cache\(\)",
        ),
        (
            tokens,
            r"\(map .*with_words\); tokens is made of 'upper', which the plan computes. A cache keeps decoded images",
        ),
        (base, "no field decodes, and nothing is tokenized. .* Nothing needs to be built"),
    ):
        with plan.collate(batch_size=4, fields=fields).to_numpy() as stream:
            with pytest.warns(sp.SpiralWarning, match=says) as caught:
                assert stream.materialize(lambda _: None).rows_total == 0
            assert [Path(each.filename).name for each in caught] == [Path(__file__).name]

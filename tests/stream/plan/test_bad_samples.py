"""What a plan says of samples that cannot be read, and what it refuses to promise."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.plan.bad_samples import DEFAULT_BUDGET, allowed, budget_text
from tests.fixtures.texts import TOKENIZER, fields, make_catalog, tokenized

ORDER = sp.Sequential()


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> sp.Relation:
    return make_catalog(tmp_path_factory.mktemp("texts"), {"a": 12}).table("a")


def collated(sampled: sp.Relation, **options: Any) -> sp.Relation:
    return sampled.collate(**{"batch_size": 4, "fields": fields(), **options})


@given(budget=st.one_of(st.none(), st.integers(0, 99), st.floats(0, 1)), samples=st.integers(1, 10**9))
def test_a_budget_is_a_count_or_a_fraction_that_admits_one(budget: Any, samples: int) -> None:
    most = allowed(budget, samples)
    if isinstance(budget, int):
        assert most == budget
    else:
        fraction = DEFAULT_BUDGET if budget is None else budget
        assert most == (0 if fraction == 0 else max(1, int(fraction * samples)))
    assert budget_text(budget).startswith("error_budget=")


def test_raise_is_the_default_and_no_part_of_a_fingerprint(rows: sp.Relation) -> None:
    sampled = tokenized(rows, ORDER)
    plain = collated(sampled).fingerprint
    assert collated(sampled, on_error="raise").fingerprint == plain
    policies = {name: collated(sampled, on_error=name).fingerprint for name in ("skip", "substitute")}
    assert len({plain, *policies.values()}) == 3
    for name, fingerprint in policies.items():
        assert collated(sampled, on_error=name, error_budget=5).fingerprint == fingerprint


@pytest.mark.parametrize("policy", ["ignore", None, 3])
def test_an_unknown_policy_is_refused(rows: sp.Relation, policy: Any) -> None:
    with pytest.raises(sp.errors.PlanError, match=r'collate: on_error=.*; it is "raise", "skip" or "substitute"'):
        collated(tokenized(rows, ORDER), on_error=policy)


@pytest.mark.parametrize("budget", [-1, 1.5, -0.1, float("nan"), True, "1%"])
def test_a_budget_that_is_none_is_refused(rows: sp.Relation, budget: Any) -> None:
    with pytest.raises(sp.errors.PlanError, match=r"error_budget=.*. Give a count of at least 0, or a fraction"):
        collated(tokenized(rows, ORDER), on_error="skip", error_budget=budget)


def test_a_budget_of_nothing_is_refused(rows: sp.Relation) -> None:
    with pytest.raises(sp.errors.PlanError, match=r'error_budget=3 with on_error="raise".*. Add on_error="skip"'):
        collated(tokenized(rows, ORDER), error_budget=3)


def halves(text: str) -> list[str]:
    return [text[:5], text[5:]]


def test_plans_whose_samples_have_no_row_of_their_own_are_refused(rows: sp.Relation) -> None:
    sampled = tokenized(rows, ORDER)
    way_out = r'or on_error="raise" with the bad rows filtered out before sample'
    packed = {"formation": sp.batching.Packed(max_tokens=24)}
    with pytest.raises(
        sp.errors.PlanError, match=rf'on_error="substitute" with Packed.*Use on_error="skip".*{way_out}'
    ):
        collated(sampled, **packed, on_error="substitute")
    assert collated(sampled, **packed, on_error="skip")
    schema = pa.schema([("sample_id", pa.utf8()), ("tokens", pa.list_(pa.int64()))])
    with pytest.raises(
        sp.errors.PlanError, match=rf'on_error="substitute" after assemble.*Give assemble batched=False.*{way_out}'
    ):
        collated(sampled.assemble(list, columns=["tokens"], returns=schema), on_error="substitute")
    options = {"name": "half", "columns": ["text"], "returns": pa.utf8(), "fan_out": 2}
    assert collated(sampled.flat_map(halves, **options), on_error="skip")
    made = (
        rows.sample(order=ORDER).flat_map(halves, **options).map(sp.Tokenize("half", tokenizer=TOKENIZER) >> "tokens")
    )
    assert collated(made, on_error="skip", formation=sp.WindowedBucket(window_size=8))


def test_a_run_that_stopped_goes_on_without_the_bad(tmp_path: Path) -> None:
    table = pa.table({"sample_id": range(9), "value": [None if row == 7 else row for row in range(9)]})
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("values", sp.Arrow(table), identity="sample_id")

    def make(policy: str) -> Any:
        sampled = catalog.table("values").sample(order=ORDER)
        return sampled.collate(batch_size=3, fields={"v": sp.Stack("value")}, on_error=policy).to_numpy()

    with make("raise") as stream:
        with pytest.raises(
            sp.errors.DataError, match=r'or go on without such samples: collate\(\.\.\., on_error="skip"\)'
        ):
            list(stream)
        state = stream.state_dict()
    for policy, rest in (("skip", [6, 8]), ("substitute", [6, 8, 8])):
        with make(policy) as stream:
            stream.load_state_dict(state)
            assert [batch["v"].tolist() for batch in stream] == [rest]
            state_of = stream.state_dict()
        with make("raise") as stream, pytest.raises(sp.errors.ResumeError, match=r"differ at collate\.on_error"):
            stream.load_state_dict(state_of)

"""Subjects that a run changes: what it skips, and what it goes on with after a rebase."""

import json
from itertools import islice, product
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.testing import MakeStream
from tests.fixtures import decisions, grown, grown_mixtures, legs, skips
from tests.fixtures.texts import make_catalog
from tests.stream.laws.subject import Subject
from tests.stream.laws.texts import documents

# ---- skips


def _skipping(catalog: sp.Catalog, formed: str) -> MakeStream:
    def make() -> sp.PreparedStream:
        stream = skips.plan_of(catalog, formed, mixed=True, last=sp.DropPartial)
        stream.skip(batches=[0, 2, 3], identities=[stream.ledger(5)[0]])
        return stream

    return make


SKIPPING: Final = [
    Subject(f"skips, {formed}", documents, st.just(formed), _skipping, by_night=10) for formed in skips.FORMATIONS
]


# ---- other shares


def _deciding(catalog: sp.Catalog, formed: str) -> MakeStream:
    def make() -> sp.PreparedStream:
        stream = decisions.plan_of(catalog, formed, last=sp.DropPartial, size=600 if formed == "fixed" else 9_000)
        stream.decide({"a": 1, "b": 0, "c": 3}, at=12)
        if formed == "fixed":
            stream.decide({"a": 5, "b": 1, "c": 0.25}, at=24)
        return stream

    return make


def _mixed(folder: Path) -> sp.Catalog:
    return make_catalog(folder, decisions.SIZES, shortest=1)


DECIDING: Final = [
    Subject(f"other shares, {formed}", _mixed, st.just(formed), _deciding, by_night=10)
    for formed in ("fixed", "packed")
]


# ---- another mixture


def _another_mixture(catalog: sp.Catalog, drawn: tuple[legs.Leg, legs.Leg]) -> MakeStream:
    first, second = drawn
    with first.plan(catalog) as old:
        for _ in islice(old, first.steps):
            pass
        state = old.state_dict()

    def make() -> sp.PreparedStream:
        new = second.plan(catalog)
        with first.plan(catalog) as earlier:
            earlier.load_state_dict(state)
            new.rebase(earlier)
        return new

    return make


REMIXED: Final = Subject(
    "a rebase to another mixture",
    documents,
    st.tuples(legs.legs(), legs.legs()),
    _another_mixture,
    by_day=2,
    by_night=125,
)


# ---- other data

READ: Final = (1, 4)  # steps before the data changes


def _one_relation(folder: Path) -> Any:
    """A relation whose files were kept, replaced, removed and appended, and states of plans that had read some of it."""
    of = grown.Grown(folder, {"s0": [*range(10)], "s1": [*range(100, 107)], "s2": [*range(200, 204)]})
    before = {}
    for order, formed, steps in product(grown.ORDERS, (False, True), READ):
        plan = grown.Plan(order=order, formed=formed)
        with plan.open(of.catalog) as old:
            for _ in islice(old, steps):
                pass
            before[plan, steps] = json.loads(json.dumps(old.state_dict()))
    of.change({"s0": of.shards["s0"], "s1": [100, 102, 1_000, 203], "new": [*range(1_001, 1_008)]})
    states = []
    for (plan, _), state in before.items():
        with plan.open(of.catalog) as new:
            new.rebase(state)
            states.append((plan, json.loads(json.dumps(new.state_dict()))))
    return of.catalog, states


def _grown(shelf: Any, number: int) -> MakeStream:
    catalog, states = shelf
    plan, state = states[number]

    def make() -> sp.PreparedStream:
        stream: sp.PreparedStream = plan.open(catalog)
        stream.load_state_dict(state)
        return stream

    return make


def _two_relations(folder: Path) -> Any:
    """A mixture one of whose relations grew, and states of plans that had read some of it."""
    two = grown_mixtures.Two(folder, {"x": {"s0": [*range(5)], "s1": [100, 101]}, "y": {"s": [1, 2, 3]}})
    states = []
    for order, formed, steps in product(grown_mixtures.ORDERS, (False, True), READ):
        with two.plan(order, formed=formed) as stream:
            for _ in islice(stream, steps):
                pass
            states.append((order, formed, json.loads(json.dumps(stream.state_dict()))))
    two.change("x", {"s0": [*range(5)], "s1": [100, 101], "new": [900, 901]})
    return two, states


def _grown_mixture(shelf: Any, number: int) -> MakeStream:
    two, states = shelf
    order, formed, state = states[number]

    def make() -> sp.PreparedStream:
        new: sp.PreparedStream = two.plan(order, formed=formed)
        new.rebase(state)
        return new

    return make


CHANGED: Final = [
    Subject("a rebase over changed files", _one_relation, st.integers(0, 15), _grown, by_day=2),
    Subject("a rebase of a mixture that grew", _two_relations, st.integers(0, 11), _grown_mixture, by_day=2),
]

SUBJECTS: Final = (*SKIPPING, *DECIDING, REMIXED, *CHANGED)

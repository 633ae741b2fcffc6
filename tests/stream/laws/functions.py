"""Subjects of a user's functions: chains of maps, values that are kept, assembled samples, and samples that cannot be read."""

from pathlib import Path
from typing import Any, Final

from hypothesis import reject
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.testing import MakeStream
from tests.fixtures import chains, damaged, raising_plans
from tests.fixtures import functions as own
from tests.stream.laws.subject import Subject

# ---- chains of maps


def _on_ranks(chain: list[str]) -> bool:
    return not chains.DECIDED & set(chain) and not chains.reaches_keep(chain)


CHAINS: Final = [
    Subject(
        "a chain of maps",
        chains.make_catalog,
        chains.chains(),
        lambda catalog, chain: lambda: chains.stream(catalog, chain),
        shared=_on_ranks,
        by_day=2,
        by_night=125,
    ),
    Subject(
        "random functions",
        chains.make_catalog,
        st.integers(5, 9),
        lambda catalog, size: chains.random_plan(catalog, batch_size=size).to_numpy,
        by_night=10,
    ),
    Subject(
        "flat_map of texts",
        chains.make_catalog,
        st.none(),
        lambda catalog, _: chains.words_plan(catalog).to_numpy,
        alone="how many parts a text has is known on one rank, until it is kept",
        by_night=5,
    ),
]

# ---- functions in every form


def _kept(folder: Path) -> sp.Catalog:
    catalog = own.make_catalog(folder)
    with own.kept(catalog).to_numpy() as stream:
        stream.materialize()
    return catalog


def _counted(folder: Path) -> sp.Catalog:
    """What one rank has read of assembled samples, several ranks may read: it is counted then."""
    catalog = own.make_catalog(folder)
    with own.paired(catalog).to_numpy() as stream:
        for _ in range(2):
            list(stream)
    return catalog


def _tokens(folder: Path) -> sp.Relation:
    plan = own.texts_of_functions(own.make_catalog(folder)).cache()
    with own.packed(plan) as stream:
        stream.materialize()
    return plan


FORMS: Final = [
    Subject(
        "functions",
        own.make_catalog,
        st.none(),
        lambda catalog, _: own.mapped(catalog).to_numpy,
        by_night=10,
    ),
    Subject(
        "functions that decide",
        own.make_catalog,
        st.none(),
        lambda catalog, _: own.kept(catalog).to_numpy,
        alone="what functions decide is known on one rank, until it is kept",
        by_night=5,
    ),
    Subject(
        "functions that decide, kept", _kept, st.none(), lambda catalog, _: own.kept(catalog).to_numpy, by_night=10
    ),
    Subject(
        "assembled samples",
        _counted,
        st.none(),
        lambda catalog, _: own.paired(catalog).to_numpy,
        worlds=(2, 4),  # which divide the lanes
        by_night=10,
    ),
    Subject("tokens of a function, packed", _tokens, st.none(), lambda plan, _: lambda: own.packed(plan), by_night=10),
]

# ---- samples that cannot be read


def _of_whole_epochs(make: MakeStream) -> MakeStream:
    """Reject a plan of which nothing is left of some batch, at which its epoch ends with an error."""
    with make() as stream:
        try:
            for _ in range(2):
                for _ in stream:
                    pass
        except sp.errors.DataError as error:
            if "leaves nothing" not in str(error):
                raise
            reject()
    return make


def _shelf(folder: Path) -> Any:
    kinds = [(kind, cache) for kind in ("images", "texts") for cache in damaged.CACHES]
    return {each: damaged.catalog(folder / "-".join(each), *each) for each in kinds}


def _damaged(shelf: Any, drawn: Any) -> MakeStream:
    plan, cache = drawn
    return _of_whole_epochs(lambda: plan.stream(shelf[plan.kind, cache]))


BAD: Final = ((3,), (0, 1, 2, 3, 40, 41, 89), tuple(range(2, 90, 3)))


def _raising(folder: Path) -> sp.Catalog:
    """Of packed samples, tokens are kept for some choices of bad rows."""
    catalog = raising_plans.make_catalog(folder)
    for bad in BAD:
        with raising_plans.PackedCase(bad, {}, 1, kept=True).stream(catalog) as stream:
            stream.materialize(lambda _: None)
    return catalog


PACKINGS: Final = st.sampled_from([{}, {"oversize": "split"}, {"strategy": "concat_and_split"}])
UNREAD: Final = [
    Subject(
        "damaged rows",
        _shelf,
        st.tuples(damaged.damaged(), st.sampled_from(damaged.CACHES)),
        _damaged,
        shared=lambda drawn: drawn[0].kind == "images" or drawn[1] == "full",
    ),
    Subject(
        "functions that raise",
        _raising,
        raising_plans.cases(),
        lambda catalog, case: _of_whole_epochs(lambda: case.stream(catalog)),
        shared=lambda case: case.kind not in ("filter", "flat_map"),
        by_day=2,
        by_night=150,
    ),
    Subject(
        "packed functions that raise",
        _raising,
        st.builds(raising_plans.PackedCase, st.sampled_from(BAD), PACKINGS, st.integers(1, 4), st.booleans()),
        lambda catalog, case: _of_whole_epochs(lambda: case.stream(catalog)),
        shared=lambda case: case.kept,
        by_day=2,
        by_night=50,
    ),
    *(
        Subject(
            f"an assembler that raises, {lanes} lanes",
            _raising,
            st.just(lanes),
            lambda catalog, lanes: lambda: raising_plans.assembled(catalog, lanes),
            alone="how many samples are assembled is known on one rank, until it has read them",
            by_night=5,
        )
        for lanes in (1, 2)
    ),
]

SUBJECTS: Final = (*CHAINS, *FORMS, *UNREAD)

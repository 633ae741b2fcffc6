"""Subjects whose optimizer steps are dealt: every formation, order, tail and policy, with edits, merge and mixtures."""

from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.testing import MakeStream
from tests.fixtures import even_steps
from tests.fixtures.texts import make_catalog
from tests.stream.laws.subject import Subject

STEP: Final = 12


def _documents(folder: Path) -> sp.Catalog:
    return make_catalog(folder, even_steps.SIZES, shortest=1)


def _dealt(catalog: sp.Catalog, drawn: dict[str, Any]) -> MakeStream:
    options = dict(drawn)
    deal, skipped, total = (options.pop(name) for name in ("deal", "skipped", "total"))

    def make() -> sp.PreparedStream:
        stream = even_steps.stream(
            catalog, **options, more={"total": sp.fields.StepTotal("len(tokens)")} if total else None
        )
        if skipped:
            stream.skip(batches=[1, 5], identities=[stream.ledger(2)[0]])
        return stream.bind(step_batches=STEP, deal=deal)

    return make


SUBJECTS: Final = [
    Subject(
        f"even steps, {formed}",
        _documents,
        st.fixed_dictionaries(
            {
                "formed": st.just(formed),
                "cost": st.sampled_from(even_steps.COSTS),
                "last": st.sampled_from([sp.DropPartial, sp.KeepPartial, sp.batching.PadPartial]),
                "mixed": st.booleans(),
                "lanes": st.sampled_from([1, 2]),
                "deal": st.sampled_from([None, "cost", "order"]),
                "skipped": st.booleans(),
                "total": st.booleans(),
                "balanced": st.sampled_from([None, STEP, 4]),
            }
        ),
        _dealt,
        step_batches=STEP,
        by_day=2,
        by_night=60,
    )
    for formed in even_steps.FORMATIONS
]

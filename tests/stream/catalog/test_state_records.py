"""States of many relations and long edits stay small: what they name lies in the catalog, or in a file that is exported."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.catalog.state_records import StateRecords
from tests.fixtures.examples import few

pytestmark = pytest.mark.usefixtures("no_threads_left")

MANY = 28
ROWS = 40


def write(path: Path, first: int = 0) -> None:
    ids = [f"{path.stem}-{n}" for n in range(first, first + ROWS)]
    pq.write_table(pa.table({"sample_id": ids, "x": np.arange(ROWS)}), path)


def registered(folder: Path, name: str = "catalog") -> sp.Catalog:
    """A catalog of the files in a folder."""
    catalog = sp.connect(str(folder / name))
    for k in range(MANY):
        catalog.register(f"rows-{k}", sp.Parquet(str(folder / f"rows-{k}.parquet")))
    return catalog


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for k in range(MANY):
        write(folder / f"rows-{k}.parquet")
    return folder


@pytest.fixture(scope="module")
def shared(files: Path) -> sp.Catalog:
    return registered(files)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of its own."""
    for k in range(MANY):
        write(tmp_path / f"rows-{k}.parquet")
    return tmp_path


@pytest.fixture
def catalog(folder: Path) -> sp.Catalog:
    return registered(folder)


def stream(catalog: sp.Catalog, count: int = MANY, share: float | None = None) -> Any:
    names = [f"rows-{k}" for k in range(count)]
    first = share or 1 / count
    shares = [first] + [(1 - first) / (count - 1)] * (count - 1) if count > 1 else [1.0]
    parts = [sp.Stream(name, catalog.table(name), proportion=s) for name, s in zip(names, shares, strict=True)]
    sampled = sp.mix(parts, epoch_size=40 + 20 * count).sample(order=sp.GlobalShuffle(seed=5))
    return sampled.collate(batch_size=4, fields={"sample_id": sp.List("sample_id")}).to_numpy(prefetch=1)


def after(one: Any, steps: int) -> dict[str, Any]:
    run = iter(one)
    for _ in islice(run, steps):
        pass
    run.close()
    return dict(json.loads(json.dumps(one.state_dict())))


def rest(one: Any, count: int = 5) -> list[Any]:
    return [one.ledger(one.state_dict()["batch"] + k) for k in range(count)]


@few(6, 30)
@given(count=st.integers(1, MANY), steps=st.integers(0, 4))
def test_a_state_without_edits_is_at_most_1_kb_and_leads_on(shared: sp.Catalog, count: int, steps: int) -> None:
    with stream(shared, count) as one, stream(shared, count) as two:
        state = after(one, steps)
        two.load_state_dict(state)

        assert len(json.dumps(state)) <= 1024
        assert two.state_dict() == state
        assert rest(one) == rest(two)


def test_a_state_that_holds_its_lists_itself_still_loads(catalog: sp.Catalog) -> None:
    from spiral_stream.planner.state.saved_state import SavedState, sealed

    with stream(catalog) as one, stream(catalog) as two:
        state = after(one, 3)
        saved = SavedState.from_json(state, StateRecords(catalog.root))
        before = {**state, "data": saved.versions(StateRecords(catalog.root))}
        old = sealed({name: value for name, value in before.items() if name != "checksum"})
        assert len(json.dumps(old)) > 1024

        two.load_state_dict(old)

        assert rest(one) == rest(two)
        assert two.state_dict() == state


def test_the_relation_that_changed_is_named(folder: Path, catalog: sp.Catalog) -> None:
    with stream(catalog) as one:
        state = after(one, 3)
    write(folder / "rows-7.parquet", 5)
    catalog.refresh("rows-7")
    with (
        stream(catalog) as two,
        pytest.raises(sp.errors.ResumeError, match=r"data changed since.*: rows-7 \(.*Put the old data back"),
    ):
        two.load_state_dict(state)


def test_another_catalog_says_how_to_find_out_which_relation_differs(folder: Path, catalog: sp.Catalog) -> None:
    with stream(catalog) as one:
        state = after(one, 3)
    write(folder / "rows-7.parquet", 5)
    other = registered(folder, "other")
    exported = catalog.root / "state.json"
    with stream(other) as two:
        with pytest.raises(sp.errors.ResumeError, match=r"catalog\.export_state\(state, .*catalog\.import_state\("):
            two.load_state_dict(state)
        catalog.export_state(state, exported)
        state = other.import_state(exported)
        with pytest.raises(sp.errors.ResumeError, match=r": rows-7 \("):
            two.load_state_dict(state)


def test_long_edits_lie_beside_the_state_and_are_exported(folder: Path, catalog: sp.Catalog) -> None:
    other = registered(folder, "other")
    skipped = [(f"rows-{k}", f"rows-{k}-{n}") for k in range(MANY) for n in range(0, ROWS, 3)]  # a third of the rows
    with stream(catalog, share=0.05) as before, stream(catalog) as one, stream(other) as two:
        after(before, 3)
        one.rebase(before)
        one.skip(identities=skipped)
        state = after(one, 2)
        assert len(json.dumps(state)) <= 1024
        assert isinstance(state["skips"], str)
        assert isinstance(state["rebase"], str)

        unmoved = two.state_dict()
        with pytest.raises(
            sp.errors.ResumeError, match=r"the rebase of the state lie in the catalog.*state = catalog\.import_state"
        ):
            two.load_state_dict(state)
        assert two.state_dict() == unmoved

        catalog.export_state(state, catalog.root / "beside.json")
        two.load_state_dict(other.import_state(catalog.root / "beside.json"))
        assert rest(one) == rest(two)
        assert not {tuple(each) for batch in rest(two, 20) for each in batch} & set(skipped)


def test_an_export_that_was_damaged_is_refused(catalog: sp.Catalog, tmp_path: Path) -> None:
    with stream(catalog) as one:
        state = after(one, 1)
    path = tmp_path / "state.json"
    catalog.export_state(state, path)
    text = path.read_text()
    for damaged in (text.replace("rows-3", "rows-4"), text[:-4], "", "[]", json.dumps(state)):
        path.write_text(damaged)
        with pytest.raises(sp.errors.CatalogError, match=r"Give a file that catalog\.export_state wrote"):
            catalog.import_state(path)
    with pytest.raises(sp.errors.CatalogError, match="Give a file in a folder that can be written"):
        catalog.export_state(state, tmp_path / "nowhere" / "state.json")


def test_a_damaged_record_is_not_taken_for_the_list(catalog: sp.Catalog) -> None:
    with stream(catalog) as one:
        one.skip(identities=[("rows-0", f"rows-0-{n}") for n in range(ROWS)])
        state = after(one, 1)
    for path in (catalog.root / "states").iterdir():
        path.write_bytes(path.read_bytes().replace(b"rows-0-7", b"rows-0-8"))
    with stream(catalog) as two, pytest.raises(sp.errors.ResumeError, match=r"the skips of the state.*import_state"):
        two.load_state_dict(state)


def test_a_catalog_that_cannot_be_written_leaves_the_lists_in_the_state(catalog: sp.Catalog) -> None:
    (catalog.root / "states").write_text("in the way")
    with stream(catalog) as one, stream(catalog) as two:
        state = after(one, 3)
        assert len(state["data"]) == MANY
        two.load_state_dict(state)
        assert rest(one) == rest(two)

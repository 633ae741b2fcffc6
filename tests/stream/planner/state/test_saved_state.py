import json
from pathlib import Path
from typing import Any

import pytest

import spiral_stream as sp
from spiral_stream.catalog.state_records import StateRecords
from spiral_stream.planner.state.saved_state import SavedState
from tests.fixtures.texts import documents, fields, make_catalog, mixed, tokenized


@pytest.fixture
def catalog(tmp_path: Path) -> sp.Catalog:
    return make_catalog(tmp_path, {"a": 30, "b": 10, "long": 300})


def stream(catalog: sp.Catalog, window_size: int = 16, **shares: float) -> Any:
    docs = mixed(catalog, shares or {"a": 0.5, "b": 0.5}, 60)
    formation = sp.WindowedBucket(window_size=window_size, budget=sp.BatchBudget(max_tokens=128))
    sampled = tokenized(docs, sp.GlobalShuffle(seed=1), stored=True)
    return sampled.collate(batch_size=None, formation=formation, fields=fields(), last=sp.KeepPartial).to_numpy()


def chaptered(catalog: sp.Catalog) -> Any:
    """Five chapters of 64 samples, without a mixture."""
    formation = sp.WindowedBucket(window_size=1, budget=sp.BatchBudget(max_tokens=256))
    sampled = tokenized(catalog.table("long"), sp.GlobalShuffle(seed=1), stored=True)
    return sampled.collate(batch_size=None, formation=formation, fields=fields(), last=sp.KeepPartial).to_numpy()


def state_after(one: Any, steps: int) -> dict[str, Any]:
    run = iter(one)
    for _ in range(steps):
        next(run)
    run.close()
    return dict(json.loads(json.dumps(one.state_dict())))


def unsealed(state: dict[str, Any]) -> dict[str, Any]:
    """A state as it was before there were checksums."""
    return {name: value for name, value in state.items() if name != "checksum"}


def test_a_state_holds_no_more_the_further_a_run_is(catalog: sp.Catalog) -> None:
    with stream(catalog, window_size=1) as one:
        early, late = state_after(one, 1), state_after(one, 6)
    assert len(json.dumps(late)) < len(json.dumps(early)) + 20


@pytest.mark.parametrize("changes", [{"window_size": 8}, {"a": 0.4, "b": 0.6}])
def test_a_state_of_another_formation_or_mixture_says_what_differs(
    catalog: sp.Catalog, changes: dict[str, Any]
) -> None:
    with stream(catalog) as one, stream(catalog, **changes) as other:
        state = state_after(one, 2)
        wanted = "window_size" if "window_size" in changes else "proportion"
        with pytest.raises(
            sp.errors.ResumeError, match=rf"they differ at .*{wanted}.*Restore the old plan, or start a new"
        ):
            other.load_state_dict(state)


def test_a_state_of_another_mixture_names_the_stream_and_rebase(catalog: sp.Catalog) -> None:
    with stream(catalog) as one, stream(catalog, a=0.4, b=0.6) as shares, stream(catalog, window_size=8) as formed:
        state = state_after(one, 2)
        message = r"mix \(stream 'a'\)\.proportion \(0\.\d+ -> 0\.4\); .*then new_stream\.rebase\(old_stream\)$"
        with pytest.raises(sp.errors.ResumeError, match=message):
            shares.load_state_dict(state)
        with pytest.raises(sp.errors.ResumeError, match=r"or start a new epoch$"):
            formed.load_state_dict(state)


def test_a_state_of_other_data_names_the_relation(catalog: sp.Catalog) -> None:
    with stream(catalog) as one:
        state = state_after(one, 2)
    catalog.drop("b")
    catalog.register("b", sp.Arrow(documents("b", 11)), identity="sample_id", shard="storage_shard")
    with (
        stream(catalog) as other,
        pytest.raises(sp.errors.ResumeError, match=r"data changed.*: b \(.*Put the old data back"),
    ):
        other.load_state_dict(state)


@pytest.mark.parametrize("chapters", [3, [[0, 1]], [["x", 0, 0]], [[0, 0, None]], [[0, True, 1]], [[0, 1, 2**70]]])
def test_chapters_that_are_none_are_refused(catalog: sp.Catalog, chapters: Any) -> None:
    with stream(catalog) as one, pytest.raises(sp.errors.ResumeError, match="the state's chapters cannot be read"):
        one.load_state_dict({**state_after(one, 1), "chapters": chapters})


@pytest.mark.parametrize(
    ("chapters", "why"),
    [
        ([[0, 0, 1]], "chapters cannot be"),
        ([[0, 0, 0], [0, 0, 0]], "chapters cannot be"),
        ([[1, 0, 0]], "the plan has no such chapter"),
        ([[0, 9, 0]], "the plan has no such chapter"),
        ([[0, 1, 71]], "it begins after batch 70, where the state stands"),
        ([[0, 1, 0]], r"the chapters before it have \d+ batches"),  # as if the first had none
    ],
)
def test_chapters_that_cannot_be_are_refused(catalog: sp.Catalog, chapters: Any, why: str) -> None:
    with chaptered(catalog) as one:
        state = unsealed(state_after(one, 70))
        with pytest.raises(sp.errors.ResumeError, match=why + r".*ass what state_dict\(\) returned, unchanged"):
            one.load_state_dict({**state, "chapters": chapters})


def test_chapters_that_nothing_vouches_for_are_not_followed(
    catalog: sp.Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with chaptered(catalog) as one:
        state, rest = unsealed(state_after(one, 70)), [each["sample_id"] for each in one]
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "nobody has formed here"))
    with chaptered(catalog) as two:
        two.load_state_dict({**state, "chapters": [[0, 1, 60]]})  # it begins elsewhere
        assert [each["sample_id"] for each in two] == rest


@pytest.mark.parametrize(
    "rebase",
    [
        *(3, {}, {"epoch": 1, "streams": {"a": {}}}, {"epoch": True, "streams": {}}, {"epoch": 2**70, "streams": {}}),
        {"epoch": 0, "streams": {"a": {"left": [[3, 0]], "then": 9}}},
        {"epoch": 0, "streams": {"a": {"left": [[3, 4], [5, 1]], "then": 9}}},
        {"epoch": 0, "streams": {"a": {"left": [[3, 4]], "then": 5}}},
        {"epoch": 0, "streams": {"a": {"left": [["3", 4]], "then": 9}}},
    ],
)
def test_a_rebase_that_is_none_is_refused(catalog: sp.Catalog, rebase: Any) -> None:
    with stream(catalog) as one, pytest.raises(sp.errors.ResumeError, match="the state's rebase cannot be read"):
        one.load_state_dict({**state_after(one, 1), "rebase": rebase})


def test_a_state_without_chapters_is_a_place_too(catalog: sp.Catalog) -> None:
    with stream(catalog) as one, stream(catalog) as two:
        state = unsealed(state_after(one, 3))
        del state["chapters"]
        two.load_state_dict(state)
        assert [each["sample_id"] for each in two] == [each["sample_id"] for each in one]


def test_what_is_no_state_is_refused(tmp_path: Path) -> None:
    for value in (None, [], {"spiral": 99}):
        with pytest.raises(sp.errors.ResumeError, match=r"(?i:pass what) state_dict\(\) returned"):
            SavedState.from_json(value, StateRecords(tmp_path))

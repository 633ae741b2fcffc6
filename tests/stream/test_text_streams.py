"""Text streams as a whole, over drawn plans: what holds for every mixture, order, formation, tail and cache."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.planner.binding.bindings import Bound
from spiral_stream.testing import frozen, same
from tests.fixtures.drawn_streams import CACHES, ORDERS, TOKENS, Drawn, catalogs, plans
from tests.fixtures.examples import few
from tests.fixtures.inner import batches_of, drawn_of, stages_of
from tests.fixtures.texts import SMALL_PLANS, fields, ids_of, make_catalog, tokenized

pytestmark = [SMALL_PLANS, pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(600)]

Catalogs = Mapping[str, sp.Catalog]
FEW = few(3, 125, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Catalogs:
    return catalogs(tmp_path_factory.mktemp("texts"))


def run(stream: Any) -> list[dict[str, Any]]:
    with stream:
        return [frozen(batch) for batch in stream]


def rows_of(batch: Mapping[str, Any]) -> list[list[int]]:
    """The real tokens of each row."""
    return [ids[mask == 1].tolist() for ids, mask in zip(batch["ids"], batch["mask"], strict=True)]


# ---- laws


@FEW
@given(drawn=plans())
def test_any_batch_can_be_built_alone(shelf: Catalogs, drawn: Drawn) -> None:
    whole = run(drawn.make(shelf, epoch=1))
    with drawn.make(shelf) as stream:
        for number in reversed(range(len(whole))):
            assert same(stream.batch(number, epoch=1), whole[number])
        assert stream.count(1) >= len(whole) or drawn.last is sp.batching.PadPartial
        for beyond in (-1, *([] if drawn.last is sp.batching.PadPartial else [stream.count(1)])):
            with pytest.raises(IndexError):
                stream.ledger(beyond, epoch=1)
        stream.set_epoch(1)
        assert len(stream) == len(whole)


@FEW
@given(drawn=plans())
def test_a_run_resumes_after_every_step(shelf: Catalogs, drawn: Drawn) -> None:
    """A state gives the next batch and the next state, so by induction the whole rest; the laws read some to their end."""
    expected, states = [], []
    with drawn.make(shelf) as first:
        for batch in first:
            expected.append(frozen(batch))
            states.append(json.loads(json.dumps(first.state_dict())))
    with drawn.make(shelf) as second:
        for at, state in enumerate(states[:-1]):
            second.load_state_dict(state)
            run = iter(second)
            assert same(next(run), expected[at + 1])
            run.close()
            assert _place(second.state_dict()) == _place(states[at + 1])


def _place(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in state.items() if name not in {"chapters", "checksum"}
    }  # what is known may differ


@FEW
@given(drawn=plans().filter(lambda drawn: drawn.counted))
def test_ranks_share_the_batches_of_an_epoch(shelf: Catalogs, drawn: Drawn) -> None:
    total = len(run(drawn.make(shelf)))
    for world in (2, 3):
        ranks = [run(drawn.make(shelf, rank=rank, world_size=world)) for rank in range(world)]
        if drawn.last is sp.KeepPartial:
            assert sum(map(len, ranks)) == total
        else:
            assert {len(rank) for rank in ranks} == {
                -(-total // world) if drawn.last is sp.batching.PadPartial else total // world
            }


@FEW
@given(drawn=plans().filter(lambda drawn: drawn.counted), data=st.data())
def test_a_run_changes_its_world_size_in_mid_epoch(shelf: Catalogs, drawn: Drawn, data: st.DataObject) -> None:
    whole = run(drawn.make(shelf))
    state, seen = None, []
    for world in (1, 2, 3, 1):
        steps = data.draw(st.integers(0, max(0, (len(whole) - len(seen)) // world)), label=f"steps of {world}")
        ranks = []
        for rank in range(world):
            with drawn.make(shelf, rank=rank, world_size=world) as stream:
                if state is not None:
                    stream.load_state_dict(state)
                batches = iter(stream)
                own = [frozen(next(batches)) for _ in range(steps)]
                rest = [frozen(batch) for batch in batches] if world == 1 and state is not None else []
                batches.close()
                if not rest:
                    left = json.loads(json.dumps(stream.state_dict()))
                ranks.append([*own, *rest])
        seen += [ranks[r][s] for s in range(max(map(len, ranks))) for r in range(world) if s < len(ranks[r])]
        state = left
        if (
            state["epoch"] == 1
        ):  # no further step for this world: what a smaller one would have had of the epoch is dropped
            assert len(whole) - len(seen) < world
            break
    assert len(seen) == len(whole) or (state is not None and state["epoch"] == 1)
    assert all(same(a, b) for a, b in zip(seen, whole, strict=False))


@FEW
@given(drawn=plans(last=sp.KeepPartial, kept=None).filter(lambda drawn: drawn.covers))
def test_every_sample_comes_as_often_as_it_should(shelf: Catalogs, drawn: Drawn) -> None:
    """Exact counts of each stream an epoch; over epochs no row comes more than once more than another of its stream."""
    epochs, counts = 3, Counter[tuple[str, str]]()
    with drawn.make(shelf) as stream:
        stages = stages_of(stream)
        names = [each.name for each in stages.streams]
        for epoch in range(epochs):
            own = _delivered(stream, drawn, epoch)
            mixture = stages.epochs.mixture
            quotas = [stages.epochs.total] if mixture is None else mixture.quotas(epoch).tolist()
            _check_quotas(drawn, quotas)
            for name, quota in zip(names, quotas, strict=True):
                assert sum(n for (of, _), n in own.items() if of == name) == quota
            counts += own
        for each in stages.streams:
            used = [n for (of, _), n in counts.items() if of == each.name]
            used += [0] * (each.selected.total - len(used))
            assert max(used) - min(used) <= 1


def _delivered(stream: Any, drawn: Drawn, epoch: int) -> Counter[tuple[str, str]]:
    """How often each (stream, identity) begins in the batches of an epoch: a packed sample may go on in others."""
    out = Counter[tuple[str, str]]()
    for number in range(stream.count(epoch)):
        pairs = [each if drawn.mixed else ("", each) for each in stream.ledger(number, epoch)]
        packing = drawn_of(stream, epoch, number).membership.packing
        out.update(pair for at, pair in enumerate(pairs) if packing is None or packing.offsets[at] == 0)
    return out


def _check_quotas(drawn: Drawn, quotas: list[int]) -> None:
    kind, parts = drawn.mixture
    if drawn.epoch_size is not None:
        assert sum(quotas) == drawn.epoch_size
    flat = not any(isinstance(source, tuple) for _, source, _ in parts) if drawn.mixed else False
    if kind == "share" and flat and not drawn.options:
        total = sum(quotas)
        shares = np.array([share for _, _, share in parts])
        assert (np.abs(np.array(quotas) - shares / shares.sum() * total) < 1).all()
    if kind == "choose":
        assert quotas == [count for _, _, count in parts]


@FEW
@given(drawn=plans())
def test_batches_keep_their_limits_and_hold_the_tokens_of_their_samples(shelf: Catalogs, drawn: Drawn) -> None:
    budget = getattr(drawn.formation, "budget", None)
    for batch in run(drawn.make(shelf)):
        rows, width = batch["ids"].shape
        packed = isinstance(drawn.formation, sp.batching.Packed)
        assert width % 8 == 0
        assert drawn.batch_size is None or rows <= drawn.batch_size
        if budget is not None:
            tokens = batch["ids"].size if budget.count == "padded" else int(batch["mask"].sum())
            assert tokens <= budget.max_tokens
        assert (batch["ids"][batch["mask"] == 0] == -1).all()
        if packed:
            _check_packed(batch, drawn)
            continue
        assert rows_of(batch) == [TOKENS[key] for key in batch["sample_id"]]
        longest = max(map(len, rows_of(batch)))
        assert width == max(8, -(-longest // 8) * 8)
        if isinstance(drawn.composition, sp.batching.OneStream):
            assert len(set(batch["stream_id"])) == 1
        assert drawn.kept is None or all(len(row) > drawn.kept for row in rows_of(batch))


def _check_packed(batch: Mapping[str, Any], drawn: Drawn) -> None:
    formation = drawn.formation
    assert batch["ids"].shape[1] == formation.max_tokens
    for ids, segments, keys in zip(batch["ids"], batch["segments"], batch["sample_id"], strict=True):
        assert formation.max_segments is None or len(keys) <= formation.max_segments
        full = [key for key in keys if TOKENS[key]]
        assert segments.max() == len(full)
        for number, key in enumerate(full, 1):
            piece, whole = ids[segments == number].tolist(), TOKENS[key]
            at = [i for i in range(len(whole)) if whole[i : i + len(piece)] == piece]
            assert at
            assert formation.strategy == "concat_and_split" or piece == whole


SHARES = (("s0", "a", 0.7), ("s1", "b", 0.2), ("s2", "one", 0.1))


@FEW
@given(
    drawn=plans(
        mixture=("share", SHARES),
        composition=sp.StratifiedByStream(),
        lanes=1,
        kept=None,
        formation=sp.WindowedBucket(window_size=256, keys=[sp.BucketKey("len(tokens)")]),
    ).filter(lambda drawn: not drawn.options)
)
def test_every_batch_holds_the_shares_of_the_streams(shelf: Catalogs, drawn: Drawn) -> None:
    counts, delivered = np.zeros(3), 0
    for batch in run(replace(drawn, batch_size=drawn.batch_size or 5).make(shelf)):
        counts += [batch["stream_id"].count(name) for name, _, _ in SHARES]
        delivered += len(batch["stream_id"])
        assert np.abs(counts - np.array([share for _, _, share in SHARES]) * delivered).max() < 2


@FEW
@given(drawn=plans(), merge=st.integers(2, 3))
def test_merged_batches_are_those_of_the_plan_one_behind_the_other(shelf: Catalogs, drawn: Drawn, merge: int) -> None:
    whole = run(drawn.make(shelf))
    merged = run(drawn.make(shelf, merge=merge))
    parts = [whole[at : at + merge] for at in range(0, len(whole), merge)]
    if drawn.last is sp.DropPartial:
        parts = [part for part in parts if len(part) == merge]
    assert len(merged) == len(parts)
    for one, some in zip(merged, parts, strict=True):
        expected = [row for part in some for row in rows_of(part)]
        assert rows_of(one)[: len(expected)] == expected
        assert ids_of([one])[: len(ids_of(some))] == ids_of(some)
        assert one["ids"].shape[1] == max(part["ids"].shape[1] for part in some) or drawn.last is sp.batching.PadPartial
        if drawn.last is not sp.batching.PadPartial:
            assert len(rows_of(one)) == len(expected)


@FEW
@given(drawn=plans(), data=st.data())
def test_ledger_and_locate_say_what_a_loop_sees(shelf: Catalogs, drawn: Drawn, data: st.DataObject) -> None:
    whole = run(drawn.make(shelf))
    first: dict[Any, int] = {}
    with drawn.make(shelf) as stream:
        for number, batch in enumerate(whole):
            names = ids_of([{"sample_id": batch["stream_id"]}]) if drawn.mixed else None
            keys = ids_of([batch])
            expected = keys if names is None else list(zip(names, keys, strict=True))
            assert stream.ledger(number) == expected
            for key in expected:
                first.setdefault(key, number)
        if first:
            for key in data.draw(st.lists(st.sampled_from(sorted(first)), max_size=4)):
                assert stream.locate(key) == {"epoch": 0, "batch": first[key], "step": first[key], "rank": 0}
        with pytest.raises(KeyError, match="no row that the plan keeps"):
            stream.locate(("s0", "nobody") if drawn.mixed else "nobody")


@FEW
@given(drawn=plans(source="stored"))
def test_no_cache_can_be_seen_in_a_batch(shelf: Catalogs, drawn: Drawn) -> None:
    expected = run(drawn.make(shelf))
    for cache in CACHES:
        batches = run(replace(drawn, source=cache).make(shelf))
        assert len(batches) == len(expected)
        assert all(same(a, b) for a, b in zip(batches, expected, strict=True))


# ---- what membership needs


@FEW
@given(drawn=plans(source="none").filter(lambda drawn: not drawn.counted))
def test_several_ranks_need_lengths_that_are_known(shelf: Catalogs, drawn: Drawn) -> None:
    with (
        drawn.make(shelf, rank=0, world_size=2) as stream,
        pytest.raises(
            sp.errors.BindError, match=r"decided by len\(tokens\).*Build it once: stream.materialize\(\), .*one rank"
        ),
    ):
        next(iter(stream))


def test_orders_differ_and_epochs_do(shelf: Catalogs) -> None:
    seen = [tuple(ids_of(run(Drawn(order=order).make(shelf, epoch=epoch)))) for order in ORDERS for epoch in (0, 1)]

    assert len(set(seen)) == len(seen) - 3  # sequential epochs are alike, and here a row group is a shard


# ---- what is read


PLAN = Drawn(
    mixture=("share", (("s0", "a", 0.7), ("s1", "b", 0.2), ("s2", "c", 0.1))),
    epoch_size=600,
    formation=sp.WindowedBucket(window_size=1, budget=sp.BatchBudget(max_tokens=96)),
    batch_size=None,
)


@pytest.mark.parametrize("formation", [PLAN.formation, sp.batching.Packed(max_tokens=24, window_size=16)])
def test_with_the_cache_no_text_is_read(shelf: Catalogs, formation: sp.WindowedBucket | sp.batching.Packed) -> None:
    drawn = replace(PLAN, formation=formation, batch_size=4 if isinstance(formation, sp.batching.Packed) else None)
    with replace(drawn, source="full").make(shelf) as cached, replace(drawn, source="none").make(shelf) as uncached:
        assert len(list(cached)) == len(list(uncached))
        assert cached.metrics()["source_bytes"] == cached.metrics()["source_rows"] == 0
        assert cached.metrics()["cache_hit_rate"] == 1.0
        assert uncached.metrics()["source_bytes"] > 0


# ---- worker processes


@pytest.mark.parametrize(
    ("workers", "how"),
    [
        (0, "none"),
        (4, "fork"),
        pytest.param(1, "fork", marks=pytest.mark.slow),
        pytest.param(1, "spawn", marks=pytest.mark.slow),
        pytest.param(4, "spawn", marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:lance is not fork-safe")
@pytest.mark.filterwarnings("ignore:lancedb fork support is experimental")
def test_workers_of_a_loader_give_the_batches_of_the_bare_loop(shelf: Catalogs, workers: int, how: str) -> None:
    data = pytest.importorskip("torch.utils.data")
    plan = replace(PLAN, source="full", epoch_size=200).plan(shelf)
    with plan.to_torch() as bare, plan.to_torch() as stream, plan.to_torch() as resumed:
        expected = [frozen(batch) for batch in bare]
        options = {"multiprocessing_context": how, "timeout": 300} if workers else {}
        loader = data.DataLoader(stream, batch_size=None, num_workers=workers, **options)
        assert [ids_of([batch]) for batch in loader] == [ids_of([batch]) for batch in expected]
        if workers:
            resumed.load_state_dict(stream.state_dict(delivered=3))
            assert all(same(frozen(a), b) for a, b in zip(resumed, expected[3:], strict=True))


def test_workers_need_lengths_that_are_known(shelf: Catalogs) -> None:
    pytest.importorskip("torch")
    stream = replace(PLAN, source="none", formation=replace(PLAN.formation, keys=())).plan(shelf).to_torch()
    with stream, pytest.raises(sp.errors.BindError, match=r"decided by len\(tokens\).*2 workers"):
        batches_of(stream).need_known(Bound(0, 0, 1, 0, 1), 2, 0)


def test_a_state_of_batches_that_were_cut_otherwise_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = make_catalog(tmp_path, {"web": 60})
    formation = sp.WindowedBucket(16, [sp.BucketKey("len(tokens)")], sp.BatchBudget(max_tokens=200))

    def stream() -> Any:
        sampled = tokenized(catalog.table("web"), sp.GlobalShuffle(1))
        return sampled.collate(fields=fields(), batch_size=None, formation=formation).to_numpy()

    with monkeypatch.context() as before:
        before.setattr(sp.WindowedBucket, "PADDED", 1)
        with stream() as old:
            next(iter(old))
            state = old.state_dict()
    with (
        stream() as new,
        pytest.raises(
            sp.errors.ResumeError,
            match=r"WindowedBucket was version 1, and is version 4 here \(collate\.formation\.@version\)\. Go on ",
        ),
    ):
        new.load_state_dict(state)

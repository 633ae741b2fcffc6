"""The law of whole batches: only the last batches of an epoch are short, whatever forms them, and nothing is lost before."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.batching.one_stream import least_window
from spiral_stream.derived.work.executors import Threads
from spiral_stream.runtime.forming import inputs as forming
from spiral_stream.sampling.mixing import slices
from spiral_stream.testing import frozen, same
from tests.fixtures.examples import few
from tests.fixtures.inner import stages_of
from tests.fixtures.streams import counted_together
from tests.fixtures.texts import SMALL_PLANS

pytestmark = [SMALL_PLANS, pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(1_200)]

FEW = few(4, 60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
SIZES = {"a": 700, "b": 90, "c": 20}
ORDERS = (
    sp.GlobalShuffle(seed=5),
    sp.HashBucketed(seed=5, bucket_count=8),
    sp.orders.ExpandedRange(seed=6, expanded_range=20),
    sp.orders.WithReplacement(seed=9),
)
SHARES = {"a": 0.745, "b": 0.245, "c": 0.01}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    made = sp.connect(str(tmp_path_factory.mktemp("whole") / "catalog"))
    for name, rows in SIZES.items():
        rng = np.random.default_rng([rows])
        size = rng.integers(0, 13, rows)
        table = {
            "id": [f"{name}{i}" for i in range(rows)],
            "size": size,
            "tokens": pa.array([list(range(n)) for n in size], pa.list_(pa.uint16())),
        }
        made.register(name, sp.Arrow(pa.table(table)), identity="id")
    return made


@pytest.fixture(autouse=True)
def small_chapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chapters of a few windows, and slices of a few samples, so that short epochs have many."""
    monkeypatch.setattr(forming, "CHAPTER_WINDOWS", 3)
    monkeypatch.setattr(slices, "SLICE", 64)


def odd(size: pa.Array) -> pa.Array:
    return pa.array(size.to_numpy() % 3 != 1)


def halves(size: int) -> list[int]:
    return [size // 2] * (size % 3)


class Pairs:
    """Joins two samples that follow each other."""

    def __init__(self, _: Any) -> None:
        self._first: dict[str, Any] | None = None

    def push(self, sample: dict[str, Any]) -> list[dict[str, Any]]:
        first, self._first = self._first, None
        if first is None:
            self._first = sample
            return []
        return [{"id": first["id"] + sample["id"], "size": first["size"] + sample["size"]}]

    def finish(self) -> list[dict[str, Any]]:
        return [] if self._first is None else [{"id": self._first["id"], "size": self._first["size"]}]


@dataclass(frozen=True)
class Case:
    """One plan, in words that a failing example prints."""

    mixed: int = 0  # streams of the mixture
    total: int = 700
    changes: str = "none"  # what decides after sample which samples there are
    kind: str = "windowed"
    window: int = 16
    batch_size: int = 7
    keyed: bool = False
    strategy: str = "best_fit"
    oversize: str = "split"
    composition: Any = None
    lanes: int = 1
    last: Any = sp.KeepPartial
    order: Any = ORDERS[0]
    first: int | None = None  # how many samples an epoch has, without a mixture

    @property
    def streams(self) -> int:
        return max(1, self.mixed)

    @property
    def units(self) -> int:
        return self.composition.batches if isinstance(self.composition, sp.batching.OneStream) else 1

    @property
    def ends(self) -> int:
        """The most batches at the epoch's end that may be short."""
        return 2 * self.streams * self.units if isinstance(self.composition, sp.batching.OneStream) else 1

    @property
    def lost(self) -> int:
        """The most rows that `DropPartial` leaves out, of one rank."""
        one = isinstance(self.composition, sp.batching.OneStream)
        return self.streams * (self.units * self.batch_size - 1) if one else self.batch_size - 1

    def make(self, catalog: sp.Catalog, last: Any = None, **bound: Any) -> sp.PreparedStream:
        names = list(SHARES)[: self.mixed]
        total = sum(SHARES[name] for name in names)
        streams = [sp.Stream(name, catalog.table(name), proportion=SHARES[name] / total) for name in names]
        rows = sp.mix(streams, epoch_size=self.total) if names else catalog.table("a")
        ranks = sp.DataParallel(
            sp.RuntimeParam("data_parallel_rank"), sp.RuntimeParam("data_parallel_world_size"), lanes=self.lanes
        )
        sampled = rows.sample(order=self.order, assignment=ranks)
        fields: dict[str, Any] = {"id": sp.List("id")}
        if self.first is not None:
            sampled = sampled.limit(self.first, fixed=True)
        if self.changes == "filter":
            sampled = sampled.filter(odd, columns=["size"])
        elif self.changes == "flat_map":
            sampled = sampled.flat_map(halves, columns=["size"], name="half", returns=pa.int64(), fan_out=2)
            fields["half"] = sp.List("half")
        elif self.changes == "assemble":
            schema = pa.schema([("id", pa.utf8()), ("size", pa.int64())])
            sampled = sampled.assemble(Pairs, columns=["id", "size"], returns=schema, batched=False)
        if self.mixed and self.changes != "assemble":
            fields["stream"] = sp.List("stream_id")
        if self.kind == "packed":
            fields = {"ids": sp.Pad("tokens", pad_value=99), **fields}
            width = 12 if self.oversize != "split" else 8
            formation: Any = sp.batching.Packed(
                width,
                strategy=self.strategy,
                window_size=self.window,
                oversize=None if self.strategy == "concat_and_split" else self.oversize,
            )  # type: ignore[arg-type]  # its Literal
        elif self.kind == "default":
            formation = None
        else:
            least = self.batch_size
            if isinstance(self.composition, sp.batching.OneStream):
                least = least_window(self.streams, self.units, self.batch_size)
            keys = [sp.BucketKey("size")] if self.keyed else []
            formation = sp.WindowedBucket(max(self.window, least), keys, cost_group=2)
        plan = sampled.collate(
            batch_size=self.batch_size,
            formation=formation,
            composition=self.composition,
            last=last or self.last,
            fields=fields,
        )
        return plan.to_numpy().bind(**bound)


@st.composite
def cases(draw: Any) -> Case:
    kind = draw(st.sampled_from(["windowed", "windowed", "packed", "default"]))
    mixed = draw(st.sampled_from([0, 0, 2, 3]))
    changes = draw(st.sampled_from(["none", "none", "filter", "flat_map", "assemble"]))
    changes = changes if kind != "packed" or changes != "assemble" else "filter"
    if kind == "default" and changes == "none":
        changes = "filter"
    composition = None
    if mixed and kind == "windowed" and changes != "assemble":
        composition = draw(
            st.sampled_from(
                [
                    None,
                    sp.StratifiedByStream(),
                    sp.StratifiedByStream(),
                    sp.batching.OneStream(),
                    sp.batching.OneStream(batches=2),
                ]
            )
        )
    return Case(
        mixed=mixed,
        total=draw(st.integers(210, 900)),
        changes=changes,
        kind=kind,
        window=draw(st.sampled_from([8, 16, 40])),
        batch_size=draw(st.integers(1, 4 if kind == "packed" else 9)),
        keyed=draw(st.booleans()),
        strategy=draw(st.sampled_from(["best_fit", "first_fit", "concat_and_split"])),
        oversize=draw(st.sampled_from(["split", "raise", "truncate"])),
        composition=composition,
        lanes=draw(st.integers(1, 3)),
        last=draw(st.sampled_from([sp.KeepPartial, sp.DropPartial, sp.batching.PadPartial])),
        order=draw(st.sampled_from(ORDERS)),
    )


def read(stream: sp.PreparedStream, **moved: Any) -> list[dict[str, Any]]:
    with stream:
        if moved:
            stream.load_state_dict(moved["state"])
        return [frozen(batch) for batch in stream]


def rows_of(batch: Mapping[str, Any]) -> int:
    return len(batch["ids"]) if "ids" in batch else len(batch["id"])


def held(batches: list[dict[str, Any]]) -> Counter[Any]:
    """How often each sample is held; of packed batches, its tokens and its pieces without any are not told apart."""
    out: Counter[Any] = Counter()
    for batch in batches:
        if "ids" in batch:
            out.update(int(token) for token in batch["ids"].ravel() if token != 99)
        else:
            out.update(zip(batch["id"], batch.get("half", batch["id"]), strict=True))
    return out


# ---- the law


@FEW
@given(case=cases(), world=st.integers(1, 4))
@example(Case(mixed=3, composition=sp.StratifiedByStream(), batch_size=24, window=32, total=6_000), 2)
@example(Case(kind="default", changes="filter", batch_size=2), 2)
@example(Case(mixed=3, composition=sp.StratifiedByStream(), batch_size=5, window=8, total=500, lanes=2), 2)
@example(Case(mixed=3, composition=sp.StratifiedByStream(), batch_size=2, total=300, lanes=3), 3)
def test_only_the_last_batches_of_an_epoch_are_short(catalog: sp.Catalog, case: Case, world: int) -> None:
    kept = read(case.make(catalog, sp.KeepPartial))
    dropped, padded = (read(case.make(catalog, last)) for last in (sp.DropPartial, sp.batching.PadPartial))
    rows, size = [rows_of(batch) for batch in kept], case.batch_size

    assert set(rows[: max(0, len(rows) - case.ends)]) <= {size}
    assert all(1 <= each <= size for each in rows)
    assert {rows_of(batch) for batch in (*dropped, *padded)} <= {size}
    lost = sum(rows) - len(dropped) * size
    assert 0 <= lost <= case.lost
    if not isinstance(case.composition, sp.batching.OneStream):
        assert all(map(same, dropped, kept))
        assert all(map(same, padded[: len(dropped)], kept))
        assert len(padded) == len(kept)
        assert not held(kept) - held(padded)

    if case.changes == "none" or world == 1:
        ranks = [
            read(case.make(catalog, sp.DropPartial, data_parallel_rank=rank, data_parallel_world_size=world))
            for rank in range(world)
        ]
        given = sum(rows_of(batch) for own in ranks for batch in own)
        assert len({len(own) for own in ranks}) == 1
        assert sum(rows) - given < world * size + case.lost - (size - 1)


@FEW
@given(case=cases())
def test_every_sample_is_delivered_once(catalog: sp.Catalog, case: Case) -> None:
    batches = read(case.make(catalog, sp.KeepPartial))
    wanted: Counter[Any] = Counter()
    with case.make(catalog, sp.KeepPartial) as stream:
        places = stages_of(stream).epochs.stream_rows(0, np.arange(stages_of(stream).epochs.total, dtype=np.uint64))
        for k, each in enumerate(stages_of(stream).streams):
            name = each.name or "a"
            table = catalog.table(name).to_arrow().to_pylist()
            for row in places.rows[places.streams == k].tolist():
                if case.changes == "filter" and table[row]["size"] % 3 == 1:
                    continue
                values = (
                    [table[row]["size"] // 2] * (table[row]["size"] % 3)
                    if case.changes == "flat_map"
                    else [table[row]["id"]]
                )
                if case.kind == "packed":
                    count = min(12, table[row]["size"]) if case.oversize == "truncate" else table[row]["size"]
                    wanted.update(token for _ in values for token in range(count))
                elif case.changes == "assemble":
                    wanted.update([table[row]["id"]])
                else:
                    wanted.update((table[row]["id"], value) for value in values)
    if case.changes == "assemble":
        found: Counter[Any] = Counter()
        for batch in batches:
            for joined in batch["id"]:
                found.update(part for part in _ids(joined))
        assert found == wanted
        return
    assert held(batches) == wanted


@few(2, 30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    lanes=st.integers(2, 5), size=st.integers(2, 24), total=st.integers(200, 900), window=st.sampled_from([8, 16, 40])
)
def test_lanes_that_end_inside_a_slice_have_all_their_batches(
    catalog: sp.Catalog, lanes: int, size: int, total: int, window: int
) -> None:
    case = Case(3, total, window=window, batch_size=size, composition=sp.StratifiedByStream(), lanes=lanes)
    with case.make(catalog) as stream:
        batches = [frozen(batch) for batch in stream]
        assert len(batches) == stream.count(0)
        for number in (0, len(batches) // 2, len(batches) - 1):
            assert same(stream.batch(number, 0), batches[number])


@few(6, 300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    total=st.integers(30, 330), size=st.integers(2, 13), window=st.sampled_from([13, 16, 24]), lanes=st.integers(1, 3)
)
@example(total=326, size=7, window=16, lanes=1)
@example(total=329, size=12, window=16, lanes=2)
def test_keys_decide_who_waits_at_the_end(catalog: sp.Catalog, total: int, size: int, window: int, lanes: int) -> None:
    """The last window may hold fewer samples than wait: then some of those that wait joined long before."""
    case = Case(total=total, window=window, batch_size=size, keyed=True, lanes=lanes, order=ORDERS[0], first=total)
    ids = [each for batch in read(case.make(catalog, sp.KeepPartial)) for each in batch["id"]]
    assert len(ids) == len(set(ids)) == total


def test_no_stream_loses_a_sample_in_every_chapter(catalog: sp.Catalog) -> None:
    """Behind a filter, what chapters leave has each stream's share: none is short in mid-epoch, and too many at its end."""
    case = Case(3, 20_000, changes="filter", window=64, batch_size=24, composition=sp.StratifiedByStream())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "SLICE", 256)
        counts = np.array([[batch["stream"].count(name) for name in SHARES] for batch in read(case.make(catalog))])
    given = counts.sum(axis=0) / counts.sum()
    before = counts[: len(counts) * 9 // 10]  # what chapters have left comes behind them
    chapters = 20_000 / (64 * 3)
    assert (
        abs(before.sum(axis=0) - given * before.sum())[2] < chapters / 5
    )  # of the rarest; it was 0.7 for each chapter


def _ids(joined: str) -> Iterator[str]:
    at = 0
    for i in range(1, len(joined) + 1):
        if i == len(joined) or joined[i].isalpha():
            yield joined[at:i]
            at = i


@FEW
@given(case=cases(), data=st.data())
def test_a_run_goes_on_anywhere_with_and_without_the_index(
    catalog: sp.Catalog, tmp_path_factory: pytest.TempPathFactory, case: Case, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPIRAL_CACHE", str(tmp_path_factory.mktemp("one")))
        expected, states = [], []
        with case.make(catalog) as stream:
            for batch in stream:
                expected.append(frozen(batch))
                states.append(json.loads(json.dumps(stream.state_dict())))
        at = data.draw(st.integers(0, max(0, len(states) - 2)), label="at")
        near_end = data.draw(st.booleans(), label="near the end")
        at = max(0, len(states) - 3) if near_end else at
        for where in ("one", "another"):
            if where == "another":
                patch.setenv("SPIRAL_CACHE", str(tmp_path_factory.mktemp("another")))
            if len(states) > 1:
                rest = read(case.make(catalog), state=states[at])
                assert len(rest) == len(expected) - at - 1
                assert all(map(same, rest, expected[at + 1 :]))
        patch.setenv("SPIRAL_CACHE", str(tmp_path_factory.mktemp("apart")))
        with case.make(catalog) as stream:
            stream.count()
            numbers = data.draw(st.permutations(range(len(expected))), label="numbers")[:12]
            for number in [*numbers, len(expected) - 1] if expected else []:
                assert same(stream.batch(number), expected[number])
        patch.setenv("SPIRAL_CACHE", str(tmp_path_factory.mktemp("counted")))
        with case.make(catalog) as stream:
            found = counted_together(stream, lambda: Threads(2))
            assert found == len(expected) == stream.count() == len(stream)


@FEW
@given(case=cases(), data=st.data())
def test_a_sample_is_found_where_the_ledger_has_it(catalog: sp.Catalog, case: Case, data: st.DataObject) -> None:
    if case.changes == "assemble":
        return
    with case.make(catalog, sp.KeepPartial) as stream:
        ledgers = [stream.ledger(number) for number in range(stream.count())]
        for number in data.draw(st.lists(st.integers(0, max(0, len(ledgers) - 1)), max_size=4)) if ledgers else []:
            identity = data.draw(st.sampled_from(ledgers[number]))
            plain = identity[:-1] if case.changes == "flat_map" else identity
            plain = plain[0] if isinstance(plain, tuple) and len(plain) == 1 else plain
            row = [
                n
                for n, each in enumerate(ledgers)
                if any(
                    (e[:-1] if case.changes == "flat_map" else e)
                    == (identity[:-1] if case.changes == "flat_map" else identity)
                    for e in each
                )
            ]
            found = stream.locate(plain)
            assert found is not None
            assert found["batch"] == row[0]

"""Drawn plans against an oracle that knows nothing of chapters: the order's samples, filtered and multiplied in plain Python.

The oracle reads an unformed stream of the same order, one sample after another. Against it stand, for every drawn plan: each
sample once, no short batch in mid-epoch, the tails, ranks, random access, resume on other ranks, and skips.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.runtime.forming import inputs as forming
from spiral_stream.sampling.mixing import slices
from spiral_stream.testing import frozen, same
from tests.fixtures.texts import SMALL_PLANS

pytestmark = [SMALL_PLANS, pytest.mark.filterwarnings("ignore::spiral_stream.SpiralWarning")]

SIZES: Final = {"one": 1, "c": 20, "b": 90, "d": 160, "a": 300, "e": 520}
RELATIONS: Final = ("a", "a", "b", "c", "d", "e", "one")
FILTERS: Final[dict[str, tuple[Callable[..., Any], Callable[[int], bool]]]] = {
    "third": (lambda size: pa.array(size.to_numpy() % 3 != 1), lambda size: size % 3 != 1),
    "rare": (lambda size: pa.array(size.to_numpy() % 5 == 0), lambda size: size % 5 == 0),
}
CHANGES: Final = (
    *((), (), (), ("third",), ("third",), ("rare",), ("expr",), ("flat_map",)),
    *(("third", "flat_map"), ("flat_map", "third"), ("third", "expr")),
)


def token_counts(rows: int) -> list[int]:
    return np.random.default_rng([rows, 3]).integers(0, 13, rows).tolist()


TOKENS: Final = {f"{name}{i}": n for name, rows in SIZES.items() for i, n in enumerate(token_counts(rows))}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    made = sp.connect(tmp_path_factory.mktemp("drawn"))
    for name, rows in SIZES.items():
        size = token_counts(rows)
        table = {
            "id": [f"{name}{i}" for i in range(rows)],
            "size": pa.array(size, pa.int64()),
            "tokens": pa.array([list(range(n)) for n in size], pa.list_(pa.uint16())),
            "weight": np.random.default_rng([rows, 4]).random(rows) + 0.1,
        }
        made.register(name, sp.Arrow(pa.table(table)), identity="id")
    return made


def halves(size: int) -> list[int]:
    return [size // 2] * (size % 3)


@dataclass
class Drawn:
    """A plan."""

    parts: tuple[tuple[str, str, dict[str, Any]], ...]  # of a mixture: its name, relation, and share
    order: Any
    one: str = "a"  # the relation, without a mixture
    total: int | None = None
    changes: tuple[str, ...] = ()
    kind: str = "windowed"
    window: int = 16
    batch_size: int = 4
    keyed: bool = False
    packed: dict[str, Any] = field(default_factory=dict)
    composition: Any = None
    lanes: int = 1
    last: Any = None

    def _sampled(self, catalog: sp.Catalog, lanes: int) -> Any:
        rows: Any = catalog.table(self.one)
        if self.parts:
            streams = [sp.Stream(name, catalog.table(relation), **how) for name, relation, how in self.parts]
            rows = sp.mix(streams, epoch_size=self.total)
        ranks = sp.DataParallel(sp.RuntimeParam("rank"), sp.RuntimeParam("world_size"), lanes=lanes)
        return rows.sample(order=self.order, assignment=ranks)

    def samples(self, catalog: sp.Catalog) -> list[tuple[str, int]]:
        """The order's samples of an epoch, one after another: identity and tokens."""
        fields = {"id": sp.List("id"), "size": sp.List("size")}
        plan = self._sampled(catalog, 1).collate(batch_size=64, last=sp.KeepPartial, fields=fields)
        with plan.to_numpy(threads=1).bind(rank=0, world_size=1) as stream:
            return [pair for batch in stream for pair in zip(batch["id"], batch["size"], strict=True)]

    def stream(self, catalog: sp.Catalog, last: Any = None, rank: int = 0, world_size: int = 1) -> Any:
        rows, fields = self._sampled(catalog, self.lanes), dict[str, Any](id=sp.List("id"))
        for change in self.changes:
            if change in FILTERS:
                rows = rows.filter(FILTERS[change][0], columns=["size"])
            elif change == "expr":
                rows = rows.filter(sp.col("size") > 2)
            else:
                rows = rows.flat_map(halves, columns=["size"], name="half", returns=pa.int64(), fan_out=2)
                fields["half"] = sp.List("half")
        formation: Any = None
        if self.kind == "packed":
            fields |= {"ids": sp.Pad("tokens", pad_value=99), "seg": sp.fields.Segments("tokens")}
            formation = sp.batching.Packed(window_size=self.window, **self.packed)
        elif self.kind == "windowed":
            formation = sp.WindowedBucket(self.window, [sp.BucketKey("size")] if self.keyed else [])
        plan = rows.collate(
            batch_size=self.batch_size,
            formation=formation,
            composition=self.composition,
            last=last or self.last,
            fields=fields,
        )
        return plan.to_numpy(threads=1).bind(rank=rank, world_size=world_size)

    def read(self, catalog: sp.Catalog, last: Any = None, rank: int = 0, world_size: int = 1) -> list[Any]:
        with self.stream(catalog, last, rank, world_size) as stream:
            return [frozen(batch) for batch in stream]

    def wanted(self, samples: Sequence[tuple[str, int]]) -> Counter[Any]:
        """What an epoch delivers: samples, or of packed rows their tokens; each as often as it comes."""
        out = Counter[Any]()
        for name, size in samples:
            values: list[Any] = [None]
            for change in self.changes:
                if change in FILTERS:
                    values = values if FILTERS[change][1](size) else []
                elif change == "expr":
                    values = values if size > 2 else []
                else:
                    values = [half for _ in values for half in halves(size)]
            for value in values:
                if self.kind != "packed":
                    out[name, value] += 1
                    continue
                width, oversize = self.packed["max_tokens"], self.packed["oversize"]
                left = (
                    min(size, width) if oversize == "truncate" else 0 if oversize == "drop" and size > width else size
                )
                out.update((name, value, token) for token in range(left))
        return out


def orders(mixed: bool) -> list[Any]:
    found = [
        *(
            sp.GlobalShuffle(seed=5),
            sp.HashBucketed(seed=5, bucket_count=8),
            sp.orders.ExpandedRange(seed=6, expanded_range=20),
        ),
        *(
            sp.orders.WithReplacement(seed=9),
            sp.orders.Weighted("weight", seed=8),
            sp.orders.WithinShards(seed=7),
            sp.orders.WindowShuffle(seed=6, window=10),
        ),
        sp.ShardAwareShuffle(seed=3, shard_key=["storage_shard"], shuffle_block_size=16),
    ]
    return found if mixed else [*found, sp.Sequential()]


def drawn(draw: random.Random) -> Drawn:
    parts, total = [], None
    if draw.random() < 0.55:
        shares = [
            draw.choice([1, 2, 5, 10, 0.745, 0.245, 0.01, draw.random()])
            for _ in range(draw.choice([1, 2, 2, 3, 3, 4]))
        ]
        how = draw.choice(["proportion", "proportion", "repeat", "choose"])
        for i, share in enumerate(shares):
            values = {
                "proportion": share / sum(shares),
                "repeat": draw.choice([1, 1.5, 2]),
                "choose": draw.randint(1, 500),
            }
            parts.append((f"s{i}", draw.choice(RELATIONS), {how: values[how]}))
        total = draw.randint(20, 900) if how == "proportion" else None
    plan = Drawn(tuple(parts), draw.choice(orders(bool(parts))), draw.choice(RELATIONS), total, draw.choice(CHANGES))
    plan.kind = draw.choice(["windowed", "windowed", "windowed", "fixed", "packed"])
    plan.window, plan.batch_size = draw.choice([3, 5, 8, 16, 24, 40]), draw.choice([1, 2, 3, 4, 5, 7, 8, 9, 16, 24])
    plan.keyed, plan.lanes = draw.random() < 0.5, draw.choice([1, 1, 1, 2, 3, 4, 6, 7])
    plan.last = draw.choice([sp.KeepPartial, sp.DropPartial, sp.batching.PadPartial])
    if plan.kind == "packed":
        strategy, oversize = (
            draw.choice(["best_fit", "first_fit", "concat_and_split"]),
            draw.choice(["split", "truncate", "drop"]),
        )
        plan.packed = {
            "max_tokens": draw.choice([5, 8, 12, 20]),
            "strategy": strategy,
            "oversize": None if strategy == "concat_and_split" else oversize,
            "max_segments": draw.choice([None, None, 1, 3]),
        }
        return plan
    if parts and draw.random() < 0.65:
        plan.composition = draw.choice(
            [
                sp.StratifiedByStream(),
                sp.StratifiedByStream(),
                sp.batching.OneStream(),
                sp.batching.OneStream(batches=2),
            ]
        )
    one = isinstance(plan.composition, sp.batching.OneStream)
    least = len(parts) * (plan.composition.batches * plan.batch_size - 1) + 1 if one else plan.batch_size
    plan.window = max(plan.window, least)
    return plan


def rows_of(batch: Any) -> int:
    return len(batch["ids"]) if "seg" in batch else len(batch["id"])


def delivered(batches: Sequence[Any]) -> Counter[Any]:
    """What batches hold; see `Drawn.wanted`."""
    out = Counter[Any]()
    for batch in batches:
        if "seg" not in batch:
            out.update(zip(batch["id"], batch.get("half", [None] * len(batch["id"])), strict=True))
            continue
        for row, (ids, segments, names) in enumerate(zip(batch["ids"], batch["seg"], batch["id"], strict=True)):
            half = batch["half"][row] if "half" in batch else [None] * len(names)
            held = [
                (name, each) for name, each in zip(names, half, strict=True) if TOKENS[name]
            ]  # of no tokens: no segment
            for number, (name, each) in enumerate(held, 1):
                out.update((name, each, int(token)) for token in ids[segments == number])
    return out


def check(plan: Drawn, catalog: sp.Catalog, draw: random.Random) -> None:
    samples = plan.samples(catalog)
    epoch = {last: plan.read(catalog, last) for last in (sp.KeepPartial, sp.DropPartial, sp.batching.PadPartial)}
    kept, dropped, padded = epoch.values()
    ends = 2 * len(plan.parts) * plan.composition.batches if isinstance(plan.composition, sp.batching.OneStream) else 1

    assert delivered(kept) == plan.wanted(samples)
    assert all(rows_of(batch) == plan.batch_size for batch in [*kept[: max(0, len(kept) - ends)], *dropped, *padded])
    assert all(1 <= rows_of(batch) <= plan.batch_size for batch in kept)
    if ends == 1:
        assert sum(map(rows_of, kept)) - len(dropped) * plan.batch_size < plan.batch_size
        assert all(map(same, dropped, kept))
        assert len(padded) == len(kept)
        assert not delivered(kept) - delivered(padded)
    everything = epoch[plan.last]
    counted = set(plan.changes) <= {"expr"}
    worlds = [world for world in range(1, 8) if counted or plan.lanes % world == 0]
    if not counted and len(worlds) > 1:
        with plan.stream(catalog) as stream:
            assert stream.count() == len(everything)
    with plan.stream(catalog) as stream:
        for number in draw.sample(range(len(everything)), min(len(everything), 3)):
            assert same(frozen(stream.batch(number)), everything[number])
    world = draw.choice(worlds)
    for rank in range(world):
        assert all(map(same, plan.read(catalog, rank=rank, world_size=world), everything[rank::world]))
    resumed(plan, catalog, everything, draw.choice(worlds), draw.choice(worlds), draw)
    skipped(plan, catalog, everything, draw)


def resumed(plan: Drawn, catalog: sp.Catalog, epoch: list[Any], before: int, after: int, draw: random.Random) -> None:
    """A state by any rank goes on at the next step, on other ranks."""
    states = []
    with plan.stream(catalog, rank=draw.randrange(before), world_size=before) as stream:
        states += [json.loads(json.dumps(stream.state_dict())) for _ in stream]
    for at in draw.sample(range(len(states)), min(len(states), 3)):
        left, rank = epoch[(at + 1) * before :], draw.randrange(after)
        steps = len(left) // after if plan.last is sp.DropPartial else -(-len(left) // after)
        if steps == 0:
            continue  # less than a step is left: the next epoch begins
        with plan.stream(catalog, rank=rank, world_size=after) as stream:
            stream.load_state_dict(states[at])
            found = [frozen(batch) for batch in stream]
        assert len(found) == (len(left[rank::after]) if plan.last is sp.KeepPartial else steps)
        assert all(map(same, found, left[rank::after]))


def skipped(plan: Drawn, catalog: sp.Catalog, epoch: list[Any], draw: random.Random) -> None:
    """Batches that are skipped leave, and no other changes."""
    numbers = draw.sample(range(len(epoch)), min(len(epoch), 2))
    with plan.stream(catalog) as stream:
        stream.skip(batches=numbers)
        if len(numbers) < len(epoch):
            found = [frozen(batch) for batch in stream]
            left = [batch for number, batch in enumerate(epoch) if number not in numbers]
            assert len(found) == len(left)
            assert all(map(same, found, left))


# By day plans of each kind that are read in half a CPU second: filtered, mixed, packed over ranks, multiplied. One of thousands
# of batches takes 20.
BY_DAY: Final = (70_002, 70_003, 70_004, 70_009, 70_010)
AT_NIGHT: Final = [range(70_000, 70_002), *(range(begin, begin + 50) for begin in range(70_050, 70_500, 50))]


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param(BY_DAY, id="day"),
        *(pytest.param(some, marks=pytest.mark.slow, id=f"{some[0]}") for some in AT_NIGHT),
    ],
)
def test_a_drawn_plan_delivers_what_the_oracle_says(
    catalog: sp.Catalog, numbers: Sequence[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = 0
    for seed in numbers:
        draw = random.Random(seed)
        plan = drawn(draw)
        windows, size = draw.choice([(3, 64), (1, 64), (2, 128), (8, 256)])
        monkeypatch.setattr(forming, "CHAPTER_WINDOWS", windows)  # small epochs have many chapters
        monkeypatch.setattr(slices, "SLICE", size)
        monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / str(seed)))
        try:
            check(plan, catalog, draw)
        except (sp.errors.PlanError, sp.errors.BindError):
            continue  # refused by name, which has its own tests
        except Exception as error:
            error.add_note(f"seed {seed}: {plan}")
            raise
        done += 1
    assert done >= len(numbers) // 2

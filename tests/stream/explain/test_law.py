"""The law of EXPLAIN: every figure of drawn plans is compared with a measurement, each with its stated tolerance.

A plan is drawn, explained as data (`to_dict()`), and run: its batches, its metrics and its states are the measurements. A figure
that is marked exact is equal to its measurement; one that is estimated lies within the tolerance that `MEASURES` states for it.
A figure without a measure in `MEASURES` fails the law.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import comb
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.explain import formed
from tests.fixtures.drawn_streams import SIZES, Drawn, catalogs, plans
from tests.fixtures.examples import few
from tests.fixtures.inner import stages_of
from tests.fixtures.texts import SMALL_PLANS, documents
from tests.stream.explain.words import figures

pytestmark = SMALL_PLANS
SHARDS = 3  # of each relation
FEW = 6  # groups: of fewer, a mean says little
PAIRS = 200  # from which on a probability is compared with how often it came true


@pytest.fixture(scope="module")
def of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, sp.Catalog]:
    """Small relations with token caches of no row, some rows, and all; measured."""
    found = catalogs(tmp_path_factory.mktemp("law"))
    for catalog in found.values():
        for name in SIZES:
            catalog.measure(name)
    return found


# ---- what a run measures


@dataclass(eq=False)
class Ran:
    """One epoch of a drawn plan, as the loop of one rank got it, and what other ranks had."""

    drawn: Drawn
    stream: Any
    batches: list[dict[str, Any]]
    counted: int  # batches of the epoch, before the tail rule
    steps: int  # of the rank that was explained
    state_bytes: int
    metrics: Mapping[str, Any]
    epoch: int
    delivered: int  # batches of all ranks together
    elapsed_s: float
    read_to_explain: int  # bytes
    whole: bool  # whether EXPLAIN formed all batches

    @cached_property
    def names(self) -> dict[str, str]:
        """Stream -> relation."""
        return {each.name: each.base.entry.name for each in stages_of(self.stream).streams}

    @cached_property
    def ids(self) -> list[list[str]]:
        """Identities, batch by batch; of packed rows each sample once."""
        each = [_flat(batch["sample_id"]) for batch in self.batches]
        return [list(dict.fromkeys(own)) for own in each] if self.packed else each

    @property
    def packed(self) -> bool:
        """Whether rows hold pieces of samples, so that batches do not say how many samples they have."""
        return isinstance(self.drawn.formation, sp.batching.Packed)

    @cached_property
    def streams(self) -> list[list[str]]:
        """The stream of each sample, batch by batch."""
        if not self.drawn.mixed:
            return [[""] * len(each) for each in self.ids]
        if not self.packed:
            return [_flat(batch["stream_id"]) for batch in self.batches]
        pairs = [dict(zip(_flat(b["sample_id"]), _flat(b["stream_id"]), strict=True)) for b in self.batches]
        return [[pair[name] for name in own] for pair, own in zip(pairs, self.ids, strict=True)]

    def eligible(self, stream: str) -> list[int]:
        """Rows of a stream's relation that pass the conditions."""
        rows = documents(self.names[stream], SIZES[self.names[stream]], longest=20)["quality"].to_numpy()
        return np.flatnonzero((rows < self.drawn.below) & (rows > self.drawn.above)).tolist()

    def shards(self, stream: str) -> np.ndarray:
        """Rows that pass in each shard that has any."""
        total = SIZES[self.names[stream]]
        found = np.bincount([row * SHARDS // total for row in self.eligible(stream)], minlength=SHARDS)
        return found[found > 0]

    def lengths(self, stream: str) -> np.ndarray:
        table = documents(self.names[stream], SIZES[self.names[stream]], longest=20)
        return np.array([len(table["tokens"][row]) for row in self.eligible(stream)])

    @cached_property
    def samples(self) -> int:
        return sum(map(len, self.ids))

    @property
    def length(self) -> int:
        """Positions of the epoch."""
        return len(self.stream.order(self.epoch))

    @property
    def meeting(self) -> int:
        """Samples that may share a batch."""
        formation = stages_of(self.stream).formation
        return int(formation.window_size if formation is not None else self.drawn.batch_size or 0)

    def meets(self, stream: str) -> float:
        """Samples of one stream that may."""
        if not self.drawn.mixed:
            most = self.length // self.drawn.lanes
            return max(1, min(self.meeting, most)) if stages_of(self.stream).formed else self.meeting
        own = self.groups(stream)
        return sum(map(len, own)) / max(1, len(own))

    @cached_property
    def laid_out(self) -> Any:
        """The samples of the epoch, in its order."""
        return self.stream.order(self.epoch).rows(np.arange(self.length))

    @property
    def passes(self) -> list[int]:
        """The pass over its stream of each position."""
        found: list[int] = self.laid_out["__pass__"].to_pylist()
        return found

    @cached_property
    def order(self) -> list[tuple[str, int]]:
        """Stream and shard of each position of the epoch."""
        table = self.laid_out
        names = table["stream_id"].to_pylist() if self.drawn.mixed else [""] * self.length
        rows = table["__row__"].to_pylist()
        return [(s, row * SHARDS // SIZES[self.names[s]]) for s, row in zip(names, rows, strict=True)]

    @cached_property
    def quotas(self) -> Counter[str]:
        """How often each stream stands in the epoch."""
        return Counter(stream for stream, _ in self.order)

    def groups(self, stream: str) -> list[list[int]]:
        """The shards of those samples of a stream that may share a batch: those of batches, or of windows."""
        if not stages_of(self.stream).formed:
            parts = [zip(streams, ids, strict=True) for streams, ids in zip(self.streams, self.ids, strict=True)]
            own = [[self.shard(s, i) for s, i in part if s == stream] for part in parts]
        else:
            begins = [self.length * lane // self.drawn.lanes for lane in range(self.drawn.lanes + 1)]
            size = max(1, min(self.meeting, self.length // self.drawn.lanes))
            starts = [at for a, b in pairwise(begins) for at in range(a, b - size + 1, size)]
            own = [[shard for s, shard in self.order[at : at + size] if s == stream] for at in starts]
        return [each for each in own if each]

    def shard(self, stream: str, identity: str) -> int:
        return int(identity.rsplit("-", 1)[1]) * SHARDS // SIZES[self.names[stream]]

    def same_shard(self, stream: str) -> float | None:
        """How often two samples of one stream that may share a batch share a shard; None of few pairs."""
        counts = [np.bincount(own) for own in self.groups(stream)]
        pairs = sum(int(each.sum() * (each.sum() - 1)) for each in counts)
        return sum(int((each * (each - 1)).sum()) for each in counts) / pairs if pairs >= PAIRS else None

    def shards_met(self, stream: str) -> float | None:
        """Shards in a group, on average; None of few groups."""
        own = self.groups(stream)
        return float(np.mean([len(set(each)) for each in own])) if len(own) >= FEW else None

    def blocks(self, stream: str) -> list[list[int]]:
        """The shards in each block of the order, in the epoch."""
        size, passes = self.drawn.order.shuffle_block_size, dict[int, list[int]]()
        for number, (name, shard) in zip(self.passes, self.order, strict=True):
            if name == stream:
                passes.setdefault(number, []).append(shard)
        return [own[at : at + size] for own in passes.values() for at in range(0, len(own), size)]

    @property
    def block_shards(self) -> float | None:
        """Shards in a block of the order; None in a mixture, whose epochs cut passes."""
        return None if self.drawn.mixed else float(np.mean([len(set(each)) for each in self.blocks("")]))

    @property
    def run_length(self) -> float | None:
        """Rows of a shard in a block."""
        found = self.blocks("")
        return None if self.drawn.mixed else sum(map(len, found)) / sum(len(set(each)) for each in found)

    def cached(self, streams: list[str]) -> float:
        """The share of eligible rows whose tokens are cached."""
        held = eligible = 0
        for stream in streams:
            rows = self.eligible(stream)
            quality = documents(self.names[stream], SIZES[self.names[stream]], longest=20)["quality"].to_numpy()
            kept = {"full": rows, "half": [r for r in rows if quality[r] > 0.4] if self.names[stream] in "ac" else []}
            held, eligible = held + len(kept.get(self.drawn.source, [])), eligible + len(rows)
        return held / max(1, eligible)

    def apart(self, stream: str, *, running: bool) -> float | None:
        """How far batches, or all batches up to one, are from a stream's share."""
        if self.packed:
            return None
        counts, sizes = (
            np.array([own.count(stream) for own in self.streams]),
            np.array([len(own) for own in self.streams]),
        )
        if running:
            counts, sizes = np.cumsum(counts), np.cumsum(sizes)
        return float(np.abs(counts - sizes * self.quotas[stream] / self.length).max())

    def stored_in(self, name: str | None) -> int:
        """Shards of a relation; the only one's, if no name is given."""
        return min(SHARDS, SIZES[name or self.names[""]])

    def weighty(self, stream: str) -> int:
        """Rows whose weight is above 0."""
        quality = documents(self.names[stream], SIZES[self.names[stream]], longest=20)["quality"].to_numpy()
        return int(np.count_nonzero(quality[self.eligible(stream)]))

    @property
    def fill(self) -> float:
        """Of the budget of all batches."""
        padded = self.drawn.formation.budget.count == "padded"
        return float((self.places if padded else self.tokens.sum()) / self.limit)

    @property
    def came(self) -> int | None:
        """Samples that batches hold, each as often as it comes; None of packed rows, which may hold parts of a sample."""
        return None if self.packed else sum(len(_flat(batch["sample_id"])) for batch in self.batches)

    @property
    def undelivered(self) -> int | None:
        """Samples that `DropPartial` leaves out of the epoch; None where something else may."""
        other = self.packed or self.drawn.kept is not None or self.drawn.last is not sp.DropPartial
        return None if other else self.length - self.samples

    @property
    def once_at_least(self) -> int:
        """Samples whose tokens were asked for: those of the loop, but for what batches repeat."""
        return len({each for own in self.ids for each in own})

    @property
    def id_bytes(self) -> int:
        return sum(len(each) for own in self.ids for each in own)

    @property
    def once(self) -> int:
        """Positions of the epoch that the ranks together deliver."""
        return min(self.delivered * self.meeting, self.length)

    @cached_property
    def segments(self) -> np.ndarray:
        """Pieces in each row of packed batches."""
        return np.array([len(row) for batch in self.batches for row in batch["sample_id"]])

    def list_bytes(self) -> float:
        """Of the lists of the largest batch, as Python holds them."""
        held = [
            sum(sys.getsizeof(each) + 8 for name in ("sample_id", "stream_id") for each in _flat(batch.get(name, [])))
            for batch in self.batches
        ]
        return float(max(held, default=0))

    def bar(self, found: re.Match[str]) -> int:
        """Batches whose T lies in a bar of the histogram."""
        low = int(found["low"])
        return int(np.count_nonzero((self.widths >= low) & (self.widths <= int(found["high"] or low))))

    @cached_property
    def rows(self) -> np.ndarray:
        return np.array([len(batch["mask"]) for batch in self.batches])

    @cached_property
    def widths(self) -> np.ndarray:
        return np.array([batch["mask"].shape[1] for batch in self.batches])

    @cached_property
    def tokens(self) -> np.ndarray:
        return np.array([int(np.count_nonzero(batch["mask"])) for batch in self.batches])

    @property
    def places(self) -> int:
        return int((self.rows * self.widths).sum())

    @property
    def limit(self) -> int:
        return int(self.drawn.formation.budget.max_tokens * len(self.batches))

    def at_random(self, stream: str) -> float:
        rows = self.shards(stream)
        total = int(rows.sum())
        return float((rows * (rows - 1)).sum() / (total * (total - 1))) if total > 1 else 0.0

    def share(self, stream: str) -> float | None:
        """Of the samples that the loop got."""
        return None if self.packed else sum(own.count(stream) for own in self.streams) / max(1, self.samples)

    def array_bytes(self) -> int:
        """Of the largest batch."""
        return max((sum(v.nbytes for v in b.values() if isinstance(v, np.ndarray)) for b in self.batches), default=0)


def _flat(values: Any) -> list[str]:
    return [each for entry in values for each in (entry if isinstance(entry, list) else [entry])]


# ---- the measures

Truth = Callable[[Ran, re.Match[str]], Any]
Near = Callable[[float, float], bool]


def within(relative: float, absolute: float = 0.0) -> Near:
    """An estimate may be as far off."""
    return lambda said, true: bool(said == pytest.approx(true, rel=relative, abs=absolute))


def at_most(said: float, true: float) -> bool:
    """The figure is not above what is measured."""
    return said <= true * (1 + 1e-9)


def at_least(said: float, true: float) -> bool:
    """The figure is not below what is measured."""
    return said >= true * (1 - 1e-9)


EQUAL = within(1e-9)


@dataclass(frozen=True)
class Measure:
    """How figures whose path matches are measured."""

    pattern: str
    truth: Truth
    near: Near = EQUAL  # of estimates
    bound: bool = False  # whether ``near`` holds of figures without a mark too: a bound, or a probability


def rows_left(ran: Ran, found: re.Match[str]) -> int:
    """After a step of the relation's part: all rows, or those that pass."""
    stream = found["stream"] or ""
    return SIZES[ran.names[stream]] if found["step"].startswith("scan") else len(ran.eligible(stream))


def token_share(ran: Ran, stream: str) -> float:
    """Of the tokens of an epoch, by the mean length of the rows that pass."""
    each = {name: ran.quotas[name] * ran.lengths(name).mean() for name in ran.names}
    return float(each[stream] / max(1e-9, sum(each.values())))


def met_at_random(ran: Ran, stream: str) -> float:
    """Shards of so many rows, drawn without replacement."""
    rows, size = ran.shards(stream), ran.meets(stream)
    total = int(rows.sum())
    drawn = min(round(size), total)
    return float(sum(1 - comb(total - int(n), drawn) / comb(total, drawn) for n in rows))


STEP = r"relation > steps > ((?P<stream>[\w/]+), )?(?P<step>(scan|filter).*) > "
SHARDS_OF = r"sample > (streams > (?P<s>[\w/]+), [^>]*(> [^>]*)?> )?shards with rows > "
CHOSEN = r"sample > (randomness|streams) > ((?P<s>[\w/]+), )?-> .* > "
RANDOM = r"sample > (randomness|streams) > ((?P<s>[\w/]+), )?at random > "
STREAM = r"mix > streams > (?P<s>[\w/]+)(, [\d.%]+ -> [\d.%]+)? > "
WIDE = within(0.8, 6)  # of a few small batches, from some of them: an epoch's last are not like its first
MEASURES: list[Measure] = [
    Measure(
        r"relation > (streams > [\w/]+, (?P<name>\w+) > )?source > shards", lambda ran, m: ran.stored_in(m["name"])
    ),
    Measure(r"relation > payload bytes read to decide", lambda ran, _: ran.read_to_explain),
    Measure(STEP + "rows left", rows_left),
    Measure(STEP + "share", lambda ran, m: rows_left(ran, m) / SIZES[ran.names[m["stream"] or ""]]),
    Measure(
        r"relation > streams > (?P<s>[\w/]+), \w+ > pass",
        lambda ran, m: len(ran.eligible(m["s"])) / SIZES[ran.names[m["s"]]],
    ),
    Measure(r"mix > epoch_size > samples", lambda ran, _: ran.length),
    Measure(STREAM + "quota", lambda ran, m: ran.quotas[m["s"]]),
    Measure(STREAM + "eligible rows", lambda ran, m: len(ran.eligible(m["s"]))),
    Measure(STREAM + "passes this epoch", lambda ran, m: ran.quotas[m["s"]] / len(ran.eligible(m["s"]))),
    Measure(
        STREAM + "target",
        lambda ran, m: ran.quotas[m["s"]] / ran.length,
        lambda said, true: abs(said - true) < 0.21,
        bound=True,
    ),
    Measure(STREAM + "mean size", lambda ran, m: float((ran.lengths(m["s"]) + 1).mean())),
    Measure(STREAM + "tokens a row", lambda ran, m: float(ran.lengths(m["s"]).mean()), within(1e-6)),
    Measure(STREAM + "share of tokens", lambda ran, m: token_share(ran, m["s"]), within(1e-6)),
    Measure(r"sample > rows( > positions)?", lambda ran, _: ran.length),
    Measure(SHARDS_OF + "shards", lambda ran, m: len(ran.shards(m["s"] or ""))),
    Measure(SHARDS_OF + "min", lambda ran, m: ran.shards(m["s"] or "").min()),
    Measure(SHARDS_OF + "median", lambda ran, m: np.median(ran.shards(m["s"] or ""))),
    Measure(SHARDS_OF + "max", lambda ran, m: ran.shards(m["s"] or "").max()),
    Measure(r"sample > kept together inside a block > rows", lambda ran, _: ran.drawn.order.clump_size),
    Measure(r"sample > buckets > buckets", lambda ran, _: ran.drawn.order.bucket_count),
    Measure(r"sample > buckets > rows", lambda ran, _: sum(len(ran.eligible(s)) for s in ran.names) / 8, within(1e-6)),
    Measure(r"sample > weights > rows", lambda ran, _: sum(len(ran.eligible(s)) for s in ran.names)),
    Measure(r"sample > weights > positive", lambda ran, _: sum(ran.weighty(s) for s in ran.names)),
    Measure(CHOSEN + "(block size|shuffle_block_size) > rows", lambda ran, _: ran.drawn.order.shuffle_block_size),
    Measure(CHOSEN + "rows buffered", lambda ran, _: min(16, len(ran.eligible("")))),
    Measure(CHOSEN + "shards/block", lambda ran, _: ran.block_shards, within(0.6, 1.5)),
    Measure(CHOSEN + "run length", lambda ran, _: ran.run_length, within(0.7, 6)),
    Measure(CHOSEN + "shards/batch", lambda ran, m: ran.shards_met(m["s"] or ""), within(0.4, 1.0)),
    Measure(CHOSEN + r"P\(same shard\)", lambda ran, m: ran.same_shard(m["s"] or ""), within(0.0, 0.4), bound=True),
    Measure(CHOSEN + "rows that meet", lambda ran, m: ran.meets(m["s"] or ""), WIDE),
    Measure(RANDOM + "rows that meet", lambda ran, m: ran.meets(m["s"] or ""), WIDE),
    Measure(RANDOM + r"P\(same shard\)", lambda ran, m: ran.at_random(m["s"] or ""), within(1e-6)),
    Measure(RANDOM + "shards/batch", lambda ran, m: met_at_random(ran, m["s"] or ""), within(0.3, 1.0)),
    Measure(r"skew > counted > rows of (?P<name>\w+)", lambda ran, m: SIZES[m["name"]]),
    Measure(r"skew > counted > kept", lambda ran, _: sum(len(ran.eligible(s)) for s in ran.names)),
    Measure(r"batch > global batches an epoch", lambda ran, _: ran.delivered),
    Measure(r"batch > steps of this rank", lambda ran, _: ran.steps, within(0.35, 3)),
    Measure(r"batch > rows dropped an epoch > rows", lambda ran, _: ran.length - ran.once),
    Measure(r"batch > rows dropped an epoch > share", lambda ran, _: (ran.length - ran.once) / ran.length),
    Measure(r"batch > last > most", lambda ran, _: abs(ran.counted - ran.delivered), at_least, bound=True),
    Measure(
        r"batch > (chapters leave|(samples|rows) dropped at the end) > most",
        lambda ran, _: None if ran.undelivered is None else ran.undelivered / ran.drawn.lanes,
        at_least,
        bound=True,
    ),
    Measure(
        r"batch > chapters leave > again",
        lambda ran, _: ran.drawn.lanes * (1 + ran.length // 512),
        at_most,
        bound=True,
    ),
    Measure(r"batch > (samples|rows) dropped at the end > rows", lambda ran, _: ran.undelivered),
    Measure(
        r"batch > (samples|rows) dropped at the end > share",
        lambda ran, _: None if ran.undelivered is None else ran.undelivered / ran.length,
    ),
    Measure(r"batch > formation > window", lambda ran, _: ran.meeting),
    Measure(r"batch > seen for this > samples", lambda ran, _: ran.length),
    Measure(r"batch > seen for this > seen", lambda ran, _: ran.length, at_most, bound=True),
    Measure(r"batch > seen for this > batches", lambda ran, _: ran.counted, at_most, bound=True),
    Measure(r"batch > batches an epoch( > batches)?", lambda ran, _: ran.counted, within(0.35, 3)),
    Measure(
        r"batch > batches an epoch > chapters",
        lambda ran, _: ran.drawn.lanes * (1 + ran.length // 512),
        at_most,
        bound=True,
    ),
    Measure(r"batch > filtered after sample", lambda ran, _: ran.metrics["filtered"] / ran.length, within(0.5, 0.2)),
    Measure(r"batch > B > min", lambda ran, _: ran.rows.min(), WIDE),
    Measure(r"batch > B > median", lambda ran, _: np.median(ran.rows), WIDE),
    Measure(r"batch > B > max", lambda ran, _: ran.rows.max(), WIDE),
    Measure(r"batch > T > p50", lambda ran, _: np.quantile(ran.widths, 0.5, method="lower"), within(0.8, 16)),
    Measure(r"batch > T > p95", lambda ran, _: np.quantile(ran.widths, 0.95, method="lower"), within(0.8, 16)),
    Measure(r"batch > T > max", lambda ran, _: ran.widths.max(), within(0.8, 16)),
    Measure(r"batch > tokens a batch > median", lambda ran, _: np.median(ran.tokens), within(0.6, 20)),
    Measure(r"batch > budget fill > share", lambda ran, _: ran.fill, within(0.3, 0.15)),
    Measure(r"batch > padding > share", lambda ran, _: 1 - ran.tokens.sum() / ran.places, within(0.3, 0.25)),
    Measure(r"batch > utilisation > share", lambda ran, _: ran.tokens.sum() / ran.places, within(0.3, 0.15)),
    Measure(r"batch > segments a row > mean", lambda ran, _: ran.segments.mean(), within(0.3, 1)),
    Measure(r"batch > segments a row > max", lambda ran, _: ran.segments.max(), within(0.5, 2)),
    Measure(r"batch > oversize samples > (?P<what>\w+)", lambda ran, m: ran.metrics[m["what"]], within(0.5, 5)),
    Measure(
        r"batch > streams > (?P<s>[\w/]+)(, [^>]*)? > target",
        lambda ran, m: ran.quotas[m["s"]] / ran.length,
        lambda said, true: abs(said - true) < 0.21,
        bound=True,
    ),
    Measure(r"batch > streams > (?P<s>[\w/]+)(, [^>]*)? > found", lambda ran, m: ran.share(m["s"]), within(0.4, 0.25)),
    Measure(
        r"batch > streams > (?P<s>[\w/]+)(, [^>]*)? > most apart in a batch > far",
        lambda ran, m: ran.apart(m["s"], running=False),
        WIDE,
    ),
    Measure(
        r"batch > streams > (?P<s>[\w/]+)(, [^>]*)? > after any batch > far",
        lambda ran, m: ran.apart(m["s"], running=True),
        within(1.0, 6),
    ),
    Measure(
        r"batch > widths > (?P<low>\d+)( - (?P<high>\d+))? > batches", lambda ran, m: ran.bar(m) if ran.whole else None
    ),
    Measure(
        r"materialize > fields > (?P<field>ids|mask|segments), .* > out/sample > bytes",
        lambda ran, m: ran.batches[0][m["field"]].itemsize,
    ),
    Measure(r"materialize > fields > tokens, .* > out/sample > bytes", lambda *_: np.dtype(np.uint16).itemsize),
    Measure(r"materialize > tokens of (?P<streams>.*) > rows", lambda ran, m: ran.cached(m["streams"].split(", "))),
    Measure(r"materialize > fields > tokens, .* > built > rows", lambda ran, _: ran.cached(list(ran.names))),
    Measure(r"deliver > prefetch > batches", lambda *_: 2),
    Measure(r"deliver > bytes a batch > lists", lambda ran, _: ran.list_bytes(), within(0.5, 300)),
    Measure(r"resume > state > bytes", lambda ran, _: ran.state_bytes or None, within(0, 24), bound=True),
    Measure(r"resume > unit > samples", lambda ran, _: 64 * ran.meeting),
    Measure(r"resume > unit > windows", lambda *_: 64),
    Measure(r"resume > reposition > rows", lambda *_: 0),
]
MEASURED: list[Measure] = [
    Measure(r"materialize > fields > tokens, .* > hit", lambda ran, _: ran.cached(list(ran.names)), within(0.0, 0.6)),
    Measure(r"deliver > largest batch > batch", lambda ran, _: ran.array_bytes(), at_least),
    Measure(r"deliver > largest batch > ahead", lambda ran, _: ran.array_bytes(), at_least),
    Measure(r"deliver > delivered > batches", lambda ran, _: len(ran.batches)),
    Measure(r"deliver > delivered > samples", lambda ran, _: ran.came),
    Measure(r"deliver > read > bytes", lambda ran, _: 0 if ran.drawn.source in ("stored", "full") else 1, at_least),
    Measure(r"deliver > read > rows", lambda ran, _: 0 if ran.drawn.source in ("stored", "full") else 1, at_least),
    Measure(r"deliver > read > all", lambda ran, _: 0 if ran.drawn.source == "stored" else ran.once_at_least, at_least),
    Measure(r"deliver > table columns > bytes", lambda ran, _: ran.id_bytes, at_least),
    Measure(r"deliver > table columns > rows", lambda ran, _: ran.samples, at_least),
    Measure(
        r"deliver > seconds > waited|deliver > seconds by stage > (copy|wait)", lambda ran, _: ran.elapsed_s, at_most
    ),
    Measure(r"deliver > seconds.* > .*", lambda ran, _: ran.elapsed_s * 64, at_most),
    Measure(r"deliver > left out or cut > filtered", lambda ran, _: 0 if ran.drawn.kept is None else None),
    Measure(r"deliver > left out or cut > (dropped|truncated|alone)", lambda *_: 0, at_least),
]
MIX, MIXING, BATCH, SIZES_OF, SHARES = (f"test_{room}.py" for room in ("mix", "mixing", "batch", "sizes", "shares"))
ELSEWHERE: dict[str, tuple[str, str]] = {  # what another plan would measure: the test that makes that plan
    STREAM + "samples by tokens": (MIX, "test_what_proportions_by_tokens_would_give_is_what_they_give"),
    STREAM + "target > (begin|end)": (MIX, "test_a_schedule_shows_its_points_and_where_the_epoch_goes"),
    r"sample > (randomness|streams) > (?!.*(-> |at random)).*": (
        MIXING,
        "test_blocks_are_those_of_the_epoch_that_is_explained",
    ),
    r"batch > other limits > .*": (BATCH, "test_other_limits_are_what_a_run_with_them_makes"),
    r"batch > padding without buckets > share": (BATCH, "test_sorting_is_compared_with_the_same_samples_in_order"),
    r"deliver > (bytes a batch( > arrays)?|host memory bound > bytes)": (SIZES_OF, "test_a_batch_is_as_large_as_said"),
    r"skew > (columns|values|shares) > .*": (SHARES, "test_shares_are_those_of_the_rows_that_the_plan_keeps"),
    r"skew > time > .*": (SHARES, "test_what_follows_ingest_time_is_told_from_what_does_not"),
}


# ---- the law


def run(
    drawn: Drawn, of: Mapping[str, sp.Catalog], epoch: int, place: tuple[int, int], seen: int = formed.DRAWN
) -> tuple[list[str], int]:
    """Explain a plan, run it, and explain what was measured: what is wrong, and how many figures were compared."""
    rank, world = place
    with drawn.make(of, epoch=epoch) as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(formed, "DRAWN", seen)
        stream.bind(rank=rank, world_size=world)
        explained = stream.explain().to_dict()
        read = stream.metrics()["source_bytes"]
        steps = len(stream)
        counted = stream.count(epoch)
    with drawn.make(of, epoch=epoch) as stream:
        begun = perf_counter()
        batches, state = [], 0
        for batch in stream:
            state = state or len(json.dumps(stream.state_dict()))  # after the first step
            batches.append({name: _copied(value) for name, value in batch.items()})
        metrics, after = stream.metrics(), stream.explain(analyze=True).to_dict()
        elapsed_s = perf_counter() - begun
        delivered = sum(len(stream.bind(epoch=epoch, rank=each, world_size=world)) for each in range(world))
        ran = Ran(
            drawn, stream, batches, counted, steps, state, metrics, epoch, delivered, elapsed_s, read, seen > 1_000
        )
        return check(ran, explained, after)


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else list(value)


def check(ran: Ran, explained: Any, after: Any) -> tuple[list[str], int]:
    """Compare every figure."""
    wrong, compared = [], 0
    told = [(path, figure, MEASURES) for path, figure in figures(explained)]
    told += [(path, figure, MEASURED) for path, figure in figures(after) if figure["mark"] == "measured"]
    for names, figure, measures in told:
        path = " > ".join(names)
        if any(re.fullmatch(pattern, path) for pattern in ELSEWHERE):
            continue
        found = next(((each, m) for each in measures if (m := re.fullmatch(each.pattern, path))), None)
        if found is None:
            wrong.append(f"{path} = {figure['value']} {figure['unit']} has no measure")
            continue
        if not ran.batches and path.startswith(("batch", "deliver", "sample", "materialize")):
            continue  # nothing was delivered to measure
        measure, match = found
        said, true = figure["value"], measure.truth(ran, match)
        if true is None:
            continue  # too little was delivered to measure
        near = measure.near if measure.bound or figure["mark"] != "exact" else EQUAL
        if not near(said, true):
            wrong.append(f"{path}: said {figure['mark']} {said}, true {true}")
        compared += 1
    return wrong, compared


@few(12, 300, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    drawn=plans(),
    epoch=st.integers(0, 3),
    place=st.sampled_from([(0, 1), (0, 1), (0, 2), (1, 2), (2, 3)]),
    seen=st.sampled_from([1 << 19, 1 << 19, 60]),  # samples that EXPLAIN forms
)
def test_every_figure_of_a_drawn_plan_is_what_a_run_measures(
    of: dict[str, sp.Catalog], drawn: Drawn, epoch: int, place: tuple[int, int], seen: int
) -> None:
    wrong, compared = run(drawn, of, epoch, place if drawn.counted else (0, 1), seen)

    assert not wrong, "\n".join(wrong)
    assert compared > 15


@pytest.mark.parametrize(("room", "test"), sorted(set(ELSEWHERE.values())))
def test_what_is_measured_elsewhere_is_measured_there(room: str, test: str) -> None:
    (found,) = Path(__file__).parent.rglob(room)
    assert f"def {test}(" in found.read_text()

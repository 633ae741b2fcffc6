"""EXPLAIN DATA: what a plan will do to its data, from facts, before the first payload byte is read.

One dict, rendered as text or markdown. Sections come in a fixed order. A number
without a mark is exact, ``~`` marks an estimate, ``!`` a measurement of this run;
what is unknown names what would supply it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from typing import Any, Final, final

import numpy as np
from rich.console import Console
from rich.table import Table

from spiral_stream.catalog.skew import skew_of
from spiral_stream.catalog.statistics import KNOWN, load_statistics
from spiral_stream.expr import kind_of
from spiral_stream.plan import nodes
from spiral_stream.plan.fingerprint import fingerprint
from spiral_stream.plan.tree import need, spine, walk
from spiral_stream.planner.bind import Bound
from spiral_stream.planner.physical import ImageStage, Stages
from spiral_stream.planner.rewrites import rewrite
from spiral_stream.sampling.hash_bucketed import HashBucketed
from spiral_stream.sampling.randomness import randomness
from spiral_stream.sampling.shard_aware import ShardAwareShuffle
from spiral_stream.schema import semantic_of

SECTIONS: Final = (
    *("header", "plan", "relation", "mix", "sample", "skew", "batch", "materialize", "deliver", "resume", "warnings"),
)
STATE_BYTES: Final = 400  # a state with one segment and one relation, as JSON
_BUFFER_WARNING_BYTES: Final = 8 << 30


@final
@dataclass(frozen=True, slots=True)
class Explanation:
    """The facts, by section; `str` renders text."""

    facts: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, by section."""
        plain: dict[str, Any] = json.loads(json.dumps(self.facts))
        return plain

    def to_json(self) -> str:
        """JSON text."""
        return json.dumps(self.facts, indent=2)

    def to_markdown(self) -> str:
        """Markdown, for Dagster's metadata."""
        return f"```\n{self}\n```"

    def __str__(self) -> str:
        out = StringIO()
        console = Console(file=out, width=132, highlight=False, markup=False, no_color=True)
        for section in SECTIONS:
            console.print(section.upper() if section != "header" else "EXPLAIN DATA")
            _print(console, self.facts[section])
        lines = [line.rstrip() for line in out.getvalue().splitlines()]
        return "\n".join(lines)


def _print(console: Console, value: Any) -> None:
    if isinstance(value, str):
        console.print(f"  {value}", soft_wrap=True)
        return
    if isinstance(value, list):
        if value and isinstance(value[0], Mapping):
            _print_rows(console, value)
        for line in [] if value and isinstance(value[0], Mapping) else value or ["none"]:
            console.print(f"  {line}", soft_wrap=True)
        return
    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    for key, item in value.items():
        if not (isinstance(item, list) and item and isinstance(item[0], Mapping)):
            grid.add_row(key, _text(item))
    if grid.row_count:
        console.print(grid)
    for item in value.values():
        if isinstance(item, list) and item and isinstance(item[0], Mapping):
            _print_rows(console, item)


def _print_rows(console: Console, rows: list[Mapping[str, Any]]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 2), header_style="")
    for name in rows[0]:
        number = all(isinstance(row[name], int | float) for row in rows)
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_text(row[name]) for name in rows[0]))
    console.print(table)


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={_text(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    return str(value)


def explain_plan(node: nodes.Node) -> Explanation:
    """What can be said of a plan that is no stream yet: its outline and fingerprint."""
    unknown = "unknown: finish the plan with .sample(), .collate() and .to_torch() or a kin"
    facts: dict[str, Any] = dict.fromkeys(SECTIONS, unknown)
    facts.update(header={"plan": fingerprint(node)[:16]}, plan=_outline(node), mix="none", warnings=[])
    return Explanation(facts)


def explain_stream(
    stages: Stages, bound: Bound, devices: Mapping[str, str | None], threads: int, metrics: Mapping[str, Any] | None
) -> Explanation:
    """Every section for a prepared stream.

    Args:
        stages: the lowered plan.
        bound: the run's bindings.
        devices: where each array field is delivered.
        threads: decoding threads.
        metrics: what the running stream measured; None leaves measured columns out.
    """
    warnings = list(stages.warnings)
    facts: dict[str, Any] = {
        "header": {
            "plan": stages.fingerprint[:16],
            "epoch": bound.epoch,
            "rank": f"{bound.rank}/{bound.world_size}",
            "run_seed": bound.run_seed,
            "data": {name: version[:12] for name, version in stages.data_versions.items()},
            "hash": f"xxh3-128, splitmix64, {type(stages.order).__name__} v{stages.order.VERSION}",
        },
        "plan": _outline(stages.plan),
        "relation": _relation(stages),
        "mix": "none",
        "sample": _sample(stages, bound, warnings),
        "skew": _skew(stages),
        "batch": _batch(stages, bound, warnings),
        "materialize": _materialize(stages, devices, metrics),
        "deliver": _deliver(stages, bound, threads, metrics, warnings),
        "resume": {
            "state": f"~{STATE_BYTES} bytes of JSON, equal on every rank",
            "reposition": "arithmetic; 0 rows of the prefix are read, at any place and on any world size",
        },
        "warnings": [f"{i + 1} {text}" for i, text in enumerate(warnings)],
    }
    return Explanation(facts)


def _outline(node: nodes.Node) -> list[str]:
    numbers: dict[int, int] = {}
    lines = []
    for i, each in enumerate(walk(node), 1):
        numbers[id(each)] = i
        reads = [numbers[id(source)] for source in each.inputs()]
        previous = reads == [i - 1] or not reads
        lines.append(
            f"({i}) {_describe(each)}" + ("" if previous else f"   reads {' and '.join(f'({n})' for n in reads)}")
        )
    return lines


def _describe(node: nodes.Node) -> str:  # noqa: PLR0911  one return a verb
    match node:
        case nodes.Scan():
            return f"Scan {node.relation}"
        case nodes.Filter():
            return f"Filter {node.predicate}"
        case nodes.Project():
            return f"Project {', '.join(node.names)}"
        case nodes.WithColumns():
            return "WithColumns " + ", ".join(f"{n} = {e}" for n, e in zip(node.names, node.exprs, strict=True))
        case nodes.Join():
            return f"Join {node.how} on {', '.join(node.left_on)}"
        case nodes.Cache():
            return "Cache " + ", ".join(f"{name} as {profile}" for name, profile in node.profiles)
        case nodes.Sample():
            return f"Sample identity {', '.join(node.identity)}, order {node.order}, lanes {node.assignment.lanes}"
        case nodes.Collate():
            names = ", ".join(name for name, _ in node.fields)
            return f"Collate batch_size {node.batch_size}, last {type(node.last).__name__}, fields {names}"
        case nodes.Deliver():
            return f"Deliver {node.framework}, prefetch {node.prefetch}"
        case _:
            slots = [name for name in getattr(node, "__slots__", ()) if name not in ("source", "parts", "columns")]
            return f"{node.VERB.capitalize()} " + ", ".join(f"{name} {getattr(node, name)}" for name in slots)


def _relation(stages: Stages) -> dict[str, Any]:
    manifest, payload = stages.base.manifest, _payload_decided_on(stages.plan)
    rows = [{"step": f"scan {stages.base.entry.name}", "rows left": manifest.total, "share": 1.0}]
    rows += [
        {"step": what, "rows left": left, "share": left / max(1, manifest.total)}
        for what, left in stages.selected.counts
    ]
    return {
        "source": f"{stages.base.entry.source.KIND}, {len(manifest.shard_names):,} storage shards",
        "pushed into the scan": stages.selected.pushed or "nothing",
        "payload bytes read to decide": f"unknown: the plan decides on {', '.join(payload)}" if payload else 0,
        "steps": rows,
    }


def _payload_decided_on(plan: nodes.Node) -> list[str]:
    """Columns of bytes that conditions, keys, distinct or sort look at."""
    scan, *verbs = list(spine(need(plan, nodes.Sample).source))[::-1]
    work = rewrite(scan.schema(), verbs)
    read = {*work.read(), *(name for part in work.pushed for name in part.columns())}
    fields = [field for field in scan.schema() if field.name in read]
    return [field.name for field in fields if semantic_of(field) or kind_of(field.type) == "binary"]


def _sample(stages: Stages, bound: Bound, warnings: list[str]) -> dict[str, Any]:
    shards = np.bincount(stages.population.unit_shards.astype(np.int64), stages.population.unit_rows.astype(np.float64))
    rows = shards[shards > 0]
    order, lanes = stages.order, stages.batches.lanes
    out: dict[str, Any] = {
        "order": str(order),
        "rows": stages.selected.total,
        "shards with rows": f"{len(rows):,} (min {rows.min():,.0f} / median {np.median(rows):,.0f} / max {rows.max():,.0f} rows)",
        "lanes": lanes,
    }
    if isinstance(order, ShardAwareShuffle):
        facts = randomness(stages.population, order, stages.batches.batch_size)
        out["moves whole between blocks"] = order.sampling_granularity
        out["kept together inside a block"] = f"{order.clump_size} rows"
        choices: Any = facts["choices"]
        out["randomness"] = [
            {
                "shuffle_block_size": ("-> " if c["chosen"] else "   ") + f"{c['block_rows']:,}",
                "shards/block": c["shards_per_block"],
                "P(same shard)": c["same_shard"],
                "run length": c["run_length"],
                "rows buffered": min(c["block_rows"], stages.selected.total),
            }
            for c in choices
        ]
    if isinstance(order, HashBucketed):
        rows_each = stages.selected.total / order.bucket_count
        out["buckets"] = f"{order.bucket_count:,} (~{rows_each:,.1f} rows each), by xxh3-128 of the identity"
    if lanes == 1 and bound.world_size > 1 and isinstance(order, ShardAwareShuffle):
        warnings.append(
            f"lanes=1: every rank reads every shard. DataParallel(..., lanes={bound.world_size}) would let each of the "
            f"{bound.world_size} ranks read its own shards"
        )
    return out


def _skew(stages: Stages) -> Any:
    """How far each shard's values are from the relation's, for what is joined on and what fields hold."""
    entry, statistics = stages.base.entry, load_statistics(stages.base.entry)
    if statistics is None:
        return "unknown: materialize asset shard_stats of this relation"
    names = [name for node in walk(stages.plan) if isinstance(node, nodes.Join) for name in node.left_on]
    names += [field.column for _, field in need(stages.plan, nodes.Collate).fields]
    rows = []
    for name in dict.fromkeys(names):
        skew = skew_of(statistics, name) if statistics.marks.get(name) == KNOWN else None
        if skew is not None:
            worst = ", ".join(f"{shard} {distance:.2f}" for shard, distance in skew.worst())
            effective = f"{skew.effective.mean():,.1f} of {skew.effective_global:,.1f}"
            row = {"column": name, "mean": skew.mean, "p95": skew.p95, "worst": worst, "values/shard": effective}
            rows.append(row)
    total = stages.base.manifest.total
    return {
        "distance": "total variation of a shard's values to the relation's: 0 alike, 1 nothing in common",
        "counted": f"all {total:,} rows of {entry.name}; the plan keeps {stages.selected.total:,}",
        "columns": rows
        or f"unknown: no joined or delivered column has a histogram in {', '.join(statistics.marks) or 'none'}",
    }


def _batch(stages: Stages, bound: Bound, warnings: list[str]) -> dict[str, Any]:
    batches = stages.batches
    count = batches.count(bound.world_size, bound.merge)
    dropped = batches.rows_dropped(bound.world_size, bound.merge)
    if count == 0:
        warnings.append(
            f"no batch is delivered: {stages.selected.total:,} rows do not fill one of {batches.batch_size} a rank"
        )
    return {
        "formation": f"fixed count of {batches.batch_size}",
        "last": type(batches.last).__name__,
        "global batches an epoch": count,
        "steps of this rank": batches.steps(bound.world_size, bound.merge, bound.rank),
        "rows dropped an epoch": f"{dropped:,} ({dropped / max(1, stages.selected.total):.2%} of {stages.selected.total:,})",
    }


def _materialize(
    stages: Stages, devices: Mapping[str, str | None], metrics: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    rows = []
    for image in stages.images:
        shape = image.program.output_shape
        size: Any = (
            "unknown: the images decide"
            if shape is None
            else int(np.prod(shape)) * np.dtype(image.program.dtype).itemsize
        )
        rows.append(
            {
                "field": image.name,
                "where": f"after membership; normalized on {_place(devices.get(image.name))}",
                "out/sample": size,
                "cache": f"{image.prefix.profile} {image.prefix.fingerprint[:8]}",
                "built": _built(image, stages),
                "hit": "-"
                if metrics is None or metrics["cache_hit_rate"] is None
                else f"! {metrics['cache_hit_rate']:.1%}",
            }
        )
    for plain in stages.plains:
        dtype = plain.spec.dtype
        items = int(np.prod([n or 1 for n in plain.spec.shape], dtype=np.int64))
        size = items * np.dtype(dtype).itemsize if dtype else "Python values"
        place = f"with membership; {_place(devices.get(plain.name))}"
        rows.append({"field": plain.name, "where": place, "out/sample": size, "cache": "-", "built": "-", "hit": "-"})
    order = stages.field_names
    return sorted(rows, key=lambda row: order.index(row["field"]))


def _place(device: str | None) -> str:
    return "the host (chosen)" if device is None else f"{device} (requested)"


def _built(image: ImageStage, stages: Stages) -> str:
    covered = image.store.covered()
    have = 0
    for shard, key in enumerate(stages.base.manifest.content_keys.to_pylist()):
        if key in covered:
            have += int(covered[key][stages.selected.offsets_of_shard(shard).astype(np.int64)].sum())
    return f"{have / max(1, stages.selected.total):.0%} ({have:,}/{stages.selected.total:,})"


def _deliver(
    stages: Stages, bound: Bound, threads: int, metrics: Mapping[str, Any] | None, warnings: list[str]
) -> dict[str, Any]:
    one = stages.batch_bytes(stages.batches.batch_size * bound.merge)
    host = one * (stages.plan.prefetch + 2)
    if host > _BUFFER_WARNING_BYTES:
        warnings.append(f"batches ahead take ~{host / 2**30:.1f} GiB of host memory; lower prefetch or batch_size")
    out: dict[str, Any] = {
        "framework": stages.plan.framework,
        "prefetch": f"{stages.plan.prefetch} batches",
        "threads": threads,
        "bytes a batch": one,
        "host memory bound": f"~{host:,} bytes (prefetch + 2 slots)",
    }
    if metrics is not None:
        rows = metrics["cached_rows"] + metrics["source_rows"]
        out["delivered"] = f"! {metrics['batches']:,} batches, {metrics['samples']:,} samples"
        out["read"] = (
            f"! {metrics['source_bytes']:,} payload bytes of {metrics['source_rows']:,}/{rows:,} rows; the rest from caches"
        )
        out["seconds"] = (
            f"! fetch {metrics['fetch_s']:.2f}, transform {metrics['transform_s']:.2f} (over threads), "
            f"consumer waited {metrics['consumer_waited_s']:.2f}"
        )
        out["bound by"] = f"! {metrics['bound_by']}"
    return out

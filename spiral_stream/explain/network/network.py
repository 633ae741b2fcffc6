"""NETWORK in EXPLAIN DATA: what a stream asks of its stores, and how fast it can be over a given network.

The model has two bounds. Bandwidth: the bytes of a node's batches come one after the other. Latency: a task puts all of its
requests under way at once, up to 32 of them, and waits one latency for each such round; eight tasks of a process wait at a
time, if as many belong to the batches that are under way: those ahead, and the one that the loop waits for. The smaller rate
counts. Decoding is in neither.
"""

from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from spiral_stream.explain.figure import EXACT, Figure, FigureSource, Mark, Phrase, marked, phrase, ratio
from spiral_stream.explain.network.link import Network
from spiral_stream.explain.network.node_reads import MOST_SAMPLES, Asks, Live, asks, fetched, live
from spiral_stream.explain.network.remote_columns import Remote, remote
from spiral_stream.explain.network.requests import Counted, counted
from spiral_stream.explain.subject import Subject
from spiral_stream.planner.binding.node_batches import Dealing, nodes_of
from spiral_stream.runtime.read_ahead import FETCHERS
from spiral_stream.sampling.nodes import Nodes
from spiral_stream.storage.node_cache.cache import node_cache
from spiral_stream.storage.objects import IN_FLIGHT

_LAID_OUT: Final = FigureSource("the epoch's positions")
_WITHIN: Final = 10  # %; 52 runs differed by up to 4 % (docs/decisions/0049)
_CROWDED: Final = 0.5  # of the cache, under way: above, 26 to 37 % more came in a first epoch; up to 0.42, 5 % at most
_CONNECT: Final = 2  # round trips before the first request: TCP, and TLS


def network_facts(subject: Subject, link: Network, piece_rows: int | None) -> dict[str, Any]:
    """Return the section.

    Args:
        subject: what is explained.
        link: the network.
        piece_rows: rows that a task fetches; None takes the default.
    """
    found = remote(subject, piece_rows)
    if not found.fields and not found.tables:
        return {"over the network": "nothing: what this stream reads lies on this machine"}
    speed = Figure(link.bytes_per_s, "bytes/s", source="network=", form=",.0f")
    wait = Figure(link.latency_s, "s", source="network=", form="g")
    link_text = f"{link.text}: {speed} bytes/s of each node, {wait} s a request"
    out: dict[str, Any] = {"link": Phrase(link_text, {"bandwidth": speed, "latency": wait})}
    out["over the network"] = _what(found)
    if found.tables:
        out["tables"] = (
            f"{', '.join(found.tables)}: references and small columns come from the store too, not counted here"
        )
    if found.unknown:
        out["unknown"] = "; ".join(found.unknown)
    if not found.fields:
        return out
    seen = counted(subject, found)
    if isinstance(seen, str):
        return {**out, "requests": seen}
    if not seen.samples:
        return {**out, "requests": "none: no batch is delivered"}
    return {
        **out,
        **_requested(subject, seen),
        **_rates(subject, seen, link, len(found.tables) > 0),
        **_node(subject, found, seen),
    }


def _what(found: Remote) -> Phrase | str:
    parts: list[str] = []
    figures: dict[str, Figure] = {}
    for each in found.fields:
        object_count = sum(int(np.count_nonzero(column.lengths < 0)) for column in each.streams.values())
        ranges = sum(len(column.lengths) for column in each.streams.values()) - object_count
        objects = sum(len(column.uris) for column in each.streams.values())
        named = [f"{ranges:,} ranges"] * bool(ranges) + [f"{object_count:,} whole objects"] * bool(object_count)
        parts.append(f"{each.name} ({each.column}): {' and '.join(named)}, of {objects:,} objects")
        for what, count in (("ranges", ranges), ("whole objects", object_count), ("objects", objects)):
            figures[f"{what} of {each.name}"] = Figure(count, what, source="references of the relation")
    return Phrase("; ".join(parts), figures) if parts else "no payload"


# ---- requests and bytes


def _requested(subject: Subject, seen: Counted) -> dict[str, Any]:
    bound, figure = subject.bound, FigureSource(f"{len(seen.samples):,} batches, drawn", marked(seen.exact))
    share = 1 / bound.world_size
    unsized = ", and objects whose size is not known" if seen.unsized else ""

    def epoch(values: list[int], unit: str, rest: str) -> Phrase:
        rank_text = ", this rank {rank}" if bound.world_size > 1 else ""
        figures = {"epoch": figure(seen.epoch(values), unit)}
        if rank_text:
            figures["rank"] = figure(seen.rank(values, share), unit)
        return phrase(f"{{epoch:m}}{rank_text}, {rest}", **figures)

    def batch(values: list[int], unit: str, form: str, rest: str = "") -> Phrase:
        mean, most = figure(seen.mean(values), unit, form), figure(max(values), unit)
        return phrase(f"{{sign}}mean {{mean}} / max {{max}}{rest}", mean=mean, max=most)

    gaps = "without a node cache; gaps of joined ranges included"
    return {
        "requests a batch": batch(seen.requests, "requests", ",.1f"),
        "requests an epoch": epoch(seen.requests, "requests", "without a node cache"),
        "bytes a batch": batch(seen.bytes, "bytes", ",.0f", unsized),
        "bytes an epoch": epoch(seen.bytes, "bytes", gaps),
        "seen for this": EXACT.phrase(
            "{batches} of {epoch:m} batches",
            batches=len(seen.samples),
            epoch=Figure(seen.total, "batches", marked(seen.known)),
        ),
    }


# ---- rates


@final
@dataclass(frozen=True, slots=True)
class _Rate:
    """Batches per second of one rank."""

    by_latency: float
    by_bandwidth: float
    first_s: float
    under_way: int


def _rates(subject: Subject, seen: Counted, link: Network, table: bool) -> dict[str, Any]:
    rate = _rate(subject, seen, link, table)
    best = min(rate.by_latency, rate.by_bandwidth)
    samples = best * seen.mean(seen.samples)
    if not np.isfinite(best):
        return {"steady": "no request is made"}
    bound = "latency" if rate.by_latency < rate.by_bandwidth else "bandwidth"
    other = max(rate.by_latency, rate.by_bandwidth)
    alone = (
        f"; {'bandwidth' if bound == 'latency' else 'latency'} alone allows {other:,.4g}" if np.isfinite(other) else ""
    )
    more = _ahead(seen)
    raised = (
        f". prefetch={more} would keep all tasks busy"
        if bound == "latency" and more > subject.stages.plan.prefetch
        else ""
    )

    about = FigureSource("the model of bandwidth and latency", "estimated")
    return {
        "under way": about.phrase(
            f"{{requests:m,}} requests, of {{most}} at most ({FETCHERS} tasks of {IN_FLIGHT}){raised}",
            requests=rate.under_way,
            most=Figure(FETCHERS * IN_FLIGHT, "requests"),
        ),
        "first batch": about.phrase(
            "{seconds:m,.3g} s, connecting included, reading tables and decoding left out", "s", seconds=rate.first_s
        ),
        "steady": about.phrase(
            f"{{batches:m,.4g}} batches/s, {{samples:m,.4g}} samples/s a rank, bound by {bound}{alone}",
            batches=about(best, "batches/s"),
            samples=about(samples, "samples/s"),
        ),
    }


def _ahead(seen: Counted) -> int:
    """The prefetch at which all tasks that can wait do."""
    return max(1, int(np.ceil(FETCHERS / max(1.0, seen.mean(seen.pieces)))) - 1)


def _rate(subject: Subject, seen: Counted, link: Network, table: bool) -> _Rate:
    each = nodes_of(subject.bound).ranks_per_node
    tasks = seen.mean(seen.pieces)
    size, per_task = seen.mean(seen.bytes), seen.mean(seen.requests) / max(1.0, tasks)
    rounds = max(1.0, np.ceil(per_task / IN_FLIGHT)) + table
    ahead = subject.stages.plan.prefetch + 1
    at_once = min(float(FETCHERS), ahead * tasks)
    by_latency = at_once / (tasks * rounds * link.latency_s) if link.latency_s and tasks else np.inf
    by_bandwidth = link.bytes_per_s / (size * each) if size else np.inf
    waves = np.ceil(seen.pieces[0] / FETCHERS)
    crowd = max(1.0, min(FETCHERS / max(1, seen.pieces[0]), float(ahead)))  # batches at a time
    first_s = (_CONNECT + waves * rounds) * link.latency_s + seen.bytes[0] * crowd * each / link.bytes_per_s
    return _Rate(float(by_latency), float(by_bandwidth), float(first_s), round(at_once * min(IN_FLIGHT, per_task)))


# ---- the node and its cache


def _node(subject: Subject, found: Remote, seen: Counted) -> dict[str, Any]:
    bound, stages = subject.bound, subject.stages
    total = stages.epochs.length(bound.epoch)
    if total > MOST_SAMPLES:
        return {"node cache": f"unknown: the epoch has {total:,} samples, and {MOST_SAMPLES:,} are followed at most"}
    nodes = nodes_of(bound)
    here = Dealing(stages.batches.lanes.count, nodes, bound.ranks_per_node is not None)
    node = bound.rank // nodes.ranks_per_node
    epochs = (asks(subject, found, here, node, bound.epoch), asks(subject, found, here, node, bound.epoch + 1))
    read = live(epochs[0])
    out: dict[str, Any] = {
        "node": f"{node} of {nodes.count:,}, {_many(nodes.ranks_per_node, 'rank')} each",
        "a node reads": _LAID_OUT.phrase(
            "{bytes} bytes of {files} files an epoch, in pages of 4 KiB, or blocks of 64 KiB where less is read",
            bytes=read.bytes,
            files=read.files,
        ),
        "live files": _LAID_OUT.phrase(
            "{files} at a time, of {bytes} bytes", files=read.most_files, bytes=read.most_bytes
        ),
    }
    cache = node_cache()
    if cache is None:
        out["node cache"] = "none: each epoch asks for all of its bytes"
    else:
        under_way = seen.mean(seen.bytes) * (stages.plan.prefetch + 1) * bound.merge * nodes.ranks_per_node
        crowded = under_way > cache.limit_bytes * _CROWDED
        out |= _cache(subject, epochs, read, nodes, cache.limit_bytes, crowded=crowded)
    if nodes.world_size > 1:
        out["by lanes"] = [_choice(subject, found, dealing, node) for dealing in _dealings(subject, here)]
    return out


def _cache(
    subject: Subject, epochs: tuple[Asks, Asks], read: Live, nodes: Nodes, limit: int, *, crowded: bool
) -> dict[str, Any]:
    came = fetched(epochs, limit)
    again = came.again
    mark = marked(came.exact and not came.dropped)  # several threads ask: which of them is first, no plan knows
    fits = "what is live at a time fits" if not again else "what is live at a time does not fit"
    if mark == "estimated" and crowded:
        fits += (
            f". What is marked ~ holds within {_WITHIN}% in the second epoch. In the first one up to half as much again "
            "comes, for the batches that the node builds at a time take more than half of the room: lower prefetch"
        )
    elif mark == "estimated":
        fits += f". What is marked ~ holds within {_WITHIN}% in the first two epochs"
    later: Mark = "estimated" if nodes.count > 1 else mark
    if again:
        subject.warnings.add(
            f"network: the node cache's {limit:,} bytes are less than the {read.most_bytes:,} that are live at a time, so "
            f"{ratio(again, came.cold)} of what comes in the first epoch comes again. Raise $SPIRAL_NODE_CACHE_BYTES, lower "
            "shuffle_block_size, or give nodes lanes of their own: bind(ranks_per_node=)"
        )

    figure, of_all = (FigureSource("the node cache, followed ask by ask", each) for each in (mark, later))
    return {
        "node cache": phrase(f"{{limit}} bytes ($SPIRAL_NODE_CACHE_BYTES): {fits}", limit=Figure(limit, "bytes")),
        "first epoch": phrase(
            "{bytes:m} bytes in at most {requests:m} requests into an empty node cache, {again} of them again",
            bytes=figure(came.cold, "bytes"),
            requests=figure(came.requests[0], "requests"),
            again=figure.ratio(again, came.cold),
        ),
        "later epochs": phrase(
            "{bytes:m} bytes in {requests:m} requests, for {read} that the node reads",
            bytes=figure(came.later, "bytes"),
            requests=figure(came.requests[1], "requests"),
            read=_LAID_OUT(live(epochs[1]).bytes, "bytes"),
        ),
        "egress of all nodes": phrase(
            f"{{first:m}} bytes in the first epoch, {{later:m}} in later ones ({_many(nodes.count, 'node')})",
            first=of_all(came.cold * nodes.count, "bytes"),
            later=of_all(came.later * nodes.count, "bytes"),
        ),
    }


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _dealings(subject: Subject, here: Dealing) -> list[Dealing]:
    """How else an epoch could be dealt: one lane, a lane per node, a lane per rank."""
    nodes = here.nodes
    others = [Dealing(1, nodes, by_node=False), here]
    others += [Dealing(nodes.count * subject.bound.merge, nodes, by_node=True)] if nodes.ranks_per_node > 1 else []
    others += [Dealing(nodes.world_size * subject.bound.merge, nodes, by_node=False)]
    return list(dict.fromkeys(others))


def _choice(subject: Subject, found: Remote, dealing: Dealing, node: int) -> dict[str, Any]:
    now = dealing.lanes == subject.stages.batches.lanes.count and dealing.by_node == (
        subject.bound.ranks_per_node is not None
    )
    read = live(asks(subject, found, dealing, node, subject.bound.epoch))
    return {
        "lanes": phrase("-> {lanes}" if now else "   {lanes}", lanes=Figure(dealing.lanes, "lanes")),
        "dealt to": "nodes" if dealing.by_node else "ranks",
        "bytes a node reads": _LAID_OUT(read.bytes, "bytes"),
        "files": _LAID_OUT(read.files, "files"),
        "live files": _LAID_OUT(read.most_files, "files"),
        "live bytes": _LAID_OUT(read.most_bytes, "bytes"),
    }

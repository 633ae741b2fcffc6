"""The sections of EXPLAIN DATA, in order: all of them for a prepared stream, the outline for a plan."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from spiral_stream.catalog.registry import Registry
from spiral_stream.explain.batch.batch import batch_facts
from spiral_stream.explain.deliver import deliver_facts, resume_facts
from spiral_stream.explain.known import UNFINISHED, known_facts
from spiral_stream.explain.materialize import materialize_facts
from spiral_stream.explain.network.link import link_of
from spiral_stream.explain.network.network import network_facts
from spiral_stream.explain.order.mix import mix_facts
from spiral_stream.explain.order.sample import sample_facts
from spiral_stream.explain.outline import outline
from spiral_stream.explain.relation import relation_facts
from spiral_stream.explain.skew import skew_facts
from spiral_stream.explain.subject import Subject
from spiral_stream.explain.text import SECTIONS, Explanation
from spiral_stream.plan import nodes
from spiral_stream.plan.saving.fingerprint import fingerprint
from spiral_stream.plan.tree import walk
from spiral_stream.plan.verbs.mix import Mix
from spiral_stream.planner.binding.bindings import Bound
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.numbering.run_batches import RunBatches


def explain_plan(node: nodes.Node, catalog: Registry) -> Explanation:
    """Explain a plan that is not a stream yet: its outline, and what is known of the relations that it reads."""
    facts: dict[str, Any] = dict.fromkeys(SECTIONS, UNFINISHED)
    facts.update(header={"plan": fingerprint(node)[:16]}, plan=outline(node), warnings=[])
    facts.update(known_facts(node, catalog))
    if not any(isinstance(each, Mix) for each in walk(node)):
        facts["mix"] = "none"
    return Explanation(facts)


def explain_stream(
    stages: Stages,
    bound: Bound,
    devices: Mapping[str, str | None],
    threads: int,
    metrics: Mapping[str, Any] | None,
    numbering: RunBatches,
    catalog: Registry,
    state_bytes: int,
    network: str | None = None,
    piece_rows: int | None = None,
    decided: Sequence[Mapping[str, Any]] = (),
) -> Explanation:
    """Explain a prepared stream: every section. Reads no payload.

    Args:
        stages: the lowered plan.
        bound: the run's bindings.
        devices: where each array field is delivered.
        threads: decoding threads.
        metrics: what the running stream measured; None leaves measured columns out.
        numbering: what is known of the epoch's batches.
        catalog: where tokenizers are registered.
        state_bytes: of a state at the epoch's start, as JSON.
        network: also say what goes over a network, and how fast one such as "10 Gbit/s, 50 ms" lets the stream be.
        piece_rows: rows of payload that a task reads; None takes the default.
        decided: the shares that the run decided on, as `decided_shares` gives them.

    Raises:
        PlanError: ``network`` is no network.
    """
    link = None if network is None else link_of(network)
    subject = Subject(stages, bound, devices, threads, metrics, numbering, catalog, state_bytes, decided)
    for text in stages.warnings:
        subject.warnings.add(text)
    with closing(subject):
        facts = _facts(subject)
        if link is not None:
            facts["network"] = network_facts(subject, link, piece_rows)
    return Explanation({**facts, "warnings": subject.warnings.lines()})


def _facts(subject: Subject) -> dict[str, Any]:
    return {
        "header": _header(subject),
        "plan": outline(subject.stages.plan),
        "relation": relation_facts(subject),
        "mix": mix_facts(subject),
        "sample": sample_facts(subject),
        "skew": skew_facts(subject),
        "batch": batch_facts(subject),
        "materialize": materialize_facts(subject),
        "deliver": deliver_facts(subject),
        "resume": resume_facts(subject),
    }


def _header(subject: Subject) -> dict[str, Any]:
    stages, bound = subject.stages, subject.bound
    return {
        "plan": stages.fingerprint[:16],
        "epoch": bound.epoch,
        "rank": f"{bound.rank}/{bound.world_size}",
        "run_seed": bound.run_seed,
        "data": {name: version[:12] for name, version in stages.data_versions.items()},
        "hash": f"xxh3-128, splitmix64, {type(stages.order).__name__} v{stages.order.VERSION}",
    }

"""PLAN in EXPLAIN DATA: the plan as numbered lines, each after the lines whose rows it takes."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from spiral_stream.batching.formation import Formation
from spiral_stream.batching.packing import Packed
from spiral_stream.batching.shapes.one_shape import OneShape
from spiral_stream.batching.windowed import WindowedBucket
from spiral_stream.errors import listed
from spiral_stream.expr import Expr
from spiral_stream.fields.stack import Stack
from spiral_stream.plan import combining, nodes
from spiral_stream.plan.fields.clips import clip_parts, is_clip, shorthands
from spiral_stream.plan.functions.cached_functions import SampleKept
from spiral_stream.plan.tree import spine, walk
from spiral_stream.plan.verbs import extents, maps
from spiral_stream.plan.verbs.mix import Mix, Part
from spiral_stream.transforms.python import Function
from spiral_stream.transforms.text.chat import ChatTemplate

_NAMED = 8  # streams that a line names
_ROW_VERBS = (
    nodes.Filter,
    combining.Join,
    nodes.Distinct,
    nodes.Sort,
    nodes.Limit,
)  # nodes that decide which rows there are


def outline(node: nodes.Node) -> list[str]:
    """Return one line per node, one per field of clips, and the changes that the planner makes."""
    numbers: dict[int, int] = {}
    lines = []
    for i, each in enumerate(walk(node), 1):
        numbers[id(each)] = i
        reads = [numbers[id(source)] for source in each.inputs()]
        previous = reads == [i - 1] or not reads
        lines.append(f"({i}) {describe(each)}" + ("" if previous else f"   reads {_listed(reads)}"))
        if isinstance(each, nodes.Collate):
            lines += [f"    {name} = {clip_text(field)}" for name, field in each.fields if is_clip(field)]
        if isinstance(each, nodes.Sql) and each.floats:
            lines.append(f"    {_not_a_number(each)}")
    return lines + _moved(node, numbers)


def _listed(reads: list[int]) -> str:
    if len(reads) > _NAMED:
        return f"{len(reads):,} of them, ({reads[0]}) to ({reads[-1]})"
    named = [f"({n})" for n in reads]
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def _moved(node: nodes.Node, numbers: dict[int, int]) -> list[str]:
    """The verbs after a mixture that run before it."""
    after: list[nodes.Node] = []
    for each in spine(node):
        if isinstance(each, Mix):
            verbs = dict.fromkeys(one.VERB for one in reversed(after) if isinstance(one, _ROW_VERBS))
            if not verbs:
                return []
            scans = [numbers[id(one)] for one in walk(each) if isinstance(one, nodes.Scan)]
            where = " ".join(f"({n})" for n in scans) if len(scans) <= _NAMED else f"each of {len(scans):,} scans"
            runs = "runs" if len(verbs) == 1 else "run"
            return [f"{', '.join(verbs)} written after ({numbers[id(each)]}) {runs} in {where}"]
        after.append(each)
    return []


def describe(node: nodes.Node) -> str:
    """Return a node as a line."""
    if type(node) in _LINES:
        return _LINES[type(node)](node)
    slots = [name for name in getattr(node, "__slots__", ()) if name not in ("source", "parts", "columns", "floats")]
    return f"{node.VERB.capitalize()} " + ", ".join(f"{name} {getattr(node, name)}" for name in slots)


def _computed(node: nodes.WithColumns | maps.SampleColumns) -> str:
    return "WithColumns " + ", ".join(f"{n} = {e}" for n, e in zip(node.names, node.exprs, strict=True))


def _tokenized(node: maps.SampleTokens) -> str:
    verb = "ChatTemplate" if isinstance(node.transform, ChatTemplate) else "Tokenize"
    made = f"{', '.join(node.transform.columns)} -> {', '.join(node.names)}"
    return f"{verb} {made}, tokenizer {node.transform.tokenizer}{_options(node)}"


def _call(test: Expr | Function) -> str:
    return str(test) if isinstance(test, Expr) else f"{test.name}({', '.join(test.columns)})"


def _samples(node: extents.SampleLimit | extents.SampleSkip) -> str:
    return f"{node.count:,} samples of {'epoch 0, in every epoch' if node.fixed else 'every epoch'}"


def clip_text(field: Stack) -> str:
    """Say which frames of which column a clip has, and what is done to each."""
    selection, program = clip_parts(field)
    short = {"pad": "padded with their last frame", "loop": "looped", "drop": "left out by a filter"}[selection.short]
    chain = ", ".join(map(str, (*shorthands(field), *field.transforms))) or "no transforms"
    frames = f"{selection.sequence_length} frames of {field.column} ({field.decode}), {chosen_text(field)}"
    layout = field.layout or "ntchw"
    return f"{frames}, shorter segments {short}; {chain}; {program.dtype} {layout}"


def chosen_text(field: Stack) -> str:
    """Return the rule that selects frames, as text."""
    if field.stride is None:
        return "uniform over the segment (at the middles of equal parts)"
    every = "every frame" if field.stride == 1 else f"every {field.stride} frames"
    return f"{every} from {'a random start' if field.random_start else 'the start'}"


def _not_a_number(node: nodes.Sql) -> str:
    """Note where SQL text and conditions written with ``col`` differ."""
    return (
        f"NaN in {listed(node.floats, _NAMED)} is the largest number in SQL text, so x >= 0.5 keeps it; "
        "col(x) >= 0.5 does not. Leave it out with AND NOT isnan(x), or filter after sql(...)"
    )


def _mixed(node: Mix) -> str:
    size = "all rows once" if node.epoch_size is None else f"{node.epoch_size:,}"
    if node.epoch_size is None and node.parts[0].proportion is None:
        size = "as counted"
    parts = listed([f"{part.name}{_amount(part)}" for part in node.parts], _NAMED)
    by = "" if node.by is None else f", by {node.by}"
    schedule = f", schedule of {len(node.schedule)} points" if node.schedule else ""
    power = "" if node.temperature is None else f", temperature {node.temperature:g}"
    nulls = ", all columns" if node.columns == "all" else ""
    verb = "Concat" if node.in_turn else "Mix"
    return f"{verb} {parts}, epoch_size {size}{by}{schedule}{power}{nulls}"


def _amount(part: Part) -> str:
    if part.proportion is not None:
        return f" {part.proportion:g}"
    if part.choose is not None:
        return f" {part.choose:,} samples"
    return f" x{part.repeat:g}" if part.repeat is not None else " x1"


def _options(node: maps.SampleTokens) -> str:
    tokenize = node.transform
    if isinstance(tokenize, ChatTemplate):
        return _chat_options(node, tokenize)
    given = [
        "" if tokenize.special_tokens else "no special tokens",
        "" if tokenize.max_length is None else f"max_length {tokenize.max_length:,}",
        "" if tokenize.separator is None else f"separator {tokenize.separator}",
    ]
    return "".join(f", {each}" for each in given if each)


def _chat_options(node: maps.SampleTokens, chat: ChatTemplate) -> str:
    given = [
        f"template {node.template:.8}",
        "" if node.mask is None else f"train on {chat.train_on} turns",
        "with generation prompt" if chat.add_generation_prompt else "",
        "" if chat.max_length is None else f"max_length {chat.max_length:,}, truncate {chat.truncate}",
        "" if chat.images is None else f"{chat.images.token} by {chat.images.layout}",
        *(f"{name} {value}" for name, value in chat.variables),
    ]
    return "".join(f", {each}" for each in given if each)


def _collated(node: nodes.Collate) -> str:
    names = ", ".join(name for name, _ in node.fields)
    how = f"batch_size {node.batch_size}"
    if node.formation is not None:
        how = f"{how_formed(node.formation)}, {how}"
    refused = "" if node.on_error == "raise" else f", on_error {node.on_error}"
    cost = "" if node.cost is None else f", cost {node.cost}"
    if node.balance is not None:
        cost += f", rows exchanged in steps of {node.balance.step_batches:,} batches"
    return f"Collate {how}, last {type(node.last).__name__}{refused}{cost}, fields {names}"


def how_formed(formation: Formation) -> str:
    """Return formation, budget and composition as a line."""
    parts = [f"window {formation.window_size:,}"]
    if isinstance(formation, WindowedBucket):
        parts += [f"keys {', '.join(formation.key_texts)}"] if formation.keys else []
        parts += [] if formation.budget is None else [f"budget {budget_of(formation)}"]
        parts += [] if formation.composition is None else [f"composition {formation.composition}"]
    if isinstance(formation, OneShape):
        parts += [f"{len(formation.shapes):,} shapes by {', '.join(formation.key_texts)}"]
        parts += [f"{formation.batches:,} batches in a row"]
    if isinstance(formation, Packed):
        parts += [formation.strategy, f"max_tokens {formation.row_text}"]
        parts += [] if formation.max_segments is None else [f"max_segments {formation.max_segments:,}"]
        parts += [f"max_{name} {most:,}" for name, most in formation.limits.items()]
        parts += [f"oversize {formation.oversize}"]
    return f"{type(formation).__name__} {', '.join(parts)}"


def budget_of(formation: WindowedBucket) -> str:
    """Return the limits of a batch as text."""
    budget = formation.budget
    if budget is None:
        return "none: batch_size alone"
    named = [("max_tokens", budget.max_tokens), ("max_frames", budget.max_frames), ("max_bytes", budget.max_bytes)]
    named += [("max_images", budget.max_images), ("max_patches", budget.max_patches)]
    limits = " and ".join(f"{name} {value:,}" for name, value in named if value is not None)
    counted = f" {budget.count}" if budget.max_tokens is not None else ""
    return f"{limits}{counted}, oversize {budget.oversize}"


_LINES: Final[Mapping[type[nodes.Node], Callable[[Any], str]]] = {
    nodes.Scan: lambda node: f"Scan {node.relation}",
    nodes.Filter: lambda node: f"Filter {node.predicate}",
    nodes.Project: lambda node: f"Project {', '.join(node.names)}",
    **dict.fromkeys((nodes.WithColumns, maps.SampleColumns), _computed),
    combining.Join: lambda node: f"Join {node.how} on {', '.join(node.left_on)}",
    nodes.Cache: lambda node: "Cache " + ", ".join(f"{name} as {profile}" for name, profile in node.profiles),
    Mix: _mixed,
    nodes.Sample: lambda node: (
        f"Sample identity {', '.join(node.identity)}, order {node.order}, lanes {node.assignment.lanes}"
    ),
    maps.SampleTokens: _tokenized,
    maps.SampleMap: lambda node: f"Map {_call(node.function)} -> {node.name}",
    maps.SampleRecords: lambda node: f"Map {_call(node.function)} -> {', '.join(node.names)}",
    SampleKept: lambda _: "Cache what the functions above give",
    maps.SampleFlatMap: lambda node: f"FlatMap {_call(node.function)} -> {node.name}, at most {node.fan_out}",
    maps.SampleAssembly: lambda node: f"Assemble {_call(node.function)} -> {', '.join(node.schema().names)}",
    maps.SampleFilter: lambda node: f"Filter after sample {_call(node.predicate)}",
    extents.SampleLimit: lambda node: f"First {_samples(node)}",
    extents.SampleSkip: lambda node: f"Skip the first {_samples(node)}",
    extents.SampleRepeat: lambda node: (
        "Repeat without end" if node.times is None else f"Repeat {node.times:,} times per epoch"
    ),
    nodes.Collate: _collated,
    nodes.Deliver: lambda node: f"Deliver {node.framework}, prefetch {node.prefetch}",
}

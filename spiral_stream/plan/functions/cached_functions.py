"""`SampleKept` caches the results of functions after `sample`; and why a function's results cannot be cached.

A function of the row gives the same value in every epoch, whoever calls it. Its values can be kept by storage shard, next
to the columns that the relation stores. What draws random numbers, sees parts of a row, or sees several samples is none.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from spiral_stream.errors import PlanError
from spiral_stream.expr import Expr
from spiral_stream.plan.functions.code import blind_spots
from spiral_stream.plan.nodes import Node, Sample, Sampled, Simple
from spiral_stream.plan.tree import spine
from spiral_stream.plan.verbs.extents import Extends
from spiral_stream.plan.verbs.maps import (
    PART,
    SampleAssembly,
    SampleColumns,
    SampleFilter,
    SampleFlatMap,
    SampleMap,
    SampleRecords,
    SampleTokens,
    need_elsewhere,
    need_sampled,
)
from spiral_stream.transforms.python import Function


@final
@dataclass(frozen=True, slots=True, eq=False)
class SampleKept(Simple, Sampled):
    """Keep what the functions before it give, row by row: `materialize` makes the values, and batches read them.

    It keeps functions of the row alone. What is another value in another epoch, or is made of several samples, it refuses.
    """

    VERB: ClassVar[str] = "cached"
    source: Node

    def __post_init__(self) -> None:
        need_sampled("cache", self.source)
        some = False
        for step, why in _impure(self.source):
            some |= isinstance(step, SampleTokens) or function_of(step) is not None
            if why:
                before = _described(step)
                msg = f"cache: {before} {why}. Kept are functions of the row alone: put .cache() before {before}"
                raise PlanError(msg)
            function = function_of(step)
            if function is not None:
                need_elsewhere("cache", function, is_cached=True)
        if not some:
            msg = (
                "cache: no function comes before it. After sample it keeps the values of functions: .map(f, ...).cache(). "
                "Payload is kept by .cache(column=profile) before sample"
            )
            raise PlanError(msg)


def need_seen(cached: SampleKept) -> None:
    """Refuse to keep values of code that finds what it uses at run time: the values would outlive a change of it.

    Raises:
        PlanError: names the function, what is not seen, and the ways out.
    """
    for step, _ in _impure(cached.source):
        function = function_of(step)
        found = [] if function is None or function.version is not None else blind_spots(function.function)
        if function is not None and found:
            msg = (
                f"cache: {_described(step)} uses {', '.join(found[:3])}, which a reading of its code does not follow: its values "
                "are kept, and a change there would not make them again. Name what it uses (an import, a dict of functions), "
                f'or give {_described(step)} version="1" and raise it whenever results change'
            )
            raise PlanError(msg)


def functions_of(node: Node) -> list[Function]:
    """Return the functions of a plan's maps, in order."""
    found = [function_of(each) for each in spine(node)[::-1]]
    return [each for each in found if each is not None]


def function_of(step: Node) -> Function | None:
    """Return the user's function that a map calls; None if it calls none."""
    if isinstance(step, SampleFilter):
        return None if isinstance(step.predicate, Expr) else step.predicate
    return step.function if isinstance(step, SampleMap | SampleRecords | SampleFlatMap | SampleAssembly) else None


def _described(step: Node) -> str:
    function = function_of(step)
    name = function.name if function is not None else getattr(step, "name", "")
    return f"{'filter' if isinstance(step, SampleFilter) else 'map' if 'map_' in step.VERB else step.VERB} ({name})"


def _impure(node: Node) -> list[tuple[Node, str]]:
    """The steps since the last `SampleKept`, and why what each gives is not a function of the row; empty if it is."""
    reasons: dict[str, str] = {}  # column -> why it is none
    assembled, out = "", list[tuple[Node, str]]()
    for step in spine(node)[::-1]:
        if isinstance(step, SampleKept):
            out.clear()
        if not isinstance(step, Sampled) or isinstance(step, Extends | Sample | SampleKept):
            continue
        why = assembled or next((reasons[name] for name in sorted(reads(step)) if name in reasons), "")
        function = function_of(step)
        if function is not None and function.random:
            why = "draws random numbers, so its values are others in each epoch"
        elif function is not None and function.with_index:
            why = "takes the place of a sample in the epoch, so its values are others in each epoch"
        if isinstance(step, SampleAssembly):
            why = "makes samples of several others, which are no rows of the relation"
            assembled = why = assembled or why
        for name in made_by(step):
            reasons.pop(name, None)
            if why:
                reasons[name] = f"takes {name!r}, which {why.removeprefix('which ')}" if "takes" not in why else why
        if isinstance(step, SampleFlatMap):
            fanned = f"takes what flat_map ({step.function.name}) gives, which is of one part of a row"
            reasons |= dict.fromkeys((step.name, PART), fanned)
        calls = function is not None or isinstance(step, SampleTokens)
        out.append((step, why if calls else ""))
    return out


def reads(step: Node) -> set[str]:
    """Return the columns that a map takes."""
    function = function_of(step)
    if function is not None:
        return set(function.columns)
    if isinstance(step, SampleTokens):
        return set(step.transform.columns)
    exprs = step.exprs if isinstance(step, SampleColumns) else (getattr(step, "predicate", None),)
    return {name for each in exprs if isinstance(each, Expr) for name in each.columns()}


def made_by(step: Node) -> tuple[str, ...]:
    """Return the columns that a map makes."""
    if isinstance(step, SampleColumns | SampleRecords | SampleTokens):
        return step.names
    if isinstance(step, SampleAssembly):
        return tuple(step.schema().names)
    if isinstance(step, SampleFlatMap):
        return (step.name, PART)
    return (step.name,) if isinstance(step, SampleMap) else ()

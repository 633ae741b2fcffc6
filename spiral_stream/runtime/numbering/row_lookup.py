"""Which rows an identity stands for."""

from typing import Any

from spiral_stream.errors import shown
from spiral_stream.integrity.blocks import sound
from spiral_stream.plan.verbs.maps import SampleAssembly, SampleFlatMap
from spiral_stream.planner.stages import Stages
from spiral_stream.sampling.order import UInt64


def found_rows(stages: Stages, identity: Any, verb: str) -> tuple[int, UInt64]:
    """Find the rows of an identity, among those that the plan keeps.

    Args:
        stages: the lowered plan.
        identity: a value, or a tuple: the stream's name (optional, in mixtures only), then the identity's columns.
        verb: who asks, for messages.

    Returns:
        The stream's number, and the surviving rows: at least one, ascending. There are several if the relation was
        registered with identities that repeat.

    Raises:
        KeyError: no row has it, or rows of several streams do and the identity names none of them.
    """
    if any(isinstance(each, SampleAssembly) for each in stages.maps):
        msg = f"{verb}: an assembled sample has no row of its own; ledger(number) lists the samples of a batch"
        raise KeyError(msg)
    values = identity if isinstance(identity, tuple) else (identity,)
    streams = list(range(len(stages.streams)))
    if len(values) == len(stages.identity) + 1:
        streams = [k for k in streams if stages.streams[k].name == values[0]]
        values = values[1:]
    if len(values) != len(stages.identity):
        msg = f"{verb}: {shown(identity)} has {len(values)} values; an identity here is ({', '.join(stages.identity)})"
        raise KeyError(msg)
    if any(each is None for each in values):
        msg = f"{verb}: {shown(identity)} has a null, which names no sample. Fill nulls of the identity's columns in"
        raise KeyError(msg)
    wanted = dict(zip(stages.identity, values, strict=True))
    with sound():
        found = [(k, rows) for k in streams if len(rows := stages.streams[k].selected.find(wanted))]
    if not found:
        msg = f"{verb}: no row that the plan keeps has {', '.join(stages.identity)} = {shown(identity)}"
        if any(isinstance(each, SampleFlatMap) for each in stages.maps):
            msg += ". Leave out the part number, which flat_map adds"
        raise KeyError(msg)
    if len(found) > 1:
        names = ", ".join(repr(stages.streams[k].name) for k, _ in found)
        msg = f"{verb}: {shown(identity)} is in streams {names}. Give (stream, identity)"
        raise KeyError(msg)
    return found[0]

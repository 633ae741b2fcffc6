"""`mix`: several relations as one, in given proportions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, final

from spiral_stream.arguments import class_door, door
from spiral_stream.errors import PlanError
from spiral_stream.plan.verbs.mix import Mix, Part, parsed_count, schedule_points
from spiral_stream.relation import Relation
from spiral_stream.row_verbs import need_relations


@final
@class_door(PlanError, excepted=("name",))
@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """One stream of a mixture, for `mix`.

    Args:
        name: the value of the column ``stream_id`` in its samples.
        relation: its samples.
        proportion: its share of the epoch's samples; give one for all streams, or for none.
        repeat: how often its rows come in an epoch; 1.5 means one and a half times.
        choose: how many of its samples come in an epoch.

    Raises:
        PlanError: ``relation`` is not a relation.

    Examples:
        >>> web = spiral.Stream("web", texts.filter(col("doc_id") < 20), proportion=0.7)
        >>> web.name, web.proportion
        ('web', 0.7)
    """

    name: str
    relation: Relation
    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.relation, Relation):
            found = repr(self.relation) if isinstance(self.relation, str) else f"a {type(self.relation).__name__}"
            example = self.relation if isinstance(self.relation, str) else "text.web"
            msg = f'Stream {self.name!r}: relation is {found}. Give a relation, for example catalog.table("{example}")'
            raise PlanError(msg)


@door(PlanError)
def mix(
    streams: Sequence[Stream],
    *,
    epoch_size: int | str | None = None,
    by: str | None = None,
    schedule: Mapping[int, Mapping[str, float]] | None = None,
    samples_per_step: int = 1,
    schedule_in: Literal["samples", "by"] = "samples",
    temperature: float | None = None,
    columns: Literal["common", "all"] = "common",
) -> Relation:
    """Mix several relations into one, which has a column ``stream_id``. Each epoch has exactly the counts asked for.

    Args:
        streams: the streams to mix, at least one.
        epoch_size: samples per epoch, however many rows the relations have: a number, or a text such as ``"10b"``. None
            takes the number of rows.
        by: the quantity that proportions divide, instead of the number of samples: a numeric column or expression, such
            as ``token_count_estimate``.
        schedule: proportions that change during a run, ``{step: {name: proportion}}``; they change linearly in between.
        samples_per_step: how many samples, over all ranks, make a step of the schedule.
        schedule_in: ``"by"`` counts the schedule's keys in the quantity of ``by``, such as tokens, not in steps.
        temperature: T raises proportions to the power of 1/T; without proportions, the streams' rows (or their sums of
            ``by``). 1 keeps them, larger ones favour small streams.
        columns: ``"common"`` keeps the columns that all streams have, ``"all"`` every column; it is null in streams that
            lack it.

    Returns:
        A relation with these columns, and ``stream_id``.

    Raises:
        PlanError: ``streams`` is not a list of `Stream`; a proportion is negative or NaN; only some streams have a
            proportion; columns of one name have different types; or the relations are of different catalogs.

    Warns:
        SpiralWarning: proportions do not sum to 1; each is divided by their sum.

    Examples:
        >>> streams = [
        ...     spiral.Stream("web", texts.filter(col("doc_id") < 20), proportion=0.75),
        ...     spiral.Stream("code", texts.filter(col("doc_id") >= 20), proportion=0.25),
        ... ]
        >>> mixed = spiral.mix(streams, epoch_size=80).sample(order=shuffle)
        >>> fields = {"from": spiral.List("stream_id")}
        >>> mixed.collate(batch_size=8, fields=fields).to_numpy()[0]["from"].count("web")
        5
    """
    parts, first = _parts("mix", streams)
    points = schedule_points(schedule, [stream.name for stream in streams], samples_per_step)
    size, tempered = parsed_count("mix: epoch_size", epoch_size), None if temperature is None else float(temperature)
    return Relation(Mix(parts, size, by, points, tempered, columns, schedule_in), first.catalog)


@door(PlanError)
def concat(streams: Sequence[Stream], *, columns: Literal["common", "all"] = "common") -> Relation:
    """Lay streams end to end: an epoch has all samples of the first, then those of the second, each in its own order.

    Args:
        streams: at least one; ``repeat=`` and ``choose=`` say how many of its samples an epoch has, all by default.
        columns: as for `mix`.

    Returns:
        A relation with these columns, and ``stream_id``.

    Raises:
        PlanError: ``streams`` is not a list of `Stream`, or a stream has a proportion or is a mixture itself; or as for `mix`.

    Examples:
        >>> easy, hard = texts.filter(spiral.len_("tokens") < 3), texts.filter(spiral.len_("tokens") >= 3)
        >>> spiral.concat([spiral.Stream("easy", easy), spiral.Stream("hard", hard, repeat=2)]).columns
        ['doc_id', 'text', 'tokens', 'storage_shard', 'stream_id']
    """
    parts, first = _parts("concat", streams)
    shared = next((part.name for part in parts if part.proportion is not None), None)
    if shared is not None:
        msg = f"concat: stream {shared!r} has a proportion. Say how much of it comes with repeat= or choose="
        raise PlanError(msg)
    return Relation(Mix(parts, columns=columns, in_turn=True), first.catalog)


def _parts(verb: str, streams: Sequence[Stream]) -> tuple[tuple[Part, ...], Relation]:
    """The streams as parts of a plan, and the first one's relation.

    Raises:
        PlanError: they are not a list of streams of one catalog.
    """
    kinds = [type(each).__name__ for each in streams] if isinstance(streams, list | tuple) else None
    if not kinds or set(kinds) != {"Stream"}:
        found = (
            f"a {type(streams).__name__}"
            if kinds is None
            else f"a list of {', '.join(dict.fromkeys(kinds)) or 'nothing'}"
        )
        example = "Stream(name, relation, proportion=...)" if verb == "mix" else "Stream(name, relation)"
        msg = f"{verb}: streams is {found}. Give a list, [{example}, ...]"
        raise PlanError(msg)
    first, *others = [stream.relation for stream in streams]
    need_relations(verb, first, *others)
    return tuple(Part(s.name, s.relation.node, s.proportion, s.repeat, s.choose) for s in streams), first

"""The shares of a run's streams, decided in mid-run: what `decide` is given becomes an edit of the run (docs/decisions/0082).

Everything is checked before anything changes: the plan, the shares, the place, and, where the delivery knows the other ranks,
that all of them decided the same. Then what is drawn ahead is dropped, and a loop that stands at a batch goes on with what
the run has open from there.
"""

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, final

from spiral_stream.arguments import as_integer, door
from spiral_stream.cursor import Cursor
from spiral_stream.errors import SpiralError, StreamError, anew, shown
from spiral_stream.plan.nodes import Sample
from spiral_stream.plan.saving.fingerprint import digest
from spiral_stream.plan.tree import need
from spiral_stream.planner.decided_shares import mix_of, names_of
from spiral_stream.planner.stages import Stages
from spiral_stream.planner.state.decisions import Decision, Decisions, are_weights
from spiral_stream.runtime.numbering.run_batches import RunBatches
from spiral_stream.runtime.numbering.steps import need_border
from spiral_stream.runtime.run.stream_run import StreamRun


@final
class SharesOfRun:
    """Decides on the shares of a run.

    Args:
        run: the run.
    """

    def __init__(self, run: StreamRun) -> None:
        self._run = run

    @door(StreamError)
    def decide(self, shares: Mapping[str, float], at: int | None = None) -> tuple[int, int]:
        """Give the streams of a mixture other shares, from the next step on; may be called inside the loop, between batches.

        Each stream goes on where it stands, in its own order: no sample is repeated or lost. Batches before stay as they are,
        and batches stay functions of plan, data, edits, epoch and number. The shares hold until the next decision, over
        epochs. The state records them; `decided` lists them. Where windows or packing form batches, shares change where the next
        chapter begins. With ``torch.distributed``, all ranks call it together, and it compares what they decided.

        Args:
            shares: the weight of every stream, by its name; 0 lets a stream rest. They mean what the plan's proportions mean.
            at: the global batch of the present epoch to begin with, at a step's border; None takes the next step.

        Returns:
            epoch, and number of the first batch with these shares, as `ledger` numbers it.

        Raises:
            StreamError: the plan states no ``epoch_size``, a share is no number, or ``at`` was delivered already or is no
                step's border; or ranks decided differently, or workers of a DataLoader read the stream.

        Examples:
            >>> halves = [spiral.Stream(name, photos, proportion=0.5) for name in ("day", "night")]
            >>> mixed = spiral.mix(halves, epoch_size=96).sample(order=shuffle)
            >>> batches = mixed.collate(batch_size=8, fields={"stream": spiral.List("stream_id")}).to_numpy()
            >>> batches.decide({"day": 1, "night": 3}, at=2)
            (0, 2)
            >>> [batch["stream"].count("night") for batch in batches][:2]
            [3, 2]
        """
        run = self._run
        refused: SpiralError | None = None
        try:
            now, decision, decisions = self._checked(shares, at)
            said = digest([run.stages().fingerprint, decisions.to_json(), now])
            word = f"{shares} from batch {decision.batch:,} of epoch {decision.epoch:,} on"
        except SpiralError as error:
            refused, said, word = error, "refused", f"an error: {error}"
        run.delivery.need_agreed("decide", said, word, run.bound().world_size)
        if refused is not None:
            raise anew(refused)
        run.passes.break_off("decide")
        run.go_on_with(run.open().decided(decisions, *now))
        run.position.edited()
        run.changed("decide")
        return decision.epoch, decision.batch

    def _checked(self, shares: Any, at: Any) -> tuple[tuple[int, int], Decision, Decisions]:
        """Return epoch and number of the next batch, the decision, and the record with it. Changes nothing."""
        run = self._run
        if run.delivery.worker() is not None:
            msg = "decide: this is a worker of a DataLoader. Call it in the main process, before the DataLoader's loop begins"
            raise StreamError(msg)
        run.passes.need_between("decide")
        stages, names = run.stages(), names_of(run.stages())
        _need_shares(stages)
        weights = _weights(shares, names)
        bound, cursor = run.bound(), run.position.here("decide")
        need_border("decide", cursor)
        cursor = cursor.enter(*bound.shape)
        numbering, epoch = run.numbering(), cursor.epoch
        number = now = numbering.skips.number(epoch, cursor.batch)
        if at is not None:
            number = _border(numbering, cursor, at, now)
        found: tuple[int, int] | None = (0, 0)
        if number:
            _need_one_lane(stages)
            found = numbering.store.next_chapter(epoch, number)
            if found is None and at is not None and not numbering.store.exists(epoch, number):
                total = numbering.store.total(epoch)
                msg = f"decide: at={number:,}, and epoch {epoch:,} has {total:,} batches. Give a number below that"
                raise StreamError(msg)
        decision = Decision(epoch + 1, 0, 0, weights) if found is None else Decision(epoch, *found, weights)
        decisions = run.open().decisions
        if decisions and decision.at < decisions.made[-1].at:
            last = decisions.made[-1]
            msg = (
                f"decide: the last decision holds from batch {last.batch:,} of epoch {last.epoch:,} on, and this one would from "
                f"batch {decision.batch:,} of epoch {decision.epoch:,}. Decide from there on, or load a state from before it"
            )
            raise StreamError(msg)
        return (epoch, now), decision, decisions.with_one(names, decision)


def _need_shares(stages: Stages) -> None:
    """Refuse a plan in which shares cannot be decided.

    Raises:
        StreamError: says why, and the way out.
    """
    mix = mix_of(stages)
    if mix is None:
        msg = "decide: the plan mixes nothing, so there are no shares. Begin it with mix([Stream(...), ...], epoch_size=...)"
        raise StreamError(msg)
    if mix.in_turn:
        msg = "decide: concat reads one stream after the other, so there are no shares. Use mix([Stream(...), ...])"
        raise StreamError(msg)
    if mix.epoch_size is None:
        msg = (
            "decide: the length of an epoch follows from the plan's streams, so it would change with their shares. Give "
            "mix(..., epoch_size=...)"
        )
        raise StreamError(msg)
    if isinstance(need(stages.plan, Sample).epoch, int):
        msg = (
            "decide: the plan names its own epoch, so all of its epochs are the same one, and no place is ahead. Leave epoch= "
            "out of sample(...)"
        )
        raise StreamError(msg)


def _weights(shares: Any, names: tuple[str, ...]) -> tuple[int | float, ...]:
    """Return the weight of each stream as the record has it.

    Raises:
        StreamError: ``shares`` does not name all streams, or others, or a weight is no number of 0 or more.
    """
    example = "{" + ", ".join(f"{name!r}: ..." for name in names[:3]) + (", ...}" if names[3:] else "}")
    if not isinstance(shares, Mapping):
        msg = f"decide: shares={shown(shares)}. Give the weight of every stream: {example}"
        raise StreamError(msg)
    unknown = [name for name in shares if name not in names]
    lacking = [name for name in names if name not in shares]
    if unknown or lacking:
        found = f"{unknown[0]!r} is no stream" if unknown else f"stream {lacking[0]!r} has no share"
        msg = f"decide: {found}. Give the weight of every stream, 0 where it rests: {example}"
        raise StreamError(msg)
    weights = tuple(_number(shares[name]) for name in names)
    if not are_weights(weights):
        msg = f"decide: shares={shown(dict(shares))}. Give finite numbers of 0 or more, at least one of them above 0"
        raise StreamError(msg)
    return weights


def _number(weight: Any) -> Any:
    """Return a weight as a number of Python; anything else as it is."""
    if isinstance(weight, bool) or not isinstance(weight, Real):
        return weight
    return int(weight) if isinstance(weight, Integral) else float(weight)


def _need_one_lane(stages: Stages) -> None:
    lanes = stages.batches.lanes.count
    if lanes > 1:
        msg = (
            f"decide: the plan has {lanes} lanes, which stand at several places of each stream. Decide at an epoch's start: "
            "after the loop over an epoch, or after stream.set_epoch(...)"
        )
        raise StreamError(msg)


def _border(numbering: RunBatches, cursor: Cursor, at: Any, now: int) -> int:
    """Return ``at``, if a step of the run begins with that batch.

    Raises:
        StreamError: it is no number, was delivered already, is skipped, or lies inside a step.
    """
    number = as_integer(at)
    if number is None:
        msg = f"decide: at={shown(at)}. Give the number of a global batch, as ledger numbers it, or None for the next step"
        raise StreamError(msg)
    if number < now:
        msg = (
            f"decide: batch {number:,} of epoch {cursor.epoch:,} was delivered already; the run stands before batch {now:,}. "
            "Load a state from before it, then decide"
        )
        raise StreamError(msg)
    delivered, segment = numbering.skips.delivered(cursor.epoch, number), cursor.segments[-1]
    if delivered is None:
        msg = f"decide: batch {number:,} of epoch {cursor.epoch:,} is skipped. Give another; stream.skipped() lists what is"
        raise StreamError(msg)
    inside = delivered - segment.border(delivered)
    if inside:
        before, after = (
            numbering.skips.number(cursor.epoch, delivered - inside + more) for more in (0, segment.together)
        )
        msg = (
            f"decide: at={number:,} lies inside a step of {segment.together:,} batches, which has one set of shares. Give "
            f"{before:,} or {after:,}"
        )
        raise StreamError(msg)
    return number

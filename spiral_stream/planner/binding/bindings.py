"""What a run binds (epoch, rank, world size, run seed, device, merge, steps), and the defaults of what it leaves open."""

import os
import sys
from dataclasses import dataclass, replace
from typing import Any, final

from spiral_stream import params
from spiral_stream.arguments import as_integer
from spiral_stream.batching.formation import Formation
from spiral_stream.batching.row_exchange import RowExchange
from spiral_stream.batching.shapes.one_shape import OneShape
from spiral_stream.cursor import LAST_EPOCH, Segment
from spiral_stream.errors import BindError, PlanError, ResumeError, shown
from spiral_stream.plan.checks import device_name
from spiral_stream.plan.nodes import Sample
from spiral_stream.plan.saving.drawn_seeds import drawn_seed
from spiral_stream.planner.binding.mesh import in_groups, rank_in_mesh
from spiral_stream.planner.binding.nodes import need_lanes, ranks_per_node
from spiral_stream.sampling.dealing import POLICIES, Policy, StepDeal, worlds
from spiral_stream.sampling.nodes import Nodes
from spiral_stream.sampling.order import Order

_RANK, _WORLD = "data_parallel_rank", "data_parallel_world_size"
_PER_NODE = "ranks_per_node"


@final
@dataclass(frozen=True, slots=True)
class Bindings:
    """The explicit bindings of a run; None leaves a value to its default."""

    epoch: int | None = None
    data_parallel_rank: int | None = None
    data_parallel_world_size: int | None = None
    run_seed: int | None = None
    device: str | None = None
    merge: int = 1
    steps_per_epoch: int | None = None
    epochs: int | None = None
    ranks_per_node: int | None = None  # of those that are data-parallel; None deals lanes to ranks
    step_batches: int | None = None  # of an optimizer step, over all ranks and microsteps
    deal: str | None = None  # how they are dealt; None: by cost, if the plan has one

    def updated(self, **values: Any) -> "Bindings":
        """Return the bindings with some of them replaced.

        Raises:
            BindError: a name is unknown, or a value is out of range.
        """
        mesh, dp_dims = values.pop("mesh", None), values.pop("dp_dims", None)
        if (replication := values.pop("replication", None)) is not None:
            mesh, dp_dims = self._in_groups(replication, mesh, dp_dims, values)
        if mesh is not None:
            rank, world_size = rank_in_mesh(mesh, dp_dims)
            values = {_RANK: rank, _WORLD: world_size, **values}
        elif dp_dims is not None:
            msg = f"bind: dp_dims={shown(dp_dims)} names dimensions of a mesh. Give bind(mesh=..., dp_dims=...)"
            raise BindError(msg)
        full = {params.ALIASES.get(name, name): value for name, value in values.items()}
        unknown = sorted(set(full) - set(self.__dataclass_fields__))
        if unknown:
            there = (*self.__dataclass_fields__, "mesh", "dp_dims", "replication")
            no_binding = f"bind: {unknown[0]!r} is not a binding; there are {', '.join(there)}"
            msg = params.worker_refusal("bind", unknown[0]) or no_binding
            raise BindError(msg)
        if full.get(_PER_NODE) is not None:
            world = full[_WORLD] if full.get(_WORLD) is not None else self.data_parallel_world_size
            full[_PER_NODE] = ranks_per_node(full[_PER_NODE], world, mesh, dp_dims)
        for name, value in full.items():
            if name == "device":
                full[name] = None if value is None else _device(value)
            elif name == "deal":
                full[name] = _policy(value)
            elif value is not None or name == "merge":
                full[name] = _integer(name, value)
        return replace(self, **full)

    def _in_groups(
        self, replication: Any, mesh: Any, dp_dims: Any, values: dict[str, Any]
    ) -> tuple[Any, tuple[str, ...]]:
        """The mesh that ``replication`` is short for. Takes rank and world size out of ``values``: they count all processes."""
        if mesh is not None or dp_dims is not None:
            msg = (
                f"bind: replication={shown(replication)} beside a mesh, which says itself which ranks get equal batches. Leave "
                "replication out"
            )
            raise BindError(msg)
        ranks: dict[str, int | None] = {_RANK: None, _WORLD: None}
        for name in ranks:
            short = next(each for each, full in params.ALIASES.items() if full == name)
            given = [values.pop(each) for each in (short, name) if values.get(each) is not None]
            if given:
                ranks[name] = _integer(name, given[-1])
            elif getattr(self, name) is not None:
                msg = (
                    f"bind: replication={shown(replication)} after {name}={getattr(self, name)} was bound, so it may have been "
                    "counted already. Give them in one call: bind(rank=..., world_size=..., replication=...)"
                )
                raise BindError(msg)
        return in_groups(replication, *_or_here(ranks[_RANK], ranks[_WORLD]))


def _policy(value: Any) -> str | None:
    if value is not None and value not in POLICIES:
        msg = f"bind: deal={shown(value)} is no way to deal. Give 'cost', or 'order' for batches as they are numbered"
        raise BindError(msg)
    found: str | None = value
    return found


def _device(value: Any) -> str:
    try:
        return device_name("bind: device", value)
    except PlanError as error:
        raise BindError(str(error)) from error


def _integer(name: str, value: Any) -> int:
    """Return the value as an integer in range. NumPy's integers are integers too."""
    least = {"run_seed": None, _WORLD: 1, "merge": 1, "steps_per_epoch": 1, "epochs": 1, "step_batches": 1}.get(name, 0)
    number = as_integer(value)
    if number is None:
        msg = f"bind: {name}={shown(value)} is a {type(value).__name__}. Give an integer"
        raise BindError(msg)
    if least is not None and number < least:
        msg = f"bind: {name}={number if number > -(2**128) else 'less than -2**128'} is out of range; it counts from {least}"
        raise BindError(msg)
    if name != "run_seed" and number > LAST_EPOCH:
        found = f"{number:.3g}" if number < 2**128 else "past 2**128"
        msg = f"bind: {name}={found} is out of range. Give at most {LAST_EPOCH}"
        raise BindError(msg)
    return number


def epoch_number(value: Any, argument: str = "set_epoch") -> int:
    """Return the epoch that `set_epoch`, or another call, is given.

    Raises:
        BindError: it is not an integer from 0 up.
    """
    number = as_integer(value)
    if number is None or not 0 <= number <= LAST_EPOCH:
        msg = f"{argument}: {shown(value)}; epochs count from 0. Give an integer in [0, {LAST_EPOCH}]"
        raise BindError(msg)
    return number


@final
@dataclass(frozen=True, slots=True)
class Bound:
    """The values that a run uses, all of them known."""

    epoch: int
    rank: int
    world_size: int
    run_seed: int
    merge: int
    steps: int | None = None  # of each epoch, if the run says how many it takes
    ranks_per_node: int | None = None  # where the nodes get lanes of their own
    epochs: int | None = None  # of the whole run, from epoch 0 on, if it says so
    deal: StepDeal | None = None  # of optimizer steps, if the run says how many batches one has
    unit: int = 1  # batches in a row that have one shape

    @property
    def shape(self) -> tuple[int, int, StepDeal | None]:
        """What a segment of the run is made of: world size, merge and deal."""
        return self.world_size, self.merge, self.deal

    @property
    def together(self) -> int:
        """Batches that are delivered all or none, over all ranks."""
        return self.world_size * self.merge if self.deal is None else self.deal.step_batches

    @property
    def nodes(self) -> Nodes:
        """The nodes; each rank is one where the run does not say more."""
        return Nodes(self.world_size, self.ranks_per_node or 1)

    @property
    def turn(self) -> int:
        """The place of the rank in each step."""
        return self.rank if self.ranks_per_node is None else self.nodes.turn_of(self.rank)


def settle(
    bindings: Bindings,
    sample: Sample,
    cost: str | None = None,
    exchange: RowExchange | None = None,
    formation: Formation | None = None,
) -> Bound:
    """Fill in the defaults: the plan's integers, ``torch.distributed``, the environment, then 0 of 1.

    Args:
        bindings: what is bound.
        sample: of the plan.
        cost: of its samples, if the plan says one.
        exchange: between which batches the plan exchanges rows; it says how many an optimizer step has.
        formation: of the plan.

    Raises:
        BindError: rank and world size contradict each other, or contradict the plan; or ranks cannot share a step evenly.
    """
    rank, world = _or_here(bindings.data_parallel_rank, bindings.data_parallel_world_size)
    for name, given, fixed in (
        (_RANK, bindings.data_parallel_rank, sample.assignment.rank),
        (_WORLD, bindings.data_parallel_world_size, sample.assignment.world_size),
    ):
        if given is not None and isinstance(fixed, int) and given != fixed:
            msg = f"bind: {name}={given}, but the plan fixes {fixed}. Leave it unbound, or plan with RuntimeParam({name!r})"
            raise BindError(msg)
    bound = {
        "epoch": bindings.epoch if bindings.epoch is not None else 0,
        _RANK: rank,
        _WORLD: world,
    }
    settled = Bound(
        epoch=params.resolve(sample.epoch, bound),
        rank=params.resolve(sample.assignment.rank, bound),
        world_size=params.resolve(sample.assignment.world_size, bound),
        run_seed=sample.order.run_seed if bindings.run_seed is None else bindings.run_seed,
        merge=bindings.merge,
        steps=bindings.steps_per_epoch,
        ranks_per_node=bindings.ranks_per_node,
        epochs=bindings.epochs,
        deal=_deal(bindings, cost, exchange),
        unit=1 if formation is None else formation.unit,
    )
    if settled.rank >= settled.world_size:
        msg = (
            f"bind: data_parallel_rank={settled.rank} of data_parallel_world_size={settled.world_size}; "
            f"ranks count from 0. Bind both, with a rank in [0, {settled.world_size})"
        )
        raise BindError(msg)
    if settled.ranks_per_node is not None:
        need_lanes(settled.world_size, settled.ranks_per_node, settled.merge, sample.assignment.lanes)
    _need_even(settled)
    _need_one_shape(settled, formation)
    return settled


def _deal(bindings: Bindings, cost: str | None, exchange: RowExchange | None) -> StepDeal | None:
    """How optimizer steps are dealt; None where neither run nor plan says how many batches one has.

    Raises:
        BindError: it is to be dealt by a cost that the plan lacks, or its steps are not those of the plan.
    """
    step_batches = bindings.step_batches
    if exchange is not None:
        step_batches = exchange.step_batches if step_batches is None else step_batches
        if step_batches % exchange.step_batches:
            msg = (
                f"bind: step_batches={step_batches:,}, and the plan exchanges rows between {exchange.step_batches:,} batches. "
                "Bind that many or a multiple, or leave step_batches out"
            )
            raise BindError(msg)
    if step_batches is None:
        if bindings.deal is not None:
            msg = f"bind: deal={bindings.deal!r} deals the batches of an optimizer step. Say how many: bind(step_batches=...)"
            raise BindError(msg)
        return None
    policy: Policy = "order" if bindings.deal == "order" or (bindings.deal is None and cost is None) else "cost"
    if policy == "cost" and cost is None:
        msg = "bind: deal='cost', and the plan says no cost. Give it one, collate(cost='len(tokens)'), or deal='order'"
        raise BindError(msg)
    return StepDeal(step_batches, policy)


def _need_even(bound: Bound) -> None:
    """Refuse ranks that cannot share an optimizer step evenly, and epochs that end inside one.

    Raises:
        BindError: says which numbers of ranks can, or which numbers of steps do.
    """
    if bound.deal is None:
        return
    group, step_batches = bound.world_size * bound.merge, bound.deal.step_batches
    if step_batches % group:
        fitting = worlds(step_batches, bound.merge)
        merged = "" if bound.merge == 1 else f" with merge={bound.merge:,}"
        can = (
            f"{', '.join(f'{each:,}' for each in fitting)} ranks can{merged}"
            if fitting
            else f"merge={bound.merge:,} does not divide it"
        )
        msg = (
            f"bind: {bound.world_size:,} ranks{merged} cannot share step_batches={step_batches:,} evenly; {can}. Bind one of "
            "these, or another step_batches"
        )
        raise BindError(msg)
    if bound.steps is not None and bound.steps * group % step_batches:
        share = step_batches // group
        msg = (
            f"bind: steps_per_epoch={bound.steps:,} ends an epoch inside an optimizer step of {share:,} batches per rank. Give a "
            f"multiple of {share:,}, such as {-(-bound.steps // share) * share:,}"
        )
        raise BindError(msg)


def _need_one_shape(bound: Bound, formation: Formation | None) -> None:
    """Refuse ranks of which some would get another shape than others in a step.

    Raises:
        BindError: says which numbers of ranks would not.
    """
    if not isinstance(formation, OneShape):
        return
    group, unit = bound.world_size * bound.merge, bound.unit
    if bound.merge > unit or unit % bound.merge or (unit > 1 and unit % group):
        fitting = worlds(unit, bound.merge)
        merged = "" if bound.merge == 1 else f" with merge={bound.merge:,}"
        can = (
            f"{', '.join(f'{each:,}' for each in fitting)} ranks can{merged}"
            if fitting
            else f"no number of ranks can{merged}"
        )
        msg = (
            f"bind: {bound.world_size:,} ranks{merged} would not get one shape in each step, since OneShape(batches={unit:,}) "
            f"has that many batches of a shape in a row; {can}. Bind one of these, or plan with batches={group:,} or a multiple"
        )
        raise BindError(msg)


def need_unit_border(bound: Bound, begun: Segment) -> None:
    """Refuse to go on from inside a row of batches of one shape where the ranks' steps would reach beyond it.

    Args:
        bound: the run's ranks.
        begun: the segment with which they go on.

    Raises:
        ResumeError: says where they can go on.
    """
    if bound.unit > 1 and begun.first_batch % begun.group:
        unit, at = bound.unit, begun.first_batch
        msg = (
            f"resume: {bound.world_size:,} ranks go on from batch {at:,} of epoch {begun.epoch:,}, and steps of {begun.group:,} "
            f"batches from there would mix shapes: rows of {unit:,} batches of one shape begin at multiples of {unit:,}. Save at "
            f"batch {at // unit * unit:,} or {-(-at // unit) * unit:,}, go on with as many ranks as before, or let states stand "
            f"at such borders: bind(step_batches={unit:,})"
        )
        raise ResumeError(msg)


def need_known_seed(order: Order, bound: Bound) -> None:
    """Refuse several ranks whose processes each drew a seed of their own.

    Raises:
        BindError: says how they get one seed.
    """
    seed = drawn_seed(order) if bound.world_size > 1 else None
    if seed is not None and not seed.recorded:
        msg = (
            f"bind: the order has seed=None, so each of {bound.world_size} ranks draws another order. Give a seed, load a state "
            "that one rank saved, or open the stream that one process saved: catalog.save_stream(name, plan)"
        )
        raise BindError(msg)


def resumed(bindings: Bindings, run_seed: int, earlier: int | None) -> Bindings:
    """Return the bindings of a run that goes on from a state. They replace a run seed that came from an earlier state.

    Args:
        bindings: the present bindings.
        run_seed: the state's run seed.
        earlier: the run seed that an earlier state has bound; None if none has.

    Raises:
        ResumeError: another run seed is bound.
    """
    if bindings.run_seed in (None, earlier):
        return replace(bindings, run_seed=run_seed)
    if bindings.run_seed != run_seed:
        msg = (
            f"resume: saved with run_seed {run_seed}, and {bindings.run_seed} is bound; random transforms "
            "would change in mid-epoch. Leave run_seed unbound, or start a new epoch"
        )
        raise ResumeError(msg)
    return bindings


def _or_here(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size, those of this process where they are not bound. It is not asked where both are."""
    here = (rank, world_size) if rank is not None and world_size is not None else _process_rank()
    return here[0] if rank is None else rank, here[1] if world_size is None else world_size


def _process_rank() -> tuple[int, int]:
    """Return rank and world size of this process. A process that has not imported torch has no process group."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    try:
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError as error:
        msg = f"bind: RANK or WORLD_SIZE in the environment is not a number ({error}). Unset it or bind explicitly"
        raise BindError(msg) from error
    if rank < 0 or world < 1:  # some launchers say -1 for "alone"
        msg = f"bind: the environment has RANK={rank} and WORLD_SIZE={world}; ranks count from 0. Unset both or bind explicitly"
        raise BindError(msg)
    return rank, world

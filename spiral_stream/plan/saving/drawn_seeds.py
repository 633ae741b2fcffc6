"""Seeds that a process drew for a plan without one: found in a plan, and taken over from a saved state."""

from dataclasses import replace
from typing import Any

from spiral_stream.plan.nodes import Deliver, Sample
from spiral_stream.plan.tree import need, replaced
from spiral_stream.sampling.order import Order
from spiral_stream.sampling.orders.hash_bucketed import HashBucketed
from spiral_stream.seeding import DrawnSeed


def drawn_seed(order: Order) -> DrawnSeed | None:
    """Return the seed of an order, if it was drawn."""
    seed = getattr(order, "seed", None)
    return seed if isinstance(seed, DrawnSeed) else None


def with_recorded(plan: Deliver, seed: int) -> Deliver:
    """Return a plan whose order has a seed from a saved state, in place of the one that was drawn here."""
    sample = need(plan, Sample)
    order: Any = sample.order
    changed: dict[str, Any] = {"seed": DrawnSeed(seed, recorded=True)}
    if isinstance(order, HashBucketed) and order.bucket_order is not None and order.bucket_order.seed == order.seed:
        changed["bucket_order"] = None
    made: Deliver = replaced(plan, sample, replace(sample, order=replace(order, **changed)))  # type: ignore[assignment]  # of its kind
    return made

"""The record of the shares that a run decided on: from which place on each holds. The state keeps it (docs/decisions/0082).

A decision holds until the next one, over all epochs. Batches before its place are what they were.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any, Final, final

from spiral_stream.arguments import is_integer
from spiral_stream.errors import ResumeError, StreamError, shown
from spiral_stream.sampling.order import LARGEST

MOST: Final = 10_000  # decisions; finding where each begins takes about a millisecond when a state is loaded


@final
@dataclass(frozen=True, slots=True)
class Decision:
    """From a place on, the streams have these weights.

    ``batch`` is the first batch that they hold for, and ``position`` the first position; of an epoch.
    """

    epoch: int
    batch: int
    position: int
    weights: tuple[int | float, ...]

    @property
    def at(self) -> tuple[int, int]:
        """Epoch and position."""
        return self.epoch, self.position


@final
@dataclass(frozen=True, slots=True)
class Decisions:
    """What a run decided: the names of its streams, and decisions by place, ascending."""

    streams: tuple[str, ...] = ()
    made: tuple[Decision, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.made)

    def with_one(self, streams: tuple[str, ...], decision: Decision) -> "Decisions":
        """Return the record with one more; it takes the place of the last one, if that is of the same place.

        Raises:
            StreamError: it becomes too large.
        """
        before = self.made[:-1] if self.made and self.made[-1].at == decision.at else self.made
        if len(before) >= MOST:
            msg = (
                f"decide: the run has decided {len(before):,} times, and a state holds that many. Decide more rarely, or go on "
                "with a plan of the present shares: new_stream.rebase(old_stream)"
            )
            raise StreamError(msg)
        return Decisions(streams, (*before, decision))

    def carried(self, epoch: int) -> "Decisions":
        """Return the record of a run that begins an epoch anew: the last decision, from the epoch's start on."""
        return Decisions(self.streams, (Decision(epoch, 0, 0, self.made[-1].weights),)) if self.made else self

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        made = [[each.epoch, each.batch, each.position, list(each.weights)] for each in self.made]
        return {"streams": list(self.streams), "made": made}

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> "Decisions":
        """Read `to_json` back.

        Raises:
            ResumeError: it cannot be read.
        """
        if data is None:
            return cls()
        try:
            streams = tuple(data["streams"])
            made = tuple(Decision(epoch, batch, at, tuple(weights)) for epoch, batch, at, weights in data["made"])
            _need(all(isinstance(name, str) for name in streams) and 0 < len(made) <= MOST)
            _need(all(is_integer(n, 0, LARGEST) for each in made for n in (each.epoch, each.batch, each.position)))
            _need(all(len(each.weights) == len(streams) and are_weights(each.weights) for each in made))
            _need(all(before.at < after.at for before, after in pairwise(made)))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            msg = f"resume: the state's decisions cannot be read ({shown(error)}). Pass what state_dict() returned, unchanged"
            raise ResumeError(msg) from error
        return cls(streams, made)


def are_weights(weights: tuple[Any, ...]) -> bool:
    """Return whether these are weights of streams: finite numbers of 0 or more, at least one of them above 0."""
    numbers = all(isinstance(w, int | float) and not isinstance(w, bool) for w in weights)
    return numbers and all(isfinite(w) and w >= 0 for w in weights) and any(weights)


PLANNED: Final = Decisions()  # the shares are those of the plan


def _need(holds: object) -> None:
    if not holds:
        msg = "it holds something other than weights of streams, by place"
        raise ValueError(msg)

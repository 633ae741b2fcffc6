"""Where a run went on with another plan: an edit that the state keeps (decision 8)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from spiral_stream.errors import ResumeError
from spiral_stream.sampling.carry import Carry


@final
@dataclass(frozen=True, slots=True)
class Rebase:
    """The epoch that began with this plan, and where each stream of the earlier one stood."""

    epoch: int
    carries: tuple[tuple[str, Carry], ...]

    def carry(self, stream: str) -> Carry | None:
        """Where a stream goes on; None for one that the earlier plan did not have."""
        return dict(self.carries).get(stream)

    def to_json(self) -> dict[str, Any]:
        """The edit as JSON values."""
        streams = {name: {"left": [list(each) for each in c.left], "then": c.then} for name, c in self.carries}
        return {"epoch": self.epoch, "streams": streams}

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> "Rebase | None":
        """Read `to_json` back.

        Raises:
            ResumeError: it cannot be read.
        """
        if data is None:
            return None
        try:
            carries = [
                (str(name), Carry(tuple((int(a), int(n)) for a, n in each["left"]), int(each["then"])))
                for name, each in data["streams"].items()
            ]
            return cls(int(data["epoch"]), tuple(carries))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            msg = f"resume: the state's rebase cannot be read ({error!r}); pass what state_dict() returned, unchanged"
            raise ResumeError(msg) from error

"""What a transform of the plan is: a frozen value with a name, a version and a deterministic counterpart.

A transform says *what* happens to a sample; compiling a chain of them (for
images `spiral_stream.transforms.image.compile_image`) makes the program that
does it. Fields are numbers, strings and tuples of them, so that a plan can be
written as JSON; ``NAME`` and ``VERSION`` enter fingerprints, and ``NAME`` keys
the random bits (`spiral_stream.seeding.uniforms`).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, Final, final

from spiral_stream.errors import PlanError, shown

LARGEST_SIDE: Final = 1 << 15  # pixels a side of an output


class Transform(ABC):
    """One step of a chain. Subclasses are frozen dataclasses of JSON values, checked at birth."""

    NAME: ClassVar[str]
    VERSION: ClassVar[int] = 1  # a change of any output raises it

    @property
    @abstractmethod
    def deterministic(self) -> bool:
        """Whether the output depends on the input alone, so that it may be cached."""

    def evaluation(self) -> "tuple[Transform, ...]":
        """The deterministic steps that stand for this one in evaluation; itself unless it draws."""
        return (self,)

    def __rshift__(self, name: str) -> "Named":
        """Name the column that the output goes to: ``Tokenize("text", ...) >> "tokens"``."""
        return Named(self, name)


@final
@dataclass(frozen=True, slots=True)
class Named:
    """A transform whose output goes to a column of this name."""

    transform: Transform
    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            what = type(self.transform).__name__
            msg = f'{what} >> {self.name!r}: give the name of the new column, as in {what}(...) >> "tokens"'
            raise PlanError(msg)


def is_number(value: object) -> bool:
    """Whether a field is a finite number and not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def checked_size(name: str, size: object) -> int | tuple[int, int]:
    """A size field: an int, or (height, width); a sequence of one counts as an int, as in torchvision.

    Raises:
        PlanError: it is neither, or out of range.
    """
    given = tuple(size) if isinstance(size, Sequence) and not isinstance(size, str) else (size,)
    whole = all(isinstance(side, int) and not isinstance(side, bool) and 1 <= side <= LARGEST_SIDE for side in given)
    if not whole or len(given) not in (1, 2):
        msg = (
            f"{name}: size is {shown(size)}; give a whole number of pixels or (height, width), each 1 to {LARGEST_SIDE}"
        )
        raise PlanError(msg)
    return given[0] if len(given) == 1 else (given[0], given[1])


def checked_range(name: str, what: str, given: object) -> tuple[float, float]:
    """A field that holds (low, high), as floats.

    Raises:
        PlanError: it is not 0 < low <= high.
    """
    pair = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    if len(pair) != 2 or not all(map(is_number, pair)) or not 0 < pair[0] <= pair[1]:  # noqa: PLR2004  low, high
        msg = f"{name}: {what} is {shown(given)}; give (low, high) with 0 < low <= high"
        raise PlanError(msg)
    return float(pair[0]), float(pair[1])

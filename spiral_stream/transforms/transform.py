"""The interface of transforms: frozen values of the plan that say what happens to a sample.

A transform runs nothing by itself. Compiling a chain of them makes the program that does
(`spiral_stream.transforms.image.image.compile_image` for images). Fields are numbers, strings and tuples of them, so that a
plan can be written as JSON. ``NAME`` and ``VERSION`` are part of fingerprints, and ``NAME`` is part of the key of the
random numbers (`spiral_stream.seeding.uniforms`).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np

from spiral_stream.arguments import integer, is_integer, is_number, text
from spiral_stream.errors import PlanError, shown

LARGEST_SIDE: Final = 1 << 15  # pixels a side of an output
TOKENIZER: Final = text('a path, or the name under which catalog.register_tokenizer("chat", tokenizer) keeps it')
MOST_TOKENS: Final = integer(1, None, "a whole number of tokens from 1 on, or None for no limit", none=True)


class Transform(ABC):
    """One step of a chain. Subclasses are frozen dataclasses of JSON values, checked when they are made.

    Examples:
        >>> isinstance(spiral.RandomResizedCrop(224), spiral.transforms.Transform)
        True
        >>> spiral.RandomResizedCrop(224).deterministic
        False
    """

    NAME: ClassVar[str]
    VERSION: ClassVar[int] = 1  # raise it with any change of the output

    @property
    @abstractmethod
    def deterministic(self) -> bool:
        """Whether the output depends on the input alone. If so, it may be cached."""

    def evaluation(self) -> "tuple[Transform, ...]":
        """The deterministic steps that replace this one in evaluation; the step itself if it draws no random numbers."""
        return (self,)

    def __rshift__(self, name: str | tuple[str, ...]) -> "Named":
        """Name the column for the output: ``Tokenize("text", ...) >> "tokens"``. A `ChatTemplate` may have two."""
        return Named(self, name)


@final
@dataclass(frozen=True, slots=True)
class Named:
    """A transform, and the name of the column for its output.

    Examples:
        >>> (spiral.Tokenize("caption", tokenizer="three") >> "ids").names
        ('ids',)
    """

    transform: Transform
    name: str | tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.names or not all(isinstance(name, str) and name for name in self.names):
            what = type(self.transform).__name__
            msg = f'{what} >> {self.name!r}: give the name of the new column, as in {what}(...) >> "tokens"'
            raise PlanError(msg)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return tuple(self.name) if isinstance(self.name, list | tuple) else (self.name,)


@final
@dataclass(frozen=True, slots=True)
class AsNumbers:
    """Where a pipeline turns bytes of pixels into numbers in [0, 1]. In a plan the field's dtype says it, and no step is left.

    Args:
        dtype: of the numbers.
    """

    dtype: str


def plain(given: Any, within: int = 3) -> Any:
    """Return an array or a number of NumPy as Python's numbers, also within lists and tuples; others as they are.

    Args:
        given: any value, also a list that contains itself.
        within: how many lists deep it looks. No knob is nested deeper.
    """
    if isinstance(given, np.ndarray | np.generic):
        return given.tolist()
    return tuple(plain(each, within - 1) for each in given) if within and isinstance(given, list | tuple) else given


def checked_size(name: str, size: object) -> int | tuple[int, int]:
    """Check a size: an integer, or (height, width). A sequence of one integer counts as an integer, as in torchvision.

    Raises:
        PlanError: it is neither, or out of range.
    """
    size = plain(size)
    given = tuple(size) if isinstance(size, Sequence) and not isinstance(size, str) else (size,)
    is_size = all(is_integer(side, 1, LARGEST_SIDE) for side in given)
    if not is_size or len(given) not in (1, 2):
        msg = (
            f"{name}: size is {shown(size)}. Give a whole number of pixels or (height, width), each 1 to {LARGEST_SIDE}"
        )
        raise PlanError(msg)
    return given[0] if len(given) == 1 else (given[0], given[1])


def checked_range(name: str, what: str, given: object) -> tuple[float, float]:
    """Check a range (low, high), and return it as floats.

    Raises:
        PlanError: it is not 0 < low <= high.
    """
    given = plain(given)
    pair = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    if len(pair) != 2 or not all(map(is_number, pair)) or not 0 < pair[0] <= pair[1]:  # noqa: PLR2004  low, high
        msg = f"{name}: {what} is {shown(given)}. Give (low, high) with 0 < low <= high"
        raise PlanError(msg)
    return float(pair[0]), float(pair[1])


def checked_chance(name: str, p: object) -> float:
    """Check a probability.

    Raises:
        PlanError: it is no number from 0 to 1.
    """
    if not is_number(p) or not 0 <= p <= 1:
        msg = f"{name}: p is {shown(p)}; it must be a number from 0 to 1"
        raise PlanError(msg)
    return float(p)

"""What a transform of the plan is: a frozen value with a name, a version and a deterministic counterpart.

A transform says *what* happens to a sample; compiling a chain of them (for
images `spiral_stream.transforms.image.compile_image`) makes the program that
does it. Fields are numbers, strings and tuples of them, so that a plan can be
written as JSON; ``NAME`` and ``VERSION`` enter fingerprints, and ``NAME`` keys
the random bits (`spiral_stream.seeding.uniforms`).
"""

from abc import ABC, abstractmethod
from typing import ClassVar


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

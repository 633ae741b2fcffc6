"""Numbers within bounds, as the types of components' fields: the schema has them, and a template passes until it is a number."""

from dataclasses import dataclass
from typing import Annotated, Any, final

from pydantic_core import core_schema


@final
@dataclass(frozen=True)
class Bounds:
    """What a number must be: at least one, and at most another.

    Attributes:
        least: that it may be.
        most: that it may be; None for no limit.
        said: in place of the bounds.
    """

    least: float
    most: float | None = None
    said: str = ""

    def read(self, value: Any) -> Any:
        """Return a value that is within the bounds, or no number.

        Raises:
            ValueError: it is out of them.
        """
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and not (self.least <= value and (self.most is None or value <= self.most)):
            raise ValueError(self.said or self._words())
        return value

    def _words(self) -> str:
        return f"Give {self.least} or more" if self.most is None else f"Give a number from {self.least} to {self.most}"

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self.read, handler(source))

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: Any) -> dict[str, Any]:
        limits = {"minimum": self.least, "maximum": self.most}
        return {**handler(schema), **{name: each for name, each in limits.items() if each is not None}}


Count = Annotated[int, Bounds(0)]
Positive = Annotated[int, Bounds(1)]
Amount = Annotated[float, Bounds(0)]
AboveZero = Annotated[float, Bounds(1e-9, said="Give a number above 0")]
Share = Annotated[float, Bounds(0, 1)]
Hours = Annotated[float, Bounds(1 / 60, said="Give a minute or more, in hours: Dagster measures freshness in minutes")]

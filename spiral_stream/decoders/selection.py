"""Which frames of a segment a clip takes (settled in /tmp/video_design.md; helper A writes the rules)."""

from dataclasses import dataclass
from typing import ClassVar, final


@final
@dataclass(frozen=True, slots=True)
class FrameSelection:
    """T frames of a segment."""

    VERSION: ClassVar[int] = 1
    sequence_length: int
    stride: int | None = None
    random_start: bool = False
    short: str = "pad"

    @property
    def deterministic(self) -> bool:
        """Whether nothing is drawn."""
        return not self.random_start

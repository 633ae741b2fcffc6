"""Sound in a plan: which part of a recording a field takes."""

from typing import Final, TypeGuard, cast

from spiral_stream.decoders.registry import SOUNDS
from spiral_stream.decoders.sound.sound_selection import SoundSelection, SoundShort, SoundStart
from spiral_stream.errors import PlanError
from spiral_stream.fields.field import Field
from spiral_stream.fields.stack import Stack

SOUND_DTYPES: Final = ("float32", "bfloat16")
_USUAL: Final = 1  # channels


def is_sound(field: Field) -> TypeGuard[Stack]:
    """Whether the field decodes sound."""
    return isinstance(field, Stack) and field.decode in SOUNDS


def sound_selection(field: Stack) -> SoundSelection:
    """Return which part of a recording a field takes.

    Raises:
        PlanError: the rate or the length is missing, or an argument is out of range.
    """
    if field.sample_rate is None or field.sequence_length is None:
        missing = "sample_rate=16_000" if field.sample_rate is None else "sequence_length=16_000"
        msg = f"decode={field.decode!r} needs the rate and the number of values per channel. Add {missing}"
        raise PlanError(msg)
    if field.dtype not in (None, *SOUND_DTYPES):
        msg = f"dtype={field.dtype!r}; sound is {' or '.join(SOUND_DTYPES)}. Give one of them, or leave dtype out"
        raise PlanError(msg)
    start: SoundStart = "random" if field.random_start else "centre" if field.centre else "first"
    channels = _USUAL if field.channels is None else field.channels
    return SoundSelection(field.sample_rate, field.sequence_length, channels, start, cast("SoundShort", field.short))

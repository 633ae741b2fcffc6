"""The public namespace of cache profiles, for ``relation.cache(column=...)``: ``spiral.profiles.Jpeg``.

Start at: `../plan/fields/profiles`.
May not know: anything of its own; its names live in `plan`.
"""

from typing import TYPE_CHECKING, Final

from spiral_stream.habits import door

if TYPE_CHECKING:
    from spiral_stream.connection import cache_fingerprint
    from spiral_stream.plan.fields.profiles import Frames, Jpeg, Original, Profile, Raw

__all__ = [
    "Frames",
    "Jpeg",
    "Original",
    "Profile",
    "Raw",
    "cache_fingerprint",
]

_LATE: Final = {
    "Frames": "spiral_stream.plan.fields.profiles",
    "Jpeg": "spiral_stream.plan.fields.profiles",
    "Original": "spiral_stream.plan.fields.profiles",
    "Profile": "spiral_stream.plan.fields.profiles",
    "Raw": "spiral_stream.plan.fields.profiles",
    "cache_fingerprint": "spiral_stream.connection",
}

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours
    __getattr__, __dir__ = door(__name__, _LATE)

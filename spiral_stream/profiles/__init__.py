"""The public namespace of cache profiles, for ``relation.cache(column=...)``: ``spiral.profiles.Jpeg``.

Start at: `../plan/fields/profiles`.
May not know: anything of its own; its names live in `plan`.
"""

from typing import TYPE_CHECKING

from spiral_stream.habits import door

if TYPE_CHECKING:  # the alias exports a name to type checkers
    from spiral_stream.connection import cache_fingerprint as cache_fingerprint
    from spiral_stream.plan.fields.profiles import Frames as Frames
    from spiral_stream.plan.fields.profiles import Jpeg as Jpeg
    from spiral_stream.plan.fields.profiles import Original as Original
    from spiral_stream.plan.fields.profiles import Profile as Profile
    from spiral_stream.plan.fields.profiles import Raw as Raw

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours
    __all__, __getattr__, __dir__ = door(
        __name__,
        {
            "connection": ["cache_fingerprint"],
            "plan.fields.profiles": ["Frames", "Jpeg", "Original", "Profile", "Raw"],
        },
    )

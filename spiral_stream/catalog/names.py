"""What a misspelled name was probably meant to be."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Final

from spiral_stream.errors import cut

_LISTED: Final = 12
_LONGEST: Final = 60  # characters of one name


def suggestions(name: str, known: Iterable[str]) -> str:
    """``did you mean a, b?`` or what there is: a whole sentence, for the end of a message."""
    names = sorted(known)
    close = difflib.get_close_matches(name[:1000], names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {', '.join(cut(each, _LONGEST) for each in close)}?"
    return listed(names)


def listed(names: Sequence[str]) -> str:
    """``there are a, b, ...``: a whole sentence, for the end of a message."""
    first = ", ".join(cut(each, _LONGEST) for each in names[:_LISTED])
    return f"there are {first}{' ...' if len(names) > _LISTED else '.'}" if names else "there are none."

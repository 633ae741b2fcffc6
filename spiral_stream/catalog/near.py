"""What a misspelled name may have meant."""

import difflib
from collections.abc import Iterable


def near(name: str, known: Iterable[str]) -> str:
    """``did you mean a, b?`` or what there is: a whole sentence, for the end of a message."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {', '.join(close)}?"
    return f"there are {', '.join(names[:12])}{' ...' if len(names) > 12 else '.'}" if names else "there are none."  # noqa: PLR2004

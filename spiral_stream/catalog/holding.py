"""Protect what a registration is about to name from removal: rows from memory, imported rows, tokenizers.

They lie under names that are made from their content, so another process may drop the last name of what this one is
registering. Whoever registers shares the content's name until its own row is written; whoever drops takes it alone,
looks whether anybody names it, and only then removes it. The locks are those of derived data (`keeping.in_use`).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from spiral_stream.keeping.in_use import Reading, reading, unread

_LOCKS: Final = ".held"  # a folder of the catalog

Hold = Callable[[str], None]  # share this name until the registration ends


@contextmanager
def holding(root: Path) -> Iterator[Hold]:
    """Yield what shares names until the block ends.

    Args:
        root: of the catalog. Where nothing can be written there, nothing is shared.
    """
    held: list[Reading] = []
    try:
        yield lambda name: held.append(reading(root / _LOCKS, name))
    finally:
        for each in held:
            each.release()


def unheld(root: Path, name: str) -> AbstractContextManager[bool]:
    """Whether no registration shares a name; none gets it until the block ends. Does not wait."""
    return unread(root / _LOCKS, name)

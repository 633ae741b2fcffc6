"""Where the indexes of vectors lie in a catalog's folder, which of them are of data that is there, and their removal.

`report.nearest` makes and searches them. Whoever searches one shares its name, so that it is not removed meanwhile.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from spiral_stream.errors import CacheError
from spiral_stream.integrity.publish import take_out
from spiral_stream.integrity.seal import read_json
from spiral_stream.keeping.in_use import Reading, reading, unread

FACTS: Final = "index.json"
_FOLDER: Final = "vectors"


def index_folder(root: Path, relation: str, column: str) -> Path:
    """Return where the index of a column lies, on this machine.

    Args:
        root: of the catalog.
        relation: its name.
        column: of vectors.
    """
    return root / _FOLDER / sha256(json.dumps([relation, column]).encode()).hexdigest()[:32]


def index_folders(root: Path) -> list[Path]:
    """Return where the indexes of a catalog lie."""
    with suppress(OSError):
        return sorted(path for path in (root / _FOLDER).iterdir() if path.is_dir() and not path.name.startswith("."))
    return []


def index_facts(folder: Path) -> Mapping[str, Any]:
    """Return what an index says of itself.

    Raises:
        CacheError: it is not there, or damaged.
    """
    found: Mapping[str, Any] = read_json(folder / FACTS)
    return found


def searching(folder: Path) -> Reading:
    """Share an index, until what is returned is released."""
    return reading(folder.parent, folder.name)


def remove_index(folder: Path) -> bool:
    """Remove an index, unless somebody searches it; whether it is gone.

    Raises:
        OSError: it cannot be removed.
    """
    with unread(folder.parent, folder.name) as is_alone:
        if is_alone:
            take_out(folder)
        return is_alone


def drop_indexes(root: Path, relation: str) -> None:
    """Remove the indexes of a relation that is dropped. One that is searched now, or damaged, stays and is dead."""
    for folder in index_folders(root):
        with suppress(CacheError, OSError):
            if index_facts(folder)["relation"] == relation:
                remove_index(folder)

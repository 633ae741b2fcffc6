"""Tables of LanceDB, which is not imported here: where the Lance dataset of one lies, and at which version.

A table is known by its class's module and by what it offers (lancedb 0.40): ``uri`` or ``_dataset_path`` say where it lies,
``version`` what it shows. One on a server has no dataset that can be read from here.
"""

from typing import Any, Final, Protocol, TypeGuard

from spiral_stream.errors import SourceError, shown

_PACKAGE: Final = "lancedb"
_REMOTE: Final = "db://"


class LanceTable(Protocol):
    """What is asked of a table."""

    @property
    def name(self) -> str:
        """Of the table in its database."""
        ...

    @property
    def version(self) -> int:
        """Which version it shows."""
        ...


def is_table(value: object) -> TypeGuard[LanceTable]:
    """Whether a value is an open table of LanceDB."""
    kind = type(value)
    return kind.__module__.split(".")[0] == _PACKAGE and hasattr(kind, "version") and hasattr(kind, "name")


def dataset_of(table: LanceTable) -> tuple[str, int]:
    """Return the folder of a table's Lance dataset, and the version that the table shows.

    Raises:
        SourceError: it lies on a server, is of the asynchronous kind, or shows a branch.
    """
    name = shown(getattr(table, "name", ""))
    if "Remote" in type(table).__name__ or "remote" in type(table).__module__.split("."):
        msg = f"LanceDB table {name} lies on a server, which is not read here. Export it to a Lance dataset, or to Parquet"
        raise SourceError(msg)
    if type(table).__name__.startswith("Async"):
        msg = (
            f"LanceDB table {name} is of the asynchronous interface. Open it with lancedb.connect(...).open_table(...)"
        )
        raise SourceError(msg)
    place = getattr(table, "_dataset_path", None) or getattr(table, "uri", None)
    if not isinstance(place, str):
        msg = f"LanceDB table {name}: this version of LanceDB does not say where it lies. Give Lance(<its folder>)"
        raise SourceError(msg)
    if place.startswith(_REMOTE):
        msg = f"LanceDB table {name} lies on a server, which is not read here. Export it to a Lance dataset, or to Parquet"
        raise SourceError(msg)
    if _branch_of(table):
        msg = f"LanceDB table {name} shows a branch, which is not read here. Check out the main branch, or export the rows"
        raise SourceError(msg)
    return place, int(table.version)


def _branch_of(table: Any) -> str | None:
    """The branch that a table shows; None for the main one, and where there is no such thing."""
    branch = getattr(table, "current_branch", None)
    found = branch() if callable(branch) else branch
    return None if found in (None, "main") else str(found)

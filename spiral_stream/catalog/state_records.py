"""Long lists of saved states, stored in the catalog under a digest that the state names.

A record is a JSON value under the digest of itself, so it never changes, and whoever writes it twice writes the same. A
catalog in a folder keeps it in ``states``; a catalog on a store keeps it there, so that every machine has it. A machine
with another catalog gets it by a file: `export` writes a state with all that it names, `imported` reads it back.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

from spiral_stream.catalog.shared.mirror import home_of, location_of
from spiral_stream.errors import CatalogError, DamageError, PlanError, ResumeError, SpiralError, cut
from spiral_stream.integrity.publish import write_file
from spiral_stream.integrity.seal import read_json, sealed_json
from spiral_stream.plan.saving.fingerprint import digest

_KIND: Final = "states"
_NAME: Final = re.compile("[0-9a-f]{32}")


def is_name(value: Any) -> bool:
    """Whether a value of a state is the name of a record."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


@final
class StateRecords:
    """The records of one catalog. Thread-safe; reads and writes nothing before it is used.

    Args:
        root: the folder of the catalog, or the mirror of one on a store.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._stored: dict[str, bool] = {}

    def keep(self, value: Any) -> str | None:
        """Keep a JSON value.

        Returns:
            its name; None where the catalog cannot be written, so that the state has to hold the value itself.
        """
        with suppress(PlanError):  # a text without a form in UTF-8
            name = digest(value)
            if name not in self._stored:
                self._stored[name] = self._write(name, value)
            return name if self._stored[name] else None
        return None

    def find(self, name: str) -> Any | None:
        """Return the value of this name; None if the catalog does not have it, or it is damaged."""
        if not is_name(name):
            return None
        found: Any = None
        with suppress(SpiralError, OSError, KeyError, RecursionError):
            found = home_of(self._root).value(_KIND, name)
        with suppress(PlanError, RecursionError):
            return found if found is not None and digest(found) == name else None
        return None

    def need(self, name: str, what: str) -> Any:
        """Return the value of this name.

        Args:
            name: of the record.
            what: it is to the state, for people.

        Raises:
            ResumeError: the catalog does not have it.
        """
        found = self.find(name)
        if found is None:
            msg = (
                f"resume: {what} of the state lie in the catalog that saved it, and {location_of(self._root)} has none of the "
                f'name {name[:8]}. There: catalog.export_state(state, "state.json"); here: '
                'state = catalog.import_state("state.json")'
            )
            raise ResumeError(msg)
        return found

    def export(self, state: Any, names: Iterable[str], path: Path) -> None:
        """Write a state and the records that it names to a file.

        Raises:
            ResumeError: this catalog lacks one of them.
            CatalogError: the file cannot be written.
        """
        records = {name: self.need(name, "lists") for name in names}
        try:
            write_file(path, sealed_json({"state": state, "records": records}))
        except (OSError, TypeError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            msg = f"export_state: {cut(str(path))}: {reason}. Give a file in a folder that can be written"
            raise CatalogError(msg) from error

    def imported(self, path: Path) -> dict[str, Any]:
        """Keep the records of a file that `export` wrote, and return its state.

        Raises:
            CatalogError: the file is none, or is damaged; or the catalog cannot be written.
        """
        try:
            found = read_json(path)
            state, records = found["state"], found["records"]
            sound = isinstance(state, Mapping) and all(digest(value) == name for name, value in records.items())
        except (SpiralError, KeyError, AttributeError) as error:
            reason = str(error).split(". ")[0] if isinstance(error, DamageError) else str(error)
            msg = f"import_state: {cut(reason)}. Give a file that catalog.export_state wrote, unchanged"
            raise CatalogError(msg) from error
        if not sound:
            msg = f"import_state: {cut(str(path))} is not what was written. Give a file that catalog.export_state wrote"
            raise CatalogError(msg)
        if not all(self.keep(value) for value in records.values()):
            msg = f"import_state: catalog {location_of(self._root)} cannot be written. Give a catalog that can"
            raise CatalogError(msg)
        return dict(state)

    def _write(self, name: str, value: Any) -> bool:
        if self.find(name) is not None:
            return True
        with suppress(SpiralError, OSError):
            return home_of(self._root).keep_value(_KIND, name, value)
        return False

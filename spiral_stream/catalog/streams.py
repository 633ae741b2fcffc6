"""Which saved streams there are: plans by name."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from spiral_stream.catalog.database import Database
from spiral_stream.catalog.names import suggestions
from spiral_stream.catalog.records import STREAMS, need_name, plan_of
from spiral_stream.catalog.shared.mirror import location_of
from spiral_stream.catalog.shared.tables import SharedRows
from spiral_stream.errors import CatalogError, shown


@final
class SavedStreams:
    """The saved streams of one catalog folder."""

    def __init__(self, root: Path, database: Database | SharedRows) -> None:
        self._root, self._database = root, database

    def save(self, name: str, plan: Mapping[str, Any]) -> None:
        """Keep a stream's plan (JSON) under a name, in place of an older one.

        Raises:
            CatalogError: the name is not legal.
        """
        need_name("stream", name)
        row = {"name": name, "plan": json.dumps(plan, sort_keys=True), "saved_at": datetime.now(UTC)}
        self._database.put(STREAMS, row)

    def plan(self, name: str) -> dict[str, Any]:
        """Return the saved plan of this name.

        Raises:
            CatalogError: there is none; lists near matches.
        """
        rows = self._database.rows(STREAMS)
        if name not in rows:
            way_out = f"{suggestions(str(name), rows)} Save it with save_stream first"
            msg = f"stream {shown(name)} is not in catalog {location_of(self._root)}; {way_out}"
            raise CatalogError(msg)
        return plan_of(self._root, rows[name])

    def names(self) -> list[str]:
        """Return the names of all saved streams, sorted."""
        return sorted(self._database.rows(STREAMS))

    def drop(self, name: str) -> None:
        """Forget a saved stream.

        Raises:
            CatalogError: there is none of this name.
        """
        if name not in self.names():
            self.plan(name)
        self._database.remove(STREAMS, name)

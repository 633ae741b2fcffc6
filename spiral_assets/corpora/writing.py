"""Write the demo's relations: complete or absent, and never over other files."""

import json
import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa


class Record:
    """The record of what was written into a folder, and by which recipe. It is written last."""

    def __init__(self, root: Path, name: str, leaves: Collection[str]) -> None:
        """A record in ``root / name``; ``leaves`` are the other files and folders that may be made there."""
        self._root, self._file = root, root / name
        self._ours = {*leaves, name, self._file.with_suffix(".unfinished").name}

    def found(self, recipe: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what the same recipe has written here; None if there is nothing, or another recipe wrote it."""
        if not self._file.exists():
            return None
        record = json.loads(self._file.read_text())
        written: dict[str, Any] | None = record.get("written") if record.get("recipe") == dict(recipe) else None
        return written

    def begin(self) -> None:
        """Empty the folder. Only files of an earlier write, finished or not, are removed.

        Raises:
            ValueError: the folder holds something else.
        """
        self._file.unlink(missing_ok=True)
        self._root.mkdir(parents=True, exist_ok=True)
        foreign = sorted(path.name for path in self._root.iterdir() if path.name not in self._ours)
        if foreign:
            msg = f"{self._root} holds {foreign[0]!r}, which the demo did not write. Name an empty folder"
            raise ValueError(msg)
        for path in self._root.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def finish(self, recipe: Mapping[str, Any], written: Mapping[str, Any]) -> None:
        """Record that everything is written."""
        draft = self._file.with_suffix(".unfinished")
        draft.write_text(json.dumps({"recipe": dict(recipe), "written": dict(written)}, indent=1))
        draft.replace(self._file)


def worker_count(stated: int | None) -> int:
    """Processes that draw: as many as asked, or one per core that this process may use."""
    if stated is not None:
        return stated
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def write_lance(path: Path, schema: pa.Schema, shards: Iterable[pa.Table]) -> None:
    """Write a Lance dataset with one fragment per shard and one commit at the end: no reader sees half of it."""
    import lance

    fragments: list[Any] = []
    for table in shards:
        fragments += lance.fragment.write_fragments(
            table, str(path), schema=schema, mode="create", data_storage_version="2.2"
        )
    overwrite = lance.LanceOperation.Overwrite(schema, fragments)
    lance.LanceDataset.commit(str(path), overwrite, enable_stable_row_ids=True)

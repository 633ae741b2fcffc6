"""Append fragments to a Lance dataset, which is made if it is missing. Others may append at the same time."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import pyarrow as pa

from spiral_stream.errors import SourceError
from spiral_stream.sources.lance import storage


@final
@dataclass(frozen=True, slots=True)
class Appendable:
    """A dataset as it is now."""

    schema: pa.Schema
    version: int
    storage_version: str  # of its files
    files: frozenset[str]  # names of the files of its fragments
    _ids: tuple[int, ...]  # of its columns and their parts, each before its parts

    def placed(self, described: str, names: Mapping[str, str]) -> str:
        """Return Lance's description of a fragment as one of this dataset.

        Args:
            described: as it was written, by itself: its columns are numbered from 0.
            names: its files -> what they are called now.
        """
        found: dict[str, Any] = json.loads(described)
        for file in found["files"]:
            file["path"] = names.get(file["path"], file["path"])
            file["fields"] = [self._ids[k] for k in file["fields"]]
        return json.dumps(found)


def present(folder: Path) -> Appendable | None:
    """Look at a dataset; None where there is none.

    Raises:
        SourceError: it cannot be read.
    """
    import lance

    if not (folder / "_versions").is_dir():
        return None
    with storage(f"Lance dataset {folder}"):
        found = lance.dataset(str(folder))
        files = frozenset(file.path for each in found.get_fragments() for file in each.metadata.files)
        ids = tuple(_ids(found.lance_schema.fields()))
        return Appendable(found.schema, int(found.version), str(found.data_storage_version), files, ids)


def made(folder: Path, schema: pa.Schema) -> Appendable:
    """Return a dataset, which is made without rows if it is missing; one process makes it, whoever tries.

    Raises:
        SourceError: Lance cannot keep such columns, or the folder cannot be written.
    """
    import lance

    found = present(folder)
    if found is None:
        try:
            with storage(f"Lance dataset {folder}"):
                lance.write_dataset(schema.empty_table(), str(folder), mode="create")
        except SourceError:
            if present(folder) is None:  # nobody else made it
                raise
        found = present(folder)
    assert found is not None
    return found


def append(folder: Path, described: Sequence[str], version: int) -> int:
    """Add fragments, whose files lie in the dataset already, after all others; returns the new version.

    Args:
        folder: of the dataset.
        described: the fragments, as `Appendable.placed` returns them.
        version: that was looked at. Lance goes on from a later one that only has more rows.

    Raises:
        SourceError: the dataset was changed in another way meanwhile, or cannot be written.
    """
    import lance
    from lance.fragment import FragmentMetadata

    with storage(f"Lance dataset {folder}"):
        operation = lance.LanceOperation.Append([FragmentMetadata.from_json(text) for text in described])
        return int(lance.LanceDataset.commit(str(folder), operation, read_version=version).version)


def _ids(fields: Any) -> list[int]:
    return [number for field in fields for number in (int(field.id()), *_ids(field.children()))]

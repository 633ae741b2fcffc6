"""Write rows as Lance: a whole dataset, or fragments that become part of one when they are committed."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import pyarrow as pa

from spiral_stream.sources.lance.calls import storage

DATA: Final = "data"  # the folder of a dataset's files


@final
@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment that was written, and belongs to no dataset before it is committed."""

    rows: int
    size_bytes: int
    described: str  # Lance's own description, JSON

    @property
    def files(self) -> tuple[str, ...]:
        """The names of its files below `DATA`."""
        return files_in(self.described)


def files_in(described: str) -> tuple[str, ...]:
    """Return the names of the files of a fragment, from Lance's description of it."""
    return tuple(file["path"] for file in json.loads(described)["files"])


def write_fragments(folder: Path, rows: pa.Table, fragment_rows: int) -> None:
    """Write rows as a new dataset, with ``fragment_rows`` rows in each fragment but the last.

    Raises:
        SourceError: Lance refuses them, or the folder cannot be written.
    """
    import lance

    with storage(f"Lance dataset {folder}"):
        lance.write_dataset(rows, str(folder), max_rows_per_file=fragment_rows, max_rows_per_group=fragment_rows)


def draft_fragments(
    folder: Path,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    most_rows: int,
    most_bytes: int,
    storage_version: str | None = None,
) -> list[Fragment]:
    """Write rows as fragments below a folder, batch by batch.

    Args:
        folder: their files come to lie in its `DATA`.
        batches: the rows, at least one.
        schema: of the rows.
        most_rows: of one fragment.
        most_bytes: of one fragment; it is ended at the first batch beyond.
        storage_version: of Lance's files; None takes the newest.

    Raises:
        SourceError: Lance refuses them, the folder cannot be written, or ``batches`` raises.
    """
    from lance.fragment import write_fragments as write

    with storage(f"Lance fragments {folder}"):
        reader = pa.RecordBatchReader.from_batches(schema, batches)
        made = write(
            reader,
            str(folder),
            schema,
            mode="create",  # nothing is there, and Lance need not say so
            max_rows_per_file=most_rows,
            max_bytes_per_file=most_bytes,
            data_storage_version=storage_version,
        )
    return [
        Fragment(
            each.physical_rows,
            sum(file.file_size_bytes or 0 for file in each.files),
            json.dumps(each.to_json()),
        )
        for each in made
    ]


def commit_fragments(folder: Path, schema: pa.Schema, described: Sequence[str]) -> int:
    """Make fragments, and no others, the newest version of a dataset; their files lie in its `DATA` already.

    Returns:
        the version.

    Raises:
        SourceError: Lance refuses.
    """
    import lance
    from lance.fragment import FragmentMetadata

    with storage(f"Lance dataset {folder}"):
        fragments = [FragmentMetadata.from_json(text) for text in described]
        operation = lance.LanceOperation.Overwrite(schema, fragments)
        return int(lance.LanceDataset.commit(str(folder), operation).version)


def forget_versions(folder: Path, versions: Sequence[int]) -> None:
    """Remove versions of a dataset, but never the newest, and the files that no other version has.

    Raises:
        SourceError: Lance refuses.
    """
    import lance

    with storage(f"Lance dataset {folder}"):
        dataset = lance.dataset(str(folder))
        dead = sorted(set(versions) - {dataset.version})
        if dead:
            dataset.cleanup_old_versions(versions=dead)

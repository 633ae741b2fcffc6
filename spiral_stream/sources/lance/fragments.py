"""Write rows as Lance: a whole dataset, or fragments that are committed to one, also while other processes append to it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any, Final, final

import pyarrow as pa

from spiral_stream.errors import SourceError
from spiral_stream.sources.arrow.table import no_rows
from spiral_stream.sources.lance.calls import lance_options, storage
from spiral_stream.storage.open import store_of

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


@final
@dataclass(frozen=True, slots=True)
class Appendable:
    """A dataset as it is now."""

    schema: pa.Schema
    version: int
    storage_version: str  # of its files
    files: frozenset[str]  # names of the files of its fragments
    _ids: tuple[int, ...]  # of its columns and their parts, each before its parts

    def described(self, described: str, names: Mapping[str, str]) -> str:
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


def present(uri: str) -> Appendable | None:
    """Look at a dataset; None where there is none.

    Raises:
        SourceError: it cannot be read.
    """
    if not _is_there(uri):
        return None
    with storage(f"Lance dataset {uri}"):
        found = _opened(uri)
        files = frozenset(file.path for each in found.get_fragments() for file in each.metadata.files)
        ids = tuple(_ids(found.lance_schema.fields()))
        return Appendable(found.schema, int(found.version), str(found.data_storage_version), files, ids)


def files_since(uri: str, version: int) -> frozenset[str]:
    """Return the names of the files of all versions after one.

    Raises:
        SourceError: they cannot be read.
    """
    found: set[str] = set()
    if _is_there(uri):
        with storage(f"Lance dataset {uri}"):
            numbers = [int(each["version"]) for each in _opened(uri).versions()]
            for number in numbers:
                if number > version:
                    fragments = _opened(uri, number).get_fragments()
                    found |= {file.path for each in fragments for file in each.metadata.files}
    return frozenset(found)


def made(uri: str, schema: pa.Schema) -> Appendable:
    """Return a dataset, which is made without rows if it is missing; one process makes it, whoever tries.

    Raises:
        SourceError: Lance cannot keep such columns, or the dataset cannot be written.
    """
    import lance

    found = present(uri)
    if found is None:
        try:
            with storage(f"Lance dataset {uri}"):
                lance.write_dataset(no_rows(schema), uri, mode="create", storage_options=lance_options(uri))
        except SourceError:
            if present(uri) is None:  # nobody else made it
                raise
        found = present(uri)
    assert found is not None
    return found


def fragments_of(uri: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> list[Fragment]:
    """Write rows as fragments of a dataset that is there. Nobody sees them before `append_alone` adds them.

    Raises:
        SourceError: Lance refuses them, the dataset cannot be written, or ``batches`` raises.
    """
    from lance.fragment import write_fragments as write

    with storage(f"Lance dataset {uri}"):
        reader = pa.RecordBatchReader.from_batches(schema, iter(batches))
        written = write(reader, uri, schema, mode="append", storage_options=lance_options(uri))
    return [
        Fragment(each.physical_rows, sum(file.file_size_bytes or 0 for file in each.files), json.dumps(each.to_json()))
        for each in written
    ]


def made_anew(uri: str, schema: pa.Schema, older_than: timedelta) -> Appendable:
    """Return a dataset without rows, a new version of the one that is there; versions before it go when they are old enough.

    Args:
        uri: of the dataset.
        schema: of the new version.
        older_than: the age of versions that go.

    Raises:
        SourceError: Lance cannot keep such columns, or the dataset cannot be written.
    """
    import lance

    if present(uri) is None:
        return made(uri, schema)
    with storage(f"Lance dataset {uri}"):
        done = lance.write_dataset(no_rows(schema), uri, mode="overwrite", storage_options=lance_options(uri))
        done.cleanup_old_versions(older_than=older_than)
    found = present(uri)
    assert found is not None
    return found


def append(uri: str, described: Sequence[str], version: int) -> int:
    """Add fragments, whose files lie in the dataset already, after all others; returns the new version.

    Args:
        uri: of the dataset.
        described: the fragments, as `Appendable.placed` returns them.
        version: that was looked at. Lance goes on from a later one that only has more rows.

    Raises:
        SourceError: the dataset was changed in another way meanwhile, or cannot be written.
    """
    import lance
    from lance.fragment import FragmentMetadata

    with storage(f"Lance dataset {uri}"):
        operation = lance.LanceOperation.Append([FragmentMetadata.from_json(text) for text in described])
        found = lance.LanceDataset.commit(uri, operation, read_version=version, storage_options=lance_options(uri))
        return int(found.version)


def append_alone(uri: str, described: Sequence[str], version: int) -> int:
    """Add fragments as `append` does, but only if nobody added rows since ``version``; returns the new version.

    Lance lets appends pass each other, so two of them could add the same part. A *merge* names all fragments, the old
    ones too, and conflicts with whatever changed a fragment or added one. Without fragments, it makes a version that
    whatever began before conflicts with.

    Raises:
        SourceError: somebody added or changed rows since then, or the dataset cannot be written.
    """
    import lance
    from lance.fragment import FragmentMetadata

    with storage(f"Lance dataset {uri}"):
        there = _opened(uri, version)
        fragments = [each.metadata for each in there.get_fragments()]
        # an index may know numbers of fragments that were deleted, and would answer for new ones of these numbers
        segments = chain.from_iterable(each.segments for each in there.describe_indices())
        indexed = chain.from_iterable(each.fragment_ids for each in segments)
        last = max((-1, *(each.id for each in fragments), *indexed))
        new = [json.dumps({**json.loads(text), "id": last + 1 + k}) for k, text in enumerate(described)]
        operation = lance.LanceOperation.Merge(
            [*fragments, *map(FragmentMetadata.from_json, new)], there.lance_schema, preserves_nullability=True
        )
        done = lance.LanceDataset.commit(
            uri, operation, read_version=version, storage_options=lance_options(uri), max_retries=0
        )
        return int(done.version)


def _is_there(uri: str) -> bool:
    store, key = store_of(f"{uri}/_versions/")
    return next(iter(store.list(key)), None) is not None


def _opened(uri: str, version: int | None = None) -> Any:
    import lance

    return lance.dataset(uri, version=version, storage_options=lance_options(uri))


def _ids(fields: Any) -> list[int]:
    return [number for field in fields for number in (int(field.id()), *_ids(field.children()))]

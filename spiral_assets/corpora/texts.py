"""Collect this machine's text and write it as three relations: Lance datasets.

The columns are those of `text.fineweb_documents`, `text.wikipedia_documents` and `text.code_documents`. A relation is
sorted by path and cut into storage shards of equal row counts, so that a shard holds related documents, as in a crawl.
Collecting 2.5, 2.2 and 4 MB of text costs about 7 CPU s.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, final

import pyarrow as pa
import xxhash
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from spiral_assets.corpora import documents
from spiral_assets.corpora.documents import Document
from spiral_assets.corpora.text_quality import language, quality
from spiral_assets.corpora.writing import Record, write_lance

RECORD: Final = "texts.json"
COLLECTING_VERSION: Final = 1  # raise it when the same files give different rows
BYTES_PER_TOKEN: Final = 4  # for the estimate

_FIRST: Final = [("sample_id", pa.string()), ("text", pa.string()), ("lang", pa.string())]
_JUDGED: Final = [("quality_score", pa.float64()), ("token_count_estimate", pa.int32())]
_LAST: Final = [("source_uri", pa.string()), ("storage_shard", pa.string())]
SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    "fineweb": pa.schema([*_FIRST, *_JUDGED, ("url", pa.string()), *_LAST]),
    "wikipedia": pa.schema([*_FIRST, *_JUDGED, ("page_id", pa.string()), *_LAST]),
    "code": pa.schema(
        [*_FIRST, ("language", pa.string()), *_JUDGED, ("repository", pa.string()), ("license", pa.string()), *_LAST]
    ),
}
PREFIXES: Final[Mapping[str, str]] = {"fineweb": "fw", "wikipedia": "wp", "code": "cd"}  # of identities
SHARDS: Final[Mapping[str, int]] = {"fineweb": 6, "wikipedia": 4, "code": 5}


@final
@dataclass(frozen=True, slots=True)
class WrittenTexts:
    """What was written, and where; by stream: ``fineweb``, ``wikipedia``, ``code``."""

    uris: dict[str, str]  # Lance datasets
    documents: dict[str, int]
    text_bytes: dict[str, int]


def write_text_relations(root: Path, characters: int = 4_000_000, *, progress: bool = True) -> WrittenTexts:
    """Collect this machine's text under ``root``; an earlier result with the same settings is reused.

    Args:
        root: folder of its own; created if need be.
        characters: of each relation, about; from installed packages come what there are, if they are fewer.
        progress: show a bar.

    Raises:
        ValueError: no characters are asked for, or ``root`` holds something else.
    """
    if characters < 1:
        msg = f"write_text_relations: {characters} characters. Ask for at least 1; 4,000,000 make a small demo"
        raise ValueError(msg)
    root = Path(root).resolve()
    recipe = {"root": str(root), "characters": characters, "version": COLLECTING_VERSION}
    record = Record(root, RECORD, [f"{name}.lance" for name in SCHEMAS])
    found = record.found(recipe)
    if found is not None:
        return WrittenTexts(**found)
    record.begin()
    columns = [TextColumn("collecting {task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("KB")]
    written = WrittenTexts({}, {}, {})
    with Progress(*columns, disable=not progress) as bar:
        for name, collect in _COLLECTIONS.items():
            task = bar.add_task(name, total=characters // 1_000)
            table = _table(name, list(_counted(collect(characters), characters, bar, task)))
            path = root / f"{name}.lance"
            write_lance(path, SCHEMAS[name], _shards(table, SHARDS[name]))
            written.uris[name], written.documents[name] = str(path), len(table)
            written.text_bytes[name] = sum(len(text.encode()) for text in table["text"].to_pylist())
    record.finish(recipe, asdict(written))
    return written


def _packages(characters: int) -> Iterator[Document]:
    """All packages. They come in the order of their names, so a part of them would not be a fair sample."""
    del characters
    return documents.packages()


_COLLECTIONS: Final[Mapping[str, Callable[[int], Iterator[Document]]]] = {
    "fineweb": _packages,
    "wikipedia": lambda characters: documents.articles(characters // 2),  # docstrings are rarer than code
    "code": documents.sources,
}


def _counted(found: Iterator[Document], characters: int, bar: Progress, task: TaskID) -> Iterator[Document]:
    """Take documents until there are enough characters; show progress in thousands of characters."""
    seen = 0
    for each in found:
        yield each
        seen += len(each.text)
        bar.update(task, completed=seen // 1_000)
        if seen >= characters:
            break
    bar.update(task, total=seen // 1_000)


def _table(name: str, found: list[Document]) -> pa.Table:
    """Return a table of ``SCHEMAS[name]``, sorted by path. 0.2 CPU ms per document, nearly all for language and quality."""
    found = sorted(found, key=lambda each: each.path)
    count, texts = len(found), [each.text for each in found]
    shards = SHARDS[name]
    columns: dict[str, list[Any]] = {
        "sample_id": [f"{PREFIXES[name]}-{xxhash.xxh3_64_hexdigest(each.path.encode())}" for each in found],
        "text": texts,
        "lang": [language(text) for text in texts],
        "quality_score": [quality(text) for text in texts],
        "token_count_estimate": [len(text.encode()) // BYTES_PER_TOKEN for text in texts],
        "url": [each.origin for each in found],
        "page_id": [each.origin for each in found],
        "language": ["python"] * count,
        "repository": [each.origin for each in found],
        "license": [each.license for each in found],
        "source_uri": [f"file://{each.path.partition('#')[0]}" for each in found],
        "storage_shard": [f"part-{row * shards // count:04d}" for row in range(count)],
    }
    schema = SCHEMAS[name]
    return pa.table({column: columns[column] for column in schema.names}, schema=schema)


def _shards(table: pa.Table, shards: int) -> Iterator[pa.Table]:
    """Yield the rows of each storage shard."""
    borders = [-(-shard * len(table) // shards) for shard in range(shards + 1)]
    for first, last in pairwise(borders):
        if last > first:
            yield table.slice(first, last - first)

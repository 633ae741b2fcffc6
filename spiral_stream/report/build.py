"""Make the report of a relation: columns, samples, and how its labels and sources are spread over storage."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, final

from spiral_stream.arguments import door
from spiral_stream.catalog.names import suggestions
from spiral_stream.catalog.registry import AnyCatalog
from spiral_stream.catalog.relation.entry import STORAGE_SHARD, Entry
from spiral_stream.catalog.relation.manifest import UNKNOWN_BYTES
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.catalog.relation.source_facts import source_facts
from spiral_stream.catalog.shared.mirror import location_of
from spiral_stream.catalog.statistics.measure import KNOWN, Statistics, load_statistics
from spiral_stream.display import markup
from spiral_stream.display.markup import PAGE_BYTES, element
from spiral_stream.display.progress import working
from spiral_stream.display.wording import moment, size
from spiral_stream.errors import CatalogError, PlanError, shown
from spiral_stream.explain.shares import time_column
from spiral_stream.looking.contact_sheet import Sheet
from spiral_stream.prepared import PreparedStream, stages_of
from spiral_stream.report.charts import Form, Picture
from spiral_stream.report.columns import ColumnSummary, column_summaries, roles_of
from spiral_stream.report.samples import sample_rows, sample_sheet
from spiral_stream.report.skewed import Blocks, ColumnSkew, column_skew, default_blocks
from spiral_stream.sampling.orders.shard_aware import ShardAwareShuffle
from spiral_stream.semantic import semantic_of

_GUESSED: Final = 3  # columns whose skew is shown if none are named
_LABELS: Final = ("label", "class", "categor", "target")
_ORIGINS: Final = ("source", "creator", "author", "language", "lang", "domain", "license", "split")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """What a relation looks like at one data version; `html` is one page that needs no other file.

    Attributes:
        name: of the relation.
        data_version: 32 hex digits.
        rows: of the relation.
        shards: storage shards.
        bytes: of them, as far as the source says; None if it does not.
        kind: of the source.
        uri: where the rows lie; of imported ones, where they came from.
        imported: what importing them took; empty if they are read where they lie.
        registered_at: when this version was registered.
        columns: every column, with what was counted of it.
        is_measured: whether statistics were kept; without them columns have types alone, and there is no skew.
        samples: a few rows, as texts.
        sheet: images, clips and sounds of some samples; None if no column refers to any.
        skews: of labels and sources.
        notes: what could not be shown, and why.
        default_path: where `save` writes the page: beside the catalog.

    Examples:
        >>> report = spiral.report.report_relation(catalog, "texts", pictures=0)
        >>> report.html()[:15]
        '<!doctype html>'
    """

    name: str
    data_version: str
    rows: int
    shards: int
    bytes: int | None
    kind: str
    uri: str
    imported: str
    registered_at: datetime
    columns: tuple[ColumnSummary, ...]
    is_measured: bool
    samples: tuple[dict[str, str], ...]
    sheet: Sheet | None
    skews: tuple[ColumnSkew, ...]
    notes: tuple[str, ...]
    default_path: Path

    @property
    def snippet(self) -> str:
        """Python code that opens the relation.

        Examples:
            >>> len(spiral.report.report_relation(catalog, "texts", pictures=0).snippet) > 0
            True
        """
        root = location_of(self.default_path.parent.parent)
        lines = ("import spiral_stream as spiral", "", f"catalog = spiral.connect({root!r})")
        return "\n".join([*lines, f'rows = catalog.table("{self.name}")', ""])

    def facts(self) -> list[tuple[str, str]]:
        """Return what is said of the relation as a whole, each with its name.

        Examples:
            >>> report = spiral.report.report_relation(catalog, "texts", pictures=0)
            >>> dict(report.facts())["rows"]
            '40'
        """
        return [
            ("rows", f"{self.rows:,}"),
            ("storage shards", f"{self.shards:,}"),
            ("size", "unknown" if self.bytes is None else size(self.bytes)),
            ("lies in", self.uri),
            ("kind", f"{self.kind}; {self.imported}" if self.imported else self.kind),
            ("data version", self.data_version),
            ("registered", moment(str(self.registered_at.replace(microsecond=0)))),
        ]

    def pictures(self, form: Form = "svg") -> list[Picture]:
        """Draw the pictures of skew.

        Raises:
            MissingExtraError: matplotlib is not installed.

        Examples:
            >>> pictures = spiral.report.report_relation(catalog, "texts", pictures=0).pictures()
        """
        return [picture for each in self.skews for picture in each.pictures(form)]

    def html(self) -> str:
        """Return the report as one page of at most 16 MiB. Without matplotlib, a note is in the place of pictures of skew.

        Examples:
            >>> "texts" in spiral.report.report_relation(catalog, "texts", pictures=0).html()
            True
        """
        from spiral_stream.report.page import relation_parts

        parts = markup.bounded(relation_parts(self, PAGE_BYTES // 2), PAGE_BYTES - markup.PAPER_BYTES)
        return markup.page(self.name, element("h1", self.name), parts)

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the page, and return where it is.

        Args:
            path: of the file; None writes it beside the catalog, over that of an earlier version.

        Raises:
            CatalogError: it cannot be written.

        Examples:
            >>> spiral.report.report_relation(catalog, "texts", pictures=0).save("report.html").name
            'report.html'
        """
        return write_page(f"report of {self.name}", self.default_path if path is None else Path(path), self.html())


def write_page(what: str, file: Path, text: str) -> Path:
    """Write a page, at once over one that is there, and return where it is.

    Raises:
        CatalogError: it cannot be written.
    """
    draft = file.with_name(f".{os.getpid()}-{file.name}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        msg = f"{what}: {file}: {error.strerror or error}. Name another file"
        raise CatalogError(msg) from error
    return file


@door(PlanError)
def report_relation(
    catalog: AnyCatalog,
    name: str,
    *,
    labels: Sequence[str] | None = None,
    origins: Sequence[str] | None = None,
    along: str | None = None,
    stream: PreparedStream | None = None,
    block_size: int | None = None,
    samples: int = 5,
    pictures: int = 12,
) -> Report:
    """Report what a relation looks like, from the statistics that `Catalog.measure` has kept.

    Reads a few samples, and up to 65,536 rows of two columns where drift cannot be told from statistics.

    Args:
        catalog: where it is registered.
        name: of the relation.
        labels: columns of labels, whose skew is shown; None takes up to three that are called like one.
        origins: columns that say where rows come from; None takes up to three that are called like one.
        along: the column of ingest time, or another one that labels may drift along; None takes the one that is called like
            it, an empty name looks at none.
        stream: a stream of this relation, whose blocks are looked at; None looks at those of a `ShardAwareShuffle`.
        block_size: the ``shuffle_block_size`` without a stream; None is its default.
        samples: rows that are shown.
        pictures: rows whose images, clips and sounds are shown.

    Raises:
        CatalogError: the relation or a column is unknown; lists similar ones.
        SourceError: the relation cannot be read.

    Examples:
        >>> report = spiral.report.report_relation(catalog, "texts", pictures=0)
        >>> report.save("texts.html").exists()
        True
    """
    entry = catalog.entry(name)
    with working(f"report of {name}"), OpenRelation(entry) as relation:
        for column in (*(labels or ()), *(origins or ()), *([along] if along else [])):
            if column not in entry.schema.names:
                near = suggestions(column, entry.schema.names)
                msg = f"report of {name}: {shown(column)} is not a column; {near} Name one of them"
                raise CatalogError(msg)
        statistics = load_statistics(entry)
        notes = [] if statistics is not None else [f'nothing is counted yet. Run catalog.measure("{name}")']
        labels = _guessed(entry, statistics, _LABELS) if labels is None else labels
        origins = _guessed(entry, statistics, _ORIGINS, labels) if origins is None else origins
        blocks = default_blocks(relation, block_size) if stream is None else _blocks_of(stream, entry, notes)
        axis = time_column(entry.schema) if along is None else along or None
        skews = _skews(relation, statistics, [*labels, *origins], axis, blocks, notes) if statistics else []
        known, source = relation.manifest.shard_bytes, source_facts(entry)
        return Report(
            name=name,
            data_version=entry.data_version,
            rows=relation.manifest.total,
            shards=len(known),
            bytes=int(known.sum()) if len(known) and (known != UNKNOWN_BYTES).all() else None,
            kind=source.kind,
            uri=source.place,
            imported=str(source.imported or ""),
            registered_at=entry.registered_at,
            columns=tuple(column_summaries(entry, statistics, roles_of(entry, labels, origins))),
            is_measured=statistics is not None and len(statistics.columns) > 0,
            samples=tuple(sample_rows(relation, samples)),
            sheet=sample_sheet(relation, pictures) if pictures else None,
            skews=tuple(skews),
            notes=tuple(notes),
            default_path=entry.root / "reports" / f"{name}.html",
        )


def _skews(
    relation: OpenRelation,
    statistics: Statistics,
    columns: Sequence[str],
    time: str | None,
    blocks: Blocks | None,
    notes: list[str],
) -> list[ColumnSkew]:
    found = []
    for column in dict.fromkeys(columns):
        skew = column_skew(relation, statistics, column, time, blocks)
        if skew is None:
            notes.append(f"{column} has no histogram: it is no text or integer column of at most 10,000 values")
        else:
            found.append(skew)
    return found


def _guessed(
    entry: Entry, statistics: Statistics | None, words: Sequence[str], others: Sequence[str] = ()
) -> list[str]:
    """Columns with a histogram whose name holds one of some words, the most telling first."""
    marks = {} if statistics is None else statistics.marks
    hidden = {STORAGE_SHARD, *entry.identity, *others}
    able = [
        field.name
        for field in entry.schema
        if marks.get(field.name) == KNOWN and field.name not in hidden and semantic_of(field) is None
    ]
    if statistics is not None:  # a column that names rows is no label
        few = {row["column"] for row in statistics.columns.to_pylist() if 2 * (row["distinct"] or 0) <= row["rows"]}
        able = [name for name in able if name in few]
    guessed = [name for word in words for name in able if word in name.lower()]
    return list(dict.fromkeys(guessed))[:_GUESSED]


def _blocks_of(stream: PreparedStream, entry: Entry, notes: list[str]) -> Blocks | None:
    """The blocks of a stream's order of this relation."""
    stages = stages_of(stream)
    order = stages.order
    entry_stream = next((each for each in stages.streams if each.base.entry.name == entry.name), None)
    if entry_stream is None:
        msg = f"report of {entry.name}: the stream reads {', '.join(stream.data_versions)}. Name a stream of this relation"
        raise CatalogError(msg)
    if not isinstance(order, ShardAwareShuffle):
        notes.append(f"{type(order).__name__} does not shuffle in blocks of shards, so nothing is said of block sizes")
        return None
    names = tuple(entry_stream.base.manifest.shard_names.to_pylist())
    return Blocks(order, entry_stream.population, names, "of the stream")

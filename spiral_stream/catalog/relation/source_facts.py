"""A relation's source as people read it: its kind, where it lies, and what was copied of it."""

from dataclasses import dataclass
from typing import final

from spiral_stream.arguments import door
from spiral_stream.catalog.relation.entry import Entry
from spiral_stream.catalog.relation.pin import reference_columns
from spiral_stream.errors import CatalogError
from spiral_stream.sources.internal.imported import ImportedRows, ImportFacts


@final
@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What is known of the source of a registered relation without opening it.

    Examples:
        >>> facts = spiral.report.source_facts(catalog.entry("texts"))
        >>> facts.kind, facts.imported
        ('lance', None)
    """

    kind: str  # such as "parquet"
    place: str  # path, pattern or URI, as it was given
    referenced: tuple[str, ...]  # columns whose bytes stay where they lie
    imported: ImportFacts | None  # of rows that the catalog copied; None where rows are read in place

    def __str__(self) -> str:
        parts = [f"{self.kind} at {self.place}"]
        parts += [str(self.imported)] if self.imported is not None else []
        parts += [f"the bytes of {', '.join(self.referenced)} stay where they lie"] if self.referenced else []
        return "; ".join(parts)


@door(CatalogError)
def source_facts(entry: Entry) -> SourceFacts:
    """Describe the source of a relation.

    Raises:
        SourceError: what was noted of an import is missing or damaged.

    Examples:
        >>> spiral.report.source_facts(catalog.entry("photos")).kind
        'lance'
    """
    source = entry.source
    imported = source.facts() if isinstance(source, ImportedRows) else None
    said = source.of if isinstance(source, ImportedRows) else source
    return SourceFacts(said.KIND, said.place, tuple(reference_columns(entry.schema)), imported)

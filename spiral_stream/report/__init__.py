"""Pages of relations and catalogs for people.

Start at: `build`.
May not know: streams.

It is also the public namespace of reports and their parts: ``spiral.report.report_relation``.
"""

from typing import TYPE_CHECKING, Final

from spiral_stream.habits import door

if TYPE_CHECKING:
    from spiral_stream.catalog.relation.source_facts import SourceFacts, source_facts
    from spiral_stream.display.wording import written
    from spiral_stream.report.build import Report, report_relation
    from spiral_stream.report.charts import Picture, draw_bars, draw_curves
    from spiral_stream.report.columns import ColumnSummary
    from spiral_stream.report.skewed import ColumnSkew

__all__ = [
    "ColumnSkew",
    "ColumnSummary",
    "Picture",
    "Report",
    "SourceFacts",
    "draw_bars",
    "draw_curves",
    "report_relation",
    "source_facts",
    "written",
]

_LATE: Final = {
    "ColumnSkew": "spiral_stream.report.skewed",
    "ColumnSummary": "spiral_stream.report.columns",
    "Picture": "spiral_stream.report.charts",
    "Report": "spiral_stream.report.build",
    "SourceFacts": "spiral_stream.catalog.relation.source_facts",
    "draw_bars": "spiral_stream.report.charts",
    "draw_curves": "spiral_stream.report.charts",
    "report_relation": "spiral_stream.report.build",
    "source_facts": "spiral_stream.catalog.relation.source_facts",
    "written": "spiral_stream.display.wording",
}

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours
    __getattr__, __dir__ = door(__name__, _LATE)

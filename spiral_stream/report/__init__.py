"""Pages of relations and catalogs for people.

Start at: `build`.
May not know: streams.

It is also the public namespace of reports and their parts: ``spiral.report.report_relation``.
"""

from typing import TYPE_CHECKING

from spiral_stream.habits import door

if TYPE_CHECKING:  # the alias exports a name to type checkers
    from spiral_stream.catalog.relation.source_facts import SourceFacts as SourceFacts
    from spiral_stream.catalog.relation.source_facts import source_facts as source_facts
    from spiral_stream.display.wording import written as written
    from spiral_stream.report.build import Report as Report
    from spiral_stream.report.build import report_relation as report_relation
    from spiral_stream.report.charts import Picture as Picture
    from spiral_stream.report.charts import draw_bars as draw_bars
    from spiral_stream.report.charts import draw_curves as draw_curves
    from spiral_stream.report.columns import ColumnSummary as ColumnSummary
    from spiral_stream.report.run.card import RunCard as RunCard
    from spiral_stream.report.run.card import run_card as run_card
    from spiral_stream.report.run.spike_page import SpikeReport as SpikeReport
    from spiral_stream.report.run.spike_page import report_spikes as report_spikes
    from spiral_stream.report.skewed import ColumnSkew as ColumnSkew

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours
    __all__, __getattr__, __dir__ = door(
        __name__,
        {
            "catalog.relation.source_facts": ["SourceFacts", "source_facts"],
            "display.wording": ["written"],
            "report.build": ["Report", "report_relation"],
            "report.charts": ["Picture", "draw_bars", "draw_curves"],
            "report.columns": ["ColumnSummary"],
            "report.run.card": ["RunCard", "run_card"],
            "report.run.spike_page": ["SpikeReport", "report_spikes"],
            "report.skewed": ["ColumnSkew"],
        },
    )

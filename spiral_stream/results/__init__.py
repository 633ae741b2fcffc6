"""The public namespace of what methods return: ``spiral.results.Statistics``.

Start at: `../connection`.
May not know: anything of its own; its names live where they are made.
"""

from typing import TYPE_CHECKING

from spiral_stream.habits import door

if TYPE_CHECKING:  # the alias exports a name to type checkers
    from spiral_stream.catalog.relation.entry import Changes as Changes
    from spiral_stream.catalog.relation.entry import Entry as Entry
    from spiral_stream.catalog.statistics.drift import Concentration as Concentration
    from spiral_stream.catalog.statistics.drift import Drift as Drift
    from spiral_stream.catalog.statistics.measure import Statistics as Statistics
    from spiral_stream.catalog.statistics.skew import Skew as Skew
    from spiral_stream.catalog.tokenizers import TokenizerEntry as TokenizerEntry
    from spiral_stream.catalog.verify import Difference as Difference
    from spiral_stream.catalog.verify import Verified as Verified
    from spiral_stream.display.progress import Progress as Progress
    from spiral_stream.explain import Explanation as Explanation
    from spiral_stream.looking.contact_sheet import Sheet as Sheet
    from spiral_stream.plan.column_sources import ColumnSources as ColumnSources
    from spiral_stream.planner.prepared_data.build import CacheStatus as CacheStatus
    from spiral_stream.planner.prepared_data.retention import PreparedData as PreparedData
    from spiral_stream.planner.prepared_data.verify import Checked as Checked
    from spiral_stream.planner.prepared_data.verify import Verification as Verification
    from spiral_stream.report.nearest import VectorIndex as VectorIndex
    from spiral_stream.row_verbs import Grouped as Grouped
    from spiral_stream.runs.difference import PartingBatch as PartingBatch
    from spiral_stream.runs.difference import RunDifference as RunDifference
    from spiral_stream.runs.difference import SourceDifference as SourceDifference
    from spiral_stream.runs.forget import Checkpoint as Checkpoint
    from spiral_stream.runs.forget import FirstMet as FirstMet
    from spiral_stream.runs.forget import Forgetting as Forgetting
    from spiral_stream.runs.history import Attempt as Attempt
    from spiral_stream.runs.history import RunChange as RunChange
    from spiral_stream.runs.leg import Leg as Leg
    from spiral_stream.runs.losses.figures import RunFigure as RunFigure
    from spiral_stream.runs.losses.outliers import Outliers as Outliers
    from spiral_stream.runs.losses.spikes import Spike as Spike
    from spiral_stream.runs.losses.spikes import Spikes as Spikes
    from spiral_stream.runs.losses.way_out import Skip as Skip
    from spiral_stream.runs.losses.way_out import Without as Without
    from spiral_stream.runs.manifest import SeenManifest as SeenManifest
    from spiral_stream.runs.run import RecordedRun as RecordedRun
    from spiral_stream.runs.seen import SeenSamples as SeenSamples
    from spiral_stream.runs.seen import StreamSeen as StreamSeen
    from spiral_stream.runtime.numbering.random_access import OrderedRows as OrderedRows

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours
    __all__, __getattr__, __dir__ = door(
        __name__,
        {
            "catalog.relation.entry": ["Changes", "Entry"],
            "catalog.statistics.drift": ["Concentration", "Drift"],
            "catalog.statistics.measure": ["Statistics"],
            "catalog.statistics.skew": ["Skew"],
            "catalog.tokenizers": ["TokenizerEntry"],
            "catalog.verify": ["Difference", "Verified"],
            "display.progress": ["Progress"],
            "explain": ["Explanation"],
            "looking.contact_sheet": ["Sheet"],
            "plan.column_sources": ["ColumnSources"],
            "planner.prepared_data.build": ["CacheStatus"],
            "planner.prepared_data.retention": ["PreparedData"],
            "planner.prepared_data.verify": ["Checked", "Verification"],
            "report.nearest": ["VectorIndex"],
            "row_verbs": ["Grouped"],
            "runs.difference": ["PartingBatch", "RunDifference", "SourceDifference"],
            "runs.forget": ["Checkpoint", "FirstMet", "Forgetting"],
            "runs.history": ["Attempt", "RunChange"],
            "runs.leg": ["Leg"],
            "runs.losses.figures": ["RunFigure"],
            "runs.losses.outliers": ["Outliers"],
            "runs.losses.spikes": ["Spike", "Spikes"],
            "runs.losses.way_out": ["Skip", "Without"],
            "runs.manifest": ["SeenManifest"],
            "runs.run": ["RecordedRun"],
            "runs.seen": ["SeenSamples", "StreamSeen"],
            "runtime.numbering.random_access": ["OrderedRows"],
        },
    )

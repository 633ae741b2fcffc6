"""The public namespace of what methods return: ``spiral.results.Statistics``.

Start at: `../connection`.
May not know: anything of its own; its names live where they are made.
"""

from typing import TYPE_CHECKING, Final

from spiral_stream.habits import door

if TYPE_CHECKING:
    from spiral_stream.catalog.relation.entry import Changes, Entry
    from spiral_stream.catalog.statistics.drift import Concentration, Drift
    from spiral_stream.catalog.statistics.measure import Statistics
    from spiral_stream.catalog.statistics.skew import Skew
    from spiral_stream.catalog.tokenizers import TokenizerEntry
    from spiral_stream.catalog.verify import Difference, Verified
    from spiral_stream.display.progress import Progress
    from spiral_stream.explain import Explanation
    from spiral_stream.looking.contact_sheet import Sheet
    from spiral_stream.planner.prepared_data.build import CacheStatus
    from spiral_stream.planner.prepared_data.retention import PreparedData
    from spiral_stream.planner.prepared_data.verify import Checked, Verification
    from spiral_stream.row_verbs import Grouped
    from spiral_stream.runtime.numbering.random_access import OrderedRows

__all__ = [
    "CacheStatus",
    "Changes",
    "Checked",
    "Concentration",
    "Difference",
    "Drift",
    "Entry",
    "Explanation",
    "Grouped",
    "OrderedRows",
    "PreparedData",
    "Progress",
    "Sheet",
    "Skew",
    "Statistics",
    "TokenizerEntry",
    "Verification",
    "Verified",
]

_LATE: Final = {
    "CacheStatus": "spiral_stream.planner.prepared_data.build",
    "Changes": "spiral_stream.catalog.relation.entry",
    "Checked": "spiral_stream.planner.prepared_data.verify",
    "Concentration": "spiral_stream.catalog.statistics.drift",
    "Difference": "spiral_stream.catalog.verify",
    "Drift": "spiral_stream.catalog.statistics.drift",
    "Entry": "spiral_stream.catalog.relation.entry",
    "Explanation": "spiral_stream.explain",
    "Grouped": "spiral_stream.row_verbs",
    "OrderedRows": "spiral_stream.runtime.numbering.random_access",
    "PreparedData": "spiral_stream.planner.prepared_data.retention",
    "Progress": "spiral_stream.display.progress",
    "Sheet": "spiral_stream.looking.contact_sheet",
    "Skew": "spiral_stream.catalog.statistics.skew",
    "Statistics": "spiral_stream.catalog.statistics.measure",
    "TokenizerEntry": "spiral_stream.catalog.tokenizers",
    "Verification": "spiral_stream.planner.prepared_data.verify",
    "Verified": "spiral_stream.catalog.verify",
}

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours
    __getattr__, __dir__ = door(__name__, _LATE)

"""What removal does where prepared data lies on a store: copies of this machine go, and the store keeps what it has."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from spiral_stream.catalog.registry import Registry
from spiral_stream.derived.share.share import share_of
from spiral_stream.errors import warn
from spiral_stream.planner.prepared_data.folder import cache_root
from spiral_stream.planner.prepared_data.retention import PreparedData, prepared_data
from spiral_stream.planner.prepared_data.usage import ReadPlan

_OF_STORE: Final = frozenset(("caches", "derived"))  # folders that machines share


def looked_over(
    catalog: Registry, plans: Callable[[Path], tuple[Registry, ReadPlan]], *, remove_dead: bool, older_than: timedelta
) -> list[PreparedData]:
    """Return `prepared_data`; of what was removed and lies on a store, say that the store keeps it, and warn once."""
    found = prepared_data(catalog, plans, remove_dead=remove_dead, older_than=older_than)
    root = cache_root(catalog)
    share, out = share_of(root), list(found)
    if share is None:
        return out
    for at, each in enumerate(out):
        if each.removed_bytes and each.path.is_relative_to(root) and each.path.relative_to(root).parts[0] in _OF_STORE:
            out[at] = replace(each, note=f"removed from this machine; {share.shown} keeps it")
    kept = sum(one is not other for one, other in zip(found, out, strict=True))
    if kept:
        msg = (
            f"caches: {kept:,} entries were removed from this machine only. {share.shown} keeps them: no machine knows what "
            "the others use. To tidy up, copy what you need to another prefix (spiral copy), let all machines use that one, "
            "and delete the old one"
        )
        warn(msg)
    return out

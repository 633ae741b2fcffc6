"""What checks find in a relation's statistics and in its import, and the advice that applies. None of it blocks."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from spiral_assets.facts import reports

if TYPE_CHECKING:
    import spiral_stream as spiral

_NAMED: Final = 3  # findings in a description
_UNMEASURED = "no statistics yet; materialize shard_stats"


def warned(*, passed: bool, description: str, metadata: dict[str, Any] | None = None) -> dg.AssetCheckResult:
    """Return a result that warns where it does not pass."""
    return dg.AssetCheckResult(
        passed=passed, severity=dg.AssetCheckSeverity.WARN, description=description, metadata=metadata or {}
    )


def missing(catalog: "spiral.Catalog", relation: str, limit: float, limits: Mapping[str, float]) -> dg.AssetCheckResult:
    """Compare nulls and NaN of each column with its limit."""
    import spiral_stream as spiral

    report = spiral.report.report_relation(catalog, relation, labels=(), origins=(), along="", samples=0, pictures=0)
    if not report.is_measured:
        return warned(passed=False, description=_UNMEASURED)
    unknown = sorted(set(limits) - {each.name for each in report.columns})
    if unknown:
        msg = f"missing values of {relation}: {unknown[0]!r} is not a column. Correct the check's limits"
        raise dg.Failure(msg, allow_retries=False)
    rows = []
    for each in report.columns:
        if each.nulls is None or not each.rows:
            continue
        allowed = limits.get(each.name, limit)
        shares = {"null": each.nulls / each.rows, "NaN": (each.nans or 0) / each.rows}
        rows += [
            {"column": each.name, "what": what, "share": share, "limit": allowed}
            for what, share in shares.items()
            if share > allowed
        ]
    texts = [f"{row['share']:.1%} of {row['column']} are {row['what']} (limit {row['limit']:.1%})" for row in rows]
    return warned(
        passed=not rows,
        description=_few(texts) or f"{len(report.columns)} columns are within their limits",
        metadata={"above_limit": reports.table(rows)},
    )


def _few(texts: Sequence[str]) -> str:
    """The first of some findings, and how many more there are."""
    more = [f"and {len(texts) - _NAMED:,} more"] if len(texts) > _NAMED else []
    return "; ".join([*texts[:_NAMED], *more])


def mixed(catalog: "spiral.Catalog", relation: str, column: str, limit: float) -> dg.AssetCheckResult:
    """Compare the shard farthest from the whole with a limit; above it, say what to do."""
    import spiral_stream as spiral

    report = spiral.report.report_relation(
        catalog, relation, labels=[column], origins=(), along="", samples=0, pictures=0
    )
    if not report.skews:
        return warned(passed=False, description="; ".join(report.notes) or _UNMEASURED)
    (found,) = report.skews
    (shard, worst), *_ = found.skew.worst(1)
    text = f"{column}: distance of {shard} is {worst:.2f} (0: same mix as the whole relation, 1: nothing in common)"
    return warned(
        passed=worst <= limit,
        description=text if worst <= limit else f"{text}. {found.advice()}",
        metadata={
            "worst": round(worst, 4),
            "mean": round(found.skew.mean, 4),
            "by_chance": round(found.by_chance, 4),
            "limit": limit,
            "one_value_per_shard": found.is_one_value_per_shard,
            "worst_shards": reports.table(found.worst_rows(), cut=False),
        },
    )


def refused(catalog: "spiral.Catalog", relation: str, limit: float) -> dg.AssetCheckResult:
    """Compare the rows that an import could not read with a limit."""
    source: Any = catalog.entry(relation).source
    facts = getattr(source, "facts", None)
    if facts is None:
        return warned(passed=True, description=f"{relation} is read where it lies; nothing was imported")
    found = facts()
    total = found.rows + found.refused
    share = found.refused / total if total else 0.0
    text = f"{found.refused:,} of {total:,} rows could not be read"
    return warned(
        passed=share <= limit,
        description=f"{text}: {found.examples[0]}" if found.examples else text,
        metadata={
            "refused": found.refused,
            "share": round(share, 6),
            "limit": limit,
            "examples": reports.table([{"row": each} for each in found.examples]),
        },
    )

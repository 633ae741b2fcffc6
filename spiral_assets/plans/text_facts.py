"""Document lengths in tokens, and how many documents exceed the budget of a batch."""

from typing import TYPE_CHECKING, Any, Final

from spiral_assets import pages
from spiral_assets.facts import reports
from spiral_assets.plans import text as plans

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    import spiral_stream as spiral

LARGEST_POWER: Final = 16  # of the histogram: its last bar counts documents of 2**16 tokens and more


def token_lengths(catalog: "spiral.Catalog") -> tuple[str, dict[str, Any]]:
    """Return the data version of the relations, and tokens per document by stream."""
    import numpy as np

    lengths, rows, versions = {}, [], []
    for stream, relation in plans.RELATIONS.items():
        lengths[stream], version = _lengths(catalog, stream)
        empty = catalog.table(relation).filter(_is_empty()).aggregate(rows=("sample_id", "count"))
        rows.append(_facts(stream, lengths[stream], empty.to_arrow()["rows"][0].as_py()))
        versions.append(version)
    every = np.concatenate(list(lengths.values()))
    for row in rows:
        row["share of tokens"] = f"{row['tokens'] / every.sum():.1%} (mixed {plans.PROPORTIONS[row['stream']]:.0%})"
    return ":".join(versions), {
        "dagster/row_count": len(every),
        "tokens": int(every.sum()),
        "streams": reports.table(rows),
        "lengths": reports.table(_quantiles(lengths)),
        "documents_by_length": _histogram("all", every, pages.SMALL),
        **{f"{stream}_by_length": _histogram(stream, found) for stream, found in lengths.items()},
        "above_budget": int((every > plans.BUDGET).sum()),
        "empty": sum(row["empty"] for row in rows),
    }


def _lengths(catalog: "spiral.Catalog", stream: str) -> "tuple[NDArray[np.int64], str]":
    """Return the tokens of each document of a stream's relation, and the relation's data version."""
    import numpy as np

    with plans.cache_plan(catalog, stream).to_numpy() as batches:
        found = [batch["length"].copy() for batch in batches]
        version = batches.data_versions[plans.RELATIONS[stream]]
    return np.concatenate([np.empty(0, dtype=np.int64), *found]), version


def _is_empty() -> Any:
    import spiral_stream as spiral

    return spiral.col(plans.COLUMN) == ""


def _facts(stream: str, lengths: "NDArray[np.int64]", empty: int) -> dict[str, Any]:
    return {
        "stream": stream,
        "documents": len(lengths),
        "tokens": int(lengths.sum()),
        "above budget": int((lengths > plans.BUDGET).sum()),
        "empty": empty,
    }


def _quantiles(lengths: "dict[str, NDArray[np.int64]]") -> list[dict[str, Any]]:
    import numpy as np

    shares = {"least": 0.0, "median": 0.5, "90 %": 0.9, "99 %": 0.99, "most": 1.0}
    return [
        {"stream": stream, **{name: int(np.quantile(found, share)) for name, share in shares.items()}}
        for stream, found in lengths.items()
        if len(found)
    ]


def _histogram(stream: str, lengths: "NDArray[np.int64]", width: int = pages.LARGE) -> "spiral.report.Picture":
    """Draw documents by the power of two at or below their length; empty ones count in the first bar."""
    import numpy as np

    import spiral_stream as spiral

    powers = np.minimum(np.log2(np.maximum(lengths, 1)).astype(np.int64), LARGEST_POWER)
    counts = np.bincount(powers, minlength=LARGEST_POWER + 1).tolist()
    names = [f"{2**power:,}" for power in range(LARGEST_POWER)] + [f"{2**LARGEST_POWER:,} +"]
    return spiral.report.draw_bars(
        f"{stream}_by_length",
        f"{len(lengths):,} documents of {stream} by length",
        list(zip(names, counts, strict=True)),
        across="tokens, from this number to the next",
        up="documents",
        width=width,
    )

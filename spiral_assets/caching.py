"""Build caches from an asset, report progress, and check that they are complete."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import dagster as dg

from spiral_assets.facts import lineage, reports

if TYPE_CHECKING:
    import spiral_stream as spiral

EVERY_S: Final = 2.0  # between two lines of progress in the log
EVENT_EVERY_S: Final = 20.0  # between two observations, which the asset's page shows
EXECUTORS: Final = ("threads", "processes", "ray")
TRUSTED: Final = ("spiral_assets.plans",)  # modules whose functions the demo's saved plans name


def build(
    context: dg.AssetExecutionContext,
    catalog: "spiral.Catalog",
    stream: "spiral.PreparedStream",
    metadata: Callable[["spiral.results.CacheStatus"], Mapping[str, Any]],
    *,
    executor: str = "threads",
    workers: int | None = None,
) -> dg.MaterializeResult[None]:
    """Build what is missing of a plan's caches, shard by shard; continue after the last whole shard of an interrupted build.

    Args:
        context: the asset's, for progress.
        catalog: of the stream; says which bytes on disk are in use.
        stream: reads every row that the caches should hold.
        metadata: returns more metadata of each cache.
        executor: ``threads``, ``processes`` of this machine, or ``ray``.
        workers: how many work at a time; None is the executor's default.

    Raises:
        Failure: the plan has no cache.
    """
    begun = time.monotonic()
    before = need_caches(stream)
    done = stream.materialize(ReportedProgress.of(context, before), workers=workers, executor=executor)
    figures = BuildFigures(done.rows, done.refused, done.shards, time.monotonic() - begun)
    return built(context, catalog, stream, metadata, figures, executor)


def need_caches(stream: "spiral.PreparedStream") -> "list[spiral.results.CacheStatus]":
    """Return the caches of a plan.

    Args:
        stream: of the plan.

    Raises:
        Failure: it has none.
    """
    found = stream.caches()
    if not found:
        msg = "the plan has nothing to cache. Give a column a form with relation.cache(...), or map text to tokens"
        raise dg.Failure(msg, allow_retries=False)
    return found


@final
@dataclass(frozen=True)
class BuildFigures:
    """What a build did.

    Attributes:
        rows: that it built.
        refused: rows that it could not read.
        shards: that it finished.
        seconds: that it took.
    """

    rows: int
    refused: int
    shards: int
    seconds: float


def built(
    context: dg.AssetExecutionContext,
    catalog: "spiral.Catalog",
    stream: "spiral.PreparedStream",
    metadata: Callable[["spiral.results.CacheStatus"], Mapping[str, Any]],
    figures: BuildFigures,
    executor: str,
) -> dg.MaterializeResult[None]:
    """Return what the page of a cache says after a build, wherever that was.

    Args:
        context: the asset's.
        catalog: of the stream.
        stream: of the plan.
        metadata: returns more metadata of each cache.
        figures: of the build.
        executor: that built it.
    """
    caches = stream.caches()
    first = caches[0]
    return dg.MaterializeResult(
        data_version=data_version(caches, stream.data_versions),
        metadata={
            "dagster/row_count": stream.rows if len(caches) == 1 else sum(cache.rows for cache in caches),
            "dagster/uri": str(first.folder),
            "dagster/table_name": ", ".join(dict.fromkeys(f"{cache.relation}.{cache.column}" for cache in caches)),
            **lineage.of_caches(context, stream),
            **{name: value for cache in caches for name, value in metadata(cache).items()},
            "rows_built": figures.rows,
            "rows_refused": figures.refused,
            "shards_built": figures.shards,
            "bytes": sum(cache.payload_bytes for cache in caches),
            **on_disk(catalog, caches),
            "rows_per_second": round(figures.rows / max(figures.seconds, 1e-9), 1),
            "seconds": round(figures.seconds, 2),
            "built_by": executor,
            "fingerprint": ":".join(cache.fingerprint for cache in caches),
        },
    )


def on_disk(catalog: "spiral.Catalog", caches: "list[spiral.results.CacheStatus]") -> dict[str, int]:
    """Return the bytes of caches on disk: all, those in use, and those that nobody can use, such as of shards that changed.

    Args:
        catalog: whose caches they are.
        caches: from `spiral_stream.PreparedStream.caches`.
    """
    folders = {cache.folder for cache in caches}
    found = [each for each in catalog.caches(trust=TRUSTED) if each.path in folders]
    return {
        reports.SIZE: sum(each.bytes for each in found),
        "live_bytes": sum(each.live_bytes for each in found),
        "dead_bytes": sum(each.dead_bytes for each in found),
    }


def data_version(caches: "list[spiral.results.CacheStatus]", relations: Mapping[str, str]) -> dg.DataVersion:
    """Return the data version of built caches: their fingerprints and their relations' data versions.

    Args:
        caches: their state; of a token cache, the fingerprint covers the tokenizer's content.
        relations: name -> data version of the relations that the plan reads.
    """
    versions = [version for _, version in sorted(relations.items())]
    return dg.DataVersion(":".join([*(cache.fingerprint for cache in caches), *versions]))


def complete(stream: "spiral.PreparedStream") -> dg.AssetCheckResult:
    """Check that the stream's caches hold every row of its relations as they are registered now."""
    caches = stream.caches()
    built, rows = (sum(getattr(cache, name) for cache in caches) for name in ("built", "rows"))
    return dg.AssetCheckResult(
        passed=bool(caches) and all(cache.complete for cache in caches),
        description=f"{built:,} of {rows:,} rows are cached",
        metadata={"cached": built, "rows": rows},
    )


@final
class ProgressLine:
    """How far a build is, in words and figures.

    Figures count everything that the caches should hold, also what was built before; rate and time left are those of this build.

    Args:
        before: the caches as they were when the build began.
    """

    def __init__(self, before: "Sequence[spiral.results.CacheStatus]" = ()) -> None:
        self._rows = sum(cache.rows for cache in before)
        self._begun = time.monotonic()

    def of(self, done: "spiral.results.Progress") -> tuple[str, dict[str, float]]:
        """Return a line of text, and metadata.

        Args:
            done: so far.
        """
        rate = done.rows / max(time.monotonic() - self._begun, 1e-9)
        left = (done.rows_total - done.rows) / max(rate, 1e-9)
        total = max(self._rows, done.rows_total)
        rows = total - done.rows_total + done.rows
        line = f"{rows:,}/{total:,} rows, {done.shards}/{done.shards_total} shards"
        facts = {
            "rows": rows,
            "rows_total": total,
            "bytes": done.payload_bytes,
            "rows_per_second": round(rate, 1),
            "seconds_left": round(left),
        }
        return f"{line} to do, {rate:,.0f} rows/s, ETA {left:,.0f} s", facts


class ReportedProgress:
    """Report progress: a log line every few seconds, and an observation of the asset less often. Dagster has no progress bar.

    Args:
        say: writes a line to the log.
        observe: reports facts of the asset.
        before: the caches as they were when the build began.
    """

    def __init__(
        self,
        say: Callable[[str], object],
        observe: Callable[[dict[str, Any]], object],
        before: "Sequence[spiral.results.CacheStatus]" = (),
    ) -> None:
        self._say, self._observe, self._line = say, observe, ProgressLine(before)
        self._last = self._last_event = time.monotonic()

    @classmethod
    def of(
        cls, context: dg.AssetExecutionContext, before: "Sequence[spiral.results.CacheStatus]" = ()
    ) -> "ReportedProgress":
        """Report through the context of an asset."""

        def observe(facts: dict[str, Any]) -> None:
            context.log_event(dg.AssetObservation(context.asset_key, metadata=facts))

        return cls(context.log.info, observe, before)

    def __call__(self, done: "spiral.results.Progress") -> None:
        now = time.monotonic()
        if now - self._last < EVERY_S and done.rows < done.rows_total:
            return
        self._last = now
        line, facts = self._line.of(done)
        self._say(line)
        if now - self._last_event >= EVENT_EVERY_S:
            self._last_event = now
            self._observe(facts)

"""The table of a run: what its trained branch recorded, with the identities of its samples, as a registered relation.

The parts of a branch become the rows of a Lance dataset beside them, part by part: each attempt up to the place where the next
one left it, each batch once. Identities, storage shards and rows of the source are joined from the version that the batch was
read from. New parts are appended; where another branch is the trained one, the dataset is written anew. It can be made again
from the parts at any time.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.catalog.lock import locked
from spiral_stream.catalog.registering.declaration import Declaration
from spiral_stream.catalog.registry import Registry
from spiral_stream.catalog.relation.entry import Entry
from spiral_stream.display.progress import Report, working
from spiral_stream.errors import RunError, SpiralError
from spiral_stream.integrity.publish import take_out, write_file
from spiral_stream.integrity.seal import read_json, sealed_json
from spiral_stream.plan.verbs.mix import STREAM_ID
from spiral_stream.planner.columns.payload import base_payload
from spiral_stream.planner.stages import Stages
from spiral_stream.runs.files import RunFiles, rank_of
from spiral_stream.runs.history import Attempt, History, Mark
from spiral_stream.runs.opened_leg import OpenedLeg, OpenedLegs
from spiral_stream.runs.records.part_rows import SUM, TOKENS
from spiral_stream.runs.records.values import RESERVED
from spiral_stream.runtime.columns.error_sample import identity_table
from spiral_stream.runtime.columns.samples import Samples
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.sources.lance.fragments import append_batches
from spiral_stream.sources.lance.source import Lance

RUNS: Final = "runs."
DATASET: Final = "table.lance"
IDENTITY: Final = ("attempt", "rank", "leg", "epoch", "batch", "index")
_BUILT: Final = "table.json"
_COLUMNS: Final = {
    "stream": pa.utf8(), "shard": pa.int32(), "row": pa.int64(), "part": pa.int32(), "attempt": pa.utf8(), "leg": pa.int32(),
    "rank": pa.int32(), "step": pa.int64(), "epoch": pa.int32(), "batch": pa.int64(), "index": pa.int32(), "applied": pa.bool_(),
}  # fmt: skip
_DESCRIBED: Final = {
    "stream": "the stream of a mixture, or the relation",
    "shard": "storage shard of the source's row",
    "row": "row of the source, in the version that was read",
    "part": "which part of its row the sample is; 0 unless a map makes several",
    "attempt": "the start of the training that delivered it",
    "leg": "batches of the attempt in a row, without a change between them",
    "rank": "the process that logged it",
    "step": "step of the run, over epochs and attempts",
    "batch": "number of the global batch, as stream.ledger takes it",
    "index": "place of the sample in its batch",
    "applied": "whether the step was taken",
}
RENAMED: Final = "sample_"  # before an identity column that has the name of one of ours

# S samples of a part


@final
@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a branch, and where the next attempt leaves its attempt."""

    name: str
    attempt: str
    cut: Mark | None

    def to_json(self) -> list[Any]:
        return [self.name, self.attempt, None if self.cut is None else self.cut.to_json()]


@final
class RunTable:
    """Makes the table of a run.

    Args:
        catalog: that has the run.
        files: of the run.
        history: of the run, as it is now.
        legs: opens the plans that its batches were read by.
    """

    def __init__(self, catalog: Registry, files: RunFiles, history: History, legs: OpenedLegs) -> None:
        self._catalog, self._files, self._history, self._legs = catalog, files, history, legs
        self._opened: dict[tuple[str, int, int], OpenedLeg] = {}

    def registered(self, attempt: str | None = None, report: Report | None = None) -> Entry:
        """Bring the table up to date, and return the relation.

        Args:
            attempt: whose branch; None takes the newest, which is the trained one.
            report: called with the parts done and the parts in total; None shows a bar on a terminal.

        Raises:
            RunError: nothing was recorded, or a part is damaged.
        """
        name = RUNS + self._files.name + ("" if attempt is None else f".{attempt}")
        folder = self._files.folder / (DATASET if attempt is None else f"{attempt}.lance")
        with locked(self._files.folder / ".table-lock", f"run {self._files.name!r}"):
            changed = self._bring_up_to_date(folder, attempt, report)
            known = name in self._catalog.relations.names()
            if known and not changed:
                return self._catalog.relations.entry(name)
            declared = Declaration(IDENTITY, None, {}, _DESCRIBED, unique=False)
            return self._catalog.registration.register(name, Lance(str(folder)), declared, replace=known)

    def _bring_up_to_date(self, folder: Path, attempt: str | None, report: Report | None) -> bool:
        """Write what the dataset lacks; whether there was any."""
        parts = [
            _Part(name, each.name, cut)
            for each, cut in self._history.branch(attempt)
            for name in self._files.parts(each.name)
        ]
        if not parts:
            msg = f"run {self._files.name!r} has recorded nothing yet. Call run.log(batch=batch, loss=...), and run.flush()"
            raise RunError(msg)
        wanted, built = [each.to_json() for each in parts], self._built(folder)
        if folder.exists() and built.get("parts") == wanted:
            return False  # without opening a plan
        schema = self._schema(parts)
        same = bool(built) and built["columns"] == schema.names and folder.exists()
        done = len(built["parts"]) if same and wanted[: len(built["parts"])] == built["parts"] else 0
        if not done:
            take_out(folder)
        with working(f"run {self._files.name}", "parts", report=report) as tell:
            rows = self._rows(parts, done, schema, tell)
            append_batches(folder, rows, schema)
        write_file(self._built_file(folder), sealed_json({"columns": schema.names, "parts": wanted}))
        return True

    def _built_file(self, folder: Path) -> Path:
        return folder.with_suffix(".json")

    def _built(self, folder: Path) -> dict[str, Any]:
        with suppress(SpiralError, OSError, KeyError):
            return read_json(self._built_file(folder))
        return {}

    # ---- columns

    def _schema(self, parts: Sequence[_Part]) -> pa.Schema:
        """The columns of the table: identities, places, values."""
        identity: dict[str, pa.DataType] = {}
        for change in (change for each, _ in self._history.branch(parts[-1].attempt) for change in each.changes[:1]):
            for name, kind in self._identity_types(self._open(change_of=change.attempt)).items():
                identity[name] = kind if identity.get(name, kind) == kind else pa.utf8()
        values: dict[str, pa.DataType] = {}
        for part in parts:
            values |= {each.name: each.type for each in self._files.read_schema(part.name) if each.name not in RESERVED}
        shown: dict[str, pa.DataType] = {}
        for name, kind in values.items():
            if name.endswith(SUM):
                shown[name[: -len(SUM)]] = pa.float32()
            shown[name] = kind
        return pa.schema({**identity, **_COLUMNS, **shown})

    def _identity_types(self, leg: OpenedLeg) -> dict[str, pa.DataType]:
        none = np.empty(0, dtype=np.int64)
        table = self._identity(leg, np.empty(0, np.int32), none.astype(np.uint64), none)
        return {each.name: each.type for each in table.schema}

    def _identity(
        self, leg: OpenedLeg, streams: NDArray[np.int32], rows: NDArray[np.uint64], parts: NDArray[np.int64]
    ) -> pa.Table:
        """The identity columns of samples, by the names that they have here."""
        samples = Samples(StreamRows(streams, rows, np.zeros(len(rows), np.uint64)), parts, np.arange(len(rows)))
        leg.opened.reader.need_identity(leg.epoch, samples)
        table = identity_table(leg.stages, samples)
        if STREAM_ID in table.column_names and leg.stages.mixed:
            table = table.drop_columns([STREAM_ID])
        return table.rename_columns([RENAMED + name if name in RESERVED else name for name in table.column_names])

    # ---- rows

    def _rows(self, parts: Sequence[_Part], done: int, schema: pa.Schema, report: Report) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the parts from one on; batches of earlier parts are left out."""
        had: dict[tuple[str, int, int], NDArray[np.int64]] = {}
        for at, part in enumerate(parts):
            table = _up_to(self._files.read(part.name), part.cut)
            table = table.filter(_new_batches(part.attempt, table, had))
            if at >= done and len(table):
                yield from self._joined(part, table, schema).to_batches()
            report(at + 1, len(parts))

    def _joined(self, part: _Part, table: pa.Table, schema: pa.Schema) -> pa.Table:
        legs, epochs = table["leg"].to_numpy(), table["epoch"].to_numpy()
        borders = np.flatnonzero(np.diff(legs) | np.diff(epochs)) + 1
        pieces = [
            self._of_leg(part, table.slice(a, b - a), schema)
            for a, b in zip([0, *borders.tolist()], [*borders.tolist(), len(table)], strict=True)
        ]
        return pa.concat_tables(pieces)

    def _of_leg(self, part: _Part, table: pa.Table, schema: pa.Schema) -> pa.Table:
        """The rows of one leg and epoch of a part."""
        leg = self._open(change_of=part.attempt, leg=table["leg"][0].as_py(), epoch=table["epoch"][0].as_py())
        streams = table["stream"].to_numpy().astype(np.int32)
        rows, pieces = table["row"].to_numpy().view(np.uint64), table["part"].to_numpy().astype(np.int64)
        identity = self._identity(leg, streams, rows, pieces)
        shards, ordinals = _source_rows(leg.stages, streams, rows)
        names = pa.array([stream.name or stream.base.entry.name for stream in leg.stages.streams])
        columns: dict[str, Any] = {name: identity[name] for name in identity.column_names}
        columns |= {name: table[name] for name in table.column_names}
        columns |= {
            "stream": names.take(pa.array(streams)), "shard": pa.array(shards, pa.int32()), "row": pa.array(ordinals),
            "attempt": pa.repeat(part.attempt, len(table)), "rank": pa.repeat(rank_of(part.name), len(table)),
        }  # fmt: skip
        for name in [each for each in table.column_names if each.endswith(SUM)]:
            stem = name[: -len(SUM)]
            sums, counts = table[name].to_numpy(), table[stem + TOKENS].to_numpy()
            with np.errstate(invalid="ignore", divide="ignore"):
                columns[stem] = pa.array((sums / counts).astype(np.float32), from_pandas=False)
        out = []
        for field in schema:
            found = columns.get(field.name)
            out.append(pa.nulls(len(table), field.type) if found is None else found.cast(field.type))
        return pa.table(out, schema=schema)

    def _open(self, change_of: str, leg: int = 0, epoch: int | None = None) -> OpenedLeg:
        """The plan that an attempt read by in a leg and epoch."""
        attempt = self._history.attempts[change_of]
        at = self._history.change_at(attempt, leg, epoch)
        key = change_of, at, 0 if epoch is None else epoch
        if key not in self._opened:
            self._opened[key] = self._legs.of(self._history.leg_at(attempt, at, epoch))
        return self._opened[key]


def not_applied(files: RunFiles, branch: Sequence[tuple[Attempt, Mark | None]]) -> set[tuple[str, int, int]]:
    """Return the batches of a branch that were logged as not trained on: attempt, epoch and number, as `ledger` takes it."""
    out = set[tuple[str, int, int]]()
    for each, cut in branch:
        for part in files.parts(each.name):
            table = _up_to(files.read(part), cut)
            table = table.filter(pc.invert(table["applied"])).group_by(["epoch", "batch"]).aggregate([])
            out |= {
                (each.name, epoch, batch)
                for epoch, batch in zip(*(table[name].to_pylist() for name in ("epoch", "batch")), strict=True)
            }
    return out


def _source_rows(
    stages: Stages, streams: NDArray[np.int32], rows: NDArray[np.uint64]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the storage shard and the row of the source of each sample: [S] each."""
    shards, out = np.empty(len(rows), np.int32), np.empty(len(rows), np.int64)
    for k, stream in enumerate(stages.streams):
        mine = streams == k
        payload = base_payload(stream.selected, stream.base, "")
        ordinals = payload.ordinals(rows[mine])
        out[mine] = ordinals.astype(np.int64)
        shards[mine] = stream.base.manifest.shard_of(ordinals)
    return shards, out


def _up_to(table: pa.Table, cut: Mark | None) -> pa.Table:
    """Return what was recorded before a place."""
    if cut is None:
        return table
    leg, epoch, number = (table[name].to_numpy() for name in ("leg", "epoch", "number"))
    same = leg == cut.leg
    before = (leg < cut.leg) | (same & (epoch < cut.epoch)) | (same & (epoch == cut.epoch) & (number < cut.batch))
    return table.filter(pa.array(before))


def _new_batches(attempt: str, table: pa.Table, had: dict[tuple[str, int, int], NDArray[np.int64]]) -> pa.Array:
    """Return which rows are of batches that no part before had, and enter these."""
    leg, epoch, number = (table[name].to_numpy() for name in ("leg", "epoch", "number"))
    new = np.ones(len(table), dtype=np.bool_)
    for a, b in np.unique(np.stack([leg, epoch], axis=1), axis=0).tolist():
        here = (leg == a) & (epoch == b)
        seen = had.get((attempt, a, b), np.empty(0, np.int64))
        found = number[here]
        new[here] = ~np.isin(found, seen)
        had[attempt, a, b] = np.union1d(seen, found)
    return pa.array(new)

"""The table of a run: what its trained branch recorded, with the identities of its samples, as a registered relation.

The parts of a branch become the rows of a Lance dataset beside them, part by part: each attempt up to the place where the next
one left it, each batch once. Identities, storage shards and rows of the source are joined from the version that the batch was
read from. New parts are appended; where another branch is the trained one, the dataset is written anew. It can be made again
from the parts at any time.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.catalog.registering.declaration import Declaration
from spiral_stream.catalog.registry import Registry
from spiral_stream.catalog.relation.entry import Entry
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.display.progress import Report, working
from spiral_stream.errors import RunError, SourceError, SpiralError, cut, warn
from spiral_stream.plan.nodes import Sample
from spiral_stream.plan.tree import need
from spiral_stream.plan.verbs.maps import SampleAssembly
from spiral_stream.plan.verbs.mix import STREAM_ID
from spiral_stream.planner.columns.payload import base_payload
from spiral_stream.planner.stages import Stages
from spiral_stream.runs.files import RunFiles, TableFiles, rank_of, shard_of, writing
from spiral_stream.runs.history import Attempt, History, Mark
from spiral_stream.runs.opened_leg import OpenedLeg, OpenedLegs
from spiral_stream.runs.records.part_rows import SUM, TOKENS
from spiral_stream.runs.records.shard_sums import BATCH_ID, Numbered, ShardSums, pieces_of
from spiral_stream.runs.records.values import RESERVED
from spiral_stream.runtime.columns.error_sample import identity_table
from spiral_stream.runtime.columns.samples import Samples
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.sources.lance.fragments import Appendable, append_alone, fragments_of, made_anew, present
from spiral_stream.sources.lance.source import Lance
from spiral_stream.storage.uri import is_object

RUNS: Final = "runs."
IDENTITY: Final = ("attempt", "rank", "leg", "epoch", "batch", "index")
_TRIES: Final = 4  # of builders on several machines
_REASON: Final = 400  # characters
_OLD: Final = timedelta(days=1)  # versions of another branch, which a stream may still read
_COLUMNS: Final = {
    "stream": pa.utf8(), "shard": pa.int32(), "row": pa.int64(), "part": pa.int32(), "attempt": pa.utf8(), "leg": pa.int32(),
    "rank": pa.int32(), "step": pa.int64(), "epoch": pa.int32(), "batch": pa.int64(), "index": pa.int32(), "applied": pa.bool_(),
}  # fmt: skip
_DESCRIBED: Final = {
    "stream": "the stream of a mixture, or the relation",
    "shard": "storage shard of the source's row; null for samples that the plan assembles of several",
    "row": "row of the source, in the version that was read; likewise",
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
        self._unread = set[str]()  # why identities are not known

    def registered(self, attempt: str | None = None, report: Report | None = None) -> Entry:
        """Bring the table up to date, and return the relation. Nothing is written where it is.

        Args:
            attempt: whose branch; None takes the newest, which is the trained one.
            report: called with the parts done and the parts in total; None shows a bar on a terminal.

        Raises:
            RunError: nothing was recorded, a part is damaged, the table cannot be written, or the relation's name is taken.
        """
        name = RUNS + self._files.name + ("" if attempt is None else f".{attempt}")
        table = self._files.table(attempt)
        entry = self._entry(name, table)
        if entry is None or not _is_sound(entry) or not self._is_up_to_date(entry, table, attempt):
            with writing(table.uri), self._files.one_builder():
                entry = self._made(name, table, attempt, report)
        self._warn_of_lacking(name, table)
        return entry

    def _made(self, name: str, table: TableFiles, attempt: str | None, report: Report | None) -> Entry:
        """Bring the table up to date, and register it."""
        entry = self._entry(name, table)
        if entry is not None and not _is_sound(entry):
            warn(f"{name}: its table is damaged or gone, and is made anew from what was recorded")
            table.remove()
        version = self._bring_up_to_date(table, attempt, report, anew=entry is None and bool(self._lacking(table)))
        entry = self._entry(name, table)
        if entry is not None and entry.source.version == version and _is_sound(entry):  # type: ignore[attr-defined]  # of Lance
            return entry
        declared = Declaration(IDENTITY, None, {}, _DESCRIBED, unique=False, distinct=True)  # each batch once
        source = Lance(table.uri, version=version)
        return self._catalog.registration.register(name, source, declared, replace=entry is not None)

    @staticmethod
    def _lacking(table: TableFiles) -> list[str]:
        """Why rows of the table have no identities; empty if all have."""
        return list(dict.fromkeys(reason for step in table.built()["steps"] for reason in step.get("lacking", ())))

    def _warn_of_lacking(self, name: str, table: TableFiles) -> None:
        for reason in self._lacking(table):
            warn(
                f"{name}: the identities of some rows are null, since the data that they were read from is gone: {reason}. "
                f"Then catalog.drop({name!r}), and the table is made anew with them"
            )

    def _entry(self, name: str, table: TableFiles) -> Entry | None:
        """The relation as it is registered; None if it is not.

        Raises:
            RunError: something else has its name.
        """
        if name not in self._catalog.relations.names():
            return None
        entry = self._catalog.relations.entry(name)
        if isinstance(entry.source, Lance) and entry.source.uri.endswith(
            table.ending
        ):  # also of a catalog that was moved
            return entry if entry.source.uri == table.uri else None
        msg = f"run {self._files.name!r}: relation {name!r} is of {cut(str(entry.source))}, and is not the run's table. Drop it, "
        msg += f"catalog.drop({name!r}), or give the run, or its attempt, another name"
        raise RunError(msg)

    def _parts(self, attempt: str | None) -> list[_Part]:
        parts = [
            _Part(name, each.name, cut)
            for each, cut in self._history.branch(attempt)
            for name in self._files.parts(each.name)
        ]
        if not parts:
            msg = f"run {self._files.name!r} has recorded nothing yet. Call run.log(batch=batch, loss=...), and run.flush()"
            raise RunError(msg)
        return parts

    def _is_up_to_date(self, entry: Entry, table: TableFiles, attempt: str | None) -> bool:
        there, wanted = present(table.uri), [each.to_json() for each in self._parts(attempt)]
        if there is None or entry.source.version != there.version:  # type: ignore[attr-defined]  # of Lance
            return False
        done = self._done(there, table)
        return done is not None and len(done) == len(wanted) and all(each in done for each in wanted)

    def _done(self, there: Appendable, table: TableFiles) -> list[Any] | None:
        """The parts whose rows are in the dataset; None if it has rows that nobody knows of.

        What is going to be added is written down first, by the names of its files: so a builder that is killed, and two that
        build on two machines, are seen afterwards.
        """
        out, files = list[Any](), set[str]()
        for step in table.built()["steps"]:
            if there.files.issuperset(step["files"]):
                out += step["parts"]
                files |= set(step["files"])
        return out if files == there.files else None

    def _bring_up_to_date(self, table: TableFiles, attempt: str | None, report: Report | None, *, anew: bool) -> int:
        """Write what the dataset lacks, or all of it anew; returns its version."""
        parts = self._parts(attempt)
        schema, wanted = self._schema(parts), [each.to_json() for each in parts]
        for attempts_left in reversed(range(_TRIES)):
            there = present(table.uri)
            done = None if there is None or there.schema.names != schema.names else self._done(there, table)
            steps = table.built()["steps"]
            if anew or there is None or done is None or any(each not in wanted for each in done):
                anew = False
                there, done, steps = made_anew(table.uri, schema, _OLD), [], []
            if len(done) == len(parts):
                return there.version
            new = [each for each in parts if each.to_json() not in done]
            had = [each for each in parts if each.to_json() in done]
            with working(f"run {self._files.name}", "parts", report=report) as tell:
                fragments = fragments_of(table.uri, self._rows(had, new, schema, tell), schema)
            step = {"parts": [each.to_json() for each in new], "files": [f for each in fragments for f in each.files]}
            if self._unread:
                step["lacking"] = sorted(self._unread)
            live = [each for each in steps if there.files.issuperset(each["files"])]
            table.keep_built({"steps": [*live, step]})
            if not fragments:  # all of it is there already, or after the place where the branch left
                self._need_complete_batches(parts, there)
                return there.version
            try:
                return append_alone(table.uri, [each.described for each in fragments], there.version)
            except SourceError:
                now = present(table.uri)
                if not attempts_left or now is None or now.version == there.version:  # nobody else has built
                    raise
        raise AssertionError

    def _need_complete_batches(self, parts: Sequence[_Part], there: Appendable) -> None:
        """Refuse a table without rows, where that is because no batch has all of its shards.

        Raises:
            RunError: says which shards there are.
        """
        shards = sorted({shard for part in parts if (shard := shard_of(part.name)) is not None})
        if shards and not there.files:
            found = ", ".join(f"{k} of {n}" for k, n in shards)
            msg = (
                f"run {self._files.name!r}: no batch has all of its shards; there is {found}. Each process that shares rows "
                "opens the run with its shard=(i, n), logs, and saves or closes it"
            )
            raise RunError(msg)

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
            if name in _summed(values):
                shown[name[: -len(SUM)]] = pa.float32()
            shown[name] = kind
        return pa.schema({**identity, **_COLUMNS, **shown})

    def _assembled(self, leg: OpenedLeg, table: pa.Table) -> pa.Table:
        """The identities that assemblers gave the samples of batches, which are drawn once more."""
        numbers, batch_of = np.unique(table["number"].to_numpy(), return_inverse=True)
        found = []
        for k, drawn in enumerate(leg.opened.numbering.draw(leg.epoch, numbers.tolist())):
            index = table["index"].to_numpy()[batch_of == k]
            leg.opened.reader.need_identity(leg.epoch, drawn.samples)
            all_of = identity_table(leg.stages, drawn.samples)
            if len(index) == len(all_of):
                found.append(all_of.take(index))
            else:
                self._unread.add(
                    "a batch of assembled samples lacks some that could not be read, so nobody knows which. Read them"
                )
                found.append(pa.table({each.name: pa.nulls(len(index), each.type) for each in all_of.schema}))
        order = np.argsort(np.argsort(batch_of, kind="stable"), kind="stable")
        return _named_apart(pa.concat_tables(found).take(order), mixed=leg.stages.mixed)

    def _identity_types(self, leg: OpenedLeg) -> dict[str, pa.DataType]:
        if assembles(leg.stages):
            last = next(each for each in reversed(leg.stages.maps) if isinstance(each, SampleAssembly)).schema()
            table = pa.table({name: pa.array([], last.field(name).type) for name in leg.stages.identity})
            return {each.name: each.type for each in _named_apart(table, mixed=False).schema}
        none = np.empty(0, dtype=np.int64)
        table = self._identity(leg, np.empty(0, np.int32), none.astype(np.uint64), none)
        return {each.name: each.type for each in table.schema}

    def _identity(
        self, leg: OpenedLeg, streams: NDArray[np.int32], rows: NDArray[np.uint64], parts: NDArray[np.int64]
    ) -> pa.Table:
        """The identity columns of samples, by the names that they have here."""
        samples = Samples(StreamRows(streams, rows, np.zeros(len(rows), np.uint64)), parts, np.arange(len(rows)))
        try:
            leg.opened.reader.need_identity(leg.epoch, samples)
            table = identity_table(leg.stages, samples)
        except SourceError as error:  # only places are left of rows whose data is gone
            if len(rows):
                self._unread.add(cut(str(error).partition(", or start a new epoch")[0], _REASON))
            schema = need(leg.stages.plan, Sample).source.schema()
            table = pa.table({name: pa.nulls(len(rows), schema.field(name).type) for name in leg.stages.identity})
        return _named_apart(table, mixed=leg.stages.mixed)

    # ---- rows

    def _rows(
        self, had: Sequence[_Part], new: Sequence[_Part], schema: pa.Schema, report: Report
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the new parts; batches of other parts are left out."""
        numbers, sums = Numbered(), ShardSums(self._files.name)
        attempts = {each.attempt for each in new}
        for part in had:
            if part.attempt in attempts:
                self._complete_rows(part, _up_to(self._files.read(part.name, BATCH_ID), part.cut), numbers, sums)
        for at, part in enumerate(new):
            table = self._complete_rows(part, _up_to(self._files.read(part.name), part.cut), numbers, sums)
            if (shard := shard_of(part.name)) is not None:
                table = sums.summed((part.attempt, shard[1]), table)
            if len(table):
                yield from self._joined(part, table, schema).to_batches()
            report(at + 1, len(new))

    def _complete_rows(self, part: _Part, table: pa.Table, numbers: Numbered, sums: ShardSums) -> pa.Table:
        """The rows of a part that are of batches which are there with all shards now, and were not before."""
        shard = shard_of(part.name)
        if shard is not None:

            def read() -> pa.Table:
                return _up_to(self._files.read(part.name), part.cut)

            mine = table.filter(numbers.new((part.attempt, *shard), table))
            table = sums.completed((part.attempt, shard[1]), shard[0], mine, read)
        return table.filter(numbers.new(part.attempt, table))

    def _joined(self, part: _Part, table: pa.Table, schema: pa.Schema) -> pa.Table:
        return pa.concat_tables(
            [self._of_leg(part, table.slice(first, end - first), schema) for first, end, _, _ in pieces_of(table)]
        )

    def _of_leg(self, part: _Part, table: pa.Table, schema: pa.Schema) -> pa.Table:
        """The rows of one leg and epoch of a part."""
        leg = self._open(change_of=part.attempt, leg=table["leg"][0].as_py(), epoch=table["epoch"][0].as_py())
        streams = table["stream"].to_numpy().astype(np.int32)
        rows, pieces = table["row"].to_numpy().view(np.uint64), table["part"].to_numpy().astype(np.int64)
        if assembles(leg.stages):  # samples of several rows have none of their own
            identity, shards, ordinals = self._assembled(leg, table), pa.nulls(len(table)), pa.nulls(len(table))
        else:
            identity = self._identity(leg, streams, rows, pieces)
            shards, ordinals = map(pa.array, _source_rows(leg.stages, streams, rows))
        names = pa.array([stream.name or stream.base.entry.name for stream in leg.stages.streams])
        columns: dict[str, Any] = {name: identity[name] for name in identity.column_names}
        columns |= {name: table[name] for name in table.column_names}
        columns |= {
            "stream": names.take(pa.array(streams)), "shard": shards, "row": ordinals,
            "attempt": pa.repeat(part.attempt, len(table)), "rank": pa.repeat(rank_of(part.name), len(table)),
        }  # fmt: skip
        for name in _summed(table.column_names):
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


def assembles(stages: Stages) -> bool:
    """Whether samples are made of several rows, so that they have no row of a source."""
    return any(isinstance(step, SampleAssembly) for step in stages.maps)


def _named_apart(table: pa.Table, *, mixed: bool) -> pa.Table:
    """Identities without the stream of a mixture, under names that no column of ours has."""
    if STREAM_ID in table.column_names and mixed:
        table = table.drop_columns([STREAM_ID])
    return table.rename_columns([RENAMED + name if name in RESERVED else name for name in table.column_names])


def _is_sound(entry: Entry) -> bool:
    """Whether the files of a table lie as they were registered; of one on a store, whoever reads it sees."""
    if is_object(entry.source.uri):  # type: ignore[attr-defined]  # of Lance
        return True
    try:
        OpenRelation(entry).close()
    except SourceError:
        return False
    return True


def not_applied(files: RunFiles, branch: Sequence[tuple[Attempt, Mark | None]]) -> set[tuple[str, int, int]]:
    """Return the batches of a branch that were logged as not trained on: attempt, epoch and number, as `ledger` takes it."""
    out = set[tuple[str, int, int]]()
    for each, left in branch:
        for part in files.parts(each.name):
            table = _up_to(files.read(part, [*BATCH_ID, "batch", "applied"]), left)
            table = table.filter(pc.invert(table["applied"])).group_by(["epoch", "batch"]).aggregate([])
            out |= {
                (each.name, epoch, batch)
                for epoch, batch in zip(*(table[name].to_pylist() for name in ("epoch", "batch")), strict=True)
            }
    return out


def drop_tables(catalog: Registry, files: RunFiles) -> None:
    """Forget the relations of a run: that of its trained branch, and those of its other branches."""
    for name in catalog.relations.names():
        rest = name.removeprefix(RUNS + files.name)
        if not name.startswith(RUNS + files.name) or rest[:1] not in ("", "."):
            continue
        try:
            source = catalog.relations.entry(name).source
        except SpiralError:  # it cannot be read, and says so to whoever asks for it
            continue
        if isinstance(source, Lance) and source.uri.endswith(files.table(rest[1:] or None).ending):
            catalog.relations.drop(name)


def _summed(names: Iterable[str]) -> list[str]:
    """The columns that hold sums of tokens, each with its counts beside it."""
    there = list(names)
    return [name for name in there if name.endswith(SUM) and name[: -len(SUM)] + TOKENS in there]


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

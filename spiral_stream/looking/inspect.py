"""`Looking`: what a stream knows and shows of itself. `PreparedStream` adds what moves it.

Nothing here moves the place, so all of it may be asked while a loop reads the stream; but for the two other ways to
iterate, as Arrow tables and with a progress bar, which move it as a loop does. `take` looks at what a loop would get.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa

from spiral_stream.arguments import door, whole
from spiral_stream.catalog.registry import Registry
from spiral_stream.cursor import Cursor
from spiral_stream.errors import PlanError, SpiralError, StreamError, shown
from spiral_stream.explain import Explanation, explain_stream
from spiral_stream.explain.outline import outline
from spiral_stream.fields.field import FieldSpec
from spiral_stream.habits import OF_STREAMS, answer
from spiral_stream.looking.contact_sheet import Sheet
from spiral_stream.looking.notebook import batch_formatter, remembered
from spiral_stream.looking.progress import with_bar
from spiral_stream.looking.sampled import need_count, taken, taken_of
from spiral_stream.looking.stream_view import StreamView
from spiral_stream.looking.tables import batch_schema, record_batches
from spiral_stream.plan.fields.dtypes import field_specs
from spiral_stream.plan.nodes import Collate, Deliver, Sample
from spiral_stream.planner.binding.bindings import Bindings, Bound, need_known_seed, settle
from spiral_stream.planner.prepared_data.build import CacheStatus, caches, status
from spiral_stream.planner.prepared_data.verify import relations_of
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.columns.values import value_statuses
from spiral_stream.runtime.delivery import HOST, Delivery, Devices
from spiral_stream.runtime.forming.bounded import promised
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.numbering.numbering import Numbering, batch_number, need_not_skipped
from spiral_stream.runtime.numbering.random_access import OrderedRows
from spiral_stream.runtime.numbering.steps import length_of, need_delivered, steps_of
from spiral_stream.runtime.run.loop import Pass, Passes
from spiral_stream.runtime.run.opened_plan import Opening
from spiral_stream.runtime.run.position import Place
from spiral_stream.threads import ThreadShare

LOOKED_AT_ROWS: Final = 1 << 20  # a stream over more rows is not opened in order to be shown
_SHOWN: Final = 4  # samples


class Looking:
    """What a stream of batches knows and shows of itself."""

    plan: Deliver
    catalog: Registry
    _collate: Collate
    _sample: Sample
    _threads: ThreadShare
    _budget_bytes: int
    _delivery: Delivery
    _bindings: Bindings
    _place: Place
    _opening: Opening
    _passes: Passes
    _closed: bool
    _pid: int
    _was_opened = False

    if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours

        def __getattr__(self, name: str) -> NoReturn:
            answer(self, name, "stream", OF_STREAMS)

    @property
    def fingerprint(self) -> str:
        """The plan's fingerprint: 32 hex digits.

        Examples:
            >>> stream.fingerprint == plan.to_numpy().fingerprint
            True
        """
        return self.stages.fingerprint

    @property
    def rows(self) -> int:
        """Rows that pass the plan's filters and joins; in a mixture, the sum over its streams.

        Examples:
            >>> stream.rows
            48
        """
        return sum(stream.selected.total for stream in self.stages.streams)

    @property
    def data_versions(self) -> dict[str, str]:
        """The data version of every relation that the plan reads, by the relation's name.

        Examples:
            >>> sorted(stream.data_versions)
            ['photos']
        """
        return dict(self.stages.data_versions)

    def spec(self) -> dict[str, FieldSpec]:
        """Return dtype and shape of each field of a batch; reads nothing.

        Raises:
            MissingExtraError: the framework that decides on the dtypes is not installed.

        Examples:
            >>> stream.spec()["width"].dtype
            'int64'
        """
        return self._delivery.spec(field_specs(self._collate.fields, self._collate.schema()))

    def devices(self) -> dict[str, str | None]:
        """Return the device of each array field; None if neither ``bind``, nor the field, nor the plan names one.

        Examples:
            >>> stream.devices()
            {'width': None}
        """
        specs = field_specs(self._collate.fields, self._collate.schema())
        return self._delivery.devices(specs, self.plan.device, self._bindings.device)

    def _devices_here(self) -> Devices:
        """The devices that this process delivers to; a worker's batches stay on the host."""
        return {} if self._place.in_worker else self.devices()

    @property
    def stages(self) -> Stages:
        """The lowered plan. It is made at the first use, and again in a forked process.

        Examples:
            >>> stages = stream.stages
        """
        return self._open().stages

    def _open(self) -> Opening:
        """Return what the stream has open, or opens at its first use.

        Raises:
            StreamError: the stream is closed.
        """
        if self._closed:
            msg = "the stream is closed. Make a new one from its plan, for example catalog.open_stream(name)"
            raise StreamError(msg)
        self._was_opened = True
        return self._opening

    @property
    def numbering(self) -> Numbering:
        """Which samples form which batch.

        Examples:
            >>> numbering = stream.numbering
        """
        bound = self._bound()
        return promised(self._open().read(bound.run_seed)[1], bound)

    def _bound(self) -> Bound:
        return settle(self._bindings, self._sample)

    @property
    def epoch(self) -> int:
        """The epoch of the loop's batches; after an epoch's last batch, the next epoch.

        Examples:
            >>> stream.epoch
            0
        """
        return self._place.epoch

    def __len__(self) -> int:
        """Return the steps of the whole present epoch for this rank.

        Raises:
            TypeError: many batches would have to be formed first; says how long that takes, and which call does it.
        """
        return length_of(self.numbering, self._place.drawn(), self._bound())

    @property
    def steps_per_epoch(self) -> int:
        """What `len` returns; a `StreamError` says how long counting takes where that is not quick.

        Examples:
            >>> stream.steps_per_epoch
            6
        """
        return steps_of(self.numbering, self._place.drawn(), self._bound())

    def metrics(self) -> dict[str, Any]:
        """Return totals since the stream was made: rows, bytes, seconds by stage, queue depth, and what bounds it.

        Examples:
            >>> for batch in stream:
            ...     pass
            >>> stream.metrics()["batches"]
            6
        """
        return self._passes.totals()

    @door(PlanError)
    def explain(self, *, analyze: bool = False, network: str | None = None) -> Explanation:
        """Explain what this stream does to its data (EXPLAIN DATA), from facts; reads no payload.

        Args:
            analyze: add what the stream has measured so far.
            network: add what goes over a network, and how fast this one lets the stream be: bandwidth of a node and
                latency of a request, such as ``"10 Gbit/s, 50 ms"``.

        Raises:
            PlanError: ``network`` is no network.

        Examples:
            >>> print(str(stream.explain()).splitlines()[0][:12])
            EXPLAIN DATA
        """
        bound, threads = replace(self._bound(), epoch=self._place.drawn()), self._threads.working()
        facts = bound, self.devices(), threads, self.metrics() if analyze else None
        begin = Cursor(self.epoch).enter(bound.world_size, bound.merge)
        size = self._open().state_bytes(begin, bound.run_seed, bound.epoch)
        more = self.numbering, self.catalog, size
        return explain_stream(self.stages, *facts, *more, network, self._threads.read_batch_size)

    def order(self, epoch: int | None = None) -> OrderedRows:
        """Return the order of an epoch (None: the present one): ``rows(positions)`` and ``positions(identity)``.

        Examples:
            >>> stream.order().rows([0])["photo_id"].to_pylist()
            ['p19']
        """
        return OrderedRows(self.stages, self._place.drawn(epoch))

    def quarantine(self) -> pa.Table:
        """Return the samples that could not be read, one row per occurrence in a batch, of all ranks and processes.

        Examples:
            >>> stream.quarantine().num_rows
            0
        """
        return self._open().refusals.quarantine.read()

    def skipped(self) -> dict[str, Any]:
        """Return what the run skips, as JSON values.

        Returns:
            ``batches``, each ``[epoch, first, count]``, and ``samples``, each ``[epoch, batch, stream, identity]`` with the
            place from which on it is left out.

        Examples:
            >>> stream.skip(batches=[2])
            >>> stream.skipped()["batches"]
            [[0, 2, 1]]
        """
        return self._opening.skips.to_json()

    def caches(self) -> list[CacheStatus]:
        """Return how far each cache of this plan is built. Reads no payload; empty if the plan has nothing to cache.

        Raises:
            DamageError: the ledger of a cache is not what was written; the message says what mends it.

        Examples:
            >>> stream.caches()
            []
        """
        return [status(work) for work in caches(self.stages)] + value_statuses(self.stages)

    # ---- other ways to iterate

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield what a loop would get as Arrow record batches, whose columns are views of the batches' memory.

        Raises:
            StreamError: a field has no value per row (`CuSeqlens`), or another loop reads the stream.

        Examples:
            >>> next(stream.to_batches()).num_rows
            8
        """
        yield from self.to_reader()

    def to_reader(self) -> pa.RecordBatchReader:
        """Return `to_batches` as an Arrow reader, which DuckDB, Polars and pandas read; errors as there.

        `to_arrow` is another name for it. Memory holds one batch at a time; ``read_all()`` makes a table of the epoch's rest.

        Examples:
            >>> stream.to_arrow().schema.names
            ['width', 'id']
        """
        schema = batch_schema(self._collate, field_specs(self._collate.fields, self._collate.schema()))
        batches = self._passes.run(self._now, HOST, 0, 1)
        return pa.RecordBatchReader.from_batches(schema, record_batches(batches, schema))

    to_arrow = to_reader

    @door(StreamError)
    def take(self, count: int = 1) -> list[Any]:
        """Return the next batches as a loop would get them: of this rank, merged, on their devices. The stream stays.

        So a second call returns the same batches, and a loop that follows begins with them. Each is held in memory.

        Args:
            count: how many. A list ends with the epoch, as a loop does, so it may be shorter.

        Raises:
            StreamError: ``count`` is no number from 0 up, or workers of a DataLoader read the stream.

        Examples:
            >>> first, second = stream.take(2)
            >>> first["id"][:2]
            ['p19', 'p17']
        """
        wanted = whole(count)
        if wanted is None or wanted < 0:
            msg = f"take: count={shown(count)}. Give how many batches, a whole number from 0 up"
            raise StreamError(msg)
        self._place.here("take")
        steps = self._place.coming(self.numbering, self._bound())
        passes = Passes(self._place, Metrics(), self._threads, self._budget_bytes)  # metrics count none of it
        try:
            out = list[Any]()
            while len(out) < wanted and (numbers := steps.at(steps.start.step + len(out))) is not None:
                out.append(passes.build(self._now, self._delivery, steps.epoch, numbers))
            return out
        finally:
            passes.close()

    @door(PlanError, excepted=("title",))
    def progress(self, title: str | None = None, *, console: Any = None) -> Iterator[Any]:
        """Iterate with a progress bar on standard error: on rank 0 alone, and from the stream's place on.

        Args:
            title: before the bar; None takes the epoch's number.
            console: a `rich.console.Console` to draw on.

        Examples:
            >>> for batch in stream.progress("training"):
            ...     pass
        """
        if self._bound().rank:
            yield from self
            return
        try:
            total: int | None = len(self)
        except (TypeError, StreamError):  # not counted
            total = None
        begun = self._place.known()
        at, step = self.epoch, begun.step if begun.epoch == self.epoch else 0
        yield from with_bar(iter(self), title or f"epoch {at:,}", total, lambda: step, console)

    def _now(self) -> tuple[Opening, Bound, Devices]:
        need_known_seed(self._sample.order, self._bound())
        return self._open(), self._bound(), self._devices_here()

    # ---- looking at samples

    def show(
        self,
        count: int = 8,
        *,
        batch: int | Mapping[str, Any] | None = None,
        epoch: int | None = None,
        tokenizer: Any = None,
        path: Any = None,
    ) -> Sheet:
        """Return a contact sheet of samples: images, clips and sounds that play, tokens in colours, and their labels.

        The stream stays where it is, and its metrics count none of it. It reads the batches that hold the samples, and no
        more. Print the sheet in a terminal; a notebook shows it, with at most 2 MiB.

        Args:
            count: how many samples, or rows of packed batches.
            batch: the global batch to begin with, or a batch that the loop got; None takes the next one of this rank.
            epoch: the epoch; None takes the present one.
            tokenizer: decodes token fields: a name in the catalog, or an object with ``decode(ids)``. None takes the plan's own.
            path: also write the sheet there, as the ending says: ``sheet.png``, ``.jpg``, ``.webp``, or ``.html``.

        Raises:
            IndexError: the epoch has no such batch, or the run skips it.
            PlanError: ``count`` is no number from 1 up, or ``batch`` is no batch of this stream.

        Examples:
            >>> sheet = stream.show(2)
            >>> sheet.tiles[0].title
            'batch 0 row 0'
        """
        if isinstance(batch, Mapping):
            sheet = taken_of(batch, self.stages, self.catalog, need_count(count), tokenizer)
        else:
            sheet = self._taken(count, batch, epoch, tokenizer)
        if path is not None:
            sheet.save(path)
        return sheet

    def _taken(self, count: int, batch: int | None, epoch: int | None, tokenizer: Any) -> Sheet:
        """The sheet of the samples from a batch on."""
        bound = self._bound()
        at, begin = self._place.drawn(epoch), 0
        if batch is not None:
            begin = need_not_skipped(self._place_of(batch, epoch, "show")[1], at, batch)
        else:
            known = self._place.known()
            begin = known.batch + bound.turn * bound.merge if epoch in (None, known.epoch) else 0

        def build(drawn: int, delivered: int) -> dict[str, Any]:
            self._need_delivered(delivered, epoch)
            return self._built(drawn, delivered)

        return taken(build, self.stages, self.numbering, self.catalog, at, begin, need_count(count), tokenizer)

    def _place_of(self, number: int, epoch: int | None, asked: str) -> tuple[int, int | None]:
        """The epoch whose order is drawn for a batch, and how many batches are delivered before it; None if it is skipped.

        Raises:
            IndexError: the epoch has no such batch.
            StreamError: the chapters before it are not counted, and counting them takes long.
        """
        drawn, numbering = self._place.drawn(epoch), self.numbering
        delivered = numbering.skips.delivered(drawn, batch_number(number))
        if delivered is not None:
            numbering.every.limits.need_near(drawn, batch_number(number), asked)
            self._need_delivered(delivered, epoch)
        return drawn, delivered

    def _need_delivered(self, delivered: int, epoch: int | None) -> None:
        drawn, at = self._place.drawn(epoch), self.epoch if epoch is None else epoch
        need_delivered(self.numbering, at, drawn, delivered, self._place.cursor, self._bound())

    def _built(self, epoch: int, number: int) -> dict[str, Any]:
        """Build a batch for looking, as NumPy arrays on the host; counts nothing."""
        passes = Passes(self._place, Metrics(), self._threads, self._budget_bytes)
        try:
            fields: dict[str, Any] = passes.build(lambda: (self._open(), self._bound(), {}), HOST, epoch, number)
        finally:
            passes.close()
        return fields

    def __repr__(self) -> str:
        """What the stream is, and where it stands. Opens and reads nothing."""
        if self._closed:
            return f"<{type(self).__name__}: closed>"
        lines = [f"<{type(self).__name__} to {self.plan.framework}"]
        lines += [f"  {line}" for line in outline(self.plan)]
        lines += [f"  {name}: {_field_text(each, device)}" for name, each, device in self._fields()]
        lines.append(f"  length: {self._length_text()}")
        lines.append(f"  stands in {self._place_text()}>")
        return "\n".join(lines)

    def _place_text(self) -> str:
        place = self._place.known()
        number = self._opening.skips.number(self._place.drawn(place.epoch), place.batch)
        return f"epoch {place.epoch:,} before step {place.step:,} (global batch {number:,})"

    def _repr_html_(self) -> str:
        """The stream in a notebook: its plan, fields and place, and the next samples if showing them is cheap."""
        return self._view().html()

    def __rich_console__(self, console: Any, options: Any) -> Iterable[Any]:
        del console, options
        yield self._view()

    def _view(self) -> StreamView:
        title = f"{type(self).__name__} to {self.plan.framework}"
        if self._closed:
            return StreamView(title, (), (), [("place", "closed")], None)
        sheet, note = None, ""
        try:
            if self._may_look():
                sheet = self.show(_SHOWN)
            else:
                note = f"no samples: the stream is not open, and it reads over {LOOKED_AT_ROWS:,} rows. show() opens it"
        except (SpiralError, IndexError, TypeError) as error:
            note = str(error)
        fields = [{"field": name, "holds": _field_text(each, device)} for name, each, device in self._fields()]
        facts = [("length", self._length_text()), ("place", self._place_text())]
        return StreamView(title, outline(self.plan), fields, facts, sheet, note)

    def _may_look(self) -> bool:
        """Whether showing samples reads little: the stream is open, or its relations have few rows."""
        if self._was_opened:
            return True
        return sum(self.catalog.entry(name).manifest().total for name in relations_of(self.plan)) <= LOOKED_AT_ROWS

    def _known_to_notebooks(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Let a notebook know the batches of a pass, so that each shows itself."""
        formatter = batch_formatter()
        return batches if formatter is None else Pass(remembered(formatter, batches, self._batch_html))

    def _batch_html(self) -> Callable[[Mapping[str, Any]], str | None]:
        """Return what shows a batch, for as long as the batch lives: it needs no open stream."""
        stages, catalog, name = self.stages, self.catalog, type(self).__name__

        def html(batch: Mapping[str, Any]) -> str | None:
            try:
                sheet = taken_of(batch, stages, catalog, _SHOWN)
            except (SpiralError, OSError):  # such as a tokenizer that is gone: the dict is shown as a dict
                return None
            rows = [{"field": field, "holds": _array_text(value)} for field, value in batch.items()]
            return StreamView(f"Batch of a {name}", (), rows, (), sheet).html()

        return html

    def _fields(self) -> Iterator[tuple[str, FieldSpec, str | None]]:
        try:
            specs, devices = self.spec(), self.devices()
        except SpiralError:  # the framework is not installed
            specs, devices = field_specs(self._collate.fields, self._collate.schema()), {}
        for name, each in specs.items():
            yield name, each, devices.get(name)

    def _length_text(self) -> str:
        """How long an epoch is, if that is known without opening or counting."""
        if not self._was_opened:
            return "len(stream) says; the stream is not open yet"
        try:
            return f"{len(self):,} steps per epoch on rank {self._bound().rank} of {self._bound().world_size}"
        except (TypeError, SpiralError) as error:
            return f"not counted ({str(error).split('. ')[0][:80]})"


def _field_text(each: FieldSpec, device: str | None) -> str:
    if each.dtype is None:
        return "list"
    shape = ", ".join("?" if size is None else str(size) for size in each.shape)
    return f"{each.dtype} [B{', ' if shape else ''}{shape}]" + ("" if device is None else f" on {device}")


def _array_text(value: Any) -> str:
    """What a batch holds of a field."""
    if not hasattr(value, "shape"):
        return f"list of {len(value):,}"
    device = str(getattr(value, "device", "cpu"))
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}" + (
        f" on {device}" if device != "cpu" else ""
    )

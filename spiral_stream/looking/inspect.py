"""`Inspection`: what a stream shows of itself: facts, single batches and samples, contact sheets. `PreparedStream` holds one.

It needs a `StreamRun` and nothing else. Nothing here moves the place, so all of it may be asked while a loop reads the stream.
`take` looks at what a loop would get.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, final

import pyarrow as pa

from spiral_stream.arguments import as_integer, door, integer
from spiral_stream.cursor import Cursor
from spiral_stream.errors import PlanError, SpiralError, StreamError, shown
from spiral_stream.fields.field import FieldSpec
from spiral_stream.looking.notebook import batch_formatter, remembered
from spiral_stream.plan.tree import relations_of
from spiral_stream.planner.binding.bindings import epoch_number
from spiral_stream.planner.decided_shares import decided_shares
from spiral_stream.planner.prepared_data.build import CacheStatus, caches, status
from spiral_stream.planner.state.skips import NOTHING
from spiral_stream.runtime.columns.error_sample import identities
from spiral_stream.runtime.columns.values import value_statuses
from spiral_stream.runtime.delivery import HOST
from spiral_stream.runtime.numbering.numbering import batch_number, need_not_skipped
from spiral_stream.runtime.numbering.random_access import OneSample, OrderedRows, alone, found_rows, position_in
from spiral_stream.runtime.numbering.run_batches import RunBatches
from spiral_stream.runtime.numbering.steps import first_delivery, length_of, need_delivered
from spiral_stream.runtime.run.loop import Pass
from spiral_stream.runtime.run.stream_run import StreamRun

if TYPE_CHECKING:
    from spiral_stream.explain import Explanation
    from spiral_stream.looking.contact_sheet import Sheet
    from spiral_stream.looking.stream_view import StreamView
    from spiral_stream.plan.column_sources import ColumnSources
    from spiral_stream.runs.seen import SeenSamples

LOOKED_AT_ROWS: Final = 1 << 20  # a stream over more rows is not opened in order to be shown
_SHOWN: Final = 4  # samples
_COUNT: Final = integer(1, None, "how many samples, from 1 up")


@final
class Inspection:
    """What a run of a plan shows of itself.

    Args:
        run: the run. Others may move it.
        name: of the stream's class, as it is shown.
    """

    def __init__(self, run: StreamRun, name: str) -> None:
        self._run, self._name = run, name

    def spec(self) -> dict[str, FieldSpec]:
        """Return dtype and shape of each field of a batch; reads nothing.

        Raises:
            MissingExtraError: the framework that decides on the dtypes is not installed.

        Examples:
            >>> stream.spec()["width"].dtype
            'int64'
        """
        return self._run.delivery.spec(dict(self._run.opening.specs))

    def column_sources(self) -> "dict[str, ColumnSources]":
        """Return what each field is computed from: stored columns of relations, and functions of maps on the way.

        A column that SQL text gives comes from the columns of its name, and, where there is none, from every column that the
        text names.

        Examples:
            >>> stream.column_sources()["width"].columns
            (('photos', 'width'),)
        """
        from spiral_stream.plan.column_sources import field_sources

        return field_sources(self._run.plan, lambda name: self._run.catalog.entry(name).schema.names)

    def devices(self) -> dict[str, str | None]:
        """Return the device of each array field; None if neither ``bind``, nor the field, nor the plan names one.

        Examples:
            >>> stream.devices()
            {'width': None}
        """
        return self._run.devices()

    def metrics(self) -> dict[str, Any]:
        """Return totals since the stream was made: rows, bytes, seconds by stage, queue depth, and what bounds it.

        Examples:
            >>> for batch in stream:
            ...     pass
            >>> stream.metrics()["batches"]
            6
        """
        return self._run.passes.totals()

    @door(PlanError)
    def explain(self, *, analyze: bool = False, network: str | None = None) -> "Explanation":
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
        from spiral_stream.explain import explain_stream

        run = self._run
        bound, threads = replace(run.bound(), epoch=run.position.drawn()), run.threads.working()
        facts = bound, self.devices(), threads, self.metrics() if analyze else None
        begin = Cursor(run.position.epoch).enter(*bound.shape)
        size = run.open().state_bytes(begin, bound.run_seed, bound.epoch)
        more = run.numbering(), run.catalog, size
        return explain_stream(run.stages(), *facts, *more, network, run.threads.read_batch_size, self.decided())

    def order(self, epoch: int | None = None) -> OrderedRows:
        """Return the order of an epoch (None: the present one): ``rows(positions)`` and ``positions(identity)``.

        Examples:
            >>> stream.order().rows([0])["photo_id"].to_pylist()
            ['p19']
        """
        return OrderedRows(self._run.stages(), self._run.position.drawn(epoch))

    def quarantine(self) -> pa.Table:
        """Return the samples that could not be read, one row per occurrence in a batch, of all ranks and processes.

        Examples:
            >>> stream.quarantine().num_rows
            0
        """
        return self._run.open().refusals.quarantine.read()

    def skipped(self) -> dict[str, Any]:
        """Return what the run skips, as JSON values.

        Returns:
            ``batches``, each ``[epoch, first, count]``, and ``samples``, each ``[epoch, batch, stream, identity]`` with the
            place from which on it is left out. Of tables of samples, if there are any, ``tables`` has
            ``[epoch, batch, rows, digest]``.

        Examples:
            >>> stream.skip(batches=[2])
            >>> stream.skipped()["batches"]
            [[0, 2, 1]]
        """
        found = self._run.opening.skips.to_json()
        return {name: found[name] for name in ("batches", "samples", "tables") if name in found}

    def decided(self) -> list[dict[str, Any]]:
        """Return what the run decided on, with the shares that follow from it.

        Returns:
            for each decision ``epoch`` and ``batch`` from which on it holds, and ``streams``: of each the ``share`` that was
            decided, of samples or of what ``by=`` names; ``rounded``, the share of samples that the rest of that epoch has;
            ``realised``, the share in what was delivered of it so far, and ``samples``, how many these are. Where windows or
            packing form batches, whole chapters count as delivered. None where the plan has several lanes.

        Examples:
            >>> stream.decided()
            []
        """
        run = self._run
        decisions = run.opening.decisions
        if not decisions:
            return []
        known = run.position.known()
        numbering = run.numbering()
        number = numbering.skips.number(known.epoch, known.batch)
        here = known.epoch, numbering.store.begun(known.epoch, number)
        return decided_shares(run.stages(), decisions, here)

    def caches(self) -> list[CacheStatus]:
        """Return how far each cache of this plan is built. Reads no payload; empty if the plan has nothing to cache.

        Raises:
            DamageError: the ledger of a cache is not what was written; the message says what mends it.

        Examples:
            >>> stream.caches()
            []
        """
        return [status(work) for work in caches(self._run.stages())] + value_statuses(self._run.stages())

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
        run = self._run
        wanted = as_integer(count)
        if wanted is None or wanted < 0:
            msg = f"take: count={shown(count)}. Give how many batches, a whole number from 0 up"
            raise StreamError(msg)
        run.position.here("take")
        steps = run.position.coming(run.numbering(), run.bound())
        passes = run.other_passes()  # metrics count none of it
        try:
            out = list[Any]()
            while len(out) < wanted and (numbers := steps.at(steps.start.step + len(out))) is not None:
                out.append(passes.build(run.now, run.delivery, steps.epoch, numbers, steps.batches))
            return out
        finally:
            passes.close()

    @door(StreamError)
    def seen(self, delivered: int | None = None) -> "SeenSamples":
        """Return what the run saw up to its place: samples, tokens and passes of each stream; printing it shows a table.

        A stream knows its present epoch alone: the result says that earlier ones are not recorded. Reads no payload. Batches
        of a fixed size are counted by arithmetic, others are drawn.

        Args:
            delivered: as for `state_dict`: how many batches the loop has had. Needed only if workers read the stream.

        Raises:
            StreamError: workers read, and ``delivered`` is missing.

        Examples:
            >>> batches = iter(stream)
            >>> first = next(batches)
            >>> batches.close()
            >>> print(stream.seen())
            SEEN
              batches    1
              epochs     0 (batches 0 to 0)
              stream    rows    samples    passes
              photos      48          8    0.167
            NOT RECORDED
              none: all is recorded
        """
        from spiral_stream.runs.leg import legs_of_state
        from spiral_stream.runs.opened_leg import OpenedLegs
        from spiral_stream.runs.seen import seen

        run = self._run
        bound, opening, plan = run.bound(), run.open(), run.plan
        with run.numbering().store.held("seen"):
            known = run.position.here("seen") if delivered is None else None
            cursor = run.position.after(delivered, run.numbering(), bound) if known is None else known  # type: ignore[arg-type]  # one of them is given
            state = opening.saved(cursor, bound.run_seed, run.position.drawn(cursor.epoch)).to_json()

        def legs() -> OpenedLegs:
            there = opening is run.opening and not run.closed
            return OpenedLegs(run.catalog, lambda _: plan, (opening, bound.run_seed) if there else None)

        return seen(legs_of_state(state), legs)

    # ---- random access

    def batch(self, number: int, epoch: int | None = None) -> Any:
        """Build one global batch by itself, whichever rank it belongs to.

        Args:
            number: global batch number, from 0. With one rank and no merge it equals the step, unless batches are skipped.
            epoch: None takes the present epoch.

        Raises:
            IndexError: the epoch has no such batch, or the run skips it.
            StreamError: the batches before it are not counted, and that takes long; says how long, and what counts them.

        Examples:
            >>> stream.batch(2)["id"][:2]
            ['p38', 'p16']
        """
        run = self._run
        drawn, delivered = self._delivery_of(number, epoch, "batch")
        built = run.passes.build(run.now, run.delivery, drawn, need_not_skipped(delivered, drawn, number))
        if (formatter := batch_formatter()) is not None:
            formatter.remember(built, self._batch_html())
        return built

    def sample(self, position: int, epoch: int | None = None) -> dict[str, Any]:
        """Build one sample by itself: its fields, as in a batch, without the dimension of the batch.

        Args:
            position: its place in the epoch's order, from 0; -1 is the last. `order` says which sample stands where.
            epoch: None takes the present epoch.

        Raises:
            IndexError: the epoch has no such position.
            StreamError: samples are packed, or a filter, flat_map or assemble decides which there are; or it is unreadable.

        Examples:
            >>> stream.sample(0)["id"]
            'p19'
        """
        run = self._run
        drawn = run.position.drawn(epoch)
        one = OneSample(run.stages(), position_in(run.stages(), drawn, position))
        return alone(run.passes.build(run.now, run.delivery, drawn, 0, RunBatches(one, NOTHING, run.stages())))

    def ledger(self, number: int, epoch: int | None = None) -> list[Any]:
        """Return which samples a global batch holds; reads payload only where the answer depends on it.

        Args:
            number: global batch number, from 0.
            epoch: None takes the present epoch.

        Returns:
            One identity per sample, in batch order, including unreadable samples (see `quarantine`); none of a skipped
            batch. An identity is a value, or a tuple: stream name (mixtures only), identity columns, part number (after
            ``flat_map``).

        Raises:
            IndexError: the epoch has no such batch.
            StreamError: as for `batch`.

        Examples:
            >>> stream.ledger(2)[:2]
            ['p38', 'p16']
        """
        drawn, _ = self._delivery_of(number, epoch, "ledger")
        found = self._run.open().samples(self._run.bound(), drawn, batch_number(number))
        return [] if found is None else identities(*found)

    def locate(self, identity: Any, epoch: int | None = None) -> dict[str, int] | None:
        """Return where a sample is delivered first, under the present bindings.

        Args:
            identity: as in `ledger`; the stream's name may be left out if one stream has it.
            epoch: None takes the present epoch.

        Returns:
            ``epoch``, ``batch``, ``step`` and ``rank``; None if the epoch does not use the sample, or its end drops it.

        Raises:
            KeyError: the plan keeps no row with this identity.
            StreamError: as for `batch`.

        Examples:
            >>> stream.locate(stream.ledger(2)[0])
            {'epoch': 0, 'batch': 2, 'step': 2, 'rank': 0}
        """
        run = self._run
        bound, numbering = run.bound(), run.numbering()
        at = run.position.epoch if epoch is None else epoch_number(epoch, "locate")
        drawn, (stream, rows) = run.position.drawn(at), found_rows(run.stages(), identity, "locate")
        numbers = numbering.find(drawn, stream, int(rows[0]))
        found = first_delivery(numbering, at, drawn, numbers, run.position.cursor, bound)
        return found and {**found, "batch": numbering.skips.number(drawn, found["batch"])}

    # ---- samples as people look at them

    def show(
        self,
        count: int = 8,
        *,
        batch: int | Mapping[str, Any] | None = None,
        epoch: int | None = None,
        tokenizer: Any = None,
        path: Any = None,
    ) -> "Sheet":
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
            from spiral_stream.looking.sampled import taken_of

            _COUNT.need("show: count=", count)
            sheet = taken_of(batch, self._run.stages(), self._run.catalog, count, tokenizer)
        else:
            sheet = self._taken(count, batch, epoch, tokenizer)
        if path is not None:
            sheet.save(path)
        return sheet

    def _taken(self, count: int, batch: int | None, epoch: int | None, tokenizer: Any) -> "Sheet":
        """The sheet of the samples from a batch on."""
        from spiral_stream.looking.sampled import taken

        run = self._run
        bound = run.bound()
        at, begin = run.position.drawn(epoch), 0
        if batch is not None:
            begin = need_not_skipped(self._delivery_of(batch, epoch, "show")[1], at, batch)
        else:
            known = run.position.known()
            begin = known.batch + bound.turn * bound.merge if epoch in (None, known.epoch) else 0
            begin = run.numbering().dealt(known.enter(*bound.shape).segments[-1:]).batch_at(at, begin)

        def build(drawn: int, delivered: int) -> dict[str, Any]:
            self._need_delivered(delivered, epoch)
            return self._built(drawn, delivered)

        _COUNT.need("show: count=", count)
        return taken(build, run.stages(), run.numbering(), run.catalog, at, begin, count, tokenizer)

    def _delivery_of(self, number: int, epoch: int | None, asked: str) -> tuple[int, int | None]:
        """The epoch whose order is drawn for a batch, and how many batches are delivered before it; None if it is skipped.

        Raises:
            IndexError: the epoch has no such batch.
            StreamError: the chapters before it are not counted, and counting them takes long.
        """
        drawn, numbering = self._run.position.drawn(epoch), self._run.numbering()
        named = batch_number(number)
        delivered = numbering.skips.delivered(drawn, named)
        if delivered is not None:
            numbering.store.limits.need_near(drawn, named, asked)
            self._need_delivered(delivered, epoch)
        return drawn, delivered

    def _need_delivered(self, delivered: int, epoch: int | None) -> None:
        run = self._run
        drawn, at = run.position.drawn(epoch), run.position.epoch if epoch is None else epoch
        need_delivered(run.numbering(), at, drawn, delivered, run.position.cursor, run.bound())

    def _built(self, epoch: int, number: int) -> dict[str, Any]:
        """Build a batch for looking, as NumPy arrays on the host; counts nothing."""
        run = self._run
        passes = run.other_passes()
        try:
            fields: dict[str, Any] = passes.build(lambda: (run.open(), run.bound(), {}), HOST, epoch, number)
        finally:
            passes.close()
        return fields

    def text(self) -> str:
        """Return what the stream is, and where it stands. Opens and reads nothing."""
        from spiral_stream.explain.outline import outline

        run = self._run
        if run.closed:
            return f"<{self._name}: closed>"
        lines = [f"<{self._name} to {run.plan.framework}"]
        lines += [f"  {line}" for line in outline(run.plan)]
        lines += [f"  {name}: {_field_text(each, device)}" for name, each, device in self._fields()]
        lines.append(f"  length: {self._length_text()}")
        lines.append(f"  stands in {self._cursor_text()}>")
        return "\n".join(lines)

    def _cursor_text(self) -> str:
        run = self._run
        position = run.position.known()
        number = run.opening.skips.number(run.position.drawn(position.epoch), position.batch)
        return f"epoch {position.epoch:,} before step {position.step:,} (global batch {number:,})"

    def view(self) -> "StreamView":
        """Return the plan, the fields and the place, and the next samples if showing them is cheap."""
        from spiral_stream.explain.outline import outline
        from spiral_stream.looking.stream_view import StreamView

        run = self._run
        title = f"{self._name} to {run.plan.framework}"
        if run.closed:
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
        facts = [("length", self._length_text()), ("place", self._cursor_text())]
        return StreamView(title, outline(run.plan), fields, facts, sheet, note)

    def _may_look(self) -> bool:
        """Whether showing samples reads little: the stream is open, or its relations have few rows."""
        run = self._run
        if run.was_opened:
            return True
        return sum(run.catalog.entry(name).manifest().total for name in relations_of(run.plan)) <= LOOKED_AT_ROWS

    def known_to_notebooks(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Let a notebook know the batches of a pass, so that each shows itself."""
        formatter = batch_formatter()
        return batches if formatter is None else Pass(remembered(formatter, batches, self._batch_html))

    def _batch_html(self) -> Callable[[Mapping[str, Any]], str | None]:
        """Return what shows a batch, for as long as the batch lives: it needs no open stream."""
        stages, catalog, name = self._run.stages(), self._run.catalog, self._name

        def html(batch: Mapping[str, Any]) -> str | None:
            from spiral_stream.looking.sampled import taken_of
            from spiral_stream.looking.stream_view import StreamView

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
            specs, devices = dict(self._run.opening.specs), {}
        for name, each in specs.items():
            yield name, each, devices.get(name)

    def _length_text(self) -> str:
        """How long an epoch is, if that is known without opening or counting."""
        run = self._run
        if not run.was_opened:
            return "len(stream) says; the stream is not open yet"
        try:
            steps = length_of(run.numbering(), run.position.drawn(), run.bound())
            return f"{steps:,} steps per epoch on rank {run.bound().rank} of {run.bound().world_size}"
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

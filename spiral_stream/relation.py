"""The verbs that build a plan. Each is a few lines over a plan node.

A `Relation` is a frozen plan, and the catalog in which its names are looked up. Every verb returns a new relation, so
several streams may share the beginning of a plan.

The verbs of rows lie in `row_verbs`; here are those that make samples and batches.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, final

import numpy as np
import pyarrow as pa

from spiral_stream.arguments import as_integer, door
from spiral_stream.batching.formation import Composition, Formation, expression_text
from spiral_stream.batching.row_exchange import row_exchange
from spiral_stream.batching.tail import DropPartial, Tail, as_tail
from spiral_stream.catalog.relation.row_identity import RowIdentity
from spiral_stream.display.progress import working
from spiral_stream.errors import PlanError, shown
from spiral_stream.expr import Expr, col
from spiral_stream.extras import need
from spiral_stream.fields.field import Field
from spiral_stream.fields.list import List
from spiral_stream.habits import not_iterable, uncounted
from spiral_stream.params import RuntimeParam
from spiral_stream.plan import combining, nodes
from spiral_stream.plan.bad_samples import OnError
from spiral_stream.plan.checks import column_list, column_names, warn_of_unheeded_sort
from spiral_stream.plan.decoded import with_decoded, with_steps
from spiral_stream.plan.fields.padded import with_mask
from spiral_stream.plan.functions.record_types import struct_of
from spiral_stream.plan.tree import find, spine
from spiral_stream.plan.verbs import maps, splits
from spiral_stream.plan.verbs.row_makers import natural_identity, sample_identity
from spiral_stream.planner.defaults import settled, tokenized
from spiral_stream.planner.narrow_ids import need_narrow_ids
from spiral_stream.row_verbs import RowVerbs
from spiral_stream.sampling.assignment import DataParallel
from spiral_stream.sampling.order import Order
from spiral_stream.sampling.orders.permutation import permute
from spiral_stream.seeding import key
from spiral_stream.sources.arrow.table import coded_once
from spiral_stream.sources.source import SCAN_ROWS
from spiral_stream.transforms.python import Function, NamedFunction, named_function, need_no_function
from spiral_stream.transforms.transform import Named

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from spiral_stream.adapters.jax import JaxStream
    from spiral_stream.adapters.torch import TorchStream
    from spiral_stream.explain import Explanation
    from spiral_stream.prepared import PreparedStream
    from spiral_stream.report.relation_view import RelationView
    from spiral_stream.runtime.numbering.random_access import OrderedRows

OTHERWISE: Final = "use to_numpy()"  # needs no framework
_FEW: Final = 20  # rows of a relation, at most, that shows some of them at a prompt
_RANKS = DataParallel(RuntimeParam("data_parallel_rank"), RuntimeParam("data_parallel_world_size"))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Relation(RowVerbs):
    """A plan so far: rows, then samples (after `sample`), then batches (after `collate`). Every verb returns a new one.

    Made by ``catalog.table(name)`` and ``catalog.sql(text)``.

    Examples:
        >>> relation = catalog.table("photos")
        >>> relation.filter("label = 2").select("photo_id", "width").to_arrow().num_rows
        16
    """

    # ---- the stream

    @door(PlanError)
    def sample(
        self,
        *,
        identity: str | Sequence[str] | RowIdentity | None = None,
        order: Order,
        epoch: RuntimeParam | int | None = None,
        assignment: DataParallel | None = None,
    ) -> Self:
        """Turn rows into samples: fix their identity, their order in each epoch, and which rank gets them.

        Args:
            identity: columns that identify a sample; None takes those that the relation was registered with, or the keys
                of groups. SQL text has none.
            order: for example ``ShardAwareShuffle(seed=17)``.
            epoch: ``RuntimeParam("epoch")`` (the default), or a number: every epoch is then like that one.
            assignment: ``DataParallel(...)``; None takes the run's rank and world size.

        Raises:
            PlanError: an argument is none of these, or the rows have no identity of their own and none is named.

        Warns:
            SpiralWarning: a `sort` comes before an order that undoes it; ``Sequential`` keeps it.

        Examples:
            >>> samples = photos.sample(order=spiral.ShardAwareShuffle(seed=17))
        """
        names = sample_identity(self.node) if identity is None else column_names(identity)
        when = RuntimeParam("epoch") if epoch is None else epoch
        sampled = self._with(nodes.Sample(self.node, names, order, when, assignment or _RANKS))
        warn_of_unheeded_sort(self.node, order)
        return sampled

    @door(PlanError, excepted=("batched", "random", "version", "with_index"))
    def map(
        self,
        what: Named | NamedFunction | Callable[..., Any],
        *,
        name: str | None = None,
        columns: Sequence[str] = (),
        returns: pa.DataType | Mapping[str, pa.DataType] | pa.Schema | None = None,
        batched: bool = True,
        random: bool = False,
        version: str | None = None,
        workers: int | None = None,
        with_index: bool = False,
        draws: int | None = None,
        call_rows: int | None = None,
    ) -> Self:
        """Add columns to samples: tokens of a text, or the values that a Python function returns.

        Args:
            what: ``Tokenize("text", tokenizer="...") >> "tokens"``, or a function. Several threads may call it at a time.
            name: the column that a function adds. ``fn(function) >> "name"`` says it too.
            columns: the columns that it takes, in order.
            returns: Arrow type of its values. With ``{"name": type, ...}``, or a schema, the function takes a record batch
                of ``columns`` and returns these columns: as a record batch, a dict of arrays, or a list of dicts.
            batched: whether it takes Arrow arrays of many samples; else the values, or a dict, of one sample at a time.
            random: also pass it the samples' random keys, shape [S], uint64; or not ``batched`` a NumPy generator.
            version: enters the fingerprint in place of the function's code; None takes its code, and that of its helpers.
            workers: run it in this many processes, for Python that holds the GIL; None: on the stream's threads.
            with_index: also pass it where each sample stands in the epoch's order, from 0, after the columns and before
                randomness: with ``batched`` an array of shape [S], int64; else an integer. `PreparedStream.order` tells who
                stands there. Filters do not change it, and the parts of a ``flat_map`` share it.
            draws: also pass it random keys of the row, [S, draws], or a list of generators: in every epoch and run the same.
            call_rows: the most samples of one call; None leaves it at 256.

        Raises:
            PlanError: a column is unknown, ``name`` or ``returns`` is missing, the transform is for images, no other
                process can find a function with ``workers``, or an argument is of functions and ``what`` is none.

        Examples:
            >>> def shade(width: int) -> float:
            ...     return width / 1_000
            >>> shaded = samples.map(shade, columns=["width"], name="shade", returns=pa.float32(), batched=False)
            >>> "shade" in shaded.columns
            True
        """
        options: dict[str, Any] = {"workers": workers, "with_index": with_index, "draws": draws, "call_rows": call_rows}
        if isinstance(what, Named):
            given = {"name": name, "columns": columns, "returns": returns, "batched": batched, "random": random}
            need_no_function(what, {**given, "version": version, **options})
            return self._with(tokenized(self.node, what, self.catalog.registry))
        made, name = named_function(what, name)
        if isinstance(returns, Mapping | pa.Schema):
            kind, options = struct_of(returns, name), {**options, "records": True}
            function = Function(made, column_list("map", columns), kind, batched, random, version, **options)
            return self._with(maps.SampleRecords(self.node, function))
        if name is None or returns is None:
            msg = (
                "map: a function needs name= and returns=, for example "
                '.map(score, columns=["text"], name="score", returns=pa.float32()), or returns={"score": pa.float32(), ...} '
                'for a function of record batches. fn(score) >> "score" in place of score says the name too'
            )
            raise PlanError(msg)
        function = Function(made, column_list("map", columns), returns, batched, random, version, **options)
        return self._with(maps.SampleMap(self.node, function, name))

    @door(PlanError, excepted=("batched", "random", "version"))
    def flat_map(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        columns: Sequence[str],
        returns: pa.DataType,
        fan_out: int,
        batched: bool = False,
        random: bool = False,
        version: str | None = None,
        workers: int | None = None,
    ) -> Self:
        """Replace each sample by several: one per value in the list that a function returns.

        The column ``part`` numbers the new samples of a parent from 0.

        Args:
            function: takes ``columns`` and returns a list of at most ``fan_out`` values per sample.
            name: the column that holds the values.
            columns: the columns that the function takes, in order.
            returns: Arrow type of one value of the list.
            fan_out: the most values per sample.
            batched: whether it takes Arrow arrays of many samples and returns a list array.
            random: as for `map`.
            version: as for `map`.
            workers: as for `map`.

        Raises:
            PlanError: a column is unknown or exists already, or an argument does not fit.

        Examples:
            >>> def words(caption: str) -> list[str]:
            ...     return caption.split()
            >>> each = samples.flat_map(words, name="word", columns=["caption"], returns=pa.utf8(), fan_out=3)
            >>> each.collate(batch_size=4, fields={"word": spiral.List("word")}).to_numpy()[0]["word"]
            ['Two', 'OWLS', 'Two', 'OWLS']
        """
        made = Function(
            function, column_list("flat_map", columns), pa.list_(returns), batched, random, version, workers=workers
        )
        return self._with(maps.SampleFlatMap(self.node, made, name, fan_out))

    @door(PlanError, excepted=("batched", "drop_last", "version"))
    def assemble(
        self,
        factory: Callable[..., Any],
        *,
        columns: Sequence[str],
        returns: pa.Schema,
        batched: bool = True,
        drop_last: bool = False,
        version: str | None = None,
    ) -> Self:
        """Assemble new samples from several others, with code that keeps state within a chapter (64 windows of a lane).

        Args:
            factory: called at the start of each chapter with a context (``epoch``, ``lane``, ``lanes``, ``chapter``, ``seed``,
                ``slot``, ``total_slots``, ``generator()``). It returns an object with ``push(table)`` and ``finish()``,
                which return tables of new samples, or None.
            columns: the columns of the tables that ``push`` takes.
            returns: the columns of a new sample; they include the identity.
            batched: whether ``push`` takes tables; else it takes one sample as a dict, and both return iterables of dicts.
            drop_last: leave out what an assembler still holds at a chapter's end: ``finish(drop_last=True)`` where it takes
                that, else ``finish`` is not called.
            version: as for `map`.

        Raises:
            PlanError: a column is unknown, or ``returns`` lacks the identity.

        Examples:
            >>> class Pairs:
            ...     def __init__(self, context):
            ...         self.held = []
            ...     def push(self, sample):
            ...         self.held.append(sample["photo_id"])
            ...         if len(self.held) == 2:
            ...             yield {"photo_id": self.held[0], "other": self.held[1]}
            ...             self.held = []
            ...     def finish(self):
            ...         return []
            >>> returns = pa.schema([("photo_id", pa.utf8()), ("other", pa.utf8())])
            >>> pairs = samples.assemble(Pairs, columns=["photo_id"], returns=returns, batched=False)
            >>> pairs.columns
            ['photo_id', 'other']
        """
        kind = pa.struct(list(returns))
        made = Function(factory, column_list("assemble", columns), kind, batched, version=version)
        return self._with(maps.SampleAssembly(self.node, made, drop_last))

    @door(PlanError)
    def collate(
        self,
        *,
        batch_size: int | None,
        fields: Mapping[str, Field],
        formation: Formation | None = None,
        composition: Composition | None = None,
        last: Tail | type[Tail] = DropPartial,
        on_error: OnError = "raise",
        error_budget: float | None = None,
        cost: str | Expr | None = None,
        balance: Literal["rows"] | None = None,
        step_batches: int | None = None,
    ) -> Self:
        """Turn samples into batches: fix which samples share one, what happens to a short last one, and the fields.

        Args:
            batch_size: samples per batch, or rows per batch where `Packed` puts several samples into a row. With a budget
                it is an upper limit; None leaves the size to the budget.
            fields: the keys of a batch, and what each holds, for example ``{"x": Stack("x"), "id": List("sample_id")}``.
            formation: which samples share a batch: ``WindowedBucket(...)`` or ``Packed(...)``; None takes ``batch_size``
                neighbours.
            composition: how the streams of a mixture share a batch: ``StratifiedByStream("stream_id")`` or ``OneStream()``.
            last: what happens to a short last batch: ``DropPartial``, ``KeepPartial`` or ``PadPartial``; `PadPartial` with a
                value adds a mask of the rows that are samples.
            on_error: what happens to a sample whose payload cannot be read, or for which a function raises. ``"raise"`` stops
                the stream, ``"skip"`` delivers the batch without it, ``"substitute"`` puts a copy of the next good sample of
                the batch in its place. `PreparedStream.quarantine` lists these samples.
            error_budget: the most such samples per epoch that a process accepts: a count, or a fraction of the epoch's
                samples (0.01 if None).
            cost: what a sample costs to train on, over columns that are known before payload is read, such as
                ``"len(tokens) + len(tokens) ** 2 / 4096"``. By it `PreparedStream.bind` deals optimizer steps to ranks.
            balance: ``"rows"`` exchanges rows between the batches of an optimizer step, so that they cost about the same.
            step_batches: with ``balance``: batches of an optimizer step, over all ranks; a run binds as many.

        Raises:
            PlanError: ``fields`` is not a dict, a field does not fit its column, or the arguments contradict each other.

        Warns:
            SpiralWarning: two fields decode one column with equal random transforms, which draw the same numbers.

        Examples:
            >>> fields = {"width": spiral.Stack("width", dtype="float32"), "id": spiral.List("photo_id")}
            >>> plan = samples.collate(batch_size=10, fields=fields, last=spiral.KeepPartial)
            >>> len(plan.to_numpy())
            5
        """
        rule = as_tail(last)
        fields = with_mask(with_steps(fields), rule, self.columns[0])
        node = need_narrow_ids(with_decoded(self.node, fields), fields, self.catalog)
        formed = batch_size, rule, tuple(fields.items()), settled(node, formation, composition, batch_size)
        text, exchange = expression_text("collate", "cost", cost), row_exchange(balance, step_batches)
        return self._with(nodes.Collate(node, *formed, on_error, error_budget, text, exchange))

    @door(PlanError)
    def to_torch(
        self,
        *,
        prefetch: int = 2,
        device: str | None = None,
        threads: int | None = None,
        read_batch_size: int | None = None,
    ) -> "TorchStream":
        """Return a stream of dicts of tensors, which is also a PyTorch ``IterableDataset``.

        Args:
            prefetch: how many batches are built ahead of the loop.
            device: the device of fields that name none, such as ``"cuda"``; None leaves them on the CPU.
            threads: the size of each pool of threads that fetch and decode; None divides the cores among the processes
                that read the stream. Batches are the same.
            read_batch_size: how many rows a task fetches and decodes at a time; None takes 64, and whole batches of columns
                that are only copied. Batches are the same.

        Raises:
            MissingExtraError: PyTorch is not installed.
            PlanError: the plan does not end with `collate`, or a number or device is wrong.

        Examples:
            >>> with plan.to_torch() as stream:
            ...     print(next(iter(stream))["width"].shape)
            torch.Size([8])
        """
        need("torch", "to_torch", OTHERWISE)
        from spiral_stream.adapters.torch import TorchStream

        made = nodes.Deliver(self.node, "torch", prefetch, device)
        return TorchStream(made, self.catalog, threads, read_batch_size=read_batch_size)

    @door(PlanError)
    def to_numpy(
        self, *, prefetch: int = 2, threads: int | None = None, read_batch_size: int | None = None
    ) -> "PreparedStream":
        """Return a stream of dicts of NumPy arrays.

        Args:
            prefetch: how many batches are built ahead of the loop.
            threads: as for `to_torch`.
            read_batch_size: as for `to_torch`.

        Raises:
            PlanError: the plan does not end with `collate`, or a number is wrong.

        Examples:
            >>> plan.to_numpy()[0]["width"].dtype
            dtype('int64')
        """
        from spiral_stream.prepared import PreparedStream

        made = nodes.Deliver(self.node, "numpy", prefetch)
        return PreparedStream(made, self.catalog, threads, read_batch_size=read_batch_size)

    @door(PlanError)
    def to_jax(
        self, *, prefetch: int = 2, threads: int | None = None, read_batch_size: int | None = None
    ) -> "JaxStream":
        """Return a stream of dicts of JAX arrays, on JAX's default device; JAX must be installed when it is bound or read.

        Args:
            prefetch: how many batches are built ahead of the loop.
            threads: as for `to_torch`.
            read_batch_size: as for `to_torch`.

        Examples:
            >>> plan.to_jax()[0]["width"].dtype  # JAX's own, unless jax_enable_x64 is set
            dtype('int32')
        """
        from spiral_stream.adapters.jax import JaxStream

        made = nodes.Deliver(self.node, "jax", prefetch)
        return JaxStream(made, self.catalog, threads, read_batch_size=read_batch_size)

    # ---- parts

    @door(PlanError, excepted=("exact",))
    def split(
        self,
        *,
        by: str | None = None,
        seed: int = 0,
        exact: bool = False,
        stratify: str | None = None,
        **parts: float,
    ) -> dict[str, Self]:
        """Cut the rows into named parts by the hash of a column: ``split(train=0.9, val=0.1)``, ``split(train=900, val=100)``.

        By fractions alone, nothing is read, each part has about its share, and a row never changes its part when rows are added
        or removed. Counts, ``exact`` and ``stratify`` read the columns concerned once, now; only before `sample`. Each part then
        has its exact number, whatever the order of the rows. The parts keep the borders that were found: a saved stream leaves
        every row where it is when rows are added. Another call finds other borders, which few rows cross.

        Args:
            by: the column whose value decides, so that rows with one value stay together (no patient in two parts); fractions and
                counts are of its values. By default the identity.
            seed: another one gives other parts.
            exact: fractions are rounded to exact numbers of values.
            stratify: a column of labels: each part has each label's share, rounded down or up with two parts (with k parts, less
                than k - 1 values off). Rows without a label are a stratum too. Implies ``exact``.
            **parts: part -> its share of the values, together at most 1; or its number of values.

        Raises:
            PlanError: the shares or counts are not legal or exceed the values, there is no such column, or a value of ``by`` has
                several labels.
            SourceError: a source cannot be read.

        Examples:
            >>> parts = photos.split(train=0.8, val=0.2, by="photo_id")
            >>> parts["train"].count() + parts["val"].count()
            48
            >>> {name: part.count() for name, part in photos.split(train=40, val=8).items()}
            {'train': 40, 'val': 8}
        """
        where = splits.deciding("split", by, natural_identity(self.node))
        if not splits.are_counts(parts, exact=exact or stratify is not None):
            splits.need_fractions(parts)
            if not exact and stratify is None:
                return {name: self.filter(test) for name, test in splits.parts(where, seed, parts).items()}
        self._need_rows("split")
        columns = {splits.HASH: col(where).hash(seed)}
        if stratify is not None:
            splits.need_label(stratify, self.schema)
            columns[splits.LABEL] = col(stratify)
        read = self.project(**columns).batches()
        values = splits.Deciding.read(read, repeated=by is not None)
        several = values.of_several()
        if by is not None and len(several):
            row = self.filter(col(where).hash(seed) == int(several[0])).project(where).head(1).to_arrow()
            msg = (
                f"split: rows of {where}={shown(row[where][0].as_py())}, which belong together, have several values of "
                f"{stratify!r}. Stratify by a column that is the same for all rows of a {where}, or leave by= out"
            )
            raise PlanError(msg)
        found = splits.exact_parts(where, seed, parts, values, stratify)
        return {name: self.filter(test) for name, test in found.items()}

    # ---- looking

    def to_arrow(self) -> pa.Table:
        """Return all rows as a table; only before `sample`.

        Raises:
            PlanError: the plan has samples already.
            SourceError: a source cannot be read.

        Examples:
            >>> texts.head(2).to_arrow()["text"].to_pylist()
            ['fox', 'fox fox']
        """
        self._need_rows("to_arrow")
        from spiral_stream.planner.selection.some_rows import batches
        from spiral_stream.planner.selection.whole import collect

        with working("reading rows"), self._opened() as opened:
            if find(self.node, nodes.Limit) or find(self.node, combining.Aggregate):  # which hold few of the rows
                return pa.Table.from_batches(batches(self.node, opened, SCAN_ROWS), self.schema)
            return collect(self.node, opened)

    def to_pandas(self) -> "pd.DataFrame":
        """Return all rows as a data frame of pandas, with the types that Arrow gives them; only before `sample`.

        Raises:
            MissingExtraError: pandas is not installed.
            PlanError: the plan has samples already.
            SourceError: a source cannot be read.

        Examples:
            >>> texts.drop("tokens").head(2).to_pandas()["text"].tolist()
            ['fox', 'fox fox']
        """
        self._need_rows("to_pandas")
        need("pandas", "to_pandas", "use to_arrow()")
        return coded_once(self.to_arrow()).to_pandas()

    def to_polars(self) -> "pl.DataFrame":
        """Return all rows as a data frame of Polars; only before `sample`.

        Raises:
            MissingExtraError: Polars is not installed.
            PlanError: the plan has samples already.
            SourceError: a source cannot be read.

        Examples:
            >>> texts.drop("tokens").head(2).to_polars()["doc_id"].to_list()
            [0, 1]
        """
        self._need_rows("to_polars")
        need("polars", "to_polars", "use to_arrow()")
        import polars as pl

        found = pl.from_arrow(self.to_arrow())
        assert isinstance(found, pl.DataFrame)
        return found

    @door(PlanError)
    def batches(self, rows: int = SCAN_ROWS) -> Iterator[pa.RecordBatch]:
        """Return all rows in their order, as record batches; only before `sample`. Memory holds one batch.

        `distinct` and `sort` keep the columns that they look at in memory; an aggregate and SQL text, what they make.

        Args:
            rows: of a batch; the last one may be shorter.

        Raises:
            PlanError: the plan has samples already, or ``rows`` is not at least 1.
            SourceError: a source cannot be read.

        Examples:
            >>> [batch.num_rows for batch in photos.filter("width >= 512").batches(10)]
            [10, 10, 7]
        """
        self._need_rows("batches")
        each = self._at_least("batches", "rows", rows, 1)
        return self._batches(each)

    def _batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        from spiral_stream.planner.selection.some_rows import batches

        with self._opened() as opened:
            yield from batches(self.node, opened, rows)

    @door(PlanError)
    def sample_rows(self, count: int = 5, *, seed: int = 0) -> pa.Table:
        """Return some rows at random, in their order; only before `sample`, which makes samples of all rows.

        The rows depend on the plan, its data, ``count`` and ``seed`` alone: another call gives the same ones. Rows of a relation
        are read by their address; after a filter or join the columns that decide are read twice.

        Args:
            count: how many; all rows, if there are fewer.
            seed: another one gives other rows.

        Raises:
            PlanError: the plan has samples already, or an argument is wrong.
            SourceError: a source cannot be read.

        Examples:
            >>> photos.sample_rows(3, seed=1)["photo_id"].to_pylist()
            ['p01', 'p13', 'p17']
        """
        self._need_rows("sample_rows")
        wanted, drawn = self._at_least("sample_rows", "count", count, 0), as_integer(seed)
        if drawn is None:
            msg = f"sample_rows: seed={shown(seed)}. Give an integer"
            raise PlanError(msg)
        from spiral_stream.planner.selection.some_rows import rows_at

        total = self.count()
        at = np.arange(min(wanted, total), dtype=np.uint64)
        drawn_rows = np.sort(permute(at, total, np.uint64(key("sample_rows", drawn)))) if len(at) else at
        with working("reading rows"), self._opened() as opened:
            return rows_at(self.node, opened, drawn_rows)

    def count(self) -> int:
        """Return the number of rows; only before `sample`. Where no metadata says it, the columns that decide are read.

        Raises:
            PlanError: the plan has samples already.
            SourceError: a source cannot be read.

        Examples:
            >>> photos.filter("label = 2").count()
            16
        """
        self._need_rows("count")
        found = self._known_count(self.node)
        if found is not None:
            return found
        from spiral_stream.planner.selection.some_rows import count

        with working("counting rows"), self._opened() as opened:
            return count(self.node, opened)

    def __len__(self) -> int:
        """Return the number of rows where metadata says it. It reads nothing, so elsewhere it is a TypeError: call `count`."""
        if not isinstance(self.node, nodes.Relational):
            msg = f"len: a plan after {self.node.VERB} has no rows. Ask its stream for batches: len(plan.to_torch())"
            raise TypeError(msg)
        found = self._known_count(self.node)
        if found is None:
            raise TypeError(uncounted(self.node.VERB))
        return found

    def __iter__(self) -> NoReturn:
        """A plan yields nothing itself, so this is a TypeError that names what does."""
        kind = next((each for each in (nodes.Collate, nodes.Relational) if isinstance(self.node, each)), nodes.Sampled)
        raise TypeError(not_iterable(kind.__name__, self.node.VERB))

    def __bool__(self) -> bool:
        """True: a plan is there, whether it has rows or not. ``relation.count() > 0`` asks for rows."""
        return True

    def describe(self) -> "Explanation":
        """Return what statistics say of each column: nulls, NaN, distinct values, least and greatest, mean. Reads no row.

        They were counted by ``catalog.measure(name)``, of all rows of a relation. What is not measured, or is computed, is
        listed with what would say it. Only before `sample`.

        Raises:
            PlanError: the plan has samples already.
            CatalogError: statistics are damaged.

        Examples:
            >>> statistics = catalog.measure("texts")
            >>> texts.describe().to_dict()["describe"][0]["distinct"]["value"]
            40
        """
        self._need_rows("describe")
        from spiral_stream.explain.described import described

        return described(self.node, self.catalog.registry)

    def _need_rows(self, verb: str) -> None:
        if not isinstance(self.node, nodes.Relational):
            stream = ": plan.to_numpy().to_arrow()" if verb == "to_arrow" else ""
            msg = f"{verb}: it comes after {self.node.VERB}. Call it before sample, or iterate the stream{stream}"
            raise PlanError(msg)

    @staticmethod
    def _at_least(verb: str, name: str, value: object, least: int) -> int:
        found = as_integer(value)
        if found is None or found < least:
            msg = f"{verb}: {name}={shown(value)}. Give an integer of at least {least}"
            raise PlanError(msg)
        return found

    @door(PlanError)
    def order(self, epoch: int = 0) -> "OrderedRows":
        """Return the order of an epoch, after `sample`: ``rows(positions)`` and ``positions(identity)``. Reads no payload.

        Examples:
            >>> samples.order(epoch=0).rows([0, 1])["photo_id"].to_pylist()
            ['p19', 'p17']
        """
        if isinstance(self.node, nodes.Sampled):
            identity = next(each.identity for each in spine(self.node) if isinstance(each, nodes.Sample))
            return self.collate(batch_size=1, fields={name: List(name) for name in identity}).order(epoch)
        return self.to_numpy().order(epoch)

    def explain(self) -> "Explanation":
        """Return the plan's outline, and what is known of its relations. `PreparedStream.explain` has every section.

        Examples:
            >>> print(str(photos.explain()).splitlines()[0])
            EXPLAIN DATA
        """
        from spiral_stream.explain import explain_plan

        return explain_plan(self.node, self.catalog.registry)

    def _repr_html_(self) -> str:
        """The relation or plan in a notebook: columns with histograms, a few rows, pictures. It reads little, see `report`."""
        return self._view().html()

    def __rich_console__(self, console: Any, options: Any) -> Iterable[Any]:
        del console, options
        yield self._view()

    def _view(self) -> "RelationView":
        from spiral_stream.report.relation_view import relation_view

        return relation_view(self.node, self.catalog)

    def __repr__(self) -> str:
        from spiral_stream.explain.outline import outline

        columns = [f"  {each.name}: {each.type}" for each in self.schema]
        said = "\n".join(["<Relation", *(f"  {line}" for line in outline(self.node)), *columns]) + ">"
        if hasattr(sys, "ps1") and isinstance(self.node, nodes.Limit) and self.node.count <= _FEW:
            return f"{said}\n{self._view().rows_text()}"
        return said

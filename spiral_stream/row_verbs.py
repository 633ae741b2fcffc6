"""The verbs of rows: those before `sample`, and a few that also work after it. Each is a few lines over a node.

`RowVerbs` has more than 12 methods, since each verb is one.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NoReturn, Self, TypeVar, final

import pyarrow as pa

from spiral_stream.arguments import door
from spiral_stream.catalog.registry import AnyCatalog
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.errors import PlanError, cut, shown, warn
from spiral_stream.expr import Alias, Col, Expr, col, lit
from spiral_stream.habits import OF_ROWS, TO_TORCH, answer
from spiral_stream.plan import combining, nodes
from spiral_stream.plan.checks import column_list, need_columns, need_name, need_new_names
from spiral_stream.plan.fields.profiles import Profile, renewed
from spiral_stream.plan.functions.cached_functions import SampleKept, need_seen
from spiral_stream.plan.saving.fingerprint import fingerprint
from spiral_stream.plan.tree import spine
from spiral_stream.plan.verbs import extents, maps, splits
from spiral_stream.plan.verbs.row_makers import natural_identity
from spiral_stream.relational.conditions import condition
from spiral_stream.sampling.order import Order
from spiral_stream.sources.source import FormerProfile
from spiral_stream.transforms.python import Function

if TYPE_CHECKING:
    from spiral_stream.report.nearest import VectorIndex

_CALL: Final = re.compile(r"\s*[A-Za-z_]\w*\(.*\)\s*", re.DOTALL)  # a text that looks like a call of SQL
R = TypeVar("R", bound="RowVerbs")


@dataclass(frozen=True, slots=True, eq=False)
class RowVerbs:
    """A plan so far, and the catalog in which its names are looked up."""

    node: nodes.Node
    catalog: AnyCatalog

    if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours

        def __getattr__(self, name: str) -> NoReturn:
            words = OF_ROWS
            if not name.startswith("_") and isinstance(self.node, nodes.Relational) and name in self.columns:
                words = {name: f'It is a column: write spiral.col("{name}") in an expression, or .select("{name}")'}
            answer(self, name, "relation", words)

        def __getitem__(self, key: object) -> NoReturn:
            """A relation is a plan, so it has no items; this is a TypeError that names the verbs."""
            if isinstance(key, str):
                way = f"Take the column: .select({key!r}).to_arrow(); in an expression it is spiral.col({key!r})"
            elif isinstance(key, list):
                way = f"Write .select({', '.join(map(repr, key))})"
            elif isinstance(key, Expr | bool):  # `relation.count == 1` is False
                way = 'Write .filter(spiral.col("label") == 1)'
            else:
                way = (
                    "Take .head(5).to_arrow(), or .sample_rows(5); a stream has batches by number: stream.batch(0). "
                    f"In place of a DataLoader: {TO_TORCH}"
                )
            msg = f"relation[{shown(key)}]: a relation has no items. {way}"
            raise TypeError(msg)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result.

        Examples:
            >>> photos.select("photo_id", "label").schema
            photo_id: string
            label: int64
        """
        return self.node.schema()

    @property
    def columns(self) -> list[str]:
        """The names of the columns.

        Examples:
            >>> texts.columns
            ['doc_id', 'text', 'tokens', 'storage_shard']
        """
        return list(self.schema.names)

    @property
    def fingerprint(self) -> str:
        """The plan's fingerprint: 32 hex digits.

        Examples:
            >>> photos.filter(col("width") >= 512).fingerprint == photos.filter("width >= 512").fingerprint
            True
        """
        return fingerprint(self.node)

    def _with(self, node: nodes.Node) -> Self:
        return replace(self, node=node)

    @contextmanager
    def _opened(self) -> Iterator[Callable[[str], OpenRelation]]:
        """Relations by name, each opened once; all are closed in the end."""
        with ExitStack() as held:
            yield cache(lambda name: held.enter_context(OpenRelation(self.catalog.entry(name))))

    # ---- relational verbs

    @door(PlanError, excepted=("batched", "version"))
    def filter(
        self,
        *predicates: Expr | str | Callable[..., Any],
        columns: Sequence[str] = (),
        batched: bool = True,
        version: str | None = None,
        workers: int | None = None,
    ) -> Self:
        """Keep the rows for which every predicate is true. After `sample`, a predicate may be a Python function.

        Args:
            *predicates: expressions over columns; or conditions in SQL, such as ``"width >= 256 and lang in ('de', 'en')"``,
                which mean what `col` means: no NaN is larger than a number, and ``%`` is floored. After `sample` also
                functions that return booleans.
            columns: the columns that a function takes, in order.
            batched: whether a function takes Arrow arrays; else it takes the values of one sample at a time.
            version: as for `map`.
            workers: as for `map`.

        Raises:
            PlanError: a predicate is not an expression or function, a text is no condition, or says what no expression says;
                a column is unknown, or types do not fit.

        Examples:
            >>> photos.filter((col("width") >= 512) & (col("meta")["lang"] == "en")).count()
            13
            >>> photos.filter("width >= 512 and meta.lang = 'en'").count()
            13
        """
        node = self.node
        tests = [condition(each, self.schema) if isinstance(each, str) else each for each in predicates]
        if version is not None and all(isinstance(each, Expr) for each in tests):
            msg = f"filter: version={shown(version)} stands for the code of a function, and no predicate is one. Leave it out"
            raise PlanError(msg)
        for predicate in tests:
            if isinstance(node, nodes.Sampled):
                test = (
                    predicate
                    if isinstance(predicate, Expr)
                    else Function(
                        predicate, column_list("filter", columns), pa.bool_(), batched, False, version, workers=workers
                    )
                )
                node = maps.SampleFilter(node, test)
            else:
                node = nodes.Filter(node, predicate)  # type: ignore[arg-type]  # the node refuses functions
        return self._with(node)

    where = filter  # noqa: A003  SQL's spelling; `filter` is Polars'

    @door(PlanError)
    def project(self, *columns: str | Expr, **computed: Expr) -> Self:
        """Keep these columns, in this order.

        Args:
            *columns: names, or expressions with a name: ``(col("a") + 1).alias("b")``.
            **computed: further columns, ``name=expression``.

        Raises:
            PlanError: a column is unknown, a name comes twice, or an expression has no name.

        Examples:
            >>> photos.project("photo_id", half=col("width") // 2).head(1).to_arrow().to_pylist()
            [{'photo_id': 'p00', 'half': 160}]
        """
        named: dict[str, Expr] = {}
        for each in columns:
            expr = col(each) if isinstance(each, str) else each
            name = need_name("project", expr)
            need_new_names("project", [*named, name], "Give one of them another: .project(name=...)")
            named[name] = expr
        need_new_names("project", [*named, *computed], "Give one of them another")
        _warn_of_texts("project", computed, self.schema)
        named.update({name: lit(value) for name, value in computed.items()})
        new = {name: expr for name, expr in named.items() if not (isinstance(expr, Col) and expr.name == name)}
        source = self.with_columns(**new).node if new else self.node
        return self._with(nodes.Project(source, tuple(named)))

    select = project

    @door(PlanError)
    def drop(self, *names: str) -> Self:
        """Leave columns out: `project` of all others.

        Args:
            *names: the columns.

        Raises:
            PlanError: there is no such column, or none would be left.

        Examples:
            >>> texts.drop("text", "tokens").columns
            ['doc_id', 'storage_shard']
        """
        need_columns("drop", names, self.schema)
        return self.project(*(name for name in self.columns if name not in names)) if names else self

    @door(PlanError)
    def rename(self, names: Mapping[str, str] | None = None, /, **new: str) -> Self:
        """Give columns other names, at their places: `project` with ``col("old").alias("new")``.

        A column of images, clips or sound that a field decodes keeps its name.

        Args:
            names: ``{"old": "new"}``, as in pandas and Polars.
            **new: ``new="old"``, as in ibis and in SQL's ``old AS new``.

        Raises:
            PlanError: there is no such column, one is named twice, or two would have one name.

        Examples:
            >>> texts.rename(words="text").columns
            ['doc_id', 'words', 'tokens', 'storage_shard']
            >>> texts.rename({"text": "words"}).columns
            ['doc_id', 'words', 'tokens', 'storage_shard']
        """
        given = next((name for name, old in new.items() if isinstance(old, Mapping)), None)
        if given is not None:
            msg = f"rename: {given}={shown(new[given])} is a dict. Give it without a name: rename({shown(new[given])})"
            raise PlanError(msg)
        pairs = [*(names or {}).items(), *((old, name) for name, old in new.items())]
        have = self.columns
        for old, name in pairs:
            if old not in have and name in have:
                pair = f'{{"{name}": "{old}"}}' if names and old in names else f'{old}="{name}"'
                msg = f"rename: {old!r} is not a column, and {name!r} is one. Write it the other way round: rename({pair})"
                raise PlanError(msg)
        need_columns("rename", tuple(old for old, _ in pairs), self.schema)
        renamed = dict(pairs)
        if len(renamed) < len(pairs):
            twice = next(old for old, name in pairs if renamed[old] != name)
            msg = f"rename: {twice!r} gets two names. Copy it first: .with_columns(copy=col({twice!r}))"
            raise PlanError(msg)
        after = [renamed.get(name, name) for name in have]
        need_new_names("rename", after, "Drop the other one first: .drop(...)")
        return self.project(
            *(name if name == now else col(name).alias(now) for name, now in zip(have, after, strict=True))
        )

    @door(PlanError)
    def head(self, count: int = 5) -> Self:
        """Keep the first rows: `limit`. Reading them stops there, unless a `sort` or `distinct` needs all rows.

        Args:
            count: how many.

        Examples:
            >>> photos.head(2).select("photo_id").to_arrow()["photo_id"].to_pylist()
            ['p00', 'p01']
        """
        return self.limit(count)

    @door(PlanError)
    def with_columns(self, **computed: Expr) -> Self:
        """Add or replace columns.

        Args:
            **computed: ``name=expression``; a number or text makes a constant column.

        Raises:
            PlanError: an expression names an unknown column, or types do not fit.

        Examples:
            >>> texts.with_columns(length=col("tokens").length()).columns
            ['doc_id', 'text', 'tokens', 'storage_shard', 'length']
        """
        _warn_of_texts("with_columns", computed, self.schema)
        exprs = tuple(e.source if isinstance(e, Alias) else e for e in map(lit, computed.values()))
        verb = maps.SampleColumns if isinstance(self.node, nodes.Sampled) else nodes.WithColumns
        return self._with(verb(self.node, tuple(computed), exprs))

    @door(PlanError, excepted=("suffix",))
    def join(
        self,
        other: "RowVerbs",
        on: str | Sequence[str] | None = None,
        *,
        how: combining.JoinHow = "inner",
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        suffix: str = "_right",
        validate: combining.JoinRule | None = None,
    ) -> Self:
        """Add the columns of the one right row with equal keys (N:1). Null keys match nothing.

        Args:
            other: the right relation.
            on: key columns that both relations have.
            how: ``"inner"`` drops left rows without a match, ``"left"`` gives them nulls.
            left_on: key columns of the left relation, instead of ``on``.
            right_on: key columns of the right relation, in the same order.
            suffix: added to the names of right columns that the left relation has too.
            validate: what the keys are now, in pandas' words: ``"one_to_one"`` (``"1:1"``), ``"many_to_one"`` (``"m:1"``),
                ``"one_to_many"`` (``"1:m"``); ``"many_to_many"`` checks nothing. It reads the key columns of the sides that are
                to have each key once, and is no part of the plan.

        Raises:
            PlanError: a key column is unknown, the keys differ in number or type, or are not what ``validate`` says.
                Several right rows with one key raise when the stream is prepared.

        Examples:
            >>> names = pa.table({"label": [0, 1], "name": ["fox", "owl"]})
            >>> entry = catalog.register("names", spiral.Arrow(names), identity="label")
            >>> photos.join(catalog.table("names"), on="label", how="inner").count()
            32
        """
        need_relations("join", self, other)
        if on is not None:
            if left_on is not None or right_on is not None:
                msg = "join: on= beside left_on= or right_on=. Give on= where the keys have one name, else both of the others"
                raise PlanError(msg)
            _need_on(on, self.schema, other.schema)
        left, right = (combining.join_keys(keys if on is None else on) for keys in (left_on, right_on))
        joined = self._with(combining.Join(self.node, other.node, left, right, how, suffix))
        if validate is not None:
            from spiral_stream.planner.validated import need_rule

            with self._opened() as opened:
                need_rule(validate, ((self.node, left), (other.node, right)), opened)
        return joined

    @door(PlanError, excepted=("*keys",))
    def group_by(self, *keys: str) -> "Grouped[Self]":
        """Group the rows by these columns; `Grouped.aggregate` follows.

        Examples:
            >>> photos.group_by("label").aggregate(widest=("width", "max")).sort("label").to_arrow()[
            ...     "widest"
            ... ].to_pylist()
            [704, 704, 704]
        """
        return Grouped(self, keys)

    @door(PlanError)
    def aggregate(self, **measures: tuple[str, str]) -> Self:
        """Aggregate all rows into one; arguments and errors as for `Grouped.aggregate`.

        Examples:
            >>> photos.aggregate(rows=("photo_id", "count"), widest=("width", "max")).to_arrow().to_pylist()
            [{'rows': 48, 'widest': 704}]
        """
        return Grouped(self, ()).aggregate(**measures)

    @door(PlanError)
    def distinct(self, *columns: str) -> Self:
        """Keep one row per distinct value of these columns (of all columns, if none are named).

        The first row is kept: the first of a `sort` before this verb, else the first as stored. NaN equals NaN here.

        Examples:
            >>> photos.distinct("label").count()
            3
        """
        return self._with(nodes.Distinct(self.node, columns or tuple(self.schema.names)))

    @door(PlanError, excepted=("descending",))
    def sort(self, *columns: str, descending: bool = False) -> Self:
        """Order the rows for a `limit` or `distinct` that follows, for `to_arrow`, or for ``sample(order=Sequential())``.

        NaN and then null come last in both directions. Equal rows keep their order.

        Args:
            *columns: the columns to sort by, most significant first.
            descending: largest first.

        Examples:
            >>> photos.sort("width", descending=True).head(1).to_arrow()["width"].to_pylist()
            [704]
        """
        return self._with(nodes.Sort(self.node, columns, descending))

    @door(PlanError)
    def folds(self, count: int, *, by: str | None = None, seed: int = 0) -> list[tuple[Self, Self]]:
        """Return (training, validation) for each of ``count`` folds, by the hash of a column as in `Relation.split`.

        Args:
            count: how many, at least 2.
            by: the column whose value decides, so that rows with one value stay together; by default the identity.
            seed: another one gives other folds.

        Raises:
            PlanError: ``count`` is less than 2, or there is no such column.

        Examples:
            >>> [(training.count() + held.count()) for training, held in photos.folds(3)]
            [48, 48, 48]
        """
        found = splits.folds(count, splits.deciding("folds", by, natural_identity(self.node)), seed)
        return [(self.filter(training), self.filter(validation)) for training, validation in found]

    @door(PlanError)
    def limit(self, count: int, *, fixed: bool = False) -> Self:
        """Keep the first ``count`` rows. After `sample`, the first ``count`` samples of every epoch. `take` is the same.

        Args:
            count: rows or samples.
            fixed: after `sample`, take the samples that epoch 0 begins with in every epoch, shuffled anew.

        Examples:
            >>> photos.limit(10).count()
            10
        """
        if isinstance(self.node, nodes.Sampled):
            return self._with(extents.SampleLimit(self.node, count, fixed))
        if fixed:
            msg = "limit: fixed=True is of samples. Write it after sample; before, the rows are the same in every epoch"
            raise PlanError(msg)
        return self._with(nodes.Limit(self.node, count))

    take = limit

    @door(PlanError)
    def skip(self, count: int, *, fixed: bool = False) -> Self:
        """After `sample`: leave out the first ``count`` samples of every epoch. Nothing of them is read.

        Args:
            count: how many; 0 leaves the plan as it is.
            fixed: leave out the samples that epoch 0 begins with in every epoch, and shuffle the others anew: what
                ``take(count, fixed=True)`` does not take.

        Raises:
            PlanError: it does not come directly after `sample`, or no sample is left. Where only the data say how many there
                are, it is raised when the stream is prepared.

        Examples:
            >>> len(samples.order()), len(samples.skip(8).order()), len(samples.skip(8).take(30).order())
            (48, 40, 30)
        """
        if isinstance(self.node, nodes.Relational):
            msg = (
                f"skip: follows {self.node.VERB}, and counts samples of an order. Write it after .sample(...): with "
                "order=Sequential() the first rows are skipped"
            )
            raise PlanError(msg)
        skipped = extents.SampleSkip(self.node, count, fixed)
        sample = next(each for each in spine(skipped) if isinstance(each, nodes.Sample))
        if type(sample.order).size is Order.size:  # a pass has every row
            extents.longest(skipped, self._known_count(sample.source))  # which refuses to skip everything
        return self._with(skipped) if count or fixed else self

    def _known_count(self, node: nodes.Node) -> int | None:
        from spiral_stream.planner.selection.some_rows import known_count

        return known_count(node, lambda name: self.catalog.entry(name).manifest().total)

    @door(PlanError)
    def repeat(self, times: int | None = None) -> Self:
        """After `sample`: make an epoch of several passes, without a short batch between them; None never ends.

        Examples:
            >>> twice = samples.repeat(2).collate(batch_size=8, fields={"width": spiral.Stack("width")})
            >>> len(twice.to_numpy())
            12
        """
        return self._with(extents.SampleRepeat(self.node, times))

    @door(PlanError)
    def union(self, *others: "RowVerbs") -> Self:
        """Append the rows of other relations, which have the same columns.

        Raises:
            PlanError: the columns differ, or the relations belong to different catalogs.

        Examples:
            >>> photos.head(10).union(photos.filter(col("label") == 2)).count()
            26
        """
        need_relations("union", self, *others)
        return self._with(combining.Union((self.node, *(other.node for other in others))))

    @door(PlanError)
    def cache(self, **profiles: Profile | FormerProfile) -> Self:
        """Declare a cache; `PreparedStream.materialize` builds it.

        Before `sample` it says in which form payload columns are kept. After `sample` it takes no argument, and keeps
        what the functions before it give: values of `map`, answers of `filter`, lists of `flat_map`.

        Args:
            **profiles: ``column=profile``: `Original`, `Jpeg`, `Raw` or `Frames`.

        Raises:
            PlanError: a column is unknown, or cannot be kept in this form; a function is not one of the row alone.

        Examples:
            >>> small = photos.cache(image=spiral.profiles.Jpeg(shorter_side=16))
        """
        if isinstance(self.node, nodes.Sampled):
            if profiles:
                given = f"{next(iter(profiles))}=..."
                msg = (
                    f"cache: {given} after sample; there it keeps what functions give, and takes no argument. Put "
                    f".cache({given}) before sample"
                )
                raise PlanError(msg)
            node = SampleKept(self.node)
            need_seen(node)
            return self._with(node)
        return self._with(nodes.Cache(self.node, tuple((name, renewed(profile)) for name, profile in profiles.items())))

    # ---- rows like these

    @door(PlanError)
    def index(self, column: str = "embedding", *, metric: Literal["cosine", "l2", "dot"] = "cosine") -> "VectorIndex":
        """Index a column of vectors, so that `nearest` finds rows like others: a stored one, or a function's after `sample`.

        It lies in the catalog's folder, one per relation and column, and needs the extra ``lancedb``. Up to 100,000 rows are
        searched exactly. Of an index that is there, only rows that are new, have changed or are gone are written.

        Args:
            column: of lists of numbers, all of one length.
            metric: by which rows are near: ``cosine``, ``l2`` or ``dot``.

        Raises:
            MissingExtraError: LanceDB is not installed.
            PlanError: the plan reads several relations, or the column holds no vectors.

        Examples:
            >>> def embed(width):
            ...     return [width / 704, 1.0]
            >>> embedded = samples.map(
            ...     embed, columns=["width"], name="embedding", returns=pa.list_(pa.float32(), 2), batched=False
            ... )
            >>> index = embedded.index("embedding")
            >>> index.rows, index.dimensions
            (48, 2)
        """
        from spiral_stream.report.nearest import build_index

        return build_index(self.node, self.catalog, column, metric)

    @door(PlanError)
    def vector_index(self, column: str = "embedding") -> "VectorIndex":
        """Return the index of a column of vectors, as `index` made it.

        Args:
            column: of vectors.

        Raises:
            PlanError: the column has no index, or one of other data.

        Examples:
            >>> table = pa.table({"id": range(3), "embedding": pa.array([[0.0, 1.0], [1.0, 0.0], [0.1, 1.0]])})
            >>> entry = catalog.register("points", spiral.Arrow(table), identity="id")
            >>> points = catalog.table("points")
            >>> points.index("embedding") == points.vector_index("embedding")
            True
        """
        from spiral_stream.report.nearest import opened_index, relation_of

        return opened_index(relation_of(self.node, "vector_index"), self.catalog, column, "vector_index")

    @door(PlanError)
    def nearest(self, to: Any, column: str = "embedding", count: int = 10) -> pa.Table:
        """Return the rows that are nearest to some, by the index of a column of vectors.

        Args:
            to: the identity of a row, a list of identities, or vectors: shape [D] or [N, D], floats.
            column: whose index is searched; `index` makes it.
            count: how many for each.

        Returns:
            A table: ``query``, from 0, the identity columns, ``distance``; the nearest first. A row is not near itself.

        Raises:
            MissingExtraError: LanceDB is not installed.
            PlanError: the column has no index, or one of other data; or no row has such an identity.

        Examples:
            >>> table = pa.table({"id": [1, 2, 3], "embedding": pa.array([[0.0, 1.0], [1.0, 0.0], [0.1, 1.0]])})
            >>> entry = catalog.register("few", spiral.Arrow(table), identity="id")
            >>> few = catalog.table("few")
            >>> index = few.index("embedding")
            >>> few.nearest(1, count=1)["id"].to_pylist()
            [3]
        """
        from spiral_stream.report.nearest import nearest, relation_of

        return nearest(relation_of(self.node, "nearest"), self.catalog, to, column, count)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Grouped(Generic[R]):
    """A relation grouped by keys; `aggregate` follows. Made by `Relation.group_by`.

    Examples:
        >>> by_camera = photos.group_by("camera")
        >>> by_camera.aggregate(photos=("photo_id", "count")).count()
        4
    """

    relation: R
    keys: tuple[str, ...]

    @door(PlanError)
    def aggregate(self, **measures: tuple[str, str]) -> R:
        """Return one row per group.

        Args:
            **measures: ``name=(column, function)``, where the function is ``"count"``, ``"count_distinct"``, ``"sum"``,
                ``"min"``, ``"max"`` or ``"avg"``.

        Raises:
            PlanError: a measure is not a pair, or its column or function is unknown.

        Examples:
            >>> photos.group_by("camera").aggregate(mean=("width", "avg"), kinds=("label", "count_distinct")).columns
            ['camera', 'mean', 'kinds']
        """
        parts = combining.measure_triples(measures)
        return replace(self.relation, node=combining.Aggregate(self.relation.node, self.keys, parts))

    agg = aggregate


def need_relations(verb: str, first: RowVerbs, *others: RowVerbs) -> None:
    """Refuse what is not a relation of the first one's catalog.

    Raises:
        PlanError: names the verb and the relation.
    """
    for other in others:
        if not isinstance(other, RowVerbs):
            raise PlanError(_no_relation(verb, other))
        if other.catalog.root != first.catalog.root:
            msg = (
                f"{verb}: the relations belong to two catalogs, {first.catalog.root} and {other.catalog.root}. "
                "Register both in one"
            )
            raise PlanError(msg)


def _no_relation(verb: str, other: object) -> str:
    """Say how a table of another library becomes a relation; it is not printed."""
    owner, name = type(other).__module__.partition(".")[0], type(other).__name__
    tables = {"pandas": "pyarrow.Table.from_pandas(frame)", "polars": "frame.to_arrow()", "pyarrow": "table"}
    if owner in tables and name in ("DataFrame", "Table"):
        return (
            f"{verb}: a {name} of {owner} is no relation. Register it: "
            f'catalog.register("labels", spiral.Arrow({tables[owner]}), identity="id"), and give catalog.table("labels")'
        )
    return f"{verb}: {shown(other)} is a {name}. Give a relation, for example catalog.table(...)"


def _need_on(on: object, ours: pa.Schema, theirs: pa.Schema) -> None:
    """Refuse keys that one side alone has, and a dict of them.

    Raises:
        PlanError: names ``left_on=`` and ``right_on=``.
    """
    if isinstance(on, Mapping):
        pairs = [(repr(str(left)), repr(str(right))) for left, right in on.items()]
        both = [names[0] if len(names) == 1 else f"[{', '.join(names)}]" for names in zip(*pairs, strict=True)]
        left, right = both or ("...", "...")
        msg = f"join: on={shown(on)} is a dict. Name the keys of each side: left_on={left}, right_on={right}"
        raise PlanError(msg)
    for name in combining.join_keys(on):  # type: ignore[arg-type]  # it refuses what is none
        if (name in ours.names) == (name in theirs.names):
            continue
        lacks, given, have = (
            ("right", f'left_on="{name}", right_on="..."', theirs)
            if name in ours.names
            else ("left", f'left_on="...", right_on="{name}"', ours)
        )
        msg = (
            f"join ({lacks} side): {name!r} is not a column of the input, and the other side has it; there are "
            f"{', '.join(have.names)}. Name the key of each side: {given}"
        )
        raise PlanError(msg)


def _warn_of_texts(verb: str, computed: Mapping[str, object], have: pa.Schema) -> None:
    """Warn of a text that looks like a computation: it is a constant."""
    for name, value in computed.items():
        if not isinstance(value, str):
            continue
        if value in have.names:
            way_out = f"spiral.col({shown(value)}) is the column"
        elif _CALL.fullmatch(value):
            way_out = f'catalog.sql("select *, {cut(value)} as {name} from ...") computes it'  # noqa: S608  words of a message
        else:
            continue
        warn(
            f"{verb}: {name}={shown(value)} is that text in every row. {way_out}; spiral.lit({shown(value)}) is the text"
        )

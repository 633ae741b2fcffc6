"""The catalog of the public API: `connect`, relations by name, saved streams; and short forms for the default catalog."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from spiral_stream.arguments import as_integer, door
from spiral_stream.catalog.names import suggestions
from spiral_stream.catalog.registry import Registry, default_folder
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.catalog.state_records import StateRecords
from spiral_stream.display.markup import PAGE_BYTES
from spiral_stream.display.progress import working
from spiral_stream.errors import BindError, CatalogError, PlanError, shown, warn
from spiral_stream.extras import need as need_package
from spiral_stream.fields.stack import Stack
from spiral_stream.habits import OF_CATALOG, answer
from spiral_stream.plan import nodes
from spiral_stream.plan.fields.profiles import Frames, Profile, renewed
from spiral_stream.plan.tree import need
from spiral_stream.relation import OTHERWISE, Relation
from spiral_stream.runs.verbs import RunVerbs
from spiral_stream.sources.internal.imported import ImportedRows
from spiral_stream.sources.source import FormerProfile
from spiral_stream.transforms.text.tokenize import Tokenize

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from spiral_stream.catalog.statistics.drift import Concentration, Drift
    from spiral_stream.catalog.statistics.measure import Statistics
    from spiral_stream.catalog.statistics.skew import Skew
    from spiral_stream.catalog.verify import Verified
    from spiral_stream.explain import Explanation
    from spiral_stream.plan.functions.trust import Trust
    from spiral_stream.planner.prepared_data.retention import PreparedData
    from spiral_stream.prepared import PreparedStream

EXPLAIN_DATA: Final = re.compile(
    r"(?i)\s*explain\s+(?:data\b(?P<after>\s+analyze\b)?|(?P<before>analyze)\s+data\b)"
    r"(\s+network\s+'(?P<network>.*?)')?\s*"
)
ANALYZED: Final = 16  # batches

Trusted = Iterable[ModuleType | str] | ModuleType | str


class Catalog(RunVerbs):
    """An embedded catalog: relations by name, tokenizers, saved streams, and their caches. Made by `connect`.

    Examples:
        >>> catalog = spiral.connect("catalog")
        >>> entry = catalog.register("more", spiral.Arrow(text_rows), identity="doc_id")
        >>> catalog.table("more").count()
        40
    """

    @door(CatalogError)
    def __init__(self, uri: str | os.PathLike[str]) -> None:
        self._registry = Registry(uri)

    @property
    def registry(self) -> Registry:
        """The names of the catalog, as the library's own rooms use them.

        Examples:
            >>> registry = catalog.registry
        """
        return self._registry

    def __repr__(self) -> str:
        return f"<Catalog in {self.uri}: {len(self.tables()):,} relations, {len(self.streams()):,} saved streams>"

    if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours

        def __getattr__(self, name: str) -> NoReturn:
            answer(self, name, "catalog", OF_CATALOG)

        def __getitem__(self, name: object) -> NoReturn:
            """A catalog has no items; this is a TypeError that names `table`."""
            msg = f"catalog[{shown(name)}]: a catalog has no items. Take catalog.table({shown(name)}); .tables() lists them"
            raise TypeError(msg)

        __iter__ = None  # with __getitem__, Python would ask for items 0, 1, 2, ...

    @door(CatalogError)
    def table(self, name: str) -> Relation:
        """Return all rows of a registered relation.

        Args:
            name: as it was registered, for example ``"vision.imagenet_train"``.

        Raises:
            CatalogError: the name is unknown; the message lists similar ones.

        Examples:
            >>> catalog.table("photos").count()
            48
        """
        self._know_runs(name)
        return Relation(self._scan(name), self)

    @door(CatalogError)
    def sql(self, text: str) -> Relation:
        """Return the rows of a query in DuckDB's dialect.

        Args:
            text: a query over registered names, such as ``select * from "vision.imagenet_train"``. After ``EXPLAIN DATA``,
                what `explain` takes; then an `Explanation` is returned, and nothing is run. ``EXPLAIN DATA ANALYZE`` and
                ``EXPLAIN ANALYZE DATA`` read some batches first.

        Raises:
            PlanError: the engine refuses the text; the message says where.

        Examples:
            >>> catalog.sql("select camera, max(width) as w from photos group by camera order by camera").to_arrow()[
            ...     "w"
            ... ].to_pylist()
            [704, 704, 704, 704]
        """
        explain = EXPLAIN_DATA.match(text) if isinstance(text, str) else None
        if explain is not None:
            analyze = bool(explain["after"] or explain["before"])
            return self.explain(text[explain.end() :], analyze=analyze, network=explain["network"])  # type: ignore[return-value]  # prefix
        self._know_runs(text)
        return Relation(self._sql(text), self)

    @door(CatalogError)
    def explain(
        self,
        what: str,
        *,
        analyze: bool = False,
        batches: int = ANALYZED,
        network: str | None = None,
        device: str | None = None,
        trust: "Trusted" = (),
    ) -> "Explanation":
        """Explain a saved stream, a relation or a query: ``EXPLAIN DATA <what>``.

        Args:
            what: the name of a saved stream or of a relation, or a SELECT.
            analyze: read some batches of a saved stream first, and show what was measured beside what is planned. Where
                this machine lacks the plan's device, they stay on the host, and a warning says so.
            batches: how many.
            network: of a saved stream: say what goes over this network, such as ``"10 Gbit/s, 50 ms"``.
            device: of a saved stream: of all its fields, in place of the plan's own.
            trust: as for `open_stream`.

        Raises:
            CatalogError: there is no such name; the message lists saved streams and relations.
            PlanError: the engine refuses the query; or ``analyze`` is asked of what is no saved stream.

        Examples:
            >>> catalog.save_stream("explained", stream)
            >>> str(catalog.explain("explained")).splitlines()[0][:12]
            'EXPLAIN DATA'
        """
        name = what.strip().rstrip(";").strip()
        bare = name[1:-1] if len(name) > 1 and name[0] == name[-1] == '"' else name
        self._know_runs(name)
        saved = self.streams()
        if bare in saved:
            if as_integer(batches) is None or batches < 0:
                msg = f"explain: batches={shown(batches)}. Give an integer of at least 0"
                raise PlanError(msg)
            with self.open_stream(bare, trust=trust, **({} if device is None else {"device": device})) as stream:
                return _measured(stream, batches, network) if analyze else stream.explain(network=network)
        if bare in self.tables() or len(bare.split()) > 1:
            if analyze or network is not None or device is not None:
                does, word = ("measures", "ANALYZE") if analyze else ("reads over a network", "NETWORK")
                does, word = (does, word) if analyze or network is not None else ("has a device", "device")
                msg = f"explain: {shown(name)} is no saved stream, and only a stream {does}. Leave {word} out, or save_stream it"
                raise PlanError(msg)
            return (self.table(bare) if bare in self.tables() else Relation(self._sql(name), self)).explain()
        streams = suggestions(bare, saved)
        msg = (
            f"explain: {shown(name)} is no saved stream and no relation of catalog {self.uri}. Of saved streams, {streams} "
            f"Of relations, {suggestions(bare, self.tables())} Save a stream with save_stream first, or give a SELECT"
        )
        raise CatalogError(msg)

    @door(CatalogError)
    def measure(self, name: str) -> "Statistics":
        """Measure statistics of every column, shard by shard, and keep them for EXPLAIN; reads no payload.

        Shards that were measured before, under whatever name, are not read again, except where a relation is one shard of at
        most 65,536 rows.

        Args:
            name: the relation.

        Raises:
            CatalogError: the name is unknown; the message lists similar ones.

        Examples:
            >>> statistics = catalog.measure("photos")
            >>> photos.describe().to_dict()["describe"][3]["max"]
            '704'
        """
        from spiral_stream.catalog.statistics.measure import are_shared, load_statistics, measure, save_statistics

        entry = self.entry(name)
        with suppress(CatalogError):  # what is damaged is counted again
            earlier = load_statistics(entry)
            if earlier is not None and len(earlier.columns) and are_shared(entry):
                return earlier
        with OpenRelation(entry) as relation:
            save_statistics(entry, found := measure(relation))
        return found

    @door(CatalogError)
    def page(
        self,
        path: str | os.PathLike[str] | None = None,
        *names: str,
        samples: int = 5,
        pictures: int = 8,
        batches: int = 2,
        max_bytes: int = PAGE_BYTES,
        trust: Trusted = (),
        report: Callable[[str, int, int], None] | None = None,
    ) -> Path:
        """Write one page on this catalog, which a browser shows without a network: relations, streams and caches.

        Reads of each relation what `report_relation` reads. Opens each saved stream, explains it, and builds its first
        batches; nothing else is read, and no stream's place is moved. What cannot be read is a note on the page.

        Args:
            path: of the file; None writes ``page.html`` beside the catalog.
            *names: relations and saved streams that have a section; none named: all.
            samples: rows of a relation that are shown.
            pictures: rows of a relation whose images, clips and sounds are shown.
            batches: of each stream; 0 builds none.
            max_bytes: of the page, from 256 KiB up; what does not fit is left out, and the page says so.
            trust: as for `open_stream`.
            report: called before each part with its name, how many parts are done, and of how many.

        Returns:
            Where the page is.

        Raises:
            CatalogError: a name is unknown, a number is out of range, or the file cannot be written.

        Examples:
            >>> catalog.page("page.html", "texts", batches=0).exists()
            True
        """
        from spiral_stream.report.build import write_page
        from spiral_stream.report.catalog_page import CatalogPage, requested

        for name in names:
            self._know_runs(name)
        request = requested(self, names, samples, pictures, batches, max_bytes, trust)
        with working("page", "parts", hidden=report is not None) as told:

            def tell(part: str, done: int, total: int) -> None:
                told.why = f"page: {part}"
                told(done, total)
                if report is not None:
                    report(part, done, total)

            made = CatalogPage(self, self, request, tell)
            return write_page(
                f"page of {made.location}", self.root / "page.html" if path is None else Path(path), made.html()
            )

    @door(CatalogError)
    def verify(self, name: str) -> "Verified":
        """Read every byte of a relation and of the files that it refers to, and compare with what was registered.

        The first call records a digest of every file; later calls compare with it.

        Args:
            name: the relation.

        Returns:
            What was read, and which files differ.

        Raises:
            CatalogError: the name is unknown; the message lists similar ones.
            SourceError: the source cannot be opened.

        Examples:
            >>> catalog.verify("photos").rows
            48
        """
        from spiral_stream.catalog.verify import verify

        return verify(self.entry(name))

    @door(CatalogError)
    def refused(self, name: str) -> "pa.Table":
        """Return the rows that importing a relation left out (``on_error="skip"``): where each lies, why, and what it holds.

        The columns are ``__file__``, ``place`` (such as ``line 17``), ``reason``, ``data`` (the first 4 KiB of what was found)
        and ``size_bytes`` (of all of it). Up to 10,000 rows and 16 MiB of each unit (a file, or a part of 256 MiB) are
        kept. If there were more, a warning says how many.

        Args:
            name: the relation. One that is read in place has no such rows.

        Raises:
            CatalogError: the name is unknown; the message lists similar ones.
            SourceError: what was noted of the import is missing or damaged.

        Examples:
            >>> catalog.refused("photos").num_rows
            0
        """
        from spiral_stream.catalog.relation.refused import SCHEMA, refused_rows

        source = self.entry(name).source
        if not isinstance(source, ImportedRows):
            return SCHEMA.empty_table()
        found, count = refused_rows(source)
        if len(found) < count:
            msg = f"{name}: {count:,} rows were left out, of which the first {len(found):,} of their files are kept"
            warn(msg)
        return found

    @door(CatalogError)
    def skew(self, name: str, column: str) -> "Skew | None":
        """Return how much the values of a column differ between shards; None if `measure` was not called.

        Examples:
            >>> statistics = catalog.measure("photos")
            >>> catalog.skew("photos", "label") is None
            False
        """
        from spiral_stream.catalog.statistics.measure import load_statistics
        from spiral_stream.catalog.statistics.skew import skew_of

        found = load_statistics(self.entry(name))
        return None if found is None else skew_of(found, column)

    @door(CatalogError)
    def concentration(self, name: str, column: str) -> "Concentration":
        """Return how unevenly a relation's rows are spread over the values of a column; reads that column.

        Examples:
            >>> statistics = catalog.measure("photos")
            >>> places = catalog.concentration("photos", "label")
        """
        from spiral_stream.catalog.statistics.drift import concentration

        return concentration(self._codes(name, column)[0])

    @door(CatalogError)
    def drift(self, name: str, column: str, along: str) -> "Drift":
        """Return how much the values of a column drift along another, such as the time of ingest; reads both columns.

        Examples:
            >>> statistics = catalog.measure("photos")
            >>> over_time = catalog.drift("photos", "label", along="taken")
        """
        from spiral_stream.catalog.statistics.drift import drift

        codes, axis = self._codes(name, column, along)
        return drift(codes, axis)

    def _codes(self, name: str, column: str, *others: str) -> "list[NDArray[Any]]":
        """Return a column's dictionary codes, and other columns unchanged; rows with nulls in the latter are dropped."""
        rows = self.table(name).project(column, *others).to_arrow()
        for other in others:
            rows = rows.filter(rows[other].is_valid())
        codes = rows[column].combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
        return [codes, *(rows[other].to_numpy() for other in others)]

    @door(CatalogError)
    def save_stream(self, name: str, plan: "Relation | PreparedStream") -> None:
        """Save a stream's plan under a name, for `open_stream`. Bindings and place are not saved.

        Args:
            name: the stream's name.
            plan: a stream, or the plan of one, which ends with a ``to_...`` verb.

        Raises:
            PlanError: it is neither, or the plan holds something that cannot be saved.

        Examples:
            >>> catalog.save_stream("train", plan.to_torch())
            >>> "train" in catalog.streams()
            True
        """
        from spiral_stream.plan.saving.canonical import to_json
        from spiral_stream.prepared import PreparedStream

        if not isinstance(plan, Relation | PreparedStream):
            msg = f"save_stream {name!r}: {shown(plan)} is a {type(plan).__name__}. Give a stream, or the plan of one"
            raise PlanError(msg)
        node = plan.node if isinstance(plan, Relation) else plan.plan
        need(node, nodes.Deliver)
        self._registry.saved.save(name, to_json(node))

    @door(CatalogError)
    def open_stream(self, name: str, *, trust: Trusted = (), **bindings: Any) -> "PreparedStream":
        """Prepare the stream of a saved plan.

        Args:
            name: as it was saved.
            trust: modules whose functions and classes the plan may name, including their submodules. Modules in
                ``$SPIRAL_TRUST`` (names separated by commas) count too. Without either, the plan may name code of your
                own that this process has imported; opening imports nothing.
            **bindings: as for `PreparedStream.bind`.

        Raises:
            CatalogError: the name is unknown; the message lists similar ones.
            TrustError: the plan names code that is not trusted.
            PlanError: the plan cannot be read here, or code that it names has changed.
            BindError: a binding is wrong.

        Examples:
            >>> catalog.save_stream("kept", plan.to_numpy())
            >>> with catalog.open_stream("kept") as stream:
            ...     print(stream.batch(0)["id"][:2])
            ['p19', 'p17']
        """
        stream = _prepared(need(self._plan(name, _trust(trust)), nodes.Deliver), self)
        return stream.bind(**bindings) if bindings else stream

    @door(CatalogError)
    def export_state(self, state: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
        """Write a state, with all that it names in this catalog, to one file beside a checkpoint.

        A state names lists that are too long for it: the data versions of many relations, long skips, rebases of many streams.
        It is needed where a run goes on with another catalog.

        Args:
            state: what `state_dict` returned.
            path: of the file, which is written anew.

        Raises:
            ResumeError: it is no state, or this catalog lacks what it names.
            CatalogError: the file cannot be written.

        Examples:
            >>> catalog.save_stream("moving", plan.to_numpy())
            >>> with catalog.open_stream("moving") as stream:
            ...     catalog.export_state(stream.state_dict(), "state.spiral")
        """
        from spiral_stream.planner.state.saved_state import SavedState

        records = StateRecords(self.root)
        saved = SavedState.from_json(state, records)
        tables = [each.digest for each in saved.skips.tables]
        records.export(saved.to_json(), [*dict(saved.list_digests).values(), *tables], Path(path))

    @door(CatalogError)
    def import_state(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Return the state in a file of `export_state`, and keep in this catalog what it names.

        Args:
            path: of the file.

        Raises:
            CatalogError: the file is none, or is damaged; or the catalog cannot be written.

        Examples:
            >>> catalog.save_stream("moved", plan.to_numpy())
            >>> with catalog.open_stream("moved") as stream:
            ...     catalog.export_state(stream.state_dict(), "moved.spiral")
            >>> state = catalog.import_state("moved.spiral")
        """
        return StateRecords(self.root).imported(Path(path))

    @door(CatalogError)
    def caches(
        self, *, remove_dead: bool = False, older_than: timedelta = timedelta(days=7), trust: Trusted = ()
    ) -> "list[PreparedData]":
        """Return what lies in the prepared folder, who uses it, and what of it is dead; reads no payload.

        Dead is what no saved stream names, and what was made of shards that no registered relation has any more.
        Other catalogs that share ``$SPIRAL_CACHE`` count too. Where that is a store, parts of shards that are gone are removed
        from it as well: they are marked first, and removed by a call that comes ``older_than`` later.

        Args:
            remove_dead: remove what is dead, except what a process has open.
            older_than: what was used or written within this time is not dead.
            trust: modules whose functions saved plans may name. A plan that cannot be read counts as one that names
                everything of its relations.

        Raises:
            CatalogError: a relation cannot be read, so nobody knows which of its shards are there.
            CacheError: the folder cannot be written.

        Examples:
            >>> first = stream.take(1)
            >>> sum(each.bytes for each in catalog.caches()) > 0
            True
            >>> removed = catalog.caches(remove_dead=True)
        """
        from spiral_stream.planner.prepared_data.retention import looked_over

        allowed = _trust(trust)

        def plans(folder: Path) -> tuple[Registry, Callable[[str], nodes.Node]]:
            catalog = self if folder == self.root else Catalog(folder)
            return catalog.registry, lambda name: catalog._plan(name, allowed)  # noqa: SLF001  a catalog of our own

        return looked_over(self._registry, plans, remove_dead=remove_dead, older_than=older_than)

    def _plan(self, name: str, trust: "Trust") -> nodes.Node:
        from spiral_stream.plan.saving.saved import from_json

        return from_json(self._registry.saved.plan(name), self._scan, self._sql, trust)

    def _scan(self, name: str) -> nodes.Scan:
        entry = self._registry.entry(name)
        return nodes.Scan(name, entry.schema, entry.identity)

    def _prepared_data(self, trust: Trusted) -> "list[PreparedData]":
        return self.caches(trust=trust)

    def _trusted(self, modules: Trusted) -> "Trust":
        return _trust(modules)

    def _sql(self, text: str) -> nodes.Sql:
        from spiral_stream.catalog.statistics.measure import may_hold_nan
        from spiral_stream.relational.sql import describe_sql

        known = self._registry.relations.schemas()
        try:
            found = describe_sql(text, known)
        except PlanError:
            for name in self.tables():
                if name not in known and name in text:
                    self._registry.entry(name)  # says why it cannot be read
            raise
        columns = [
            f"{name}.{column}" for name, column in found.floats if may_hold_nan(self._registry.entry(name), column)
        ]
        return nodes.Sql(text, found.used, found.schema, tuple(columns), found.unsteady)


@door(CatalogError)
def connect(uri: str | None = None) -> Catalog:
    """Open a catalog, or make a new one.

    Args:
        uri: its folder, or its place on an object store (``s3://team/catalog``); None takes ``$SPIRAL_CATALOG``, else
            ``./catalog``. ``$SPIRAL_CATALOG_MIRROR`` says where this machine keeps what it used of one on a store.

    Raises:
        CatalogError: the folder cannot be made, or the URI is none.

    Examples:
        >>> catalog = spiral.connect("catalog")
        >>> "photos" in catalog.tables()
        True
    """
    return Catalog(default_folder() if uri is None else uri)


@door(PlanError)
def cache_fingerprint(
    relation: str,
    column: str,
    form: Profile | FormerProfile | Tokenize,
    decode: str | Stack = "jpeg",
    *,
    timed: bool = False,
    lists: bool = False,
) -> str:
    """Return the fingerprint of a cache from names and settings alone, as a code version for an orchestrator.

    For images and clips it is the fingerprint that `PreparedStream.caches` gives. Of a tokenizer only the name
    counts here, because its content is data; the fingerprint of a built token cache covers the content.

    Args:
        relation: the relation that holds the source bytes.
        column: its column of references or text.
        form: what is stored per row: a profile, or the `Tokenize` that makes tokens.
        decode: the field that reads the column, or how it decodes. Clips (`Frames`) need the field.
        timed: whether the relation has the columns ``start_time_ms`` and ``duration_ms``, which place a clip in its file.
        lists: whether the column holds a list of images per row.

    Returns:
        32 hex digits.

    Raises:
        PlanError: ``form`` is `Frames`, and ``decode`` is not the field that reads the clips.

    Examples:
        >>> len(spiral.profiles.cache_fingerprint("photos", "image", spiral.Raw(shorter_side=20)))
        32
    """
    from spiral_stream.cache.fingerprint import clip_facts, image_facts, token_code_facts
    from spiral_stream.decoders.limits import CLIPS
    from spiral_stream.decoders.registry import decoder
    from spiral_stream.plan.fields.clips import clip_parts, limits_of
    from spiral_stream.plan.fields.dtypes import image_parts
    from spiral_stream.plan.saving.fingerprint import digest

    if isinstance(form, Tokenize):
        return digest(token_code_facts(relation, column, form))
    if isinstance(form, Frames):
        if isinstance(decode, str):
            msg = f"cache_fingerprint: decode is {decode!r}, but a clip cache stores the frames that a field takes. "
            msg += f"Give the field: decode=Stack({column!r}, decode='h264', sequence_length=...)"
            raise PlanError(msg)
        selection, _ = clip_parts(decode)
        return digest(clip_facts(relation, column, selection, form, limits_of(decode, CLIPS), timed=timed))
    reader = decoder(decode) if isinstance(decode, str) else image_parts(decode)[0]
    return digest(image_facts(relation, column, reader, renewed(form), lists=lists))


@door(CatalogError)
def table(name: str) -> Relation:
    """Return all rows of a relation of the default catalog; see `Catalog.table`.

    Examples:
        >>> import os
        >>> os.environ["SPIRAL_CATALOG"] = "catalog"
        >>> spiral.table("photos").count()
        48
    """
    return connect().table(name)


@door(CatalogError)
def sql(text: str) -> Relation:
    """Return the rows of a query over the default catalog; see `Catalog.sql`.

    Examples:
        >>> import os
        >>> os.environ["SPIRAL_CATALOG"] = "catalog"
        >>> spiral.sql("select count(*) as n from photos").to_arrow().to_pylist()
        [{'n': 48}]
    """
    return connect().sql(text)


@door(CatalogError)
def open_stream(name: str, *, trust: Trusted = (), **bindings: Any) -> "PreparedStream":
    """Prepare a saved stream of the default catalog; see `Catalog.open_stream`.

    Examples:
        >>> import os
        >>> os.environ["SPIRAL_CATALOG"] = "catalog"
        >>> catalog.save_stream("widths", plan.to_numpy())
        >>> with spiral.open_stream("widths") as stream:
        ...     print(len(stream))
        6
    """
    return connect().open_stream(name, trust=trust, **bindings)


def _trust(modules: Trusted) -> "Trust":
    """Return which modules a saved plan may name: those of the caller and those of the environment."""
    from spiral_stream.plan.functions.trust import TRUST_ENV, Trust

    given = (modules,) if isinstance(modules, str | ModuleType) else tuple(modules)
    allowed = (name.strip() for name in os.environ.get(TRUST_ENV, "").split(","))
    return Trust([*given, *(name for name in allowed if name)])


def _measured(stream: "PreparedStream", batches: int, network: str | None) -> "Explanation":
    """Read some batches and explain the stream; without the plan's device here, batches stay on the host."""
    from spiral_stream.explain import Explanation

    away = None
    try:
        reading = iter(stream)
    except BindError as error:
        away, reading = str(error), iter(stream.bind(device="cpu"))
    for _ in islice(reading, batches):
        pass
    found = stream.explain(analyze=True, network=network)
    if away is None:
        return found
    lines = found.facts["warnings"]
    return Explanation({**found.facts, "warnings": [*lines, f"{len(lines) + 1} measured on the host: {away}"]})


def _prepared(plan: nodes.Deliver, catalog: Catalog) -> "PreparedStream":
    if plan.framework == "torch":
        need_package("torch", "to_torch", OTHERWISE)
        from spiral_stream.adapters.torch import TorchStream

        return TorchStream(plan, catalog)
    if plan.framework == "jax":
        from spiral_stream.adapters.jax import JaxStream

        return JaxStream(plan, catalog)
    from spiral_stream.prepared import PreparedStream

    return PreparedStream(plan, catalog)

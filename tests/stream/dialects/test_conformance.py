"""One predicate passes the same rows in Lance, Parquet, DuckDB, pyarrow and NumPy."""

import datetime as dt
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import lance
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
import vortex
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Arrow, Expr, Lance, Parquet, col, lit
from spiral_stream.dialects import passes, split, to_arrow, to_lance, to_parquet
from spiral_stream.dialects.vortex import to_vortex
from spiral_stream.expr import bind, canonical, from_json, to_json
from spiral_stream.expr.nodes import Call
from spiral_stream.sources import ROW, Reader, Vortex
from tests.fixtures.duckdb_dialect import to_duckdb
from tests.fixtures.examples import few

NAN, INF = math.nan, math.inf
F32 = float(np.float32(0.7))
NEGATIVE_NAN = float(np.frombuffer(np.uint64(0xFFF8000000000000).tobytes(), np.float64)[0])
FLOATS = [0.7, F32, NAN, NEGATIVE_NAN, 0.0, -0.0, INF, -INF, None, 5e-324, 0.1, 0.3, -1.5, 2.5, 2.0**53, 16777217.0]
INTS = [0, 1, -1, 2, 3, -7, 7, None, 127, -128, 100, 50]
LONGS = [0, 1, -1, 2**63 - 1, -(2**63), 2**53 + 1, -(2**53) - 1, None, 3, -7, 10**12, 7]
TEXTS = [
    "",
    "a",
    "A",
    "a'b",
    'q"`',
    "%_",
    "\\n\\",
    "é",
    "É",
    "ß",
    "😀x",
    None,
    "train",
    "TRAIN",
    "zz",
    "\ufffd",
    "\uffff",
]
BOOLS = [True, False, None]
TIMES = [0, 1, -1, None, 1_577_836_800_000_000, -62_135_596_800_000_000, 86_400_000_000, 5]
DATES = [0, 1, -1, None, 18_262, -719_162, 10]
LISTS = [[], [1], None, [1, 2], [None], [1, 2, 3]]
BINARY = [b"", b"\x00\xff", None, b"a", b"'"]
TYPES = {
    "d": (pa.float64(), FLOATS),
    "e": (pa.float64(), FLOATS),
    "f": (pa.float32(), FLOATS),
    "i": (pa.int32(), INTS),
    "t": (pa.int8(), INTS),
    "l": (pa.int64(), LONGS),
    "m": (pa.int64(), LONGS),
    "u": (pa.uint64(), [0, 1, 2**64 - 1, 2**63, 7, None]),
    "s": (pa.string(), TEXTS),
    "odd name'": (pa.string(), TEXTS),
    "kind": (pa.dictionary(pa.int8(), pa.string()), TEXTS),
    "big": (pa.large_string(), TEXTS),
    "v": (pa.uint16(), [0, 1, 65535, None]),
    "b": (pa.bool_(), BOOLS),
    "us": (pa.timestamp("us"), TIMES),
    "ns": (pa.timestamp("ns", tz="UTC"), [0, 1, -1, None, 1_577_836_800_000_000_001, 10**9]),
    "sec": (pa.timestamp("s"), [0, 1, -1, None, 1_577_836_800]),
    "day": (pa.date32(), DATES),
    "li": (pa.list_(pa.int32()), LISTS),
    "x": (pa.binary(), BINARY),
    "st": (pa.struct([("a", pa.string()), ("n", pa.float64())]), [None, {"a": "é", "n": NAN}, {"a": None, "n": -0.5}]),
}
GROUP = 5  # rows of a row group: small, so that statistics decide about many of them


def _table() -> pa.Table:
    pick = np.random.default_rng(7)
    random = {name: [values[k] for k in pick.integers(0, len(values), 45)] for name, (_, values) in TYPES.items()}
    # groups whose statistics hide a NaN: all others equal, above or below the usual constants
    for fill in (0.7, 0.8, 0.1):
        for name in TYPES:
            random[name] += [fill, NAN, fill, fill, NEGATIVE_NAN] if name in ("d", "e", "f") else random[name][:GROUP]
    columns = {name: pa.array(random[name], kind) for name, (kind, _) in TYPES.items()}
    return pa.table({"k": pa.array(range(60), pa.int64()), **columns})


TABLE = _table()
SCHEMA = TABLE.schema


class Engines:
    """Each engine as a function from predicate to the rows that pass."""

    def __init__(self, folder: Path) -> None:
        self.lance = lance.write_dataset(TABLE, str(folder / "t.lance"), max_rows_per_file=GROUP * 4)
        pq.write_table(TABLE, folder / "t.parquet", row_group_size=GROUP)
        self.parquet = pads.dataset(folder / "t.parquet")
        vortex.io.write(TABLE, str(folder / "t.vortex"))
        self.vortex = vortex.open(str(folder / "t.vortex"))
        self.duckdb = duckdb.connect()
        self.duckdb.execute("SET TimeZone = 'Pacific/Auckland'")  # no answer may depend on it
        self.duckdb.register("t", TABLE)

    def rows(self, predicate: Expr) -> Iterator[tuple[str, list[int]]]:
        yield "lance", _keys(self._lance(predicate), predicate, to_lance)
        yield "parquet", _keys(self._arrow(self.parquet, predicate, to_parquet), predicate, to_parquet)
        yield "memory", _keys(self._arrow(pads.dataset(TABLE), predicate, to_arrow), predicate, to_arrow)
        yield "vortex", _keys(self._vortex(predicate), predicate, to_vortex)
        yield "duckdb", _keys(self._duckdb(predicate), predicate, to_duckdb)

    def _lance(self, predicate: Expr) -> pa.Table:
        pushed, _ = split(predicate, SCHEMA, to_lance)
        return self.lance.scanner(filter=None if pushed is None else to_lance(pushed, SCHEMA)).to_table()

    def _vortex(self, predicate: Expr) -> pa.Table:
        pushed, _ = split(predicate, SCHEMA, to_vortex)
        kept = self.vortex.to_arrow(["k"], expr=None if pushed is None else to_vortex(pushed, SCHEMA))
        return TABLE.take(kept.read_all().column("k"))

    def _arrow(self, dataset: pads.Dataset, predicate: Expr, lower: Callable[[Expr, pa.Schema], object]) -> pa.Table:
        pushed, _ = split(predicate, SCHEMA, lower)
        return dataset.to_table(filter=None if pushed is None else lower(pushed, SCHEMA))

    def _duckdb(self, predicate: Expr) -> pa.Table:
        pushed, _ = split(predicate, SCHEMA, to_duckdb)
        where = "TRUE" if pushed is None else to_duckdb(pushed, SCHEMA)
        keys = self.duckdb.sql(f"SELECT k FROM t WHERE {where}").to_arrow_table().column("k")
        return TABLE.take(keys)


def _keys(table: pa.Table, predicate: Expr, lower: Callable[[Expr, pa.Schema], object]) -> list[int]:
    """The rows that an engine returned, after what could not be pushed."""
    _, residual = split(predicate, SCHEMA, lower)
    if residual is not None:
        table = table.filter(pa.array(passes(residual, _columns(table))))
    return sorted(table.column("k").to_pylist())


def _columns(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    return dict(zip(table.column_names, table.columns, strict=True))


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    return Engines(tmp_path_factory.mktemp("conformance"))


def _constants(name: str) -> st.SearchStrategy[object]:
    kind, values = TYPES[name]
    present = [v for v in values if v is not None]
    if name in ("d", "e", "f", "i", "t", "l", "m", "u", "v"):
        numbers = [0, 1, -1, 2.5, 0.7, 1e300, -0.0, NAN, INF, -INF, 2**64, 300, -(2**63), 3.0]
        return st.sampled_from([*present, *numbers, np.float32(0.7)])
    if pa.types.is_temporal(kind):
        if name == "day":
            return st.sampled_from([dt.date(1970, 1, 2), dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 1)])  # noqa: DTZ001
        zone = dt.UTC if name == "ns" else None
        moments = [dt.datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=zone), dt.datetime(2020, 1, 1, tzinfo=zone)]
        exact = [pa.scalar(v, kind) for v in present]
        return st.sampled_from([*moments, dt.date(1970, 1, 2), *exact])
    return st.sampled_from(present)


def _numbers(depth: int) -> st.SearchStrategy[Expr]:
    leaf = st.sampled_from([col(n) for n in ("d", "e", "f", "i", "t", "l", "m")] + [col("s").len(), col("li").len()])
    if depth == 0:
        return leaf
    below = _numbers(depth - 1)
    either = st.one_of(below, st.sampled_from([lit(v) for v in (2, -3, 0, 1, 0.5, -0.0, 10**18)]))
    whole = st.sampled_from([col("i"), col("l"), col("m"), col("t"), col("i") * col("l"), col("s").len()])
    by = st.sampled_from([lit(v) for v in (1, 2, 3, 7, -2, 0, -1)] + [col("i"), col("m")])
    return st.one_of(
        below,
        st.builds(lambda a, b: a + b, below, either),
        st.builds(lambda a, b: a - b, below, either),
        st.builds(lambda a, b: a * b, below, either),
        st.builds(lambda a, b: a / b, below, either),
        st.builds(lambda a, b: a // b, whole, by),
        st.builds(lambda a, b: a % b, whole, by),
        st.builds(lambda a: -a, below),
        st.sampled_from(
            [
                col("f").cast("float64"),
                col("i").cast("int64"),
                col("i").cast("float32"),
                col("l").cast("float64"),
                col("b").cast("int32"),
            ]
        ),
    )


COMPARE: list[Callable[[Expr, object], Expr]] = [
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
    lambda a, b: lit(b) >= a,
]
NUMERIC = ["d", "e", "f", "i", "t", "l", "m"]


def _functions(text: object, number: object) -> list[tuple[Expr, object]]:
    """Functions of the table, each with what it may be compared with."""
    s, d, f, i = col("s"), col("d"), col("f"), col("l")
    texts = [
        s.lower(),
        col("big").upper(),
        s.strip(),
        col("kind").replace("a", "é"),
        s.concat(col("odd name'")),
        col("st")["a"],
    ]
    floats = [d.abs(), f.abs(), d.floor(), f.round(), d.round(1), col("st")["n"], (d / 3).floor()]
    whole = [
        i.abs(),
        col("t").abs(),
        i.round(),
        col("day").year(),
        col("us").month(),
        col("ns").day(),
        col("st")["a"].length(),
    ]
    tests = [s.like("%a%"), s.regexp("^[aA]"), col("big").like("_"), col("st")["a"].is_null(), s.lower().contains("r")]
    return [
        *((each, text) for each in texts),
        *((each, number) for each in [*floats, *whole]),
        *((test.cast("int64"), 1) for test in tests),
    ]


@st.composite
def _leaves(draw: st.DrawFn) -> Expr:  # noqa: PLR0911  one return a form
    name = draw(st.sampled_from([n for n in TYPES if n not in ("b", "li", "st")]))
    compare = draw(st.sampled_from(COMPARE))
    form = draw(st.integers(0, 11))
    if form <= 3:
        return compare(col(name), draw(_constants(name)))
    if form == 4:
        return col(name).is_in(draw(st.lists(_constants(name), max_size=4)))
    if form == 5:
        return compare(draw(_numbers(1)), draw(_constants("d")))
    if form == 6:
        return compare(draw(_numbers(1)), draw(_numbers(1)))
    if form == 7:
        pair = draw(
            st.sampled_from(
                [("d", "e"), ("d", "f"), ("i", "l"), ("s", "odd name'"), ("kind", "big"), ("us", "us"), ("f", "i")]
            )
        )
        return compare(col(pair[0]), col(pair[1]))
    if form == 8:
        text = draw(st.sampled_from([col("s"), col("odd name'"), col("s").str.lower(), col("s").str.upper()]))
        part = draw(_constants("s"))
        return draw(
            st.sampled_from(
                [text.str.starts_with(part), text.str.ends_with(part), text.str.contains(part), compare(text, part)]
            )
        )
    if form >= 10:
        return compare(*draw(st.sampled_from(_functions(draw(_constants("s")), draw(_constants("d"))))))
    return draw(
        st.sampled_from(
            [
                col("b"),
                col("b") == True,  # noqa: E712  an expression
                col("b") != False,  # noqa: E712  an expression
                col("d").is_nan(),
                col("f").is_nan(),
                col(name).is_null(),
                col("li").is_null(),
                col("li").len() >= 1,
                col("x").len() == 1,
                col("l").between(-1, 10**12),
                col("b").is_in([True]),
            ]
        )
    )


PREDICATES = st.recursive(
    _leaves(),
    lambda below: st.one_of(
        st.builds(lambda a, b: a & b, below, below),
        st.builds(lambda a, b: a | b, below, below),
        st.builds(lambda a: ~a, below),
        st.builds(lambda a: ~a, below),
    ),
    max_leaves=5,
)


@few(60, 150, deadline=None, derandomize=True)
@given(predicate=PREDICATES)
def test_every_engine_passes_the_rows_of_the_reference(engines: Engines, predicate: Expr) -> None:
    expected = np.flatnonzero(passes(predicate, _columns(TABLE))).tolist()

    for engine, rows in engines.rows(predicate):
        assert rows == expected, f"{engine}: {predicate}\n{to_json(bind(predicate, SCHEMA))}"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Reader]]:
    folder = tmp_path_factory.mktemp("sources")
    lance.write_dataset(TABLE, str(folder / "t.lance"), max_rows_per_file=GROUP * 4)
    pq.write_table(TABLE, folder / "t.parquet", row_group_size=GROUP)
    vortex.io.write(TABLE, str(folder / "t.vortex"))
    named = {
        "Lance": Lance(str(folder / "t.lance")),
        "Parquet": Parquet(str(folder / "t.parquet")),
        "Arrow": Arrow(TABLE),
        "Vortex": Vortex(str(folder / "t.vortex")),
    }
    readers = {name: source.open() for name, source in named.items()}
    yield readers
    for reader in readers.values():
        reader.close()


@few(40, 90, deadline=None, derandomize=True)
@given(predicate=PREDICATES)
def test_every_source_passes_the_rows_of_the_reference(sources: dict[str, Reader], predicate: Expr) -> None:
    expected = np.flatnonzero(passes(predicate, _columns(TABLE))).tolist()

    for name, reader in sources.items():
        rows = [row for batch in reader.scan([], predicate) for row in batch.column(ROW).to_pylist()]
        assert rows == expected, f"{name}: {predicate}"


CASED = pa.table(
    {
        name: np.random.default_rng(place).integers(-4, 5, 40).astype(kind)
        for place, (name, kind) in enumerate([("a", "i4"), ("A", "f8"), ("ab", "f4"), ("aB", "i8"), ("AB", "i4")])
    }
)


@pytest.fixture(scope="module")
def cased(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Reader]]:
    folder = tmp_path_factory.mktemp("cased")
    lance.write_dataset(CASED, str(folder / "t.lance"), max_rows_per_file=GROUP * 4)
    pq.write_table(CASED, folder / "t.parquet", row_group_size=GROUP)
    sources = [Lance(str(folder / "t.lance")), Parquet(str(folder / "t.parquet")), Arrow(CASED)]
    readers = {source.KIND: source.open() for source in sources}
    yield readers
    for reader in readers.values():
        reader.close()


@few(20, 40, deadline=None, derandomize=True)
@given(
    compared=st.lists(
        st.tuples(
            st.sampled_from(CASED.column_names), st.sampled_from(["<", "<=", "==", "!=", ">=", ">"]), st.integers(-4, 4)
        ),
        min_size=1,
        max_size=3,
    ),
    read=st.lists(st.sampled_from(CASED.column_names), unique=True),
)
def test_names_that_differ_only_in_case_are_columns_of_their_own(
    cased: dict[str, Reader], compared: list[tuple[str, str, int]], read: list[str]
) -> None:
    conditions = [Call(op, (col(name), lit(value))) for name, op, value in compared]
    predicate = conditions[0] if len(conditions) == 1 else Call("and", tuple(conditions))
    expected = CASED.filter(pa.array(passes(bind(predicate, CASED.schema), _columns(CASED)))).select(read)

    for name, reader in cased.items():
        batches = list(reader.scan(read, predicate))
        for column in read:
            found = [value for batch in batches for value in batch.column(column).to_pylist()]
            assert found == expected[column].to_pylist(), f"{name}: {column} where {predicate}"


@few(50, 120, deadline=None, derandomize=True)
@given(predicate=PREDICATES)
def test_binding_and_normal_form_keep_the_meaning(predicate: Expr) -> None:
    expected = passes(predicate, _columns(TABLE)).tolist()
    normal = canonical(predicate, SCHEMA)

    assert passes(bind(predicate, SCHEMA), _columns(TABLE)).tolist() == expected
    assert passes(normal, _columns(TABLE)).tolist() == expected
    assert canonical(normal, SCHEMA).same_as(normal)
    assert from_json(to_json(normal)).same_as(normal)

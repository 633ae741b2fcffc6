"""Functions of expressions, at the public door: the answers of DuckDB on drawn values, in every place that may compute them."""

import datetime as dt
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import spiral_stream as spiral
from spiral_stream import col
from tests.fixtures.examples import few

WHITE = "".join(chr(each) for each in range(sys.maxunicode + 1) if chr(each).isspace())
TEXTS = st.one_of(
    st.none(),
    st.text(st.characters(exclude_categories=["Cs", "Cn"], exclude_characters="\0"), max_size=8),
    st.text("aAbB%_.é\\([{*+?|^$ \n#-&~", max_size=5),
    st.text("ßẞİıſÉéΣσςÑ \t\n\u00a0\u3000x", max_size=6),
)
PARTS = st.text("aAbB%_.é\\([{*+?|^$ \n#-&~", max_size=3)
HALVES = st.integers(-10_000, 10_000).map(lambda each: each / 8)  # many lie half between two
NEAR_HALVES = st.tuples(st.integers(-(10**6), 10**6), st.integers(1, 6)).map(
    lambda each: (each[0] + 0.5) / 10 ** each[1]
)
FLOATS = st.one_of(
    st.none(), st.floats(), HALVES, NEAR_HALVES, st.sampled_from([-0.0, 0.49999999999999994, 2.675, 1e308, 2.0**53])
)
INTS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(-20, 20), st.just(-(2**63)))
MOMENTS = st.one_of(
    st.none(),
    st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30)),  # noqa: DTZ001  zones are drawn apart
    st.sampled_from([1900, 1969, 2000, 2023, 2024]).map(lambda year: dt.datetime(year, 3, 1) - dt.timedelta(1)),  # noqa: DTZ001
    st.sampled_from([1600, 1970, 2025]).map(lambda year: dt.datetime(year, 1, 1) - dt.timedelta(microseconds=1)),  # noqa: DTZ001
)
ZONES = st.sampled_from([None, "UTC", "Asia/Tokyo", "America/New_York", "+05:30"])
STRUCTS = st.one_of(
    st.none(), st.fixed_dictionaries({"lang": TEXTS, "size": INTS, "in": st.one_of(st.none(), st.just({"x": 0.5}))})
)
STRUCT = pa.struct([("lang", pa.string()), ("size", pa.int64()), ("in", pa.struct([("x", pa.float64())]))])


class Called(NamedTuple):
    """One call: what the user writes, and DuckDB's SQL."""

    expr: Any
    sql: str


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _of_texts(draw: st.DrawFn) -> list[Called]:
    s, o = col("s"), col("o")
    part, other, pattern = draw(PARTS), draw(PARTS), draw(PARTS)
    regexp = draw(st.sampled_from(["^a", "b$", "a.b", "[aé]+", "^.{2}$", r"\s", "(?i)É", r"^\p{L}*$", "", "a|b"]))
    return [
        Called(s.lower(), "lower(s)"),
        Called(s.upper(), "upper(s)"),
        Called(s.strip(), f"trim(s, {quoted(WHITE)})"),
        Called(s.strip(part), f"trim(s, {quoted(part)})"),
        Called(s.length(), "length(s)"),
        Called(s.startswith(part), f"starts_with(s, {quoted(part)})"),
        Called(s.endswith(part), f"ends_with(s, {quoted(part)})"),
        Called(s.contains(part), f"contains(s, {quoted(part)})"),
        Called(s.like(pattern), f"s LIKE {quoted(pattern)}"),
        Called(s.regexp(regexp), f"regexp_matches(s, {quoted(regexp)})"),
        Called(s.replace(part or "a", other), f"replace(s, {quoted(part or 'a')}, {quoted(other)})"),
        Called(s.concat(o, part), f"s || o || {quoted(part)}"),
        Called(s.isin([part, other]), f"s IN ({quoted(part)}, {quoted(other)})"),
        Called(s.lower().concat(s.upper().strip("A")), "lower(s) || trim(upper(s), 'A')"),
        Called(col("k").upper().length(), "length(upper(k::VARCHAR))"),
    ]


def _of_numbers(draw: st.DrawFn) -> list[Called]:
    f, i, g = col("f"), col("i"), col("g")
    digits, by = draw(st.integers(0, 6)), draw(st.integers(-9, 9).filter(bool))
    sign = f"CASE WHEN i % {by} <> 0 AND (i < 0) <> ({by} < 0) THEN 1 ELSE 0 END"  # SQL's are not floored
    return [
        Called(f.abs(), "abs(f)"),
        Called(abs(g), "abs(g::DOUBLE)"),
        Called(i.abs(), "CASE WHEN i = -9223372036854775808 THEN i ELSE abs(i) END"),
        Called(f.round(), "round(f)"),
        Called(round(f, digits), f"round(f, {digits})"),
        Called(g.round(digits), f"round(g::DOUBLE, {digits})"),
        Called(i.round(digits), "i"),
        Called(f.floor(), "floor(f)"),
        Called(math.floor(g), "floor(g::DOUBLE)"),
        Called(i.floor(), "i"),
        Called(i % by, f"i % {by} + {by} * {sign}"),
        Called(i // by, f"i // {by} - {sign}") if by != -1 else Called(i % 7, "((i % 7) + 7) % 7"),
        Called((f / 4).floor(), "floor(f / 4)"),
        Called(f.isin([0.5, 2.5]), "f IN (0.5, 2.5) AND NOT isnan(f)"),
    ]


def _of_moments(draw: st.DrawFn) -> list[Called]:
    del draw
    return [
        Called(getattr(col(name), part)(), f"{part}({name})") for name in "tz" for part in ("year", "month", "day")
    ] + [Called(col("d").year() * 100 + col("d").month(), "year(d) * 100 + month(d)"), Called(col("d").day(), "day(d)")]


def _of_nested(draw: st.DrawFn) -> list[Called]:
    del draw
    m, items = col("m"), col("l")
    return [
        Called(m["lang"], "m.lang"),
        Called(m["size"].abs() % 3, "CASE WHEN m.size = -9223372036854775808 THEN 1 ELSE abs(m.size) % 3 END"),
        Called(m["in"], 'm."in"'),
        Called(m["in"]["x"], 'm."in".x'),
        Called(m["lang"].lower(), "lower(m.lang)"),
        Called(m["lang"].is_null(), "m.lang IS NULL"),
        Called(items.length(), "len(l)"),
        Called(items.len(), "len(l)"),
    ]


def columns(draw: st.DrawFn) -> pa.Table:
    """Rows of every kind that a function takes."""
    count = draw(st.integers(1, 20))
    many = partial(st.lists, min_size=count, max_size=count)
    zone = draw(ZONES)
    texts = draw(many(TEXTS))
    moments = pa.array(draw(many(MOMENTS)), pa.timestamp("us"))
    return pa.table(
        {
            "id": pa.array(range(count)),
            "s": pa.array(texts, draw(st.sampled_from([pa.string(), pa.large_string()]))),
            "o": pa.array(draw(many(TEXTS)), pa.string()),
            "k": pa.array(texts, pa.string()).dictionary_encode(),
            "f": pa.array(draw(many(FLOATS)), pa.float64()),
            "g": pa.array(draw(many(FLOATS)), pa.float64()).cast(pa.float32(), safe=False),
            "i": pa.array(draw(many(INTS)), pa.int64()),
            "t": moments,
            "z": moments.cast(pa.timestamp("us", tz=zone)) if zone else moments,
            "d": pa.array([None if each is None else each.date() for each in draw(many(MOMENTS))], pa.date32()),
            "m": pa.array(draw(many(STRUCTS)), STRUCT),
            "l": pa.array(
                draw(many(st.one_of(st.none(), st.lists(st.integers(0, 3), max_size=3)))), pa.list_(pa.int64())
            ),
        }
    )


@st.composite
def cases(draw: st.DrawFn, made: Callable[[st.DrawFn], list[Called]]) -> tuple[pa.Table, list[Called]]:
    return columns(draw), made(draw)


def asked(table: pa.Table, calls: list[Called]) -> pa.Table:
    """DuckDB's answers, in a session whose zone is UTC."""
    with duckdb.connect() as session:
        session.execute("SET TimeZone = 'UTC'")
        session.register("t_", table)
        chosen = ", ".join(f"({call.sql}) AS c{at}" for at, call in enumerate(calls))
        return session.sql(f"SELECT {chosen} FROM t_ ORDER BY id").to_arrow_table()


def told(values: pa.ChunkedArray) -> list[str]:
    """Values as they are compared: NaN is NaN, and a zero has its sign; whole numbers of floats are floats."""
    numbers = pa.types.is_floating(values.type) or pa.types.is_decimal(values.type)
    return [repr(None if each is None else float(each) if numbers else each) for each in values.to_pylist()]


@pytest.fixture
def catalog(tmp_path_factory: pytest.TempPathFactory) -> spiral.Catalog:
    return spiral.connect(str(tmp_path_factory.mktemp("functions")))


@pytest.mark.parametrize("made", [_of_texts, _of_numbers, _of_moments, _of_nested])
def test_functions_answer_as_duckdb_does(
    tmp_path_factory: pytest.TempPathFactory, made: Callable[[st.DrawFn], list[Called]]
) -> None:
    catalog = spiral.connect(str(tmp_path_factory.mktemp("drawn")))

    @few(15, 300, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=cases(made))
    def law(case: tuple[pa.Table, list[Called]]) -> None:
        table, calls = case
        catalog.register("t", spiral.Arrow(table), identity="id", replace=True)
        computed = {f"c{at}": call.expr for at, call in enumerate(calls)}
        found = catalog.table("t").with_columns(**computed).project(*computed).to_arrow()
        expected = asked(table, calls)
        for name, call in zip(computed, calls, strict=True):
            assert told(found[name]) == told(expected[name]), f"{call.expr} against {call.sql}"

    law()


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[spiral.Catalog, pa.Table]]:
    """One table in Arrow, Lance and Parquet with row groups of five rows."""
    folder: Path = tmp_path_factory.mktemp("stored")
    texts = ["", "a", "A", "Éé ", None, "ab", "straße", " x\t", "a%b", "ΑΣ"] * 6
    floats = [0.5, -0.5, 2.5, math.nan, None, -2.5, 0.7, 0.7, 1e300, math.inf, 0.7] * 5 + [
        0.7,
        math.nan,
        0.7,
        0.7,
        -1.5,
    ]
    table = pa.table(
        {
            "id": pa.array(range(60)),
            "s": pa.array(texts),
            "f": pa.array(floats[:60], pa.float64()),
            "i": pa.array([None if at % 7 == 0 else (at * 37) % 41 - 20 for at in range(60)], pa.int64()),
            "t": pa.array([at * 86_400_000_000 * 37 for at in range(60)], pa.timestamp("us", tz="UTC")),
            "m": pa.array([{"lang": text} if at % 5 else None for at, text in enumerate(texts)]),
        }
    )
    lance.write_dataset(table, str(folder / "t.lance"), max_rows_per_file=20)
    pq.write_table(table, folder / "t.parquet", row_group_size=5)
    catalog = spiral.connect(str(folder / "catalog"))
    catalog.register("arrow", spiral.Arrow(table), identity="id")
    catalog.register("lance", spiral.Lance(str(folder / "t.lance")), identity="id")
    catalog.register("parquet", spiral.Parquet(str(folder / "t.parquet")), identity="id")
    return catalog, table


@st.composite
def conditions(draw: st.DrawFn) -> tuple[Any, str]:
    """A condition over functions, and the same in DuckDB, where no NaN is above a number."""
    s, f, i, t, m = map(col, "sfitm")
    part = draw(st.sampled_from(["a", "é", "", "É", "%", "a%b", "x"]))
    least = draw(st.sampled_from([-3, 0, 1, 2, 7]))
    leaves: list[tuple[Any, str]] = [
        (s.lower() == part, f"lower(s) = {quoted(part)}"),
        (s.upper().contains(part), f"contains(upper(s), {quoted(part)})"),
        (s.strip().length() >= least, f"length(trim(s, {quoted(WHITE)})) >= {least}"),
        (s.like(part + "%"), f"s LIKE {quoted(part + '%')}"),
        (s.regexp("^[aA]"), "regexp_matches(s, '^[aA]')"),
        (s.replace("a", part) != part, f"replace(s, 'a', {quoted(part)}) <> {quoted(part)}"),
        (s.concat("-", m["lang"]) < "b", "s || '-' || m.lang < 'b'"),
        (f.abs() > least, f"abs(f) > {least} AND NOT isnan(f)"),
        (f.round() != least, f"round(f) <> {least} OR isnan(f)"),
        (~(f.floor() >= least), f"NOT (floor(f) >= {least} AND NOT isnan(f))"),
        (i.abs() % 3 == 1, "abs(i) % 3 = 1"),
        (t.month().isin([1, 2, least]), f"month(t) IN (1, 2, {least})"),
        (t.day() + t.year() > 2000 + least, f"day(t) + year(t) > {2000 + least}"),
        (m["lang"].is_null(), "m.lang IS NULL"),
        (m["lang"].startswith(part), f"starts_with(m.lang, {quoted(part)})"),
    ]
    first, second = draw(st.sampled_from(leaves)), draw(st.sampled_from(leaves))
    joined = draw(st.sampled_from(["and", "or", "not"]))
    if joined == "not":
        return ~first[0], f"NOT ({first[1]})"
    return (first[0] & second[0] if joined == "and" else first[0] | second[0]), f"({first[1]}) {joined} ({second[1]})"


@few(30, 300, deadline=None)
@given(condition=conditions())
def test_every_source_passes_the_rows_that_duckdb_passes(
    stored: tuple[spiral.Catalog, pa.Table], condition: tuple[Any, str]
) -> None:
    catalog, table = stored
    with duckdb.connect() as session:
        session.execute("SET TimeZone = 'UTC'")
        session.register("t_", table)
        passed = session.sql(f"SELECT id FROM t_ WHERE {condition[1]} ORDER BY id").to_arrow_table()["id"].to_pylist()

    for name in ("arrow", "lance", "parquet"):
        found = catalog.table(name).filter(condition[0]).project("id").to_arrow()["id"].to_pylist()
        assert found == passed, f"{name}: {condition[0]}"


def test_case_of_every_letter_is_that_of_duckdb(catalog: spiral.Catalog) -> None:
    letters = "".join(chr(each) for each in range(1, sys.maxunicode + 1) if not 0xD800 <= each <= 0xDFFF)
    texts = [letters[at : at + 4096] for at in range(0, len(letters), 4096)]
    table = pa.table({"id": range(len(texts)), "s": texts})
    catalog.register("t", spiral.Arrow(table), identity="id")

    found = catalog.table("t").project(lower=col("s").lower(), upper=col("s").upper()).to_arrow()

    expected = asked(table, [Called(None, "lower(s)"), Called(None, "upper(s)")])
    for name, theirs in (("lower", "c0"), ("upper", "c1")):
        both = zip("".join(found[name].to_pylist()), "".join(expected[theirs].to_pylist()), strict=True)
        assert [(hex(ord(ours)), hex(ord(other))) for ours, other in both if ours != other] == []


def test_saved_streams_with_functions_come_back_and_print(catalog: spiral.Catalog) -> None:
    table = pa.table({"id": range(6), "s": ["a", "B", "b", None, "é", "É"], "m": [{"lang": "en", "n": 1.25}] * 6})
    catalog.register("t", spiral.Arrow(table), identity="id")
    chosen = catalog.table("t").filter(col("s").lower().regexp("^[bé]$") & col("m")["lang"].like("e_"))
    plan = chosen.with_columns(n=col("m")["n"].round(1), text=col("s").strip().concat("!")).sample(
        order=spiral.Sequential()
    )
    stream = plan.collate(batch_size=4, fields={"n": spiral.Stack("n"), "text": spiral.List("text")}).to_numpy()
    catalog.save_stream("s", stream)

    with stream, catalog.open_stream("s") as again:
        assert again.fingerprint == stream.fingerprint
        assert [batch["text"] for batch in again] == [batch["text"] for batch in stream] == [["B!", "b!", "é!", "É!"]]
        assert next(iter(again))["n"].tolist() == [1.3] * 4
        said = str(again.explain())

    assert "regexp(lowercase(s), '^[bé]$')" in said
    assert "like(m['lang'], 'e_')" in said


def test_samples_are_filtered_and_computed_as_rows_are(catalog: spiral.Catalog) -> None:
    table = pa.table(
        {
            "id": range(40),
            "s": pa.array([("École", "ab ", "", None)[at % 4] for at in range(40)]).dictionary_encode(),
            "f": [at / 16 if at % 5 else None for at in range(40)],
            "m": [{"lang": ("en", "de")[at % 2], "sizes": [1] * (at % 3)} for at in range(40)],
        }
    )
    catalog.register("t", spiral.Arrow(table), identity="id")
    condition = col("s").lower().like("é%") | (col("m")["lang"] == "de") & ~col("s").is_null()
    computed = {"n": col("f").round(1) + col("m")["sizes"].length(), "text": col("s").strip().upper().concat("!")}
    fields = {"id": spiral.List("id"), "n": spiral.List("n"), "text": spiral.List("text")}

    def batches(relation: spiral.Relation) -> list[dict[str, Any]]:
        with relation.collate(batch_size=3, fields=fields).to_numpy() as stream:
            return [dict(batch) for batch in stream]

    t, order = catalog.table("t"), spiral.GlobalShuffle(seed=5)
    before = batches(t.filter(condition).with_columns(**computed).sample(order=order))
    kept = t.filter(condition).sample(order=order)
    after = batches(kept.filter(condition).with_columns(**computed))

    assert len(before) == 6
    assert after == before


def test_new_spellings_of_what_was_there_have_the_same_fingerprint(catalog: spiral.Catalog) -> None:
    catalog.register("t", spiral.Arrow(pa.table({"id": range(2), "s": ["a", "b"]})), identity="id")
    t, s = catalog.table("t"), col("s")
    pairs = [
        (s.startswith("a"), s.str.starts_with("a")),
        (s.endswith("a"), s.str.ends_with("a")),
        (s.contains("a"), s.str.contains("a")),
        (s.isin(["a", "b"]), s.is_in(["b", "a"])),
        (s.length() > 1, s.len() > 1),
    ]

    for one, other in pairs:
        assert t.filter(one).fingerprint == t.filter(other).fingerprint
    assert t.filter(s.lower() == "a").fingerprint != t.filter(s.str.lower() == "a").fingerprint


@pytest.mark.parametrize(
    ("made", "error", "way_out"),
    [
        (lambda: col("s").title(), AttributeError, r'What they lack, SQL has: catalog\.sql\("select \*, title\('),
        (lambda: col("s").lowercase, AttributeError, "Did you mean lower"),
        (lambda: col("s")[0], spiral.errors.PlanError, r"Items of a list are for SQL: catalog\.sql"),
        (lambda: "a" in col("s"), TypeError, r"Write s\.contains\(\.\.\.\) or s\.is_in"),
        (lambda: list(col("s")), TypeError, "not iterable"),
    ],
)
def test_what_expressions_lack_names_a_way_out(
    made: Callable[[], object], error: type[Exception], way_out: str
) -> None:
    with pytest.raises(error, match=way_out):
        made()


@pytest.mark.parametrize(
    ("expr", "way_out"),
    [
        (col("m")["lng"], "'m' has no field 'lng'. It has lang"),
        (col("s")["x"], "field takes a struct"),
        (col("i").lower(), "lowercase takes a text"),
        (col("s").abs(), "Arithmetic takes integers and floats"),
        (col("s").year(), "year takes a time or a date"),
        (col("s") + "x", r"Join texts with \.concat"),
        (col("s").concat(col("i")), "concat takes a text"),
        (col("s").regexp("("), "Write it as RE2 and DuckDB do"),
        (col("s").regexp("(?=a)"), "no look-around"),
        (col("s").replace("", "x"), "Give the text to look for"),
        (col("s").like(3), "Give a constant of Python"),  # type: ignore[arg-type]  # which is the point
        (col("s").like("a" * 10_001), "Give at most 10,000"),
        (col("s").regexp("a" * 10_001), "Give at most 10,000"),
        (col("s").concat(*["x"] * 1000), "concat takes 1 to 1,000"),
        (col("f").round(16), "Round to 0 to 15 digits"),
        (col("f").round(-1), "Round to 0 to 15 digits"),
        (col("f") // 2, r"Write \(a / b\)\.floor\(\)"),
        (col("f") % 2, r"Write a - \(a / b\)\.floor\(\) \* b"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_read(catalog: spiral.Catalog, expr: Any, way_out: str) -> None:
    table = pa.table({"id": [1], "s": ["a"], "i": [1], "f": [1.0], "m": [{"lang": "en"}]})
    catalog.register("t", spiral.Arrow(table), identity="id")

    with pytest.raises(spiral.errors.PlanError, match=way_out):
        catalog.table("t").with_columns(y=expr)

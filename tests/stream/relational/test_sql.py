"""SQL text: what it may read, how long, how much memory, and which names it can tell apart."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import PlanError
from spiral_stream.relational import sql, sql_process
from spiral_stream.relational.sql import describe_sql, run_sql
from tests.fixtures.examples import few

LABELS = pa.table({"label_id": pa.array([2, 1, 2, None], pa.int32()), "x": [1.0, 2.0, None, 4.0]})
ENDLESS = "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT max(i) FROM r"


@pytest.fixture
def catalog(tmp_path: Path) -> sp.Catalog:
    catalog = sp.connect(str(tmp_path / "catalog"))
    rows = {"sample_id": range(6), "A": [1, 1, 1, 2, 2, 2], "a": [10, 20, 30, 40, 50, 60], "v": [0.1, 0.6, np.nan] * 2}
    catalog.register("t", sp.Arrow(pa.table(rows)))
    catalog.register("plain", sp.Arrow(pa.table({k: v for k, v in rows.items() if k != "a"})))
    return catalog


def test_the_engine_is_imported_only_when_used() -> None:
    import subprocess

    code = "import sys, spiral_stream.relational.sql; sys.exit('duckdb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_dotted_name_is_found_however_it_is_quoted() -> None:
    names = ("vision.labels", '"vision.labels"', "VISION.labels")
    text = " UNION ALL ".join(f"SELECT sum(x) AS s FROM {name}" for name in names)

    assert run_sql(text, {"vision.labels": LABELS}).to_pydict() == {"s": [7.0] * 3}


def test_a_query_says_what_it_reads_and_gives() -> None:
    schemas = {"vision.labels": LABELS.schema, "b": LABELS.schema, "c": LABELS.schema}
    text = (
        'WITH z AS (SELECT * FROM "b") SELECT label_id, count(*) AS n FROM z JOIN vision.labels USING (label_id)'
        " GROUP BY 1"
    )

    found = describe_sql(text, schemas)

    assert found.used == ("b", "vision.labels")
    assert found.schema == pa.schema([("label_id", pa.int32()), ("n", pa.int64())])
    assert found.floats == (("b", "x"), ("vision.labels", "x"))
    assert found.unsteady == ()
    assert describe_sql("SELECT label_id FROM b", schemas).floats == ()


@pytest.mark.parametrize(
    ("text", "unsteady"),
    [
        ("SELECT label_id, Random() AS r, uuid() AS u FROM t", ("random()", "uuid()")),
        ("SELECT label_id FROM t ORDER BY random() LIMIT 2", ("random()",)),
        ("WITH w AS (SELECT now() AS n) SELECT * FROM t, w", ("now()",)),
        ("SELECT list_transform([1], lambda x: random()) AS r FROM t", ("random()",)),
        ("SELECT current_timestamp AS a, localtime AS b FROM t", ("current_timestamp", "localtime")),
        ("SELECT ago(INTERVAL 1 DAY) AS a, age(TIMESTAMP '2020-01-01') AS b", ("age() of one time", "ago()")),
        ("SELECT label_id + 1 - 2 AS a, year(TIMESTAMPTZ '2021-01-01 00:00:00+00') AS b FROM t", ()),
        ("SELECT date_trunc('day', make_timestamptz(2021, 1, 1, 0, 0, 0.0)) - INTERVAL 1 DAY AS a FROM t", ()),
        ("SELECT nextval('s') AS n FROM t", None),
        ("FROM t USING SAMPLE 2 ROWS", ("a sample without REPEATABLE (seed)",)),
        ("SELECT * FROM (FROM t TABLESAMPLE 20%)", ("a sample without REPEATABLE (seed)",)),
        ("FROM t USING SAMPLE reservoir(2 ROWS) REPEATABLE (1)", ()),
        ("SELECT age(TIMESTAMP '2021-01-01', TIMESTAMP '2020-01-01') AS a, current_schema() AS s, x AS now FROM t", ()),
    ],
)
def test_a_query_says_what_gives_other_rows_on_another_run(text: str, unsteady: tuple[str, ...] | None) -> None:
    schemas = {"t": LABELS.schema}
    if unsteady is None:  # no sequence exists
        with pytest.raises(PlanError, match="Sequence with name s does not exist"):
            describe_sql(text, schemas)
    else:
        assert describe_sql(text, schemas).unsteady == unsteady


def test_a_column_of_float16_is_named() -> None:
    schema = pa.schema([("id", pa.int32()), ("h", pa.float16())])
    with pytest.raises(PlanError, match=r"column 'h' of relation 't' is halffloat, .* float32, or without it"):
        describe_sql("SELECT id FROM t", {"t": schema})
    assert describe_sql(
        "SELECT id FROM u", {"t": schema, "u": LABELS.schema.append(pa.field("id", pa.int8()))}
    ).used == ("u",)


def test_a_bare_name_of_a_clock_may_be_a_column() -> None:
    schema = pa.schema([("current_date", pa.int32())])
    assert describe_sql("SELECT current_date FROM t", {"t": schema}).unsteady == ()


@pytest.mark.parametrize(
    ("text", "way_out"),
    [
        ("SELECT nope FROM t", 'Candidate bindings: "label_id"'),
        ("SELECT * FROM other", "The query may read t."),
        ("SELECT 1 AS a, 2 AS a", "two columns of the result are called 'a'. Give one another name with AS"),
        ("SELECT " + "(" * 5000 + "1" + ")" * 5000, "Correct it in DuckDB's dialect"),
    ],
)
def test_a_refused_query_says_what_may_be_read(text: str, way_out: str) -> None:
    with pytest.raises(PlanError) as refused:
        describe_sql(text, {"t": LABELS.schema})

    assert way_out in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM '{file}'",
        "SELECT (SELECT max(content) FROM read_blob('{file}')) FROM t",
        "SELECT * FROM glob('{folder}/*')",
        "SELECT * FROM query('SELECT 1')",
        "SELECT * FROM query_table('t')",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM pg_settings",
        "SELECT * FROM pg_catalog.pg_class",
        "SELECT * FROM INFORMATION_SCHEMA.Tables",
        "SELECT current_setting('threads') FROM t",
        "SELECT * FROM t WHERE Current_Setting('memory_limit') > '1'",
        "COPY t TO '{folder}/out.csv'",
        "COPY (SELECT 1) TO '{folder}/out.parquet'",
        "ATTACH '{folder}/x.db' AS x",
        "EXPORT DATABASE '{folder}/out'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "LOAD json",
        "SET memory_limit = '9TB'",
        "SET threads = 8",
        "CREATE TABLE z AS SELECT 1",
        "PRAGMA version",
        "CALL pragma_version()",
        "SELECT 1; SELECT 2",
        "SELECT 1; COPY t TO '{folder}/out.csv'",
        "SELEC 1",
        "",
    ],
)
def test_a_text_reads_its_relations_and_nothing_else(tmp_path: Path, text: str) -> None:
    """What the process does, in this one."""
    (tmp_path / "secret").write_text("hunter-7")
    text = text.format(file=tmp_path / "secret", folder=tmp_path)
    read = text == f"SELECT * FROM '{tmp_path}/secret'"  # named as a relation, which it is not
    if not read:
        with pytest.raises((sql_process.RefusedError, duckdb.Error), match=r"Give one SELECT|reads no relation|syntax"):
            sql_process.used_relations(text, ["t"])
    with sql_process.session_of({"t": LABELS}, 1 << 28, "") as session, suppress(duckdb.Error):
        found = session.execute(text)  # even where the text were let through
        assert found is None or "hunter-7" not in str(found.fetchall())

    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_refused_text_says_what_it_may_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter-7")
    for text in (f"SELECT * FROM read_text('{tmp_path}/secret')", f"SELECT * FROM '{tmp_path}/secret'"):
        with pytest.raises(PlanError, match="The query may read t") as refused:
            run_sql(text, {"t": LABELS})
        assert "hunter-7" not in str(refused.value)


def test_a_saved_plan_reads_its_relations_and_nothing_else(catalog: sp.Catalog, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter-7")
    text = f"SELECT * FROM read_text('{tmp_path}/secret')"
    labels = catalog.sql("SELECT sample_id, v FROM plain")
    plan = catalog.table("plain").project("sample_id").join(labels, on="sample_id")
    plan = plan.sample(identity="sample_id", order=sp.Sequential(), epoch=0)
    catalog.save_stream("s", plan.collate(batch_size=2, fields={"id": sp.List("sample_id")}).to_numpy())
    stored = catalog.registry.saved.plan("s")
    written = str(stored).count("FROM plain")
    import json

    catalog.registry.saved.save("s", json.loads(json.dumps(stored).replace("SELECT sample_id, v FROM plain", text)))

    assert written == 1
    with pytest.raises(PlanError, match=r"read_text reads no relation. Register what it reads"):
        catalog.open_stream("s")


@pytest.mark.usefixtures("cold_sql")
def test_a_query_without_end_is_stopped_at_the_deadline(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    relation = catalog.sql(ENDLESS)  # describing it runs nothing
    monkeypatch.setenv("SPIRAL_SQL_TIMEOUT_S", "0.6")
    with pytest.raises(
        PlanError,
        match=r"did not end within 0\.6 s, and was stopped.*or set \$SPIRAL_SQL_TIMEOUT_S\nThe query may read",
    ):
        relation.to_arrow()

    assert relation.limit(3).explain() is not None


@pytest.mark.parametrize(
    "text",
    [
        "SELECT length(repeat('x', 4000000000)) AS n",  # one value inside one function
        "WITH RECURSIVE r(s) AS (SELECT 'x' UNION ALL SELECT s || s FROM r) SELECT max(length(s)) AS n FROM r",
        "SELECT * FROM range(1000000000000)",  # a result without end
    ],
)
@pytest.mark.usefixtures("cold_sql")
def test_a_query_beyond_its_memory_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRAL_SQL_MEMORY_BYTES", str(256 << 20))
    with pytest.raises(PlanError, match=r"needs more than 0\.25 GiB of memory .* or set \$SPIRAL_SQL_MEMORY_BYTES"):
        run_sql(text, {"t": LABELS})


@pytest.mark.parametrize("megabytes", [135, 200, 300, 400])
@pytest.mark.usefixtures("cold_sql")
def test_a_small_memory_limit_still_answers(monkeypatch: pytest.MonkeyPatch, megabytes: int) -> None:
    monkeypatch.setenv("SPIRAL_SQL_MEMORY_BYTES", str(megabytes * 10**6))

    assert run_sql("SELECT count(*) AS n FROM t", {"t": pa.table({"x": range(1_000)})}).to_pydict() == {"n": [1_000]}


@pytest.mark.usefixtures("cold_sql")
def test_a_memory_limit_that_no_engine_starts_with_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRAL_SQL_MEMORY_BYTES", "10000000")

    with pytest.raises(
        PlanError, match=r"is '10000000'; SQL text needs at least 134,217,728 bytes\. Set it to that or more"
    ):
        run_sql("SELECT 1 AS x", {})


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "its process ended with signal SIGSEGV"),
        ("sys.exit('no more room')", "its process ended with exit code 1: no more room"),
    ],
)
@pytest.mark.usefixtures("cold_sql")
def test_a_process_that_dies_is_told_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str, says: str
) -> None:
    (tmp_path / "dies.py").write_text(f"import os, signal, sys\n{end}\n")
    monkeypatch.setattr(sql, "PROCESS", tmp_path / "dies.py")

    with pytest.raises(
        PlanError, match=rf"of memory \({says}\)\. Select fewer rows or columns, or set \$SPIRAL_SQL_MEMORY"
    ):
        run_sql("SELECT 1 AS x", {})


@pytest.mark.parametrize("value", ["x", "0", "-1", "inf", "nan"])
@pytest.mark.parametrize("name", ["SPIRAL_SQL_TIMEOUT_S", "SPIRAL_SQL_MEMORY_BYTES"])
def test_a_limit_is_a_number_above_zero(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(PlanError, match=rf"\${name} is '{value}'; it is a number above 0\. Correct it, or unset it"):
        run_sql("SELECT 1", {})


def test_columns_that_differ_only_in_case_are_grouped_apart(catalog: sp.Catalog) -> None:
    table = catalog.table("t")

    assert table.group_by("A").aggregate(s=("a", "sum")).to_arrow().to_pydict() == {"A": [1, 2], "s": [60, 150]}
    both = table.group_by("a", "A").aggregate(n=("sample_id", "count"), N=("A", "max")).sort("a").to_arrow()
    assert both.to_pydict() == {
        "a": [10, 20, 30, 40, 50, 60],
        "A": [1, 1, 1, 2, 2, 2],
        "n": [1] * 6,
        "N": [1, 1, 1, 2, 2, 2],
    }
    assert table.aggregate(lo=("a", "min"), LO=("A", "min")).to_arrow().to_pydict() == {"lo": [10], "LO": [1]}


@few(12, 25)
@given(
    names=st.lists(
        st.sampled_from(["a", "A", "b", "B", "ab", "AB", "aB", "Ä", "ä"]), min_size=2, max_size=5, unique=True
    ),
    seed=st.integers(0, 2**16),
)
def test_aggregates_read_the_columns_that_they_name(names: list[str], seed: int) -> None:
    from spiral_stream.relational import engine

    rng = np.random.default_rng(seed)
    columns = {name: rng.integers(0, 3, 20) for name in names}
    key, *measured = names
    found = engine.aggregate(pa.table(columns), [key], [(name, "sum", f"s{name}") for name in measured])

    values = np.unique(columns[key])
    assert found.column_names == [key, *(f"s{name}" for name in measured)]
    assert found[key].to_pylist() == values.tolist()
    for name in measured:
        assert found[f"s{name}"].to_pylist() == [int(columns[name][columns[key] == value].sum()) for value in values]


def test_sql_text_over_columns_that_differ_only_in_case_is_refused(catalog: sp.Catalog) -> None:
    with pytest.raises(
        PlanError,
        match=r"columns of relation 't': 'A' and 'a' differ only in case.*Rename one of them, or use the verbs",
    ):
        catalog.sql('SELECT "a" FROM t')
    assert catalog.sql('SELECT max("A") AS m FROM plain').to_arrow().to_pydict() == {"m": [2]}
    assert catalog.sql('SELECT 1 AS a, 2 AS "A"').to_arrow().to_pydict() == {"a": [1], "A": [2]}


def test_relations_that_differ_only_in_case_are_told_apart_by_their_exact_names() -> None:
    tables = {"t": pa.table({"x": [1]}), "T": pa.table({"x": [2]})}

    assert run_sql("SELECT x FROM t", tables).to_pydict() == {"x": [1]}
    assert run_sql('SELECT x FROM "T"', tables).to_pydict() == {"x": [2]}
    with pytest.raises(PlanError, match="relations 'T' and 't' differ only in case"):
        run_sql('SELECT * FROM t JOIN "T" USING (x)', tables)
    with pytest.raises(PlanError, match=r"relations 'vision\.T' and 'vision\.t' differ only in case"):
        run_sql("SELECT * FROM Vision.T", {"vision.T": tables["T"], "vision.t": tables["t"]})


@pytest.mark.parametrize(
    ("text", "warns"),
    [
        ("SELECT sample_id FROM plain WHERE v >= 0.5", True),
        ("SELECT sample_id FROM plain WHERE v BETWEEN 0.5 AND 7", True),
        ("SELECT sample_id FROM plain WHERE v >= 0.5 AND NOT isnan(v)", False),
        ("SELECT sample_id, v FROM plain", False),
        ("SELECT sample_id FROM plain WHERE sample_id > 3", False),
    ],
)
def test_a_query_that_compares_a_column_with_nan_warns(catalog: sp.Catalog, text: str, warns: bool) -> None:
    relation = catalog.sql(text)
    if warns:
        with pytest.warns(sp.SpiralWarning, match=r"plain\.v holds NaN.*Leave it out with AND NOT isnan"):
            relation.to_arrow()
    else:
        relation.to_arrow()


@pytest.mark.filterwarnings("ignore:sql. plain.v holds NaN")
def test_explain_says_what_nan_is_in_sql_text(catalog: sp.Catalog) -> None:
    read = catalog.sql("SELECT sample_id FROM plain WHERE v >= 0.5")
    kept = {"sql": read.to_arrow()["sample_id"].to_pylist()}
    kept["col"] = catalog.table("plain").filter(sp.col("v") >= 0.5).to_arrow()["sample_id"].to_pylist()
    text = "SELECT sample_id FROM plain WHERE v >= 0.5 AND NOT isnan(v)"
    kept["isnan"] = catalog.sql(text).to_arrow()["sample_id"].to_pylist()

    assert kept == {"sql": [1, 2, 4, 5], "col": [1, 4], "isnan": [1, 4]}
    told = "NaN in plain.v is the largest number in SQL text, so x >= 0.5 keeps it; col(x) >= 0.5 does not"
    assert told in str(read.explain())
    assert told in str(catalog.table("t").join(read, on="sample_id").explain())
    assert "NaN" not in str(catalog.sql("SELECT sample_id FROM plain WHERE A > 1").explain())
    catalog.register("counted", sp.Arrow(pa.table({"sample_id": [1, 2], "v": [0.5, 1.0], "w": [0.5, np.nan]})))
    catalog.measure("counted")
    assert "NaN in counted.w is" in str(catalog.sql("SELECT v, w FROM counted").explain())


class Scanned:
    """Rows that are scanned in small batches, and note what a query reads of them."""

    def __init__(self, rows: pa.Table, batch: int = 7) -> None:
        self.rows, self.schema, self.batch = rows, rows.schema, batch
        self.read = list[tuple[list[str], str]]()
        self.sent = 0

    def scan(self, columns: Sequence[str], condition: sp.Expr | None) -> Iterator[pa.RecordBatch]:
        from spiral_stream.sources.row_filter import needed, passing

        self.read.append((list(columns), str(condition)))
        for batch in self.rows.select(needed(columns, condition)).to_batches(max_chunksize=self.batch):
            for found in passing(pa.Table.from_batches([batch]), condition, columns).to_batches():
                self.sent += len(found)
                yield found


@pytest.mark.usefixtures("cold_sql")
def test_a_query_reads_the_columns_that_it_names_as_often_as_it_needs_them() -> None:
    rows = Scanned(LABELS)
    text = "SELECT count(*) AS n FROM t AS a JOIN t AS b ON a.label_id = b.label_id"

    assert run_sql(text, {"t": rows}).to_pydict() == {"n": [5]}
    assert rows.read == [(["label_id"], "None")] * 2


NUMBERS = pa.table(
    {
        "k": pa.array([None if n % 11 == 5 else n % 7 for n in range(200)], pa.int16()),
        "word": pa.array([None if n % 13 == 5 else "abc"[n % 3] for n in range(200)]),
        "odd": [bool(n % 2) for n in range(200)],
        "x": pa.array([None if n % 17 == 5 else (np.nan, 0.5, 1.5)[n % 3] for n in range(200)], pa.float32()),
        "n": range(200),
    }
)
ASKED = st.sampled_from(
    [
        *(
            "k = 3",
            "K <> 2",
            "3 < k",
            "k BETWEEN 2 AND 4",
            "k IN (1, 5)",
            "k NOT IN (1, 5)",
            "k IS NULL",
            "k IS NOT NULL",
        ),
        *(
            "word = 'b'",
            "word >= 'b'",
            "word IN ('a', 'c')",
            "word LIKE 'a%'",
            "word IS DISTINCT FROM 'a'",
            "odd = true",
        ),
        *(
            "x > 0.7",
            "x = 0.5",
            "n % 5 = 2",
            "k + 1 > 3",
            "k = 2.5",
            "k = '3'",
            "t.k = 3",
            "NOT (k = 3)",
            "(k = 1 OR n > 150)",
        ),
    ]
)
FORMS = st.sampled_from(
    [
        "SELECT n FROM t WHERE {} ORDER BY n",
        "SELECT k, count(*) AS c, sum(n) AS s FROM t WHERE {} GROUP BY k ORDER BY k",
        "SELECT n, row_number() OVER (ORDER BY n) AS at FROM t WHERE {} QUALIFY at % 2 = 0",
        "SELECT count(*) AS c FROM (SELECT * FROM t WHERE {}) AS u WHERE n > 3",
        "WITH t AS (SELECT n AS k, k AS n, word, odd, x FROM t) SELECT k FROM t WHERE {} ORDER BY k",
        "SELECT count(*) AS c FROM t WHERE {} AND n IN (SELECT n FROM t WHERE n < 90)",
        "SELECT k AS was, k + 1 AS k FROM t WHERE {} ORDER BY n",
        "SELECT n FROM t AS t(n, word, odd, x, k) WHERE {} ORDER BY n",
        "SELECT a.n FROM t AS a LEFT JOIN (SELECT * FROM t WHERE {}) AS b USING (n) WHERE b.n IS NULL ORDER BY a.n",
        "SELECT n FROM t TABLESAMPLE reservoir(50 ROWS) REPEATABLE (7) WHERE {} ORDER BY n",
    ]
)


@few(60, 400)
@given(asked=st.lists(ASKED, min_size=1, max_size=3), form=FORMS, joined=st.sampled_from([" AND ", " OR "]))
def test_what_a_scan_leaves_out_changes_no_answer(asked: list[str], form: str, joined: str) -> None:
    text = form.format("(" + joined.join(asked) + ")")
    try:
        expected = run_sql(text, {"t": pa.Table.from_batches(NUMBERS.to_batches(max_chunksize=50))})
    except PlanError:
        with pytest.raises(PlanError):
            run_sql(text, {"t": Scanned(NUMBERS, 50)})
        return

    assert run_sql(text, {"t": Scanned(NUMBERS, 50)}).equals(expected)


def test_a_scan_leaves_out_what_a_query_does_not_need() -> None:
    rows = Scanned(NUMBERS)
    run_sql("SELECT max(x) AS m FROM t WHERE k = 3 AND word IN ('a', 'b') AND x > 0.1", {"t": rows})

    ((columns, condition),) = rows.read
    assert sorted(columns) == ["k", "word", "x"]
    assert condition == "(k == 3) & word in ['a', 'b']"
    assert rows.sent == 17


def test_a_query_beyond_its_memory_spills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRAL_SQL_MEMORY_BYTES", str(256 << 20))
    rng = np.random.default_rng(1)
    rows = pa.table({"k": rng.permutation(8_000_000), "x": rng.random(8_000_000), "y": rng.random(8_000_000)})
    text = (
        "SELECT max(y) AS m FROM (SELECT *, lag(k) OVER (ORDER BY k) AS before FROM t) WHERE k = before + 1 AND x >= 0"
    )

    found = run_sql(text, {"t": Scanned(rows, 1 << 17)}).to_pydict()
    assert found["m"][0] == rows["y"].filter(pa.compute.not_equal(rows["k"], 0)).to_numpy().max()


def test_what_a_relation_cannot_give_is_told_as_it_tells_it() -> None:
    class Broken(Scanned):
        def scan(self, columns: Sequence[str], condition: sp.Expr | None) -> Iterator[pa.RecordBatch]:
            yield from super().scan(columns, condition)
            msg = "t: its file is gone. Restore it"
            raise sp.errors.SourceError(msg)

    with pytest.raises(sp.errors.SourceError, match="Restore it"):
        run_sql("SELECT sum(n) AS s FROM t", {"t": Broken(NUMBERS)})


def test_the_same_rows_give_the_same_bytes() -> None:
    rng = np.random.default_rng(1)
    rows = pa.table({"k": rng.integers(0, 5000, 200_000), "x": rng.random(200_000)})
    text = "SELECT t.k, sum(t.x) AS s FROM t JOIN t AS u USING (k) WHERE u.x > 0.9 GROUP BY t.k"

    first, second = (run_sql(text, {"t": rows}) for _ in range(2))

    assert first.equals(second)


def test_a_relation_that_is_damaged_is_named(catalog: sp.Catalog) -> None:
    import lancedb

    lancedb.connect(str(catalog.root)).open_table("relations").update(where="name = 'plain'", values={"shard": "v"})
    with pytest.raises(
        sp.errors.CatalogError, match=r"relation 'plain' cannot be read: .*Register it again with replace=True"
    ):
        catalog.sql("SELECT * FROM plain")


@pytest.mark.usefixtures("cold_sql")
def test_nothing_is_left_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spiral_stream.relational import engine

    monkeypatch.chdir(tmp_path)
    run_sql("SELECT * FROM t ORDER BY x", {"t": LABELS})
    engine.aggregate(LABELS, ["label_id"], [("x", "count", "n")])

    assert list(tmp_path.iterdir()) == []

"""The ``spiral`` command: what it prints, and what it says when something is wrong."""

import json
import re
import runpy
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

import spiral_stream as sp
from spiral_stream.commands import cli
from spiral_stream.report import ColumnSkew
from tests.fixtures.inner import numbering_of
from tests.fixtures.streams import ROWS, SHARDS, plan
from tests.fixtures.texts import make_catalog, tokenized


def run_help(command: str) -> str:
    return CliRunner().invoke(cli.app, [command, "--help"]).output


def run(catalog: sp.Catalog, *words: str) -> str:
    done = CliRunner().invoke(cli.app, [*words, "--catalog", str(catalog.root)])
    assert done.exit_code == 0, done.output
    return done.output


def test_tables_and_show_list_what_is_registered(own: sp.Catalog) -> None:
    own.save_stream("train", plan(own.table("lance")).to_numpy())
    listing = run(own, "tables")
    shown = run(own, "show", "lance")

    cells = [[cell.strip() for cell in line.strip("│┃").split("│")] for line in listing.splitlines()]
    row = ["lance", "lance", str(ROWS), str(SHARDS), "sample_id", own.entry("lance").data_version[:12]]
    assert row in cells
    assert "streams: train" in listing
    assert "large_binary" in shown
    assert "image/jpeg-ref" in shown
    assert "statistics: unknown" in shown


def test_register_and_refresh_take_a_source(own: sp.Catalog, tmp_path: Path) -> None:
    path = str(tmp_path / "files" / "*.parquet")
    out = run(own, "register", "again", "parquet", path, "--image", "image_ref")
    fresh = run(own, "refresh", "again")

    assert f"again: {ROWS} rows in {SHARDS} storage shards" in out
    assert own.entry("again").data_version[:12] in fresh
    assert own.entry("again").schema.field("image_ref").metadata
    assert "shards that differ" not in out
    assert "shards that differ from before: none" in fresh
    assert "shards that differ from before: none" in run(
        own, "register", "again", "parquet", path, "--image", "image_ref"
    )


def test_refresh_names_the_shards_that_differ(tmp_path: Path) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    for k in range(5):
        pq.write_table(pa.table({"sample_id": [k]}), tmp_path / f"p{k}.parquet")
    run(catalog, "register", "t", "parquet", str(tmp_path / "p*.parquet"))
    (tmp_path / "p0.parquet").unlink()
    for k in range(5, 10):
        pq.write_table(pa.table({"sample_id": [k]}), tmp_path / f"p{k}.parquet")
    told = run(catalog, "refresh", "t")

    assert "5 added (p5.parquet, p6.parquet, p7.parquet and 2 more); 1 removed (p0.parquet)" in told


def test_caches_lists_what_is_there_and_removes_what_is_dead_when_asked(own: sp.Catalog) -> None:
    with plan(own.table("lance"), profile=sp.Raw(shorter_side=8)).to_numpy() as stream:
        stream.materialize(lambda _: None)
        own.save_stream("train", stream)
    folder = next((own.root / "prepared" / "caches").iterdir())
    listing = run(own, "caches", "--older-than", "0")
    own.drop_stream("train")
    young = run(own, "caches")
    dead = json.loads(run(own, "caches", "--older-than", "0", "--json"))
    assert folder.exists()
    gone = run(own, "caches", "--older-than", "0", "--remove-dead")

    assert re.search(r"cache +│ [0-9a-f]{8} lance: image_ref.*│ train", listing)
    assert "Raw(shorter_side=8)" in listing
    assert " 0 dead" in listing
    assert "not long ago" in young
    (cache,) = [each for each in dead if each["kind"] == "cache"]
    assert cache["dead_bytes"] == cache["bytes"] > 0
    assert cache["path"] == str(folder)
    assert "bytes removed" in gone
    assert not folder.exists()
    assert "bytes removed" not in run(own, "caches")


def test_a_pipe_gets_whole_lines_however_narrow_the_terminal_is(
    own: sp.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with plan(own.table("lance"), profile=sp.Raw(shorter_side=8)).to_numpy() as stream:
        stream.materialize(lambda _: None)
        own.save_stream("train_on_photographs_of_summer", stream)

    assert re.search(r"cache +│ [0-9a-f]{8} lance: image_ref.*│ train_on_photographs_of_summer", run(own, "caches"))
    assert "--json" in " ".join(run_help("caches").split("Options")[0].split())


def test_the_command_trusts_the_modules_that_it_is_told_to(own: sp.Catalog) -> None:
    sampled = own.table("lance").sample(order=sp.Sequential())
    mapped = sampled.map(pc.negate, columns=["label_id"], name="less", returns=pa.int64(), version="1")
    own.save_stream("less", mapped.collate(batch_size=4, fields={"less": sp.Stack("less")}).to_numpy())
    refused = CliRunner().invoke(cli.app, ["explain", "less", "--catalog", str(own.root)])

    assert isinstance(refused.exception, sp.errors.TrustError)
    assert "EXPLAIN" in run(own, "explain", "less", "--trust", "pyarrow.compute", "--trust", "operator")
    with pytest.warns(sp.SpiralWarning, match="nothing is built"):
        assert "all is built" in run(own, "materialize", "less", "--trust", "pyarrow.compute")
    assert "derived files" in run(own, "verify", "less", "--trust", "pyarrow.compute")


def test_counting_without_a_cache_is_no_surprise(own: sp.Catalog, recwarn: pytest.WarningsRecorder) -> None:
    sampled = own.table("lance").sample(order=sp.Sequential())
    made = sampled.collate(batch_size=4, fields={"label": sp.Stack("label_id")}, last=sp.KeepPartial)
    own.save_stream("labels", made.to_numpy())

    assert f"epoch 0: {-(-ROWS // 4)} batches" in run(own, "materialize", "labels", "--lengths")
    assert not [each for each in recwarn if issubclass(each.category, sp.SpiralWarning)]


def test_code_that_is_not_trusted_is_refused_with_the_option_that_trusts_it(
    own: sp.Catalog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sampled = own.table("lance").sample(order=sp.Sequential())
    mapped = sampled.map(pc.negate, columns=["label_id"], name="less", returns=pa.int64(), version="1")
    own.save_stream("less", mapped.collate(batch_size=4, fields={"less": sp.Stack("less")}).to_numpy())
    monkeypatch.setattr(sys, "argv", ["spiral", "explain", "less", "--catalog", str(own.root)])
    with pytest.raises(SystemExit):
        cli.main()

    assert capsys.readouterr().err.rstrip().endswith(". On the command line: --trust MODULE")


def test_explain_and_materialize_work_on_a_saved_stream(own: sp.Catalog) -> None:
    own.save_stream("train", plan(own.table("lance"), profile=sp.Raw(shorter_side=20)).to_numpy())
    with own.open_stream("train") as stream:
        assert json.loads(run(own, "explain", "train", "--json")) == json.loads(stream.explain().to_json())
    built = run(own, "materialize", "train")
    again = run(own, "materialize", "train")

    assert f"{ROWS} rows in {SHARDS} shards built" in built
    assert "0 rows refused" in built
    assert "all is built" in again
    assert re.search(r"caches: [1-9][\d,]+ bytes live, 0 dead", again)
    assert "EXPLAIN" in run(own, "explain", "train")


def test_materialize_works_in_processes(own: sp.Catalog) -> None:
    own.save_stream("train", plan(own.table("lance"), profile=sp.Raw(shorter_side=20)).to_numpy())
    built = run(own, "materialize", "train", "--executor", "processes", "--workers", "2")
    refused = CliRunner().invoke(cli.app, ["materialize", "train", "--workers", "0", "--catalog", str(own.root)])

    assert f"{ROWS} rows in {SHARDS} shards built" in built
    assert isinstance(refused.exception, sp.errors.PlanError)
    assert "Give a number of at least 1" in str(refused.exception)


def test_sql_prints_rows(own: sp.Catalog) -> None:
    out = run(own, "sql", 'select label_id, count(*) as n from "lance" group by 1 order by 1', "--rows", "2")

    assert "label_id" in out
    assert "5 rows" in out


def test_an_error_of_ours_is_one_line_and_no_traceback(
    own: sp.Catalog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["spiral", "show", "lnace", "--catalog", str(own.root)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    err = capsys.readouterr().err

    assert caught.value.code == 1
    assert err.startswith("CatalogError: relation 'lnace' is not in catalog")
    assert "Register it first" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "words",
    [
        ["tables"],
        *(
            [each, "rows"]
            for each in ("show", "look", "report", "drop", "measure", "refresh", "explain", "materialize")
        ),
        ["verify", "rows"],
        ["page"],
        ["caches"],
        ["sql", "SELECT 1"],
    ],
    ids=lambda words: words[0],
)
def test_to_look_into_a_catalog_that_is_not_there_makes_none(tmp_path: Path, words: list[str]) -> None:
    where = tmp_path / "catalgo"
    refused = CliRunner().invoke(cli.app, [*words, "--catalog", str(where)])

    assert isinstance(refused.exception, sp.errors.CatalogError)
    assert f"catalog {where} is not there. Correct --catalog" in str(refused.exception)
    assert not where.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_an_output_that_is_full_is_one_line(
    own: sp.Catalog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["spiral", "tables", "--catalog", str(own.root)])
    full = Path("/dev/full").open("w")  # noqa: SIM115  to close it fails too
    monkeypatch.setattr(sys, "stdout", full)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    with suppress(OSError):
        full.close()

    assert caught.value.code == 1
    assert capsys.readouterr().err.startswith("OSError: [Errno 28] No space left on device. Make room")


def test_verify_reads_everything_says_what_is_damaged_and_mends_it(own: sp.Catalog) -> None:
    own.save_stream("train", plan(own.table("lance"), profile=sp.Raw(shorter_side=20)).to_numpy())
    run(own, "materialize", "train")
    sound = run(own, "verify", "train")
    blob = sorted(own.root.rglob("*.blob"))[1]
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    found = CliRunner().invoke(cli.app, ["verify", "train", "--catalog", str(own.root)])
    of_relation = CliRunner().invoke(cli.app, ["verify", "lance", "--catalog", str(own.root)])
    with pytest.warns(sp.SpiralWarning, match="dropped from the cache, and built again"):
        mended = run(own, "verify", "train", "--mend")

    assert re.search(r"│ cache lance.image_ref \w+ +│ 10 +│ [\d,]+ +│ 10 +│ 0 +│ 0 ", sound), sound
    assert "0 dead until the next build" in sound
    assert found.exit_code == of_relation.exit_code == 1
    assert re.search(r"│ 9 +│ 0 +│ 1 ", found.output), found.output
    for said in (found.output, of_relation.output):
        assert f"{blob} is damaged: bytes 65,536 to" in said
        assert "Build that shard again with spiral materialize STREAM" in said
    assert re.search(r"│ 10 +│ 0 +│ 0 ", mended), mended


def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """What a command that fails, or warns, says on standard error."""
    monkeypatch.setattr(sys, "argv", ["spiral", *words])
    with pytest.raises(SystemExit):
        cli.main()
    return capsys.readouterr().err


@pytest.fixture
def chats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "chat.jsonl").write_text('{"id": 1, "msg": "a"}\n{"id": 2, "msg": "b"}\nno JSON\n')
    monkeypatch.setenv("SPIRAL_CATALOG", str(tmp_path / "catalog"))
    return str(tmp_path / "chat.jsonl")


@pytest.mark.filterwarnings("always::spiral_stream.SpiralWarning")
def test_errors_and_warnings_say_what_to_type_in_the_command(
    chats: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    skip = ("register", "chat", "auto", chats, "--option", "on_error=skip")
    refused = said(capsys, monkeypatch, "register", "chat", "auto", chats)
    missing = said(capsys, monkeypatch, *skip).splitlines()[-1]
    warned = said(capsys, monkeypatch, *skip, "--identity", "id")
    taken = said(capsys, monkeypatch, *skip, "--row-identity").splitlines()[-1]
    column = said(capsys, monkeypatch, "report", "chat", "--label", "chars")

    assert "there are id, msg, __file__, " in missing
    assert "--identity COLUMN, or give each row an identity: --row-identity" in missing
    assert warned.strip().startswith("warning: ")
    assert len(warned.strip().splitlines()) == 1
    assert "1 rows could not be read and are left out" in warned
    assert "spiral show NAME" in warned or "spiral show name" in warned
    assert "Pass --replace, or drop it first" in taken
    assert "'chars' is not a column; did you mean" in column or "'chars' is not a column; there are" in column
    assert "leave such rows out with --option on_error=skip" in refused
    for each in (refused, missing, warned, taken, column):
        assert "spiral." not in each
        assert "catalog." not in each
        assert ".py" not in each


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        (
            ("register", "chats", "chat.jsonl"),
            "KIND is auto, which tells by the names of the files, or one of folder, ",
        ),
        (("register", "chats"), "The kind, or the path, is missing: spiral register NAME KIND PATH"),
        (
            ("register", "chats", "a.jsonl", "b.jsonl"),
            "a pattern in quotes or their folder: spiral register chats auto",
        ),
        (("register", "chats", "a.jsonl", "b.jsonl", "c.jsonl"), "3 paths are given, and there is place for one."),
        (("register", "chats", "jsonl", "a.jsonl", "b.jsonl"), "2 paths are given, and there is place for one."),
        (("register", "chats", "jsonn", "chat.jsonl"), "is no kind of source. Give one of csv"),
        (("register", "chats", "cvs", "chat.jsonl"), "or one of an installed package; near it: csv"),
        (
            ("register", "chats", "jsonl", "a.jsonl", "--identity", "id", "--shard", "foo"),
            "or give --shard '', which takes",
        ),
        (
            ("register", "chats", "jsonl", "a.jsonl", "--identity", "id", "--image", "txt"),
            "'txt' is not a column; there are id, __file__, __index_in_file__. Name the column that refers to files",
        ),
        (
            ("register", "chats", "jsonl", "a.jsonl", "--identity", "id", "--image", "id"),
            "Name such a column, or leave it out",
        ),
        (("init", "chat.jsonl"), "or leave such rows out with --option on_error=skip of spiral register"),
        (("caches", "--delete"), "--remove-dead removes what nobody uses."),
        (("caches", "--remove-deed"), "--remove-dead"),
    ],
)
def test_what_is_typed_first_is_answered_with_what_to_type(
    words: tuple[str, ...],
    way_out: str,
    chats: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = Path(chats).parent
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        (data / name).write_text('{"id": 1}\n')
    (data / "program").mkdir()
    monkeypatch.chdir(data / "program" if words[0] == "init" else data)
    monkeypatch.setenv("COLUMNS", "1000")
    typed = [f"../{word}" if words[0] == "init" and "." in word else word for word in words]

    assert way_out in " ".join(said(capsys, monkeypatch, *typed).split())


def test_look_and_explain_name_the_command_that_measures(own: sp.Catalog) -> None:
    for words in (("look", "lance"), ("explain", "lance")):
        shown = run(own, *words)
        assert "spiral measure lance" in shown
        assert "catalog." not in shown


def test_drop_measure_and_shard(own: sp.Catalog, tmp_path: Path) -> None:
    path = str(tmp_path / "files" / "*.parquet")
    run(own, "register", "by.label", "parquet", path, "--shard", "label_id")
    own.save_stream("train", plan(own.table("lance")).to_numpy())
    measured = run(own, "measure", "by.label")
    shown = run(own, "show", "by.label")
    dropped = run(own, "drop", "by.label") + run(own, "drop", "train")
    unknown = CliRunner().invoke(cli.app, ["drop", "by.label", "--catalog", str(own.root)])

    assert f"of {ROWS} rows in" in measured
    assert "statistics: unknown" not in shown
    assert "by.label: relation dropped" in dropped
    assert "train: stream dropped" in dropped
    assert own.streams() == []
    assert "by.label" not in own.tables()
    assert isinstance(unknown.exception, sp.errors.CatalogError)


def test_a_plan_that_is_built_says_so_and_the_first_verify_says_that_it_records(own: sp.Catalog) -> None:
    own.save_stream("train", plan(own.table("lance"), profile=sp.Raw(shorter_side=20)).to_numpy())
    first, second = run(own, "materialize", "train"), run(own, "materialize", "train")
    recorded, compared = run(own, "verify", "lance"), run(own, "verify", "lance")

    assert f"{ROWS} rows in" in first
    assert "all is built" in second
    assert "the first time: the bytes of" in recorded
    assert "recorded" not in compared


def test_explain_takes_a_device_and_convert_the_kinds_of_register(own: sp.Catalog, tmp_path: Path) -> None:
    own.save_stream("train", plan(own.table("lance")).to_numpy())
    out = run(own, "explain", "train", "--device", "cpu")
    wrong = CliRunner().invoke(cli.app, ["explain", "lance", "--device", "cpu", "--catalog", str(own.root)])
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "photos" / "cats" / "one.jpg")
    words = ["convert", str(tmp_path / "photos"), str(tmp_path / "photos.lance"), "--kind", "folder"]
    done = CliRunner().invoke(cli.app, words)

    assert "DELIVER" in out.upper()
    assert "only a stream has a device" in str(wrong.exception)
    assert "1 rows in 1 shards added" in done.output


@pytest.mark.parametrize("module", ["spiral_stream", "spiral_stream.commands.cli"])
def test_python_runs_the_command_as_a_module(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["spiral", "--version"])
    monkeypatch.delitem(sys.modules, module if module.endswith("cli") else f"{module}.__main__", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert not ended.value.code


def test_version_prints_the_installed_version_and_runs_no_command() -> None:
    done = CliRunner().invoke(cli.app, ["--version"])

    assert (done.exit_code, done.output) == (0, f"spiral {sp.__version__}\n")


def test_materialize_counts_the_batches_of_an_epoch(tmp_path: Path) -> None:
    catalog = make_catalog(tmp_path, {"a": 200})
    sampled = tokenized(catalog.table("a"), sp.GlobalShuffle(seed=1), stored=True)
    formation = sp.batching.Packed(max_tokens=24, window_size=16)
    made = sampled.collate(batch_size=2, formation=formation, fields={"ids": sp.Pad("tokens")}, last=sp.KeepPartial)
    catalog.save_stream("packed", made.to_numpy())
    said = run(catalog, "materialize", "packed", "--lengths", "--epoch", "3")

    with catalog.open_stream("packed") as stream:
        assert numbering_of(stream).unknown(3) == 0
        assert numbering_of(stream).unknown(0) > 0
        assert f"epoch 3: {stream.count(3)} batches" in said


def test_report_writes_a_page_beside_the_catalog_or_where_it_is_asked_to(
    own: sp.Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    own.save_stream("train", plan(own.table("lance")).to_numpy())
    beside = run(own, "report", "lance", "--label", "label_id", "--stream", "train").strip()
    monkeypatch.setattr(ColumnSkew, "pictures", lambda *_: [])  # the first page has them
    named = run(
        own, "report", "lance", "--label", "label_id", "--along", "ingest_ts", "--out", str(tmp_path / "page.html")
    )

    assert Path(beside) == own.root / "reports" / "lance.html"
    assert "What shuffle_block_size leaves of the skew of label_id" in Path(beside).read_text()
    assert named.strip() == str(tmp_path / "page.html")
    shown = run(own, "show", "lance")
    assert "histogram" in shown
    assert "quartiles" in shown


@pytest.mark.parametrize("kind", ["jsonl", "auto"])
def test_register_takes_every_kind_that_a_path_describes(own: sp.Catalog, tmp_path: Path, kind: str) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"n": {k}}}\n' for k in range(5)))

    out = run(own, "register", "lines", kind, str(tmp_path / "rows.jsonl"), "--row-identity")

    assert "lines: 5 rows in 1 storage shards" in out
    assert f"source: jsonl at {tmp_path}/rows.jsonl; imported: 1 files, 45 bytes read in" in out
    assert "jsonl" in run(own, "tables")
    assert "source: jsonl" in run(own, "show", "lines")


def test_register_auto_asks_for_the_split_of_the_layout_of_the_hub(own: sp.Catalog, tmp_path: Path) -> None:
    (tmp_path / "hub" / "data").mkdir(parents=True)
    for split, first in (("train", 0), ("test", 100)):
        rows = pa.table({"id": range(first, first + 5)})
        pq.write_table(rows, tmp_path / "hub" / "data" / f"{split}-00000-of-00001.parquet")
    words = ["register", "hub", "auto", str(tmp_path / "hub"), "--identity", "id"]

    done = CliRunner().invoke(cli.app, [*words, "--catalog", str(own.root)])
    assert done.exit_code == 1
    assert "has several splits: there are test, train. Name one with split=" in str(done.exception)

    run(own, *words, "--option", "split=train")
    assert own.table("hub").to_arrow()["id"].to_pylist() == [0, 1, 2, 3, 4]


def test_register_takes_options_and_show_shows_the_rows_that_were_left_out(own: sp.Catalog, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id;n\n1;5\n2;five\n3\n")
    with pytest.warns(sp.SpiralWarning, match="2 rows could not be read"):
        run(
            own, "register", "rows", "auto", str(tmp_path / "rows.csv"), "--row-identity", "--option", "delimiter=;",
            "--option", "on_error=skip", "--option", 'schema={"id": "int64", "n": "int64"}',
        )  # fmt: skip
    shown = run(own, "show", "rows")

    assert own.table("rows").to_arrow()["n"].to_pylist() == [5]
    assert "2 rows left out" in shown
    assert "line 3" in shown
    assert "column 'n' holds 'five'" in shown
    assert "2;five" in shown


def test_look_shows_what_a_notebook_shows_of_streams_and_relations(own: sp.Catalog, tmp_path: Path) -> None:
    own.save_stream("train", plan(own.table("lance")).to_numpy())
    with own.open_stream("train") as stream:
        wanted = stream.ledger(3)[:2]
    shown = run(own, "look", "train", "--count", "2", "--batch", "3")
    rows = run(own, "look", "lance")
    written = run(own, "look", "train", "--count", "2", "--out", str(tmp_path / "two.html"))
    page = run(own, "look", "lance", "--out", str(tmp_path / "lance.html"))

    assert all(name in shown for name in wanted)
    assert "batch 3 row 1" in shown
    assert "image/jpeg-ref" in rows
    assert "▀" in rows
    assert all(len(line.rstrip()) < 400 for line in shown.splitlines() + rows.splitlines())
    assert all(len(line) <= 200 for line in rows.splitlines() if "▀" in line)  # a pipe is not filled with blanks
    assert "two.html" in written
    assert (tmp_path / "two.html").read_text().count("<img") == 2
    assert "lance.html" in page
    refused = CliRunner().invoke(cli.app, ["look", "lance", "--batch", "1", "--catalog", str(own.root)])
    assert isinstance(refused.exception, sp.errors.PlanError)
    assert "Leave it out, or name a saved stream" in str(refused.exception)


def test_look_at_what_is_not_there_says_what_is(own: sp.Catalog, tmp_path: Path) -> None:
    own.save_stream("train", plan(own.table("lance")).to_numpy())
    where = ["--catalog", str(own.root)]
    (data := tmp_path / "data").mkdir()

    late = CliRunner().invoke(cli.app, ["look", "train", "--batch", "9999", *where])
    path = CliRunner().invoke(cli.app, ["look", str(data), *where])

    assert isinstance(late.exception, sp.errors.PlanError)
    assert re.fullmatch(r"look: batch 9999 of an epoch of (\d+)\. Give a number in \[0, \1\)", str(late.exception))
    assert isinstance(path.exception, sp.errors.CatalogError)
    assert "is data, and no saved stream and no relation of catalog" in str(path.exception)
    assert f"spiral register NAME auto {data}" in str(path.exception)


def test_brackets_and_colons_of_data_are_shown_as_they_are(tmp_path: Path) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    data: dict[str, list[Any]] = {
        "id": ["[/INST]", "[bold]"],
        "a[/b]": ["[INST] hi [/INST]", ":smile: [red]x"],
        "[label]": [0, 1],
    }
    catalog.register("chat", sp.Arrow(pa.table(data)), identity=["id", "a[/b]"])
    catalog.measure("chat")

    listed = run(catalog, "tables")
    shown = run(catalog, "show", "chat")
    queried = run(catalog, "sql", "SELECT * FROM chat")

    assert "id, a[/b]" in listed
    assert all(shown.count(name) >= 2 for name in ("a[/b]", "[label]"))
    assert "[bold]" in shown
    for texts in data.values():
        assert all(str(text) in queried for text in texts)
    assert ":smile: [red]x" in queried
    refused = CliRunner().invoke(cli.app, ["sql", "SELECT 1", "--rows", "-1", "--catalog", str(catalog.root)])
    assert refused.exit_code == 2
    assert "greater than or equal to 0" in refused.output


def test_drop_of_what_is_not_there_suggests_names_of_every_kind(own: sp.Catalog) -> None:
    own.save_stream("train", plan(own.table("lance")).to_numpy())

    refused = CliRunner().invoke(cli.app, ["drop", "trian", "--catalog", str(own.root)])

    assert isinstance(refused.exception, sp.errors.CatalogError)
    assert "did you mean train? Correct the name" in str(refused.exception)


def test_page_writes_the_catalog_and_tells_how_far_it_is(own: sp.Catalog, tmp_path: Path) -> None:
    own.save_stream("train", plan(own.table("lance")).to_numpy())
    told: list[tuple[str, int, int]] = []
    made = own.page(tmp_path / "page.html", report=lambda *each: told.append(each))
    named = run(own, "page", "labels", "--batches", "0", "--out", str(tmp_path / "one.html"))

    names = [*own.tables(), *own.streams()]
    assert told == [(name, k, len(names) + 1) for k, name in enumerate([*names, "what is prepared"])]
    assert made.read_text().count("<section>") == len(names)
    assert "one.html" in named
    assert (tmp_path / "one.html").read_text().count("<section>") == 1
    assert own.page() == own.root / "page.html"
    for words, way_out in ((["labls"], "Name one of them, or none for all"), (["--max-bytes", "9"], "from 262,144 up")):
        refused = CliRunner().invoke(cli.app, ["page", *words, "--catalog", str(own.root)])
        assert way_out in str(refused.exception)


def test_what_cannot_be_read_is_a_note_on_the_page_and_the_rest_is_there(own: sp.Catalog, tmp_path: Path) -> None:
    sampled = own.table("lance").sample(order=sp.Sequential())
    mapped = sampled.map(pc.negate, columns=["label_id"], name="less", returns=pa.int64(), version="1")
    own.save_stream("less", mapped.collate(batch_size=4, fields={"less": sp.Stack("less")}).to_numpy())
    for file in (tmp_path / "files").iterdir():
        file.unlink()
    page = own.page(tmp_path / "page.html", trust=()).read_text()

    assert page.count("not shown: ") == 2  # the relation whose files are gone, and the stream that names code
    assert page.count("<section>") == 4
    assert "image/jpeg-ref" in page


def test_seen_prints_what_a_checkpoint_saw_and_writes_identities_and_a_manifest(tmp_path: Path) -> None:
    catalog = sp.connect(tmp_path / "catalog")
    catalog.register("numbers", sp.Arrow(pa.table({"id": range(100)})), identity="id")
    sampled = catalog.table("numbers").sample(order=sp.GlobalShuffle(seed=17))
    with sampled.collate(batch_size=16, fields={"id": sp.List("id")}).to_numpy() as stream:
        stream.seek(batch=3)
        state = stream.state_dict()
        stream.seek(batch=1)
        other = stream.state_dict()
        catalog.save_stream("train", stream)
    path = tmp_path / "state.json"
    path.write_text(json.dumps(state))
    out = run(
        catalog, "seen", str(path), "--out", str(tmp_path / "ids.parquet"), "--manifest", str(tmp_path / "m.json")
    )
    assert "numbers" in out
    assert pq.read_table(tmp_path / "ids.parquet").num_rows == 48
    assert json.loads((tmp_path / "m.json").read_text())["distinct"] == 48
    lines = run(catalog, "seen", str(path), "--ids").splitlines()
    assert sum(line.startswith("numbers, ") for line in lines) == 48
    path.write_text(json.dumps({"train": state, "judge": other}))
    listed = CliRunner().invoke(cli.app, ["seen", str(path), "--catalog", str(catalog.root)])
    assert listed.exit_code == 1
    assert "Take one with --name" in listed.output
    assert "judge" in listed.output
    assert "16" in run(catalog, "seen", str(path), "--name", "judge")


def test_forget_and_diff_take_checkpoints(tmp_path: Path) -> None:
    catalog = sp.connect(tmp_path / "catalog")
    catalog.register("numbers", sp.Arrow(pa.table({"id": range(100)})), identity="id")
    sampled = catalog.table("numbers").sample(order=sp.GlobalShuffle(seed=17))
    paths = []
    with sampled.collate(batch_size=16, fields={"id": sp.List("id")}).to_numpy() as stream:
        catalog.save_stream("train", stream)
        for batch in (1, 2, 4):
            stream.seek(batch=batch)
            paths.append(tmp_path / f"{batch}.json")
            paths[-1].write_text(json.dumps(stream.state_dict()))
        ids = stream.ledger(2)[:2]
    assert "until batch 2, where A ends" in run(catalog, "diff", str(paths[1]), str(paths[2]))
    assert "all 4 batches" in run(catalog, "diff", str(paths[2]), str(paths[2]))
    out = tmp_path / "forgotten.json"
    said = run(catalog, "forget", *map(str, paths), "--ids", ",".join(map(str, ids)), "--out", str(out))
    assert "epoch 0 batch 2, in step 2" in said
    state = json.loads(out.read_text())
    assert state["batch"] == 2
    assert [each[3] for each in state["skips"]["samples"]] == [[each] for each in ids]
    (tmp_path / "ids.txt").write_text("\n".join(map(str, ids)))
    pq.write_table(pa.table({"id": ids}), tmp_path / "ids.parquet")
    run(catalog, "forget", *map(str, paths), "--ids", str(tmp_path / "ids.txt"), "--out", str(out))
    assert json.loads(out.read_text()) == state
    run(catalog, "forget", *map(str, paths), "--ids", str(tmp_path / "ids.parquet"), "--out", str(out))
    by_table = json.loads(out.read_text())
    assert by_table["batch"] == 2
    assert [each[:3] for each in by_table["skips"]["tables"]] == [[0, 2, 2]]  # two rows, kept under a digest

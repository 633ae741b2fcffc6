"""An error of the command says what to type in the command, for every argument that a command takes in another form."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.core import TyperGroup

import spiral_stream as sp
from spiral_stream.commands import cli
from spiral_stream.commands.command_words import source_options, typed, typed_names

ROOMS = Path(sp.__file__).parent
GROUP = typer.main.get_command(cli.app)
assert isinstance(GROUP, TyperGroup)
COMMANDS = GROUP.commands
OF_REGISTER = {"identity", "unique", "replace", "shard", "semantic"}


@pytest.mark.parametrize(
    ("python", "command"),
    [
        ('with catalog.refresh("a.b"), or restore it', "with spiral refresh a.b, or restore it"),
        ("Run catalog.measure('t')", "Run spiral measure t"),
        ('replace=True, or catalog.drop("t")', "--replace, or spiral drop t"),
        ('catalog.drop_stream("t")', "spiral drop t"),
        ('several (identity=["a", "b"])', "several (--identity A --identity B)"),
        (
            'Give the columns: schema={"name": "type", ...}',
            """Give the columns: --option 'schema={"name": "type", ...}'""",
        ),
        ("again with stream.materialize()", "again with spiral materialize STREAM"),
        ("call stream.materialize(lengths=True)", "call spiral materialize STREAM --lengths"),
        ("Name one with split=", "Name one with --option split=..."),
        ("give hive=False, which", "give --option hive=false, which"),
        ("or say quote=None if", "or say --option quote=null if"),
        ('split="train". Give', "--option split=train. Give"),
        ("Give separator=<id>, length=<ids>, or", "Give --option separator=id, --option length=ids, or"),
        ("register with shard=None to take", "register with --shard '' to take"),
        ("or pass unique=False for", "or pass --not-unique for"),
        ("register: name='a\\x00b' holds a zero byte", "register: NAME 'a\\x00b' holds a zero byte"),
        ("--option: 'x' is no name=value; it has", "--option: 'x' is no name=value; it has"),
        (
            "collate: columns=3 is no list. Give last=KeepPartial",
            "collate: columns=3 is no list. Give last=KeepPartial",
        ),
        ("Pad('x'): length=3 and dtype='a'", "Pad('x'): length=3 and dtype='a'"),
        ("nothing to change", "nothing to change"),
    ],
)
def test_python_in_a_message_becomes_what_to_type(python: str, command: str) -> None:
    assert typed(python, COMMANDS["register"]) == command


@pytest.mark.parametrize("command", ["register", "convert"])
@pytest.mark.parametrize(
    "value", ["", "...", "3", "None", "True", "'x'", '"x y"', "[1, 2]", '{"a": "b"}', "('a', 'b')"]
)
def test_every_option_of_every_source_is_named_as_the_command_takes_it(command: str, value: str) -> None:
    for name in source_options():
        said = typed(f"x: {name}={value}, or so. Give {name}={value}", COMMANDS[command])

        assert re.fullmatch(rf"x: --option '?{name}=(.*), or so\. Give --option '?{name}=\1", said), said


def test_every_option_of_every_command_is_named_by_it() -> None:
    looked_at = 0
    for command in COMMANDS.values():
        options, places = typed_names(command)
        for name, words in {**options, **places}.items():
            said = typed(f"{command.name}: {name}='v' is wrong. Give another", command)
            looked_at += 1

            assert f"{name}=" not in said, (command.name, name)
            assert words in said or said.startswith(f"{command.name}: --"), (command.name, name, said)
    assert looked_at >= 50


def messages(room: Path) -> Iterator[str]:
    """Every text of a room that is no docstring; what is put in is X."""
    tree = ast.parse(room.read_text())
    inner = {id(each) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for each in node.values}
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else "X" for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner | docs:
            yield node.value


def test_an_option_that_another_command_takes_is_said_to_be_of_it() -> None:
    said = typed("which would lose digits. Name it in schema=", COMMANDS["refresh"])

    assert said == "which would lose digits. Name it in --option schema=... of spiral register"
    assert typed("map (f): it ended. Give fewer workers=, or", COMMANDS["materialize"]).endswith(
        "Give fewer workers=, or"
    )


def test_no_message_of_a_source_or_a_registration_names_an_argument_of_python() -> None:
    names = source_options() | OF_REGISTER
    python = re.compile(rf"(?<![\w-])(?<!option )(?<!option ')({'|'.join(sorted(names))})=(?!=)")
    found = changed = 0
    for folder in ("sources", "catalog", "storage"):
        for room in sorted((ROOMS / folder).rglob("*.py")):
            for text in messages(room):
                if not python.search(text) or "reverse=True" in text:
                    continue
                said = typed(text, COMMANDS["register"])
                found += 1
                changed += said != text

                assert not python.search(said), (room.name, said)
    assert found == changed >= 70


def told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["spiral", *words])
    with pytest.raises(SystemExit):
        cli.main()
    return capsys.readouterr().err


def test_real_errors_name_the_options_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIRAL_CATALOG", str(tmp_path / "catalog"))
    (tmp_path / "hub" / "data").mkdir(parents=True)
    for name in ("train", "test"):
        pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "hub" / "data" / f"{name}-00000-of-00001.parquet")
    table = pa.table({"id": [1, 1], "storage_shard": ["a", None], "n": [1, 2]})
    pq.write_table(table, tmp_path / "twice.parquet")
    (tmp_path / "open.csv").write_text('id,b\n1,"x\n2,y\n')
    np.arange(8, dtype=np.uint16).tofile(tmp_path / "ids.bin")

    def register(kind: str, name: str, *more: str) -> str:
        return told(capsys, monkeypatch, "register", "r", kind, str(tmp_path / name), *more)

    assert "Name one with --option split=..." in register("auto", "hub", "--identity", "id")
    assert "Give --option separator=id, --option length=ids" in register("auto", "ids.bin", "--row-identity")
    assert "--option quote=null" in register("auto", "open.csv", "--identity", "id")
    assert "Fill it in, or register with --shard ''" in register("auto", "twice.parquet", "--identity", "n")
    unique = register("auto", "twice.parquet", "--identity", "id", "--shard", "")
    assert "(--row-identity), or pass --not-unique for a relation that is only joined" in unique
    (tmp_path / "odd").mkdir()
    for name in ("train-0", "test-0"):
        pq.write_table(pa.table({"id": [1]}), tmp_path / "odd" / f"{name}.parquet")
    assert "odd holds files of several splits: test, train. Give those of one" in register(
        "auto", "odd", "--row-identity"
    )


def test_the_command_takes_what_its_errors_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRAL_CATALOG", str(tmp_path / "catalog"))
    pq.write_table(pa.table({"id": [1, 1], "storage_shard": ["a", None]}), tmp_path / "twice.parquet")
    words = ["spiral", "register", "r", "auto", str(tmp_path / "twice.parquet"), "--identity", "id"]
    monkeypatch.setattr(sys, "argv", [*words, "--shard", "", "--not-unique"])
    with pytest.raises(SystemExit) as ended:
        cli.main()

    assert ended.value.code == 0
    assert len(sp.connect(str(tmp_path / "catalog")).table("r").to_arrow()) == 2

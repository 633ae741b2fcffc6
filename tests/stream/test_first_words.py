"""What somebody types in the first hour out of habit, and the message that says what to write instead."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import rich
from torch.utils.data import DataLoader
from typer.testing import CliRunner

import spiral_stream as spiral
from spiral_stream import col
from spiral_stream.commands import cli
from tests.fixtures.chats import MARKED, of_transformers, proven_catalog

MESSAGES = [{"role": "user", "content": "Name a color."}, {"role": "assistant", "content": "Red."}]
ROWS = [
    {"id": f"c{k}", "messages": MESSAGES, "meta": {"lang": "en"}, "day": "2025-01-02", "score": k / 9, "tokens": [k, 7]}
    for k in range(9)
]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> spiral.Catalog:
    made = spiral.connect(tmp_path_factory.mktemp("words") / "catalog")
    made.register("chats", spiral.Arrow(pa.Table.from_pylist(ROWS)), identity="id")
    return made


def sampled(chats: Any) -> Any:
    return chats.sample(order=spiral.Sequential())


def stream(chats: Any) -> Any:
    fields = {"tokens": spiral.Pad("tokens")}
    return sampled(chats).collate(batch_size=2, fields=fields).to_numpy()


typed: Any = spiral  # as somebody types who runs no type checker
REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a function without parentheses": (
        lambda c: c.filter(col("day").year == 2025),
        r"False is a bool.*parentheses, as in col",
    ),
    "a list that is no key": (
        lambda c: c.distinct("messages"),
        r'md5\(messages::varchar\) as key from \.\.\."\)\.distinct\("key"\)',
    ),
    "a dotted field": (lambda c: c.filter(col("meta.lang") == "en"), r'A field of a struct is col\("meta"\)\["lang"\]'),
    "a field alone": (lambda c: c.filter(col("lang") == "en"), r'A field of a struct is col\("meta"\)\["lang"\]'),
    "a transform without a name": (
        lambda c: sampled(c).map(typed.transforms.ChatTemplate("messages", tokenizer="tok")),
        r'ChatTemplate\(\.\.\.\) >> "tokens", or ChatTemplate\(\.\.\.\) >> \("tokens", "loss_mask"\)',
    ),
    "a tokenizer itself": (
        lambda _: typed.transforms.ChatTemplate("messages", tokenizer=object()),
        r'catalog\.register_tokenizer\("chat", tokenizer\)',
    ),
    "and of a text": (
        lambda _: typed.Tokenize("text", tokenizer=object()),
        r'catalog\.register_tokenizer\("chat", tokenizer\)',
    ),
    "a field by its column": (
        lambda c: sampled(c).collate(batch_size=2, fields={"x": "score"}),
        r"Give Stack\(\"score\"\) or List\(\"score\"\)",
    ),
    "a field of tokens": (
        lambda c: sampled(c).collate(batch_size=2, fields={"x": "tokens"}),
        r'Give Pad\("tokens"\)',
    ),
}


ONE = pa.table({"key": ["c1"], "name": ["x"]})
REFUSED |= {
    "a frame of pandas": (
        lambda c: c.join(ONE.to_pandas(), on="id"),
        r"^join: a DataFrame of pandas is no relation.*spiral\.Arrow\(pyarrow\.Table\.from_pandas\(frame\)\)",
    ),
    "a frame of Polars": (
        lambda c: c.union(pl.from_arrow(ONE)),
        r"^union: a DataFrame of polars .*spiral\.Arrow\(frame\.to_arrow\(\)\)",
    ),
    "a table of Arrow": (lambda c: c.join(ONE, on="id"), r"^join: a Table of pyarrow .*spiral\.Arrow\(table\)"),
    "keys in a dict": (
        lambda c: c.join(c.rename(key="id"), on={"id": "key"}),
        r"left_on='id', right_on='key'",
    ),
    "a key of the left": (lambda c: c.join(c.rename(key="id"), on="id"), r'left_on="id", right_on="\.\.\."'),
    "a key of the right": (lambda c: c.join(c.rename(key="id"), on="key"), r'left_on="\.\.\.", right_on="key"'),
    "keys named twice": (
        lambda c: c.join(c, on="id", left_on="id"),
        r"^join: on= beside left_on= or right_on=\. Give on= where",
    ),
    "a DataLoader of rows": (
        lambda c: next(iter(DataLoader(c))),
        r"In place of a DataLoader: \.sample\(.*\.to_torch",
    ),
    "a DataLoader of a filter": (
        lambda c: DataLoader(c.filter("score > 0"), shuffle=True),
        r"\.count\(\).*In place of a DataLoader: \.sample\(.*\.to_torch",
    ),
    "a condition as a query": (
        lambda c: c.catalog.sql("score > 0.5 and id <> 'c1'"),
        r"is a condition, and no query\. Write catalog\.table\('chats'\)\.filter\(",
    ),
    "a query that is mistyped": (lambda c: c.catalog.sql("selec id from chats where id > 'c1'"), r"DuckDB's dialect"),
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_habit_is_refused_with_what_to_write(catalog: spiral.Catalog, words: str) -> None:
    write, way_out = REFUSED[words]

    with pytest.raises((TypeError, spiral.errors.PlanError), match=way_out):
        write(catalog.table("chats"))


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("JsonLines", "spiral.sources.Jsonl"),
        ("read_json", "spiral.sources.Jsonl"),
        ("Packing", "spiral.batching.Packed"),
        ("interleave", "spiral.mix"),
    ],
)
def test_a_name_of_another_library_names_ours(name: str, way_out: str) -> None:
    with pytest.raises(AttributeError, match=rf"there is no {name!r}\. Write {way_out}"):
        getattr(spiral, name)


def test_tokens_of_a_stream_and_copies_of_rows_are_answered(catalog: spiral.Catalog) -> None:
    with (
        stream(catalog.table("chats")) as made,
        pytest.raises(AttributeError, match=r"\.explain\(\) counts the tokens"),
    ):
        made.tokens  # noqa: B018  asking is the test
    with pytest.raises(AttributeError, match=r"\.distinct\("):
        catalog.table("chats").dedup  # noqa: B018  asking is the test


def test_an_entry_is_one_line_at_a_prompt_and_as_rich_prints_it(
    catalog: spiral.Catalog, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = catalog.entry("chats")
    rich.print(entry)
    printed = capsys.readouterr().out

    assert re.fullmatch(r"<Entry chats: 9 rows, 7 columns, lance at .*rows-\w+\.lance>", repr(entry))
    assert "".join(printed.split()) == "".join(repr(entry).split())
    assert "unknown rows" in repr(replace(entry, manifest_name="gone"))


def test_a_text_that_looks_like_a_computation_is_said_to_be_a_text(
    catalog: spiral.Catalog, recwarn: pytest.WarningsRecorder
) -> None:
    chats = catalog.table("chats")
    for made, way_out in (
        (lambda: chats.with_columns(key="md5(id)"), r'catalog\.sql\("select \*, md5\(id\) as key from'),
        (lambda: chats.project("id", key="md5(id)"), r"spiral\.lit\('md5\(id\)'\) is the text"),
        (lambda: sampled(chats).with_columns(key="score"), r"spiral\.col\('score'\) is the column"),
    ):
        with pytest.warns(spiral.SpiralWarning, match=way_out):
            made()
    recwarn.clear()
    meant = chats.with_columns(a="web", b="see (below)", c=spiral.lit("md5(id)"), d=spiral.lit("score"), e=3)

    assert list(recwarn) == []
    assert meant.select("c", "d").head(1).to_arrow().to_pylist() == [{"c": "md5(id)", "d": "score"}]


def test_an_empty_part_names_exact_and_an_empty_filter_does_not(catalog: spiral.Catalog) -> None:
    chats = catalog.table("chats").with_columns(source=col("meta")["lang"])
    empty = next(part for part in chats.split(a=0.5, b=0.5, by="source").values() if not part.count())
    with pytest.raises(spiral.errors.PlanError, match=r"no row of chats is left .*give the split exact=True"):
        len(stream(empty))
    with pytest.raises(spiral.errors.PlanError, match=r"Loosen the filter, or register other data"):
        len(stream(chats.filter("score > 2")))


def test_the_skew_of_what_a_plan_computes_asks_for_no_impossible_measurement(catalog: spiral.Catalog) -> None:
    made = catalog.sql("select *, md5(messages::varchar) as key from chats").distinct("key")
    plan = made.sample(order=spiral.Sequential(), identity="id").collate(batch_size=1, fields={"x": spiral.List("id")})

    with plan.to_numpy() as computed:
        said = " ".join(str(computed.explain()).split())

    for name in re.findall(r'catalog\.measure\("(.*?)"\)', said):
        catalog.measure(name)
    assert "statistics are of registered relations" in said


def test_look_says_how_data_is_registered(catalog: spiral.Catalog, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(ROWS[0]))
    for name, way_out in (
        (str(tmp_path), f"Register it first: spiral init {tmp_path}"),
        ("chat", "did you mean chats?"),
    ):
        looked = CliRunner().invoke(cli.app, ["look", name, "--catalog", str(catalog.root)])
        assert looked.exit_code
        assert way_out in str(looked.exception)


def test_a_text_in_a_pipe_is_as_wide_as_it_is(tmp_path: Path) -> None:
    catalog = proven_catalog(tmp_path / "catalog")
    catalog.register("chats", spiral.Arrow(pa.Table.from_pylist(ROWS)), identity="id")
    catalog.register_tokenizer("tok", of_transformers())
    template = spiral.transforms.ChatTemplate("messages", tokenizer="tok", template=MARKED)
    tokens = catalog.table("chats").sample(order=spiral.Sequential()).map(template >> ("ids", "mask"))
    catalog.save_stream("train", tokens.collate(batch_size=2, fields={"ids": spiral.Pad("ids")}).to_numpy())

    looked = CliRunner().invoke(cli.app, ["look", "train", "--catalog", str(catalog.root)])

    assert "Name a color." in looked.output
    assert max(map(len, looked.output.splitlines())) < 500

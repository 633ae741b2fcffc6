"""What somebody types in the first hour out of habit, and the message that says what to write instead."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import spiral_stream as spiral
from spiral_stream import cli, col
from tests.fixtures.chats import MARKED
from tests.fixtures.chats import tokenizer as chat_tokenizer

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
        lambda c: sampled(c).map(typed.ChatTemplate("messages", tokenizer="tok")),
        r'ChatTemplate\(\.\.\.\) >> "tokens", or ChatTemplate\(\.\.\.\) >> \("tokens", "loss_mask"\)',
    ),
    "a tokenizer itself": (
        lambda _: typed.ChatTemplate("messages", tokenizer=object()),
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


@pytest.mark.parametrize("words", REFUSED)
def test_a_habit_is_refused_with_what_to_write(catalog: spiral.Catalog, words: str) -> None:
    write, way_out = REFUSED[words]

    with pytest.raises((TypeError, spiral.PlanError), match=way_out):
        write(catalog.table("chats"))


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("JsonLines", "spiral.Jsonl"),
        ("read_json", "spiral.Jsonl"),
        ("Packing", "spiral.Packed"),
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
    catalog = spiral.connect(tmp_path / "catalog")
    catalog.register("chats", spiral.Arrow(pa.Table.from_pylist(ROWS)), identity="id")
    catalog.register_tokenizer("tok", chat_tokenizer())
    template = spiral.ChatTemplate("messages", tokenizer="tok", template=MARKED)
    tokens = catalog.table("chats").sample(order=spiral.Sequential()).map(template >> ("ids", "mask"))
    catalog.save_stream("train", tokens.collate(batch_size=2, fields={"ids": spiral.Pad("ids")}).to_numpy())

    looked = CliRunner().invoke(cli.app, ["look", "train", "--catalog", str(catalog.root)])

    assert "Name a color." in looked.output
    assert max(map(len, looked.output.splitlines())) < 500

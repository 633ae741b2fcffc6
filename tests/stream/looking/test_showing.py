"""Relations, plans, streams, batches and explanations show themselves: bounded, escaped, and without moving or reading much."""

import re
import wave
from base64 import b64decode
from collections.abc import Callable
from html.parser import HTMLParser
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import spiral_stream as sp
from spiral_stream.looking import inspect as face
from tests.fixtures import texts
from tests.fixtures.examples import few
from tests.fixtures.streams import plan

MOST = 2 << 20  # bytes that a notebook shows of a value
HOSTILE = st.text(
    st.one_of(
        st.sampled_from("<>&\"'`;:=/\\[]{}()\n\t\x00\x1b\x7f\u202e\ufffe"), st.characters(exclude_categories=["Cs"])
    ),
    min_size=1,
    max_size=40,
)
SURELY = (
    "</style><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "[red]x[/red]\x1b[31m",
    "</title></dd>",
)


class Outline(HTMLParser):
    """The tags of a document with the names of their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, ...]] = []
        self.text = ""
        self._skipped = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, *sorted(name for name, _ in attrs if name != "class")))  # numbers have a class
        self._skipped = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}",))
        self._skipped = False

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self.text += data


def html_of(value: Any) -> str:
    found = value._repr_html_()
    assert len(found.encode()) <= MOST
    assert re.findall(r"""(?:src|href)=["'](?!data:|#)""", found) == []  # no other file, no network
    assert "<script" not in found
    return str(found)


def terminal(value: Any) -> str:
    console = Console(file=StringIO(), width=100, force_terminal=True, color_system=None)
    console.print(value)
    return str(console.file.getvalue())  # type: ignore[attr-defined]  # StringIO


def small(folder: Path, **columns: Any) -> sp.Catalog:
    catalog = sp.connect(str(folder / "catalog"))
    catalog.register(
        "t", sp.Arrow(pa.table({"id": range(len(next(iter(columns.values())))), **columns})), identity="id"
    )
    return catalog


def collated(relation: sp.Relation, **fields: Any) -> sp.Relation:
    return relation.sample(order=sp.Sequential()).collate(batch_size=2, fields=fields)


# ---- what is shown


def test_a_relation_shows_columns_histograms_rows_and_pictures(own: sp.Catalog) -> None:
    before = html_of(own.table("lance"))
    own.measure("lance")
    shown = html_of(own.table("lance"))

    assert 'catalog.measure("lance")' in Outline(before).text
    assert shown.count("<svg") >= 3
    assert shown.count("<img") == 8
    text = Outline(shown).text
    assert "240" in text
    assert "label_id" in text
    assert "image/jpeg-ref" in text
    assert "240" in terminal(own.table("lance"))


def test_a_filtered_relation_shows_its_plan_its_first_rows_and_their_pictures(catalog: sp.Catalog) -> None:
    rows = catalog.table("lance").filter(sp.col("label_id") == 3).project("sample_id", "image_ref", "label_id")
    shown = html_of(rows)
    first = rows.limit(5).to_arrow()["sample_id"].to_pylist()

    assert shown.count("<img") == 8
    assert all(name in Outline(shown).text for name in first)
    assert "Filter" in Outline(shown).text
    assert all(name in terminal(rows) for name in first)


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t.sort("label_id", descending=True),
        lambda t: t.aggregate(rows=("sample_id", "count")),
        lambda t: t.group_by("label_id").aggregate(rows=("sample_id", "count")),
        lambda t: t.project("sample_id").union(t.project("sample_id")),
    ],
)
def test_what_is_small_is_run_and_shown(own: sp.Catalog, make: Callable[[sp.Relation], sp.Relation]) -> None:
    rows = make(own.table("labels") if "label_name" in own.table("labels").schema.names else own.table("lance"))
    assert "no rows" not in Outline(html_of(rows)).text


def test_a_plan_shows_what_it_does(catalog: sp.Catalog) -> None:
    sampled = catalog.table("lance").sample(order=sp.GlobalShuffle(seed=1))

    assert "Plan of samples" in Outline(html_of(sampled)).text
    assert "Plan of batches" in Outline(html_of(plan(catalog.table("lance")))).text
    assert "GlobalShuffle" in terminal(sampled)


def test_a_stream_shows_its_plan_and_next_samples_and_stays_where_it_is(catalog: sp.Catalog) -> None:
    with plan(catalog.table("lance")).to_numpy() as stream:
        reading = iter(stream)
        next(reading)
        state, counted = stream.state_dict(), stream.metrics()["batches"]
        shown, printed = html_of(stream), terminal(stream)
        assert stream.state_dict() == state
        assert stream.metrics()["batches"] == counted
        wanted = stream.ledger(1)
        assert next(reading)["id"] == wanted

    assert shown.count("<img") == 4
    for text in (Outline(shown).text, printed):
        assert "batch 1 row 0" in text
        assert "before step 1" in text
        assert wanted[0] in text
    assert "▀" in printed
    assert "closed" in Outline(html_of(stream)).text


def test_an_explanation_shows_every_section(catalog: sp.Catalog) -> None:
    with plan(catalog.table("lance")).to_numpy() as stream:
        found = stream.explain()
    shown, printed = Outline(html_of(found)), terminal(found)

    assert str(found).splitlines()[0] == "EXPLAIN DATA"
    for section in found.facts:
        assert section == "header" or section.upper() in shown.text
        assert section == "header" or section.upper() in printed
    assert ("table",) in shown.tags


def test_tokens_are_told_apart_and_are_together_the_text(tmp_path: Path) -> None:
    catalog = texts.make_catalog(tmp_path, {"docs": 12}, shortest=1)
    sampled = catalog.table("docs").sample(order=sp.Sequential()).map(sp.Tokenize("text", tokenizer="words") >> "tok")
    with sampled.collate(batch_size=4, fields={"ids": sp.Pad("tok", pad_value=0)}).to_numpy() as stream:
        sheet = stream.show(4)
        shown, printed = html_of(sheet), terminal(sheet)
    wanted = catalog.table("docs").limit(4).to_arrow()["text"].to_pylist()

    found = [[str(each) for each in documents] for tile in sheet.tiles for _, documents in tile.texts]
    assert [text.split() for (text,) in found] == [text.split() for text in wanted]
    for text in wanted:
        assert re.search(r"\s*".join(text.split()), Outline(shown).text)
        assert all(word in printed for word in text.split())
    assert len(re.findall(r'<span class="sp-\d" title="\d+">', shown)) == sum(len(text.split()) for text in wanted)


@few(60, 400)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30))
def test_pieces_of_bytes_are_joined_into_characters(text: str) -> None:
    from spiral_stream.looking.tokens import document

    tokenizer = byte_level()
    ids = tokenizer.encode(text).ids
    found = document(ids, lambda some: str(tokenizer.decode(list(some), skip_special_tokens=False)))

    assert str(found) == text
    assert [each for _, some in found.pieces for each in some] == ids
    assert "\ufffd" in text or all("\ufffd" not in piece for piece, _ in found.pieces)


def byte_level() -> Tokenizer:
    """A token per byte."""
    made = Tokenizer(models.BPE({each: k for k, each in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


def test_a_clip_has_a_play_bar_and_a_sound_plays(tmp_path: Path) -> None:
    pytest.importorskip("av")
    from tests.fixtures.sounds import recording
    from tests.fixtures.videos import write_video

    write_video(tmp_path / "a.mp4")
    (tmp_path / "a.flac").write_bytes(recording("flac", 6.0)[0])
    catalog = sp.connect(str(tmp_path / "catalog"))
    table = pa.table({"id": [0, 1], "clip": ["a.mp4"] * 2, "sound": ["a.flac"] * 2})
    semantic = {"clip": "video/h264-ref", "sound": "audio/ref"}
    catalog.register("t", sp.Arrow(table, base=tmp_path), identity="id", semantic=semantic)
    clip = sp.Stack(
        "clip",
        decode="h264",
        sequence_length=5,
        stride=1,
        transforms=[sp.transforms.Resize(40), sp.transforms.CenterCrop(32)],
    )
    sound = sp.Stack("sound", decode="audio", sample_rate=8_000, sequence_length=48_000)
    with collated(catalog.table("t"), clip=clip, sound=sound).to_numpy() as stream:
        batch = next(iter(stream))
        shown = html_of(stream.show(1))
        again = html_of(stream.show(1, batch=batch))

    assert shown.count('<input type="checkbox"') == 1  # plays and stops
    assert [int(k) for k in re.findall(r'<i style="--k:(\d+)"', shown)] == list(range(5))  # a part per frame
    assert 'title="frame 4"' in shown
    (data,) = re.findall(r'<audio [^>]*src="data:audio/wav;base64,([^"]+)"', shown)
    with wave.open(BytesIO(b64decode(data))) as heard:
        assert (heard.getframerate(), heard.getnframes()) == (8_000, 32_000)  # the first four seconds
        assert max(heard.readframes(8_000)) > 0
    assert Outline(again).tags == Outline(shown).tags
    assert html_of(catalog.table("t")).count("<audio") == 2


# ---- a batch, in a notebook


@pytest.fixture
def notebook() -> Any:
    """What a notebook shows of a value, from IPython itself."""
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    yield lambda value: shell.display_formatter.format(value)[0].get("text/html")
    InteractiveShell.clear_instance()


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_batch_is_a_dict_and_shows_itself_in_a_notebook(catalog: sp.Catalog, notebook: Any, framework: str) -> None:
    made = plan(catalog.table("lance"))
    with made.to_numpy() if framework == "numpy" else made.to_torch() as stream:
        batches = [next(iter(stream)), stream.batch(3)]
        names = stream.ledger(0)[:4]
        copied = {
            name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in batches[0].items()
        }

    for batch in batches:  # the stream is closed
        assert type(batch) is dict
        shown = notebook(batch)
        assert shown.count("<img") == 4
        assert "[16, 3, 16, 16]" in Outline(shown).text
    assert all(name in Outline(notebook(batches[0])).text for name in names)
    assert notebook({"a": 1, "b": np.arange(3)}) is None
    assert framework == "numpy" or notebook(copied) is None


def test_a_notebook_keeps_no_batch_alive_and_leaves_other_dicts_to_others(catalog: sp.Catalog, notebook: Any) -> None:
    from IPython import get_ipython

    from spiral_stream.looking.notebook import batch_formatter

    html = get_ipython().display_formatter.formatters["text/html"]
    html.for_type(dict, lambda value: f"<b>{len(value)}</b>")
    with plan(catalog.table("lance")).to_numpy() as stream:
        seen = [batch["id"][0] for batch in stream]
        stream.batch(0)
        formatter = batch_formatter()
        assert formatter is not None
        assert len(formatter.known) <= 1
    assert len(seen) == 15
    assert notebook({"a": 1}) == "<b>1</b>"


def test_outside_of_a_notebook_nobody_learns_of_batches(catalog: sp.Catalog) -> None:
    from spiral_stream.looking.notebook import batch_formatter

    assert batch_formatter() is None
    with plan(catalog.table("lance")).to_numpy() as stream:
        batch = next(iter(stream))
        assert [tile.labels for tile in stream.show(3, batch=batch).tiles] == [
            [("label", str(batch["label"][k])), ("id", batch["id"][k])] for k in range(3)
        ]
        with pytest.raises(sp.errors.PlanError, match="Give a batch of this stream, or its number"):
            stream.show(batch={"other": 1})


# ---- bounds


def test_views_of_large_inputs_keep_to_two_mebibytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def noise() -> bytes:
        file = BytesIO()
        Image.fromarray(rng.integers(0, 256, (400, 400, 3), dtype=np.uint8)).save(file, "JPEG", quality=95)
        return file.getvalue()

    wide = {f"column {k:05} of a table that has many of them": ["<&>" * 2_000] * 3 for k in range(1_500)}
    catalog = small(tmp_path, **wide)
    images = pa.table({"id": range(60), "images": [[noise()] * 3] * 60, "text": ["<" * 100_000] * 60})
    catalog.register("i", sp.Arrow(images), identity="id", semantic={"images": "image/jpeg-ref"})

    shown = [
        html_of(catalog.table("t")),
        html_of(catalog.table("i")),
        html_of(catalog.table("t").filter(sp.col("id") > 0)),
    ]
    fields = {
        name: sp.Stack(
            "images",
            decode="jpeg",
            sequence_length=3,
            transforms=[sp.transforms.Resize(400), sp.transforms.CenterCrop(384)],
        )
        for name in ("a", "b", "c")
    }
    with collated(catalog.table("i"), **fields, text=sp.List("text")).to_numpy() as stream:
        shown += [html_of(stream), html_of(stream.show(60)), html_of(stream.explain())]
        page = stream.show(60, path=tmp_path / "sheet.html")

    assert "1,302 more columns" in Outline(shown[0]).text
    assert "left out" in Outline(shown[4]).text
    assert len(page.tiles) == 60
    assert 2 << 20 < (tmp_path / "sheet.html").stat().st_size <= 16 << 20


def test_showing_reads_no_more_than_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spiral_stream.catalog.relation.reader import OpenRelation

    rows = 70_000
    catalog = small(tmp_path, x=np.arange(rows))
    read: list[int] = []
    fetch = OpenRelation.fetch
    monkeypatch.setattr(OpenRelation, "fetch", lambda own, at, names: read.append(len(at)) or fetch(own, at, names))
    monkeypatch.setattr(OpenRelation, "scan", None)

    first = Outline(html_of(catalog.table("t").filter(sp.col("x") >= 4_000))).text
    late = Outline(html_of(catalog.table("t").filter(sp.col("x") >= 5_000))).text
    ordered = Outline(html_of(catalog.table("t").sort("x"))).text
    whole = Outline(html_of(catalog.table("t"))).text

    assert "the first rows among the first 4,096 of 70,000" in first
    assert "4,004" in first
    assert "the first rows among the first 4,096 of 70,000" in late
    assert "no rows: this would read 70,000 rows. head(5).to_arrow() does" in ordered
    assert "70,000" in whole
    assert sum(read) < 3 * 4_096


def test_a_stream_over_many_rows_is_not_opened_to_be_shown(
    catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(face, "LOOKED_AT_ROWS", 239)
    with plan(catalog.table("lance")).to_numpy() as stream:
        assert "no samples" in Outline(html_of(stream)).text
        assert "not open yet" in repr(stream)
        stream.show(1)
        assert html_of(stream).count("<img") == 4


def test_what_cannot_be_read_is_a_note(tmp_path: Path) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    (tmp_path / "a.jsonl").write_text("".join(f'{{"id": {k}, "x": {k}}}\n' for k in range(3)))
    catalog.register("t", sp.sources.Jsonl(str(tmp_path / "a.jsonl")), identity="id")
    rows = catalog.table("t")
    stream = collated(rows, x=sp.Stack("x")).to_numpy()
    (tmp_path / "a.jsonl").unlink()
    for folder in (tmp_path / "catalog").rglob("rows-*"):
        folder.rename(folder.with_name("gone"))

    for value in (rows, rows.filter(sp.col("x") > 1), stream):
        assert "sp-note" in html_of(value)
        assert terminal(value)


# ---- data is never markup


@few(6, 60)
@given(st.tuples(HOSTILE, HOSTILE, HOSTILE) | st.tuples(*[st.sampled_from(SURELY)] * 3))
def test_data_is_never_markup(tmp_path_factory: pytest.TempPathFactory, drawn: tuple[str, str, str]) -> None:
    hostile, harmless = (shown(tmp_path_factory, each) for each in (drawn, tuple("x" * len(each) for each in drawn)))

    for (html, printed), (plain, _) in zip(hostile, harmless, strict=True):
        assert Outline(html).tags == Outline(plain).tags
        assert "\x1b" not in printed
        assert "\x00" not in html


def shown(factory: pytest.TempPathFactory, drawn: tuple[str, ...]) -> list[tuple[str, str]]:
    """What everything shows of a relation with these texts as a name, a value and a label."""
    name, value, label = drawn
    folder = factory.mktemp("hostile")
    table = pa.table({"id": ["a", "b"], f"c{name}": [value, value], "label": [label, label]})
    pq.write_table(table, folder / "t.parquet")
    catalog = sp.connect(str(folder / "catalog"))
    catalog.register("t", sp.Parquet(str(folder / "t.parquet")), identity="id")
    catalog.measure("t")
    rows = catalog.table("t")
    with collated(rows, label=sp.List("label"), **{f"f{name}": sp.List(f"c{name}")}).to_numpy() as stream:
        values = [rows, rows.filter(sp.col("label") == label), stream, stream.show(2), stream.explain()]
        return [(html_of(each), terminal(each)) for each in values]

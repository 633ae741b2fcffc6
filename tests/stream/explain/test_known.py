"""EXPLAIN of what is no stream, and of streams for a device that is not here."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

import spiral_stream as sp
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.commands.cli import app
from spiral_stream.explain import SECTIONS
from tests.fixtures import clips, relations
from tests.fixtures.texts import SMALL_PLANS
from tests.stream.explain.words import in_words

pytestmark = SMALL_PLANS
PROGRAMS = Path(__file__).parents[2] / "e2e" / "programs"


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    """The relations of the three example programs, tiny; the image relation is measured."""
    root = tmp_path_factory.mktemp("known")
    catalog = sp.connect(str(root / "catalog"))
    name = "vision.imagenet_train"
    catalog.register(name, sp.Arrow(relations.imagenet_train(600)), semantic=relations.SEMANTIC[name])
    catalog.register("vision.imagenet_labels", sp.Arrow(relations.imagenet_labels()), identity="label_id")
    for name, made in (
        ("text.fineweb_documents", relations.fineweb_documents(60)),
        ("text.wikipedia_documents", relations.wikipedia_documents(30)),
        ("text.code_documents", relations.code_documents(30)),
    ):
        catalog.register(name, sp.Arrow(made), identity="sample_id", shard="storage_shard")
    (root / "clips").mkdir()
    clips.register(catalog, relations.training_segments(root / "clips", 60), relations.segment_labels(60))
    tokenizer = Tokenizer(models.WordLevel({"data": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    catalog.register_tokenizer("llama-tokenizer", tokenizer)
    catalog.measure("vision.imagenet_train")
    return catalog


def in_commands(found: object) -> str:
    """EXPLAIN as somebody reads it who types commands."""
    return re.sub(r'catalog\.(measure|refresh)\("([^"]*)"\)', r"spiral \1 \2", str(found))


@pytest.mark.parametrize("name", ["image", "text", "video"])
def test_the_example_programs_are_explained_without_their_device(
    catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("SPIRAL_CATALOG", catalog.uri)
    with runpy.run_path(str(PROGRAMS / f"{name}.py"))["train"] as train:
        assert set(train.devices().values()) & {"cuda"}
        catalog.save_stream(name, train)
    found = catalog.explain(name)

    assert tuple(found.to_dict()) == SECTIONS
    assert str(catalog.sql(f"EXPLAIN DATA {name}")) == str(found)
    for asked in (["explain", name], ["sql", f"explain data {name}"]):
        done = CliRunner().invoke(app, [*asked, "--catalog", catalog.uri])
        assert done.exit_code == 0, done.output
        assert in_commands(found) in done.output
    told = json.loads(CliRunner().invoke(app, ["explain", name, "--json", "--catalog", catalog.uri]).output)
    assert told == found.to_dict()


def test_what_is_measured_without_the_device_is_measured_on_the_host(
    catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("the device is here")
    monkeypatch.setenv("SPIRAL_CATALOG", catalog.uri)
    with runpy.run_path(str(PROGRAMS / "image.py"))["train"] as train:
        catalog.save_stream("image", train)
    found = catalog.explain("image", analyze=True, batches=1)

    assert found.to_dict()["deliver"]["delivered"]["figures"]["samples"]["value"] == 256
    assert "measured on the host: field 'image' asks for device 'cuda'" in found.to_dict()["warnings"][-1]


def test_an_unknown_name_lists_the_saved_streams(catalog: sp.Catalog) -> None:
    catalog.save_stream("numbers-v1", _plan(catalog))
    with pytest.raises(
        sp.errors.CatalogError, match=r"Of saved streams, did you mean numbers-v1\? Of relations, .*Save a stream"
    ):
        catalog.explain("number-v1")


def _plan(catalog: sp.Catalog) -> sp.Relation:
    sampled = catalog.table("vision.imagenet_labels").sample(order=sp.Sequential())
    return sampled.collate(batch_size=4, fields={"id": sp.List("label_id")}).to_numpy()  # type: ignore[return-value]  # a stream


def test_a_relation_shows_its_rows_statistics_and_skew(catalog: sp.Catalog) -> None:
    found = catalog.explain("vision.imagenet_train")
    facts, table = found.to_dict(), catalog.table("vision.imagenet_train").to_arrow()

    (row,) = facts["relation"]["relations"]
    assert row["rows"] == {"value": 600, "unit": "rows", "mark": "exact", "operands": [], "source": "registration"}
    assert row["source"]["figures"]["shards"]["value"] == len(table["storage_shard"].unique())
    columns = {each["column"]: each for each in facts["relation"]["statistics of columns"]}
    assert columns["label_id"]["distinct"]["value"] == len(table["label_id"].unique())
    assert columns["width"]["min"] == str(pa.compute.min(table["width"]).as_py())
    skew = {each["column"]: each for each in facts["skew"]["columns"]}
    assert skew["label_id"]["mean"]["value"] == pytest.approx(catalog.skew("vision.imagenet_train", "label_id").mean)  # type: ignore[union-attr]  # measured
    assert "rows that the plan keeps" not in facts["relation"]


def test_a_relation_that_was_not_measured_says_how_to(catalog: sp.Catalog) -> None:
    facts = in_words(catalog.explain("text.code_documents"))

    says = (
        'unknown: call catalog.measure("text.code_documents"), or materialize asset shard_stats of text.code_documents'
    )
    assert facts["relation"]["statistics"] == facts["skew"] == says
    assert facts["relation"]["relations"][0]["rows"] == 30


def test_a_query_shows_what_is_known_of_what_it_reads(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenRelation, "scan", lambda *_: pytest.fail("explain read rows"))
    joined = catalog.table("vision.imagenet_train").join(catalog.table("vision.imagenet_labels"), on="label_id")
    query = catalog.explain('select label_id from "vision.imagenet_train" where label_id > 3')
    kept: dict[str, Any] = in_words(joined.filter(sp.col("label_id") > 3).explain())["relation"]

    assert [row["relation"] for row in kept["relations"]] == ["vision.imagenet_train", "vision.imagenet_labels"]
    assert kept["rows that the plan keeps"].startswith("unknown: finish the plan")
    assert in_words(query)["relation"]["relations"][0]["rows"] == 600

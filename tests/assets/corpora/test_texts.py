from pathlib import Path

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_assets.corpora import documents
from spiral_assets.corpora.text_quality import language, quality
from spiral_assets.corpora.texts import SCHEMAS, SHARDS, WrittenTexts, write_text_relations
from spiral_assets.corpora.tokenizer import train_tokenizer
from spiral_assets.plans import text as plans
from tests.fixtures import relations
from tests.fixtures.demo_yaml import declared

CHARACTERS = 150_000


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> WrittenTexts:
    """The relations, for tests that only look."""
    return write_text_relations(tmp_path_factory.mktemp("texts"), CHARACTERS, progress=False)


@pytest.fixture(scope="module")
def tables(written: WrittenTexts) -> dict[str, pa.Table]:
    return {name: lance.dataset(uri).to_table() for name, uri in written.uris.items()}


@given(text=st.text())
def test_quality_is_a_share_and_every_text_has_a_language(text: str) -> None:
    assert 0.0 <= quality(text) <= 1.0
    assert language(text)


def test_languages_are_told_by_their_words_and_scripts() -> None:
    told = {
        "en": "The batch is a function of the plan, and it is the same for all of the ranks that read it.",
        "de": "Der Plan und die Daten sind das, was den Inhalt eines Stapels bestimmt, und nicht die Zeit.",
        "fr": "Les lots sont une fonction du plan et des données, ce qui est dans la suite pour les autres.",
        "zh": "批次是计划和数据的函数",
        "ru": "Пакет зависит только от плана и данных",
        "und": "0x00 0x01 0x02 0x03",
    }

    assert {code: language(text) for code, text in told.items()} == {code: code for code in told}


def test_repeated_short_and_encoded_texts_are_of_low_quality() -> None:
    prose = (
        "Every sample stands in the ledger, so that a batch can be found again by anyone who asks for it at any time "
        "they like."
    )

    assert quality(prose) == 1.0
    for poor in ("", "too short", "again and again\n" * 50, "a" * 4_000, "1.0, 2.5, 3.75, 4.125, " * 40):
        assert quality(poor) < plans.GOOD, poor[:20]


@pytest.mark.parametrize("name", ["fineweb", "wikipedia", "code"])
def test_relations_have_the_seed_schema_and_one_fragment_a_shard(name: str, written: WrittenTexts) -> None:
    dataset = lance.dataset(written.uris[name])
    table = dataset.to_table()

    assert table.schema == SCHEMAS[name] == relations.SCHEMAS[plans.RELATIONS[name]]
    said = declared("text", plans.RELATIONS[name])
    assert {field.name: str(field.type) for field in table.schema} == said["columns"]
    assert set(said["descriptions"]) == set(table.schema.names)
    pieces = [
        set(each.to_table(columns=["storage_shard"])["storage_shard"].to_pylist()) for each in dataset.get_fragments()
    ]
    assert pieces == [{f"part-{k:04d}"} for k in range(SHARDS[name])]
    assert len(set(table["sample_id"].to_pylist())) == len(table) == written.documents[name]
    assert table.column("text").null_count == 0


def test_every_relation_has_text_that_the_plan_takes_and_text_that_it_leaves(tables: dict[str, pa.Table]) -> None:
    for name, table in tables.items():
        taken = [
            lang == "en" and score >= plans.GOOD
            for lang, score in zip(table["lang"].to_pylist(), table["quality_score"].to_pylist(), strict=True)
        ]
        assert 0.3 < sum(taken) / len(taken) < 1.0, name
        sizes = [len(text.encode()) for text in table["text"].to_pylist()]
        assert [size // 4 for size in sizes] == table["token_count_estimate"].to_pylist()
        assert sum(sizes) > CHARACTERS / 4, name


def test_the_same_machine_gives_the_same_rows_and_keeps_what_is_there(
    tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    first = write_text_relations(tmp_path, CHARACTERS, progress=False)
    version = lance.dataset(first.uris["code"]).version

    assert {name: lance.dataset(uri).to_table() for name, uri in first.uris.items()} == tables
    assert write_text_relations(tmp_path, CHARACTERS, progress=False) == first
    assert lance.dataset(first.uris["code"]).version == version


def test_tests_and_installed_packages_are_not_of_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, left = ["a.py", "json b.py"], ["json b.txt", "test c.py", "json tests d.py", "site-packages e f.py"]
    for name in kept + left:
        file = tmp_path.joinpath(*name.split())
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n")
    monkeypatch.setattr(documents.sysconfig, "get_path", lambda _: str(tmp_path))

    assert sorted(file.path.replace("/", " ") for file in documents.library()) == kept


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")

    with pytest.raises(ValueError, match=r"'thesis.tex', which the demo did not write. Name an empty folder"):
        write_text_relations(tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"0 characters. Ask for at least 1"):
        write_text_relations(tmp_path, 0, progress=False)


def test_a_tokenizer_is_the_same_for_the_same_text_and_gives_it_back(
    tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    from tokenizers import Tokenizer

    columns = [table["text"] for table in tables.values()]
    one, other = (train_tokenizer(columns, tmp_path / name, vocabulary=600) for name in ("one.json", "other.json"))

    assert one.read_bytes() == other.read_bytes()
    made = Tokenizer.from_file(str(one))
    assert made.get_vocab_size() == 600
    for text in ["a plan", "naïve, 批次 \x00", "", *columns[2].to_pylist()[:20]]:
        tokens = made.encode(text)
        assert (tokens.tokens[0], tokens.tokens[-1]) == ("<s>", "</s>")
        assert made.decode(tokens.ids) == text

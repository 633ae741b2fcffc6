import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from spiral_stream import Tokenize
from spiral_stream.catalog import tokenizers as room
from spiral_stream.catalog.registry import Registry, connect
from spiral_stream.errors import CatalogError, SourceError
from spiral_stream.transforms.text import encoding_engine as proof_room
from spiral_stream.transforms.text.encoder import TextEncoder
from spiral_stream.transforms.text.encoding_engine import PROOF, Proof
from tests.fixtures.vocabularies import END, PAD, byte_level, data, framed, others


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Proofs take seconds and have their own tests."""

    def proved(_data: bytes, report: Callable[[int, str], None] = lambda *_: None) -> Proof:
        report(0, "merges")
        return Proof(False, "not asked", (), proof_room.installed_versions())

    monkeypatch.setattr(room, "prove", proved)
    monkeypatch.setattr(proof_room, "prove", proved)
    return connect(tmp_path / "catalog")


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return framed(byte_level(300))


def save(folder: Path, tokenizer: Tokenizer, **configs: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, config in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes(data(tokenizer))
    return folder / "tokenizer.json"


def test_a_file_is_copied_byte_for_byte_and_found_by_another_connection(
    catalog: Registry, small: Tokenizer, tmp_path: Path
) -> None:
    file = save(tmp_path / "made", small)
    file.write_bytes(file.read_bytes() + b"\n")
    entry = catalog.register_tokenizer("llama-tokenizer", str(file))
    file.unlink()

    found = connect(tmp_path / "catalog").tokenizer("llama-tokenizer")
    assert found == entry
    assert found.path.read_bytes() == data(small) + b"\n"
    assert found.path.is_relative_to(tmp_path / "catalog")
    assert (found.vocab_size, found.source, found.engine) == (300, str(file), "tokenizers: not asked")
    assert catalog.tokenizers() == ["llama-tokenizer"]
    assert TextEncoder(found.path, Tokenize("text", "llama-tokenizer")).engine == "tokenizers: not asked"
    assert sorted(each.name for each in found.path.parent.iterdir()) == [PROOF, "tokenizer.json"]


def test_special_tokens_are_kept_where_the_files_name_them(catalog: Registry, small: Tokenizer, tmp_path: Path) -> None:
    config = {"eos_token": {"content": END}, "pad_token": PAD, "bos_token": None, "unk_token": "not there"}
    file = save(tmp_path, small, tokenizer_config=config, special_tokens_map={"eos_token": PAD})
    entry = catalog.register_tokenizer("t", file)

    assert entry.special == {"eos": small.token_to_id(END), "pad": small.token_to_id(PAD)}
    assert catalog.register_tokenizer("w", others()["word_piece"]).special == {"unk": 0}


def test_objects_of_both_libraries_and_a_saved_folder_are_one_content(
    catalog: Registry, small: Tokenizer, tmp_path: Path
) -> None:
    from transformers import PreTrainedTokenizerFast

    loaded = PreTrainedTokenizerFast(tokenizer_object=small, eos_token=END, pad_token=PAD)
    loaded.save_pretrained(tmp_path / "saved")
    special = {"eos": small.token_to_id(END), "pad": small.token_to_id(PAD)}
    folder = catalog.register_tokenizer("folder", tmp_path / "saved")
    objects = [catalog.register_tokenizer(f"object{n}", each) for n, each in enumerate((small, loaded))]

    assert folder.special == objects[1].special == special
    texts = ["def f(x): return 12345\n", f"a{END}b"]
    for entry in (folder, *objects):
        copied = Tokenizer.from_file(str(entry.path))
        assert [each.ids for each in copied.encode_batch(texts)] == [each.ids for each in small.encode_batch(texts)]


def test_the_same_content_may_be_registered_again_and_another_only_in_its_place(
    catalog: Registry, small: Tokenizer
) -> None:
    first = catalog.register_tokenizer("t", small)
    assert catalog.register_tokenizer("t", small) == first
    with pytest.raises(
        CatalogError, match=r"'t' is already registered with another content .* Pass replace=True, or choose"
    ):
        catalog.register_tokenizer("t", byte_level(310))
    assert catalog.tokenizer("t") == first

    second = catalog.register_tokenizer("t", byte_level(310), replace=True)
    assert second.digest != first.digest
    assert catalog.tokenizer("t") == second
    assert first.path.exists()  # a run that began with it may open it again


def test_a_dropped_name_is_gone_and_its_content_with_the_last_name(catalog: Registry, small: Tokenizer) -> None:
    entry = catalog.register_tokenizer("one", small)
    catalog.register_tokenizer("two", small)
    catalog.drop_tokenizer("one")
    assert catalog.tokenizers() == ["two"]
    assert entry.path.exists()

    catalog.drop_tokenizer("two")
    assert catalog.tokenizers() == []
    assert not entry.path.exists()
    with pytest.raises(CatalogError, match=r"'two' is not in catalog .*; there are none"):
        catalog.drop_tokenizer("two")


def test_a_path_serves_without_a_name(catalog: Registry, small: Tokenizer, tmp_path: Path) -> None:
    file = save(tmp_path / "made", small)
    entry = catalog.tokenizer(str(file))

    assert entry.digest == catalog.register_tokenizer("named", file).digest
    assert entry.path.is_relative_to(tmp_path / "catalog")
    assert [each.name for each in file.parent.iterdir()] == ["tokenizer.json"]


def test_unknown_names_are_refused_with_what_is_near(catalog: Registry, small: Tokenizer) -> None:
    catalog.register_tokenizer("llama-tokenizer", small)
    with pytest.raises(
        CatalogError, match=r"did you mean llama-tokenizer\? Register it: catalog.register_tokenizer\('lama-"
    ):
        catalog.tokenizer("lama-tokeniser")


@pytest.mark.parametrize("name", ["/", ".", "/dev/null", "x" * 5_000, "é" * 300, "\0", "~nobody-is-called-so/x"])
def test_only_a_file_serves_without_a_name(
    catalog: Registry, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans of others name tokenizers: a folder would be given to transformers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(CatalogError, match=r"is not in catalog .*, and no file; there are none"):
        catalog.tokenizer(name)


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "../x"])
def test_names_are_those_of_relations(catalog: Registry, small: Tokenizer, name: str) -> None:
    with pytest.raises(CatalogError, match=r"letters, digits and _ . - only. Rename it"):
        catalog.register_tokenizer(name, small)


def test_sources_that_are_none_are_refused(catalog: Registry, tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"there is nothing at .*none.json. Correct the path, or give a hub name"):
        catalog.register_tokenizer("t", tmp_path / "none.json")
    with pytest.raises(CatalogError, match=r"int is not a source. Give the path of a tokenizer.json, a folder"):
        catalog.register_tokenizer("t", 3)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CatalogError, match=r"cannot load .*empty.* Save it with save_pretrained, or give its"):
        catalog.register_tokenizer("t", tmp_path / "empty")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(SourceError, match=r"bad.json: not of the tokenizers library"):
        catalog.register_tokenizer("t", tmp_path / "bad.json")
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(SourceError, match=r"tokenizer_config.json is not JSON .* Correct it, or move it away"):
        catalog.register_tokenizer("t", tmp_path / "bad.json")
    assert catalog.tokenizers() == []


def test_a_hub_name_without_a_network_is_refused_with_the_way_out(
    catalog: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    asked: dict[str, Any] = {}

    def offline(place: str, **options: Any) -> None:
        asked.update(options, place=place)
        raise OSError("We couldn't connect to the hub\nand so on")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", offline)
    with pytest.raises(
        CatalogError, match=r"'team/model' \(We couldn't connect to the hub\)\. It is no path here"
    ) as error:
        catalog.register_tokenizer("t", "team/model")

    assert "without one, give the path of its tokenizer.json" in str(error.value)
    assert asked == {"place": "team/model", "local_files_only": False, "trust_remote_code": False}


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, small: Tokenizer) -> None:
    (tmp_path / "catalog").mkdir()
    (tmp_path / "catalog" / "tokenizers").write_text("in the way")
    with pytest.raises(
        CatalogError,
        match=r"cannot keep tokenizers: .*tokenizers/names: .*Mend that, or use a catalog in another folder",
    ):
        connect(tmp_path / "catalog").register_tokenizer("t", others()["word_piece"])


def test_a_name_from_before_there_were_seals_is_read(catalog: Registry, small: Tokenizer) -> None:
    found = catalog.register_tokenizer("words", small)
    file = catalog.root / "tokenizers" / "names" / "words.json"
    facts = json.loads(file.read_bytes())
    del facts["seal"]
    file.write_text(json.dumps(facts, indent=1, sort_keys=True))

    assert catalog.tokenizer("words") == found
    file.write_text(json.dumps({**facts, "vocab_size": 3}, sort_keys=True))
    with pytest.raises(CatalogError, match="changed from outside"):
        catalog.tokenizer("words")
    catalog.drop_tokenizer("words")
    assert catalog.tokenizers() == []

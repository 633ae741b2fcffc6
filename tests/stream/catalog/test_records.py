"""Rows of the catalog's tables, manifests and tokenizers, damaged or forged: each is refused by name, or means what it meant.

Damage keeps the digest that was written, so it is always found. A forgery carries a right
digest, so it may be another sound value, but never ends in a raw exception or a hang.
"""

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spiral_stream import Arrow, Parquet
from spiral_stream.catalog.database import Database
from spiral_stream.catalog.records import RELATIONS, STREAMS
from spiral_stream.catalog.registry import Registry, connect
from spiral_stream.catalog.relation.manifest import Manifest, check
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.catalog.tokenizers import seal_of
from spiral_stream.errors import CatalogError
from spiral_stream.results import Entry
from spiral_stream.semantic import JPEG_REF
from spiral_stream.sources import content_key
from spiral_stream.transforms.text import encoding_engine as proof_room
from tests.fixtures.mutations import COUNTS, mutated_bytes, mutated_json, shown, survives

ROWS = pa.table(
    {"sample_id": ["a", "b", "c", "d"], "part": ["x", "x", "y", "y"], "n": [1, 2, 3, 4], "image_ref": [b"1"] * 4}
)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    folder = tmp_path_factory.mktemp("fuzzed") / "below" / "here"
    folder.mkdir(parents=True)
    pq.write_table(ROWS, folder / "t.parquet", row_group_size=1)
    made = connect(folder / "catalog")
    made.register("t", Parquet(str(folder / "t.parquet")), shard="part", semantic={"image_ref": JPEG_REF})
    made.register("labels", Arrow(ROWS))
    made.saved.save("s", {"verb": "deliver", "source": {"verb": "scan", "relation": "t"}, "prefetch": 2})
    return made


def read(catalog: Registry, name: str) -> tuple[Entry, Any]:
    entry = catalog.entry(name)
    with OpenRelation(entry) as relation:
        total = min(relation.manifest.total, 1000)
        found = relation.fetch(np.arange(total, dtype=np.uint64)[::-1], relation.schema.names).to_pydict()
        scanned = sum(len(batch) for batch in relation.scan(entry.identity))
        return entry, (found, scanned)


def drawn(row: dict[str, Any], seed: int) -> dict[str, Any]:
    """A row with one of its values damaged: bytes as bytes, JSON inside texts as JSON, others as values."""
    draw, out = random.Random(seed), copy.deepcopy(row)
    key = draw.choice([name for name in row if name not in ("name", "digest", "registered_at", "saved_at")])
    value = row[key]
    if isinstance(value, bytes):
        out[key] = mutated_bytes(value, seed)
    elif isinstance(value, str) and value.startswith("{") and draw.random() < 0.7:
        out[key] = json.dumps(mutated_json(json.loads(value), seed))
    elif isinstance(value, str) and draw.random() < 0.7:
        out[key] = mutated_bytes(value.encode(), seed).decode(errors="replace")
    else:
        out[key] = mutated_json([value], seed)
        out[key] = out[key][0] if isinstance(out[key], list) and out[key] else None
    return out


@pytest.mark.crossed
@pytest.mark.parametrize("name", ["t", "labels"])
@pytest.mark.parametrize("count", COUNTS)
def test_rows_of_relations_are_read_as_they_were_or_refused(
    catalog: Registry, name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(catalog.root.parent)
    sound = read(catalog, name)
    row = dict(catalog.database.rows(RELATIONS)[name])
    refused = 0
    for seed in range(count // 2):
        changed = drawn(row, seed)
        for forged in (False, True):
            given = RELATIONS.sealed(changed) if forged and storable(changed) else changed
            monkeypatch.setattr(Database, "rows", lambda *_, row=given: {name: row})
            says = f"relation {name}, seed {seed}, forged {forged}: {shown(changed)}"
            refused += survives(lambda: read(catalog, name), sound, says=says, other_is_fine=forged)

    assert refused > count // 2  # every damage, and most forgeries


def storable(row: dict[str, Any]) -> bool:
    """Whether LanceDB would keep such a row, so that somebody could have written it."""
    try:
        pa.Table.from_pylist([row], schema=RELATIONS.schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


@pytest.mark.parametrize("count", COUNTS)
def test_saved_streams_are_read_as_they_were_or_refused(
    catalog: Registry, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = catalog.saved.plan("s")
    row = dict(catalog.database.rows(STREAMS)["s"])
    for seed in range(count):
        forged = bool(seed % 2)
        changed = drawn(row, seed)
        changed = STREAMS.sealed(changed) if forged and isinstance(changed["plan"], str) else changed
        monkeypatch.setattr(Database, "rows", lambda *_, row=changed: {"s": row})
        says = f"stream, seed {seed}: {shown(changed)}"
        survives(lambda: catalog.saved.plan("s"), sound, says=says, other_is_fine=forged)


def same(a: Manifest, b: Manifest) -> bool:
    values = ((getattr(a, field.name), getattr(b, field.name)) for field in fields(Manifest))
    return all(np.array_equal(x, y) if isinstance(x, np.ndarray) else x == y for x, y in values)


@pytest.mark.parametrize("count", COUNTS)
def test_manifests_are_read_as_they_were_or_refused(catalog: Registry, tmp_path: Path, count: int) -> None:
    entry = catalog.entry("t")
    data = (catalog.root / "manifests" / entry.manifest_name).read_bytes()
    file = tmp_path / "m.arrow"
    for seed in range(count):
        changed = mutated_bytes(data, seed)
        file.write_bytes(changed)
        digest = content_key(changed) if seed % 2 else content_key(data)

        def parse(digest: str = digest) -> bool:
            found = Manifest.load(file, digest)
            one_to_one(found)
            return same(found, entry.manifest())

        survives(parse, sound=True, says=f"manifest, seed {seed}", other_is_fine=bool(seed % 2))


def one_to_one(manifest: Manifest) -> None:
    """What every shard table that is taken for sound must be."""
    everything = np.arange(min(manifest.total, 1000), dtype=np.uint64)
    physical = manifest.physical(everything)
    assert len(set(physical.tolist())) == len(everything)
    assert int(physical.max()) < int(manifest.unit_rows.sum())
    assert (manifest.logical(physical) == everything).all()
    assert (manifest.shard_of(everything) < len(manifest.shard_names)).all()


@pytest.mark.parametrize("count", COUNTS)
def test_shard_tables_that_contradict_themselves_are_refused(catalog: Registry, tmp_path: Path, count: int) -> None:
    """Forged by value, not by byte: lengths, orders and sums that cannot be."""
    sound = catalog.entry("t").manifest()
    as_json = {field.name: getattr(sound, field.name) for field in fields(Manifest) if field.name != "runs"}
    as_json = {name: value if isinstance(value, str) else value.tolist() for name, value in as_json.items()}
    refused = 0
    for seed in range(count):
        changed = mutated_json(as_json, seed)
        built: dict[str, Any] = {}
        try:
            for name, value in changed.items():
                kind = np.int64 if name == "shard_bytes" else np.uint64
                text = name.endswith(("_names", "_keys"))
                built[name] = (
                    value if name in ("shard_note", "pins") else pa.array(value) if text else np.array(value, kind)
                )
            manifest = Manifest(**built)
            manifest.save(tmp_path / "m.arrow")
        except (TypeError, ValueError, OverflowError, pa.ArrowException, AttributeError, NotImplementedError):
            continue  # cannot be written

        def parse() -> bool:
            found = Manifest.load(tmp_path / "m.arrow")
            one_to_one(found)
            return same(found, sound)

        says = f"shard table, seed {seed}: {shown(changed)}"
        refused += survives(parse, sound=True, says=says, other_is_fine=True)
    check(sound)

    assert refused > count // 5


@pytest.fixture(scope="module")
def tokenizer(catalog: Registry) -> Iterator[Path]:
    """The file of a name, and beside it the content of a tiny tokenizer."""
    from tokenizers import Tokenizer, models

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "spiral_stream.catalog.tokenizers.prove",
            lambda *_: proof_room.Proof(
                covered=False, reason="not asked", apart=(), versions=proof_room.installed_versions()
            ),
        )
        words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
        catalog.register_tokenizer("words", words)
        yield catalog.root / "tokenizers" / "names" / "words.json"


@pytest.mark.parametrize("count", COUNTS)
def test_names_of_tokenizers_are_read_as_they_were_or_refused(catalog: Registry, tokenizer: Path, count: int) -> None:
    sound, data = catalog.tokenizer("words"), tokenizer.read_bytes()
    facts = json.loads(data)
    try:
        for seed in range(count):
            forged = bool(seed % 2)
            changed = mutated_json(facts, seed) if forged else None
            if isinstance(changed, dict):
                changed["seal"] = seal_of(changed)
            tokenizer.write_bytes(json.dumps(changed).encode() if forged else mutated_bytes(data, seed))
            says = f"tokenizer, seed {seed}: {tokenizer.read_bytes()[:1000]!r}"
            survives(lambda: catalog.tokenizer("words"), sound, says=says, other_is_fine=forged)
            assert catalog.tokenizers() == ["words"]
    finally:
        tokenizer.write_bytes(data)


def test_a_content_or_a_proof_that_changed_is_not_used(
    catalog: Registry, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tokenizer.exists()
    content = catalog.tokenizer("words").path
    data, kept = content.read_bytes(), content.with_name(proof_room.PROOF).read_bytes()
    anew = proof_room.Proof(covered=False, reason="made anew", apart=(), versions=proof_room.installed_versions())
    monkeypatch.setattr(proof_room, "prove", lambda *_: anew)
    sound = proof_room.proof_next_to(content, data)
    for seed in range(100):
        content.with_name(proof_room.PROOF).write_bytes(mutated_bytes(kept, seed))
        assert proof_room.proof_next_to(content, data) in (sound, anew)
        content.write_bytes(changed := mutated_bytes(data, seed))
        if changed != data:
            with pytest.raises(
                CatalogError, match=r"its digest is .*Register it again with register_tokenizer\('words', source"
            ):
                catalog.tokenizer("words")
    content.write_bytes(data)

    assert sound.reason == "not asked"


def test_a_damaged_relation_is_dropped_or_registered_again(tmp_path: Path) -> None:
    import lancedb

    catalog = connect(tmp_path / "catalog")
    catalog.register("a", Arrow(ROWS))
    catalog.register("b", Arrow(ROWS))
    lancedb.connect(str(catalog.root)).open_table("relations").update(values={"identity_unique": False})
    with pytest.raises(
        CatalogError,
        match=r"relation \'a\' cannot be read: .*changed from outside\. Register it again with replace=True, or",
    ):
        catalog.register("a", Arrow(ROWS))
    catalog.register("a", Arrow(ROWS), replace=True)
    catalog.drop("b")

    assert catalog.tables() == ["a"]
    assert catalog.entry("a").identity_unique


def test_statistics_that_were_damaged_are_counted_again(tmp_path: Path) -> None:
    import spiral_stream as sp

    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("t", sp.Arrow(ROWS))
    marks = catalog.measure("t").marks
    sound = str(catalog.skew("t", "part"))
    files = [file for file in (catalog.root / "statistics").rglob("*") if file.is_file()]
    for file in [file for file in files if file.suffix != ".facts"]:  # those of a group are only merged again
        data = file.read_bytes()
        for seed in range(60):
            file.write_bytes(mutated_bytes(data, seed))
            survives(lambda: str(catalog.skew("t", "part")), sound, says=f"{file.name}, seed {seed}")
        file.write_bytes(b"")
        with pytest.raises(CatalogError, match=r'statistics of t: .*Count again with catalog\.measure\("t"\)'):
            catalog.skew("t", "part")
        file.write_bytes(data)

    assert catalog.measure("t").marks == marks

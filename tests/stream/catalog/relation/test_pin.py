import os
from pathlib import Path
from threading import Barrier

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.catalog.relation import pin as pinning
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.semantic import JPEG_REF
from spiral_stream.sources import MemoryReader
from tests.fixtures.waits import FAR_S

RANGE = pa.struct([("uri", pa.utf8()), ("offset", pa.int64()), ("length", pa.int64())])


def registered(folder: Path, table: pa.Table, **options: object) -> sp.Catalog:
    catalog = sp.connect(str(folder / "catalog"))
    catalog.register("r", sp.Arrow(table, base=str(folder)), semantic={"image_ref": JPEG_REF}, shard="part", **options)
    return catalog


@settings(max_examples=12)
@given(
    data=st.data(), rows=st.integers(1, 30), files=st.integers(1, 6), form=st.sampled_from(["file", "range", "list"])
)
def test_a_shards_key_changes_when_and_only_when_a_file_of_its_rows_does(
    data: st.DataObject, rows: int, files: int, form: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pins")
    for at in range(files):
        (folder / f"{at}.bin").write_bytes(bytes(100))
    which = data.draw(
        st.lists(st.one_of(st.none(), st.integers(0, files)), min_size=rows, max_size=rows)
    )  # `files` is missing
    uris = [None if at is None else f"{at}.bin" for at in which]
    parts = [None if uri is None else {"uri": uri, "offset": 0, "length": 1} for uri in uris]
    column = pa.array(parts, RANGE) if form == "range" else pa.array(uris, pa.utf8())
    if form == "list":
        column = pa.array(
            [None if part is None else [part] * (k % 3 + 1) for k, part in enumerate(parts)], pa.list_(RANGE)
        )
    shards = np.sort(np.array(data.draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows))))
    table = pa.table({"sample_id": np.arange(rows), "image_ref": column, "part": shards})
    catalog = registered(folder, table)
    before = catalog.entry("r").manifest()
    hit = data.draw(st.integers(0, files - 1))
    os.utime(folder / f"{hit}.bin", ns=(5, 5))
    after = catalog.refresh("r").manifest()

    names = before.shard_names.to_pylist()
    touched = {str(shard) for shard, at in zip(shards.tolist(), which, strict=True) if at == hit}
    changed = {name for name, a, b in zip(names, before.content_keys, after.content_keys, strict=True) if a != b}
    assert changed == touched
    assert (before.data_version != after.data_version) == bool(touched)


def test_the_data_version_does_not_depend_on_how_many_rows_a_batch_of_the_scan_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(40):
        (tmp_path / f"{at}.bin").write_bytes(bytes(at))
    uris = [f"{at}.bin" for at in range(40)]
    table = pa.table({"sample_id": uris, "image_ref": uris, "part": ["a"] * 25 + ["b"] * 15})
    whole = registered(tmp_path, table).entry("r")
    scan = MemoryReader.scan
    monkeypatch.setattr(
        MemoryReader,
        "scan",
        lambda *asked: (batch.slice(at, 7) for batch in scan(*asked) for at in range(0, len(batch), 7)),
    )
    monkeypatch.setattr(pinning, "RECENT", 4)
    again = sp.connect(str(tmp_path / "catalog")).refresh("r")
    assert again.data_version == whole.data_version
    assert again.manifest().pins == whole.manifest().pins


def test_a_few_files_are_looked_at_by_all_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uris = [f"{at}.bin" for at in range(2 * pinning.THREADS)]
    for uri in uris:
        (tmp_path / uri).write_bytes(b"1")
    together = Barrier(pinning.THREADS, timeout=FAR_S)
    stat = pinning.Reach.stat
    monkeypatch.setattr(pinning.Reach, "stat", lambda *asked: (together.wait(), stat(*asked))[1])
    table = pa.table({"sample_id": uris, "image_ref": uris, "part": ["a"] * len(uris)})
    assert registered(tmp_path, table).entry("r").manifest().pins


def test_inline_bytes_and_relations_without_references_keep_the_key_of_their_rows(tmp_path: Path) -> None:
    table = pa.table({"sample_id": ["a"], "image_ref": pa.array([b"x"], pa.large_binary()), "part": ["p"]})
    inline = registered(tmp_path, table).entry("r").manifest()
    plain = sp.connect(str(tmp_path / "catalog"))
    plain.register("s", sp.Arrow(table), shard="part")
    assert inline.content_keys == plain.entry("s").manifest().content_keys
    assert inline.pins


def test_lost_or_cut_pins_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"1")
    catalog = registered(tmp_path, pa.table({"sample_id": ["a"], "image_ref": ["a.bin"], "part": ["p"]}))
    (path,) = (catalog.root / "manifests").glob("*.pins")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(sp.errors.SourceError, match=r'r: pins .* cut.*catalog.refresh\("r"\)'):
        OpenRelation(catalog.entry("r"))
    path.unlink()
    with pytest.raises(sp.errors.SourceError, match=r'r: pins .*No such file.*catalog.refresh\("r"\)'):
        OpenRelation(catalog.entry("r"))
    catalog.refresh("r")
    OpenRelation(catalog.entry("r")).close()

"""Token files on an object store have the documents and batches of local ones; ids are read by range."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spiral_stream as sp
from spiral_stream.storage.open import store_of
from tests.stream.sources.test_remote import need_same, put_all, rows_of
from tests.stream.sources.tokens.test_layout import write_index

WAYS: dict[str, dict[str, Any]] = {
    "separator": {"separator": 0},
    "table": {},
    "index": {},
}


def write(way: str, folder: Path) -> None:
    folder.mkdir()
    rng = np.random.default_rng(3)
    for part in range(3):
        if way == "table":
            np.save(folder / f"{part}.npy", rng.integers(1, 900, (20, 16), np.int32))
        elif way == "separator":
            rng.integers(0, 9, 400, np.uint16).tofile(folder / f"{part}.bin")
        else:
            rng.integers(1, 900, 60, np.int32).tofile(folder / f"{part}.bin")
            write_index(folder / f"{part}.idx", [20, 30, 10], [0, 1, 2, 3], "int32")


def batches(catalog: sp.Catalog, name: str) -> list[Any]:
    sampled = catalog.table(name).sample(order=sp.GlobalShuffle(seed=4), epoch=0)
    fields = {"tokens": sp.Pad("tokens"), "length": sp.Stack("length")}
    with sampled.collate(batch_size=8, fields=fields, last=sp.KeepPartial).to_numpy(prefetch=2) as stream:
        return list(stream)


@pytest.mark.parametrize("way", WAYS)
def test_token_files_on_s3_give_the_batches_of_local_files(
    way: str, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "one"))
    write(way, tmp_path / "ids")
    put_all(tmp_path / "ids", f"{bucket}/ids")
    catalog = sp.connect(str(tmp_path / "catalog"))
    for name, path in (("local", str(tmp_path / "ids")), ("remote", f"{bucket}/ids")):
        catalog.register(name, sp.sources.Tokens(path, **WAYS[way]), identity=sp.RowIdentity())
    assert rows_of(catalog, "remote") == rows_of(catalog, "local") != []
    need_same(batches(catalog, "remote"), batches(catalog, "local"))

    store, key = store_of(f"{bucket}/ids/1.{'npy' if way == 'table' else 'bin'}")
    data = bytearray(store.get(key).data or b"")
    data[-1] ^= 1
    store.put(key, data)
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "other"))  # the first has a copy of what was registered
    with pytest.raises(sp.errors.SourceError, match=r"ids/1\.\w+ changed since registration"):
        batches(catalog, "remote")
    catalog.refresh("remote")
    assert len(batches(catalog, "remote")) == len(batches(catalog, "local"))

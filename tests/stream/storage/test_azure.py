"""Azure Blob Storage, by Azurite: conditions of puts, and a stream whose files, catalog and cache lie there.

Runs where ``azurite-blob`` is found (``npm install -g azurite``).
"""

import base64
import hashlib
import hmac
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream import use_storage
from spiral_stream.storage.open import store_of
from tests.fixtures import streams

AZURITE = shutil.which("azurite-blob")
ACCOUNT, PORT = "devstoreaccount1", 10_610
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # Azurite's own, of no use
PLACE = f"http://127.0.0.1:{PORT}/{ACCOUNT}"
OPTIONS = {"account_name": ACCOUNT, "account_key": KEY, "endpoint": PLACE, "allow_http": "true"}
pytestmark = [pytest.mark.slow, pytest.mark.skipif(AZURITE is None, reason="azurite-blob is not installed")]


@pytest.fixture
def container(tmp_path: Path) -> Iterator[str]:
    """The URI of an empty container."""
    assert AZURITE is not None
    command = [AZURITE, "--silent", "--inMemoryPersistence", "--blobPort", str(PORT), "--skipApiVersionCheck"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=tmp_path) as process:
        for _ in range(500):
            try:
                made("pictures")
                break
            except urllib.error.URLError:
                time.sleep(0.2)
        use_storage("azurite", prefix="az://pictures", **OPTIONS)
        yield "az://pictures"
        use_storage("azurite", prefix="az://pictures")
        process.kill()


def made(name: str) -> None:
    """Make a container, with a request that is signed by hand: the client makes none."""
    when = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": when, "x-ms-version": "2021-08-06"}
    lines = [f"{key}:{value}" for key, value in headers.items()]
    text = "\n".join(["PUT", *[""] * 11, *lines, f"/{ACCOUNT}/{ACCOUNT}/{name}", "restype:container"])
    signed = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
    headers |= {"Authorization": f"SharedKey {ACCOUNT}:{signed}", "Content-Length": "0"}
    urllib.request.urlopen(urllib.request.Request(f"{PLACE}/{name}?restype=container", method="PUT", headers=headers))


def test_of_two_puts_under_one_condition_one_holds(container: str) -> None:
    store, _ = store_of(container)
    first = store.put("a", b"1", absent=True)
    assert first is not None
    assert store.put("a", b"2", absent=True) is None
    assert store.put("a", b"3", unchanged=first) is not None
    assert store.put("a", b"4", unchanged=first) is None
    assert bytes(store.get("a").data or b"") == b"3"


def test_a_stream_from_azure_gives_the_batches_of_local_files(
    container: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, store = streams.images(48), store_of(container)[0]
    (tmp_path / "images").mkdir()
    names = [f"{at:03}.jpg" for at in range(48)]
    for name, data in zip(names, table["image_ref"].to_pylist(), strict=True):
        (tmp_path / "images" / name).write_bytes(data)
        store.put(f"images/{name}", data)

    def read(place: str, catalog: str, machine: str) -> list[Any]:
        monkeypatch.setenv("SPIRAL_CATALOG_MIRROR", str(tmp_path / machine / "mirror"))
        monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / machine / "node"))
        opened = sp.connect(catalog)
        if "images" not in opened.tables():
            rows = table.set_column(2, "image_ref", pa.array([f"{place}/images/{name}" for name in names]))
            if place == container:
                lance.write_dataset(rows, f"{place}/rows.lance", storage_options=OPTIONS)
            source = sp.Lance(f"{place}/rows.lance") if place == container else sp.Arrow(rows)
            opened.register("images", source, semantic={"image_ref": "image/jpeg-ref"})
        relation = opened.table("images").cache(image_ref=sp.Raw(shorter_side=40))
        with streams.plan(relation, order=sp.GlobalShuffle(seed=1), batch_size=16).to_numpy() as stream:
            stream.materialize(lambda _: None)
            return list(stream)

    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "caches"))
    local = read(str(tmp_path), str(tmp_path / "catalog"), "here")
    monkeypatch.setenv("SPIRAL_CACHE", f"{container}/prepared")
    for machine in ("one", "two"):
        far = read(container, f"{container}/catalog", machine)
        assert len(far) == len(local)
        for here, there in zip(local, far, strict=True):
            for name in here:
                np.testing.assert_array_equal(np.asarray(here[name]), np.asarray(there[name]))

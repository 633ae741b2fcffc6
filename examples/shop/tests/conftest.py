"""The shop with a little data, drawn, and an instance of Dagster of its own."""

import io
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
PHOTOS = 40


def photo(number: int) -> bytes:
    """Return a photo of one colour: two of them, 7 and 8, are all but the same."""
    shade = (7 if number == 8 else number) * 5
    out = io.BytesIO()
    Image.new("RGB", (64, 48), (shade, 255 - shade, 40 * (number % 3))).save(out, "JPEG", quality=95)
    return out.getvalue()


def write_photos(folder: Path, count: int = PHOTOS) -> None:
    """Write the photos as the shop's system exports them."""
    rows = {
        "id": list(range(count)),
        "photo": [photo(7 if each == 8 else each) for each in range(count)],
        "label": [each % 3 for each in range(count)],
    }
    pq.write_table(pa.table(rows), folder / "photos.parquet")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data, and an environment that says where everything lies."""
    folder = tmp_path / "data"
    folder.mkdir()
    write_photos(folder)
    lines = [f'{{"order_id": {each}, "photo": {each % 7}}}' for each in range(20)]
    (folder / "orders.jsonl").write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("DATA", str(folder))
    monkeypatch.setenv("SPIRAL_CATALOG", str(tmp_path / "lake"))
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "caches"))
    monkeypatch.setenv("SPIRAL_DATA_ROOT", str(tmp_path))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DAGSTER_IS_DEV_CLI", "1")  # RelationCatalog looks at the folder when definitions are loaded
    return folder


@pytest.fixture
def defs(data: Path) -> dg.Definitions:
    """All definitions of the project, as the code location loads them."""
    assert data.is_dir()
    return dg.load_from_defs_folder(path_within_project=ROOT)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """An instance that is empty, and gone after the test."""
    with dg.DagsterInstance.ephemeral() as made:
        yield made

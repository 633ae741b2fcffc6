"""Files that somebody names are regular ones: a FIFO or a device is named at once, wherever a path is taken."""

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import spiral_stream as sp
from tests.fixtures.texts import TOKENIZER, make_catalog

READS: dict[str, Callable[[sp.Catalog, str], object]] = {
    "template": lambda catalog, path: (
        catalog.table("texts")
        .sample(order=sp.Sequential())
        .map(sp.transforms.ChatTemplate("chat", tokenizer=TOKENIZER, template=Path(path)) >> "tokens")
        .collate(batch_size=2, fields={"ids": sp.Pad("tokens")})
        .to_numpy()
        .batch(0)
    ),
    "tokenizer": lambda catalog, path: catalog.register_tokenizer("other", path),
    "parquet": lambda catalog, path: catalog.register("other", sp.Parquet(path)),
    "jsonl": lambda catalog, path: catalog.register("other", sp.sources.Jsonl(path)),
    "csv": lambda catalog, path: catalog.register("other", sp.sources.Csv(path)),
    "texts": lambda catalog, path: catalog.register("other", sp.sources.TextFiles(path)),
    "vortex": lambda catalog, path: catalog.register("other", sp.sources.Vortex(path)),
    "tar": lambda catalog, path: catalog.register("other", sp.sources.WebDataset(path)),
}


@pytest.mark.parametrize("what", READS)
@pytest.mark.parametrize("kind", ["FIFO", "device"])
def test_what_never_ends_is_named(what: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "named"
    if kind == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    catalog = make_catalog(tmp_path, {"docs": 4})
    chats = [[{"role": "user", "content": "a b"}]] * 4
    catalog.register("texts", sp.Arrow(pa.table({"sample_id": range(4), "chat": chats})), replace=True)

    with pytest.raises(sp.SpiralError, match=str(path)):
        READS[what](catalog, str(path))

"""What another commit wrote, read by this one: catalogs, imported rows, saved streams, states, caches; same batches?

    PYTHONPATH=<checkout of the older commit> python benchmarks/compatibility.py write FOLDER
    PYTHONPATH=<checkout of this commit>      python benchmarks/compatibility.py read FOLDER

``write`` makes a catalog of six kinds of sources, saves ten streams, builds caches, and writes down the digest of every
batch of two epochs, with states from the middle of each. ``read`` opens the same catalog: every stream from its
beginning, from each state, on two ranks, and with the caches as they lie there. It uses the public door alone, so it runs
under both commits. It prints a line for each stream and fails at the first difference.
"""

import argparse
import hashlib
import io
import json
import sys
import tarfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import spiral_stream as sp

ROWS = 600
EPOCHS = (0, 1)
STOP = 2  # batches before a state is saved


def written(folder: Path) -> sp.Catalog:
    """Write the sources, and register them."""
    draw = np.random.default_rng(7)
    words = np.array(
        ["the", "a", "of", "spiral", "stream", "batch", "order", "sample", "row", "plan", "shard", "cache", "of"]
    )
    texts = [" ".join(draw.choice(words, draw.integers(1, 30))) for _ in range(ROWS)]
    rows = {
        "sample_id": [f"s{k}" for k in range(ROWS)],
        "n": list(range(ROWS)),
        "quality": draw.random(ROWS).round(3).tolist(),
        "label": draw.integers(0, 5, ROWS).tolist(),
        "text": texts,
        "tokens": [draw.integers(0, 500, len(text.split())).tolist() for text in texts],
    }
    table = pa.table(rows)
    place = {name: folder / name for name in ("parquet", "jsonl", "csv", "tars", "tokens")}
    for each in place.values():
        each.mkdir(parents=True)
    for k in range(6):
        pq.write_table(table.slice(100 * k, 100), place["parquet"] / f"{k}.parquet", row_group_size=25)
    for k in range(3):
        part = table.slice(200 * k, 200).to_pylist()
        (place["jsonl"] / f"{k}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
        lines = "".join(f'{row["sample_id"]},{row["n"]},"{row["text"]}"\n' for row in part)
        (place["csv"] / f"{k}.csv").write_text("sample_id,n,text\n" + lines)
        with tarfile.open(place["tars"] / f"{k}.tar", "w") as archive:
            for row in part[:60]:
                for suffix, data in (("jpg", picture(row["n"])), ("cls", str(row["label"]).encode())):
                    member = tarfile.TarInfo(f"{row['sample_id']}.{suffix}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    np.arange(9_000, dtype=np.uint16).tofile(place["tokens"] / "0.bin")
    (folder / "tokenizer.json").write_text(tokenizer(words))

    catalog = sp.connect(str(folder / "catalog"))
    catalog.register("table", sp.Parquet(str(place["parquet"])), identity="sample_id")
    catalog.register("lines", sp.Jsonl(str(place["jsonl"])), identity="sample_id")
    catalog.register("csv", sp.Csv(str(place["csv"])), identity="sample_id")
    catalog.register("photos", sp.WebDataset(str(place["tars"])), identity="__key__")
    catalog.register("ids", sp.Tokens(str(place["tokens"]), dtype="uint16", length=16), identity=sp.RowIdentity())
    catalog.register_tokenizer("words", folder / "tokenizer.json")
    catalog.measure("table")
    return catalog


def picture(number: int) -> bytes:
    from PIL import Image

    pixels = np.random.default_rng(number).integers(0, 255, (24, 36, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).resize((72, 48)).save(out, "JPEG", quality=90)
    return out.getvalue()


def tokenizer(words: np.ndarray[Any, Any]) -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: at for at, word in enumerate(dict.fromkeys(["[UNK]", *map(str, words)]))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made.to_str()


def plans(catalog: sp.Catalog) -> Iterator[tuple[str, Any]]:
    """Name and plan of each stream."""
    table, lines, photos = catalog.table("table"), catalog.table("lines"), catalog.table("photos")
    ids = {"id": sp.List("sample_id")}
    sharded = sp.ShardAwareShuffle(
        seed=3, shard_key=["storage_shard"], shuffle_block_size=64, sampling_granularity="row"
    )
    good = table.filter((sp.col("quality") > 0.2) & (sp.col("label") != 3))
    yield (
        "filtered",
        good.sample(identity="sample_id", order=sharded).collate(
            batch_size=32, fields={**ids, "n": sp.Stack("n"), "quality": sp.Stack("quality")}
        ),
    )
    yield (
        "windows",
        table.sample(identity="sample_id", order=sp.GlobalShuffle(seed=5)).collate(
            batch_size=None,
            formation=sp.WindowedBucket(
                window_size=128, keys=[sp.BucketKey("len(tokens)")], budget=sp.BatchBudget(max_tokens=256)
            ),
            fields={**ids, "ids": sp.Pad("tokens"), "mask": sp.PadMask("tokens")},
        ),
    )
    yield (
        "packed",
        lines.sample(identity="sample_id", order=sp.WindowShuffle(seed=5, window=50)).collate(
            batch_size=4,
            formation=sp.Packed(max_tokens=64),
            fields={"ids": sp.Pad("tokens"), "segments": sp.Segments("tokens")},
        ),
    )
    mixed = sp.mix([sp.Stream("a", table, proportion=0.7), sp.Stream("b", lines, proportion=0.3)], epoch_size=400)
    yield (
        "mixed",
        mixed.sample(identity="sample_id", order=sp.GlobalShuffle(seed=2)).collate(
            batch_size=25, fields={**ids, "from": sp.List("stream_id")}
        ),
    )
    weighted = table.sample(identity="sample_id", order=sp.Weighted("quality", seed=4))
    yield "weighted", weighted.collate(batch_size=40, fields=ids, last=sp.KeepPartial)
    yield (
        "joined",
        lines.project("sample_id", "text")
        .join(catalog.table("csv").project("sample_id", "n"), on="sample_id")
        .sample(identity="sample_id", order=sp.Sequential())
        .collate(batch_size=50, fields={**ids, "n": sp.Stack("n")}),
    )
    yield (
        "tokenized",
        lines.sample(identity="sample_id", order=sp.GlobalShuffle(seed=8))
        .map(sp.Tokenize("text", tokenizer="words") >> "found")
        .collate(batch_size=20, fields={**ids, "found": sp.Pad("found", pad_to_multiple_of=8)}),
    )
    yield (
        "photos",
        photos.sample(identity="__key__", order=sp.GlobalShuffle(seed=6)).collate(
            batch_size=16,
            fields={
                "image": sp.Stack(
                    "jpg", decode="jpeg", transforms=[sp.RandomResizedCrop(24), sp.RandomHorizontalFlip()]
                ),
                "label": sp.Stack("cls"),
                "id": sp.List("__key__"),
            },
        ),
    )
    yield (
        "ids",
        catalog.table("ids")
        .sample(order=sp.HashBucketed(seed=5, bucket_count=8))
        .collate(batch_size=32, fields={"x": sp.Pad("tokens")}),
    )
    yield (
        "sql",
        catalog.sql('select label, count(*) as total, min(n) as n from "table" group by label')
        .sample(identity="label", order=sp.Sequential())
        .collate(batch_size=2, fields={"label": sp.Stack("label"), "total": sp.Stack("total")}, last=sp.KeepPartial),
    )


CACHED = ("photos", "tokenized")


def kept(folder: Path) -> list[str]:
    """The parts that ledgers of caches name."""
    return sorted(str(each) for each in (folder / "catalog").glob("prepared/caches/*/ledger/*.json"))


def digest(batch: dict[str, Any]) -> str:
    found = hashlib.sha256()
    for name, value in batch.items():
        found.update(name.encode())
        found.update(repr(value).encode() if isinstance(value, list) else repr((value.dtype, value.shape)).encode())
        found.update(b"" if isinstance(value, list) else np.ascontiguousarray(value).tobytes())
    return found.hexdigest()


def write(folder: Path) -> None:
    catalog = written(folder)
    said: dict[str, Any] = {}
    for name, plan in plans(catalog):
        catalog.save_stream(name, plan.to_numpy())
        with catalog.open_stream(name, trust="all") as stream:
            if name in CACHED:
                stream.materialize(lambda _: None)
            epochs, states = [], []
            for epoch in EPOCHS:
                run, digests = iter(stream), []
                for batch in run:
                    digests.append(digest(batch))
                    if len(digests) == STOP:
                        states.append([epoch, STOP, stream.state_dict()])
                epochs.append(digests)
            said[name] = {"epochs": epochs, "states": states, "fingerprint": stream.fingerprint}
        print(f"{name:10} wrote {[len(each) for each in epochs]} batches, {len(states)} states")
    said["rows"] = {
        name: hashlib.sha256(repr(catalog.table(name).to_arrow().to_pylist()).encode()).hexdigest()
        for name in ("table", "lines", "csv", "photos", "ids")
    }
    (folder / "said.json").write_text(json.dumps(said))


def read(folder: Path) -> None:
    said = json.loads((folder / "said.json").read_text())
    catalog = sp.connect(str(folder / "catalog"))
    for name, wanted in said.pop("rows").items():
        found = hashlib.sha256(repr(catalog.table(name).to_arrow().to_pylist()).encode()).hexdigest()
        assert found == wanted, f"the rows of {name} differ"
    for name, plan in plans(catalog):
        told = said[name]
        with catalog.open_stream(name, trust="all") as stream:
            assert stream.fingerprint == told["fingerprint"], f"{name}: another fingerprint"
            with plan.to_numpy() as anew:
                assert anew.fingerprint == told["fingerprint"], f"{name}: the plan made anew is another"
            if name in CACHED:
                before = kept(folder)
                stream.materialize(lambda _: None)
                assert kept(folder) == before, f"{name}: the cache is built again"
            for wanted in told["epochs"]:
                assert [digest(batch) for batch in stream] == wanted, f"{name}: other batches"
        for epoch, step, state in told["states"]:
            with catalog.open_stream(name, trust="all") as stream:
                stream.load_state_dict(state)
                assert [digest(batch) for batch in stream] == told["epochs"][epoch][step:], f"{name}: another rest"
        print(f"{name:10} the same {[len(each) for each in told['epochs']]} batches, {len(told['states'])} states")
    print(f"identical: what {folder} holds, read with {Path(sp.__file__).parent}")


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("what", choices=("write", "read"))
    asked.add_argument("folder", type=Path)
    given = asked.parse_args()
    warnings.simplefilter("ignore")
    sys.exit({"write": write, "read": read}[given.what](given.folder))

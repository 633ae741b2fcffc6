"""LitData: documents in its own chunks, 1,024 each, shuffled at conversion; packed rows by `TokensLoader`.

It permutes chunks and the documents inside a chunk, never documents across chunks: who shares a chunk is drawn once, at
conversion, as its README advises. `TokensLoader` gives windows of tokens of the same concatenation in every epoch; segments
and positions are found behind it from the separator. In the consumer's process; workers were not tried.
"""

import shutil
from collections.abc import Iterator

import litdata
import numpy as np
import torch

from benchmarks.peers.documents import ROW, ROWS, Batch, Mapped, Task, Texts, bucketed, chunked, segments_of
from benchmarks.peers.encoding import CHUNK, Encoder

PACKAGES = ("litdata", "tokenizers")


class Item:
    """What conversion stores of one document."""

    def __init__(self, texts: Texts, kind: str) -> None:
        self.documents = Mapped.texts(texts) if kind == "raw" else Mapped.tokens(texts)
        self.kind = kind

    def __call__(self, number: int) -> object:
        document = self.documents[number]
        if self.kind == "raw":
            return bytes(document).decode()
        return np.append(document, np.uint16(0)) if self.kind == "packed" else np.array(document)


def prepare(texts: Texts, task: Task) -> None:
    where, unfinished = texts.root / f"litdata-{task.kind}", texts.root / "litdata-unfinished"
    if where.exists():
        return
    shutil.rmtree(unfinished, ignore_errors=True)
    item = Item(texts, task.kind)
    order = np.random.default_rng(17).permutation(len(item.documents)).tolist()
    packed = {"item_loader": litdata.TokensLoader(), "chunk_size": ROW * 512} if task.kind == "packed" else {}
    litdata.optimize(
        item,
        order,
        str(unfinished),
        num_workers=1,
        reorder_files=False,
        verbose=False,
        **({"chunk_size": 1_024} | packed),
    )
    unfinished.rename(where)


def batches(texts: Texts, task: Task) -> Iterator[Batch]:
    torch.set_num_threads(1)
    loader = litdata.TokensLoader(block_size=ROW) if task.kind == "packed" else None
    # 88 M tokens a CPU second; with its default decoding of 256 neighbours a shuffled whole chunk gives 1.3 M
    options = {} if loader else {"item_shuffle_window": "all", "batch_decode": "all"}
    dataset = litdata.StreamingDataset(
        str(texts.root / f"litdata-{task.kind}"), shuffle=True, drop_last=True, item_loader=loader, seed=17, **options
    )
    if task.kind == "padded":
        yield from bucketed(chunked(_epochs(dataset)), task.budget)
    elif task.kind == "raw":
        encoder = Encoder(texts)
        encoded = (document for chunk in chunked(_epochs(dataset), CHUNK) for document in encoder(chunk))
        yield from bucketed(chunked(encoded), task.budget)
    else:
        for rows in chunked(_epochs(dataset), ROWS):
            ids = np.stack([np.asarray(row) for row in rows]).astype(np.int64)
            yield {"input_ids": torch.from_numpy(ids)} | segments_of(ids)


def _epochs(dataset: litdata.StreamingDataset) -> Iterator:
    while True:
        yield from dataset

"""Mosaic StreamingDataset: MDS shards on the local disk, `py1e` shuffle; in an environment of its own.

It pins numpy < 2.2 and transformers < 5. Documents come one by one; in the consumer's process (workers
were not tried). No formation: the peers' common functions.
"""

import shutil
from collections.abc import Iterator

import numpy as np
import torch
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

from benchmarks.peers.documents import WINDOW, Batch, Mapped, Task, Texts, bucketed, chunked
from benchmarks.peers.encoding import CHUNK, Encoder

PACKAGES = ("mosaicml-streaming", "tokenizers")


def prepare(texts: Texts, task: Task) -> None:
    where, unfinished = texts.root / f"mosaic-{task.kind}", texts.root / "mosaic-unfinished"
    if where.exists():
        return
    shutil.rmtree(unfinished, ignore_errors=True)
    raw = task.kind == "raw"
    documents = Mapped.texts(texts) if raw else Mapped.tokens(texts)
    with MDSWriter(out=str(unfinished), columns={"document": "str" if raw else "ndarray:uint16"}) as writer:
        for number in range(len(documents)):
            found = documents[number]
            writer.write({"document": bytes(found).decode() if raw else np.array(found)})
    unfinished.rename(where)


def batches(texts: Texts, task: Task) -> Iterator[Batch]:
    torch.set_num_threads(1)
    clean_stale_shared_memory()
    dataset = StreamingDataset(
        local=str(texts.root / f"mosaic-{task.kind}"), shuffle=True, shuffle_seed=17, batch_size=WINDOW,
        num_canonical_nodes=1,
    )  # fmt: skip
    if task.kind == "padded":
        return bucketed(chunked(_epochs(dataset)), task.budget)
    encoder = Encoder(texts)
    encoded = (document for chunk in chunked(_epochs(dataset), CHUNK) for document in encoder(chunk))
    return bucketed(chunked(encoded), task.budget)


def _epochs(dataset: StreamingDataset) -> Iterator:
    while True:
        for sample in dataset:
            yield sample["document"]

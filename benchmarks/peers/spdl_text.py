"""SPDL: a source of batch memberships, a thread per core that builds whole batches, order kept.

The stages carry batches, not documents: a document a stage costs 164 to 253 us. SPDL has no shuffle of its own
for map-style data and no formation; both are the peers' common functions.
"""

from collections.abc import Iterator

import torch
from spdl.pipeline import PipelineBuilder

from benchmarks.peers.documents import Batch, Mapped, Task, Texts, bucketed, cores, padded
from benchmarks.peers.encoding import Encoder
from benchmarks.peers.torch_text import Buckets, Chunks

PACKAGES = ("spdl_core", "tokenizers")


def batches(texts: Texts, task: Task) -> Iterator[Batch]:
    torch.set_num_threads(1)
    documents = Mapped.texts(texts) if task.kind == "raw" else Mapped.tokens(texts)
    encoder = Encoder(texts)

    def encode(numbers: object) -> list:
        return encoder([bytes(documents[number]).decode() for number in numbers])

    def fetch(numbers: object) -> Batch:
        return padded([documents[number] for number in numbers])

    raw = task.kind == "raw"
    source = Chunks(len(documents)) if raw else Buckets(documents.lengths, task.budget)
    pipeline = (
        PipelineBuilder()
        .add_source(source)
        .pipe(encode if raw else fetch, concurrency=cores(), output_order="input")
        .add_sink(cores() + 1)
        .build(num_threads=cores())
    )
    with pipeline.auto_stop():
        yield from bucketed(_windows(pipeline), task.budget) if raw else pipeline


def _windows(chunks: Iterator[list]) -> Iterator[list]:
    from benchmarks.peers.documents import WINDOW

    window: list = []
    for chunk in chunks:
        window += chunk
        if len(window) >= WINDOW:
            yield window[:WINDOW]
            window = window[WINDOW:]

"""Ours: token documents, packed rows and raw text by the verbs of the example program, from a token cache or without one."""

import os
from collections.abc import Iterator
from typing import Any

from benchmarks.peers.documents import MULTIPLE, ROW, ROWS, WINDOW, Batch, Task, Texts

PACKAGES = ("spiral-stream", "tokenizers", "tiktoken", "pylance", "torch")
TOKENIZER = "bench-bpe"


def _stream(texts: Texts, task: Task, cache: str, strategy: str) -> Any:
    """The stream of a task; ``cache`` is one of none, tokens."""
    os.environ["SPIRAL_CATALOG"] = str(texts.root / "catalog")
    os.environ["SPIRAL_CACHE"] = str(texts.root / ("caches" if cache == "tokens" else "no-caches"))
    import spiral_stream as spiraldb

    # An ImportError here leaves ours out of the table, as a peer that is not installed is.
    from spiral_stream import (
        BatchBudget,
        BucketKey,
        DropPartial,
        Pad,
        PadMask,
        RuntimeParam,
        ShardAwareShuffle,
        ShiftedLabels,
        Tokenize,
        WindowedBucket,
    )
    from spiral_stream.batching import Packed
    from spiral_stream.fields import Positions, Segments

    catalog = spiraldb.connect(str(texts.root / "catalog"))
    if "text.documents" not in catalog.tables():
        source = spiraldb.Lance(str(texts.tables / "documents.lance"))
        catalog.register("text.documents", source, identity="sample_id", shard="storage_shard")
    if TOKENIZER not in catalog.tokenizers():
        catalog.register_tokenizer(TOKENIZER, str(texts.tokenizer))
    mapped = (
        spiraldb.table("text.documents")
        .sample(
            identity="sample_id",
            order=ShardAwareShuffle(seed=17, shard_key=["storage_shard"], shuffle_block_size=4_000_000),
            epoch=RuntimeParam("epoch"),
        )
        .map(Tokenize("text", tokenizer=TOKENIZER, special_tokens=False) >> "tokens")
    )
    if task.kind == "packed":
        cut = {} if strategy == "concat_and_split" else {"oversize": "truncate"}
        collated = mapped.collate(
            batch_size=ROWS,
            formation=Packed(max_tokens=ROW, strategy=strategy, **cut),
            last=DropPartial,
            fields={
                "input_ids": Pad("tokens"),
                "segment_ids": Segments("tokens"),
                "positions": Positions("tokens"),
            },
        )
    else:
        collated = mapped.collate(
            batch_size=None,
            formation=WindowedBucket(
                window_size=WINDOW, keys=[BucketKey("len(tokens)")], budget=BatchBudget(max_tokens=task.budget)
            ),
            last=DropPartial,
            fields={
                "input_ids": Pad("tokens", pad_to_multiple_of=MULTIPLE),
                "attention_mask": PadMask("tokens", pad_to_multiple_of=MULTIPLE),
                "labels": ShiftedLabels("tokens", ignore_index=-100),
            },
        )
    return collated.to_torch(prefetch=8)


def prepare(texts: Texts, task: Task, cache: str, strategy: str = "best_fit") -> None:
    stream = _stream(texts, task, cache, strategy)
    if cache == "tokens":
        stream.materialize()


def batches(texts: Texts, task: Task, cache: str, strategy: str = "best_fit") -> Iterator[Batch]:
    stream = _stream(texts, task, cache, strategy)
    stream.bind(device="cpu", epoch=0, data_parallel_rank=0, data_parallel_world_size=1)
    while True:  # an exhausted stream stands at the start of the next epoch
        yield from stream

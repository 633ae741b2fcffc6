"""One measurement of text: one system, in a process of its own, pinned to its cores.

Real tokens (not padding) between batch borders where the count of documents passes a multiple of the window, because
who forms windows works in bursts. The harness reads every mask; the seconds that takes are taken off. Before it is
measured, `--verify` reads two windows and compares every row with the corpus.
"""

import argparse
import hashlib
import importlib
import importlib.metadata
import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.cell import tree_cpu_s
from benchmarks.peers.documents import IGNORED, MULTIPLE, ROW, ROWS, WINDOW, Batch, Mapped, Task, Texts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--kind", default="padded", choices=("padded", "packed", "raw"))
    parser.add_argument("--budget", type=int, default=131_072)
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--windows", type=int, default=2, help="measured at least, however long they take")
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--verify", action="store_true")
    asked = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: asked.cores])
    torch.set_num_threads(1)  # the harness's own sums must not run on threads whose time nobody takes off
    texts, task = Texts(asked.data), Task(asked.kind, asked.budget)
    try:
        peer = importlib.import_module(f"benchmarks.peers.{asked.module}")
        if asked.prepare:
            notes = peer.prepare(texts, task, **asked.options) if hasattr(peer, "prepare") else None
            versions = {name: importlib.metadata.version(name) for name in peer.PACKAGES}
            print(json.dumps({"versions": versions, "notes": notes or {}}))
            return
    except ImportError as error:  # a package is not installed, or our door lacks a name
        print(json.dumps({"missing": str(error)}))
        return
    batches = peer.batches(texts, task, **asked.options)
    if asked.verify:
        check = verify_packed if task.kind == "packed" else verify_padded
        print(json.dumps(check(iter(batches), texts, task)), flush=True)
    else:
        print(json.dumps(measure(iter(batches), asked.seconds, asked.windows)), flush=True)
    os._exit(0)  # peers' threads and workers may wait for a consumer that has left


def measure(batches: Iterator[Batch], seconds: float, at_least: int) -> dict[str, float]:
    """Count tokens after one window, for ``seconds`` and ``at_least`` windows or longer."""
    began, passed = time.perf_counter(), 0
    while passed < WINDOW:
        passed += counted(next(batches))[1]
    first = time.perf_counter()
    start_cpu, tokens, spent_s = tree_cpu_s(os.getpid()), 0, 0.0
    passed, crossed, made = passed % WINDOW, 0, 0
    while True:
        batch = next(batches)
        reading = time.thread_time()
        more, documents = counted(batch)
        spent_s += time.thread_time() - reading
        tokens, passed, made = tokens + more, passed + documents, made + 1
        if passed >= WINDOW:
            passed, crossed = passed - WINDOW, crossed + 1
            if crossed >= at_least and time.perf_counter() - first >= seconds:
                break
    wall_s, cpu_s = time.perf_counter() - first, tree_cpu_s(os.getpid()) - start_cpu - spent_s
    return {
        "tokens": tokens, "batches": made, "wall_s": wall_s, "cpu_s": cpu_s, "per_cpu_s": tokens / cpu_s / 1e6,
        "per_s": tokens / (wall_s - spent_s) / 1e6, "warmup_s": first - began,
    }  # fmt: skip


def counted(batch: Batch) -> tuple[int, int]:
    """Real tokens and documents; packed rows count as the documents of a mean length."""
    if "tokens" in batch:
        return int(batch["tokens"]), int(batch["documents"])
    if "attention_mask" in batch:
        return int(batch["attention_mask"].sum()), len(batch["attention_mask"])
    if "segment_ids" in batch:
        return int(torch.count_nonzero(batch["segment_ids"])), 4 * len(batch["segment_ids"])
    return batch["input_ids"].numel(), 4 * len(batch["input_ids"])


def verify_padded(batches: Iterator[Batch], texts: Texts, task: Task) -> dict[str, float]:
    """Shapes, types, mask and labels; every row a document of the corpus, none twice in two windows; how shuffled.

    Returns:
        padding: share of padded places. together: how often a document shares its window with the next one
        of the corpus, as a multiple of what a random order gives; 1 is shuffled.
    """
    number_of = _numbers(Mapped.tokens(texts))
    found: list[int] = []
    places = 0
    for batch in batches:
        if "tokens" in batch:
            return {}
        ids, mask, labels = (batch[name] for name in ("input_ids", "attention_mask", "labels"))
        assert ids.dtype == mask.dtype == labels.dtype == torch.int64, (ids.dtype, mask.dtype, labels.dtype)
        assert ids.shape == mask.shape == labels.shape, (ids.shape, mask.shape, labels.shape)
        assert ids.shape[1] % MULTIPLE == 0, ids.shape
        assert ids.numel() <= task.budget, ids.shape
        lengths = mask.sum(1)
        assert torch.equal(mask.bool(), torch.arange(ids.shape[1]) < lengths[:, None])
        shifted = torch.full_like(ids, IGNORED)
        shifted[:, :-1] = torch.where(mask[:, 1:].bool(), ids[:, 1:], IGNORED)
        assert torch.equal(labels, shifted)
        assert not ids[~mask.bool()].any()
        places += ids.numel()
        for row, length in zip(ids.numpy().astype(np.uint16), lengths.tolist(), strict=True):
            found.append(number_of[_digest(row[:length])])
        if len(found) >= 2 * WINDOW:
            break
    documents = Mapped.tokens(texts)
    real = documents.lengths[found].sum()
    window = np.array(found[:WINDOW])
    neighbours = np.isin(window + 1, window).mean() / (len(window) / len(documents))
    twice = len(found) - len(set(found))
    assert twice <= max(8, len(found) // 1_000), f"{twice} of {len(found)} documents came twice"
    return {"padding": float(1 - real / places), "together": float(neighbours), "twice": twice}


def verify_packed(batches: Iterator[Batch], texts: Texts, task: Task) -> dict[str, float]:
    """Shapes and types; a segment is a document of the corpus, whole or cut off where a row ends.

    Returns:
        padding: share of empty places; known: share of whole segments that are documents of the corpus.
    """
    assert task.kind == "packed"
    number_of = _numbers(Mapped.tokens(texts), longest=ROW)
    empty = places = whole = known = 0
    for batch in itertools.islice(batches, 32):
        ids, segments, positions = batch["input_ids"], batch.get("segment_ids"), batch.get("positions")
        assert ids.shape == (ROWS, ROW), ids.shape
        assert ids.dtype == torch.int64, ids.dtype
        places += ids.numel()
        if segments is None or positions is None:
            continue
        assert segments.shape == positions.shape == ids.shape
        empty += int((segments == 0).sum())
        for row, names, at in zip(ids.numpy().astype(np.uint16), segments.numpy(), positions.numpy(), strict=True):
            begins = np.flatnonzero(np.diff(names, prepend=-1))
            for begin, end in itertools.pairwise([*begins.tolist(), ROW]):
                if names[begin] == 0:
                    continue
                assert np.array_equal(at[begin:end] - at[begin], np.arange(end - begin))
                if begin > 0 and end < ROW:  # neither cut by a row's border
                    whole += 1
                    document = row[begin:end]
                    known += _digest(document) in number_of or _digest(document[:-1]) in number_of
    return {"padding": empty / places, "known": known / max(1, whole)}


def _digest(ids: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(ids), digest_size=12).digest()


def _numbers(documents: Mapped, longest: int | None = None) -> dict[bytes, int]:
    """Document number of every document's ids."""
    return {_digest(documents[number][:longest]): number for number in range(len(documents))}


if __name__ == "__main__":
    main()

"""The text program runs unchanged on three relations in Lance, and a small copy of it to an epoch's end."""

import runpy
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

import spiral_stream as spiral
from tests.fixtures import relations
from tests.fixtures.inner import stages_of

PROGRAM = Path(__file__).parent / "programs" / "text.py"
SHARES = {"fineweb": 0.7, "wikipedia": 0.1, "code": 0.2}
EPOCH, BUDGET = 6_000, 200_000
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def long_tailed(table: pa.Table, seed: int) -> pa.Table:
    """The documents with 1 to 2,000 words each, most of them short, as texts are."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(5.2, 1.0, len(table)), 1, 2_000).astype(int)
    words = np.array(["data", "stream", "shard", "order"])
    texts = [" ".join(words[rng.integers(0, 4, n)]) for n in lengths]
    return table.set_column(table.schema.get_field_index("text"), "text", pa.array(texts, pa.utf8()))


def write(folder: Path) -> list[str]:
    """Write the three relations; returns their names."""
    tables = {
        "text.fineweb_documents": relations.fineweb_documents(1_500),
        "text.wikipedia_documents": relations.wikipedia_documents(300),
        "text.code_documents": relations.code_documents(400),
    }
    for seed, (name, table) in enumerate(tables.items()):
        lance.write_dataset(long_tailed(table, seed), str(folder / name))
    return list(tables)


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordLevel({"data": 0, "stream": 1, "shard": 2, "order": 3, "?": 4}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    catalog = spiral.connect(str(folder / "catalog"))
    for name in write(folder):
        catalog.register(name, spiral.Lance(str(folder / name)), identity="sample_id", shard="storage_shard")
    catalog.register_tokenizer("llama-tokenizer", tokenizer())
    return folder


def program(monkeypatch: pytest.MonkeyPatch, root: Path, path: Path = PROGRAM, **changes: str) -> Any:
    """The program's stream; ``changes`` are of a copy: what is written -> what is instead."""
    monkeypatch.setenv("SPIRAL_CATALOG", str(root / "catalog"))
    if changes:
        text = path.read_text()
        for old, new in changes.values():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path = root / "copy.py"
        path.write_text(text)
    train = runpy.run_path(str(path))["train"]
    return train.bind(device="cpu", epoch=0, data_parallel_rank=0, data_parallel_world_size=1)


def check(batch: dict[str, Any], budget: int) -> None:
    assert list(batch) == ["input_ids", "attention_mask", "labels", "sample_id", "stream_id"]
    ids, mask, labels = (batch[name] for name in ("input_ids", "attention_mask", "labels"))
    rows, width = ids.shape
    assert ids.dtype == mask.dtype == labels.dtype == torch.int64
    assert ids.shape == mask.shape == labels.shape
    assert width % 128 == 0
    assert ids.numel() <= budget
    assert rows == len(batch["sample_id"]) == len(batch["stream_id"])
    lengths = mask.sum(dim=1)
    assert int(lengths.max()) > width - 128
    assert torch.equal(mask, (torch.arange(width) < lengths[:, None]).long())
    assert torch.equal(labels[:, :-1], torch.where(torch.arange(1, width) < lengths[:, None], ids[:, 1:], -100))
    assert (labels[:, -1] == -100).all()


def test_the_text_program_runs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with program(monkeypatch, root) as train:
        train.materialize(lambda _: None)
        counts, worst = Counter[str](), 0.0
        for batch, _ in zip(train, range(6), strict=False):
            check(batch, 2_000_000)
            counts.update(batch["stream_id"])
            worst = max(worst, *(abs(counts[k] - share * counts.total()) for k, share in SHARES.items()))

        assert worst <= 1
        assert counts.total() > 20_000
        assert train.metrics()["source_bytes"] == 0
        with pytest.raises(TypeError, match=r"about 10,000,000,000 samples, .*stream.count\(\)"):
            len(train)


def test_ten_billion_samples_are_prepared_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with program(monkeypatch, root) as first:
        assert stages_of(first).epochs.total == 10**10  # selections are kept
    tracemalloc.start()
    begun = time.process_time()
    with program(monkeypatch, root) as train:
        assert stages_of(train).epochs.mixture.quotas(0).tolist() == [7 * 10**9, 10**9, 2 * 10**9]
        places = stages_of(train).epochs.stream_rows(3, np.arange(10**10 - 8192, 10**10, dtype=np.uint64))
        used = time.process_time() - begun
        peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert len(places) == 8192
    assert used < 5  # 0.4 on an idle core
    assert peak < 16 << 20


def test_a_small_epoch_has_exact_shares_and_buckets_save_padding(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"size": ("10_000_000_000", str(EPOCH)), "budget": ("2_000_000", str(BUDGET))}
    unsorted = {"keys": ('keys=[BucketKey("len(tokens)")]', "keys=[]")}
    real: dict[bool, float] = {}
    for bucketed in (True, False):
        tokens = places = 0
        counts, worst, sizes = Counter[str](), 0.0, []
        with program(monkeypatch, root, **(small if bucketed else small | unsorted)) as train:
            for batch in train:
                check(batch, BUDGET)
                counts.update(batch["stream_id"])
                worst = max(worst, *(abs(counts[k] - share * counts.total()) for k, share in SHARES.items()))
                tokens, places = tokens + int(batch["attention_mask"].sum()), places + batch["input_ids"].numel()
                sizes.append(len(batch["sample_id"]))
        assert counts == {"fineweb": 4_200, "wikipedia": 600, "code": 1_200}
        assert worst <= 1
        real[bucketed] = tokens / places

    assert real[True] > 0.6  # lengths rounded up to 128 alone leave 0.8
    assert real[True] > 2 * real[False]

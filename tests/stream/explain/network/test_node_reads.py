"""What a node reads: live files and bytes, and a sample of files that stands for all."""

import numpy as np
import pytest

from spiral_stream.explain.network import node_reads
from spiral_stream.explain.network.node_reads import Asks, fetched, live
from spiral_stream.storage.node_cache.file import BLOCK


def test_a_file_is_live_from_its_first_read_to_its_last() -> None:
    task, file = np.arange(6), np.array([0, 1, 0, 2, 1, 2])
    first = np.array([0, 0, 1, 0, 0, 1])
    found = live(Asks(task, file, first * BLOCK, (first + 1) * BLOCK, np.array([2 * BLOCK, 0, BLOCK + 5]), list("abc")))

    assert (found.files, found.most_files) == (3, 2)
    assert found.bytes == 2 * BLOCK + BLOCK + BLOCK + 5
    assert found.most_bytes == 2 * BLOCK + BLOCK


def test_nothing_asked_is_nothing_read() -> None:
    empty = np.empty(0, dtype=np.int64)

    assert live(Asks(empty, empty, empty, empty, empty, [])).bytes == 0
    assert fetched((Asks(empty, empty, empty, empty, empty, []),) * 2, 1 << 20).cold == 0


def epoch(rng: np.random.Generator, files: int, together: int, reads: int) -> Asks:
    """Some files at a time, each block of them read in turn."""
    order = rng.permutation(files).reshape(-1, together)
    file = np.concatenate([rng.permutation(np.repeat(block, reads)) for block in order])
    first = rng.integers(0, 40, len(file))
    names = [str(each) for each in range(files)]
    return Asks(np.arange(len(file)), file, first * BLOCK, (first + 1) * BLOCK, np.full(files, 40 * BLOCK), names)


@pytest.mark.parametrize("share", [3, 30])
def test_a_sample_of_the_files_stands_for_all(share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    epochs = epoch(rng, 1_200, 60, 30), epoch(rng, 1_200, 60, 30)
    limit = live(epochs[0]).bytes // share
    whole = fetched(epochs, limit)
    monkeypatch.setattr(node_reads, "ASKS", 12_000)
    sampled = fetched(epochs, limit)

    assert (whole.exact, sampled.exact) == (True, False)
    assert sampled.cold == pytest.approx(whole.cold, rel=0.1)
    assert sampled.later == pytest.approx(whole.later, rel=0.1)
    assert sampled.again == pytest.approx(whole.again, rel=0.25)

"""A run's folder: digests of batches, and one trainer at a time."""

import threading
from pathlib import Path

import torch

from spiral_assets.training.checkpoint import Checkpoint, digest, identities


def test_a_digest_covers_values_shapes_types_and_names() -> None:
    values = torch.arange(6, dtype=torch.int32)
    batches = [
        {"x": values},
        {"y": values},
        {"x": values.reshape(2, 3)},
        {"x": values.float()},
        {"x": values.flip(0)},
        {"x": values, "y": values},
    ]

    assert len({digest(batch) for batch in batches}) == len(batches)
    assert digest({"x": values, "sample_id": ["a"]}) == digest({"x": values.clone()})


def test_identities_have_the_stream_where_several_are_mixed() -> None:
    assert identities({"sample_id": ["a", "b"]}) == [["a"], ["b"]]
    assert identities({"sample_id": ["a", "b"], "stream_id": ["s", "t"]}) == [["s", "a"], ["t", "b"]]


def test_a_second_process_waits_for_the_one_that_trains(tmp_path: Path) -> None:
    said: list[str] = []
    kept = Checkpoint(tmp_path)
    went_on = threading.Event()

    def second() -> None:
        with Checkpoint(tmp_path).exclusively(said.append):
            went_on.set()

    with kept.exclusively(said.append):
        waiting = threading.Thread(target=second, daemon=True)
        waiting.start()
        assert not went_on.wait(0.3)
    waiting.join(10)

    assert went_on.is_set()
    assert [text.startswith("another process trains in") for text in said] == [True]

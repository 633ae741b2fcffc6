"""Rows of text with images, packed at 4,096 tokens: each image in its place, budgets held, resumed on other ranks, trained on."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import spiral_stream as sp
from tests.fixtures import mixed_rows
from tests.fixtures.mixed_rows import PATCHES

MOST_TOKENS, MOST_IMAGES, MOST_PATCHES = 4_096, 90, 3_600
NORMALIZE = sp.Normalize((0.5,) * 3, (0.5,) * 3)


def make(folder: Path, count: int) -> sp.Catalog:
    return mixed_rows.make_catalog(folder, mixed_rows.rows(count, longest=900))


def prepared(
    catalog: sp.Catalog, *, seed: int = 3, batch_size: int = 2, most_tokens: int = MOST_TOKENS
) -> sp.PreparedStream:
    images = sp.fields.FlatImages(
        "images", PATCHES, tokens="tokens", token_id=mixed_rows.mark_id(), transforms=[NORMALIZE]
    )
    fields = {
        "input_ids": sp.Pad("tokens"),
        "labels": sp.ShiftedLabels("tokens", mask="loss_mask"),
        "segments": sp.fields.Segments("tokens"),
        "positions": sp.fields.GridPositions("tokens", images="images"),
        "id": sp.List("id"),
        "numbers": sp.List("numbers"),
        "pixel_values": images,
        "grids": sp.fields.ImageGrids("images"),
        "places": sp.fields.ImagePlaces("images"),
    }
    formation = sp.batching.Packed(most_tokens, max_images=MOST_IMAGES, max_patches=MOST_PATCHES, window_size=512)
    samples = mixed_rows.tokens(catalog, order=sp.GlobalShuffle(seed=seed))
    plan = samples.collate(batch_size=batch_size, last=sp.KeepPartial, formation=formation, fields=fields)
    return plan.to_numpy()


def need_in_place(batch: dict[str, Any]) -> list[int]:
    """Check each image of a batch by the number that it shows. Returns the samples."""
    rows = [(row, segment, shown) for row, some in enumerate(batch["numbers"]) for segment, shown in enumerate(some, 1)]
    numbers = [number for *_, shown in rows for number in shown]
    owners = [(row, segment) for row, segment, shown in rows for _ in shown]
    assert [tuple(each) for each in batch["places"][:, :2].tolist()] == owners
    counts = batch["grids"].prod(axis=1)
    ends = counts.cumsum()
    assert len(batch["pixel_values"]) == (ends[-1] if len(ends) else 0)
    marks = batch["input_ids"] == mixed_rows.mark_id()
    assert np.count_nonzero(marks) * 4 == counts.sum()
    for number, grid, end, count, place in zip(numbers, batch["grids"], ends, counts, batch["places"], strict=True):
        row, segment, first, long = place.tolist()
        at = slice(first, first + long)
        assert long * 4 == count
        assert marks[row, at].all()
        assert (batch["segments"][row, at] == segment).all()
        pixels = batch["pixel_values"][end - count : end] * 0.5 + 0.5
        assert mixed_rows.read_back(mixed_rows.put_together(pixels, grid)) == number
    for row, shown in enumerate(batch["numbers"]):
        mine = batch["places"][:, 0] == row
        assert sum(map(len, shown)) == np.count_nonzero(mine) <= MOST_IMAGES
        assert counts[mine].sum() <= MOST_PATCHES
    assert batch["input_ids"].shape[1] == MOST_TOKENS
    return [one for row in batch["id"] for one in row]


@pytest.mark.parametrize("count", [150, pytest.param(2_000, marks=pytest.mark.slow)])
def test_packed_rows_with_images(tmp_path: Path, count: int) -> None:
    catalog = make(tmp_path, count)
    with prepared(catalog) as stream:
        stream.materialize(lambda progress: None)
        seen, tokens, room, batches = list[int](), 0, 0, 0
        for batch in stream:
            seen += need_in_place(batch)
            tokens += np.count_nonzero(batch["segments"])
            room += batch["segments"].size
            batches += 1
        explained = str(stream.explain())
    assert sorted(seen) == list(range(count))
    assert f"at most {MOST_IMAGES} images, at most {MOST_PATCHES:,} patches" in explained
    if count > 1_000:
        assert tokens / room > 0.9
    resumed_elsewhere(catalog, batches)


def resumed_elsewhere(catalog: sp.Catalog, batches: int) -> None:
    """A run on 1, 2 and then 3 ranks delivers what one process delivers."""
    with prepared(catalog) as stream:
        whole = [digest(batch) for batch in stream]
    assert len(whole) == batches
    state: Any = None
    got: list[Any] = []
    for world, steps in ((1, 1), (2, 1), (3, batches)):
        parts = [list(islice(run(catalog, rank, world, state), steps)) for rank in range(world)]
        for step in range(max(map(len, parts))):
            got += [part[step][0] for part in parts if step < len(part)]
        state = json.loads(json.dumps(parts[0][-1][1]))
    assert got == whole


def run(catalog: sp.Catalog, rank: int, world: int, state: Any) -> Iterator[tuple[Any, Any]]:
    with prepared(catalog).bind(rank=rank, world_size=world) as stream:
        if state is not None:
            stream.load_state_dict(state)
        for batch in stream:
            yield digest(batch), stream.state_dict()


def digest(batch: dict[str, Any]) -> Any:
    arrays = {name: value for name, value in batch.items() if isinstance(value, np.ndarray)}
    return batch["id"], {name: (value.shape, hash(value.tobytes())) for name, value in arrays.items()}


class Small(nn.Module):
    """One layer over words and blocks of patches."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.words, self.patches = nn.Embedding(vocabulary, 32), nn.Linear(4 * PATCHES.patch_shape[0], 32)
        self.axes = nn.ModuleList(nn.Embedding(4_096, 32) for _ in range(3))
        self.block = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True)
        self.head = nn.Linear(32, vocabulary)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        ids, segments = batch["input_ids"], batch["segments"]
        hidden = self.words(ids)
        hidden[ids == mixed_rows.mark_id()] = self.patches(batch["pixel_values"].reshape(-1, self.patches.in_features))
        hidden = hidden + sum(axis(batch["positions"][:, at]) for at, axis in enumerate(self.axes))
        apart = (segments[:, :, None] != segments[:, None, :]) | torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool()
        return self.head(self.block(hidden, src_mask=apart.repeat_interleave(2, dim=0)))  # type: ignore[no-any-return]


def test_a_tiny_model_learns_from_packed_rows(tmp_path: Path) -> None:
    catalog = make(tmp_path, 30)
    torch.manual_seed(0)
    model = Small(mixed_rows.tokenizer().get_vocab_size())
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    losses = []
    for epoch in range(3):
        with prepared(catalog, batch_size=1, most_tokens=1_024).bind(epoch=epoch) as stream:
            for batch in stream:
                arrays = {n: torch.from_numpy(v.copy()) for n, v in batch.items() if isinstance(v, np.ndarray)}
                logits = model(arrays).flatten(0, 1)
                loss = nn.functional.cross_entropy(logits, arrays["labels"].flatten().long())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])

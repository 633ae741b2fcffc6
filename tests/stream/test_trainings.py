"""Small trainings on the CPU: each learns what chance does not, and goes on after a stop as if it had not stopped."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own name for it

import spiral_stream as sp
from tests.fixtures.scenes import VALUES, catalog, encoded, table
from tests.fixtures.sounds import encoded as wav

pytestmark = pytest.mark.usefixtures("no_threads_left")

Batch = dict[str, Any]


@dataclass(frozen=True)
class Training:
    """What is trained, on which batches."""

    plan: sp.Relation
    net: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Batch], Tensor]
    rate: float = 3e-3
    seen: Callable[[Batch], None] = lambda _: None

    def run(self, epochs: int, stop_after: int | None = None) -> tuple[nn.Module, list[float]]:
        """Train; return the net and the loss of each step. With ``stop_after``, everything is made anew after that step."""
        torch.manual_seed(0)
        net = self.net()
        optimizer = torch.optim.Adam(net.parameters(), self.rate)
        losses: list[float] = []
        stream = self.plan.to_torch()
        while stream.epoch < epochs:
            for batch in stream:
                self.seen(batch)
                loss = self.loss(net, batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                if len(losses) == stop_after:
                    break
            if len(losses) == stop_after:
                saved = stream.state_dict(), net.state_dict(), optimizer.state_dict()
                stream.close()
                stream, net = self.plan.to_torch(), self.net()
                optimizer = torch.optim.Adam(net.parameters(), self.rate)
                for part, state in zip((stream, net, optimizer), saved, strict=True):
                    part.load_state_dict(state)
        stream.close()
        return net, losses

    def check_resume(self, net: nn.Module, losses: list[float], epochs: int, stop_after: int) -> None:
        again, others = self.run(epochs, stop_after)
        assert others == losses
        assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return catalog(tmp_path_factory.mktemp("scenes") / "catalog", table())


def shuffled(made: sp.Catalog, name: str, fields: dict[str, Any], batch_size: int) -> sp.Relation:
    rows = made.table(name).sample(identity="sample_id", order=sp.GlobalShuffle(seed=3))
    return rows.collate(batch_size=batch_size, fields=fields)


def test_two_views_train_an_encoder(scenes: sp.Catalog) -> None:
    """SimCLR: of 24 images, the other view of an image is found among all. Chance is a loss of log(24)."""
    steps = (
        sp.RandomResizedCrop(24, scale=(0.5, 1.0)),
        sp.RandomHorizontalFlip(),
        sp.transforms.ColorJitter(0.2, 0.2, 0.2, 0.02),
    )
    view = partial(sp.Stack, "image", decode="image", transforms=steps, dtype="float32")
    plan = shuffled(scenes, "scenes", {name: view(view=name) for name in ("a", "b")}, 24)

    def net() -> nn.Module:
        head = (nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 32))
        return nn.Sequential(nn.Conv2d(3, 16, 5, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), *head)

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        a, b = (F.normalize(net(batch[name]), dim=1) for name in ("a", "b"))
        return F.cross_entropy(a @ b.T / 0.2, torch.arange(len(a)))

    training = Training(plan, net, loss)
    trained, losses = training.run(20)
    assert np.mean(losses[-5:]) < 0.65 * math.log(24) < 0.8 * losses[0]
    training.check_resume(trained, losses, 20, stop_after=11)


def test_masks_train_a_segmentation(scenes: sp.Catalog) -> None:
    """The values of the masks that come out are those that went in, and every class is found. Chance is log(4)."""
    moves = (
        sp.RandomResizedCrop(48, scale=(0.5, 1.0)),
        sp.transforms.RandomRotation(15, mask_fill=0),
        sp.RandomHorizontalFlip(),
    )
    fields = {
        "image": sp.Stack("image", decode="image", transforms=moves, dtype="float32"),
        "mask": sp.Stack(
            "mask", decode="image", mode="L", interpolation="nearest", transforms=moves, dtype="int64", layout="nhw"
        ),
    }
    values: set[int] = set()

    def net() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 4, 1))

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(net(batch["image"]), batch["mask"] // 80, weight=torch.tensor([0.1, 1, 1, 1]))

    def seen(batch: Batch) -> None:
        values.update(batch["mask"].unique().tolist())

    training = Training(shuffled(scenes, "scenes", fields, 8), net, loss, rate=2e-2, seen=seen)
    trained, losses = training.run(12)
    assert values == set(VALUES)
    assert np.mean(losses[-6:]) < 0.4 * math.log(4)
    training.check_resume(trained, losses, 12, stop_after=20)


def rectangles(folder: Path, rows: int = 48) -> sp.Catalog:
    """Dark images with one bright rectangle each, and its box."""
    draw, made = np.random.default_rng(0), sp.connect(str(folder))
    images, boxes = [], []
    for _ in range(rows):
        pixels = draw.integers(0, 40, (72, 90, 3), dtype=np.uint8)
        (top, high), (left, wide) = (
            (int(draw.integers(low, low + 22)), int(draw.integers(14, 26))) for low in (12, 16)
        )
        pixels[top : top + high, left : left + wide] = 255
        images.append(encoded(pixels))
        boxes.append([[left, top, left + wide, top + high]])
    kinds = pa.list_(pa.list_(pa.float32(), 4))
    found = pa.table({"sample_id": [f"r{i}" for i in range(rows)], "image": images, "boxes": pa.array(boxes, kinds)})
    made.register("rectangles", sp.Arrow(found), semantic={"image": "image/jpeg-ref"})
    return made


def test_boxes_train_a_detector(tmp_path: Path) -> None:
    """A box coincides with the pixels of its rectangle after every transform; a mean box is twice as far off as a learnt one."""
    moves = [sp.RandomResizedCrop(48, scale=(0.5, 1.0)), sp.RandomHorizontalFlip(), sp.transforms.ColorJitter(0.1)]
    fields = {
        "image": sp.Stack("image", decode="image", transforms=moves, dtype="float32"),
        "boxes": sp.fields.Boxes("boxes", of="image"),
    }
    plan = shuffled(rectangles(tmp_path), "rectangles", fields, 16)
    targets: list[Tensor] = []

    def seen(batch: Batch) -> None:
        for image, boxes in zip(batch["image"], batch["boxes"], strict=True):
            bright = (image.amin(0) > 0.5).nonzero()
            if not boxes.any():  # cropped away
                assert not len(bright)
                continue
            (top, left), (bottom, right) = bright.amin(0).tolist(), (bright.amax(0) + 1).tolist()
            assert (boxes[0] - torch.tensor([left, top, right, bottom])).abs().max() <= 1.01
            targets.append(boxes[0] / 48)

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 4))

        def forward(self, images: Tensor) -> Tensor:
            gray = (images.mean(1) > 0.5).float()
            return self.head(torch.cat([gray.amax(1), gray.amax(2)], dim=1))

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        there = batch["boxes"][:, 0].any(dim=1)
        return F.l1_loss(net(batch["image"])[there], batch["boxes"][there, 0] / 48)

    training = Training(plan, Detector, loss, rate=1e-2, seen=seen)
    trained, losses = training.run(16)
    every = torch.stack(targets)
    assert np.mean(losses[-6:]) < 0.5 * (every - every.mean(0)).abs().mean().item()
    training.check_resume(trained, losses, 16, stop_after=10)


def test_tones_train_a_classifier_of_sounds(tmp_path: Path) -> None:
    """Four pitches in noise, of any loudness and phase, heard from a random place. Chance is log(4)."""
    draw, rate, pitches = np.random.default_rng(0), 8_000, (220, 440, 880, 1760)
    rows, times = [], np.arange(8_000) / 8_000
    for at in range(48):
        wave = draw.uniform(0.1, 0.6) * np.sin(2 * np.pi * (pitches[at % 4] * times + draw.random()))
        wave += draw.normal(0, 0.05, len(times))
        data = wav(wave[None].clip(-1, 1), "wav", "pcm_s16le", rate)
        rows.append({"sample_id": f"t{at}", "sound": data, "label": at % 4})
    made = sp.connect(str(tmp_path))
    made.register("tones", sp.Arrow(pa.Table.from_pylist(rows)), semantic={"sound": "audio/ref"})
    part = {"sample_rate": rate, "sequence_length": 512, "random_start": True}
    fields = {"sound": sp.Stack("sound", decode="audio", **part), "label": sp.Stack("label")}

    class Listener(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(257, 4)

        def forward(self, sounds: Tensor) -> Tensor:
            return self.head(torch.fft.rfft(sounds[:, 0]).abs().log1p())

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(net(batch["sound"]), batch["label"])

    training = Training(shuffled(made, "tones", fields, 16), Listener, loss, rate=2e-2)
    trained, losses = training.run(8)
    assert np.mean(losses[-6:]) < 0.2 * math.log(4)
    training.check_resume(trained, losses, 8, stop_after=13)

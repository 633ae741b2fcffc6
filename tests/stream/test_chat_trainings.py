"""Small trainings of text on the CPU: each learns, and a resumed run equals an unbroken one."""

import io
import multiprocessing
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own name for it

import spiral_stream as sp
from spiral_stream.transforms.text import splitting
from tests.fixtures import chats

pytestmark = [
    pytest.mark.usefixtures("no_threads_left"),
    pytest.mark.filterwarnings("ignore:(collate. batch_size|iter. rank):spiral_stream.SpiralWarning"),
]
Loss = Callable[[nn.Module, dict[str, Any]], Tensor]
Run = tuple[list[float], list[Tensor]]
VOCABULARY = 700


class Language(nn.Module):
    """Predicts the next token of the last two."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = nn.Embedding(VOCABULARY, 24), nn.Embedding(VOCABULARY, 24)
        self.out = nn.Linear(24, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        before = F.pad(ids, (1, 0))[:, :-1]
        logits: Tensor = self.out(torch.tanh(self.near(ids) + self.far(before)))
        return logits


def train(
    plan: sp.Relation,
    net: Callable[[], nn.Module],
    loss_of: Loss,
    steps: int,
    stop_after: int | None = None,
    ranks: tuple[int, int] = (0, 1),
) -> Run:
    """Losses and weights after some steps. With ``stop_after``, everything is made anew after that step."""
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    stream = bound(plan, ranks)
    losses: list[float] = []
    while len(losses) < steps:
        for batch in stream:
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            if ranks[1] > 1:
                for each in model.parameters():
                    torch.distributed.all_reduce(each.grad)
            optimizer.step()
            losses.append(loss.item())
            if len(losses) in (steps, stop_after):
                break
        if len(losses) == stop_after:
            saved = stream.state_dict(), model.state_dict(), optimizer.state_dict()
            stream.close()
            stream, model = bound(plan, ranks), net()
            optimizer = torch.optim.Adam(model.parameters(), 1e-2)
            for part, state in zip((stream, model, optimizer), saved, strict=True):
                part.load_state_dict(state)
    stream.close()
    return losses, [each.detach() for each in model.parameters()]


def bound(plan: sp.Relation, ranks: tuple[int, int]) -> Any:
    stream = plan.to_torch()
    stream.bind(data_parallel_rank=ranks[0], data_parallel_world_size=ranks[1])
    return stream


def check(unbroken: Run, resumed: Run, falls_to: float) -> None:
    losses, weights = unbroken
    assert np.mean(losses[-4:]) < falls_to * np.mean(losses[:4])
    assert resumed[0] == losses
    assert all(torch.equal(a, b) for a, b in zip(weights, resumed[1], strict=True))


def tuned(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    """The loss of supervised fine-tuning: at the assistant's tokens only."""
    assert (batch["labels"] >= 0).any()
    return F.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())


def fine_tuning(folder: Path) -> sp.Relation:
    catalog = sp.connect(str(folder / "catalog"))
    chat = sp.transforms.ChatTemplate("messages", tokenizer="chat")
    mapped = catalog.table("chats").sample(identity="sample_id", order=sp.GlobalShuffle(seed=1))
    return mapped.map(chat >> ("tokens", "loss_mask")).collate(
        formation=sp.batching.Packed(max_tokens=192),
        batch_size=2,
        fields={"input_ids": sp.Pad("tokens"), "labels": sp.ShiftedLabels("tokens", mask="loss_mask")},
    )


def one_rank(rank: int, world: int, folder: Path, port: int) -> None:
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    plan = fine_tuning(folder)
    runs = [train(plan, Language, tuned, 16, stop, (rank, world)) for stop in (None, 5)]
    check(*runs, falls_to=0.8)
    torch.save(runs[0][1], folder / f"weights-{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_fine_tune_on_packed_conversations(tmp_path: Path) -> None:
    chats.catalog_of(tmp_path, chats.table(chats.conversations(120)))
    with fine_tuning(tmp_path).to_torch() as stream:
        stream.materialize()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")

    processes = [context.Process(target=one_rank, args=(rank, 2, tmp_path, port)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)

    assert [process.exitcode for process in processes] == [0, 0]
    ranks = [torch.load(tmp_path / f"weights-{rank}.pt") for rank in (0, 1)]
    assert all(torch.equal(a, b) for a, b in zip(*ranks, strict=True))


@pytest.mark.slow
def test_preference_pairs_train_by_the_loss_of_dpo(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = {name: [" ".join(rng.choice(chats.WORDS, int(rng.integers(2, 7)))) for _ in range(48)] for name in "pcr"}
    chosen, rejected = [f"yes {each}" for each in words["c"]], [f"no {each}" for each in words["r"]]
    rows = chats.table(chats.conversations(48), prompt=words["p"], chosen=chosen, rejected=rejected)
    plan = chats.catalog_of(tmp_path, rows).table("chats").sample(identity="sample_id", order=sp.GlobalShuffle(seed=1))
    for side in ("chosen", "rejected"):
        chat = sp.transforms.ChatTemplate(side, prompt="prompt", tokenizer="chat")
        plan = plan.map(chat >> (f"{side}_tokens", f"{side}_mask"))
    fields: dict[str, Any] = {
        "chosen": sp.Pad("chosen_tokens", also="rejected_tokens"),
        "rejected": sp.Pad("rejected_tokens"),
    }
    fields |= {
        f"{each}_labels": sp.ShiftedLabels(f"{each}_tokens", mask=f"{each}_mask") for each in ("chosen", "rejected")
    }
    plan = plan.collate(batch_size=12, fields=fields)

    def preferred(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        """One call of the model for both sides, chosen first: [2B, T], as TRL has it."""
        ids = torch.cat([batch["chosen"], batch["rejected"]])
        labels = torch.cat([batch["chosen_labels"], batch["rejected_labels"]])
        losses = F.cross_entropy(model(ids).transpose(1, 2), labels, reduction="none").sum(1)
        good, bad = losses.chunk(2)
        return -F.logsigmoid(0.1 * (bad - good)).mean()

    runs = [train(plan, Language, preferred, 16, stop) for stop in (None, 6)]

    check(*runs, falls_to=0.5)


class Pairs(nn.Module):
    """Image and caption as vectors of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(3, 16), nn.Embedding(VOCABULARY, 16)

    def forward(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        mask = batch["mask"].unsqueeze(2)
        text = (self.text(batch["ids"]) * mask).sum(1) / mask.sum(1)
        image = self.image(batch["image"].float().mean((2, 3)) / 255)
        return F.normalize(image, dim=1), F.normalize(text, dim=1)


def test_images_find_their_captions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "COVERED", (range(0x3100),))  # captions are ASCII; a whole proof takes five CPU s
    colors = {"red": (220, 20, 20), "green": (20, 220, 20), "blue": (20, 20, 220), "white": (230, 230, 230)}
    names = [list(colors)[k % 4] for k in range(32)]
    rows = {"sample_id": [f"{k}" for k in range(32)], "caption": [f"a {name} square" for name in names]}
    table = pa.table({**rows, "image": [_png(colors[name]) for name in names]})
    catalog = chats.catalog_of(tmp_path, chats.table(chats.conversations(1)))
    catalog.register("pairs", sp.Arrow(table), identity="sample_id", semantic={"image": "image/jpeg-ref"})
    plan = catalog.table("pairs").sample(order=sp.GlobalShuffle(seed=1))
    plan = plan.map(sp.Tokenize("caption", tokenizer="chat", max_length=77) >> "tokens").collate(
        batch_size=8,
        fields={
            "image": sp.Stack("image", decode="image", crop=8),
            "ids": sp.Pad("tokens", length=77),
            "mask": sp.PadMask("tokens"),
        },
    )

    def contrastive(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        image, text = model(batch)
        assert batch["ids"].shape == (8, 77)
        logits = 10 * image @ text.T
        alike = (batch["ids"][:, None] == batch["ids"][None]).all(2).float()
        return F.cross_entropy(logits, alike / alike.sum(1, keepdim=True))

    runs = [train(plan, Pairs, contrastive, 24, stop) for stop in (None, 6)]

    check(*runs, falls_to=0.8)


def _png(color: tuple[int, int, int]) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (12, 12), color).save(out, "PNG")
    return out.getvalue()

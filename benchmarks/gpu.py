"""`python -m benchmarks.gpu FOLDER`: training steps on a GPU, fed by streams, beside the same step on a batch that stays there.

A feed is as good as the share of the pure step's speed that is left with it. ``link`` sends memory that nobody writes, so it
shows what copying alone costs; ``loader`` is torch's DataLoader over the same files, with pinned memory. Tokens come from a
column of lists. With ``--timeline`` a picture shows copies and kernels side by side.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import nn

from benchmarks.interleaved import CONSOLE, ROOT, markdown, show, write_report
from benchmarks.peers.workload import BATCH, MEAN, SIDE, STD, Data

Feed = Iterator[tuple[torch.Tensor, torch.Tensor]]
CLASSES, VOCABULARY = 1_000, 1_024
COLUMNS = ("step", "feed", "steps per s", "of the pure step", "items per s", "sent, GB/s", "CPU ms per step")


@dataclass(frozen=True)
class Run:
    """What was measured of one feed."""

    steps: int
    wall_s: float
    cpu_s: float
    items: int
    sent: int  # bytes


# ---- steps


class Gpt(nn.Module):
    """A small decoder: learned positions, pre-norm blocks, a head over 1,024 tokens."""

    def __init__(self, width: int = 256, layers: int = 4, longest: int = 8_192) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(longest, width)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids_BT: torch.Tensor) -> torch.Tensor:
        length = ids_BT.shape[1]
        hidden = self.tokens(ids_BT % VOCABULARY) + self.places.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=ids_BT.device, dtype=hidden.dtype)
        logits: torch.Tensor = self.head(self.blocks(hidden, mask, is_causal=True))
        return logits.movedim(-1, 1)


def model_of(name: str) -> nn.Module:
    """ResNet-50, a ViT of 22 million weights, a small GPT; ``tiny`` only shows that the program runs."""
    import torchvision

    if name == "resnet50":
        made: nn.Module = torchvision.models.resnet50()
    elif name == "vit":
        made = torchvision.models.VisionTransformer(SIDE, 16, 12, 6, 384, 1_536)
    elif name == "gpt":
        made = Gpt()
    else:
        made = nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(192, CLASSES))
    return made


def step_of(name: str, device: torch.device) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """One step of training in bfloat16, as fast as PyTorch does it without compiling."""
    model = model_of(name).to(device)
    if name == "resnet50":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, fused=device.type == "cuda")

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            found = model(x.contiguous(memory_format=torch.channels_last) if name == "resnet50" else x)
            loss = nn.functional.cross_entropy(found.float(), y % found.shape[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


# ---- feeds


def resident(some: Feed) -> Feed:
    """One batch, again and again."""
    x, y = next(some)
    while True:
        yield x, y


def spiral(data: Data, cache: str, device: torch.device) -> Feed:
    from benchmarks.peers.spiral import program

    stream = program(data, cache)
    stream.materialize()
    stream.bind(device=str(device), data_parallel_rank=0, data_parallel_world_size=1)
    while True:
        for batch in stream:
            yield batch["image"], batch["label"].to(device, non_blocking=True)


def tokens(folder: Path, budget: int, device: torch.device) -> Feed:
    """Padded batches of ``budget`` places, from a column of lists."""
    import pyarrow as pa

    import spiral_stream as sp

    numbers = np.random.default_rng(7)
    lengths = np.clip(numbers.lognormal(6.0, 0.8, 40_000).astype(np.int32), 8, 8_000)
    values = pa.array(numbers.integers(0, VOCABULARY, int(lengths.sum())), pa.int32())
    ids = pa.ListArray.from_arrays(np.append(0, np.cumsum(lengths)).astype(np.int32), values)
    catalog = sp.connect(str(folder / "tokens"))
    catalog.register("ids", sp.Arrow(pa.table({"id": range(len(lengths)), "tokens": ids})), identity="id")
    stream = (
        catalog.table("ids")
        .sample(order=sp.GlobalShuffle(seed=3))
        .collate(
            batch_size=None,
            formation=sp.WindowedBucket(16_384, [sp.BucketKey("len(tokens)")], sp.BatchBudget(max_tokens=budget)),
            last=sp.KeepPartial,
            fields={"ids": sp.Pad("tokens"), "labels": sp.ShiftedLabels("tokens", ignore_index=0)},
        )
        .to_torch(prefetch=2, device=str(device))
    )
    while True:
        for batch in stream:
            yield batch["ids"], batch["labels"]


def loader(data: Data, device: torch.device) -> Feed:
    """torch's DataLoader: whole batches in worker processes, pinned, finished on the device."""
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder

    from benchmarks.peers.torch_loader import Batched, _as_it_is
    from benchmarks.peers.workload import cores
    from spiral_stream.adapters.cuda import Finisher

    batches = DataLoader(
        Batched(ImageFolder(str(data.folder / "train"))), BATCH, shuffle=True, drop_last=True, num_workers=cores(),
        collate_fn=_as_it_is, persistent_workers=True, pin_memory=device.type == "cuda",
    )  # fmt: skip
    finish = Finisher(np.float32(MEAN), np.float32(STD), "float16", "nchw", device)
    while True:
        for pixels, labels in batches:
            yield finish(pixels.to(device, non_blocking=True)), labels.to(device, non_blocking=True)


def link(device: torch.device) -> Feed:
    """The device path alone: slots that nobody fills."""
    from functools import partial

    from spiral_stream.adapters.cuda import CudaLink, Finisher, numbered, pinned_for
    from spiral_stream.adapters.device_copies import CopiesAhead
    from spiral_stream.runtime.batch.pending_batch import Batch
    from spiral_stream.runtime.slots import Slots

    class Unwritten:
        def __init__(self) -> None:
            self._slots = Slots(pinned_for(numbered(device)))

        def get(self) -> Batch:
            pixels = self._slots.take((BATCH, SIDE, SIDE, 3), "uint8", BATCH)
            return Batch(range(1), {"image": pixels, "label": self._slots.take((BATCH,), "int64", BATCH)})

        def at_once(self) -> bool:
            return True

    ends = {"image": partial(Finisher, np.float32(MEAN), np.float32(STD), "float16", "nchw")}
    begin = CudaLink(numbered(device), frozenset({"image", "label"}), ends).begin
    for batch in CopiesAhead(begin, 2).run(Unwritten()):
        yield batch["image"], batch["label"].abs()


def feeds_of(step: str, data: Data, budget: int, device: torch.device) -> dict[str, Callable[[], Feed]]:
    if step == "gpt":
        stream = lambda: tokens(data.root, budget, device)  # noqa: E731
        return {"resident": lambda: resident(stream()), "Spiral, lists": stream}
    raw = lambda: spiral(data, "raw", device)  # noqa: E731
    out = {"resident": lambda: resident(raw()), "Spiral, Raw cache": raw}
    out["Spiral, Jpeg cache"] = lambda: spiral(data, "jpeg", device)
    out["torch DataLoader"] = lambda: loader(data, device)
    if device.type == "cuda":
        out["link"] = lambda: link(device)
    return out


# ---- measuring


def measure(step: Callable[..., None], feed: Feed, steps: int, device: torch.device) -> Run:
    """Run steps behind a warm-up; the clock stops when the device is done."""
    for _ in range(max(2, steps // 10)):
        step(*next(feed))
    settle(device)
    wall, cpu, items, sent = time.perf_counter(), time.process_time(), 0, 0
    for _ in range(steps):
        x, y = next(feed)
        step(x, y)
        items += x.shape[0] if x.dim() == 4 else x.numel()
        sent += (
            x.numel() * (1 if x.dim() == 4 else x.element_size()) + y.numel() * y.element_size()
        )  # pixels travel as uint8
    settle(device)
    return Run(steps, time.perf_counter() - wall, time.process_time() - cpu, items, sent)


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def host_rate(device: torch.device, nbytes: int = 1 << 28) -> float:
    """GB per second from pinned memory to the device, by PyTorch's own copy."""
    host, there = (
        torch.empty(nbytes, dtype=torch.uint8, pin_memory=True),
        torch.empty(nbytes, dtype=torch.uint8, device=device),
    )
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    there.copy_(host, non_blocking=True)
    begun.record()
    for _ in range(10):
        there.copy_(host, non_blocking=True)
    ended.record()
    ended.synchronize()
    return float(10 * nbytes / begun.elapsed_time(ended) / 1e6)


def timeline(step: Callable[..., None], feed: Feed, path: Path) -> float:
    """Draw five steps: copies above, kernels below. Return the share of the copies' time in which a kernel ran."""
    import matplotlib.pyplot as plt
    from torch.autograd import DeviceType

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(5):
            step(*next(feed))
        torch.cuda.synchronize()
    spans: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for each in seen.events():
        if each.device_type == DeviceType.CUDA:
            spans["HtoD" in each.name].append((each.time_range.start, each.time_range.end))
    figure, axes = plt.subplots(figsize=(10, 2))
    for row, copies in enumerate((False, True)):
        axes.broken_barh([(a / 1e3, (b - a) / 1e3) for a, b in spans[copies]], (row, 0.8), color=f"C{row}")
    axes.set(yticks=(0.4, 1.4), yticklabels=("kernels", "copies to the device"), xlabel="ms")
    figure.savefig(path, bbox_inches="tight", dpi=120)
    ends = np.array(sorted(spans[False]))
    inside = sum(
        float(np.clip(np.minimum(b, ends[:, 1]) - np.maximum(a, ends[:, 0]), 0, None).sum()) for a, b in spans[True]
    )
    return inside / max(1e-9, sum(b - a for a, b in spans[True]))


def main(
    folder: Annotated[Path, typer.Argument(help="where images and caches are kept")],
    steps: Annotated[str, typer.Option(help="comma-separated: resnet50, vit, gpt, tiny")] = "resnet50,vit,gpt",
    images: Annotated[int, typer.Option(help="how many images are drawn")] = 10_000,
    count: Annotated[int, typer.Option(help="steps measured per feed and repetition")] = 60,
    repeats: Annotated[int, typer.Option(min=1, help="repetitions, feeds in turn")] = 3,
    budget: Annotated[int, typer.Option(help="places of a batch of tokens")] = 2_000_000,
    device: Annotated[str, typer.Option(help="cuda, or cpu to see that the program runs")] = "cuda",
    out: Annotated[Path, typer.Option(help="folder of the report")] = ROOT / "docs" / "benchmarks",
    picture: Annotated[bool, typer.Option("--timeline/--no-timeline", help="draw copies and kernels")] = True,
) -> None:
    """Measure what is left of a training step's speed when it is fed."""
    from spiral_assets.corpora.images import write_image_relation

    data, where = Data(folder.resolve()), torch.device(device)
    if where.type == "cuda" and where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    write_image_relation(data.tables, images, form="lance", val_every=0)
    write_image_relation(data.folder, images, form="folder", val_every=0)
    lines: list[tuple[str, ...]] = []
    notes = [f"- host to device, PyTorch's own copy: {host_rate(where):.1f} GB/s"] if where.type == "cuda" else []
    for name in steps.split(","):
        step, feeds = step_of(name, where), feeds_of(name, data, budget, where)
        running = {each: make() for each, make in feeds.items()}
        runs: dict[str, list[Run]] = {each: [] for each in feeds}
        for _ in range(repeats):
            for each, feed in running.items():
                runs[each].append(measure(step, feed, count, where))
        best = {each: min(done, key=lambda run: run.wall_s) for each, done in runs.items()}
        pure = best["resident"]
        for each, run in best.items():
            sent = "" if each == "resident" else f"{run.sent / run.wall_s / 1e9:.2f}"
            lines.append((
                name, each, f"{run.steps / run.wall_s:.2f}", f"{pure.wall_s / run.wall_s:.1%}",
                f"{run.items / run.wall_s:,.0f}", sent, f"{1e3 * run.cpu_s / run.steps:.1f}",
            ))  # fmt: skip
        if picture and where.type == "cuda":
            fed = next(each for each in running if each.startswith("Spiral"))
            out.mkdir(parents=True, exist_ok=True)
            share = timeline(step, running[fed], out / f"gpu_{name}.png")
            notes.append(
                f"- {name}, {fed}: kernels ran during {share:.0%} of the copies' time; ![]({f'gpu_{name}.png'})"
            )
    show("Training steps", COLUMNS, lines)
    for note in notes:
        CONSOLE.print(note)
    there = torch.cuda.get_device_name(where) if where.type == "cuda" else "CPU"
    head = [
        f"# Training steps on {there}",
        "",
        f"The best of {repeats} turns of {count} steps. `python -m benchmarks.gpu FOLDER`.",
        "",
    ]
    write_report(out, "gpu", [*head, *markdown(COLUMNS, lines), *notes, ""])


if __name__ == "__main__":
    typer.run(main)

"""Batches of the three programs and of ids of 16 bits, small: as they lie on the host, and as the host would deliver them."""

import json
from collections.abc import Callable, Generator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import spiral_stream as sp
from spiral_stream.plan.nodes import Deliver
from spiral_stream.runtime.delivery import Delivery, Devices, Feed
from tests.fixtures import clips
from tests.fixtures.programs import image_catalog, image_fields, image_program, image_transforms
from tests.stream.explain import footages, mixtures

Fields = dict[str, Any]
RECORDED = Path(__file__).parent / "recorded"
NAMES = ("image", "text", "video", "ids")
BATCHES = 2  # of each that are recorded


def image(folder: Path) -> tuple[Deliver, sp.Catalog]:
    catalog = image_catalog(folder, stored=True)
    return image_program(
        catalog, batch_size=4, fields=image_fields(image_transforms(24), None)
    ).to_numpy().plan, catalog


def text(folder: Path) -> tuple[Deliver, sp.Catalog]:
    catalog = mixtures.make_catalog(folder)
    return mixtures.program(catalog, formation=mixtures.bucketed(256)).plan, catalog


def video(folder: Path) -> tuple[Deliver, sp.Catalog]:
    made = clips.stored_catalog(folder)
    small = {"sequence_length": 4, "resize_shorter": 24, "crop": 16}
    return footages.program(made.catalog, max_frames=16, window_size=64, **small).plan, made.catalog


def ids(folder: Path) -> tuple[Deliver, sp.Catalog]:
    """Ids of every size that uint16 holds, with labels, segments and positions, in packed rows."""
    catalog = sp.connect(str(folder / "ids"))
    rng = np.random.default_rng(5)
    lists = [rng.integers(0, 2**16 - 1, 1 + row % 19).tolist() for row in range(64)]
    table = pa.table({"name": range(64), "tokens": pa.array(lists, pa.list_(pa.uint16()))})
    catalog.register("rows", sp.Arrow(table), identity="name")
    fields = {
        "ids": sp.Pad("tokens", dtype="uint16", pad_value=2**16 - 1),
        "labels": sp.ShiftedLabels("tokens", dtype="uint16", ignore_index=2**16 - 1),
        "segments": sp.fields.Segments("tokens", dtype="uint16"),
        "positions": sp.fields.Positions("tokens", dtype="uint16"),
    }
    sampled = catalog.table("rows").sample(order=sp.GlobalShuffle(seed=2), epoch=0)
    formed = sp.batching.Packed(max_tokens=32, window_size=32)
    return sampled.collate(batch_size=4, formation=formed, fields=fields).to_numpy().plan, catalog


FAMILIES: dict[str, Callable[[Path], tuple[Deliver, sp.Catalog]]] = {
    "image": image, "text": text, "video": video, "ids": ids,
}  # fmt: skip


class Sent(Delivery):
    """Keeps batches as they are sent to a device, and what it takes to finish their images; nothing for ids of 16 bits."""

    def on_host(self, fields: Fields) -> Any:
        return fields

    def need(self, devices: Devices) -> None:
        del devices

    def split(self, devices: Devices) -> frozenset[str]:
        return frozenset(devices)

    def delivered(self, feed: Feed, devices: Devices, stages: Any) -> Generator[Any, None, None]:
        ends = {}
        for stage in (each for each in stages.fields if each.ends_on_device):
            _, mean, std = stage.program.on_device()
            ends[stage.name] = [mean.tolist(), std.tolist(), stage.spec.dtype, stage.program.layout]
        ends |= {stage.name: [] for stage in stages.fields if stage.spec.widened}
        while (batch := feed.get()) is not None:
            yield batch.fields, ends


def record(name: str, folder: Path) -> dict[str, Any]:
    """Return the arrays of the first batches, sent and expected, and the finishers, by the names of a recorded file."""
    node, catalog = FAMILIES[name](folder)
    out: dict[str, Any] = {}
    with sp.PreparedStream(node, catalog) as host, sp.PreparedStream(node, catalog, delivery=Sent()) as sent:
        for number, (expected, (fields, ends)) in enumerate(islice(zip(host, sent, strict=True), BATCHES)):
            out["ends"] = np.array(json.dumps(ends))
            for field, value in fields.items():
                if isinstance(value, np.ndarray):
                    out[f"{number}.sent.{field}"] = value.copy()
                    out[f"{number}.expected.{field}"] = expected[field].copy()
    return out


if __name__ == "__main__":  # records anew: python -m tests.gpu.families [NAME ...]
    import sys
    import tempfile

    RECORDED.mkdir(exist_ok=True)
    for each in sys.argv[1:] or NAMES:
        np.savez_compressed(RECORDED / f"{each}.npz", **record(each, Path(tempfile.mkdtemp())))

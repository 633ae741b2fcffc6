"""Packed batches of text with images: CPU seconds next to those of Qwen2-VL's own processor, in turns.

Both read the same rows: conversations with 0 to 8 JPEGs of 200 to 600 pixels a side. Ours is a stream's batch: ids that were kept
once, images read, decoded, resized, cut and placed, with grids and positions. Theirs is what a collate function does: template,
images opened and processed row by row, ids padded into the same packed rows, positions by the model's own code.
"""

import argparse
import json
import tempfile
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image

import spiral_stream as sp
from tests.fixtures import mixed_rows, vision_processors


def photo(draw: np.random.Generator, height: int, width: int) -> bytes:
    """A JPEG with structure, so that it costs what photos cost."""
    small = draw.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    out = BytesIO()
    Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
    return out.getvalue()


def rows(count: int) -> Any:
    """Conversations whose images are photos."""
    table = mixed_rows.rows(count, sides=(200, 600), longest=900, seed=5)
    draw = np.random.default_rng(1)
    made = [[photo(draw, s["height"], s["width"]) for s in row] for row in table["sizes"].to_pylist()]
    at = table.schema.get_field_index("images")
    return table.set_column(at, table.schema.field(at), pa.array(made, table.schema.field(at).type))


def stream_of(catalog: sp.Catalog, layout: sp.fields.PatchLayout) -> sp.PreparedStream:
    """Ours."""
    images = sp.fields.FlatImages(
        "images", layout, tokens="tokens", token_id=mixed_rows.mark_id(), transforms=[vision_processors.NORMALIZE]
    )
    fields = {
        "input_ids": sp.Pad("tokens"),
        "segments": sp.fields.Segments("tokens"),
        "positions": sp.fields.GridPositions("tokens", images="images"),
        "id": sp.List("id"),
        "pixel_values": images,
        "grids": sp.fields.ImageGrids("images"),
    }
    formation = sp.batching.Packed(4_096, max_patches=16_000, window_size=512)
    plan = mixed_rows.tokens(catalog, layout, order=sp.GlobalShuffle(seed=3)).collate(
        batch_size=1, last=sp.KeepPartial, formation=formation, fields=fields
    )
    return plan.to_numpy(prefetch=1)


def theirs(processor: Any, found: list[dict[str, Any]]) -> int:
    """The same batch by the processor."""
    made = [vision_processors.processed(processor, row) for row in found]
    ids, positions, at = torch.zeros(4_096, dtype=torch.int64), torch.zeros(3, 4_096, dtype=torch.int64), 0
    for each in made:
        count = each["input_ids"].shape[1]
        ids[at : at + count] = each["input_ids"][0]
        positions[:, at : at + count] = vision_processors.positions(each)
        at += count
    pixels = torch.cat([torch.empty(0, 1_176), *[each["pixel_values"] for each in made if "pixel_values" in each]])
    return len(pixels)


def main() -> None:
    """Measure, and print one line of JSON."""
    options = argparse.ArgumentParser()
    options.add_argument("--rows", type=int, default=120)
    options.add_argument("--repeats", type=int, default=5)
    given = options.parse_args()
    torch.set_num_threads(1)
    table = rows(given.rows)
    by_id = {row["id"]: row for row in table.to_pylist()}
    most = 28 * 28 * 256
    layout = sp.fields.PatchLayout(max_pixels=most)
    processor = vision_processors.qwen(most)
    ours, other, images, batches = [], [], 0, 0
    with tempfile.TemporaryDirectory() as folder:
        catalog = mixed_rows.make_catalog(Path(folder), table)
        with stream_of(catalog, layout) as stream:
            stream.materialize(lambda _: None)
        for turn in range(given.repeats + 1):
            with stream_of(catalog, layout) as stream:
                begin = time.process_time()
                got = [(batch["id"][0], len(batch["pixel_values"]), len(batch["grids"])) for batch in stream]
                mine = time.process_time() - begin
            begin = time.process_time()
            counts = [theirs(processor, [by_id[one] for one in ids]) for ids, _, _ in got]
            rival = time.process_time() - begin
            assert counts == [each for _, each, _ in got]
            if turn:  # the first turn opens files and imports
                ours.append(mine / len(got))
                other.append(rival / len(got))
            images, batches = sum(each for *_, each in got), len(got)
    print(json.dumps({"batches": batches, "images": images, "ours_ms": _three(ours), "theirs_ms": _three(other)}))


def _three(seconds: list[float]) -> list[float]:
    return [round(1_000 * float(f(seconds)), 1) for f in (np.min, np.median, np.max)]


if __name__ == "__main__":
    main()

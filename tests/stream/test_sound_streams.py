"""Streams of sound through the public door: segments, random parts, mixtures and bad files."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import spiral_stream as sp
from spiral_stream.decoders.sound.sound import decode_sound
from spiral_stream.decoders.sound.sound_selection import SoundSelection
from spiral_stream.testing import same
from tests.fixtures.sound_streams import RATE, make_catalog, random_parts
from tests.fixtures.sounds import recording


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("sounds"))


def plan(catalog: sp.Catalog, name: str, batch_size: int = 5, **options: Any) -> Any:
    field = sp.Stack("sound", decode="audio", sample_rate=RATE, sequence_length=2_000, **options)
    sampled = catalog.table(name).sample(order=sp.GlobalShuffle(seed=5))
    return sampled.collate(batch_size=batch_size, fields={"id": sp.List("id"), "x": field})


@pytest.mark.parametrize("name", ["files", "parts"])
def test_batches_hold_what_the_decoder_gives(catalog: sp.Catalog, name: str, tmp_path: Path) -> None:
    with plan(catalog, name, channels=2, centre=True).to_numpy() as stream:
        assert stream.spec()["x"].shape == (2, 2_000)
        batch = next(iter(stream))
    rows = catalog.table("parts").to_arrow()
    segment = (100, 300) if name == "parts" else None
    chosen = SoundSelection(RATE, 2_000, 2, "centre")
    data = dict(zip(rows["id"].to_pylist(), rows["sound"].to_pylist(), strict=True))
    for row, found in zip(batch["id"], batch["x"], strict=True):
        assert same(found, decode_sound(data[row], chosen, segment_ms=segment))


def test_bfloat16_is_what_float32_rounds_to(catalog: sp.Catalog) -> None:
    with plan(catalog, "files", dtype="bfloat16").to_torch() as half, plan(catalog, "files").to_torch() as whole:
        assert half.spec()["x"].dtype == "bfloat16"
        assert torch.equal(next(iter(half))["x"], next(iter(whole))["x"].to(torch.bfloat16))


def test_random_parts_are_others_in_each_epoch(catalog: sp.Catalog) -> None:
    with random_parts(catalog) as stream:
        first, second = (np.concatenate([b["x"] for b in stream]) for _ in range(2))
    assert not np.array_equal(np.sort(first.sum(axis=(1, 2))), np.sort(second.sum(axis=(1, 2))))


@pytest.mark.parametrize("form", ["inline", "file"])
def test_a_wav_with_a_false_header_is_named_or_left_out(form: str, tmp_path: Path) -> None:
    data = recording("wav", 0.5)[0]
    at = data.index(b"data") + 4
    false = data[:at] + struct.pack("<I", 10 * len(data)) + data[at + 4 :]
    (tmp_path / "good.wav").write_bytes(data)
    (tmp_path / "false.wav").write_bytes(false)
    sounds = [data, false] if form == "inline" else ["good.wav", "false.wav"]
    made = sp.connect(tmp_path / "catalog")
    table = pa.table({"id": [0, 1], "sound": sounds})
    made.register("sounds", sp.Arrow(table, base=tmp_path), identity="id", semantic={"sound": "audio/ref"})
    with (
        plan(made, "sounds", 2).to_numpy() as stream,
        pytest.raises(
            sp.errors.DataError, match=r"sample id=1: audio: the WAV claims [\d,]+ bytes of samples and holds [\d,]+"
        ),
    ):
        next(iter(stream))
    field = sp.Stack("sound", decode="audio", sample_rate=RATE, sequence_length=2_000)
    sampled = made.table("sounds").sample(order=sp.Sequential())
    skipping = sampled.collate(batch_size=2, fields={"x": field}, on_error="skip", error_budget=1)
    with skipping.to_numpy() as stream:
        assert next(iter(stream))["x"].shape == (1, 1, 2_000)
        assert stream.quarantine()["id"].to_pylist() == [1]


def test_a_bad_recording_is_named_or_left_out(catalog: sp.Catalog) -> None:
    with (
        plan(catalog, "bad", 4).to_numpy() as stream,
        pytest.raises(sp.errors.DataError, match=r"sample id=1: audio: 13 bytes cannot be decoded"),
    ):
        next(iter(stream))
    field = sp.Stack("sound", decode="audio", sample_rate=RATE, sequence_length=2_000)
    fields = {"id": sp.List("id"), "x": field}
    sampled = catalog.table("bad").sample(order=sp.GlobalShuffle(seed=5))
    with sampled.collate(batch_size=4, fields=fields, on_error="skip", error_budget=1.0).to_numpy() as stream:
        assert sorted(next(iter(stream))["id"]) == [0, 2, 3]
        assert stream.quarantine()["reference"].to_pylist() == ["bad.wav"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"sample_rate": None}, "needs the rate and the number of values per channel. Add sample_rate=16_000"),
        ({"sequence_length": None}, "Add sequence_length=16_000"),
        ({"channels": 3}, "channels=3. Give a whole number from 1 to 2"),
        ({"short": "drop"}, "short='drop' is not of sound. Give one of pad, loop"),
        ({"crop": 224}, "crop is of images and clips, and decode='audio' reads sound"),
        ({"centre": True, "random_start": True}, "centre and random_start say two places"),
        ({"dtype": "int16"}, "dtype='int16'; sound is float32 or bfloat16"),
        ({"decode": "jpeg"}, 'sample_rate is of sound. Give decode="audio"'),
    ],
)
def test_fields_that_make_no_sense_are_refused(catalog: sp.Catalog, options: dict[str, Any], found: str) -> None:
    given = {"decode": "audio", "sample_rate": RATE, "sequence_length": 100, **options}
    with pytest.raises(sp.errors.PlanError, match=found):
        catalog.table("files").sample(order=sp.Sequential()).collate(
            batch_size=2, fields={"x": sp.Stack("sound", **given)}
        )

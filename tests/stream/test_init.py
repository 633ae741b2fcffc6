"""``spiral init``: whatever lies in a folder, the program that it writes runs, and goes on where it was killed."""

import io
import json
import re
import runpy
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import spiral_stream as sp
from spiral_stream.commands import cli
from spiral_stream.storage.open import store_of
from tests.fixtures import warm
from tests.fixtures.every_source import MADE
from tests.fixtures.every_source import made as write_source
from tests.fixtures.programs import stored_images
from tests.fixtures.videos import write_video
from tests.test_packaging import checked

IMAGES = stored_images()[:8]


def classes(folder: Path) -> None:
    for k, data in enumerate(IMAGES):
        place = folder / ("cat", "dog")[k % 2] / f"{k}.jpg"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(data)


def splits(folder: Path) -> None:
    for name in ("train", "val"):
        (folder / name).mkdir()
        classes(folder / name)


def flat(folder: Path) -> None:
    for k, data in enumerate(IMAGES):
        (folder / f"{k}.jpg").write_bytes(data)


def hub(folder: Path) -> None:
    images = [{"bytes": data, "path": f"{k}.jpg"} for k, data in enumerate(IMAGES)]
    (folder / "data").mkdir()
    for split in ("train", "test"):
        table = pa.table({"image": images, "label": [k % 2 for k in range(len(images))]})
        pq.write_table(table, folder / "data" / f"{split}-00000-of-00001.parquet")


def chats(folder: Path) -> None:
    rows = [{"id": k, "messages": [{"role": "user", "content": f"say {k}"}]} for k in range(16)]
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def features(folder: Path) -> None:
    """More columns than a program has lines for, an id that repeats, and values that are missing."""
    columns: dict[str, Any] = {f"feature_{k:02d}": np.arange(16) / (k + 1) for k in range(30)}
    table = pa.table({"id": [1] * 16, **columns, "age": [None, *range(15)], "label": [k % 2 for k in range(16)]})
    pq.write_table(table, folder / "rows.parquet")


def images_in_tars(folder: Path) -> None:
    with tarfile.open(folder / "shard-000000.tar", "w") as tar:
        for k, data in enumerate(IMAGES):
            for suffix, held in (("jpg", data), ("cls", str(k % 2).encode())):
                member = tarfile.TarInfo(f"{k:04d}.{suffix}")
                member.size = len(held)
                tar.addfile(member, io.BytesIO(held))


def videos(folder: Path) -> None:
    (folder / "walk").mkdir()
    for k in range(4):
        write_video(folder / "walk" / f"{k}.mp4", frames=20)


def numbered(folder: Path) -> None:
    np.save(folder / "train.npy", np.arange(16 * 8, dtype=np.uint16).reshape(16, 8))


def library(kind: str) -> Callable[[Path], object]:
    return lambda folder: write_source(kind, folder)


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {  # how it is written, and what the program says of it
    "images": (classes, 'spiral.ImageFolder("data")'),
    "images of two splits": (splits, 'spiral.ImageFolder("data/train")'),
    "flat images": (flat, '"image": spiral.Stack(\n                "image_ref", decode="jpeg"'),
    "parquet": (library("parquet"), 'spiral.Parquet("data")'),
    "features": (features, "left out: feature_"),
    "json lines": (library("jsonl"), 'spiral.sources.Jsonl("data")'),
    "chats": (chats, "spiral.transforms.ChatTemplate"),
    "csv": (library("csv"), 'spiral.sources.Csv("data")'),
    "tars": (images_in_tars, 'spiral.sources.WebDataset("data")'),
    "mds": (library("mds"), 'spiral.sources.Mds("data")'),
    "a copy of the Hub": (hub, 'spiral.sources.HuggingFace("data", split="train")'),
    "text files": (library("text_files"), 'spiral.sources.TextFiles("data")'),
    "videos": (videos, 'spiral.sources.VideoFolder("data")'),
    "token files": (library("tokens"), 'spiral.sources.Tokens("data", length=1024)'),
    "arrays of tokens": (numbered, 'spiral.sources.Tokens("data")'),
    "vortex": (library("vortex"), 'spiral.sources.Vortex("data")'),
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, where commands are typed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPIRAL_CATALOG", raising=False)
    (tmp_path / "data").mkdir()
    return tmp_path


def typed(*words: str) -> str:
    done = CliRunner().invoke(cli.app, ["init", *words])
    if done.exception is not None:
        raise done.exception
    return done.output


@pytest.mark.parametrize("kind", KINDS)
def test_the_program_of_every_kind_of_data_runs(kind: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write, said = KINDS[kind]
    write(place / "data")

    told = typed("data")
    lines = (place / "train.py").read_text().splitlines()
    capsys.readouterr()
    ran = runpy.run_path("train.py", run_name="__main__")
    printed = capsys.readouterr().out.splitlines()

    with ran["stream"] as stream:
        assert "rows registered" in told
        assert len(lines) <= 40
        assert [line for line in lines if len(line) > 100] == []
        assert said in "\n".join(lines)
        assert stream.epoch == 1
        assert len(stream) >= 2
        assert "EXPLAIN" in printed[0]
        for number, line in enumerate(printed[-len(stream) :]):
            assert line.endswith(str(stream.ledger(number, epoch=0)[:2]))


@pytest.mark.parametrize("kind", ["images", "images of two splits", "parquet", "tars", "mds", "a copy of the Hub"])
def test_a_folder_on_a_store_gives_the_program_of_a_folder_here(
    kind: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    KINDS[kind][0](place / "data")
    uri = f"memory://{place.name}/data"
    store, key = store_of(uri)
    for file in (place / "data").rglob("*"):
        if file.is_file():
            store.put(f"{key}/{file.relative_to(place / 'data')}", file.read_bytes())
    typed("data")
    here = (place / "train.py").read_text()

    typed(uri, "--force")
    there = (place / "train.py").read_text()

    assert there == re.sub(r'(?<!table)\("data', f'("{uri}', here)
    with runpy.run_path("train.py")["stream"] as stream:
        assert stream.epoch == 1
        assert len(stream) >= 2
    assert "EXPLAIN" in capsys.readouterr().out


def test_a_killed_program_goes_on_at_the_next_batch(place: Path) -> None:
    (place / "data" / "rows.csv").write_text("id,x\n" + "".join(f"{k},{k / 2}\n" for k in range(20_000)))
    typed("data")
    command = [sys.executable, "-u", "train.py"]
    with warm.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        seen = 0
        for line in first.stdout:
            seen += line.startswith("(32,)")
            if seen == 5:
                first.kill()
                break
        seen += sum(line.startswith("(32,)") for line in first.stdout)
    assert first.returncode == -signal.SIGKILL

    done = warm.run(command, capture_output=True, text=True, check=True)

    batches = [line for line in done.stdout.splitlines() if line.startswith("(32,)")]
    begun = 625 - len(batches)  # a kill may fall between a batch and its checkpoint
    assert begun in (seen - 1, seen)
    assert (place / "checkpoint.pt").is_file()
    plan = (
        sp.connect("catalog")
        .table("data")
        .sample(order=sp.GlobalShuffle(seed=0))
        .collate(batch_size=32, fields={"id": sp.List("id")})
    )
    with plan.to_numpy() as stream:
        for number, line in enumerate(batches[:20], begun):
            first_two = stream.ledger(number, epoch=0)[:2]
            assert line.endswith((str(first_two), f"tensor({first_two})"))


def test_a_tokenizer_that_lies_there_is_used(place: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({"text": 0, "?": 1}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(place / "tokenizer.json"))
    write_source("text_files", place / "data")

    typed("data")
    with runpy.run_path("train.py")["stream"] as stream:
        assert stream.batch(0, epoch=0)["input_ids"].shape == (10, 2)


def test_what_is_there_stays_unless_it_may_be_replaced(place: Path) -> None:
    MADE["csv"].write(place / "data")
    (place / "train.py").write_text("mine")

    with pytest.raises(sp.SpiralError, match=r"init: train\.py is there already\. .* give --force to write over it"):
        typed("data")
    assert (place / "train.py").read_text() == "mine"
    assert not (place / "catalog").exists()
    typed("data", "--force")
    assert "spiral.sources.Csv" in (place / "train.py").read_text()

    (place / "other" / "data").mkdir(parents=True)
    MADE["jsonl"].write(place / "other" / "data")
    (place / "train.py").unlink()
    with pytest.raises(sp.errors.CatalogError, match=r"another relation 'data'\. Give --force to replace it"):
        typed("other/data")
    typed("data")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("data", r"is not known\. Known are images in class folders, .* token files .*own-source"),
        ("nothing", r"nothing is not there\. Give a file, a folder, a pattern, or a URI"),
        (".", r"the catalog would lie in the data\. Make a folder beside the data"),
    ],
)
def test_what_is_not_known_is_refused_with_what_is(place: Path, path: str, message: str) -> None:
    (place / "data" / "notes.xyz").write_text("?")

    with pytest.raises(sp.SpiralError, match=message):
        typed(path)
    assert not (place / "train.py").exists()


def test_flat_images_have_no_component(place: Path) -> None:
    flat(place / "data")

    with pytest.raises(sp.errors.SourceError, match="Put them into folders, one per class; or leave --dagster out"):
        typed("data", "--dagster")
    assert not (place / "train.py").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["images", "features", "mds", "a copy of the Hub"])
def test_dagster_takes_the_definitions(kind: str, place: Path) -> None:
    KINDS[kind][0](place / "data")
    typed("data", "--dagster")
    dg = Path(sys.executable).parent / "dg"

    for what in ("yaml", "defs"):
        done = subprocess.run([dg, "check", what], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_programs_pass_mypy_strict(place: Path) -> None:
    checkout = str(Path(sp.__file__).parents[1])  # mypy does not follow an editable install
    programs = {}
    for k, (write, _) in enumerate(KINDS.values()):
        (place / "data" / f"d{k}").mkdir()
        write(place / "data" / f"d{k}")
        typed(f"data/d{k}", "--force")
        programs[f"program_{k}"] = (place / "train.py").read_text()

    done = checked(Path(sys.executable), place, checkout=checkout, **programs)

    assert done.returncode == 0, done.stdout

"""The example programs over an object store: relations, files, catalog and caches in a bucket, read on two machines.

A machine is a process with a node cache, a mirror and a home of its own; nothing but the bucket is shared.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import spiral_stream as spiral
from spiral_assets.corpora.images import write_image_relation
from spiral_stream import use_storage
from spiral_stream.storage.open import store_of
from tests.e2e import test_text_program
from tests.fixtures import stores
from tests.fixtures.clips import LABELS, SEGMENTS, video_catalog

PROGRAMS = Path(__file__).parent / "programs"
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
MACHINE = """
import json, runpy, sys
import xxhash

program, build, state, stop = sys.argv[1], sys.argv[2] == "build", json.loads(sys.argv[3]), int(sys.argv[4])

def digest(batch):
    out = {}
    for name, value in batch.items():
        data = json.dumps(value).encode() if isinstance(value, list) else value.contiguous().numpy().tobytes()
        out[name] = [getattr(value, "dtype", "").__str__(), len(value), xxhash.xxh3_64_hexdigest(data)]
    return out

train = runpy.run_path(program)["train"]
train.bind(device="cpu", epoch=0, data_parallel_rank=0, data_parallel_world_size=1)
if build:
    train.materialize(lambda _: None)
if state is not None:
    train.load_state_dict(state)
digests = []
for batch in train:
    digests.append(digest(batch))
    if len(digests) == stop:
        break
found = {"digests": digests, "state": train.state_dict(), "network": train.metrics()["network"]}
train.close()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with stores.s3_server() as address:
        yield address


def machine(
    folder: Path, program: str, environment: dict[str, str], *, build: bool = False, state: Any = None, stop: int = 0
) -> dict[str, Any]:
    """Run a program on a machine of its own, and return what it saw."""
    folder.mkdir(exist_ok=True)
    own = {"HOME": folder / "home", "SPIRAL_NODE_CACHE": folder / "node", "SPIRAL_CATALOG_MIRROR": folder / "mirror"}
    asked = [str(PROGRAMS / f"{program}.py"), "build" if build else "", json.dumps(state), str(stop)]
    done = subprocess.run(
        [sys.executable, "-c", MACHINE, *asked],
        env=os.environ | environment | {name: str(path) for name, path in own.items()},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert stores.SECRET not in done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def write_image(folder: Path) -> dict[str, tuple[Any, dict[str, Any]]]:
    drawn = write_image_relation(folder / "images", 1_900, progress=False)
    return {
        "vision.imagenet_train": (drawn.train_uri, {"semantic": {"image_ref": "image/jpeg-ref"}}),
        "vision.imagenet_labels": (drawn.labels_uri, {"identity": "label_id"}),
    }


def write_text(folder: Path) -> dict[str, tuple[Any, dict[str, Any]]]:
    options = {"identity": "sample_id", "shard": "storage_shard"}
    return {name: (str(folder / name), options) for name in test_text_program.write(folder)}


def write_video(folder: Path) -> dict[str, tuple[Any, dict[str, Any]]]:
    made = video_catalog(folder, files=15, each=3)
    return {
        SEGMENTS: (
            made.segments,
            {"identity": "sample_id", "shard": "storage_shard", "semantic": {"clip_ref": "video/h264-ref"}},
        ),
        LABELS: (made.labels, {"identity": "sample_id"}),
    }


def register(uri: str, named: dict[str, tuple[Any, dict[str, Any]]], here: Path, there: str) -> None:
    """Register relations; what lies in the folder ``here`` is named as if it lay at ``there``."""
    catalog = spiral.connect(uri)
    for name, (data, options) in named.items():
        source: Any = (
            spiral.Lance(data.replace(str(here), there))
            if isinstance(data, str)
            else spiral.Arrow(moved(data, here, there))
        )
        catalog.register(name, source, **options)
    if "text.code_documents" in named:
        catalog.register_tokenizer("llama-tokenizer", test_text_program.tokenizer())


def moved(table: pa.Table, here: Path, there: str) -> pa.Table:
    """The table, with other places in its references to clips."""
    if "clip_ref" not in table.column_names:
        return table
    at, column = table.column_names.index("clip_ref"), table["clip_ref"].combine_chunks()
    if pa.types.is_struct(column.type):
        fields = [pc.struct_field(column, field.name) for field in column.type]
        fields[0] = pc.replace_substring(fields[0], str(here), there)
        return table.set_column(at, "clip_ref", pa.StructArray.from_arrays(fields, fields=list(column.type)))
    return table.set_column(at, "clip_ref", pc.replace_substring(column, str(here), there))


@pytest.mark.parametrize(("program", "stop"), [("image", 3), ("text", 2), ("video", 1)])
def test_a_program_over_a_bucket_gives_the_batches_of_local_files(
    program: str, stop: int, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    named = {"image": write_image, "text": write_text, "video": write_video}[program](data)
    local = {"SPIRAL_CATALOG": str(tmp_path / "catalog"), "SPIRAL_CACHE": str(tmp_path / "caches")}
    monkeypatch.setenv("SPIRAL_CACHE", local["SPIRAL_CACHE"])
    register(local["SPIRAL_CATALOG"], named, data, str(data))
    build = program == "text"
    wanted = machine(tmp_path / "here", program, local, build=build, stop=2 * stop)["digests"]
    assert len(wanted) == 2 * stop

    bucket = f"s3://{stores.new_bucket(endpoint)}"
    profile = tmp_path / "storage.toml"
    lines = [f"{name} = {json.dumps(str(value))}" for name, value in stores.options(endpoint).items()]
    profile.write_text("\n".join(["[tests]", f'prefix = "{bucket}"', *lines]))
    use_storage("tests", prefix=bucket, **stores.options(endpoint))
    for file in data.rglob("*"):
        if file.is_file():
            store, key = store_of(f"{bucket}/data/{file.relative_to(data).as_posix()}")
            store.put_file(key, file)
    far = {
        "SPIRAL_CATALOG": f"{bucket}/catalog",
        "SPIRAL_CACHE": f"{bucket}/prepared",
        "SPIRAL_STORAGE": str(profile),
    }
    monkeypatch.setenv("SPIRAL_CACHE", far["SPIRAL_CACHE"])
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / "builder" / "node"))
    monkeypatch.setenv("SPIRAL_CATALOG_MIRROR", str(tmp_path / "builder" / "mirror"))
    register(far["SPIRAL_CATALOG"], named, data, f"{bucket}/data")

    first = machine(tmp_path / "one", program, far, build=build, stop=stop)
    second = machine(tmp_path / "two", program, far, state=first["state"], stop=stop)
    assert first["digests"] + second["digests"] == wanted
    if program == "video":
        assert first["network"]["requests"] > 0  # packets, by range
    everything = b"".join(bytes(store.get(key).data or b"") for key, _ in store.list("catalog/"))
    assert stores.SECRET.encode() not in everything
    assert stores.SECRET not in json.dumps([first, second])

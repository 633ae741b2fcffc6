"""A sealed file tells any damage; each parser of derived files names it, and each error of the system has its own way out."""

import errno
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spiral_stream.errors import CacheError, DamageError
from spiral_stream.integrity import seal
from spiral_stream.integrity.publish import publish_file
from tests.fixtures.mutations import COUNTS, mutated_bytes, survives
from tests.fixtures.open_files import mapped_below, open_below

TABLE = pa.table({"id": [f"name {i}" for i in range(200)], "size": pa.array(range(200), pa.int32())})


def write_arrow(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())


def write_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.arange(300, dtype=np.uint32))


KINDS: dict[str, tuple[str, Callable[[Path], object], Callable[[Path], Any]]] = {
    "kept columns": (
        "column.sealed.arrow",
        lambda path: write_arrow(path, TABLE),
        lambda path: seal.table(path).to_pydict(),
    ),
    "lengths": ("lengths.sealed.npy", write_array, lambda path: seal.array(path).tolist()),
    "json": (
        "selected.json",
        lambda path: path.write_text(json.dumps({"whole": False, "counts": [["filter x", 7]], "env": {"a": None}})),
        lambda path: {k: v for k, v in seal.read_json(path).items() if k != "seal"},
    ),
}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_mutation_of_a_sealed_file_is_read_as_something_else(kind: str, count: int, tmp_path: Path) -> None:
    name, write, read = KINDS[kind]
    file = tmp_path / name
    with publish_file(file) as draft:
        write(draft)
    data, sound = file.read_bytes(), read(file)
    refused = 0
    for seed in range(count):
        file.write_bytes(mutated_bytes(data, seed))
        refused += survives(lambda: read(file), sound, says=f"{kind}, seed {seed}")

    assert refused > 0.9 * count  # the others left the file as it was


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bit", range(8))
def test_no_single_bit_of_a_sealed_file_can_flip_without_a_word(kind: str, bit: int, tmp_path: Path) -> None:
    name, write, read = KINDS[kind]
    file = tmp_path / name
    with publish_file(file) as draft:
        write(draft)
    data = bytearray(file.read_bytes())
    for at in {*range(0, len(data), 37), *range(48), *range(len(data) - 40, len(data))}:
        data[at] ^= 1 << bit
        file.write_bytes(data)
        with pytest.raises(DamageError, match=r"is damaged: .*would have to be as it was written"):
            read(file)
        data[at] ^= 1 << bit


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_without_a_seal_is_damaged(kind: str, tmp_path: Path) -> None:
    name, write, read = KINDS[kind]
    write(tmp_path / name)

    for each in (read, seal.verify):
        with pytest.raises(DamageError, match="seal"):
            each(tmp_path / name)


def test_a_large_file_is_mapped_and_verified_like_a_small_one(tmp_path: Path) -> None:
    file = tmp_path / "large.npy"
    values = np.arange(1 << 20, dtype=np.uint32)
    with publish_file(file) as draft, draft.open("wb") as out:
        np.save(out, values)
    found = seal.array(file)
    mapped, opened = mapped_below(tmp_path), open_below(tmp_path)

    assert np.array_equal(found, values)
    assert str(file) in mapped
    assert opened == []  # a thousand streams hold no thousand descriptors
    with file.open("r+b") as out:
        out.seek(3 << 20)
        out.write(b"\xff")
    with pytest.raises(DamageError, match="its digest is"):
        seal.array(file)


WAYS_OUT = {
    errno.EMFILE: r"no file descriptors left: raise its limit \(ulimit -n\)",
    errno.ENFILE: "The machine has no file descriptors left",
    errno.EACCES: "give it the rights",
    errno.ENOSPC: "The disk is full: free space",
    errno.EROFS: "read-only",
    errno.EIO: "The disk failed",
}


@pytest.mark.parametrize("number", WAYS_OUT)
def test_each_error_of_the_system_has_its_own_way_out(number: int, tmp_path: Path) -> None:
    with pytest.raises(CacheError, match=WAYS_OUT[number]) as caught, seal.reading(tmp_path):
        raise OSError(number, os.strerror(number))
    assert not isinstance(caught.value, DamageError)
    assert "again" not in str(caught.value).partition("). ")[2].replace("mount it again", "")
    as_rust_says_it = OSError(f"LanceError(IO): it failed (os error {number})")
    with pytest.raises(CacheError, match=WAYS_OUT[number]), seal.reading(tmp_path):
        raise as_rust_says_it


def test_without_descriptors_nothing_is_said_to_be_damaged(tmp_path: Path) -> None:
    file = tmp_path / "lengths.npy"
    with publish_file(file) as draft:
        write_array(draft)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        with pytest.raises(CacheError, match=r"Too many open files.*ulimit -n") as caught:
            seal.array(file)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert not isinstance(caught.value, DamageError)
    assert seal.array(file).tolist() == list(range(300))

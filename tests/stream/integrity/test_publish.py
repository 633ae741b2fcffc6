"""Derived files appear whole; drafts of writers that died go, those of writers that live stay."""

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spiral_stream.errors import CacheError, DamageError, SpiralWarning
from spiral_stream.integrity import seal
from spiral_stream.integrity.publish import (
    drafts,
    mended,
    publish,
    publish_file,
    remove,
    set_aside,
    sweep_drafts,
    take_out,
)

DEAD = f".column.arrow.{'0' * 32}"


def test_a_draft_of_a_dead_writer_goes_and_one_of_a_live_writer_stays(tmp_path: Path) -> None:
    (tmp_path / f".other.{'1' * 32}").mkdir()
    (tmp_path / DEAD).write_text("half of it")
    with publish_file(tmp_path / "lengths.npy") as draft:
        draft.write_bytes(b"all of it")
        sweep_drafts(tmp_path)
        assert drafts(tmp_path) == [draft]

    assert [path.name for path in tmp_path.iterdir()] == ["lengths.npy"]


def test_whoever_publishes_removes_dead_drafts_of_that_name(tmp_path: Path) -> None:
    (tmp_path / f".folder.{'0' * 32}").mkdir()
    (tmp_path / f".folder.{'0' * 32}" / "spool").write_text("a lot")
    with publish(tmp_path / "folder") as work:
        (work / "meta.json").write_text('{"total": 3}')

    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert seal.read_json(tmp_path / "folder" / "meta.json")["total"] == 3


def test_a_failure_publishes_nothing(tmp_path: Path) -> None:
    for make in (publish, publish_file):
        with pytest.raises(ZeroDivisionError), make(tmp_path / "name"):
            raise ZeroDivisionError

    assert list(tmp_path.iterdir()) == []


def test_what_another_process_mended_meanwhile_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "mean.json"
    file.write_text("good")
    answers = [DamageError("a moment ago"), "good"]

    def opened() -> str:
        found = answers.pop(0)
        if isinstance(found, DamageError):
            raise found
        return found

    assert mended(file, opened, lambda: pytest.fail("built again")) == "good"
    assert [path.name for path in tmp_path.iterdir()] == ["mean.json"]


@pytest.mark.parametrize("removes", [remove, take_out, set_aside, sweep_drafts])
def test_several_may_remove_the_same_at_one_moment(removes: Callable[[Path], object], tmp_path: Path) -> None:
    paths = [tmp_path / f"{at}" for at in range(20)]
    for path in paths:
        inside = path / (f".folder.{'0' * 32}" if removes is sweep_drafts else "folder")
        inside.mkdir(parents=True)
        for at in range(20):
            (inside / f"{at}").touch()
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.map(removes, paths) for _ in range(4)]:
            list(done)

    left = [path for path in paths if path.exists() and (removes is not sweep_drafts or list(path.iterdir()))]
    assert not left


def test_what_stays_damaged_is_an_error_and_what_was_set_aside_is_kept_once(tmp_path: Path) -> None:
    file = tmp_path / "mean.json"

    def opened() -> str:
        raise seal.damaged(file, "it always is")

    for content in ("first", "second"):
        file.write_text(content)
        with pytest.warns(SpiralWarning, match=r"set aside as \.damaged-mean\.json"), pytest.raises(DamageError):
            mended(file, opened, lambda: None)

    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(".damaged-mean.json", "second")]
    assert set_aside(file) is None


@pytest.mark.parametrize("make", [publish, publish_file])
def test_a_disk_that_fills_up_while_a_draft_is_written_is_named(make: Any, tmp_path: Path) -> None:
    with (
        pytest.raises(CacheError, match=r"name cannot be written .*. The disk is full: free space"),
        make(tmp_path / "name"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_says_which_kind_of_trouble_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(CacheError, match=r"cannot be written \(.*\). Give a catalog folder"),
        publish(tmp_path / "file" / "x"),
    ):
        pass

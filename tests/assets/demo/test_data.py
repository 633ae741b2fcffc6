"""`make ui` in a fresh clone writes what the demo's assets read, and leaves alone what is there."""

from pathlib import Path

import pytest

from spiral_assets.demo.acts import write_data

SMALL = (200, 200_000, 12)


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    for name in ("images", "texts", "videos"):
        (tmp_path / name).mkdir()

    write_data(tmp_path, *SMALL)

    assert {path.name: list(path.iterdir()) for path in tmp_path.iterdir()} == {"images": [], "texts": [], "videos": []}


@pytest.mark.slow
def test_what_is_not_there_is_written(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()

    write_data(tmp_path, *SMALL)

    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*.lance")}
    assert {"images/imagenet_train.lance", "images/imagenet_labels.lance", "texts/fineweb.lance"} <= found
    assert not list((tmp_path / "videos").iterdir())

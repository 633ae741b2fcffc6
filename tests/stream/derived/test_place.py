"""Where derived data lies: in the folder of the environment, else in the catalog's own."""

from pathlib import Path

import pytest

from spiral_stream.derived.place import CACHE_ENV, derived_root
from spiral_stream.errors import CacheError


def test_derived_data_lies_in_the_catalog_unless_the_environment_names_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert derived_root(tmp_path) == tmp_path / "prepared"
    monkeypatch.setenv(CACHE_ENV, str(tmp_path / "other"))
    assert derived_root(tmp_path) == tmp_path / "other"


def test_what_is_no_folder_of_this_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_ENV, "s3://bucket/cache")
    with pytest.raises(
        CacheError, match=r"^\$SPIRAL_CACHE=s3://bucket/cache: caches lie in a local folder; this begins"
    ):
        derived_root(tmp_path)

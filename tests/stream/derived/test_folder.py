"""Where derived data lies: in the folder of the environment, else in the catalog's own."""

from pathlib import Path

import pytest

from spiral_stream.derived.folder import CACHE_ENV, derived_root
from spiral_stream.errors import CacheError
from spiral_stream.keeping.share import share_of


def test_derived_data_lies_in_the_catalog_unless_the_environment_names_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert derived_root(tmp_path) == tmp_path / "prepared"
    monkeypatch.setenv(CACHE_ENV, str(tmp_path / "other"))
    assert derived_root(tmp_path) == tmp_path / "other"


def test_for_a_place_on_a_store_there_is_a_working_folder_next_to_the_node_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / "disk" / "node"))
    monkeypatch.setenv(CACHE_ENV, "s3://bucket/cache/")
    root = derived_root(tmp_path)
    assert root.parent == tmp_path / "disk" / "prepared"
    found = share_of(root / "derived" / "columns" / "abc")
    assert found is not None
    assert (found.uri, found.root) == ("s3://bucket/cache", root)
    monkeypatch.setenv(CACHE_ENV, "s3://bucket/cache")
    assert derived_root(tmp_path) == root
    monkeypatch.setenv(CACHE_ENV, "s3://bucket/other")
    assert derived_root(tmp_path) != root


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("s3:/bucket/cache", "begins with s3:/"),
        ("https://host/cache", "begins with https:/"),
        ("s3://me:secret@bucket/cache", "carries a password"),
        ("s3://", "names no bucket"),
    ],
)
def test_what_is_no_place_for_prepared_data_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, said: str
) -> None:
    monkeypatch.setenv(CACHE_ENV, place)
    with pytest.raises(CacheError, match=rf"^\$SPIRAL_CACHE=.*: caches lie in a local folder, or .*{said}") as error:
        derived_root(tmp_path)
    assert "secret" not in str(error.value)

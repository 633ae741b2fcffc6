"""Plans are kept by name."""

from pathlib import Path

import pytest

from spiral_stream.catalog.registry import Registry, connect
from spiral_stream.errors import CatalogError


@pytest.fixture
def catalog(tmp_path: Path) -> Registry:
    return connect(tmp_path / "catalog")


def test_plans_are_kept_by_name(catalog: Registry) -> None:
    catalog.saved.save("train", {"verb": "deliver", "n": [1, 2]})
    catalog.saved.save("eval", {})
    catalog.saved.save("train", {"verb": "deliver", "n": [3]})

    assert catalog.streams() == ["eval", "train"]
    assert catalog.saved.plan("train") == {"verb": "deliver", "n": [3]}
    catalog.drop_stream("eval")
    assert catalog.streams() == ["train"]
    with pytest.raises(CatalogError, match=r"stream 'trian' .*did you mean train\?"):
        catalog.saved.plan("trian")
    with pytest.raises(CatalogError, match="'eval' is not in catalog"):
        catalog.drop_stream("eval")
    with pytest.raises(CatalogError, match="Rename it"):
        catalog.saved.save("a b", {})

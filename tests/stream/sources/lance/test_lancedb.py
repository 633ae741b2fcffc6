import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spiral_stream as spiral
from spiral_stream import Lance
from spiral_stream.errors import CatalogError, SourceError
from spiral_stream.sources.lance.lancedb import is_table


def database(folder: Path) -> Any:
    import lancedb  # 2 CPU s in every worker if it stood at the top

    return lancedb.connect(folder)


def test_a_table_is_registered_at_the_version_it_shows(tmp_path: Path) -> None:
    table = database(tmp_path / "db").create_table("t", pa.table({"id": [1, 2]}))
    table.add(pa.table({"id": [3]}))
    catalog = spiral.connect(tmp_path / "catalog")
    entry = catalog.register("now", table, identity="id")
    table.checkout(1)
    catalog.register("before", table, identity="id")
    again = catalog.register("before", table, identity="id")

    assert is_table(table)
    assert entry.source == Lance(str(tmp_path / "db" / "t.lance"), version=2)
    assert catalog.table("now").to_arrow()["id"].to_pylist() == [1, 2, 3]
    assert catalog.table("before").to_arrow()["id"].to_pylist() == [1, 2]
    assert again.source.version == 1
    assert catalog.refresh("before").source.version == 2


def test_options_of_lance_go_with_a_table(tmp_path: Path) -> None:
    table = database(tmp_path).create_table("t", pa.table({"id": [1, 2]}))
    source = Lance(table, origin=True)

    assert source == Lance(str(tmp_path / "t.lance"), version=1, origin=True)
    with source.open() as reader:
        assert reader.schema.names == ["id", "__file__", "__index_in_file__"]


def test_a_table_of_the_asynchronous_interface_is_refused(tmp_path: Path) -> None:
    database(tmp_path).create_table("t", pa.table({"id": [1, 2]}))

    async def opened() -> object:
        import lancedb

        return await (await lancedb.connect_async(tmp_path)).open_table("t")

    with pytest.raises(SourceError, match=r"'t' is of the asynchronous interface\. Open it with lancedb\.connect"):
        Lance(asyncio.run(opened()))


def test_a_table_on_a_server_is_refused() -> None:
    from lancedb.remote.table import RemoteTable

    table = RemoteTable.__new__(RemoteTable)
    table._name = "t"
    with pytest.raises(SourceError, match=r"lies on a server, which is not read here. Export it"):
        Lance(table)


def test_a_database_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="is a LanceDBConnection, not a source"):
        spiral.connect(tmp_path / "catalog").register("t", database(tmp_path / "db"))

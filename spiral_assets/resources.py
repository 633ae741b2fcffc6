"""Resources: the catalog, its tables opened with LanceDB, and the folder of checkpoints."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import dagster as dg
from pydantic import Field, PrivateAttr

from spiral_assets.conventions import RESOURCE, lancedb_key, runs_key
from spiral_assets.tables import lance_tables

if TYPE_CHECKING:
    import lancedb

    import spiral_stream as spiral

# OpenMP's threads spin while they wait. On shared cores, sleeping is 5 times as fast (two cores under load 3.5:
# 740 images/s instead of 145); on idle cores it is 25 % slower. The stream's own threads share the cores too.
PATIENT: Final = {"OMP_WAIT_POLICY": "PASSIVE"}


class CatalogResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # yields itself
    """A catalog. Caches are stored under ``$SPIRAL_CACHE``, or next to the catalog; of one on a store, on this machine.

    Examples:
        >>> from spiral_assets.resources import CatalogResource
        >>> "shop.photos" in CatalogResource(uri="catalog").open().tables()
        True
    """

    uri: str = Field(default=dg.EnvVar("SPIRAL_CATALOG"), description="Folder or URI of the catalog.")
    _opened: "tuple[str, spiral.Catalog] | None" = PrivateAttr(default=None)

    def open(self) -> "spiral.Catalog":
        """Open the catalog; create it if it does not exist. A step gets one catalog, which reads its tables when they change."""
        import spiral_stream as spiral

        if self._opened is None or self._opened[0] != self.uri:
            self._opened = self.uri, spiral.connect(self.uri)
        return self._opened[1]


class LanceDBResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # yields itself
    """What a catalog has as Lance tables, opened with LanceDB: relations, indexes of vectors, and runs. To read, unless said.

    A table shows one version: of a relation the one that is registered, so that what an asset reads is what its dependency
    materialized. A method that would change it refuses.

    Examples:
        >>> from spiral_assets.resources import LanceDBResource
        >>> embedding = pa.array([[k, 1.0] for k in range(9)], pa.list_(pa.float32(), 2))
        >>> table = pa.table({"sample_id": range(9), "embedding": embedding})
        >>> entry = spiral.connect("doors").register("shop.doors", spiral.Arrow(table))
        >>> @dg.asset
        ... def narrow(context: dg.AssetExecutionContext, lancedb: LanceDBResource):
        ...     doors = lancedb.relation("shop.doors")
        ...     first = doors.search([0.0, 1.0], vector_column_name="embedding").limit(1).to_list()
        ...     context.add_output_metadata({"nearest": first[0]["sample_id"]})
        >>> done = dg.materialize([narrow], resources={"lancedb": LanceDBResource(uri="doors")})
        >>> done.asset_materializations_for_node("narrow")[0].metadata["nearest"].value
        0
    """

    uri: str = Field(default=dg.EnvVar("SPIRAL_CATALOG"), description="Folder or URI of the catalog.")
    writable: bool = Field(default=False, description="Whether tables may be changed.")
    storage_options: dict[str, str] = Field(
        default_factory=dict,
        description="Of object stores, as LanceDB takes them; credentials may be in the environment.",
    )

    def tables(self) -> list[str]:
        """Return the relations that lie in Lance: those of Lance datasets, of tables in memory that were registered, and runs."""
        catalog = self._catalog()
        return [name for name in catalog.tables() if self._lies(catalog, name) is not None]

    def relation(self, name: str) -> "lancedb.table.LanceTable":
        """Open a relation, as it is registered.

        Args:
            name: in the catalog.

        Raises:
            Failure: it lies in no Lance dataset.
        """
        catalog = self._catalog()
        if name.startswith("runs."):
            catalog.table(name)  # what was recorded since becomes rows
        found = self._lies(catalog, name)
        if found is None:
            kind = catalog.entry(name).source.KIND
            msg = (
                f"LanceDBResource: {name!r} is {kind}, and no Lance dataset, which LanceDB could open. Read it as "
                f'catalog.table("{name}").to_arrow(), or register a Lance dataset of it; there is {", ".join(self.tables())}'
            )
            raise dg.Failure(msg, allow_retries=False)
        uri, version = found
        return self._opened(uri, version)

    def vectors(self, relation: str, column: str = "embedding") -> "lancedb.table.LanceTable":
        """Open the index of a column of vectors: identities, and ``__vector__``.

        Args:
            relation: its name in the catalog.
            column: of vectors.

        Raises:
            PlanError: the column has no index, or one of other data.
        """
        index = self._catalog().table(relation).vector_index(column)
        return self._opened(f"{index.path}/vectors.lance", None)

    def run(self, name: str) -> "lancedb.table.LanceTable":
        """Open what a training run recorded: a row for each sample of each logged batch.

        Args:
            name: of the run.
        """
        return self.relation(f"runs.{name}")

    def _catalog(self) -> "spiral.Catalog":
        import spiral_stream as spiral

        return spiral.connect(self.uri)

    @staticmethod
    def _lies(catalog: "spiral.Catalog", name: str) -> tuple[str, int | None] | None:
        import spiral_stream as spiral

        source = catalog.entry(name).source
        return (str(source.uri), source.version) if isinstance(source, spiral.Lance) else None

    def _opened(self, uri: str, version: int | None) -> "lancedb.table.LanceTable":
        options = self.storage_options if "://" in uri else None
        table: lancedb.table.LanceTable = lance_tables.opened(
            uri, writable=self.writable, version=version, storage_options=options
        )
        return table


class RunsResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # yields itself
    """The folder of training checkpoints.

    Examples:
        >>> from spiral_assets.resources import RunsResource
        >>> @dg.asset
        ... def model(context: dg.AssetExecutionContext, runs: RunsResource):
        ...     context.add_output_metadata({"folder": runs.folder(context).name})
        >>> run(model)
        {'folder': 'model'}
    """

    root: str = Field(default=dg.EnvVar("SPIRAL_DATA_ROOT"), description="Checkpoints lie in its folder checkpoints.")

    def folder(self, context: dg.AssetExecutionContext) -> Path:
        """Return the folder of a model in a run. Retries and re-executions of a run share one folder."""
        run = str(context.run.root_run_id or context.run.run_id)
        return Path(self.root) / "checkpoints" / run / str(context.asset_key.path[-1])


def standard_resources(
    catalog: str | None = None,
    root: str | None = None,
    name: str = RESOURCE,
    lancedb: Literal["read", "write"] | None = None,
) -> dict[str, Any]:
    """Return the resources that the assets ask for: the catalog, the folder of checkpoints, and Dagster's Pipes.

    Args:
        catalog: folder or URI of the catalog; None for ``$SPIRAL_CATALOG``.
        root: checkpoints lie in its folder ``checkpoints``; None for ``$SPIRAL_DATA_ROOT``.
        name: of the catalog, by which components name it, where a location has several.
        lancedb: whether there is a `LanceDBResource` too, and what it may do; its key is ``lancedb``, or of a catalog with a
            name ``<name>_lancedb``.

    Examples:
        >>> from spiral_assets.resources import standard_resources
        >>> sorted(standard_resources("catalog", "."))
        ['catalog', 'pipes', 'runs']
    """
    uri = catalog or dg.EnvVar("SPIRAL_CATALOG")
    tables = {} if lancedb is None else {lancedb_key(name): LanceDBResource(uri=uri, writable=lancedb == "write")}
    return {
        name: CatalogResource(uri=uri),
        **tables,
        runs_key(name): RunsResource(root=root or dg.EnvVar("SPIRAL_DATA_ROOT")),
        "pipes": _pipes(),
    }


@lru_cache(1)
def _pipes() -> dg.PipesSubprocessClient:
    """One for all catalogs: definitions that are merged may not differ in a resource."""
    return dg.PipesSubprocessClient()

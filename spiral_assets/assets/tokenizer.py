"""The asset of a tokenizer, registered by name or trained by a function."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from spiral_assets import conventions
from spiral_assets.assets.hooks import PLAIN, AssetProps, Hooks
from spiral_assets.code_versions import code_version_of
from spiral_assets.conventions import DATA_TEAM, Deps
from spiral_assets.facts import reports
from spiral_assets.named import Named
from spiral_assets.reading.code_references import with_code
from spiral_assets.relations.sources import expanded
from spiral_assets.resources import CatalogResource

if TYPE_CHECKING:
    import spiral_stream as spiral


def tokenizer_asset(
    name: str,
    source: str | Named | Callable[["spiral.Catalog"], Any],
    *,
    deps: Deps = (),
    description: str = "A tokenizer, copied into the catalog. The same content gives the same data version.",
    domain: str = "",
    owners: Sequence[str] = DATA_TEAM,
    hooks: Hooks = PLAIN,
) -> dg.AssetsDefinition:
    """Return the asset ``tokenizers/<name>``, which registers a tokenizer under its name; ``-`` becomes ``_`` in the key.

    Args:
        name: in the catalog.
        source: a ``tokenizer.json``, a folder that transformers can load, a Hugging Face Hub name; or a function that gets
            the catalog and returns one of them, or a tokenizer object.
        deps: what a function reads.
        description: shown in the UI.
        domain: tag by which jobs select the asset.
        owners: of the asset.
        hooks: what a component changes of the asset.

    Examples:
        >>> from spiral_assets.assets import tokenizer_asset
        >>> tokenizer_asset("llama-tokenizer", "$DATA/tokenizer.json").key.path
        ['tokenizers', 'llama_tokenizer']
    """
    spec = dg.AssetSpec(
        key=conventions.tokenizer_key(name),
        group_name=conventions.TOKENIZERS,
        kinds={"huggingface"},
        owners=list(owners),
        tags=conventions.domain_tag(domain),
        description=description,
        code_version=source if isinstance(source, str) else code_version_of(source),
        deps=conventions.keys(deps),
    )

    def tokenizer(_: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult[None]:
        opened = catalog.open()
        found = expanded(source) if isinstance(source, str) else source(opened)
        entry = opened.register_tokenizer(name, found, replace=True)
        return dg.MaterializeResult(
            data_version=dg.DataVersion(entry.digest), metadata=_metadata(opened.uri, name, entry)
        )

    about = {"name": name, "domain": domain, "source": str(source), "deps": [*map(str, deps)]}
    return hooks.asset(
        AssetProps("tokenizer", about, spec if isinstance(source, str) else with_code(spec, [source])), tokenizer
    )


def _metadata(catalog: str, name: str, entry: Any) -> Mapping[str, Any]:
    return {
        "vocabulary": entry.vocab_size,
        "dagster/table_name": name,
        "dagster/uri": str(entry.path),
        **reports.size_of(entry.path),
        "digest": entry.digest,
        "engine": entry.engine,
        "open_it": reports.opens(catalog, f'tokenizer = catalog.tokenizer("{name}")'),
    }

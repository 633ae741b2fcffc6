"""The Dagster code location of Spiral: relations, statistics, caches, streams and training.

`spiral_assets.corpora` draws data for examples and needs no Dagster. A component may be named without its folder:
``spiral_assets.Relation`` is `spiral_assets.components.Relation`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any


def need(package: str, extra: str, by: str = "spiral_assets") -> None:
    """Refuse to go on without a package.

    Args:
        package: as it is imported.
        extra: which brings it.
        by: what needs it.

    Raises:
        MissingExtraError: it is not installed; says what to install.
    """
    if find_spec(package) is None:
        from spiral_stream.errors import MissingExtraError

        msg = f'{by} needs the package {package}, which is not installed. Run: pip install "spiral-stream[{extra}]"'
        raise MissingExtraError(msg, name=package)


def need_dagster() -> None:
    """Refuse to go on without Dagster.

    Raises:
        MissingExtraError: it is not installed; says what to install.
    """
    need("dagster", "dagster")


if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours

    def __getattr__(name: str) -> Any:
        """Return a component by its name alone, as ``dg scaffold defs spiral_assets.Relation`` asks for it."""
        if name[:1].isupper() and find_spec("dagster") is not None:
            components = import_module("spiral_assets.components")  # which needs this room
            if name in components.__all__:
                return getattr(components, name)
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)

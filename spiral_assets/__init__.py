"""The Dagster code location of Spiral: relations, statistics, caches, streams and training.

`spiral_assets.corpora` draws data for examples and needs no Dagster.
"""

from importlib.util import find_spec


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

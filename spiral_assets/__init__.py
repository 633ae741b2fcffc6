"""The Dagster code location of Spiral: relations, statistics, caches, streams and training.

`spiral_assets.corpora` draws data for examples and needs no Dagster.
"""

from importlib.util import find_spec


def need_dagster() -> None:
    """Refuse to go on without Dagster.

    Raises:
        MissingExtraError: it is not installed; says what to install.
    """
    if find_spec("dagster") is None:
        from spiral_stream.errors import MissingExtraError

        msg = (
            'spiral_assets needs the package dagster, which is not installed. Run: pip install "spiral-stream[dagster]"'
        )
        raise MissingExtraError(msg, name="dagster")

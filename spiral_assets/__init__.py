"""The Dagster code location of Spiral: relations, statistics, caches, streams and training."""

from importlib.util import find_spec

if find_spec("dagster") is None:
    from spiral_stream import MissingExtraError

    _MESSAGE = 'spiral_assets needs the package dagster, which is not installed. Run: pip install "spiral[dagster]"'
    raise MissingExtraError(_MESSAGE, name="dagster")

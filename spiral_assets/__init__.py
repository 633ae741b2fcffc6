"""The Dagster code location over `spiral_stream`: relations, statistics, caches, streams, training."""

from importlib.util import find_spec

if find_spec("dagster") is None:
    from spiral_stream import MissingExtraError

    _told = 'spiral_assets needs the package dagster, which is not installed. Run: pip install "spiral[dagster]"'
    raise MissingExtraError(_told, name="dagster")

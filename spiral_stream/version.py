"""Which version of Spiral runs: what the installed distribution says, which has it from pyproject.toml."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

NOT_INSTALLED: Final = "0+not.installed"  # a source tree on the path, which nobody installed


def installed() -> str:
    """The version of the distribution ``spiral``, or `NOT_INSTALLED`."""
    try:
        return version("spiral")
    except PackageNotFoundError:
        return NOT_INSTALLED


__version__: Final = installed()

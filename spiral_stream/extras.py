"""What is installed: which extra brings a package, the error where it is missing, and the version of Spiral itself.

Whoever imports a package of an extra asks `need` first. It looks the package up without importing it, so that a plan can
be refused when it is made or lowered, before anything is read. The version is that of the installed distribution.
"""

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from spiral_stream.errors import MissingExtraError

EXTRA_OF: Final[Mapping[str, str]] = {
    "accelerate": "trainer",
    "av": "video",
    "dagster": "dagster",
    "jax": "jax",
    "jinja2": "chat",
    "lancedb": "lancedb",
    "matplotlib": "report",
    "obstore": "object-stores",
    "pandas": "pandas",
    "polars": "polars",
    "ray": "ray",
    "tokenizers": "text",
    "torch": "torch",
    "torchvision": "vision",
    "transformers": "chat",
    "vortex": "vortex",
}


def need(package: str, by: str, otherwise: str = "") -> None:
    """Refuse to go on without a package.

    Args:
        package: as it is imported; one of `EXTRA_OF`.
        by: what needs it: a verb, a field or a function, as the user wrote it.
        otherwise: how to do without, such as ``"use to_numpy()"``.

    Raises:
        MissingExtraError: it is not installed; says what to install.
    """
    if not is_installed(package):
        msg = f'{by} needs the package {package}, which is not installed. Run: pip install "spiral-stream[{EXTRA_OF[package]}]"'
        raise MissingExtraError(f"{msg}; or {otherwise}" if otherwise else msg, name=package)


def is_installed(package: str) -> bool:
    """Whether a package can be imported; it is not imported to find out."""
    if package in sys.modules:
        return sys.modules[package] is not None
    try:
        return find_spec(package) is not None
    except ImportError:  # an import hook refuses it
        return False


DISTRIBUTION: Final = "spiral-stream"  # what one installs; `spiral` is somebody else's
NOT_INSTALLED: Final = "0+not.installed"  # a source tree on the path, which nobody installed


def installed() -> str:
    """The version of the distribution ``spiral-stream``, or `NOT_INSTALLED`."""
    from importlib.metadata import PackageNotFoundError, version  # 10 ms, which most programs do without

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return NOT_INSTALLED


if TYPE_CHECKING:
    __version__: str

if not TYPE_CHECKING:  # it is looked up when somebody asks

    def __getattr__(name: str) -> str:
        if name == "__version__":
            return installed()
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)

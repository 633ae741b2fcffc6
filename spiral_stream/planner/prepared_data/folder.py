"""Where a catalog's prepared data lies, and the saved plans in it by fingerprint."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from spiral_stream.catalog.registry import Registry
from spiral_stream.derived.folder import CACHE_ENV, derived_root
from spiral_stream.errors import CacheError, PlanError
from spiral_stream.integrity import seal
from spiral_stream.integrity.faults import failed
from spiral_stream.integrity.publish import write_file
from spiral_stream.plan.saving.fingerprint import digest

_FINGERPRINT: Final = re.compile("[0-9a-f]{32}")


def cache_root(catalog: Registry) -> Path:
    """Return where caches, selections and indexes lie: ``$SPIRAL_CACHE``, else the catalog's own folder.

    Raises:
        CacheError: ``$SPIRAL_CACHE`` names no folder of this machine.
    """
    return derived_root(catalog.root)


def keep_plan(root: Path, name: str, plan: Any) -> None:
    """Keep the canonical plan under its fingerprint, so that a later mismatch can be shown as a diff."""
    path = root / "plans" / f"{name}.json"
    if path.exists():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, seal.sealed_json(plan))
    except OSError as error:
        otherwise = f"Make it writable, or set ${CACHE_ENV} to another folder"
        raise failed(error, otherwise, "prepare: cannot write under", root) from error


def saved_plan(catalog: Registry, name: str) -> Any | None:
    """Return the canonical plan kept under a fingerprint; None if it is missing, damaged, or of another fingerprint."""
    path = cache_root(catalog) / "plans" / f"{name}.json"
    if not _FINGERPRINT.fullmatch(name) or not path.exists():
        return None
    with suppress(CacheError, PlanError, RecursionError):
        plan = seal.read_json(path)
        return plan if digest(plan) == name else None
    return None

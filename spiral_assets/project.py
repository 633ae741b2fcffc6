"""The code location of a ``dg`` project that has no Python and is not installed: everything under its ``defs``.

In its ``pyproject.toml``: ``code_location_target_module = "spiral_assets.project"``. Modules that lie in the project, such
as plans of yours, are found without an installation.
"""

import os
import sys
from pathlib import Path

import dagster as dg

from spiral_assets.reading.code_references import linked


@dg.definitions
def defs() -> dg.Definitions:
    """What the project at ``$SPIRAL_PROJECT`` declares; without the variable, the project of the working directory."""
    root = str(Path(os.environ.get("SPIRAL_PROJECT") or Path.cwd()).resolve())
    if root not in sys.path:
        sys.path.insert(0, root)
    return linked(dg.load_from_defs_folder(path_within_project=Path(root)), Path(root))

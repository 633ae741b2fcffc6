"""Where the code of an asset stands: the functions that its definition names, with lines, and links to git where configured."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import dagster as dg
from dagster._core.definitions.metadata.source_code import merge_code_references
from dagster._utils.warnings import suppress_dagster_warnings

from spiral_assets.code_versions import bound_in, file_of
from spiral_assets.named import SavedPlan, parts

_PROGRAM: Final = 2  # words at least: Python, and what it runs
URL: Final = "SPIRAL_GIT_URL"
BRANCH: Final = "SPIRAL_GIT_BRANCH"


@suppress_dagster_warnings
def with_code(spec: dg.AssetSpec, functions: Iterable[Callable[..., Any]]) -> dg.AssetSpec:
    """Return an asset that shows where functions are written; nothing is imported for it.

    Args:
        spec: of the asset.
        functions: plans and other functions of its definition.
    """
    found = []
    for function in functions:
        if isinstance(function, SavedPlan):
            continue
        module, name, _ = parts(function)
        file = file_of(module)
        nodes = [] if file is None else bound_in(module).get(name.partition(".")[0], [])
        if file is not None and nodes:
            line = nodes[-1].lineno
            found.append(dg.LocalFileCodeReference(file_path=str(file), line_number=line, label=f"{module}:{name}"))
    found = list(dict.fromkeys(found))  # several plans may be of one function
    return merge_code_references(spec, found) if found else spec


@suppress_dagster_warnings
def with_command(spec: dg.AssetSpec, command: Sequence[str]) -> dg.AssetSpec:
    """Return an asset that shows the program that it starts, if that is Python's: a script, or a module after ``-m``.

    Args:
        spec: of the asset.
        command: that starts the program.
    """
    words = [each for each in command if each != "-u"]
    if len(words) < _PROGRAM or Path(words[0]).name.rstrip("0123456789.") != "python":
        return spec
    if words[1] == "-m":
        module = next(iter(words[2:]), "")
        file = file_of(f"{module}.__main__") or file_of(module)
    else:
        file = Path(words[1]).absolute() if Path(words[1]).is_file() else None
    if file is None:
        return spec
    found = dg.LocalFileCodeReference(file_path=str(file), line_number=1, label=" ".join(words[1:3]))
    return merge_code_references(spec, [found])


@suppress_dagster_warnings
def linked(defs: dg.Definitions, root: Path) -> dg.Definitions:
    """Return definitions whose code references lead to ``$SPIRAL_GIT_URL``; the same ones without the variable.

    Args:
        defs: of a code location.
        root: of the repository, here.

    Examples:
        >>> from spiral_assets.reading.code_references import linked
        >>> defs = dg.Definitions()
        >>> linked(defs, Path()) is defs  # the variable is not set
        True
    """
    url = os.environ.get(URL)
    if not url:
        return defs
    mapping = dg.AnchorBasedFilePathMapping(local_file_anchor=root, file_anchor_path_in_repository="")
    assets = dg.link_code_references_to_git(
        list(defs.assets or ()),
        git_url=url,
        git_branch=os.environ.get(BRANCH) or "main",
        file_path_mapping=mapping,
    )
    rest = {
        name: getattr(defs, name)
        for name in ("schedules", "sensors", "jobs", "resources", "executor", "loggers", "asset_checks", "metadata")
    }
    return dg.Definitions(assets=assets, component_tree=defs.component_tree, **rest)

"""What ``dg scaffold defs`` writes: a component with example attributes to change, or what was found in data.

``dg scaffold defs spiral_assets.Relation photos --uri ...`` looks at data as ``spiral init`` does, in a process of its own, so
that `dg` imports no part of the library; the catalog that it registers the data in is thrown away.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

import click
import dagster as dg
from pydantic import BaseModel, Field

from spiral_assets.relations.sources import expanded

Kind = TypeVar("Kind", bound=type)

_CANONICAL: Final = "spiral_assets.components."  # before the name of a component in YAML
_SAID: Final = re.compile(r"^(?:\w*Error: )*(?:init: )?(?:--dagster: )?|; or leave --dagster out")  # by `spiral init`
_SOURCE_PATH: Final = re.compile(r'((?:path|uri): )("(?:[^"\\]|\\.)*")')  # of a source, as `spiral init` writes it


def example(**attributes: Any) -> Callable[[Kind], Kind]:
    """Return the decorator that gives a component its example.

    Args:
        **attributes: what is written; a component with them can be loaded.
    """

    class _Example(dg.Scaffolder[Any]):
        attributes_of_it: Mapping[str, Any] = attributes

        def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
            dg.scaffold_component(_named(request), dict(self.attributes_of_it))

    return dg.scaffold_with(_Example)


class DataToLookAt(BaseModel):
    """What ``dg scaffold defs`` may be told of a relation."""

    uri: str | None = Field(
        default=None, description="A file, a folder, a pattern or a URI; $NAME is of the environment."
    )
    name: str | None = Field(default=None, description="In the catalog; by default the last part of the path.")


def example_or_data(**attributes: Any) -> Callable[[Kind], Kind]:
    """Return the decorator that gives a component its example, and lets it be filled in from data.

    Args:
        **attributes: what is written where no data are given.
    """

    class _DataScaffolder(dg.Scaffolder[DataToLookAt]):
        attributes_of_it: Mapping[str, Any] = attributes

        @classmethod
        def get_scaffold_params(cls) -> type[DataToLookAt]:
            return DataToLookAt

        def scaffold(self, request: dg.ScaffoldRequest[DataToLookAt]) -> None:
            request, said = _named(request), request.params or DataToLookAt()
            if said.uri is None:
                named = {} if said.name is None else {"name": said.name}
                dg.scaffold_component(request, {**self.attributes_of_it, **named})
                return
            if request.scaffold_format != "yaml":
                msg = "--uri fills YAML in. Leave --format python out"
                raise click.UsageError(msg)
            try:
                text = found_in_data(said.uri, said.name, request.project_root)
            except click.ClickException:
                with suppress(OSError):
                    request.target_path.rmdir()  # it was made for the file that is not written
                raise
            file = request.target_path if request.append else request.target_path / "defs.yaml"
            with file.open("a" if request.append else "w", encoding="utf-8") as out:
                out.write(f"---\n{text}" if request.append else text)

    return dg.scaffold_with(_DataScaffolder)


def _named(request: dg.ScaffoldRequest[Any]) -> dg.ScaffoldRequest[Any]:
    """Return a request under the name that a component has in YAML, however it was asked for."""
    package, _, name = request.type_name.rpartition(".")
    return replace(request, type_name=_CANONICAL + name) if package == _CANONICAL.partition(".")[0] else request


def found_in_data(uri: str, name: str | None, project: Path | None) -> str:
    """Return the YAML of a relation: its source, identity, labels and semantic types, with what was guessed.

    Args:
        uri: a file, a folder, a pattern or a URI; variables of the environment stay in the YAML.
        name: of the relation; None for the last part of the path.
        project: root of the project; a path below it is written as seen from it.

    Raises:
        ClickException: there is nothing, or nothing that YAML can declare; says what to do.
    """
    try:
        location = str(expanded(uri))
    except dg.Failure as error:
        raise click.ClickException(str(error.description)) from error
    if "://" not in location:
        location = os.path.abspath(os.path.expanduser(location))  # noqa: PTH100, PTH111  a pattern is no path
    with TemporaryDirectory(prefix="spiral-scaffold-") as folder:
        command = [
            sys.executable,
            "-m",
            "spiral_stream",
            "init",
            location,
            "--dagster",
            "--catalog",
            f"{folder}/catalog",
        ]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603  our own program
        if done.returncode != 0:
            said = (
                _SAID.sub("", " ".join(done.stderr.split()))
                or f"{location} cannot be looked at. Run: spiral init {location}"
            )
            raise click.ClickException(said)
        (file,) = Path(folder, "defs").glob("*/defs.yaml")
        text = file.read_text(encoding="utf-8").rpartition("---\n")[2]
    text = _SOURCE_PATH.sub(lambda found: found[1] + _written(uri, location, found[2], project), text, count=1)
    return text if name is None else re.sub(r"(?m)^  name: .*$", lambda _: f'  name: "{name}"', text, count=1)


def _written(uri: str, location: str, found: str, project: Path | None) -> str:
    """Return the place of a source, as its user says it; what was found may be a split below what was given."""
    below = found[1:-1].removeprefix(location)
    if "$" in uri:
        return f'"{uri.rstrip("/")}{below}"'
    if project is not None and (root := f"{project.resolve()}/") and found[1:].startswith(root):
        return '"{{ context.project_root }}/' + found[1 + len(root) :]
    return found

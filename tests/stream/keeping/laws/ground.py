"""Where a law is tried: sources, a place in which files are kept, and machines that have it in common.

    <home>/sources    sources, which no law changes
    <home>/kept       the place, if it is a folder
    <home>/<machine>  what one machine has of a store: its working folder, its mirrors, its drafts

The state of a ground, with the objects of its store, can be saved and had again as often as a law is tried.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import spiral_stream as sp
from tests.fixtures import stores

PLACES: Final = ("folder", "store")
SOURCES: Final = "sources"
ALIKE: Final = re.compile(
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{8,}|(?<=[.])[0-9]{5}$"
)  # names, and days


@dataclass(frozen=True)
class Ground:
    """One place, seen from one machine."""

    home: Path
    endpoint: str = ""  # of the store; empty for a folder
    bucket: str = ""
    machine: str = "a"

    @property
    def place(self) -> str:
        return "store" if self.endpoint else "folder"

    def uri(self, name: str) -> str:
        """Where something is kept."""
        return f"s3://{self.bucket}/{name}" if self.endpoint else str(self.home / "kept" / name)

    def on(self, machine: str) -> "Ground":
        """The same place, seen from another machine."""
        return replace(self, machine=machine)

    @property
    def own(self) -> Path:
        """What this machine has for itself."""
        return self.home / self.machine

    def catalog(self) -> sp.Catalog:
        """The catalog of the sources, which no law changes."""
        return sp.connect(str(self.home / SOURCES / "catalog"))

    def kept_catalog(self) -> sp.Catalog:
        """The catalog that lies in the place."""
        return sp.connect(self.uri("catalog"))

    def environment(self) -> dict[str, str]:
        """The settings of this machine."""
        self.own.mkdir(parents=True, exist_ok=True)
        lines = ["[tests]", 'prefix = "s3://"']
        lines += [f"{name} = {json.dumps(value)}" for name, value in stores.options(self.endpoint).items()]
        draft = (
            self.own / f"profiles.{os.getpid()}"
        )  # ranks of a machine read it while others start: half of it names no store
        draft.write_text("\n".join(lines))
        draft.replace(self.own / "profiles.toml")
        return {
            "SPIRAL_CACHE": self.uri("prepared"),
            "SPIRAL_NODE_CACHE": str(self.own / "node"),
            "SPIRAL_CATALOG_MIRROR": str(self.own / "mirror"),
            "SPIRAL_STORAGE": str(self.own / "profiles.toml"),
        }

    def described(self) -> dict[str, Any]:
        """What another process makes this of."""
        return {name: str(value) for name, value in asdict(self).items()}

    @classmethod
    def of(cls, described: Mapping[str, str]) -> "Ground":
        return cls(**{**described, "home": Path(described["home"])})  # type: ignore[arg-type]

    def files(self) -> dict[str, bytes]:
        """Everything that is kept, by its name: of a store the objects, of a folder the files."""
        if self.endpoint:
            return {key: stores.object_of(self.endpoint, self.bucket, key) for key in self.names()}
        return {name: (self.home / "kept" / name).read_bytes() for name in self.names()}

    def names(self) -> list[str]:
        """The names of all that is kept."""
        if self.endpoint:
            return stores.objects(self.endpoint, self.bucket)
        return files_below(self.home / "kept")

    def write(self, name: str, data: bytes | None) -> None:
        """Let something that is kept be this; None removes it."""
        if self.endpoint:
            stores.put(self.endpoint, self.bucket, name, data)
            return
        path = self.home / "kept" / name
        path.unlink(missing_ok=True)  # a saved state may have a link to it
        if data is not None:
            path.write_bytes(data)

    def alike(self) -> list[str]:
        """The names of all that is kept and of all that the machine has, without what differs from build to build."""
        return sorted(ALIKE.sub("*", name) for name in self.names())

    def left_here(self) -> list[str]:
        """The names of the machine's own files, likewise."""
        return sorted(ALIKE.sub("*", name) for name in files_below(self.own))


def files_below(folder: Path) -> list[str]:
    """The files below a folder."""
    found = [Path(at, name) for at, _, names in os.walk(folder) for name in names]
    return sorted(path.relative_to(folder).as_posix() for path in found)


class Saved:
    """The state of what is kept and of the machines, to be had again; sources stay where they are.

    Rows of Lance are linked, not copied: a catalog knows the files of its rows by their inodes.
    """

    def __init__(self, ground: Ground, name: str) -> None:
        self._ground = ground
        self._copy = ground.home.with_name(f"{ground.home.name}.{name}")
        shutil.copytree(ground.home, self._copy, ignore=_sources, copy_function=_copy_or_link)
        self._objects = ground.files() if ground.endpoint else {}

    def again(self) -> None:
        """Let it be as it was."""
        for each in self._ground.home.iterdir():
            if each.name != SOURCES:
                shutil.rmtree(each)
        shutil.copytree(self._copy, self._ground.home, copy_function=_copy_or_link, dirs_exist_ok=True)
        if self._ground.endpoint:
            now = self._ground.files()
            for key in now.keys() - self._objects.keys():
                self._ground.write(key, None)
            for key, data in self._objects.items():
                if now.get(key) != data:
                    self._ground.write(key, data)


def _sources(folder: str, names: list[str]) -> list[str]:
    del folder
    return [SOURCES] if SOURCES in names else []


def _copy_or_link(source: str, target: str) -> None:
    if source.endswith(".lance"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


@contextmanager
def settings(ground: Ground) -> Iterator[None]:
    """This process is the machine."""
    before = dict(os.environ)
    os.environ.update(ground.environment())
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)

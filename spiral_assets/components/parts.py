"""What several components have in common: functions by name, plans, checks, and who owns an asset."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import dagster as dg
from pydantic import Field

from spiral_assets.assets.measure import Check
from spiral_assets.named import Named, Plan, SavedPlan
from spiral_assets.reading.location import Path
from spiral_assets.reading.positions import Wrong
from spiral_assets.reading.source_fields import wrong_function

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # of what a catalog has


class FunctionByName(dg.Model, dg.Resolvable):
    """A Python function, imported when an asset's body runs."""

    function: str = Field(description="module:function", examples=["shop.plans:every_photo"])
    arguments: dict[str, Any] = Field(default_factory=dict, description="Given to the function by name.")

    def named(self) -> Named:
        """Return the function."""
        return Named(self.function, self.arguments)


class PlanByName(dg.Model, dg.Resolvable):
    """A plan: a Python function that gets the catalog and returns a relation, or a saved stream."""

    function: str | None = Field(default=None, description="module:function", examples=["shop.plans:every_photo"])
    arguments: dict[str, Any] = Field(default_factory=dict, description="Given to the function by name.")
    stream: str | None = Field(
        default=None, description="A stream that is saved in the catalog, in place of a function."
    )
    trust: Sequence[str] = Field(default=(), description="Modules whose functions the saved stream's plan may name.")

    def plan(self) -> Plan:
        """Return the plan.

        Raises:
            DagsterInvalidDefinitionError: it names neither, or both.
        """
        if (self.function is None) == (self.stream is None):
            msg = "plan: give either function: module:function, or stream: name of a saved stream"
            raise dg.DagsterInvalidDefinitionError(msg)
        if self.stream is not None:
            return SavedPlan(self.stream, tuple(self.trust))
        return Named(self.function or "", self.arguments)


def plan_of(said: str | PlanByName) -> Plan:
    """Return a plan; text is the name of a function."""
    return Named(said) if isinstance(said, str) else said.plan()


def function_of(said: str | FunctionByName) -> Named:
    """Return a function; text is its name."""
    return Named(said) if isinstance(said, str) else said.named()


class OwnCheck(dg.Model, dg.Resolvable):
    """A check of your own: a function that gets the catalog and returns a dagster.AssetCheckResult."""

    name: str
    function: str | FunctionByName = Field(description="module:function, or the function with arguments.")
    description: str = ""
    blocking: bool = Field(default=True, description="Whether nothing is built on the asset while the check fails.")
    deps: Sequence[str] = Field(default=(), description="Other assets that the function reads.")

    def check(self) -> Check:
        """Return the check."""
        return Check(self.name, function_of(self.function), self.description, self.blocking, tuple(self.deps))


def wrong_name(path: Path, name: str) -> Iterator[Wrong]:
    """Yield what is wrong with a name in a catalog."""
    if not _NAME.fullmatch(name):
        yield Wrong(path, f"{name!r} is no name: a name has letters, digits and _ . - only. Rename it")


def wrong_named(path: Path, said: str | FunctionByName, given: int) -> Iterator[Wrong]:
    """Yield what is wrong with a function that gets so many values before its arguments."""
    yield from wrong_function(path, said if isinstance(said, str) else said.model_dump(), given)


def wrong_plan(path: Path, said: str | PlanByName) -> Iterator[Wrong]:
    """Yield what is wrong with a plan."""
    if isinstance(said, str):
        yield from wrong_function(path, said, 1)
    elif (said.function is None) == (said.stream is None):
        yield Wrong(path, "give either function: module:function, or stream: name of a saved stream")
    elif said.function is not None:
        yield from wrong_function(path, {"function": said.function, "arguments": said.arguments}, 1)


def stream_of(path: Path, said: str | PlanByName) -> list[tuple[Path, str]]:
    """Return the saved stream that a plan is, and where it is named; nothing for a function."""
    return [] if isinstance(said, str) or said.stream is None else [((*path, "stream"), said.stream)]


def wrong_checks(checks: "Sequence[OwnCheck]") -> Iterator[Wrong]:
    """Yield what is wrong with the functions of checks, and names that two of them have."""
    names = [each.name for each in checks]
    for at, each in enumerate(checks):
        if each.name in names[:at]:
            yield Wrong(("checks", at, "name"), f"two checks are called {each.name!r}. Give each a name of its own")
        yield from wrong_named(("checks", at, "function"), each.function, 1)


class Owned(dg.Model):
    """Fields that every asset has."""

    description: str = Field(default="", description="Shown in the UI.")
    domain: str = Field(default="", description="Tag by which jobs select what belongs together.")
    owners: Sequence[str] | None = Field(default=None, description="Teams (team:data) or e-mail addresses.")

    def owned(self) -> dict[str, Any]:
        """Return them as a factory's arguments; what is not said is left to the factory."""
        found: dict[str, Any] = {"domain": self.domain}
        if self.description:
            found["description"] = self.description
        if self.owners is not None:
            found["owners"] = list(self.owners)
        return found

"""What several components have in common: functions by name, plans, checks, and who owns an asset."""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal

import dagster as dg
from dagster._core.definitions.utils import is_valid_owner
from dagster._utils.schedules import is_valid_cron_string
from dagster.components.resolved.core_models import OpSpec
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import Field

from spiral_assets.assets.hooks import AssetProps, Hooks
from spiral_assets.assets.measure import Check
from spiral_assets.components.face import Face
from spiral_assets.conventions import RESOURCE
from spiral_assets.named import Named, Plan, SavedPlan
from spiral_assets.reading.bounds import Amount, Count
from spiral_assets.reading.location import Path
from spiral_assets.reading.positions import Wrong
from spiral_assets.reading.source_fields import wrong_function
from spiral_assets.resources import CatalogResource

KIND_PREFIX: Final = "dagster/kind/"  # of the tags that are kinds
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")  # of what a catalog has
_KEY: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")  # a part of the key of an asset
_CHECK: Final = re.compile(r"[A-Za-z0-9_]+")
_TAG: Final = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_DEP: Final = re.compile(r"[^/\s]+(/[^/\s]+)*")


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
        yield Wrong(
            path,
            f"{name!r} is no name: a name has letters, digits and _ . - only, and a part between two dots. Rename it",
        )


def wrong_key(path: Path, *parts: str) -> Iterator[Wrong]:
    """Yield what is wrong with the parts of an asset's key that its name gives."""
    name = "/".join(parts)
    if not all(_KEY.fullmatch(part) for part in parts):
        yield Wrong(path, f"{name!r} is no name of an asset: it has letters, digits, _ and - only. Rename it")


def wrong_schedule(path: Path, said: str | None) -> Iterator[Wrong]:
    """Yield what is wrong with a cron expression."""
    if said is not None and not said.startswith("@") and not is_valid_cron_string(said):
        yield Wrong(
            path, f"{said!r} is no cron expression. Give minute, hour, day, month and day of the week: 0 3 * * *"
        )


def wrong_deps(path: Path, deps: Sequence[str], key: str = "") -> Iterator[Wrong]:
    """Yield what is wrong with the assets that one with a key needs."""
    for at, dep in enumerate(deps):
        if not _DEP.fullmatch(dep):
            yield Wrong((*path, at), f"{dep!r} is no key of an asset. Write its parts with /: catalog/shop/photos")
        elif dep == key:
            yield Wrong((*path, at), f"{dep!r} is this asset itself. Leave it out")


def twice(path: Path, names: Sequence[str], what: str) -> Iterator[Wrong]:
    """Yield the names that stand twice in a list."""
    for at, name in enumerate(names):
        if name in names[:at]:
            yield Wrong((*path, at), f"{what} {name!r} stands twice. Leave one of them out")


def wrong_named(path: Path, said: str | FunctionByName, given: int) -> Iterator[Wrong]:
    """Yield what is wrong with a function that gets so many values before its arguments."""
    yield from wrong_function(path, said if isinstance(said, str) else said.model_dump(), given)


def wrong_plan(path: Path, said: str | PlanByName) -> Iterator[Wrong]:
    """Yield what is wrong with a plan."""
    if isinstance(said, str):
        yield from wrong_function(path, said, 1)
    elif (said.function is None) == (said.stream is None):
        yield Wrong(path, "give either function: module:function, or stream: name of a saved stream")
    elif said.stream is not None and said.arguments:
        yield Wrong(
            (*path, "arguments"), "a saved stream takes none. Leave them out, or give function in place of stream"
        )
    elif said.function is not None and said.trust:
        yield Wrong((*path, "trust"), "it is for saved streams, and this is a function. Leave it out")
    elif said.function is not None:
        yield from wrong_function(path, {"function": said.function, "arguments": said.arguments}, 1)


def stream_of(path: Path, said: str | PlanByName) -> list[tuple[Path, str]]:
    """Return the saved stream that a plan is, and where it is named; nothing for a function."""
    return [] if isinstance(said, str) or said.stream is None else [((*path, "stream"), said.stream)]


def wrong_check(path: Path, name: str) -> Iterator[Wrong]:
    """Yield what is wrong with the name of a check."""
    if not _CHECK.fullmatch(name):
        yield Wrong(path, f"{name!r} is no name of a check: it has letters, digits and _ only. Rename it")


def wrong_checks(checks: "Sequence[OwnCheck]") -> Iterator[Wrong]:
    """Yield what is wrong with the functions of checks, and names that two of them have."""
    names = [each.name for each in checks]
    for at, each in enumerate(checks):
        yield from wrong_check(("checks", at, "name"), each.name)
        if each.name in names[:at]:
            yield Wrong(("checks", at, "name"), f"two checks are called {each.name!r}. Give each a name of its own")
        yield from wrong_deps(("checks", at, "deps"), each.deps)
        yield from wrong_named(("checks", at, "function"), each.function, 1)


class RetryOptions(dg.Model, dg.Resolvable):
    """When a step that failed is tried again."""

    max_retries: Count = Field(default=1, description="How often.")
    delay: Amount | None = Field(default=None, description="Seconds before a retry.")
    backoff: Literal["linear", "exponential"] | None = Field(default=None, description="How the delay grows.")
    jitter: Literal["full", "plus_minus"] | None = Field(default=None, description="How the delay is spread.")

    def policy(self) -> dg.RetryPolicy:
        """Return Dagster's policy."""
        backoff = None if self.backoff is None else dg.Backoff[self.backoff.upper()]
        jitter = None if self.jitter is None else dg.Jitter[self.jitter.upper()]
        return dg.RetryPolicy(self.max_retries, self.delay, backoff, jitter)


class StepOptions(OpSpec):
    """The step of an asset, as Dagster's components say it, and when it is tried again."""

    retry_policy: RetryOptions | None = None


class AssetFacts(dict[str, Any]):
    """What templates know of an asset; a name that there is not is refused."""

    def __missing__(self, name: str) -> Any:
        msg = f"there is no {name!r}; there is {', '.join(self)}. Correct the template"
        raise dg.DagsterInvalidDefinitionError(msg)


class Owned(Face):
    """A component with assets. A subclass changes them with ``get_asset_spec``, and what their steps do with ``execute``."""

    description: str = Field(default="", description="Shown in the UI.")
    domain: str = Field(default="", description="Tag by which jobs select what belongs together.")
    owners: Sequence[str] | None = Field(default=None, description="Teams (team:data) or e-mail addresses.")
    catalog: str = Field(default=RESOURCE, description="Name of the Catalog, where the location has several.")
    op: Annotated[
        StepOptions | None,
        dg.Resolver.default(
            description="The step: name, tags, pool, backfill_policy, retry_policy.",
            examples=[{"pool": "gpu", "retry_policy": {"max_retries": 3, "delay": 30}}],
        ),
    ] = None
    translation: Annotated[
        TranslationFn[AssetProps] | None,
        TranslationFnResolver(template_vars_for_translation_fn=lambda props: {props.kind: AssetFacts(props.about)}),
    ] = None

    def owned(self) -> dict[str, Any]:
        """Return them as a factory's arguments; what is not said is left to the factory."""
        found: dict[str, Any] = {"domain": self.domain, "hooks": self.hooks()}
        if self.description:
            found["description"] = self.description
        if self.owners is not None:
            found["owners"] = list(self.owners)
        return found

    def get_asset_spec(self, props: AssetProps) -> dg.AssetSpec:
        """Return an asset as it should be; ``translation`` in YAML changes what this returns.

        Args:
            props: the asset as Spiral defines it (``props.spec``), and what it is of (``props.about``).
        """
        return props.spec

    def execute(
        self, context: dg.AssetExecutionContext, catalog: CatalogResource, props: AssetProps
    ) -> Iterator[dg.MaterializeResult[None]]:
        """Do what the step of an asset does.

        Args:
            context: of the step.
            catalog: of the component.
            props: the asset.
        """
        yield from props.run(context, catalog)

    def hooks(self) -> Hooks:
        """Return what the component changes of the assets that its factory makes."""
        retry = self.op.retry_policy if self.op is not None else None
        policy = None if retry is None else retry.policy()
        return Hooks(self._translated, self.execute, self.op, policy, self.catalog)

    def catalog_name(self) -> str:
        """Return the name of its catalog."""
        return self.catalog

    def wrong(self) -> Iterator[Wrong]:
        """Yield what is wrong in the attributes that all components with assets have."""
        for at, owner in enumerate(self.owners or ()):
            if not is_valid_owner(owner):
                yield Wrong(("owners", at), f"{owner!r} is no owner. Give an e-mail address, or a team as team:{owner}")
        if self.domain and not _TAG.fullmatch(self.domain):
            said = f"{self.domain!r} is no tag: it has up to 63 letters, digits and _ . - only. Rename it"
            yield Wrong(("domain",), said)
        if self.op is not None and self.op.name is not None and not _CHECK.fullmatch(self.op.name):
            yield Wrong(("op", "name"), f"{self.op.name!r} is no name of a step: letters, digits and _ only. Rename it")

    def _translated(self, props: AssetProps) -> dg.AssetSpec:
        spec = self.get_asset_spec(props)
        if self.translation is None:
            return spec
        found = self.translation(spec, props)
        return found if not props.part else following(spec, found, props.part)


def following(spec: dg.AssetSpec, found: dg.AssetSpec, part: str) -> dg.AssetSpec:
    """Return an asset that goes with another: with its group, tags, owners and metadata, and its key with a part behind it.

    Args:
        spec: before the translation of the other.
        found: after it.
        part: the last part of the key, where the translation says the whole key.
    """
    path, was = found.key.path, spec.key.path
    key = found.key if path[-len(was) :] == was else dg.AssetKey([*path, part])
    kinds = {name: value for name, value in spec.tags.items() if name.startswith(KIND_PREFIX)}
    tags = {name: value for name, value in found.tags.items() if not name.startswith(KIND_PREFIX)}
    return spec.replace_attributes(
        key=key, group_name=found.group_name, owners=found.owners, metadata=found.metadata, tags={**tags, **kinds}
    )

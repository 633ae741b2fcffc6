"""What a definition names instead of holding it: Python functions and saved streams.

A definition is made in every process of a run, so it imports no plan, opens no catalog and reads no data. `Named` and
`SavedPlan` are looked up when an asset's body calls them.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, final

import dagster as dg

if TYPE_CHECKING:
    import spiral_stream as spiral

_FUNCTION: Final = re.compile(r"(\w+\.)*\w+:\w+")


@final
@dataclass(frozen=True)
class Named:
    """A Python function by its name, and arguments that are given to it by name.

    Args:
        function: ``module:function``.
        arguments: given in addition to what the caller gives.

    Examples:
        >>> from spiral_assets.assets import Named
        >>> plan = Named("spiral_assets.plans.standard:decoded_images", {"relation": "shop.photos"})
        >>> with plan(catalog).to_numpy() as stream:
        ...     len(stream)
        24
    """

    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _FUNCTION.fullmatch(self.function):
            msg = f"function {self.function!r} is not of the form module:function. Write package.module:function"
            raise dg.DagsterInvalidDefinitionError(msg)

    @property
    def module(self) -> str:
        """The module's name."""
        return self.function.partition(":")[0]

    @property
    def name(self) -> str:
        """The function's name in its module."""
        return self.function.partition(":")[2]

    def __call__(self, *given: Any) -> Any:
        """Import the module, and call the function.

        Raises:
            DagsterInvalidInvocationError: the module has no such function.
        """
        found = getattr(import_module(self.module), self.name, None)
        if not callable(found):
            msg = f"function {self.function!r}: the module has no function {self.name!r}. Correct the name, or write it"
            raise dg.DagsterInvalidInvocationError(msg)
        return found(*given, **self.arguments)


@final
@dataclass(frozen=True)
class SavedPlan:
    """The plan of a stream that is saved in the catalog, whoever saved it.

    Args:
        stream: the name under which it was saved.
        trust: modules whose functions the plan may name.

    Examples:
        >>> from spiral_assets.assets import SavedPlan
        >>> with SavedPlan("shop-labels")(catalog).to_numpy() as stream:
        ...     len(stream)
        3
    """

    stream: str
    trust: tuple[str, ...] = ()

    def __call__(self, catalog: "spiral.Catalog") -> "_Opened":
        return _Opened(self, catalog)


@final
class _Opened:
    """A saved plan over one catalog. It ends with a verb already, so both verbs open the stream as it was saved."""

    def __init__(self, plan: SavedPlan, catalog: "spiral.Catalog") -> None:
        self._plan, self._catalog = plan, catalog

    def to_numpy(self) -> "spiral.PreparedStream":
        return self._catalog.open_stream(self._plan.stream, trust=self._plan.trust)

    def to_torch(self, **_: Any) -> "spiral.PreparedStream":
        return self.to_numpy()


# A plan over the relations of a catalog: a function, the name of one, or a saved stream.
Plan = Callable[["spiral.Catalog"], "spiral.Relation | _Opened"]


def called(function: str, arguments: Mapping[str, Any] | None = None) -> Named:
    """Return the named function with its arguments."""
    return Named(function, dict(arguments or {}))


def parts(plan: Callable[..., Any]) -> tuple[str, str, Mapping[str, Any]]:
    """Return module, name and arguments of a plan's function."""
    given: dict[str, Any] = {}
    while isinstance(plan, partial):
        given = {**{str(at): value for at, value in enumerate(plan.args)}, **plan.keywords, **given}
        plan = plan.func
    if isinstance(plan, Named):
        return plan.module, plan.name, {**plan.arguments, **given}
    return getattr(plan, "__module__", ""), getattr(plan, "__qualname__", ""), given

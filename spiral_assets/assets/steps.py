"""Assets that share steps: many relations are registered, checked and measured one after another in one step.

Dagster spends most of the time of a small relation on the events of its steps. Which step an asset shares follows from its name
alone, so steps stay as they are when relations come and go. A run of some assets does no more than those. What fails of one
asset is told when the others of its step are done.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import dagster as dg

from spiral_assets.conventions import renamed
from spiral_assets.facts.rules import Rule
from spiral_assets.resources import CatalogResource

SINGLE: Final = 64  # assets; up to so many, each has a step of its own by default
SHARED: Final = 32  # steps that more assets share by default
REGISTER: Final = "register"  # kinds of steps
MEASURE: Final = "measure"
_NAMED: Final = 3  # failures in a message


@final
@dataclass(frozen=True)
class StepAsset:
    """An asset of which a step of its own, or one that it shares, makes what it is.

    Attributes:
        name: of the relation, which says which step it shares.
        spec: the asset, as it is shown.
        body: makes it; gets ``context`` and ``catalog``.
        rules: must hold of it.
        check_specs: of checks that the body evaluates.
    """

    name: str
    spec: dg.AssetSpec
    body: Callable[[Any, CatalogResource], dg.MaterializeResult[None]]
    rules: Sequence[Rule] = ()
    check_specs: Sequence[dg.AssetCheckSpec] = ()

    @property
    def may_share(self) -> bool:
        """Whether it may share a step: it has no partitions, and its rules read no other assets."""
        return self.spec.partitions_def is None and not any(rule.deps for rule in self.rules)

    def results(self, context: Any, catalog: CatalogResource) -> Iterator[dg.MaterializeResult[None] | Any]:
        """Make what was selected of it and yield it, and then what its rules find."""
        key, checks = (
            self.spec.key,
            {each.name for each in context.selected_asset_check_keys if each.asset_key == self.spec.key},
        )
        is_made = key in context.selected_asset_keys
        if is_made or any(each.name in checks for each in self.check_specs):
            result = self.body(context, catalog)
            found = [each for each in result.check_results or () if each.check_name in checks]
            if is_made:
                yield result._replace(asset_key=key, check_results=found)
            else:
                yield from found
        for rule in self.rules:
            if rule.name in checks:
                yield rule.found(context.instance, key, catalog)


@final
@dataclass
class SharedSteps:
    """Steps that assets share.

    Attributes:
        name: begins the name of each step.
        count: how many there are of each kind.
        catalog: key of the resource that is the catalog.
        options: of the steps: pool, tags and retry policy.
    """

    name: str
    count: int
    catalog: str
    options: dict[str, Any] = field(default_factory=dict)
    _assets: dict[str, list[StepAsset]] = field(default_factory=dict)
    _keys: dict[tuple[str, str], dg.AssetKey] = field(default_factory=dict)

    def add(self, kind: str, asset: StepAsset) -> None:
        """Put an asset into the step that its name says.

        Args:
            kind: of assets that share steps with each other only.
            asset: to put there.
        """
        step = zlib.crc32(asset.name.encode()) % self.count
        self._keys[kind, asset.name] = asset.spec.key
        self._assets.setdefault(f"{kind}_{self.name}_{step:02d}", []).append(asset)

    def key(self, kind: str, name: str) -> dg.AssetKey | None:
        """Return the key of an asset that shares a step; None for one that does not.

        Args:
            kind: of step.
            name: of the relation.
        """
        return self._keys.get((kind, name))

    def definitions(self) -> dg.Definitions:
        """Return the assets of all steps."""
        return dg.Definitions(assets=[self._step(name, assets) for name, assets in sorted(self._assets.items())])

    def _step(self, name: str, assets: Sequence[StepAsset]) -> dg.AssetsDefinition:
        checks = [
            spec for each in assets for spec in (*each.check_specs, *(rule.spec(each.spec.key) for rule in each.rules))
        ]

        @dg.multi_asset(
            name=name,
            specs=[each.spec for each in assets],
            check_specs=checks or None,
            can_subset=True,
            description=f"{len(assets)} relations, one after another.",
            **self.options,
        )
        @renamed(self.catalog)
        def step(context: dg.AssetExecutionContext, catalog: CatalogResource) -> Iterator[Any]:
            failed: list[tuple[str, Exception]] = []
            for each in assets:
                try:
                    yield from each.results(context, catalog)
                except Exception as error:
                    context.log.exception("%s failed", each.spec.key.to_user_string())
                    failed.append((each.spec.key.to_user_string(), error))
            if failed:
                raise _failure(failed, len(assets)) from failed[0][1]

        return step


def _failure(failed: Sequence[tuple[str, Exception]], assets: int) -> dg.Failure:
    words = "; ".join(f"{key}: {_words(error)}" for key, error in failed[:_NAMED])
    more = f"; and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
    again = any(not isinstance(error, dg.Failure) or error.allow_retries for _, error in failed)
    return dg.Failure(
        f"{len(failed)} of the {assets} assets of this step failed: {words}{more}. The others are done",
        allow_retries=again,
    )


def _words(error: Exception) -> str:
    return str(error.description if isinstance(error, dg.Failure) else error)

"""Assets that share steps: many relations are registered, checked and measured one after another in one step.

Dagster spends most of the time of a small relation on the events of its steps. Which step an asset shares follows from its name
alone, so steps stay as they are when relations come and go. A run of some assets does no more than those. What fails of one
asset is told when the others of its step are done.
"""

import zlib
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, final

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData

from spiral_assets.conventions import renamed
from spiral_assets.facts.folded import fitted
from spiral_assets.facts.rules import Rule
from spiral_assets.resources import CatalogResource

SINGLE: Final = 64  # assets; up to so many, each has a step of its own by default
SHARED: Final = 32  # steps that more assets share by default
REGISTER: Final = "register"  # kinds of steps
MEASURE: Final = "measure"
_NAMED: Final = 3  # failures in a message
_TOGETHER: Final = 32  # assets of a step that are made before their checks are evaluated

Results = Iterator[dg.AssetCheckResult]


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

    def made(
        self, context: Any, catalog: CatalogResource, selected: "_Selected"
    ) -> Generator[dg.MaterializeResult[None], None, list[dg.AssetCheckResult]]:
        """Make it if it was selected, or a check that its body evaluates; yield what it is, and return what its body found."""
        key, checks = self.spec.key, selected.checks[self.spec.key]
        is_made = key in selected.assets
        if not is_made and not any(each.name in checks for each in self.check_specs):
            return []
        result = self.body(context, catalog)
        if is_made:
            yield fitted(result)._replace(asset_key=key, check_results=[])
        found = [each for each in result.check_results or () if each.check_name in checks]
        return [each._replace(asset_key=key) for each in found]

    def judged(self, instance: dg.DagsterInstance, catalog: CatalogResource, selected: "_Selected") -> Results:
        """Yield what those of its rules find that were selected."""
        for rule in self.rules:
            if rule.name in selected.checks[self.spec.key]:
                yield rule.found(instance, self.spec.key, catalog)

    def evaluation(
        self, found: dg.AssetCheckResult, target: AssetCheckEvaluationTargetMaterializationData | None
    ) -> Iterator[Any]:
        """Yield what Dagster makes of a result, where the materialization that it is of is known."""
        specs = (*self.check_specs, *(rule.spec(self.spec.key) for rule in self.rules))
        (spec,) = [each for each in specs if each.name == found.check_name]
        yield dg.Output(None, spec._replace(asset_key=self.spec.key).get_python_identifier())
        yield dg.AssetCheckEvaluation(
            asset_key=self.spec.key,
            check_name=spec.name,
            passed=found.passed,
            metadata=found.metadata,
            target_materialization_data=target,
            severity=found.severity,
            description=found.description,
            blocking=spec.blocking,
        )


@final
class _Selected:
    """What of a step was selected: the keys of assets, and the names of the checks of each."""

    def __init__(self, context: Any) -> None:
        self.assets: frozenset[dg.AssetKey] = frozenset(context.selected_asset_keys)
        self.checks: dict[dg.AssetKey, set[str]] = defaultdict(set)
        for each in context.selected_asset_check_keys:
            self.checks[each.asset_key].add(each.name)


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
            selected = _Selected(context)
            for first in range(0, len(assets), _TOGETHER):
                yield from _run(context, catalog, assets[first : first + _TOGETHER], selected, failed)
            if failed:
                raise _failure(failed, len(assets)) from failed[0][1]

        return step


def _run(
    context: Any,
    catalog: CatalogResource,
    assets: Sequence[StepAsset],
    selected: _Selected,
    failed: list[tuple[str, Exception]],
) -> Iterator[Any]:
    """Make some assets, and evaluate their checks then; the materializations that these are of are looked up together."""
    found: list[tuple[StepAsset, list[dg.AssetCheckResult]]] = []
    for each in assets:
        with _noted(context, each, failed):
            found.append((each, (yield from each.made(context, catalog, selected))))
    checked = [each.spec.key for each, _ in found if selected.checks[each.spec.key]]
    targets = _materializations(context.instance, checked)
    for each, results in found:
        with _noted(context, each, failed):
            for result in (*results, *each.judged(context.instance, catalog, selected)):
                yield from each.evaluation(result, targets.get(each.spec.key))


@contextmanager
def _noted(context: Any, asset: StepAsset, failed: list[tuple[str, Exception]]) -> Iterator[None]:
    """Note that an asset failed, and go on."""
    key = asset.spec.key.to_user_string()
    try:
        yield
    except Exception as error:
        context.log.exception("%s failed", key)
        failed.append((key, error))


def _materializations(
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetKey]
) -> dict[dg.AssetKey, AssetCheckEvaluationTargetMaterializationData]:
    """The last materialization of each asset, found by one look-up: one for each check takes longer than to register it."""
    records = (
        [each.asset_entry.last_materialization_record for each in instance.get_asset_records(keys)] if keys else []
    )
    return {
        each.asset_key: AssetCheckEvaluationTargetMaterializationData(
            storage_id=each.storage_id, run_id=each.run_id, timestamp=each.timestamp
        )
        for each in records
        if each is not None and each.asset_key is not None
    }


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

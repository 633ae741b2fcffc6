"""What a component changes of the assets that a factory makes: what they are called, how their steps run, and what those do."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Final, final

import dagster as dg
from dagster.components.resolved.core_models import OpSpec

from spiral_assets import conventions
from spiral_assets.assets.steps import SharedSteps, StepAsset
from spiral_assets.conventions import RESOURCE, renamed
from spiral_assets.facts.folded import fitted
from spiral_assets.resources import CatalogResource

Results = Iterator[dg.MaterializeResult[None]]


@final
@dataclass(frozen=True)
class AssetProps:
    """One asset of a component: what its ``get_asset_spec`` and ``execute`` get.

    Attributes:
        kind: how templates call it: ``relation``, ``cache``, ``stream``, ``model``, ``tokenizer``, ``measure`` or ``index``.
        about: what templates know of it: ``name``, ``namespace`` and the fields of its component.
        spec: the asset, as Spiral defines it.
        part: of an asset that goes with another, such as the statistics of a relation; empty for others.
        body: what its step does.

    Examples:
        >>> import dagster as dg
        >>> from spiral_assets.assets import AssetProps
        >>> about = {"name": "shop.photos", "namespace": "shop"}
        >>> props = AssetProps("relation", about, dg.AssetSpec(["catalog", "shop", "photos"]))
        >>> props.about["namespace"], props.spec.key.path
        ('shop', ['catalog', 'shop', 'photos'])
    """

    kind: str
    about: Mapping[str, Any]
    spec: dg.AssetSpec
    part: str = ""
    body: Callable[[dg.AssetExecutionContext, CatalogResource], Any] | None = None

    def run(self, context: dg.AssetExecutionContext, catalog: CatalogResource) -> Results:
        """Do what the step of the asset does, and yield what it made.

        Args:
            context: of the step.
            catalog: of the component.
        """
        assert self.body is not None
        yield self.body(context, catalog)


@final
@dataclass(frozen=True)
class Hooks:
    """What a component changes of the assets that a factory makes.

    Attributes:
        get_asset_spec: returns the asset as it should be.
        execute: does what its step should do.
        op: name, tags, pool and backfill policy of the step.
        retry_policy: of the step.
        catalog: key of the resource that is its catalog.
        steps: that its relations share; None gives each a step.

    Examples:
        >>> from spiral_assets.assets import Hooks, Named, cache_asset
        >>> plan = Named("spiral_assets.plans.standard:decoded_images", {"relation": "shop.photos"})
        >>> hooks = Hooks(get_asset_spec=lambda props: props.spec.replace_attributes(group_name="lake"))
        >>> asset = cache_asset("photos", plan=plan, deps=["catalog/shop/photos"], description="Photos.", hooks=hooks)
        >>> set(asset.group_names_by_key.values())
        {'lake'}
    """

    get_asset_spec: Callable[[AssetProps], dg.AssetSpec] = lambda props: props.spec
    execute: Callable[[dg.AssetExecutionContext, CatalogResource, AssetProps], Results] = (
        lambda context, catalog, props: props.run(context, catalog)
    )
    op: OpSpec | None = None
    retry_policy: dg.RetryPolicy | None = None
    catalog: str = RESOURCE
    steps: SharedSteps | None = None

    def spec(self, props: AssetProps) -> dg.AssetSpec:
        """Return the asset as it will be.

        Args:
            props: the asset, as Spiral defines it.
        """
        return _marked(self.get_asset_spec(props), props.spec, self.catalog)

    def relation(self, props: AssetProps, asset: StepAsset, kind: str) -> dg.Definitions:
        """Return an asset of a relation and its checks; nothing where it shares a step, which has them.

        Args:
            props: the asset, as Spiral defines it.
            asset: as it will be.
            kind: of assets that share steps.
        """
        if self.steps is not None and asset.may_share:
            self.steps.add(kind, asset)
            return dg.Definitions()
        made = self.asset(props, asset.body, check_specs=list(asset.check_specs), spec=asset.spec)
        return dg.Definitions(assets=[made], asset_checks=[rule.check(made) for rule in asset.rules])

    def asset(
        self,
        props: AssetProps,
        body: Callable[..., Any],
        *,
        pool: str | None = None,
        retry_policy: dg.RetryPolicy | None = None,
        backfill_policy: dg.BackfillPolicy | None = None,
        check_specs: list[dg.AssetCheckSpec] | None = None,
        spec: dg.AssetSpec | None = None,
    ) -> dg.AssetsDefinition:
        """Return the definition of an asset.

        Args:
            props: the asset, as Spiral defines it.
            body: its step: gets ``context`` and ``catalog``, and other resources.
            pool: of the step, where the component says none.
            retry_policy: of the step, where the component says none.
            backfill_policy: of the asset, where the component says none.
            check_specs: of checks that the step evaluates.
            spec: the asset as it will be, where it is known.
        """
        spec, op = spec or self.spec(props), self.op or OpSpec()
        name = (
            "_".join([op.name, *([props.part] if props.part else [])]) if op.name else spec.key.to_python_identifier()
        )
        checks = [check._replace(asset_key=spec.key) for check in check_specs or []]

        @dg.multi_asset(
            name=name,
            specs=[spec],
            check_specs=checks or None,
            partitions_def=spec.partitions_def,
            description=op.description or spec.description,
            op_tags=op.tags,
            pool=op.pool or pool,
            retry_policy=self.retry_policy or retry_policy,
            backfill_policy=op.backfill_policy or backfill_policy,
        )
        @renamed(self.catalog)
        @wraps(body)
        def step(context: dg.AssetExecutionContext, catalog: CatalogResource, **more: Any) -> Results:
            def run(context: dg.AssetExecutionContext, catalog: CatalogResource) -> Any:
                return body(context, catalog=catalog, **more)

            for result in self.execute(context, catalog, replace(props, spec=spec, body=run)):
                yield fitted(result)

        return step


PLAIN: Final = Hooks()


def namespace(name: str) -> str:
    """``shop.photos`` is in ``shop``; a name without a dot is in no namespace."""
    return name.rpartition(".")[0]


def _marked(spec: dg.AssetSpec, before: dg.AssetSpec, catalog: str) -> dg.AssetSpec:
    """Return a spec with what jobs, sensors and checks need to know where a component changed it."""
    if spec.group_name != before.group_name and before.group_name:
        spec = spec.merge_attributes(tags={conventions.MOVED: before.group_name})
    if catalog != RESOURCE:
        spec = spec.merge_attributes(metadata={conventions.CATALOG_OF: catalog}, tags={conventions.CATALOG_OF: catalog})
    return spec

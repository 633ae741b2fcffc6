"""Everything in a folder, or in the catalog itself, as relations."""

import json
import os
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import dagster as dg
from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext, DefinitionsLoadType
from dagster._utils.env import using_dagster_dev
from dagster.components.core.decl import YamlDecl
from dagster.components.utils.defs_state import DefsStateConfig, DefsStateConfigArgs, ResolvedDefsStateConfig
from dagster_shared.serdes.objects.models.defs_state_info import LOCAL_STATE_VERSION, DefsStateManagementType
from pydantic import Field, PrivateAttr

from spiral_assets.assets.hooks import AssetProps, Hooks
from spiral_assets.assets.steps import REGISTER, SHARED, SINGLE, SharedSteps
from spiral_assets.components.catalog import Catalog
from spiral_assets.components.parts import Owned, StepOptions, wrong_name
from spiral_assets.components.relation import Relation, measured_relation
from spiral_assets.components.scaffolding import example
from spiral_assets.conventions import RESOURCE
from spiral_assets.reading.attributes import wrong_attributes
from spiral_assets.reading.bounds import Count, Positive
from spiral_assets.reading.file_tree import FileTree
from spiral_assets.reading.location import Path as Keys
from spiral_assets.reading.positions import Wrong, line_of, refuse
from spiral_assets.reading.wording import nearest
from spiral_assets.relations.finding import in_catalog, in_folder
from spiral_assets.relations.sources import expanded
from spiral_assets.watching import Watched, watch_sensor

if TYPE_CHECKING:
    from typing import Self

    from pydantic import BaseModel

MEASURED: Final = frozenset({"labels", "origins", "along", "limits", "statistics", "checks"})
OF_REGISTERED: Final = MEASURED | {
    "description",
    "domain",
    "owners",
    "translation",
    "op",
}  # fields of one that exists already


@example(folder="$DATA", prefix="shop", watch_s=60)
class RelationCatalog(Owned, dg.StateBackedComponent):
    """A relation for everything in a folder of Parquet, JSON lines, Lance and class folders, or in the catalog itself.

    What there is belongs to the state of the definitions: it is looked up when a development server starts or reloads, and
    by ``dg utils refresh-defs-state``. Loading the definitions in a run looks at nothing. The state lies in
    ``$DAGSTER_HOME/defs_state``; without a home it lies where Dagster keeps it, in ``.local_defs_state`` among the definitions,
    which is how CI puts it into an image. Of two, the newer counts.

    Examples:
        >>> import json
        >>> from spiral_assets.components import RelationCatalog
        >>> component = RelationCatalog.resolve_from_dict({"catalog": "catalog"})  # the attributes in YAML
        >>> component.write_state_to_path(Path("state.json"))  # as dg utils refresh-defs-state does
        >>> names(component.definitions(json.loads(Path("state.json").read_text())))
        ['catalog/shop/photos', 'catalog/shop/texts']
    """

    folder: str | None = Field(
        default=None,
        description="Its children become relations. null takes what the catalog has, whoever registered it.",
        examples=["$DATA"],
    )
    prefix: str = Field(default="", description="Before the name of each relation: shop gives shop.photos.")
    select: Sequence[str] = Field(
        default=(), description="Names or patterns (shop.*) of relations to take; empty for all."
    )
    exclude: Sequence[str] = Field(default=(), description="Names or patterns (shop.old_*) of relations to leave out.")
    options: dict[str, Any] = Field(
        default_factory=dict, description="Fields of Relation that hold for all of them, such as identity."
    )
    relations: Annotated[
        dict[str, dict[str, Any]],
        dg.Resolver.passthrough(
            description="Name or pattern of relations: fields of Relation that hold for them, in addition to the options.",
            examples=[{"shop.photos": {"labels": ["label_id"]}}],
        ),
    ] = Field(default_factory=dict)
    catalog: str | None = Field(  # type: ignore[assignment]  # it was here before a location could have several
        default=None,
        description="Name of a Catalog; or folder or URI of the catalog to show, where no folder is given; null is "
        "$SPIRAL_CATALOG, else ./catalog.",
    )
    watch_s: Positive | None = Field(
        default=None, description="Seconds between two looks of one sensor at all of them."
    )
    steps: Count | None = Field(
        default=None,
        description=f"Steps that all relations share to be registered, and as many to be measured; 0 gives each its own; null "
        f"is 0 for up to {SINGLE} relations, and {SHARED} for more.",
    )
    defs_state: ResolvedDefsStateConfig = Field(default_factory=DefsStateConfigArgs.local_filesystem)

    @property
    def defs_state_config(self) -> DefsStateConfig:
        """Where the state lies."""
        folder = os.path.expandvars(self.folder or self._catalog)  # each catalog has a state of its own
        return DefsStateConfig.from_args(self.defs_state, default_key=f"RelationCatalog[{folder}]")

    _named: Catalog | None = PrivateAttr(None)
    _likes: dict[tuple[str, ...], Relation] = PrivateAttr(default_factory=dict)
    _resolution: dg.ResolutionContext | None = PrivateAttr(None)

    @classmethod
    def load(cls, attributes: "BaseModel | None", context: dg.ComponentLoadContext) -> "Self":
        """Make the component; the Catalog that it names says where the relations are.

        Args:
            attributes: as YAML has them.
            context: of the load.
        """
        found = super().load(attributes, context)
        found.belongs_to(context)
        return found

    def belongs_to(self, context: dg.ComponentLoadContext) -> None:
        """Take from a code location the Catalog that is named, and what templates know.

        Args:
            context: of the load.
        """
        self._resolution = context.resolution_context
        if self.catalog is not None and isinstance(context.component_decl, YamlDecl):
            catalogs = context.component_tree.get_all_components(of_type=Catalog)
            self._named = next((each for each in catalogs if each.name == self.catalog), None)

    @property
    def _catalog(self) -> str:
        said = self.catalog if self._named is None else self._named.path
        return said or os.environ.get("SPIRAL_CATALOG") or "catalog"

    def catalog_name(self) -> str:
        """Return the name of its catalog."""
        return RESOURCE if self._named is None else self._named.name

    def wrong(self) -> Iterator[Wrong]:
        """Yield what is wrong in the attributes."""
        yield from super().wrong()
        if self.prefix:
            yield from wrong_name(("prefix",), self.prefix)
        if self.watch_s is not None and self.folder is None:
            yield Wrong(("watch_s",), "a sensor looks at a folder, and none is given. Leave it out, or give folder")
        if self.op is not None and self.op.name is not None:
            yield Wrong(
                ("op", "name"), "many relations cannot share the name of a step. Give it in relations: to one of them"
            )
        yield from self._wrong_fields(("options",), self.options)
        for name, fields in self.relations.items():
            yield from self._wrong_fields(("relations", name), fields)

    def _wrong_fields(self, path: Keys, fields: Mapping[str, Any]) -> Iterator[Wrong]:
        """Yield what is wrong in fields of relations."""
        taken = {"name", "source", "catalog"} if self.folder is not None else set(Relation.model_fields) - OF_REGISTERED
        for name in fields if path[0] == "relations" else ():
            if name in taken:
                said = "the folder says it" if self.folder is not None else "the relation is registered already"
                yield Wrong((*path, name), f"it is not for relations of a RelationCatalog: {said}. Leave it out")
        like = Relation.get_model_cls().model_validate({"name": "a", "source": {"kind": "csv", "path": "a"}, **fields})
        found = wrong_attributes(like) or self._resolved(like).wrong()
        yield from (replace(each, path=(*path, *each.path)) for each in found if each.path and each.path[0] in fields)

    def _resolved(self, like: "BaseModel") -> Relation:
        context = self._resolution or dg.ResolutionContext.default()
        found: Relation = Relation.resolve_from_model(context, like)
        return found

    def _state(self, folder: Path | None = None) -> Path | None:
        """The file of the state in Dagster's home, or in a folder; None if Dagster keeps it."""
        home = os.environ.get("DAGSTER_HOME")
        if self.defs_state.management_type != DefsStateManagementType.LOCAL_FILESYSTEM:
            return None
        if home:
            folder = Path(home) / "defs_state"
        return None if folder is None else self._state_in(folder)

    async def refresh_state(self, project_root: Path) -> str:
        """Look what there is, and keep it.

        Args:
            project_root: of the definitions.
        """
        state = self._state()
        if state is None:
            return await super().refresh_state(project_root)
        self._look(state)
        return LOCAL_STATE_VERSION

    def _look(self, state: Path) -> None:
        draft = state.with_suffix(f".{os.getpid()}")
        self.write_state_to_path(draft)
        draft.replace(state)

    def definitions_of(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the assets of what there is, in a development server, or of what there was at the last look.

        Args:
            context: of the load.
        """
        stored = self.defs_state.management_type == DefsStateManagementType.LOCAL_FILESYSTEM
        alone = isinstance(context.component_tree, FileTree)  # no command refreshes its state
        state = self._state(context.defs_module_path / ".local_defs_state" if alone else None)
        known = self._newest(context, state)
        looks = (
            using_dagster_dev()
            and self.defs_state.refresh_if_dev
            and DefinitionsLoadContext.get().load_type == DefinitionsLoadType.INITIALIZATION
        ) or (alone and state is not None and known is None)
        if looks:
            refuse(context, list(self._missing_folder()))
        if not stored or (state is None and (looks or (context.defs_module_path / ".local_defs_state").is_dir())):
            return dg.StateBackedComponent.build_defs(self, context)
        if looks and state is not None:
            self._look(state)
            known = state
        return self.build_defs_from_state(context, known)

    def _newest(self, context: dg.ComponentLoadContext, state: Path | None) -> Path | None:
        """Return the newest look: in Dagster's home, or among the definitions, where the build of an image has put it."""
        folder = context.defs_module_path / ".local_defs_state"
        built = folder / re.sub("[^A-Za-z0-9._-]", "__", self.defs_state_config.key) / "state"  # as Dagster names it
        looks = {path: written for path in (state, built, self._state_in(folder)) if (written := _written_ns(path))}
        return max(looks, key=lambda path: looks[path], default=None)

    def _state_in(self, folder: Path) -> Path:
        """The file of a look in a folder."""
        return folder / f"{re.sub('[^A-Za-z0-9._-]', '_', self.defs_state_config.key)}.json"

    def _missing_folder(self) -> Iterator[Wrong]:
        """Yield that the folder is not there, where somebody is about to look into it."""
        if self.folder is None:
            return
        try:
            folder = Path(expanded(self.folder)).expanduser()
        except dg.Failure as error:
            yield Wrong(("folder",), str(error.description))
            return
        if not folder.is_dir():
            yield Wrong(("folder",), f"{self.folder!r} is no folder here. Correct the path, or put the data there")

    def write_state_to_path(self, state_path: Path) -> None:
        """Look what there is.

        Args:
            state_path: file of the state.
        """
        found = in_catalog(self._catalog) if self.folder is None else in_folder(self.folder, self.prefix)
        if not found and self.folder is not None:
            warned(
                f"RelationCatalog: there is no data in {self.folder!r} that could be a relation. Put some there, or correct it"
            )
        state_path.parent.mkdir(parents=True, exist_ok=True)
        state_path.write_text(json.dumps(found, indent=1))

    def build_defs_from_state(self, context: dg.ComponentLoadContext, state_path: Path | None) -> dg.Definitions:
        """Return the assets of what there was.

        Args:
            context: of the load; relations that it declares by themselves are left out.
            state_path: file of the state; None if nobody looked yet.
        """
        if state_path is None or not state_path.exists():
            if self.folder is not None:  # a catalog may have nothing yet
                where = line_of(context) or "RelationCatalog"
                warned(
                    f"{where}: nobody has looked into {self.folder!r}, so it has no assets yet. Run: dg utils refresh-defs-state"
                )
            return dg.Definitions()
        declared = {each.name for each in context.component_tree.get_all_components(of_type=Relation)}
        return self.definitions(json.loads(state_path.read_text()), declared)

    def definitions(self, found: Mapping[str, Any], declared: Collection[str] = ()) -> dg.Definitions:
        """Return the assets of what was found.

        Args:
            found: the state.
            declared: names of relations to leave out, in addition to those that are excluded.
        """
        wanted = {
            name: facts
            for name, facts in found.items()
            if name not in declared
            and not _matches(name, self.exclude)
            and (not self.select or _matches(name, self.select))
        }
        unknown = [each for each in self.relations if not any(fnmatchcase(name, each) for name in found)]
        if unknown and found:
            guess, there = nearest(unknown[0], found), ", ".join(found)
            msg = f"relations: {unknown[0]!r} is none of what was found{guess} There is {there}. Correct the name"
            raise dg.DagsterInvalidDefinitionError(msg)
        return self._registered(wanted) if self.folder is None else self._in_folder(wanted)

    def _in_folder(self, found: Mapping[str, Any]) -> dg.Definitions:
        made, watched, steps = [], [], self._shared(len(found))
        for name, source in found.items():
            relation = self._like(tuple(each for each in self.relations if fnmatchcase(name, each)))
            one = relation.model_copy(update={"name": name, "source": source})
            hooks = self._hooks_of(one, steps)
            made.append(one.definitions(hooks))
            watched.append(Watched(name, source, _key_of(name, made[-1], steps)))
        sensors = [] if self.watch_s is None or not found else [self._sensor(watched)]
        shared = [] if steps is None else [steps.definitions()]
        return dg.Definitions.merge(dg.Definitions(sensors=sensors), *shared, *made)

    def _registered(self, found: Mapping[str, Any]) -> dg.Definitions:
        made, steps = [], self._shared(len(found))
        for name, facts in found.items():
            matching = tuple(each for each in self.relations if fnmatchcase(name, each))
            relation = self._like(matching).model_copy(update={"name": name})
            said = bool(relation.model_fields_set & MEASURED)
            made.append(measured_relation(relation, facts, self._hooks_of(relation, steps), measured=said))
        shared = [] if steps is None else [steps.definitions()]
        return dg.Definitions.merge(*shared, *made)

    def _shared(self, relations: int) -> SharedSteps | None:
        """Return the steps that relations share; None if each has its own, which a subclass with ``execute`` needs."""
        count = self.steps if self.steps is not None else SHARED if relations > SINGLE else 0
        if not count or type(self).execute is not Owned.execute:
            return None
        op = self.op or StepOptions()
        options = {"pool": op.pool, "op_tags": op.tags, "retry_policy": self.hooks().retry_policy}
        said = json.dumps([self.folder, self.prefix, self.catalog, list(self.select), list(self.exclude)])
        name = re.sub(r"\W+", "_", self.prefix or Path(self.folder or self._catalog).name).strip("_") or "relations"
        digest = zlib.crc32(said.encode())
        return SharedSteps(f"{name}_{digest:08x}", count, self.catalog_name(), options)

    def _like(self, matching: tuple[str, ...]) -> Relation:
        """Return the relation that others are copies of: read once for all that the same patterns match."""
        if matching not in self._likes:
            said = {"description": self.description, "domain": self.domain, "owners": self.owners}
            fields: dict[str, Any] = {name: value for name, value in said.items() if name in self.model_fields_set}
            for each in (self.options, *(self.relations[pattern] for pattern in matching)):
                fields |= dict(each)
            read = Relation.get_model_cls().model_validate({"name": "", "source": {}, **fields})
            refuse(None, wrong_attributes(read))
            self._likes[matching] = self._resolved(read)
        return self._likes[matching]

    def _hooks_of(self, relation: Relation, steps: SharedSteps | None) -> Hooks:
        """Return what this component and the fields of one relation change: the relation has the last word."""
        mine, its = self.hooks(), relation.hooks()

        def spec(props: AssetProps) -> dg.AssetSpec:
            return its.get_asset_spec(replace(props, spec=mine.get_asset_spec(props)))

        return replace(
            mine,
            get_asset_spec=spec,
            op=its.op or mine.op,
            retry_policy=its.retry_policy or mine.retry_policy,
            catalog=self.catalog_name(),
            steps=steps if relation.op is None else None,
        )

    def _sensor(self, watched: Sequence[Watched]) -> dg.SensorDefinition:
        assert self.watch_s is not None
        name = self.prefix or Path(str(self.folder)).name
        return watch_sensor(name, watched, every_s=self.watch_s, catalog=self.catalog_name())


def _key_of(name: str, made: dg.Definitions, steps: SharedSteps | None) -> dg.AssetKey:
    """Return the key of a relation: of its step, or, where it has its own, of the first asset that was made for it."""
    shared = None if steps is None else steps.key(REGISTER, name)
    if shared is not None:
        return shared
    (asset, *_) = made.assets or ()
    assert isinstance(asset, dg.AssetsDefinition)
    return asset.key


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def warned(message: str) -> None:
    """Warn; the library is imported for it alone."""
    from spiral_stream.errors import warn

    warn(message)


def _written_ns(path: Path | None) -> int:
    """When a file was written; 0 for one that is not there."""
    with suppress(OSError):
        return 0 if path is None else path.stat().st_mtime_ns
    return 0

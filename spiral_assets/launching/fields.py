"""The field ``launcher``: in YAML, where it is checked when it is read, and in a run's config, which changes what YAML says."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import dagster as dg
from pydantic import Field, ValidationError, create_model

from spiral_assets.launching.kubernetes import KubernetesLauncher
from spiral_assets.launching.launcher import Launcher
from spiral_assets.launching.local import LocalLauncher
from spiral_assets.launching.ray import RayLauncher
from spiral_assets.launching.slurm import SlurmLauncher
from spiral_assets.reading.attributes import keys_of
from spiral_assets.reading.positions import Wrong
from spiral_assets.reading.wording import nearest, worded

FIELD: Final = "launcher"
KINDS: Final[Mapping[str, type[Launcher]]] = {
    "local": LocalLauncher,
    "ray": RayLauncher,
    "kubernetes": KubernetesLauncher,
    "slurm": SlurmLauncher,
}
DESCRIPTION: Final = (
    "Where it runs, apart from the run: kind (local, ray, kubernetes, slurm) and the fields of that kind. A run that is launched "
    "again finds the job that goes on. Null runs it as part of the run, and ends it with the run."
)


def wrong_launcher(said: Any, at: tuple[str | int, ...] = (FIELD,)) -> Iterator[Wrong]:
    """Yield what is wrong with a launcher.

    Args:
        said: as YAML has it; None for no launcher.
        at: keys that lead to it.
    """
    if said is None:
        return
    if not isinstance(said, Mapping) or "kind" not in said:
        yield Wrong(at, f"it has no kind. Give one of {', '.join(KINDS)}: {{kind: local}}")
        return
    if (kind := KINDS.get(str(said["kind"]))) is None:
        guess = nearest(said["kind"], KINDS)
        yield Wrong(
            (*at, "kind"), f"{said['kind']!r} is no kind of launcher{guess} There are {', '.join(KINDS)}. Correct it"
        )
        return
    try:
        kind(**said)
    except ValidationError as error:
        yield from (Wrong((*at, *keys_of(said, keys)), words) for keys, words in worded(error.errors(), kind))


def launcher_of(said: Mapping[str, Any]) -> Launcher:
    """Return a launcher.

    Args:
        said: kind, and the fields of that kind.

    Raises:
        DagsterInvalidDefinitionError: something is wrong with it.

    Examples:
        >>> from spiral_assets.launching.fields import launcher_of
        >>> launcher_of({"kind": "local", "grace_s": 2}).grace_s
        2.0
    """
    if wrong := list(wrong_launcher(said)):
        raise dg.DagsterInvalidDefinitionError("\n".join(f"{'.'.join(map(str, w.path))}: {w.message}" for w in wrong))
    return KINDS[str(said["kind"])](**said)


def chosen(in_yaml: Mapping[str, Any] | None, at_launch: Mapping[str, Any] | None) -> Launcher | None:
    """Return the launcher of a run.

    Args:
        in_yaml: of the asset; None for none.
        at_launch: of the run's config. Of the same kind or of none, it replaces single fields; of another kind, all of them.

    Raises:
        Failure: the run's config is wrong.
    """
    if not at_launch:
        return None if in_yaml is None else launcher_of(in_yaml)
    same = in_yaml is not None and at_launch.get("kind", in_yaml["kind"]) == in_yaml["kind"]
    try:
        return launcher_of({**(in_yaml or {}), **at_launch} if same else at_launch)
    except dg.DagsterInvalidDefinitionError as error:
        msg = f"the run's config: {error}"
        raise dg.Failure(msg, allow_retries=False) from error


def config_with_launcher(name: str, config: type[dg.Config] | Mapping[str, Any]) -> type[dg.Config]:
    """Return the run config of an asset, with a field by which a run chooses its launcher; a field of that name stays as it is.

    Args:
        name: of the asset.
        config: a class, or fields with their default values.
    """
    kind = f"{name.title().replace('_', '')}Config"
    more: dict[str, Any] = {FIELD: (dict[str, Any] | None, Field(default=None, description=DESCRIPTION))}
    if isinstance(config, type):
        return config if FIELD in config.model_fields else create_model(kind, __base__=config, **more)
    said = {field: (type(value), value) for field, value in config.items()}
    return create_model(kind, __base__=dg.Config, **{**more, **said})


def split_config(config: dg.Config, *, has_choice: bool) -> tuple[Mapping[str, Any] | None, dict[str, Any]]:
    """Return the launcher that a run's config chooses, and its other fields.

    Args:
        config: of the run.
        has_choice: whether its field ``launcher`` is that of `config_with_launcher`.
    """
    said = config.model_dump()
    return (said.pop(FIELD) if has_choice else None), said


def launcher_schema() -> dict[str, Any]:
    """Return the JSON schema of the field, for editors and ``dg``."""
    template = {"type": "string", "pattern": "{{"}
    one_of = [
        {
            "if": {"properties": {"kind": {"const": name}}, "required": ["kind"]},
            "then": {
                "propertyNames": {"enum": sorted(kind.model_fields)},
                "required": sorted(each for each, field in kind.model_fields.items() if field.is_required()),
            },
        }
        for name, kind in KINDS.items()
    ]
    kinds = {"if": template, "else": {"enum": sorted(KINDS)}}
    first = {"if": {"type": "object"}, "then": {"required": ["kind"], "properties": {"kind": kinds}}}
    return {"allOf": [first, *({"if": {"type": "object"}, "then": each} for each in one_of)]}

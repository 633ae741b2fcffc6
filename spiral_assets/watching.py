"""A sensor that looks at sources and asks for everything that changed in one run.

A look costs one ``stat`` per file: names, sizes and times of everything below the source's path. A source on an object store
is asked for its units. A file that was only touched is asked for too: registering it compares bytes, and its relation keeps
its data version, so nothing downstream is rebuilt.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Final, final

import dagster as dg

from spiral_assets import conventions
from spiral_assets.resources import CatalogResource
from spiral_assets.sources import Declared, expanded, made, place_of

_DIGITS: Final = 32


@final
@dataclass(frozen=True)
class Watched:
    """A relation whose source is looked at."""

    relation: str
    source: Declared


def watch_sensor(name: str, relations: Sequence[Watched], *, every_s: int, running: bool = True) -> dg.SensorDefinition:
    """Return the sensor ``watch_<name>``, which requests one run for all relations whose source changed.

    Args:
        name: of what is watched; a relation's name, or that of a folder.
        relations: whose sources are looked at.
        every_s: seconds between two looks.
        running: whether it is on until somebody turns it off.
    """

    @dg.sensor(
        name=f"watch_{re.sub('[^A-Za-z0-9_]', '_', name)}",
        target=dg.AssetSelection.assets(*(conventions.relation_key(each.relation) for each in relations)),
        minimum_interval_seconds=every_s,
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description="Register what changed in its source, all of it in one run.",
    )
    def watch(context: dg.SensorEvaluationContext, catalog: CatalogResource) -> dg.SensorResult:
        before: Mapping[str, str] = json.loads(context.cursor or "{}")
        now = {each.relation: _look(each.source, catalog) for each in relations}
        changed = sorted(name for name, found in now.items() if found != before.get(name))
        if not changed:
            return dg.SensorResult(skip_reason="no source changed", cursor=json.dumps(now))
        keys = [conventions.relation_key(name) for name in changed]
        key = hashlib.sha256(json.dumps({name: now[name] for name in changed}).encode()).hexdigest()[:_DIGITS]
        return dg.SensorResult(run_requests=[dg.RunRequest(run_key=key, asset_selection=keys)], cursor=json.dumps(now))

    return watch


def _look(source: Declared, catalog: CatalogResource) -> str:
    """Return a digest of names, sizes and times of a source's files, or of its units' content keys."""
    place = place_of(source)
    if place is None or "://" in expanded(place):
        with made(source, catalog.open()).open() as reader:
            facts = ((unit.name, unit.content_key) for unit in reader.units())
            return _digest(facts)
    return _digest(_files(expanded(place)))


def _files(place: str) -> Iterator[tuple[str, int, int]]:
    """Yield path, bytes and time of each file below a path, sorted; the path may be a pattern."""
    path = os.path.expanduser(place)  # noqa: PTH111  a pattern is no path
    roots = sorted(glob(path)) if any(sign in path for sign in "*?[") else [path]  # noqa: PTH207
    for root in roots:
        if Path(root).is_file():
            facts = Path(root).stat()
            yield root, facts.st_size, facts.st_mtime_ns
        for folder, below, names in os.walk(root):
            below.sort()
            for name in sorted(names):
                facts = (Path(folder) / name).stat()
                yield f"{folder}/{name}", facts.st_size, facts.st_mtime_ns


def _digest(facts: Iterator[tuple[object, ...]]) -> str:
    state = hashlib.blake2b(digest_size=16)
    for each in facts:
        state.update(repr(each).encode())
    return state.hexdigest()

"""A sensor that asks for every relation whose source is not what was registered, all of them in one run.

A look costs one ``stat`` per file: names, sizes and times of everything below the source's path. A source on an object store
is asked for its units. The measure is what is registered, not what was asked for: a registration records the look that it
began with, and the catalog's shard table that it made. So files that come back as they were are registered again, what
another program registered is seen, and a run that failed is asked for again, after 1, 2, 4, ... looks and at most an hour. A
file that was only touched is asked for too: registering it compares bytes, and its relation keeps its data version, so nothing
downstream is rebuilt.
"""

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import dagster as dg

from spiral_assets import conventions
from spiral_assets.conventions import RESOURCE, renamed
from spiral_assets.relations.looks import LOOK_TAG, MANIFEST_TAG, look
from spiral_assets.relations.sources import Declared
from spiral_assets.resources import CatalogResource

if TYPE_CHECKING:
    import spiral_stream as spiral

LONGEST_S: Final = 3_600  # between two requests for the same state of a source
_DIGITS: Final = 32
RUN_KEY: Final = "dagster/run_key"  # tag by which Dagster names the request of a run


@final
@dataclass(frozen=True)
class Watched:
    """A relation whose source is looked at.

    Examples:
        >>> from spiral_assets.watching import Watched
        >>> Watched("shop.photos", {"kind": "parquet", "path": "photos.parquet"}).relation
        'shop.photos'
    """

    relation: str
    source: Declared
    key: dg.AssetKey | None = None

    @property
    def asset(self) -> dg.AssetKey:
        """The asset that registers it; by default Spiral's key of the relation."""
        return self.key or conventions.relation_key(self.relation)


def watch_sensor(
    name: str, relations: Sequence[Watched], *, every_s: int, running: bool = True, catalog: str = RESOURCE
) -> dg.SensorDefinition:
    """Return the sensor ``watch_<name>``, which requests one run for all relations whose source is not what is registered.

    Args:
        name: of what is watched; a relation's name, or that of a folder.
        relations: whose sources are looked at.
        every_s: seconds between two looks.
        running: whether it is on until somebody turns it off.
        catalog: key of the resource that is their catalog.

    Examples:
        >>> from spiral_assets.watching import Watched, watch_sensor
        >>> source = {"kind": "parquet", "path": "photos.parquet"}
        >>> watch_sensor("shop.photos", [Watched("shop.photos", source)], every_s=60).name
        'watch_shop_photos'
    """
    keys_by_name = {each.relation: each.asset for each in relations}

    @dg.sensor(
        name=f"watch_{re.sub('[^A-Za-z0-9_]', '_', name)}",
        target=dg.AssetSelection.assets(*keys_by_name.values()),
        minimum_interval_seconds=every_s,
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description="Register what changed in its source, all of it in one run.",
    )
    @renamed(catalog)
    def watch(context: dg.SensorEvaluationContext, catalog: CatalogResource) -> dg.SensorResult:
        opened, before = catalog.open(), _Requested.of(context.cursor)
        now, away = _looks(relations, opened)
        for relation, why in away.items():
            context.log.warning("%s could not be looked at: %s", relation, why)
        if away and not now:
            msg = f"no source could be looked at; {next(iter(away))}: {next(iter(away.values()))}"
            raise dg.Failure(msg)
        registered = _registered(context.instance, opened, {name: keys_by_name[name] for name in now})
        differ = {name: look for name, look in now.items() if look != registered.get(name)}
        before = before.without(set(now) - set(differ))
        due = sorted(name for name, look in differ.items() if before.is_due(context.instance, name, look, every_s))
        if not due:
            waiting = f"; waiting to ask again for {', '.join(sorted(differ))}" if differ else ""
            missed = f"; could not look at {', '.join(sorted(away))}" if away else ""
            return dg.SensorResult(skip_reason=f"no source changed{waiting}{missed}", cursor=before.cursor())
        key, after = before.asking({name: differ[name] for name in due})
        keys = [keys_by_name[name] for name in due]
        return dg.SensorResult(run_requests=[dg.RunRequest(run_key=key, asset_selection=keys)], cursor=after.cursor())

    return watch


def _looks(relations: Sequence[Watched], catalog: "spiral.Catalog") -> tuple[dict[str, str], dict[str, str]]:
    """Return the look at each source, and why one could not be looked at: a store that is away, a disk that is not there."""
    now, away = {}, {}
    for each in relations:
        try:
            now[each.relation] = look(each.source, catalog)
        except Exception as error:  # noqa: BLE001  one source that is away must not hide the others; it is told
            away[each.relation] = str(error)
    return now, away


def _registered(
    instance: dg.DagsterInstance, catalog: "spiral.Catalog", keys: Mapping[str, dg.AssetKey]
) -> dict[str, str]:
    """Return the look that each relation was registered by; none for one that the catalog does not have as it was registered."""
    present, tables = {key: name for name, key in keys.items()}, set(catalog.tables())
    found = {}
    for record in instance.get_asset_records(list(present)):
        name, last = present[record.asset_entry.asset_key], record.asset_entry.last_materialization
        tags = (last.tags if last else None) or {}
        if LOOK_TAG in tags and name in tables and tags.get(MANIFEST_TAG) == catalog.entry(name).manifest_name:
            found[name] = tags[LOOK_TAG]
    return found


@final
@dataclass(frozen=True)
class _Requested:
    """What was asked for and is not registered yet: the sensor's cursor.

    Attributes:
        serial: the number of the next request; no run key is used twice.
        of_relation: relation -> what was asked for (``look``), by which run key, when, and how often in a row.
    """

    serial: int
    of_relation: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, cursor: str | None) -> "_Requested":
        """Read a cursor; one that is reset, or of an earlier version, begins at numbers that were never used."""
        saved = json.loads(cursor or "{}")
        if "serial" not in saved:
            return cls(time.time_ns(), {})
        return cls(saved["serial"], saved["asked"])

    def cursor(self) -> str:
        """Return the saved form."""
        return json.dumps({"serial": self.serial, "asked": self.of_relation})

    def without(self, names: set[str]) -> "_Requested":
        """Forget what is registered by now."""
        return _Requested(self.serial, {name: each for name, each in self.of_relation.items() if name not in names})

    def is_due(self, instance: dg.DagsterInstance, name: str, now: str, every_s: int) -> bool:
        """Whether to ask for a state: it was not asked for, or its run has ended and enough time has passed."""
        last = self.of_relation.get(name)
        if last is None or last["look"] != now:
            return True
        if time.time() < last["at"] + min(every_s * 2 ** (last["times"] - 1), max(LONGEST_S, every_s)):
            return False
        runs = instance.get_runs(dg.RunsFilter(tags={RUN_KEY: last["key"]}), limit=1)
        return not runs or runs[0].is_finished

    def asking(self, looks: Mapping[str, str]) -> "tuple[str, _Requested]":
        """Return the run key of a request for these relations, and what has then been asked for."""
        key = hashlib.sha256(json.dumps([self.serial, looks]).encode()).hexdigest()[:_DIGITS]
        requests = {}
        for name, now in looks.items():
            last = self.of_relation.get(name)
            times = last["times"] + 1 if last is not None and last["look"] == now else 1
            requests[name] = {"look": now, "key": key, "at": time.time(), "times": times}
        return key, _Requested(self.serial + 1, {**self.of_relation, **requests})

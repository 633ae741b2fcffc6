"""Groups of storage shards as Dagster partitions, so that the UI shows what is built and a backfill can choose.

A shard's group follows from its name alone. So the partitions are known before any data is, stay when shards come and go,
and are few: Dagster spends 20 ms per partition of a run, and stops comparing data versions at 100 of them.
"""

import zlib
from collections.abc import Sequence
from typing import Final

import dagster as dg

MOST: Final = 99


def shard_groups(count: int) -> dg.StaticPartitionsDefinition:
    """Return the partitions ``group-00`` and so on.

    Raises:
        DagsterInvalidDefinitionError: there are none, or too many for Dagster to compare their data versions.
    """
    if not 1 <= count <= MOST:
        msg = f"{count} shard groups. Give 1 to {MOST}: Dagster compares no data versions of more partitions"
        raise dg.DagsterInvalidDefinitionError(msg)
    return dg.StaticPartitionsDefinition([f"group-{number:02d}" for number in range(count)])


def group_of(shard: str, count: int) -> str:
    """Return the group of a storage shard, which depends on its name alone."""
    return f"group-{zlib.crc32(shard.encode()) % count:02d}"


def requested(context: dg.AssetExecutionContext, shards: Sequence[str], count: int) -> dict[str, list[str]]:
    """Return the shards of each group that a run was launched for; of all groups if it was launched for none."""
    chosen = context.has_partition_key or context.has_partition_key_range
    groups = list(context.partition_keys) if chosen else list(shard_groups(count).get_partition_keys())
    found: dict[str, list[str]] = {group: [] for group in groups}
    for shard in shards:
        group = group_of(shard, count)
        if group in found:
            found[group].append(shard)
    return found

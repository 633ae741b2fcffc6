"""Storage shards as Dagster partitions: what is built shard by shard shows how much of it is there.

The shards of a relation are known once it is registered, and change with its data: the partitions are dynamic, and
registering the relation brings them up to date.
"""

from collections.abc import Sequence
from typing import Final

import dagster as dg

VIDEO_SHARDS: Final = dg.DynamicPartitionsDefinition(name="video_storage_shards")


def keep_up(instance: dg.DagsterInstance, partitions: dg.DynamicPartitionsDefinition, shards: Sequence[str]) -> None:
    """Make the partitions those of the shards that there are now."""
    assert partitions.name is not None, "partitions that a function lists cannot be added to"
    known = set(instance.get_dynamic_partitions(partitions.name))
    for gone in sorted(known - set(shards)):
        instance.delete_dynamic_partition(partitions.name, gone)
    instance.add_dynamic_partitions(partitions.name, [shard for shard in shards if shard not in known])


def asked(context: dg.AssetExecutionContext) -> list[str] | None:
    """The shards that a run is for; None where it was launched without partitions, and so is for all."""
    if context.has_partition_key or context.has_partition_key_range:
        return list(context.partition_keys)
    return None

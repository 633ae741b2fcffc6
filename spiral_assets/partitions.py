"""Storage shards as Dagster partitions, so that the UI shows which shards are built.

The shards are known once a relation is registered, and change with its data. So the partitions are dynamic, and
registering the relation updates them.
"""

from collections.abc import Sequence
from typing import Final

import dagster as dg

VIDEO_SHARDS: Final = dg.DynamicPartitionsDefinition(name="video_storage_shards")


def update(instance: dg.DagsterInstance, partitions: dg.DynamicPartitionsDefinition, shards: Sequence[str]) -> None:
    """Add partitions for new shards, and delete those whose shard no longer exists."""
    assert partitions.name is not None, "partitions computed by a function cannot be added to"
    known = set(instance.get_dynamic_partitions(partitions.name))
    for gone in sorted(known - set(shards)):
        instance.delete_dynamic_partition(partitions.name, gone)
    instance.add_dynamic_partitions(partitions.name, [shard for shard in shards if shard not in known])


def requested(context: dg.AssetExecutionContext) -> list[str] | None:
    """Return the shards that a run was launched for, or None if it was launched for all of them."""
    if context.has_partition_key or context.has_partition_key_range:
        return list(context.partition_keys)
    return None

import dagster as dg

from spiral_assets.partitions import VIDEO_SHARDS, update


def test_partitions_follow_the_shards_that_there_are() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        for shards in (["a", "b"], ["b", "c", "d"], []):
            update(instance, VIDEO_SHARDS, shards)
            assert sorted(instance.get_dynamic_partitions("video_storage_shards")) == shards

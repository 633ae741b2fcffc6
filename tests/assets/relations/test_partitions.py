import dagster as dg
import pytest

from spiral_assets.relations.partitions import MOST, group_of, shard_groups


def test_a_shard_keeps_its_group_whatever_other_shards_there_are() -> None:
    shards = [f"part-{number:05d}" for number in range(10_000)]
    groups = [group_of(shard, 16) for shard in shards]

    assert set(groups) == set(shard_groups(16).get_partition_keys())
    assert max(map(groups.count, set(groups))) < 2 * len(shards) / 16
    assert group_of("part-00007", 16) == groups[7]


@pytest.mark.parametrize("count", [0, MOST + 1])
def test_more_groups_than_dagster_compares_are_refused(count: int) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="Give 1 to 99"):
        shard_groups(count)

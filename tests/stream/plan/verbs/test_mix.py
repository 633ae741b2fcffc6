from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.plan.nodes import Filter, Limit
from spiral_stream.plan.tree import find
from spiral_stream.plan.verbs.mix import Mix, Part, parsed_count, per_stream, schedule_points
from tests.fixtures.texts import make_catalog


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("mix"), {"a": 20, "b": 10, "c": 5})


def mix(catalog: sp.Catalog, *parts: tuple[Any, ...], **options: Any) -> Mix:
    made = [Part(name, catalog.table(of).node if isinstance(of, str) else of, *rest) for name, of, *rest in parts]
    return Mix(tuple(made), **options)


# ---- laws


@given(
    count=st.integers(0, 10**12),
    unit=st.sampled_from([("", 1), ("k", 10**3), ("M", 10**6), ("b", 10**9), ("T", 10**12)]),
)
def test_counts_may_be_written_for_people(count: int, unit: tuple[str, int]) -> None:
    assert parsed_count("mix", f"{count}{unit[0]}") == count * unit[1]
    assert parsed_count("mix", f"{count:_} {unit[0]}".strip()) == count * unit[1]
    assert parsed_count("mix", count) == count


# ---- examples


def test_verbs_after_a_mix_are_those_of_every_stream(catalog: sp.Catalog) -> None:
    docs = sp.mix([sp.Stream("x", catalog.table("a")), sp.Stream("y", catalog.table("b"))])
    plans = per_stream(docs.filter(sp.col("size") > 3).project("sample_id", "stream_id").node)

    assert [name for name, _ in plans] == ["x", "y"]
    for _, node in plans:
        assert find(node, Mix) is None
        assert find(node, Filter) is not None
        assert node.schema().names == ["sample_id", "stream_id"]
    assert per_stream(catalog.table("a").node)[0][0] == ""


def test_nested_streams_have_paths(catalog: sp.Catalog) -> None:
    inner = mix(catalog, ("p", "a", 0.25), ("q", "b", 0.75))
    node = mix(catalog, ("in", inner, 0.5), ("c", "c", 0.5), epoch_size=80)

    assert [name for name, _ in per_stream(node)] == ["in/p", "in/q", "c"]


def test_schedules_are_kept_by_sample() -> None:
    points = schedule_points({0: {"x": 1}, 10: {"x": 1, "y": 3}}, ["x", "y"], 64)

    assert points == ((0, (1.0, 0.0)), (640, (1.0, 3.0)))


def test_a_mix_has_the_columns_that_all_streams_have(catalog: sp.Catalog) -> None:
    narrow = catalog.table("b").project("text", "sample_id").node
    node = mix(catalog, ("x", "a", 0.5), ("y", narrow, 0.5))

    assert node.schema().names == ["sample_id", "text", "stream_id"]
    assert not node.schema().field("stream_id").nullable


# ---- bad input


def test_what_is_no_count_is_refused() -> None:
    for value in ("ten", "1.5", "", "b", 1.5, True, "1.23456k", "1/0"):
        with pytest.raises(sp.errors.PlanError, match=r'Give a whole number, or one with a unit: "100k", "64M"'):
            parsed_count("mix: epoch_size", value)


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ((), {}, r"no streams. Give at least one Stream"),
        ((("x", "a"), ("x", "b")), {}, r"Give each stream a name of its own"),
        ((("x/y", "a"),), {}, r"Give a text without '/'"),
        ((("", "a"),), {}, r"Give a text without '/'"),
        ((("x", "a", 0.5), ("y", "b")), {}, r"stream 'y' has no proportion and others do. Give all streams one, or none"),
        ((("x", "a", 0.5, 2),), {}, r"has proportion and repeat. Give one of them"),
        ((("x", "a", None, 2),), {"epoch_size": 5}, r"Give each stream a proportion=, or drop epoch_size"),
        ((("x", "a", 1.0),), {"epoch_size": 0}, r"Give an integer of at least 1"),
        ((("x", "a", 1.0),), {"by": "text"}, r"by='text' is no number of a sample. Name a column of counts"),
        ((("x", "a", 1.0),), {"schedule": ((0, (1.0,)),)}, r"needs an epoch_size. Give epoch_size"),
        ((("x", "a", 1.0),), {"epoch_size": 9, "schedule": ((5, (1.0,)), (5, (1.0,)))}, r"List points in rising order"),
        ((("x", "a", 1.0),), {"epoch_size": 9, "schedule": ((0, (0.0,)),)}, r"at least 0 for each stream, not all 0"),
    ],
)  # fmt: skip
def test_a_mixture_that_says_nothing_is_refused(
    catalog: sp.Catalog, parts: tuple[tuple[Any, ...], ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(sp.errors.PlanError, match=message):
        mix(catalog, *parts, **options)


def test_columns_of_one_name_and_two_types_are_refused(catalog: sp.Catalog) -> None:
    other = catalog.table("b").with_columns(size=sp.col("quality")).node
    with pytest.raises(
        sp.errors.PlanError, match=r"column 'size' is int64 in stream 'x' and double in 'y'. Cast one, or"
    ):
        mix(catalog, ("x", "a", 0.5), ("y", other, 0.5))
    with pytest.raises(sp.errors.PlanError, match=r"no column in common. Project them to the same names first"):
        mix(catalog, ("x", catalog.table("a").project("text").node), ("y", catalog.table("b").project("size").node))
    with pytest.raises(sp.errors.PlanError, match=r"has a column stream_id, which mix adds. Drop or rename it"):
        mix(catalog, ("x", catalog.table("a").with_columns(stream_id=1).node))


def test_a_nested_mixture_has_no_epoch_of_its_own(catalog: sp.Catalog) -> None:
    inner = mix(catalog, ("p", "a", 1.0), epoch_size=10)
    with pytest.raises(sp.errors.PlanError, match=r"the mix inside stream 'in' has an epoch_size.*Drop it"):
        mix(catalog, ("in", inner, 1.0))


def test_a_schedule_names_streams() -> None:
    with pytest.raises(sp.errors.PlanError, match=r"schedule at step 3 names 'z'; the streams are 'x', 'y'"):
        schedule_points({3: {"z": 1}}, ["x", "y"], 1)
    with pytest.raises(sp.errors.PlanError, match=r"samples_per_step=0. Give an integer of at least 1"):
        schedule_points({}, ["x"], 0)


def test_a_limit_after_a_mix_is_of_each_stream(catalog: sp.Catalog) -> None:
    docs = sp.mix([sp.Stream("x", catalog.table("a")), sp.Stream("y", catalog.table("b"))])

    assert all(find(node, Limit) is not None for _, node in per_stream(docs.limit(3).node))


BEYOND = 2**62 + 1
HALVES = (("x", 0.5), ("y", 0.5))


@pytest.mark.parametrize(
    ("counts", "options", "epoch", "says"),
    [
        ({"proportion": 0.5}, {"epoch_size": BEYOND}, 0, r"mix: epoch_size is 4611686018427387905. Give at most"),
        ({"proportion": 0.5}, {"epoch_size": 10**400}, 0, r"mix: epoch_size is past 2\*\*128. Give at most"),
        ({"choose": BEYOND}, {}, 0, r"mix: stream 'x': choose=4611686018427387905 is past 2\*\*62 samples.*. Lower it"),
        ({"repeat": 1e30}, {}, 0, r"mix: stream 'x': repeat=1e\+30 of 20 rows is past 2\*\*62 samples.*. Lower it"),
        ({"choose": 2**61 + 1}, {}, 0, r"mix: epoch_size is 4611686018427387906. Give at most 2\*\*62"),
        (
            {"proportion": 0.5},
            {"epoch_size": 40, "schedule": {0: dict(HALVES), 2**61: dict(HALVES)}, "samples_per_step": 9},
            0,
            r"mix: schedule \(sample\) is \d+. Give at most 4611686018427387904",
        ),
        (
            {"proportion": 0.5},
            {"epoch_size": 2**40},
            2**30,
            r"mix: epoch 1073741824, of 1099511627776 positions, goes past",
        ),
    ],
)
def test_a_mixture_beyond_what_a_run_counts_is_refused(
    catalog: sp.Catalog, counts: dict[str, Any], options: dict[str, Any], epoch: int, says: str
) -> None:
    streams = [sp.Stream(name, catalog.table(of), **counts) for name, of in (("x", "a"), ("y", "b"))]

    def read() -> None:
        sampled = sp.mix(streams, **options).sample(identity="sample_id", order=sp.GlobalShuffle(seed=1))
        plan = sampled.collate(batch_size=4, fields={"id": sp.List("sample_id")})
        with plan.to_numpy().bind(epoch=epoch) as stream:
            next(iter(stream))

    with pytest.raises(sp.errors.PlanError, match=says):
        read()

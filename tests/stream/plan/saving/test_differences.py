"""Two plans that differ say where: the verb, the parameter, both values, and whose share of a mixture changed."""

from collections.abc import Callable
from typing import Any

import pytest

from spiral_stream import Catalog, RandomHorizontalFlip, RandomResizedCrop, Relation, ShardAwareShuffle
from spiral_stream.plan.saving.differences import PlanDifference, differences
from spiral_stream.plan.saving.fingerprint import canonical
from tests.fixtures.programs import image_catalog, image_fields, image_program, image_transforms
from tests.stream.plan.saving.test_fingerprint import OTHER, SAME


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return image_catalog(tmp_path_factory.mktemp("images"))


def lines_of(old: Any, new: Any) -> list[str]:
    return [str(each) for each in differences(old, new)]


DIFFERENCES: dict[str, tuple[Callable[[Catalog], Relation], list[str]]] = {
    "batch_size": (OTHER["batch_size"], ["collate.batch_size (256 -> 512)"]),
    "seed": (OTHER["seed"], ["sample.order.seed (17 -> 18)"]),
    "kind of order": (OTHER["kind of order"], ["sample.order (ShardAwareShuffle -> GlobalShuffle)"]),
    "size": (OTHER["transform's parameter"], ["collate.fields.image.transforms[0].size (224 -> 192)"]),
    "tail rule": (OTHER["tail rule"], ["collate.last (DropPartial -> KeepPartial)"]),
    "lanes": (OTHER["lanes"], ["sample.assignment.lanes (1 -> 2)"]),
    "verb": (OTHER["no condition"], ["sample.source (filter -> join)"]),
    "profile": (OTHER["smaller pixels"], ["sample.profiles.image_ref (null -> Raw)"]),
    "float": (
        lambda c: image_program(c, fields={
            **image_fields((RandomResizedCrop(224), RandomHorizontalFlip(p=0.25), *image_transforms()[2:]))
        }),
        ["collate.fields.image.transforms[1].p (0.5 -> 0.25)"],
    ),
    "two places": (
        lambda c: image_program(c, batch_size=8, order=ShardAwareShuffle(seed=1)),
        ["collate.batch_size (256 -> 8)", "sample.order.seed (17 -> 1)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", DIFFERENCES)
def test_differences_name_the_verb_the_parameter_and_both_values(catalog: Catalog, change: str) -> None:
    make, lines = DIFFERENCES[change]

    assert lines_of(canonical(image_program(catalog).node), canonical(make(catalog).node)) == lines


def test_equal_plans_do_not_differ(catalog: Catalog) -> None:
    plan = image_program(catalog)

    assert lines_of(canonical(plan.node), canonical(SAME["field order"](catalog).node)) == []


def part(name: str, source: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"@class": "Part", "name": name, "source": source or {"verb": "scan", "relation": name}, **more}


def test_differences_of_mixtures_are_by_stream() -> None:
    def mixture(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"verb": "mix", "parts": list(parts), **more}

    a, b, c = (part(name) for name in "abc")
    cut = part("a", {"verb": "limit", "count": 3})
    assert lines_of(mixture(a, b), mixture(a, c)) == ["mix (stream 'b') (left out)", "mix (stream 'c') (new)"]
    assert lines_of(mixture(a, b), mixture(b, a)) == ["mix (order of streams) (a, b -> b, a)"]
    assert lines_of(mixture(a, b), mixture(cut, b)) == ["mix (stream 'a').source (scan -> limit)"]
    old, new = (part("in", mixture(part("x", repeat=k))) for k in (1, 2))
    assert lines_of(mixture(old), mixture(new)) == ["mix (stream 'in') (stream 'x').repeat (1 -> 2)"]


@pytest.mark.parametrize(
    ("found", "of_shares", "of_collate"),
    [
        (PlanDifference("mix.epoch_size", "10", "20"), True, False),
        (PlanDifference("mix (order of streams)", "a, b", "b, a"), True, False),
        (PlanDifference("", None, "a", ("a",)), True, False),
        (PlanDifference("proportion", "0.5", "0.4", ("a",)), True, False),
        (PlanDifference("repeat", "1", "2", ("in", "x")), True, False),
        (PlanDifference("repeated", "1", "2", ("a",)), False, False),
        (PlanDifference("source", "scan", "limit", ("a",)), False, False),
        (PlanDifference("mix.epoch_size", "10", "20", ("in",)), False, False),
        (PlanDifference("collate.batch_size", "8", "16"), False, True),
        (PlanDifference("sample.order.seed", "1", "2"), False, False),
    ],
    ids=str,
)
def test_shares_are_told_from_the_rows_of_a_stream(found: PlanDifference, of_shares: bool, of_collate: bool) -> None:
    assert (found.of_shares, found.of_collate) == (of_shares, of_collate)

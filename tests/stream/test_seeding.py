"""Random bits: a function of run seed, epoch, identity, pass and transform, and of nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream import seeding
from tests.fixtures.streams import RANDOM, maker

NAMES = st.text(max_size=20)
GOLDEN = {
    "key": 5495992883750969450,
    "hashes": [
        [10594266868638892507, 11666484718169981422],
        [16135542073429470029, 11290740284128141115],
        [17274438486735242868, 17222366646824905644],
    ],
    "keys": [8112408841149299145, 10147395821441374191, 12794993175496927711],
    "uniforms": [
        [0.3374376327865053, 0.321208318694282],
        [0.7397644302731348, 0.4174367455586666],
        [0.32459778611657764, 0.7589358252386161],
    ],
}


@given(st.lists(st.one_of(st.integers(), st.text(), st.binary()), max_size=4), st.data())
def test_keys_tell_the_parts_apart(parts: list[int | str | bytes], data: st.DataObject) -> None:
    other = data.draw(st.lists(st.one_of(st.integers(), st.text(), st.binary()), max_size=4))
    typed = [(type(p), p) for p in parts]

    assert (seeding.key(*parts) == seeding.key(*other)) == (typed == [(type(p), p) for p in other])
    assert 0 <= seeding.key(*parts) < 2**64


@given(st.integers(), st.integers(0, 10**6), st.lists(NAMES, min_size=1, max_size=20, unique=True), st.integers(1, 5))
def test_a_sample_draws_the_same_alone_and_in_company(seed: int, epoch: int, names: list[str], count: int) -> None:
    def draw(some: list[str]) -> np.ndarray:
        hashes = seeding.identity_hashes("", some)
        keys = seeding.sample_keys(seed, epoch, hashes, np.full(len(some), epoch, dtype=np.uint64))
        return seeding.uniforms(keys, "crop", 0, count)

    together = draw(names)

    assert together.shape == (len(names), count)
    assert ((together >= 0) & (together < 1)).all()
    for row, name in enumerate(names):
        assert np.array_equal(draw([name])[0], together[row])


def test_every_part_of_the_rule_changes_the_numbers() -> None:
    hashes = seeding.identity_hashes("", ["a"])
    base = (1, 2, hashes, np.uint64(3))
    varied = [
        (9, 2, hashes, np.uint64(3)),
        (1, 9, hashes, np.uint64(3)),
        (1, 2, seeding.identity_hashes("", ["b"]), np.uint64(3)),
        (1, 2, seeding.identity_hashes("other stream", ["a"]), np.uint64(3)),
        (1, 2, hashes, np.uint64(9)),
    ]
    keys = [int(seeding.sample_keys(*each)[0]) for each in [base, *varied]]
    key = seeding.sample_keys(*base)
    draws = [float(seeding.uniforms(key, *each, 1)[0, 0]) for each in [("crop", 0), ("crop", 1), ("flip", 0)]]

    assert len(set(keys)) == len(keys)
    assert len(set(draws)) == len(draws)


def test_golden_vectors_of_keys_and_numbers() -> None:
    hashes = seeding.identity_hashes("web", ["img-1", b"img-1", 1])
    keys = seeding.sample_keys(17, 3, hashes, np.array([3, 3, 3], dtype=np.uint64))

    assert seeding.key("shard", 17, 0) == GOLDEN["key"]
    assert hashes.tolist() == GOLDEN["hashes"]
    assert keys.tolist() == GOLDEN["keys"]
    assert seeding.uniforms(keys, "RandomResizedCrop", 0, 2).tolist() == GOLDEN["uniforms"]


def test_numbers_are_even_and_unrelated_between_neighbours() -> None:
    hashes = seeding.identity_hashes("", list(range(20_000)))
    draws = seeding.uniforms(seeding.sample_keys(0, 0, hashes, np.uint64(0)), "flip", 0, 2)
    counts = np.histogram(draws[:, 0], bins=20, range=(0, 1))[0]

    assert abs(counts - 1000).max() < 5 * np.sqrt(950)
    assert abs(np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]) < 5 / np.sqrt(20_000)
    assert abs(np.corrcoef(draws[:, 0], draws[:, 1])[0, 1]) < 5 / np.sqrt(20_000)


@pytest.mark.usefixtures("no_threads_left")
def test_a_run_seed_changes_pixels_and_no_order(catalog: sp.Catalog) -> None:
    make = maker(catalog, transforms=RANDOM, batch_size=60)
    with make() as first, make().bind(run_seed=99) as second:
        for a, b in zip(first, second, strict=True):
            assert a["id"] == b["id"]
            assert a["image"].tobytes() != b["image"].tobytes()

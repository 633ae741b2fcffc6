"""Slots: memory comes back only when nothing of a batch is alive, and then it is used again."""

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.runtime.slots import Slots
from spiral_stream.testing import frozen, same
from tests.fixtures.streams import maker

pytestmark = pytest.mark.usefixtures("no_threads_left")


@given(st.lists(st.tuples(st.integers(1, 8), st.sampled_from(["uint8", "int64", "float16", "bool"]), st.booleans())))
def test_live_arrays_never_share_memory(wishes: list[tuple[int, str, bool]]) -> None:
    slots, held = Slots(), []
    for number, (rows, dtype, keep) in enumerate(wishes):
        array = slots.take((rows, 3), dtype, 8)
        assert (array.shape, array.dtype.name) == ((rows, 3), dtype)
        array[...] = number % 2
        if keep:
            held.append((number % 2, array))
    for value, array in held:
        assert (array == value).all()
    for k, (_, one) in enumerate(held):
        assert not any(np.shares_memory(one, other) for _, other in held[k + 1 :])


PARTS: dict[str, Any] = {
    "slice": lambda array: array[1:3],
    "element row": lambda array: array[2],
    "transpose": lambda array: array.T,
    "reshape": lambda array: array.reshape(-1)[3:5],
    "tensor": lambda array: pytest.importorskip("torch").from_numpy(array),
    "tensor slice": lambda array: pytest.importorskip("torch").from_numpy(array)[1:, 2].view(-1),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_an_array_keeps_its_slot(part: str) -> None:
    slots = Slots()
    array = slots.take((4, 6), "int64", 4)
    array[...] = 7
    held = PARTS[part](array)
    del array
    slots.take((4, 6), "int64", 4)[...] = 9

    assert slots.allocated == 2
    assert (np.asarray(held) == 7).all()
    del held
    gc.collect()
    again = [slots.take((4, 6), "int64", 4) for _ in range(2)]
    assert slots.allocated == 2
    assert len(again) == 2


def test_a_short_batch_uses_the_slot_of_a_full_one() -> None:
    slots = Slots()
    slots.take((8, 5), "uint8", 8)
    short = slots.take((3, 5), "uint8", 8)

    assert slots.allocated == 1
    assert short.flags.c_contiguous
    assert short.flags.writeable


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_what_the_loop_holds_is_never_overwritten(catalog: sp.Catalog, framework: str) -> None:
    def make() -> Any:
        stream = maker(catalog, batch_size=20)()
        if framework == "torch":
            from spiral_stream.adapters import TorchStream

            return TorchStream(stream.plan, stream.catalog)
        return stream

    with make() as stream:
        expected = [frozen({k: np.asarray(v) if k != "id" else v for k, v in batch.items()}) for batch in stream]
    with make() as stream:
        whole = list(stream)
        stream.set_epoch(0)
        rows, views = [], []
        for batch in stream:
            rows.append(batch["image"][3])
            views.append(batch["image"].reshape(-1)[5:90])
        list(stream)  # another epoch over the same slots

    for batch, wanted in zip(whole, expected, strict=True):
        assert same({k: np.asarray(v) if k != "id" else v for k, v in batch.items()}, wanted)
    for row, view, wanted in zip(rows, views, expected, strict=True):
        assert same(row, wanted["image"][3])
        assert same(view, wanted["image"].reshape(-1)[5:90])


def test_a_steady_loop_makes_no_new_slots(catalog: sp.Catalog) -> None:
    with maker(catalog, batch_size=10, prefetch=3)() as stream:
        for _ in stream:
            pass
        first = stream.metrics()["slots"]
        for _ in range(3):
            for _ in stream:
                pass

        assert stream.metrics()["slots"] == first
        # Image and label of: the batch in the loop, the one just handed over, and the depth of the queue.
        assert first <= 2 * (3 + 2)

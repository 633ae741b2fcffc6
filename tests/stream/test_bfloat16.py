"""Fields of bfloat16: the bits that torch makes of float32, whoever delivers them and on however many workers."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import spiral_stream as sp
from spiral_stream.host_dtypes import BFLOAT16, as_array, rounded, widened
from spiral_stream.testing import same
from spiral_stream.transforms.image.image import compile_image
from tests.fixtures.bfloat16_fields import STEPS, make_catalog, plan
from tests.fixtures.scenes import smooth


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("bfloat16"))


@given(st.lists(st.floats(width=32) | st.floats(), min_size=1))
def test_numbers_are_rounded_as_torch_rounds_them(values: list[float]) -> None:
    found = rounded(np.array(values)).view(BFLOAT16)
    wanted = torch.tensor(values, dtype=torch.float64).float().to(torch.bfloat16)

    assert np.array_equal(widened(found), wanted.float().numpy(), equal_nan=True)
    assert as_array(wanted).dtype == BFLOAT16


def test_tensors_and_arrays_are_what_float32_rounds_to(catalog: sp.Catalog) -> None:
    with (
        plan(catalog).to_torch() as half,
        plan(catalog).to_numpy() as arrays,
        plan(catalog, "float32").to_torch() as whole,
    ):
        assert {each.dtype for each in half.spec().values()} == {"bfloat16"}
        for a, b, c in zip(half, whole, arrays, strict=True):
            for name, value in a.items():
                assert value.dtype == torch.bfloat16
                assert torch.equal(value, b[name].to(torch.bfloat16)), name
                assert str(c[name].dtype) == "bfloat16"
                assert c[name].tobytes() == as_array(value).tobytes(), name


def test_a_device_finishes_to_the_same_bits() -> None:
    program = compile_image(STEPS[::2], dtype="bfloat16", layout="nchw")
    images, keys = [smooth(40, 50, seed) for seed in range(3)], np.arange(3, dtype=np.uint64)
    whole = np.empty((3, *(program.output_shape or ())), BFLOAT16)
    program.run(images, keys, whole)
    part, mean, std = program.on_device()
    pixels = np.empty((3, *(part.output_shape or ())), np.uint8)
    part.run(images, keys, pixels)

    done = torch.from_numpy(pixels).float() * float(np.float32(1 / 255))
    done = (done - torch.from_numpy(mean)) / torch.from_numpy(std)
    assert as_array(done.to(torch.bfloat16).permute(0, 3, 1, 2).contiguous()).tobytes() == whole.tobytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:lance is not fork-safe", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("context", ["forkserver", "fork"])
def test_workers_change_no_bit(catalog: sp.Catalog, context: str) -> None:
    with plan(catalog).to_torch() as stream:
        alone = list(stream)
    for workers in (1, 2):
        with plan(catalog).to_torch() as stream:
            found = list(DataLoader(stream, None, num_workers=workers, multiprocessing_context=context))
        assert all(same(a, b) for a, b in zip(found, alone, strict=True))


def test_without_ml_dtypes_the_way_out_is_torch(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with (
        plan(catalog).to_numpy() as stream,
        pytest.raises(
            sp.errors.MissingExtraError, match=r"to_numpy: field 'number' .* pip install ml_dtypes; or use to_torch"
        ),
    ):
        next(iter(stream))


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (sp.Stack("x", dtype="bfloat16"), r"3\.4e\+38 does not fit dtype bfloat16"),
        (sp.Pad("y", dtype="bfloat16"), r"the row has 3\.4e\+38, which does not fit dtype bfloat16"),
    ],
)
def test_a_number_that_would_become_infinite_is_named(tmp_path: Path, field: Any, says: str) -> None:
    made = sp.connect(str(tmp_path))
    made.register("t", sp.Arrow(pa.table({"id": [1, 2], "x": [1.0, 3.4e38], "y": [[1.0], [3.4e38]]})), identity="id")
    rows = made.table("t").sample(order=sp.Sequential())
    with (
        rows.collate(batch_size=2, fields={"x": field}).to_torch() as stream,
        pytest.raises(sp.errors.DataError, match=says),
    ):
        next(iter(stream))
    with pytest.raises(sp.errors.PlanError, match=r"pad_value=3\.4e\+38\. Give a finite number that fits bfloat16"):
        sp.Pad("y", dtype="bfloat16", pad_value=3.4e38)

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.transforms.image.placement import portable_exp


@given(st.floats(-5, 5))
def test_portable_exp_is_the_exponential(x):
    assert math.isclose(portable_exp(np.array([x]))[0], math.exp(x), rel_tol=1e-12)


def test_portable_exp_has_known_bits():
    bits = portable_exp(np.array([0.0, 0.25, -0.28768207245178096])).view(np.uint64)

    assert [hex(each) for each in bits.tolist()] == ["0x3ff0000000000000", "0x3ff48b5e3c3e80cd", "0x3fe800000000000b"]

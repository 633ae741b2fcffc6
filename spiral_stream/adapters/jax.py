"""Streams of JAX arrays: the same batches, copied to JAX's default device.

JAX keeps 32 bits of a number unless ``jax_enable_x64`` is set: int64 fields arrive as int32. What does not fit
would wrap around without a word (2**40 becomes 0), so it is an error here.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import DataError
from spiral_stream.extras import need
from spiral_stream.fields.field import FieldSpec
from spiral_stream.prepared import PreparedStream
from spiral_stream.runtime.batches import Batch


@final
class JaxStream(PreparedStream):
    """A `PreparedStream` of dicts of ``jax.Array`` and lists, on JAX's default device."""

    def spec(self) -> dict[str, FieldSpec]:
        """Names, dtypes and shapes of a batch as JAX holds it, before anything is read.

        Raises:
            MissingExtraError: JAX, which decides on the dtypes, is not installed.
        """
        array = _jax_numpy().array
        return {
            name: each if each.dtype is None else replace(each, dtype=str(array(np.empty(0, each.dtype)).dtype))
            for name, each in super().spec().items()
        }

    def devices(self) -> dict[str, str | None]:
        """JAX's default device, whatever the plan asks for: None for each array field."""
        return {name: None for name, each in super().spec().items() if each.dtype is not None}

    def _need_bound_devices(self) -> None:
        _need_jax()

    def _need_devices(self) -> None:
        _need_jax()

    def _delivered(self, get: Callable[[], Batch | None]) -> Iterator[dict[str, Any]]:
        jnp = _jax_numpy()
        while (batch := get()) is not None:
            # A copy: JAX arrays may outlive the slot without keeping the NumPy array alive.
            yield {
                name: _fitting(name, value, jnp.array(value)) if isinstance(value, np.ndarray) else value
                for name, value in batch.fields.items()
            }


def _jax_numpy() -> Any:
    _need_jax()
    import jax.numpy as jnp

    return jnp


def _need_jax() -> None:
    need("jax", "to_jax", "use to_numpy()")


def _fitting(name: str, value: NDArray[Any], array: Any) -> Any:
    """The array, if it holds every integer of the value."""
    if value.size and value.dtype.kind in "iu" and array.dtype.itemsize < value.itemsize:
        limits = np.iinfo(array.dtype)
        least, most = int(value.min()), int(value.max())
        if least < limits.min or most > limits.max:
            msg = (
                f"to_jax: field {name!r} holds {most if most > limits.max else least}, which JAX's {array.dtype} cannot. "
                'Set jax.config.update("jax_enable_x64", True) before the first array, or give it as List(...)'
            )
            raise DataError(msg)
    return array

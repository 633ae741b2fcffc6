"""Streams of JAX arrays: the same batches, copied to JAX's default device.

Unless ``jax_enable_x64`` is set, JAX keeps 32 bits of a number, so int64 fields arrive as int32. A number that needs more
bits would silently wrap around (2**40 becomes 0); here it is an error.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.catalog.registry import AnyCatalog
from spiral_stream.errors import DataError
from spiral_stream.extras import need
from spiral_stream.fields.field import FieldSpec
from spiral_stream.plan.nodes import Deliver
from spiral_stream.prepared import PreparedStream
from spiral_stream.runtime.batch.keys import KeyedBatch
from spiral_stream.runtime.delivery import HOST, Delivery, Devices
from spiral_stream.runtime.read_ahead import BUDGET_BYTES


@final
class JaxDelivery(Delivery):
    """Arrays on JAX's default device, whatever device the plan asks for."""

    def on_host(self, fields: dict[str, Any]) -> dict[str, Any]:
        array = _jax_numpy().array  # a copy: JAX arrays may outlive the slot without keeping the NumPy array alive
        return {
            name: _fitting(name, value, array(value)) if isinstance(value, np.ndarray) else value
            for name, value in HOST.on_host(fields).items()  # JAX brings ml_dtypes
        }

    def with_keys(self) -> None:
        _know_keyed_batches()

    def need(self, devices: Devices) -> None:
        """Accept all devices: JAX's default device is used in any case."""
        del devices
        _need_jax()

    def need_bound(self, devices: Devices) -> None:
        del devices
        _need_jax()

    def spec(self, host: dict[str, FieldSpec]) -> dict[str, FieldSpec]:
        array = _jax_numpy().array
        plain = {name: each for name, each in host.items() if each.dtype not in (None, "bfloat16")}
        return host | {
            name: replace(each, dtype=str(array(np.empty(0, each.dtype)).dtype)) for name, each in plain.items()
        }

    def devices(self, host: Mapping[str, FieldSpec], plan: str | None, bound: str | None) -> dict[str, str | None]:
        del plan, bound
        return {name: None for name, each in host.items() if each.dtype is not None}


@final
class JaxStream(PreparedStream):
    """A stream of dicts of ``jax.Array`` and lists, on JAX's default device.

    Args:
        plan: from ``relation.sample(...).collate(...).to_jax()``.
        catalog: where its relations are registered.
        threads: as for `PreparedStream`.
        budget_bytes: as for `PreparedStream`.
        read_batch_size: as for `PreparedStream`.

    Examples:
        >>> stream = plan.to_jax()
        >>> stream.take(1)[0]["width"].dtype  # JAX's own, unless jax_enable_x64 is set
        dtype('int32')
        >>> stream.close()
    """

    def __init__(
        self,
        plan: Deliver,
        catalog: AnyCatalog,
        threads: int | None = None,
        budget_bytes: int = BUDGET_BYTES,
        read_batch_size: int | None = None,
    ) -> None:
        super().__init__(plan, catalog, threads, budget_bytes, JaxDelivery(), read_batch_size)


def _jax_numpy() -> Any:
    _need_jax()
    import jax.numpy as jnp

    return jnp


@cache
def _know_keyed_batches() -> None:
    """Tell JAX that a batch with a key is a tree as any dict; what a transformation returns of it is a plain dict."""
    from jax.tree_util import register_pytree_node

    def parts(batch: KeyedBatch) -> tuple[list[Any], tuple[str, ...]]:
        names = tuple(sorted(batch))
        return [batch[name] for name in names], names

    register_pytree_node(KeyedBatch, parts, lambda names, values: dict(zip(names, values, strict=True)))


def _need_jax() -> None:
    need("jax", "to_jax", "use to_numpy()")


def _fitting(name: str, value: NDArray[Any], array: Any) -> Any:
    """Return the array, if it holds every integer of the value."""
    if value.size and value.dtype.kind in "iu" and array.dtype.itemsize < value.itemsize:
        limits = np.iinfo(array.dtype)
        least, most = int(value.min()), int(value.max())
        if least < limits.min or most > limits.max:
            msg = (
                f"to_jax: field {name!r} holds {most if most > limits.max else least}, which JAX's {array.dtype} cannot hold. "
                'Call jax.config.update("jax_enable_x64", True) before the first array, or deliver the field as List(...)'
            )
            raise DataError(msg)
    return array

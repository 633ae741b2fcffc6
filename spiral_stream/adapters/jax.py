"""Streams of JAX arrays: the same batches, copied to JAX's default device."""

from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np

from spiral_stream.errors import BindError
from spiral_stream.prepared import PreparedStream
from spiral_stream.runtime.batches import Batch


@final
class JaxStream(PreparedStream):
    """A `PreparedStream` of dicts of ``jax.Array`` and lists, on JAX's default device."""

    def _delivered(self, get: Callable[[], Batch | None]) -> Iterator[dict[str, Any]]:
        try:
            import jax.numpy as jnp
        except ImportError as error:
            msg = "to_jax: JAX is not installed; pip install jax, or use to_numpy()"
            raise BindError(msg) from error
        while (batch := get()) is not None:
            # A copy: JAX arrays may outlive the slot without keeping the NumPy array alive.
            yield {k: jnp.array(v) if isinstance(v, np.ndarray) else v for k, v in batch.fields.items()}

"""Batches as a framework's arrays, and the framework's own loops.

Start at: `torch`.
May not know: how a batch is made: only `PreparedStream` and slots of memory.

It is also the public namespace of the frameworks' streams, loaders and trainers: ``spiral.adapters.StreamLoader``.
"""

from typing import TYPE_CHECKING, Final

from spiral_stream.habits import door

if TYPE_CHECKING:
    from spiral_stream.adapters.jax import JaxStream
    from spiral_stream.adapters.torch import StreamLoader, TorchStream
    from spiral_stream.adapters.trainer import StreamTrainer

__all__ = [
    "JaxStream",
    "StreamLoader",
    "StreamTrainer",
    "TorchStream",
]

_LATE: Final = {
    "JaxStream": "spiral_stream.adapters.jax",
    "StreamLoader": "spiral_stream.adapters.torch",
    "StreamTrainer": "spiral_stream.adapters.trainer",
    "TorchStream": "spiral_stream.adapters.torch",
}

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours
    __getattr__, __dir__ = door(__name__, _LATE)

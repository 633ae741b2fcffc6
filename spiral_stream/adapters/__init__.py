"""Batches as a framework's arrays, and the framework's own loops.

Start at: `torch`.
May not know: how a batch is made: only `PreparedStream` and slots of memory.

It is also the public namespace of the frameworks' streams, loaders and trainers: ``spiral.adapters.StreamLoader``.
"""

from typing import TYPE_CHECKING

from spiral_stream.habits import door

if TYPE_CHECKING:  # the alias exports a name to type checkers
    from spiral_stream.adapters.jax import JaxStream as JaxStream
    from spiral_stream.adapters.torch import StreamLoader as StreamLoader
    from spiral_stream.adapters.torch import TorchStream as TorchStream
    from spiral_stream.adapters.trainer import StreamTrainer as StreamTrainer

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours
    __all__, __getattr__, __dir__ = door(
        __name__,
        {
            "adapters.jax": ["JaxStream"],
            "adapters.torch": ["StreamLoader", "TorchStream"],
            "adapters.trainer": ["StreamTrainer"],
        },
    )

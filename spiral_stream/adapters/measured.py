"""Tensors that a loop measured, reduced by sample on the device that they lie on, and fetched behind its back.

On CUDA a value is reduced on the loop's stream and copied on the side stream into pinned memory; an event says when it is here.
The training thread never waits: it polls the event when it logs again. On the CPU the value is here at once.
"""

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.adapters.cuda import side_stream
from spiral_stream.extras import need
from spiral_stream.runtime.measured import FetchedValue, ValueForm, covering_lengths

need("torch", "spiral_stream.adapters.measured")
import torch  # noqa: E402


@final
class FetchedTensors(FetchedValue):
    """A value as tensors on the host, behind an event of the copying stream where they come from a device.

    Args:
        values: the numbers, or the sums.
        counts: how many tokens count; None where all do.
    """

    def __init__(self, values: torch.Tensor, counts: torch.Tensor | None) -> None:
        self._arrived: Any = None
        found = [values] if counts is None else [values, counts]
        if values.is_cuda:
            found = self._copied(found, values.device)
        self._values, self._counts = found[0], found[1] if counts is not None else None

    def _copied(self, tensors: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        side = side_stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        out = []
        with torch.cuda.stream(side):
            for each in tensors:
                host = torch.empty(each.shape, dtype=each.dtype, pin_memory=True)
                host.copy_(each, non_blocking=True)
                each.record_stream(side)  # its memory is not used again before the copy is done with it
                out.append(host)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]  # likewise
            self._arrived.record(side)
        return out

    def done(self) -> bool:
        return self._arrived is None or bool(self._arrived.query())

    def wait(self) -> None:
        if self._arrived is not None:
            self._arrived.synchronize()

    def take(self) -> tuple[NDArray[Any], NDArray[Any] | None]:
        return self._values.numpy(), None if self._counts is None else self._counts.numpy()


def fetched(value: torch.Tensor, form: ValueForm, mask: Any) -> FetchedTensors:
    """Begin to fetch a value, reduced by sample.

    Args:
        value: of any float, integer or boolean type.
        form: how it fits its batch.
        mask: shape [B, T], a tensor or an array: which tokens count; None counts all.
    """
    with torch.no_grad():
        value = value.detach()
        if form.tokens is None or form.summed:
            value = value if form.rows is None else value[_moved(form.rows, value.device)]
        if form.tokens is None:
            return FetchedTensors(value.to(torch.float32), None)
        flat = value.reshape(-1).to(torch.float64)
        if mask is None and form.summed:
            return FetchedTensors(flat, None)
        rows = len(value) if mask is None else len(mask)
        lengths = _moved(covering_lengths(form.tokens, rows), value.device)
        if mask is None:
            return FetchedTensors(_sums(flat, lengths), None)
        on = _moved(np.asarray(mask), value.device) if not isinstance(mask, torch.Tensor) else mask.to(value.device)
        on = on.reshape(-1).bool()
        counts = _sums(on.to(torch.float64), lengths)
        return FetchedTensors(flat if form.summed else _sums(torch.where(on, flat, 0.0), lengths), counts)


def _sums(flat: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The sum of each sample's own places, [S]; another's NaN does not reach it."""
    found = torch.segment_reduce(flat, "sum", lengths=lengths, unsafe=True, initial=0.0)  # checking would wait
    return found[1::2].contiguous()


def _moved(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    host = torch.from_numpy(np.ascontiguousarray(array))
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)

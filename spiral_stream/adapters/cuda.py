"""Copy batches to one CUDA device on a separate CUDA stream, and finish their transforms there.

Images travel as uint8 NHWC, a quarter of float32. On the device, three kernels normalize them, cast them and arrange them
as NCHW. Token ids of 16 bits, a quarter of int64, are widened there. The training thread never waits for the device: events
order the copies before the model's kernels.

Nothing here reads data: a machine with a GPU and PyTorch runs it on batches of any origin.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.adapters.device_copies import Copy
from spiral_stream.extras import need
from spiral_stream.host_dtypes import is_bfloat16
from spiral_stream.runtime.batch.pending_batch import Batch

need("torch", "spiral_stream.adapters.cuda")
import torch  # noqa: E402

Tensors = dict[str, Any]
Finish = Callable[[torch.Tensor], torch.Tensor]
MakeFinish = Callable[[torch.device], Finish]  # makes it on a device
_PIXEL: Final = float(np.float32(1 / 255))


def tensor(value: Any) -> Any:
    """Return a NumPy array as a tensor that shares its memory; anything else as it is."""
    if is_bfloat16(value):
        return torch.from_numpy(value.view("<i2")).view(torch.bfloat16)
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def widened(ids: torch.Tensor) -> torch.Tensor:
    """Return token ids of 16 bits as int64, on the device that they lie on: one kernel.

    torch has next to no operators for uint16. Its ``nn.Embedding`` takes int32 and int64, and its ``cross_entropy`` int64 alone.

    Args:
        ids: uint16.
    """
    return ids.to(torch.int64)


def numbered(device: torch.device) -> torch.device:
    """Return the CUDA device by its number; without one it is the process's present device."""
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of copies to a device, one for the life of the process.

    PyTorch keeps freed memory by stream: a new stream for each pass would leave the memory of the last one unused.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped


@final
class Finisher:
    """Normalize, cast and lay out uint8 images, on the device that they lie on.

    The steps and their rounding are those of the host: ``(pixels * float32(1 / 255) - mean) / std`` in float32.

    Args:
        mean: shape [C], float32.
        std: shape [C], float32.
        dtype: of the result: "uint8" leaves the values as they are.
        layout: of the result, as a field has it; those with the channels last end in "hwc".
        device: where the images lie.
    """

    def __init__(
        self, mean: NDArray[np.float32], std: NDArray[np.float32], dtype: str, layout: str, device: torch.device
    ) -> None:
        constants = torch.from_numpy(np.stack([mean, std]))
        if device.type == "cuda":
            constants = constants.pin_memory()
        self._mean, self._std = constants.to(device, non_blocking=True)
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._channels_first = not layout.endswith("hwc")

    def __call__(self, pixels_HWC: torch.Tensor) -> torch.Tensor:
        """Return the images.

        Args:
            pixels_HWC: shape [B, ..., H, W, C], uint8.

        Returns:
            shape [B, ..., C, H, W] or [B, ..., H, W, C], contiguous.
        """
        if not self._dtype.is_floating_point:
            return pixels_HWC.movedim(-1, -3).contiguous() if self._channels_first else pixels_HWC
        *outer, height, width, channels = pixels_HWC.shape
        shape = (*outer, channels, height, width) if self._channels_first else pixels_HWC.shape
        out = torch.empty(shape, dtype=self._dtype, device=pixels_HWC.device)
        values_HWC = torch.mul(pixels_HWC, _PIXEL).sub_(self._mean)
        torch.div(values_HWC, self._std, out=out.movedim(-3, -1) if self._channels_first else out)
        return out


@final
class CudaCopy(Copy):
    """Fields of a batch on the device, behind an event of the copying stream."""

    def __init__(self, fields: Tensors, ended: torch.cuda.Event, device: torch.device) -> None:
        self._fields, self._ended, self._device = fields, ended, device

    def done(self) -> bool:
        return bool(self._ended.query())  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def wait(self) -> None:
        self._ended.synchronize()

    def hand_over(self) -> Tensors:
        current = torch.cuda.current_stream(self._device)
        current.wait_event(self._ended)
        for value in self._fields.values():
            if isinstance(value, torch.Tensor) and value.is_cuda:
                value.record_stream(current)  # its memory is not used again before the loop's kernels are done with it
        return self._fields


@final
class CudaLink:
    """Begins the copies to one device.

    Args:
        device: a CUDA device, by its number.
        moved: the fields that go there.
        finishers: field -> makes what ends it, on the device if the field goes there.
    """

    def __init__(self, device: torch.device, moved: frozenset[str], finishers: Mapping[str, MakeFinish]) -> None:
        self._device, self._moved = device, moved
        self._side = side_stream(device)
        with torch.cuda.stream(self._side):
            self._finishers = {name: make(device) for name, make in finishers.items()}

    def begin(self, batch: Batch) -> CudaCopy:
        """Begin the copy of a batch.

        Raises:
            torch.OutOfMemoryError: the device has no room; a note names the field and the way out.
        """
        out: Tensors = {}
        ended = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        with torch.cuda.stream(self._side):
            try:
                for name, value in batch.fields.items():
                    host = tensor(value)
                    goes = isinstance(host, torch.Tensor) and name in self._moved
                    there = host.to(self._device, non_blocking=True) if goes else host
                    finish = self._finishers.get(name)
                    out[name] = there if finish is None else finish(there)
            except BaseException as error:
                if isinstance(error, torch.OutOfMemoryError):
                    error.add_note(
                        f"spiral: there was no room on {self._device} for field {name!r} of a batch that is copied ahead of the "
                        "loop. Lower prefetch in to_torch(prefetch=...), or the batch size. The stream stands after the last "
                        "batch that the loop had"
                    )
                ended.record(self._side)
                ended.synchronize()  # the batch's memory is given back now
                raise
            ended.record(self._side)
        return CudaCopy(out, ended, self._device)

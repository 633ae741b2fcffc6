"""Streams as PyTorch users know them: tensors, `IterableDataset`, pinned memory and CUDA streams.

Host arrays become tensors without a copy. Images for a CUDA device travel as uint8 NHWC in pinned memory that is used
again. A side stream copies them while the model works; on the device, one sequence of kernels normalizes them, casts them
and arranges them as NCHW.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, final

import numpy as np

from spiral_stream.adapters.pinned_memory import allocator
from spiral_stream.catalog.registry import Registry
from spiral_stream.errors import BindError
from spiral_stream.extras import need
from spiral_stream.host_dtypes import is_bfloat16
from spiral_stream.plan.nodes import Deliver
from spiral_stream.planner.physical import ClipStage, ImageStage, Stages
from spiral_stream.prepared import PreparedStream
from spiral_stream.runtime.buffers import Allocate
from spiral_stream.runtime.delivery import Delivery, Devices, Get
from spiral_stream.runtime.pending import Batch
from spiral_stream.runtime.place import Reached
from spiral_stream.runtime.prefetch_queue import DEFAULT_BUDGET_BYTES

need("torch", "spiral_stream.adapters.torch")
import torch  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, get_worker_info  # noqa: E402

Tensors = dict[str, Any]


@final
class TorchDelivery(Delivery):
    """Tensors on the CPU, or on one CUDA device."""

    def on_host(self, fields: dict[str, Any]) -> Tensors:
        return {name: _host(value) for name, value in fields.items()}

    def delivered(self, get: Get, devices: Devices, stages: Stages) -> Iterator[Tensors]:
        device = _cuda(devices)
        if device is None:
            return super().delivered(get, devices, stages)
        return _CudaCopies(stages, devices, device).run(get)

    def need(self, devices: Devices) -> None:
        _cuda(devices)

    def need_bound(self, devices: Devices) -> None:
        _cuda(devices)

    def auto(self) -> str:
        return "cuda" if torch.cuda.is_available() else "cpu"

    def allocate(self, devices: Devices) -> Allocate:
        return allocator(to_cuda=_cuda(devices) is not None)

    def split(self, devices: Devices) -> frozenset[str]:
        return frozenset() if _cuda(devices) is None else _moved(devices)

    def worker(self) -> tuple[int, int] | None:
        info = get_worker_info()
        return None if info is None else (info.id, info.num_workers)


@final
class TorchStream(PreparedStream, IterableDataset[Tensors]):
    """A stream of dicts of tensors and lists, and a PyTorch data set.

    Iterate it by itself, through ``DataLoader(stream, batch_size=None)``, or through a `StreamLoader`. Host tensors share
    the memory of the batch; those on a CUDA device were copied while the model worked on the batch before.

    Args:
        plan: from ``relation.sample(...).collate(...).to_torch()``.
        catalog: where its relations are registered.
        threads: as for `PreparedStream`.
        budget_bytes: as for `PreparedStream`.
        read_batch_size: as for `PreparedStream`.
    """

    def __init__(
        self,
        plan: Deliver,
        catalog: Registry,
        threads: int | None = None,
        budget_bytes: int = DEFAULT_BUDGET_BYTES,
        read_batch_size: int | None = None,
    ) -> None:
        super().__init__(plan, catalog, threads, budget_bytes, TorchDelivery(), read_batch_size)

    @property
    def place(self) -> tuple[int, int]:
        """Epoch, and how many of its global batches were delivered, as far as this process knows."""
        known = self._place.known()
        return known.epoch, known.batch

    @property
    def share(self) -> tuple[int, int, int]:
        """Rank, world size, and how many batches are merged into one, as bound or found in the environment."""
        bound = self._bound()
        return bound.rank, bound.world_size, bound.merge

    def reached(self) -> Reached:
        """In a worker: return which batch its last one was."""
        return self._worker.reached or self._place.reached()

    def follow(self, delivered: int, reached: Reached) -> None:
        """In the main process: go to the place after the last batch of a pass that workers read.

        Args:
            delivered: how many batches the loop has had.
            reached: which batch the last of them was.
        """
        bound = self._bound()
        self._place.move(
            self._place.followed(delivered, reached, bound), ended=reached.over and not reached.over_for_all
        )

    def state_following(self, delivered: int, reached: Reached) -> dict[str, Any]:
        """In the main process: return the state after a batch of a pass that workers read; arguments as for `follow`."""
        bound = self._bound()
        cursor = self._place.followed(delivered, reached, bound)
        return self._open().saved(cursor, bound.run_seed, self._place.drawn(cursor.epoch)).to_json()


class StreamLoader(IterableDataset[Tensors]):
    """Reads a stream in worker processes, and knows its place as if this process read the stream.

    One pass goes from the stream's place to the end of the epoch. It leaves the stream after the last batch that the loop
    had; `state_dict` returns that place at any time.

    Args:
        stream: from ``to_torch()``.
        num_workers: how many processes read; 0 reads in this one.
        **options: further arguments of `torch.utils.data.DataLoader`, for its workers and pinned memory.

    Example:
        >>> loader = StreamLoader(plan.to_torch(), num_workers=4)
        >>> for batch in loader:
        ...     train(batch["image"])
        >>> state = loader.state_dict()
    """

    def __init__(self, stream: TorchStream, num_workers: int = 0, **options: Any) -> None:
        self.stream = stream
        self._loader = DataLoader(_Followed(stream), None, num_workers=num_workers, **options) if num_workers else None
        self._delivered: int | None = None  # batches of the pass under way, if workers read it
        self._reached: Reached | None = None  # what the last of them was
        self._reading: Iterator[Tensors] | None = None

    def __iter__(self) -> Iterator[Tensors]:
        """Begin a pass; one that is under way ends."""
        self.close()
        self._reading = reading = iter(self.stream) if self._loader is None else self._through_workers(self._loader)
        return reading

    def _through_workers(self, loader: "DataLoader[tuple[Tensors, Reached]]") -> Iterator[Tensors]:
        ended, self._delivered, self._reached = False, 0, None
        try:
            for batch, reached in loader:
                self._delivered, self._reached = self._delivered + 1, reached
                yield batch
            ended = True
        finally:
            delivered, self._delivered = self._delivered, None
            if ended:
                self.stream.set_epoch((self.stream if self._reached is None else self._reached).epoch + 1)
            elif self._reached is not None:
                self.stream.follow(delivered, self._reached)

    def state_dict(self) -> dict[str, Any]:
        """Return where the loop stands; see `PreparedStream.state_dict`."""
        if not self._delivered or self._reached is None:
            return self.stream.state_dict(self._delivered)
        return self.stream.state_following(self._delivered, self._reached)

    def close(self) -> None:
        """End the pass under way. The next one goes on after the last batch that the loop had."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()  # type: ignore[attr-defined]  # both are generators


@final
class _Followed(IterableDataset[tuple[Tensors, Reached]]):
    """Yields the stream's batches in workers, each with what the main process has to know about it."""

    def __init__(self, stream: TorchStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[tuple[Tensors, Reached]]:
        for batch in self._stream:
            yield batch, self._stream.reached()


def _host(value: Any) -> Any:
    if is_bfloat16(value):
        return torch.from_numpy(value.view("<i2")).view(torch.bfloat16)
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _moved(devices: Devices) -> frozenset[str]:
    """The fields that leave the host."""
    return frozenset(name for name, device in devices.items() if device not in (None, "cpu"))


def _cuda(devices: Devices) -> torch.device | None:
    """Return the CUDA device that fields go to; None if all of them stay on the host.

    Raises:
        BindError: the fields name several devices, the device is not one of CUDA's, or this machine does not have it.
    """
    wanted = {name: torch.device(device) for name, device in devices.items() if device not in (None, "cpu")}
    if not wanted:
        return None
    name, device = next(iter(wanted.items()))
    if device.type != "cuda" or len(set(map(str, wanted.values()))) > 1:
        found = ", ".join(sorted(set(map(str, wanted.values()))))
        msg = f"field {name!r}: devices {found}, but a stream delivers only to the CPU and one CUDA device. Use bind(device=...)"
        raise BindError(msg)
    have = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= have:
        found = "no CUDA device" if not have else f"{have} CUDA device(s), numbered from 0"
        msg = (
            f"field {name!r} asks for device {str(device)!r} and this machine has {found}. Run it on the CPU with "
            'stream.bind(device="cpu"), or on whatever is there with device="auto"'
        )
        raise BindError(msg)
    return device


@final
class _CudaCopies:
    """Copies batches to the device ahead of the loop, and hands them over in order."""

    def __init__(self, stages: Stages, devices: Devices, device: torch.device) -> None:
        self._ahead = stages.plan.prefetch
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._moved = _moved(devices)
        decoded: list[ImageStage | ClipStage] = [*stages.images, *stages.clips]
        self._finishers = {
            stage.name: _Finisher(stage.program, stage.spec.dtype, stage.program.layout, device)
            for stage in decoded
            if stage.name in self._moved and stage.ends_on_device
        }
        self._copying: deque[tuple[torch.cuda.Event, Batch]] = deque()

    def run(self, get: Get) -> Iterator[Tensors]:
        """Yield the batches in order, ``prefetch`` of them copied ahead."""
        ready: deque[tuple[Tensors, torch.cuda.Event]] = deque()
        ended = False
        while not ended or ready:
            while not ended and len(ready) < self._ahead:
                batch = get()
                if batch is None:
                    ended = True
                else:
                    ready.append(self._start(batch))
            if ready:
                yield self._hand_over(*ready.popleft())

    def _start(self, batch: Batch) -> tuple[Tensors, torch.cuda.Event]:
        out: Tensors = {}
        with torch.cuda.stream(self._side):
            for name, value in batch.fields.items():
                host = _host(value)
                if isinstance(host, torch.Tensor) and name in self._moved:
                    moved = host.to(self._device, non_blocking=True)
                    finisher = self._finishers.get(name)
                    out[name] = moved if finisher is None else finisher(moved)
                else:
                    out[name] = host
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            done.record(self._side)
        self._copying.append((done, batch))  # the slot may not be used again before its copy is done
        while self._copying and self._copying[0][0].query():  # type: ignore[no-untyped-call]  # torch leaves it untyped
            self._copying.popleft()
        return out, done

    def _hand_over(self, batch: Tensors, done: torch.cuda.Event) -> Tensors:
        current = torch.cuda.current_stream(self._device)
        current.wait_event(done)
        for value in batch.values():
            if isinstance(value, torch.Tensor) and value.is_cuda:
                value.record_stream(current)
        return batch


@final
class _Finisher:
    """Normalize, cast and lay out uint8 NHWC images, or NTHWC clips, on the device."""

    def __init__(self, program: Any, dtype: str | None, layout: str | None, device: torch.device) -> None:
        _, mean, std = program.on_device()
        self._mean = torch.from_numpy(np.ascontiguousarray(mean)).to(device)
        self._std = torch.from_numpy(np.ascontiguousarray(std)).to(device)
        self._dtype = getattr(torch, dtype or "uint8")
        self._nchw = layout != "nhwc"

    def __call__(self, pixels_HWC: torch.Tensor) -> torch.Tensor:
        out = pixels_HWC
        if self._dtype.is_floating_point:
            out = (
                out.to(torch.float32).mul_(float(np.float32(1 / 255))).sub_(self._mean).div_(self._std).to(self._dtype)
            )
        return out.movedim(-1, -3).contiguous() if self._nchw else out

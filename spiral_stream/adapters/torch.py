"""Streams as PyTorch users know them: tensors, `IterableDataset`, pinned memory and CUDA streams.

Host arrays become tensors without a copy. For fields on a CUDA device the images
travel as uint8 NHWC in pinned, reused slots; a side stream copies them while the
model works and one kernel sequence normalizes, casts and lays them out there.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.adapters.subprocess_reader import SubprocessReader
from spiral_stream.cursor import Cursor
from spiral_stream.errors import BindError, ResumeError
from spiral_stream.extras import need
from spiral_stream.planner.physical import ClipStage, ImageStage
from spiral_stream.planner.resume import WorkerState
from spiral_stream.prepared import PreparedStream
from spiral_stream.runtime.batches import Batch
from spiral_stream.runtime.buffers import Slots
from spiral_stream.runtime.place import Reached

need("torch", "spiral_stream.adapters.torch")
import torch  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, get_worker_info  # noqa: E402

Tensors = dict[str, Any]


@final
class TorchStream(PreparedStream, IterableDataset[Tensors]):
    """A `PreparedStream` of dicts of tensors and lists. Iterate it bare or under ``DataLoader(batch_size=None)``."""

    _subprocess: SubprocessReader | None = None
    _began: Cursor | None = None  # where passes of this worker begin, until the main process moves
    _had = 0  # batches that it gave in it
    _loaded = 0  # batches of the next pass that it gave in an earlier run
    _reached: Reached | None = None  # what this worker's last batch was, where another interpreter reads

    @property
    def place(self) -> tuple[int, int]:
        """Epoch, and the global batches of it that were delivered, as far as this process knows, in the form of a state."""
        here = self._place.here()
        return here.epoch, here.batch

    @property
    def share(self) -> tuple[int, int, int]:
        """Rank, world size, and the batches that are merged into one, as bound or found in the environment."""
        bound = self._bound()
        return bound.rank, bound.world_size, bound.merge

    def __iter__(self) -> Iterator[Tensors]:
        info = get_worker_info()
        if info is None:
            return super().__iter__()
        self._place.in_worker, seen = True, self._place.seen
        self._place.adopt()
        if self._began is None or self._place.seen != seen:  # else a pass that was left has moved the cursor on
            self._began = self._place.cursor
        self._had, self._loaded = self._loaded, 0
        return self._as_worker(self._began, info.id + self._had * info.num_workers, info.num_workers)

    def _as_worker(self, began: Cursor, first: int, workers: int) -> Iterator[Tensors]:
        """One pass of a DataLoader's worker, or the rest of one."""
        self._place.cursor = began  # a pass left early may have ended since, and put its own beginning there
        for batch in self._forked(first, workers) if self.forked else self._run(first, workers):
            self._had += 1
            yield batch

    def _forked(self, worker: int, workers: int) -> Iterator[Tensors]:
        """In a forked worker, where Lance cannot be called: another interpreter reads."""
        if self._subprocess is None:
            self._subprocess = SubprocessReader()
        bound = self._bound()
        self._bindings = self._bindings.updated(rank=bound.rank, world_size=bound.world_size)
        for batch, reached in self._subprocess.batches(self, worker, workers):
            self._reached = reached
            yield {name: _host(value) for name, value in batch.items()}

    def state_dict(self, delivered: int | None = None) -> dict[str, Any]:
        """Where the run stands; asked for in a worker (by torchdata's StatefulDataLoader), where that worker's pass stands."""
        info = get_worker_info()
        if info is None:
            return super().state_dict(delivered)
        known = None if self.forked else self.fingerprint  # a forked worker can open nothing
        began = self._began or self._place.cursor
        return WorkerState(known, began, (info.id, info.num_workers), self._had).to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved place; in a worker, to that of its own pass."""
        info = get_worker_info()
        if info is None and not (isinstance(state, Mapping) and "worker" in state):
            super().load_state_dict(state)
            return
        saved = WorkerState.from_json(state)
        if info is None or saved.worker != (info.id, info.num_workers):
            here = "the main process" if info is None else f"worker {info.id} of {info.num_workers}"
            msg = (
                f"resume: {here} was given a state of worker {saved.worker[0]} of {saved.worker[1]}. A StatefulDataLoader's "
                "state goes to one with as many workers; stream.state_dict(delivered=n) fits any number"
            )
            raise ResumeError(msg)
        if saved.plan is not None and not self.forked and saved.plan != self.fingerprint:
            msg = (
                f"resume: saved by plan {saved.plan:.32}, this is plan {self.fingerprint}. Restore the old plan, or start a "
                "new epoch"
            )
            raise ResumeError(msg)
        self._place.cursor, self._began, self._loaded = saved.cursor, None, saved.had

    def worker_batches(self, worker: int, workers: int) -> Iterator[tuple[dict[str, Any], Reached]]:
        """Every ``workers``-th batch from the ``worker``-th on, as arrays; for `SubprocessReader`."""
        self._place.in_worker = True
        for batch in self._run(worker, workers):
            arrays = {
                name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in batch.items()
            }
            yield arrays, self._place.reached()

    def reached(self) -> Reached:
        """In a worker: what its last batch was."""
        return self._reached or self._place.reached()

    def follow(self, delivered: int, reached: Reached) -> None:
        """In the main process: go behind the last batch of a pass that workers read."""
        bound = self._bound()
        self._place.move(
            self._place.followed(delivered, reached, bound), ended=reached.over and not reached.over_for_all
        )

    def state_following(self, delivered: int, reached: Reached) -> dict[str, Any]:
        """In the main process: the state behind a batch of a pass that workers read."""
        bound = self._bound()
        return self._saved(self._place.followed(delivered, reached, bound), bound)

    def _cuda(self) -> torch.device | None:
        """The CUDA device that fields go to, checked; None if all stay on the host."""
        wanted = {name: torch.device(d) for name, d in self.devices().items() if d not in (None, "cpu")}
        if not wanted or self._place.in_worker:
            return None
        name, device = next(iter(wanted.items()))
        if device.type != "cuda" or len(set(map(str, wanted.values()))) > 1:
            found = ", ".join(sorted(set(map(str, wanted.values()))))
            msg = f"field {name!r}: devices {found}; one stream delivers to the CPU and to one CUDA device. Use bind(device=...)"
            raise BindError(msg)
        have = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= have:
            found = "no CUDA device" if not have else f"{have} CUDA device(s), numbered from 0"
            msg = (
                f"field {name!r} asks for device {str(device)!r} and this machine has {found}. Run it on the CPU with "
                'stream.bind(device="cpu"), or on what there is with device="auto"'
            )
            raise BindError(msg)
        return device

    def _need_devices(self) -> None:
        self._cuda()

    def _need_bound_devices(self) -> None:
        self._cuda()

    def _auto(self) -> str:
        return "cuda" if torch.cuda.is_available() else "cpu"

    def _new_slots(self) -> Slots:
        return Slots() if self._cuda() is None else Slots(pinned)

    def _split(self) -> frozenset[str]:
        return (
            frozenset()
            if self._cuda() is None
            else frozenset(n for n, d in self.devices().items() if d not in (None, "cpu"))
        )

    def _delivered(self, get: Callable[[], Batch | None]) -> Iterator[Tensors]:
        device = self._cuda()
        if device is None:
            while (batch := get()) is not None:
                yield {name: _host(value) for name, value in batch.fields.items()}
            return
        yield from _CudaDelivery(self, device).run(get)


class StreamLoader(IterableDataset[Tensors]):
    """A stream read by worker processes that knows its place as if it were read here.

    One pass goes from the stream's cursor to the end of the epoch and leaves the cursor behind the last batch that
    the loop had, in whatever epoch that is; ``state_dict()`` tells it at any time.

    Args:
        stream: from ``to_torch()``.
        num_workers: 0 reads in this process.
        **options: of `torch.utils.data.DataLoader`, for its workers and pinned memory.
    """

    def __init__(self, stream: TorchStream, num_workers: int = 0, **options: Any) -> None:
        self.stream = stream
        self._loader = DataLoader(_Followed(stream), None, num_workers=num_workers, **options) if num_workers else None
        self._delivered: int | None = None  # in the pass under way, by workers
        self._reached: Reached | None = None  # of the last of them
        self._reading: Iterator[Tensors] | None = None

    def __iter__(self) -> Iterator[Tensors]:
        """One pass; a pass that was left open ends."""
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
        """Where the loop stands; see `PreparedStream.state_dict`."""
        if not self._delivered or self._reached is None:
            return self.stream.state_dict(self._delivered)
        return self.stream.state_following(self._delivered, self._reached)

    def close(self) -> None:
        """End the pass under way; the next one goes on behind the last batch that the loop had."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()  # type: ignore[attr-defined]  # both are generators


@final
class _Followed(IterableDataset[tuple[Tensors, Reached]]):
    """A stream in workers, with what the main process has to know of each batch beside it."""

    def __init__(self, stream: TorchStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[tuple[Tensors, Reached]]:
        for batch in self._stream:
            yield batch, self._stream.reached()


def _host(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def pinned(nbytes: int) -> NDArray[np.uint8]:
    """Page-locked memory, from which a device copies without the CPU."""
    array: NDArray[np.uint8] = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
    return array


@final
class _CudaDelivery:
    """Copies batches to the device ahead of the loop and hands them over in order."""

    def __init__(self, stream: TorchStream, device: torch.device) -> None:
        self._ahead = stream.plan.prefetch
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._devices = stream.devices()
        decoded: list[ImageStage | ClipStage] = [*stream.stages.images, *stream.stages.clips]
        self._finishers = {
            stage.name: _Finisher(stage.program, stage.spec.dtype, stage.program.layout, device)
            for stage in decoded
            if self._devices.get(stage.name) not in (None, "cpu")
        }
        self._copying: deque[tuple[torch.cuda.Event, Batch]] = deque()

    def run(self, get: Callable[[], Batch | None]) -> Iterator[Tensors]:
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
                if isinstance(host, torch.Tensor) and self._devices.get(name) not in (None, "cpu"):
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

"""Streams as PyTorch users know them: tensors, `IterableDataset`, pinned memory and CUDA streams.

Host arrays become tensors without a copy, but for token ids of uint16, which become int64. Fields for a CUDA device lie in
pinned memory that is used again, and are copied while the model works on the batch before (`adapters.cuda`).
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Final, Self, final
from weakref import ref

from spiral_stream.adapters.device_copies import CopiesAhead
from spiral_stream.arguments import door, integer
from spiral_stream.batching.tail import fills_with_value
from spiral_stream.catalog.registry import AnyCatalog
from spiral_stream.cursor import Cursor
from spiral_stream.errors import BindError, StreamError, listed, shown
from spiral_stream.extras import need
from spiral_stream.fields.field import FieldSpec
from spiral_stream.plan.nodes import Deliver
from spiral_stream.planner.stages import Stages
from spiral_stream.prepared import PreparedStream
from spiral_stream.runtime.batch.keys import BatchKey, KeyedBatch
from spiral_stream.runtime.batch.pending_batch import Batch
from spiral_stream.runtime.delivery import Delivery, Devices, Feed
from spiral_stream.runtime.fields.pixels import PixelStage, pixel_stages
from spiral_stream.runtime.measured import FetchedValue, ValueForm
from spiral_stream.runtime.read_ahead import BUDGET_BYTES
from spiral_stream.runtime.run.position import Reached
from spiral_stream.runtime.slots import Allocate
from spiral_stream.threads import starting_processes

need("torch", "spiral_stream.adapters.torch")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, get_worker_info  # noqa: E402

from spiral_stream.adapters.cuda import CudaLink, Finisher, MakeFinish, Tensors, numbered, tensor, widened  # noqa: E402
from spiral_stream.adapters.measured import fetched  # noqa: E402
from spiral_stream.adapters.pinned_memory import memory_for  # noqa: E402

_WORKERS: Final = integer(0, None, "how many processes read, from 0 up")
_OPTIONS: Final = (  # of a DataLoader that leave batches and their order as they are
    *("pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator"),
    *("prefetch_factor", "persistent_workers", "pin_memory_device"),
)
_NOTHING: Final = lambda: None  # noqa: E731  a reference to no pass
_NAMED_RANKS: Final = 4  # in a message
_AHEAD_OF_WORKERS: Final = 2  # batches on the device before the loop has them, where a DataLoader's workers read


@final
class TorchDelivery(Delivery):
    """Tensors on the CPU, or on one CUDA device.

    Args:
        narrow: leave token ids of uint16 as they are, for the process that copies them to a device.
    """

    def __init__(self, *, narrow: bool = False) -> None:
        self._narrow = narrow

    def on_host(self, fields: dict[str, Any]) -> Tensors:
        return {name: tensor(value) for name, value in fields.items()}

    def widened(self, batch: Tensors, host: Mapping[str, FieldSpec]) -> Tensors:
        return batch | {name: widened(batch[name]) for name in self._wideners(host)}

    def _wideners(self, host: Mapping[str, FieldSpec]) -> dict[str, MakeFinish]:
        """What widens token ids, for each field of them."""
        return {} if self._narrow else _wideners(host)

    def delivered(self, feed: Feed, devices: Devices, stages: Stages) -> Generator[Tensors, None, None]:
        ends = _finishers(stages, devices) | self._wideners({stage.name: stage.spec for stage in stages.fields})
        return _arriving(feed, devices, ends, stages.plan.prefetch)

    def spec(self, host: dict[str, FieldSpec]) -> dict[str, FieldSpec]:
        return {
            name: each if each.widened is None else replace(each, dtype=each.widened, widened=None)
            for name, each in host.items()
        }

    def need(self, devices: Devices) -> None:
        _cuda(devices)

    def need_bound(self, devices: Devices) -> None:
        _cuda(devices)

    def auto(self) -> str:
        return "cuda" if torch.cuda.is_available() else "cpu"

    def allocate(self, devices: Devices) -> Allocate:
        device = _cuda(devices)
        return memory_for(None if device is None else numbered(device))

    def split(self, devices: Devices) -> frozenset[str]:
        return frozenset() if _cuda(devices) is None else _moved(devices)

    def need_agreed(self, verb: str, said: str, word: str, world_size: int) -> None:
        if world_size == 1 or not (dist.is_available() and dist.is_initialized()):
            return
        if dist.get_world_size() != world_size:  # ranks of other groups may have no stream, and would never answer
            return
        each: list[tuple[str, str]] = [("", "")] * world_size
        dist.all_gather_object(each, (said, word))
        if len({digest for digest, _ in each}) > 1:
            found = listed(
                [f"rank {rank} has {word}" for rank, (_, word) in enumerate(each)], _NAMED_RANKS, "; ", "; and"
            )
            msg = f"{verb}: the ranks do not agree: {found}. Call it on each, at the same step and with the same shares"
            raise StreamError(msg)

    def agreed(self, value: str) -> str | None:
        if not (dist.is_available() and dist.is_initialized()):
            return None
        said = [value]
        dist.broadcast_object_list(said, src=0)
        return str(said[0])

    def fetched(self, value: Any, form: Callable[[Sequence[int]], ValueForm], mask: Any) -> FetchedValue | None:
        if not isinstance(value, torch.Tensor) or value.is_complex():
            return None
        return fetched(value, form(tuple(value.shape)), mask)

    def worker(self) -> tuple[int, int] | None:
        info = get_worker_info()
        return None if info is None else (info.id, info.num_workers)

    def worker_seed(self) -> int:
        info = get_worker_info()
        return 0 if info is None else info.seed - info.id


@final
class TorchStream(PreparedStream, IterableDataset[Tensors]):
    """A stream of dicts of tensors and lists, and a PyTorch data set.

    Iterate it by itself, through ``DataLoader(stream, batch_size=None)``, or through a `StreamLoader`. Host tensors share
    the memory of the batch; those on a CUDA device were copied while the model worked on the batch before. Token fields of
    dtype uint16 become int64, on the device if they go there: `nn.Embedding` takes int32 and int64, `cross_entropy` int64.

    Args:
        plan: from ``relation.sample(...).collate(...).to_torch()``.
        catalog: where its relations are registered.
        threads: as for `PreparedStream`.
        budget_bytes: as for `PreparedStream`.
        read_batch_size: as for `PreparedStream`.

    Examples:
        >>> stream = plan.to_torch()
        >>> stream.take(1)[0]["width"].dtype
        torch.int64
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
        super().__init__(plan, catalog, threads, budget_bytes, TorchDelivery(), read_batch_size)

    @property
    def place(self) -> tuple[int, int]:
        """Epoch, and how many of its global batches were delivered, as far as this process knows."""
        known = self._run.position.known()
        return known.epoch, known.batch

    @property
    def share(self) -> tuple[int, int, int]:
        """Rank, world size, and how many batches are merged into one, as bound or found in the environment."""
        bound = self._run.bound()
        return bound.rank, bound.world_size, bound.merge

    @property
    def step_batches(self) -> int | None:
        """Batches of an optimizer step over all ranks, as bound; None where the run does not say."""
        deal = self._run.bound().deal
        return None if deal is None else deal.step_batches

    def _reached_place(self) -> Reached:
        """In a worker: return which batch its last one was."""
        return self._run.worker.reached or self._run.position.reached()

    def _follow(self, delivered: int, reached: Reached | None) -> None:
        """In the main process: go to the place after the last batch of a pass that workers read.

        Args:
            delivered: how many batches the loop has had.
            reached: which batch the last of them was; None if it had none.
        """
        ended = reached is not None and reached.over and not reached.over_for_all
        self._run.position.move(self._after(delivered, reached), ended=ended)

    def _state_following(self, delivered: int, reached: Reached | None) -> dict[str, Any]:
        """In the main process: return the state after a batch of a pass that workers read.

        Args:
            delivered: how many batches the loop has had.
            reached: which batch the last of them was; None before the first, where the pass began.
        """
        return self._run.state_at(self._after(delivered, reached))

    def _after(self, delivered: int, reached: Reached | None) -> Cursor:
        return (
            self._run.position.known()
            if reached is None
            else self._run.position.followed(delivered, reached, self._run.bound())
        )


class StreamLoader(IterableDataset[Tensors]):
    """Reads a stream in worker processes, and knows its place as if this process read the stream.

    One pass goes from the stream's place to the end of the epoch. It leaves the stream after the last batch that the loop
    had; `state_dict` returns that place at any time. Workers build batches on the host; this process copies them to the
    stream's device.

    Args:
        stream: from ``to_torch()``.
        num_workers: how many processes read; 0 reads in this one.
        **options: further arguments of `torch.utils.data.DataLoader`, for its workers and pinned memory.

    Raises:
        BindError: an option would change batches or their order, or is for workers, and there are none.

    Examples:
        >>> from spiral_stream.adapters import StreamLoader
        >>> loader = StreamLoader(plan.to_torch())  # num_workers=4 reads in four processes
        >>> next(iter(loader))["width"].shape
        torch.Size([8])
        >>> loader.close()
    """

    @door(BindError, "StreamLoader")
    def __init__(self, stream: TorchStream, num_workers: int = 0, **options: Any) -> None:
        if not isinstance(stream, TorchStream):
            msg = f"StreamLoader: {shown(stream)} is a {type(stream).__name__}. Give the stream itself: plan.to_torch()"
            raise BindError(msg)
        _need_options(num_workers, options)
        self.stream = stream
        options.setdefault("pin_memory", _cuda(stream.devices()) is not None)
        self._loader = DataLoader(_Followed(stream), None, num_workers=num_workers, **options) if num_workers else None
        self._delivered: int | None = None  # batches of the pass under way, if workers read it
        self._reached: Reached | None = None  # what the last of them was
        self._reading: Callable[[], Any] = _NOTHING  # a weak reference, so that a loop that is left ends its pass

    def __iter__(self) -> Iterator[Tensors]:
        """Begin a pass; one that is under way ends."""
        self.close()
        reading = iter(self.stream) if self._loader is None else self._through_workers(self._loader)
        self._reading = ref(reading)
        return reading

    def _through_workers(self, loader: "DataLoader[tuple[Tensors, Reached]]") -> Iterator[Tensors]:
        passes = self.stream._run.passes  # noqa: SLF001  the loader is in this room
        passes.need_idle("iter", "One loop at a time moves the cursor. Leave it, or call close()")
        feed = _FromWorkers(loader)
        self._delivered, self._reached, passes.elsewhere = 0, None, self._over
        try:
            ends = _wideners(self.stream._run.opening.specs)  # noqa: SLF001  as above
            with closing(_arriving(feed, self.stream.devices(), ends, _AHEAD_OF_WORKERS)) as batches:
                for batch in batches:
                    self._delivered, self._reached = self._delivered + 1, feed.reached.popleft()
                    key = feed.keys.popleft()
                    if key is None:
                        yield batch
                        continue
                    if passes.recorder is not None:
                        passes.recorder.delivered(key)
                    yield KeyedBatch(batch, key=key)
            self._end(exhausted=True)
        finally:
            self._end()

    def _over(self) -> bool:
        """Whether the loop has had the last batch of a pass that workers read. The stream goes on then."""
        if self._reached is not None and self._reached.over:
            self._end()
        return self._delivered is None

    def _end(self, *, exhausted: bool = False) -> None:
        """End a pass that workers read, unless it has ended: from here on the stream says where it stands."""
        delivered, reached, self._delivered, self._reached = self._delivered, self._reached, None, None
        if delivered is None:
            return
        self.stream._run.passes.elsewhere = None  # noqa: SLF001  the loader is in this room
        recorder = self.stream._run.recorder  # noqa: SLF001  as above
        if recorder is not None and reached is not None and reached.over:
            recorder.epoch_over(others=not reached.over_for_all, moved=False)
        if exhausted:
            self.stream.set_epoch((self.stream if reached is None else reached).epoch + 1)
        else:
            self.stream._follow(delivered, reached)  # noqa: SLF001  as above
            self.stream._run.changed("epoch" if reached is not None and reached.over else "follow")  # noqa: SLF001  as above

    def state_dict(self) -> dict[str, Any]:
        """Return where the loop stands; see `PreparedStream.state_dict`.

        Examples:
            >>> from spiral_stream.adapters import StreamLoader
            >>> with_state = StreamLoader(plan.to_torch())
            >>> state = with_state.state_dict()
            >>> with_state.close()
        """
        if self._loader is None:
            return self.stream.state_dict()
        return self.stream._state_following(self._delivered or 0, self._reached)  # noqa: SLF001  the loader is in this room

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """End the pass under way, and go to a saved place; see `PreparedStream.load_state_dict`.

        Args:
            state: what `state_dict` returned, of this loader, of another with any number of workers, or of a stream.

        Examples:
            >>> from spiral_stream.adapters import StreamLoader
            >>> loader = StreamLoader(plan.to_torch())
            >>> loader.load_state_dict(loader.state_dict())
            >>> loader.close()
        """
        self.close()
        self.stream.load_state_dict(state)

    def seek(self, *, epoch: int | None = None, batch: int | None = None, step: int | None = None) -> None:
        """End the pass under way, and go to a place of which only the number is known; see `PreparedStream.seek`.

        Examples:
            >>> from spiral_stream.adapters import StreamLoader
            >>> loader = StreamLoader(plan.to_torch())
            >>> loader.seek(step=2)
            >>> loader.close()
        """
        self.close()
        self.stream.seek(epoch=epoch, batch=batch, step=step)

    def close(self) -> None:
        """End the pass under way. The next one goes on after the last batch that the loop had.

        Examples:
            >>> from spiral_stream.adapters import StreamLoader
            >>> StreamLoader(plan.to_torch()).close()
        """
        reading, self._reading = self._reading(), _NOTHING
        if reading is not None:
            reading.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _need_options(num_workers: int, options: Mapping[str, Any]) -> None:
    """Refuse what a loader of a stream would not follow.

    Raises:
        BindError: names the option, and the way out.
    """
    _WORKERS.need("StreamLoader: num_workers=", num_workers, BindError)
    for name, value in options.items():
        if name not in _OPTIONS:
            there = ", ".join(_OPTIONS)
            msg = f"StreamLoader: {name}= is no option here, for the plan makes the batches. Leave it out; there are {there}"
            raise BindError(msg)
        if not num_workers and value not in (None, False, 0):
            found = f"{name}={shown(value)} is for workers, and there are none"
            msg = f"StreamLoader: {found}. Leave it out, or give num_workers=1 or more"
            raise BindError(msg)


@final
class _Followed(IterableDataset[tuple[Tensors, Reached]]):
    """Yields the stream's batches in workers, each with what the main process has to know about it.

    Token ids of uint16 travel as they are: the main process widens them, on the device if they go there.
    """

    def __init__(self, stream: TorchStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[tuple[Tensors, Reached]]:
        self._stream._run.delivery = TorchDelivery(narrow=True)  # noqa: SLF001  as below; of this worker
        for batch in self._stream.bind(device="cpu"):
            yield batch, self._stream._reached_place()  # noqa: SLF001  the loader is in this room


@final
class _FromWorkers(Feed):
    """The batches that workers read. What each says of its place is kept until the loop has it."""

    def __init__(self, loader: "DataLoader[tuple[Tensors, Reached]]") -> None:
        self.reached: deque[Reached] = deque()
        self.keys: deque[BatchKey | None] = deque()
        with starting_processes(multiprocessing=True):
            self._batches = iter(loader)

    def get(self) -> Batch | None:
        for fields, reached in self._batches:
            self.reached.append(reached)
            self.keys.append(fields.key if isinstance(fields, KeyedBatch) else None)
            return Batch(range(0), fields)
        return None

    def at_once(self) -> bool:
        return True  # a DataLoader does not say


def _arriving(
    feed: Feed, devices: Devices, finishers: Mapping[str, MakeFinish], ahead: int
) -> Generator[Tensors, None, None]:
    """Yield batches as tensors, those for a CUDA device copied ``ahead`` of the loop."""
    device = _cuda(devices)
    if device is not None:
        link = CudaLink(numbered(device), _moved(devices), finishers)
        yield from CopiesAhead(link.begin, ahead).run(feed)
        return
    ends = {name: make(torch.device("cpu")) for name, make in finishers.items()}
    while (batch := feed.get()) is not None:
        out = {name: tensor(value) for name, value in batch.fields.items()}
        for name, end in ends.items():
            out[name] = end(out[name])
        yield out


def _wideners(host: Mapping[str, FieldSpec]) -> dict[str, MakeFinish]:
    """What makes int64 of the token ids of uint16 among the fields of a batch."""
    return {name: lambda _: widened for name, each in host.items() if each.widened is not None}


def _moved(devices: Devices) -> frozenset[str]:
    """The fields that leave the host."""
    return frozenset(name for name, device in devices.items() if device not in (None, "cpu"))


def _finishers(stages: Stages, devices: Devices) -> dict[str, MakeFinish]:
    """What makes the ends of image fields that a device normalizes; the host does where it puts values in their place."""
    if fills_with_value(stages.batches.last):
        return {}
    moved = [stage for stage in pixel_stages(stages) if stage.name in _moved(devices)]
    return {stage.name: _finisher(stage) for stage in moved if stage.ends_on_device}


def _finisher(stage: PixelStage) -> MakeFinish:
    program: Any = stage.program  # none of masks, which end on the host
    _, mean, std = program.on_device()
    return partial(Finisher, mean, std, stage.spec.dtype or "uint8", program.layout)


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

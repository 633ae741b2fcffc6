"""How batches reach the loop: as arrays of which framework, and on which device.

The runtime builds batches on the host, as NumPy arrays and lists. A `Delivery` turns them into what the loop gets. It is a
value that a stream holds: streams of different frameworks differ in their delivery and in nothing else.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, Protocol, final

from spiral_stream.errors import BindError, MissingExtraError, warn
from spiral_stream.fields.field import FieldSpec
from spiral_stream.host_dtypes import is_bfloat16
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.batch.pending_batch import Batch
from spiral_stream.runtime.measured import FetchedValue, ValueForm
from spiral_stream.runtime.slots import Allocate, pageable

Devices = Mapping[str, str | None]  # array field -> where it is delivered; None where nobody said


class Feed(Protocol):
    """Where a delivery gets the batches of a pass."""

    def get(self) -> Batch | None:
        """Return the next batch on the host; None after the last."""

    def at_once(self) -> bool:
        """Whether `get` returns without waiting."""


@final
class OneBatch(Feed):
    """A batch that was built by itself."""

    def __init__(self, batch: Batch) -> None:
        self._left: list[Batch] = [batch]

    def get(self) -> Batch | None:
        return self._left.pop() if self._left else None

    def at_once(self) -> bool:
        return True


class Delivery(ABC):
    """What a framework decides about batches. Pickled with its stream, so it holds nothing that is open."""

    @abstractmethod
    def on_host(self, fields: dict[str, Any]) -> Any:
        """Return a batch of NumPy arrays and lists as the framework's, without moving it to a device."""

    def delivered(self, feed: Feed, devices: Devices, stages: Stages) -> Generator[Any, None, None]:
        """Yield batches as the loop gets them, in order.

        Args:
            feed: where the batches come from.
            devices: where the fields go; empty where all of them stay on the host.
            stages: the lowered plan.
        """
        del devices, stages
        while (batch := feed.get()) is not None:
            yield self.on_host(batch.fields)

    def widened(self, batch: Any, host: Mapping[str, FieldSpec]) -> Any:
        """Return a batch on the host with token ids in a dtype that the framework computes with.

        Args:
            batch: from `on_host`.
            host: what its fields are before they are delivered.
        """
        del host
        return batch

    @abstractmethod
    def need(self, devices: Devices) -> None:
        """Refuse devices that batches cannot be delivered to.

        Raises:
            BindError: names a field, the device, and the way out.
        """

    def need_bound(self, devices: Devices) -> None:  # noqa: B027  most have nothing to add
        """Refuse devices already when they are bound.

        Raises:
            BindError: names a field, the device, and the way out.
        """

    def spec(self, host: dict[str, FieldSpec]) -> dict[str, FieldSpec]:
        """Return what the fields of a batch are once delivered, given what they are on the host."""
        return host

    def devices(self, host: Mapping[str, FieldSpec], plan: str | None, bound: str | None) -> dict[str, str | None]:
        """Return where each array field is delivered.

        Args:
            host: what the fields are.
            plan: the device that the ``to_...`` verb names.
            bound: the device that the run has bound; it wins over the field's own, and that over the plan's.
        """
        out = dict[str, str | None]()
        for name, spec in host.items():
            if spec.dtype is not None:
                device = bound or spec.device or plan
                out[name] = self.auto() if device == "auto" else device
        return out

    def auto(self) -> str:
        """Return the device that ``"auto"`` means here."""
        return "cpu"

    def allocate(self, devices: Devices) -> Allocate:
        """Return what allocates the memory of batches."""
        del devices
        return pageable

    def split(self, devices: Devices) -> frozenset[str]:
        """Return the image fields that are normalized on the device, not on the host."""
        del devices
        return frozenset()

    def need_agreed(self, verb: str, said: str, word: str, world_size: int) -> None:  # noqa: B027  most know no other ranks
        """Refuse an edit that ranks do not agree on, where the framework has joined them. All ranks of the run call it.

        Args:
            verb: who asks, for the message.
            said: a digest of the edit.
            word: the edit in words.
            world_size: of the run.

        Raises:
            StreamError: says what each rank asked for.
        """

    def with_keys(self) -> None:  # noqa: B027  most take a dict of any class
        """Get ready for batches that carry keys (`runtime.batch.keys`)."""

    def agreed(self, value: str) -> str | None:
        """Return the value that the first of all processes gives here; None where they cannot ask each other."""
        del value
        return None

    def fetched(self, value: Any, form: Callable[[Sequence[int]], ValueForm], mask: Any) -> FetchedValue | None:
        """Begin to fetch a value that the loop measured, reduced by sample; None if it is no array of the framework.

        Args:
            value: as the loop has it.
            form: tells how its shape fits the batch, or refuses it.
            mask: which tokens count; None counts all.
        """
        del value, form, mask
        return None

    def worker(self) -> tuple[int, int] | None:
        """Return which data-loading worker of how many this process is; None in the main process."""
        return None

    def worker_seed(self) -> int:
        """Return what the loader drew for all workers that it started together; 0 in the main process."""
        return 0


@final
class HostDelivery(Delivery):
    """NumPy arrays and lists, as they were built.

    Args:
        bits: leave bfloat16 as bits, for another process whose framework has it.
    """

    def __init__(self, *, bits: bool = False) -> None:
        self._bits = bits

    def on_host(self, fields: dict[str, Any]) -> dict[str, Any]:
        if self._bits:
            return fields
        return {name: value.view(_bfloat16(name)) if is_bfloat16(value) else value for name, value in fields.items()}

    def need(self, devices: Devices) -> None:
        for name, device in devices.items():
            if device not in (None, "cpu"):
                msg = (
                    f"field {name!r} asks for device {device!r}; NumPy arrays live on the host. "
                    "Use to_torch(), or bind(device='cpu')"
                )
                raise BindError(msg)


def tell_of_host(devices: Devices) -> None:
    """Warn that a DataLoader's workers deliver to the host, if another device is asked for."""
    elsewhere = [(name, device) for name, device in devices.items() if device not in (None, "cpu")]
    if elsewhere:
        name, device = elsewhere[0]
        warn(
            f"iter: field {name!r} asks for device {device!r}, but a DataLoader's workers deliver to the host. Read with "
            "spiral_stream.adapters.torch.StreamLoader(stream, num_workers=...), which copies to the device, or say "
            'stream.bind(device="cpu")'
        )


def _bfloat16(name: str) -> Any:
    """Return the NumPy dtype of the package ml_dtypes.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        from ml_dtypes import bfloat16
    except ImportError as error:
        msg = (
            f"to_numpy: field {name!r} has dtype bfloat16, which NumPy lacks. Run: pip install ml_dtypes; or use to_torch() or "
            'to_jax(), or dtype="float32"'
        )
        raise MissingExtraError(msg, name="ml_dtypes") from error
    return bfloat16


HOST: Final = HostDelivery()
BITS: Final = HostDelivery(bits=True)

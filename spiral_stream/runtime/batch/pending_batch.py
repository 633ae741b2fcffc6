"""A batch that is being built, and the work that is left of it."""

from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from spiral_stream.errors import DataError
from spiral_stream.integrity.blocks import need_sound, sound
from spiral_stream.runtime.batch.keys import BatchKey


@final
@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of one rank, on the host."""

    numbers: range  # global numbers of the batches that are joined in it
    fields: dict[str, Any]  # NumPy arrays and lists, in the plan's order
    samples: int = 0  # that were drawn for it
    key: BatchKey | None = None  # which samples it holds, where a run records that


def finish(parts: list[Future[None]]) -> None:
    """Wait for pieces of work and forget them. Raises the error of the first that failed.

    An error leads to the batch whose piece it was, and the batch has the list: forgotten, the two let each other go.
    """
    try:
        for part in parts:  # which may add some
            part.result()
    finally:
        drop(parts)


def drop(parts: list[Future[None]]) -> None:
    """Cancel the pieces that have not begun, and forget all."""
    for part in parts:
        part.cancel()
    parts.clear()


class Pending:
    """A batch that is being built.

    Args:
        finish: makes the batch, once its fields are filled.
        parts: the pieces of work that fill the fields.
        fields: name -> array or list; None for a field whose size is known only once a piece is done.
        listed: bytes of the fields that are lists; a function where they are known only once the pieces are done.
        begun: when the reading of mapped files began.
        samples: that were drawn for the batch.
    """

    def __init__(
        self,
        finish: Callable[[], Batch],
        parts: list[Future[None]],
        fields: Mapping[str, Any],
        listed: int | Callable[[], int],
        begun: int = 0,
        samples: int = 0,
    ) -> None:
        self._finish, self._parts = finish, parts
        self._fields, self._listed = fields, listed
        self._begun, self.samples = begun, samples
        self._bytes, self._settled = 0, False  # once it is settled, nothing is counted again
        self.mend: Callable[[DataError], Pending | None] | None = None  # makes it again without the sample of an error

    def size(self) -> tuple[int, bool]:
        """Return the bytes of the fields whose size is known, and whether that is every field."""
        if not self._settled:
            known = not callable(self._listed) or self.done
            nbytes = self._listed() if callable(self._listed) else self._listed
            for value in list(self._fields.values()):
                nbytes += value.nbytes if isinstance(value, np.ndarray) else 0
                known = known and value is not None
            self._bytes, self._settled = nbytes, known  # in this order: another thread may ask
            return nbytes, known
        return self._bytes, self._settled

    @property
    def done(self) -> bool:
        """Whether all pieces are done."""
        return all(part.done() for part in self._parts)

    def wait(self, timeout_s: float) -> bool:
        """Whether all pieces are done. Waits up to ``timeout_s`` for each."""
        for part in self._parts:
            try:
                part.exception(timeout_s)
            except TimeoutError:
                return False
            except CancelledError:
                return True
        return True

    def result(self) -> Batch:
        """Wait for the pieces, and return the batch. Raises the error of the first piece that failed.

        Raises:
            DamageError: a mapped file was truncated while the batch was read.
        """
        try:
            with sound(self._begun):
                finish(self._parts)
        except DataError as error:
            again = None if self.mend is None else self.mend(error)
            if again is None:
                raise
            return again.result()
        return self._finish()

    def cancel(self) -> None:
        """Cancel the pieces that have not begun."""
        drop(self._parts)


@final
class Ready(Pending):
    """A batch that was built where it was begun.

    Args:
        batch: the batch.
        listed: bytes of the fields that are lists.
        begun: when the reading of mapped files began.
    """

    def __init__(self, batch: Batch, listed: int, begun: int) -> None:
        self._batch, self._begun, self.samples = batch, begun, batch.samples
        arrays = (value.nbytes for value in batch.fields.values() if isinstance(value, np.ndarray))
        self._size = listed + sum(arrays), True

    def size(self) -> tuple[int, bool]:
        return self._size

    @property
    def done(self) -> bool:
        return True

    def wait(self, timeout_s: float) -> bool:
        del timeout_s
        return True

    def result(self) -> Batch:
        need_sound(self._begun)
        return self._batch

    def cancel(self) -> None:
        pass

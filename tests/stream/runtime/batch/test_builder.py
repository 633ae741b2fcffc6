"""A batch that is being built: how large it is, when it is done, and what its failure is."""

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from spiral_stream.errors import DataError
from spiral_stream.runtime.batch.pending_batch import Batch, Pending
from spiral_stream.runtime.fields.draft import spread


def pending(fields: dict[str, Any], parts: list[Future[None]] | None = None, listed: int = 0) -> Pending:
    return Pending(lambda: Batch(range(3, 4), fields), parts or [], fields, listed)


def done(error: BaseException | None = None) -> Future[None]:
    future: Future[None] = Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future


def test_a_batch_is_settled_once_every_size_is_known() -> None:
    fields: dict[str, Any] = {"x": np.zeros(4, np.int64), "names": ["a", "b"], "image": None}
    batch = pending(fields, listed=10)

    assert batch.size() == (32 + 10, False)
    fields["image"] = np.zeros((2, 3), np.uint8)
    assert batch.size() == (32 + 10 + 6, True)


def test_the_result_comes_after_all_pieces_and_is_the_first_failure() -> None:
    late: Future[None] = Future()
    batch = pending({"x": 1}, [done(), late])
    assert not batch.wait(0.0)
    late.set_result(None)
    assert batch.wait(0.0)
    assert batch.result().fields == {"x": 1}

    failed = pending({}, [done(), done(DataError("first")), done(DataError("second"))])
    assert failed.wait(0.0)
    with pytest.raises(DataError, match="first"):
        failed.result()


def test_pieces_that_have_not_begun_are_cancelled() -> None:
    running, waiting = Future[None](), Future[None]()
    running.set_running_or_notify_cancel()
    batch = pending({}, [running, waiting])
    batch.cancel()

    assert waiting.cancelled()
    assert not running.cancelled()
    running.set_result(None)
    assert batch.wait(0.0)


def test_rows_are_spread_over_more_rows() -> None:
    assert spread(np.array([[1], [2]]), np.array([0, 3]), 4).tolist() == [[1], [0], [0], [2]]

"""Calls of Lance: its failures become Spiral's errors, and the requests of its client are counted."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from time import perf_counter
from typing import Any, Final

from spiral_stream.errors import SourceError, SpiralError, cut, is_failure
from spiral_stream.storage.counters import count
from spiral_stream.storage.profiles import need_values, options_of, redacted
from spiral_stream.storage.retry import Patience
from spiral_stream.storage.uri import is_object

_LIMITS: Final = frozenset(("timeout", "request_timeout", "read_timeout"))  # options that limit a request
_DEADLINE: Final = "client_retry_timeout"
_FULL: Final = re.compile(r"No space left|os error (28|122)\b")  # the disk, or a quota
_USUAL_S: Final = 30  # of a request, by its client's default
_TRIES: Final = 4  # times that Lance asks for a range: ``download_retry_count`` is 3


def lance_options(uri: str) -> dict[str, str] | None:
    """Return the storage options of a dataset; None for a folder, or where there are none.

    Raises:
        SourceError: one is misspelt, or has a value that it cannot have: Lance would pass over it.
    """
    if not is_object(uri):
        return None
    options = options_of(uri)
    need_values(uri, options)
    if _DEADLINE in options:  # Lance passes over one with a fraction
        options = {**options, _DEADLINE: str(ceil(float(options[_DEADLINE])))}
    if not options.keys() & _LIMITS:
        options = {**options, "timeout": f"{_seconds(options)}s"}
    return options


def _seconds(options: Mapping[str, str]) -> int:
    """Return how long one request of Lance may take: it asks four times, and all of them end by the deadline of the options.

    A store that sends a byte a second answers, so no other limit of its client holds.
    """
    deadline_s = float(options.get(_DEADLINE, Patience().timeout_s))
    return max(1, min(_USUAL_S, round(deadline_s / _TRIES)))


@contextmanager
def counting(requests_since: Callable[[], Any], title: str) -> Iterator[None]:
    """`storage` for a dataset on a store. A request that Lance repeats is counted once. Costs 18 us.

    Args:
        requests_since: ``io_stats_incremental`` of the dataset. Of several threads, one may count what another has asked;
            nothing is counted twice.
        title: where it lies.
    """
    begun = perf_counter()
    try:
        with storage(title):
            yield
    finally:
        requests = requests_since()
        if requests.read_iops:
            count(requests=requests.read_iops, bytes=requests.read_bytes, wait_s=perf_counter() - begun)


@contextmanager
def storage(title: str) -> Iterator[None]:
    """Turn Lance's failures into SourceError, Rust panics (a BaseException) included.

    Raises:
        SourceError: says where, and Lance's first line.
    """
    try:
        yield
    except (SpiralError, MemoryError):
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "://" in title:  # its words quote requests
            msg = f"{title}: {cut(redacted(first))}. Check the URI, the options of its profile, and that the files are whole; "
            msg += "restore a damaged one, or write the dataset again"
            raise SourceError(msg) from None
        way_out = "Check that the files are whole and readable; restore a damaged one, or write the dataset again"
        if _FULL.search(first):
            way_out = "Free space on that disk, or use another one"
        msg = f"{title}: {first}. {way_out}"
        raise SourceError(msg) from error

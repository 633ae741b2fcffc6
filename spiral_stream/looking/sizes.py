"""Sizes that a user may state for the view of a stream."""

from spiral_stream.errors import PlanError, shown


def need_sizes(threads: object, read_batch_size: object) -> None:
    """Refuse sizes that are no whole numbers from 1 up.

    Raises:
        PlanError: names the argument.
    """
    for name, given in (("threads", threads), ("read_batch_size", read_batch_size)):
        if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 1):
            msg = f"stream: {name}={shown(given)}. Give a whole number from 1 up, or None"
            raise PlanError(msg)

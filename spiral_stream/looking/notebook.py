"""Teach a notebook to show batches, which stay dicts (docs/decisions/0066).

IPython asks a formatter by type. Ours, of dicts, knows a batch by its first array, and leaves every other dict to whoever
showed it before. It keeps nothing alive: what it knows of a batch goes with that array. Outside of IPython nothing happens.
"""

import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from typing import Any, final

Show = Callable[[Mapping[str, Any]], str | None]


@final
class BatchFormatter:
    """Shows the dicts that are batches of a stream.

    Args:
        before: what showed dicts until now; None if nothing did.
    """

    def __init__(self, before: Callable[[Any], Any] | None) -> None:
        self._before = before
        self.known: dict[int, tuple[weakref.ref[Any], Show]] = {}

    def remember(self, batch: Mapping[str, Any], show: Show) -> None:
        """Know a batch from now on.

        Args:
            batch: as the loop gets it; one of lists alone is not known.
            show: returns it as HTML.
        """
        for array in batch.values():
            if hasattr(array, "shape"):
                key = id(array)
                self.known[key] = weakref.ref(array, partial(self.known.pop, key)), show
                return

    def __call__(self, value: Any) -> Any:
        """Return a dict as HTML; None if this dict has no such form."""
        for array in value.values() if type(value) is dict else ():
            known = self.known.get(id(array))
            if known is not None and known[0]() is array:
                return known[1](value)
        if self._before is not None:
            return self._before(value)
        html = getattr(value, "_repr_html_", None)
        return html() if callable(html) else None


def batch_formatter() -> BatchFormatter | None:
    """Return the formatter of this notebook, or terminal of IPython, which gets one at the first call; None elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    if shell is None:
        return None
    html = shell.display_formatter.formatters["text/html"]
    before = html.type_printers.get(dict)
    if isinstance(before, BatchFormatter):
        return before
    made = BatchFormatter(before)
    html.for_type(dict, made)
    return made


def remembered(
    formatter: BatchFormatter, batches: Iterable[Any], make: Callable[[], Show]
) -> Generator[Any, None, None]:
    """Yield batches, and let a notebook know each; ``make`` is asked when the first is there, what shows them."""
    show: Show | None = None
    try:
        for batch in batches:
            show = show or make()
            formatter.remember(batch, show)
            yield batch
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()

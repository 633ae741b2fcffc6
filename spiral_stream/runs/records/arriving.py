"""Values that are on their way from a device, of the batches that were logged last: at most so many, the oldest first.

Each is put into its batch's entry when it is here. If too many are under way, the loop waits for the oldest, which is counted:
none is ever dropped.
"""

from collections import deque
from typing import Final, NamedTuple, final

from spiral_stream.runs.records.values import Value, value_of
from spiral_stream.runtime.measured import FetchedValue, ValueForm

SLOTS: Final = 64  # values under way


class _UnderWay(NamedTuple):
    values: dict[str, Value]  # of the entry
    name: str
    form: ValueForm
    fetched: FetchedValue


@final
class Arriving:
    """The values that are under way.

    Attributes:
        waited: how often the loop had to wait for one.
    """

    def __init__(self) -> None:
        self._under_way: deque[_UnderWay] = deque()
        self.waited = 0

    def add(self, values: dict[str, Value], name: str, form: ValueForm, fetched: FetchedValue) -> None:
        """Put a value into an entry when it is here: at once, if nothing is under way before it."""
        self._under_way.append(_UnderWay(values, name, form, fetched))
        if len(self._under_way) > SLOTS and not self._under_way[0].fetched.done():
            self.waited += 1
            self._under_way[0].fetched.wait()
        while self._under_way and self._under_way[0].fetched.done():
            self._put(self._under_way.popleft())

    def all_here(self) -> None:
        """Wait until all of them are here."""
        while self._under_way:
            self._under_way[0].fetched.wait()
            self._put(self._under_way.popleft())

    @staticmethod
    def _put(found: _UnderWay) -> None:
        found.values[found.name] = value_of(found.form, *found.fetched.take())

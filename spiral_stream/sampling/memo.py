"""Remember the last results of a method, in the object that it belongs to.

`functools.lru_cache` over a bound method keeps the object, and the object keeps the cache: a circle, in which files stay
open until the garbage collector comes by.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final, ParamSpec, TypeVar
from weakref import WeakMethod

P = ParamSpec("P")
R = TypeVar("R")
_GONE: Final = "the object of this method is gone"


def memo(method: Callable[P, R], most: int) -> Callable[P, R]:
    """Return a method that keeps its last results, for an attribute of its own object.

    Args:
        method: a bound method whose arguments can be hashed.
        most: how many results are kept.
    """
    weak = WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        found = weak()
        assert found is not None, _GONE
        return found(*args, **kwargs)

    return lru_cache(most)(call)  # type: ignore[return-value]  # a wrapper that is called alike

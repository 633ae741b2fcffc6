"""What the next epoch needs first, fetched before the present one ends.

When the feeder has begun the last batch of an epoch, its store is idle until the loop asks for the next one. Meanwhile what
the first batches of the next epoch read, as many as are built ahead, goes to the node cache, up to a number of bytes. The
batches themselves are built by the next pass, which waits for what is still on its way.

Only where it is known without much work which samples share a batch, and where there is a node cache: nothing is kept here.
A run that says how many epochs it takes (`bind(epochs=)`) fetches nothing after its last one.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import Final, final

from spiral_stream.cursor import LAST_EPOCH
from spiral_stream.errors import SpiralError
from spiral_stream.planner.binding.bindings import Bound
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.columns.samples import SampleReader
from spiral_stream.runtime.fetch import FETCHERS
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.numbering.steps import Steps
from spiral_stream.runtime.run.opened_plan import Opening
from spiral_stream.runtime.run.payload_ahead import PayloadAhead
from spiral_stream.runtime.run.position import Place
from spiral_stream.storage.counters import Traffic, counted_behind
from spiral_stream.storage.node_cache.node_default import node_cache
from spiral_stream.threads import CLOSE_TIMEOUT_S, Workers, warn_left_alone

AHEAD_BYTES: Final = 256 << 20
_OF_CACHE: Final = 8  # at most this part of the node cache's limit


@final
class NextEpoch:
    """Fetches ahead for one stream.

    Args:
        metrics: of the stream.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._pool: Workers | None = None
        self._left = 0  # bytes that may still be fetched
        self._lock = threading.Lock()

    def after(
        self, steps: Steps, place: Place, opening: Opening, bound: Bound, which: tuple[int, int]
    ) -> Iterator[list[range]]:
        """Yield the batches of a pass that are due, and then begin with the next epoch.

        Args:
            steps: of the pass.
            place: where the stream stands.
            opening: what the stream reads.
            bound: what the run has bound.
            which: worker and workers.
        """
        yield from steps.due(*which)
        asked = self._metrics.network.requests or self._metrics.network.hits  # else nothing lies on a store
        cache = node_cache() if asked else None
        start = steps.start.next_epoch()
        last = LAST_EPOCH if bound.epochs is None else bound.epochs - 1
        if cache is None or start.epoch > last:
            return
        reader, numbering = opening.read(bound.run_seed)
        batches, stages = numbering.ahead, opening.stages
        if batches is None:
            return
        start = start.enter(bound.world_size, bound.merge)
        then = Steps(batches, place.drawn(start.epoch), start, bound.place)
        due = islice(
            chain.from_iterable(then.due(*which)), min(stages.plan.prefetch, bound.steps or stages.plan.prefetch)
        )
        self._left = min(AHEAD_BYTES, cache.limit_bytes // _OF_CACHE)
        if self._pool is None:
            self._pool = Workers(FETCHERS, "spiral-next")
        self._pool.submit(self._counted, partial(self._begin, self._pool, stages, reader, then, due))

    def _begin(self, pool: Workers, stages: Stages, reader: SampleReader, steps: Steps, due: Iterator[range]) -> None:
        """Begin with each batch: who reads it will say what is wrong with it."""
        payload = PayloadAhead(stages, reader)
        for numbers in due:
            for number in numbers:
                for fetch in payload.fetches(steps.epoch, steps.numbering.draw(steps.epoch, number).samples):
                    pool.submit(self._counted, fetch)
                if self._left <= 0:
                    return

    def _counted(self, work: Callable[[], object]) -> None:
        """Fetch something, and count what was asked of stores for it."""
        if self._left <= 0:
            return
        own = Traffic()
        try:
            with suppress(SpiralError, OSError, IndexError):  # the next pass counts hits and waiting
                counted_behind(self._metrics.network, work, own=own)
        finally:
            with self._lock:
                self._left -= own.bytes + own.hit_bytes

    def close(self, timeout_s: float | None = None) -> bool:
        """End what is under way.

        Returns:
            Whether a thread still runs after the deadline; a warning has named it.
        """
        pool, self._pool = self._pool, None
        if pool is None:
            return False
        timeout_s = CLOSE_TIMEOUT_S if timeout_s is None else timeout_s
        left = pool.end(timeout_s)
        warn_left_alone("next epoch", left, timeout_s)
        return bool(left)

"""The token columns of a plan's samples, whichever stream each sample is of: the tokens, or only how many there are."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import renumbered
from spiral_stream.fields.ragged import Ragged
from spiral_stream.plan.verbs.maps import SampleTokens
from spiral_stream.planner.columns.streams import ordinals, split
from spiral_stream.planner.stages import Stages, TokenStage
from spiral_stream.runtime.columns.tokens import TokenFeed
from spiral_stream.runtime.columns.unreadable import encoded
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.sampling.epoch import Places
from spiral_stream.sampling.order import UInt64

Int64 = NDArray[np.int64]
V = TypeVar("V")
Refused = dict[int, str]  # place of a sample -> why its text cannot be read


@final
class TokenColumns:
    """The token columns of a plan, by the number of the map that makes each. Thread-safe."""

    def __init__(self, stages: Stages, metrics: Metrics, pool: Executor | None) -> None:
        """Open the caches.

        Args:
            stages: the lowered plan.
            metrics: where reads are counted.
            pool: encodes long texts that no cache holds; None leaves them to the caller's thread.
        """
        self._stages, self._metrics = stages, metrics
        made = [at for at, step in enumerate(stages.maps) if isinstance(step, SampleTokens)]
        self._tokens = dict(zip(made, stages.tokens, strict=True))  # by the map, for two may give one name
        self._feeds = {at: _feeds(stages, stage, metrics, pool) for at, stage in self._tokens.items()}

    def computed(self, at: int) -> bool:
        """Whether the text of map ``at`` is computed, so that it has to be given."""
        return not self._feeds[at]

    def of_texts(self, at: int, texts: pa.Table, refused: Refused | None) -> Ragged:
        """Encode texts that the plan computes."""
        with self._metrics.calling(f"tokenize {', '.join(texts.column_names)}"):
            return encoded(self._tokens[at].encoder, texts, refused)

    def tokens(self, at: int, places: Places, refused: Refused | None) -> Ragged:
        """Return the tokens of samples.

        Args:
            at: number of the map.
            places: S samples.
            refused: if given, unreadable samples get no tokens, and the reason is put here, by place.

        Raises:
            DataError: a text cannot be read, and ``refused`` is None; ``row`` is the first such place.
        """
        found = self._asked(at, places, refused, TokenFeed.tokens)
        if not found:
            return Ragged.of_flat(np.empty(0, dtype=np.uint16), np.zeros(1, dtype=np.int64))
        return found[0][1] if len(found) == 1 else Ragged.concat([tokens for _, tokens in found]).take(_order(found))

    def lengths(self, at: int, places: Places, refused: Refused | None) -> pa.Array:
        """Return how many tokens samples have, as integers: from a cache no token is read. Arguments as in `tokens`."""
        found = self._asked(at, places, refused, TokenFeed.lengths)
        if not found:
            return pa.array(np.empty(0, np.int64))
        return pa.array(found[0][1] if len(found) == 1 else np.concatenate([each for _, each in found])[_order(found)])

    def _asked(
        self, at: int, places: Places, refused: Refused | None, ask: Callable[[TokenFeed, UInt64, Refused | None], V]
    ) -> list[tuple[Int64, V]]:
        """What each stream's feed answers, and for which samples."""
        feeds = self._feeds[at]
        whole = [(0, np.arange(len(places)))]
        out = []
        for stream, where in whole if len(feeds) == 1 else split(places):
            own = ordinals(self._stages.streams, stream, places.rows[where])
            out.append((where, _at_rows(feeds[stream], own, where, refused, ask)))
        return out


def _order(found: Sequence[tuple[Int64, Any]]) -> Int64:
    """Where, among the values of several streams' samples one after the other, that of each sample stands."""
    return np.argsort(np.concatenate([where for where, _ in found]), kind="stable")


def _feeds(stages: Stages, stage: TokenStage, metrics: Metrics, pool: Executor | None) -> list[TokenFeed]:
    return [
        TokenFeed(stream.base, cache.kind, cache.store.open(), metrics, pool)
        for stream, cache in zip(stages.streams, stage.caches, strict=False)
    ]


def _at_rows(
    feed: TokenFeed,
    own: UInt64,
    where: Int64,
    refused: Refused | None,
    ask: Callable[[TokenFeed, UInt64, Refused | None], V],
) -> V:
    """Ask one stream's feed. The row of an error, and refused rows, count among all samples."""
    found: Refused | None = None if refused is None else {}
    with renumbered(where):
        answer = ask(feed, own, found)
    if refused is not None and found:
        refused.update({int(where[row]): reason for row, reason in found.items()})
    return answer

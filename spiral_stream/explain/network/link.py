"""A network as a user states it, ``"10 Gbit/s, 50 ms"``: bandwidth and latency."""

import re
from dataclasses import dataclass
from typing import Any, Final, final

from spiral_stream.errors import PlanError, shown

_POWERS: Final = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_LINK: Final = re.compile(
    r"\s*(?P<rate>\d+(?:\.\d+)?)\s*(?P<power>[kKMGT]?)(?P<binary>i?)(?P<unit>bit|b|B|byte|bytes)(?:/s|ps)"
    r"\s*,\s*(?P<wait>\d+(?:\.\d+)?)\s*(?P<time>us|ms|s)\s*"
)


@final
@dataclass(frozen=True, slots=True)
class Network:
    """What a node has to its stores."""

    text: str
    bytes_per_s: float  # of a node
    latency_s: float  # from a request to the first byte of its answer


def link_of(network: Any) -> Network:
    """Return the network that a text states: bandwidth of a node, a comma, latency.

    Raises:
        PlanError: it is no such text.
    """
    found = _LINK.fullmatch(network) if isinstance(network, str) else None
    rate = float(found["rate"]) if found else 0.0
    if found is None or not rate:
        msg = (
            f"explain: network={shown(network)} is no network. Give the bandwidth of a node and the latency of a request: "
            '"10 Gbit/s, 50 ms" or "200 MB/s, 20 ms"'
        )
        raise PlanError(msg)
    scale = (1024 if found["binary"] else 1000) ** _POWERS[found["power"]]
    bits = 8 if found["unit"] in ("bit", "b") else 1
    return Network(network.strip(), rate * scale / bits, float(found["wait"]) * _SECONDS[found["time"]])

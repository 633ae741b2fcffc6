"""How far ahead of the loop a stream reads: every limit, and the room that keeps to it.

| what is read ahead | limit | kept by |
|---|---|---|
| batches that wait for the loop | the plan's ``prefetch``, and `BUDGET_BYTES` | `runtime.run.queue` |
| fetches under way | `FETCHERS`, each with `storage.objects.IN_FLIGHT` requests | `runtime.fetch` |
| rows of payload, for batches to come | `ROWS_BYTES` | `runtime.columns.rows_ahead` |
| bytes around those of a batch, for later in the epoch | what the node cache has room for | `runtime.run.fetch_ahead` |
| the first batches of the next epoch | ``prefetch``, `NEXT_EPOCH_BYTES`, a part of the node cache | `runtime.run.fetch_ahead` |

None of them changes a batch. On CUDA, `adapters.torch` keeps ``prefetch`` more batches on their way to the device.
"""

from typing import Final

BUDGET_BYTES: Final = 4 << 30  # of batches that wait; ``budget_bytes=`` of a stream gives another
FETCHERS: Final = 8  # threads, for batches that are built
THREADS: Final = 4  # for what is fetched ahead, each with a request of 8 MiB or several smaller ones under way
ROWS_BYTES: Final = 4 << 20  # that are read together; of larger rows, fewer are
NEXT_EPOCH_BYTES: Final = 256 << 20
NEXT_EPOCH_OF_CACHE: Final = 8  # at most this part of the node cache's limit

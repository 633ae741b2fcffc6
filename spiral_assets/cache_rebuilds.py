"""When Dagster rebuilds a cache: every night; the video index also within a minute of new shards.

Newer code or data makes an asset stale, which the UI shows; the next run rebuilds it.

* `NIGHTLY`: the hour of each domain's job. It builds only the shards that are missing or changed.
* `EVERY_S`: how often a sensor (`defs.indexes.video_sensor`) looks for video shards that have no index.
* The code version of a cache's asset: another one makes the asset stale. It changes with the settings and the library's code
  that decide the stored bytes, and needs no data.
* `data_version` of what was built: another one makes everything downstream stale.
"""

from typing import TYPE_CHECKING, Final

import dagster as dg

from spiral_assets.plans import images, text, video

if TYPE_CHECKING:
    import spiral_stream as spiral

EVERY_S: Final = 60
NIGHTLY: Final = {"images": "0 3 * * *", "text": "0 4 * * *", "video": "0 5 * * *"}


def image_code_version() -> str:
    """The fingerprint of the image cache. Importing the library takes 0.3 CPU s once per process."""
    import spiral_stream as spiral

    return spiral.cache_fingerprint(images.RELATION, images.COLUMN, images.profile())


def token_code_version(stream: str) -> str:
    """The code version of a stream's token cache: the tokenizer counts by its name."""
    import spiral_stream as spiral

    return spiral.cache_fingerprint(text.RELATIONS[stream], text.COLUMN, text.tokenize())


def clip_code_version() -> str:
    """The fingerprint of the clip cache."""
    import spiral_stream as spiral

    clips = video.clips(random_crop=False)
    return spiral.cache_fingerprint(video.RELATION, video.COLUMN, video.profile(), clips, timed=True)


def data_version(cache: "spiral.CacheStatus", relation: str) -> dg.DataVersion:
    """Return the data version of a built cache.

    Args:
        cache: its state; of a token cache, the fingerprint covers the tokenizer's content.
        relation: the data version of its relation.
    """
    return dg.DataVersion(f"{cache.fingerprint}:{relation}")

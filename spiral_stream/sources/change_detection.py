"""When a source counts as changed: a unit of it (a file, some files, a fragment) has another content key.

`catalog.refresh` lists the units again and compares their keys with the registered ones; nothing is read where they are equal.
Shards whose keys stay the same keep all that is derived from them, whatever the file is called now.

| what lies there | the key covers |
|---|---|
| Parquet, Arrow IPC, Vortex | the footer or schema, the size, and the time of change |
| CSV, JSONL, texts, images, tars, MDS, token files | the name, the size, and the time of change; of a file on a store its etag |
| Lance | the fragment's metadata, its data and deletion files |
| an Arrow table | its values |

Three rooms look at single files instead: `sources.pins` at those that references name, `sources.files.watch` at those that a
stream holds open, and `catalog.registering.same_bytes` at those whose time changed and whose bytes did not.
"""

import xxhash


def content_key(*parts: str | int | bytes) -> str:
    """32 hex digits that name some content; each part enters with its length.

    XXH3-128, unseeded: enough to tell contents apart, not meant against forgery.

    Examples:
        >>> from spiral_stream.sources import content_key
        >>> content_key("a.parquet", 1_024, 17) == content_key("a.parquet", 1_024, 18)
        False
    """
    state = xxhash.xxh3_128()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()

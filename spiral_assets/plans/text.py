"""The text stream of this code location: one plan, used by the caches, the stream and the demo.

It is the plan of a pretraining run at the size of a demo: three relations mixed 70 / 10 / 20, English and good only,
tokenized, batches of near lengths under a budget of padded tokens, each with the streams in their shares.
"""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import spiral_stream as spiral

RELATIONS: Final[Mapping[str, str]] = {
    "fineweb": "text.fineweb_documents",
    "wikipedia": "text.wikipedia_documents",
    "code": "text.code_documents",
}
PROPORTIONS: Final[Mapping[str, float]] = {"fineweb": 0.70, "wikipedia": 0.10, "code": 0.20}
TOKENIZER: Final = "llama-tokenizer"
TRAIN: Final = "text_pretraining"
COLUMN: Final = "text"
MEASURED: Final = 1_024  # documents of a batch of lengths
GOOD: Final = 0.80  # of the quality score

EPOCH_SIZE: Final = 160  # samples: about 50 batches
BUDGET: Final = 2_048  # padded tokens a batch; a longer document is cut to it
MULTIPLE: Final = 32  # widths are multiples of it; 128 where there is a GPU
WINDOW: Final = 128  # samples that wait for neighbours of their length
STEPS: Final = 96
SAVE_EVERY: Final = 8

DESCRIPTIONS: Final[Mapping[str, str]] = {
    "sample_id": "Tells samples apart for good: by the path of the document.",
    "text": "The document.",
    "lang": "Language by its most frequent words: en, de, und where it cannot be told.",
    "language": "Programming language.",
    "quality_score": "From 0 to 1: words, letters, lines said once, readable words.",
    "token_count_estimate": "Bytes by four.",
    "url": "Page of the package.",
    "page_id": "Name of the article.",
    "repository": "Where the source belongs.",
    "license": "Of the source.",
    "source_uri": "File that the document was cut from.",
    "storage_shard": "The unit in which rows lie together and are read.",
}

_FIRST: Final = {"sample_id": "string", "text": "string", "lang": "string"}
_REST: Final = {
    "quality_score": "double",
    "token_count_estimate": "int32",
    "source_uri": "string",
    "storage_shard": "string",
}

# What the plan below was written for, by stream: column -> type.
DECLARED: Final[Mapping[str, Mapping[str, str]]] = {
    "fineweb": {**_FIRST, **_REST, "url": "string"},
    "wikipedia": {**_FIRST, **_REST, "page_id": "string"},
    "code": {**_FIRST, **_REST, "language": "string", "repository": "string", "license": "string"},
}


def tokens() -> Any:
    """Text to the column ``tokens``, of any length."""
    import spiral_stream as spiral

    return spiral.Tokenize(COLUMN, tokenizer=TOKENIZER) >> "tokens"


def cache_code_version(stream: str) -> str:
    """What a stream's token cache is made by, as far as code decides it; needs no data."""
    return hashlib.blake2b(f"{RELATIONS[stream]} {COLUMN} {tokens()}".encode(), digest_size=16).hexdigest()


def cache_plan(catalog: "spiral.Catalog", stream: str) -> "spiral.Relation":
    """The length of every document of one relation, in storage order: what its token cache is built and checked by."""
    import spiral_stream as spiral

    return (
        catalog.table(RELATIONS[stream])
        .sample(order=spiral.Sequential())
        .map(tokens())
        .with_columns(length=spiral.len_("tokens"))
        .collate(batch_size=MEASURED, last=spiral.KeepPartial, fields={"length": spiral.Stack("length", dtype="int64")})
    )


def training(catalog: "spiral.Catalog") -> "spiral.Relation":
    """Token ids, mask and shifted labels in batches of one width."""
    import spiral_stream as spiral

    mixed = spiral.mix(
        [
            spiral.Stream(name, catalog.table(RELATIONS[name]), proportion=proportion)
            for name, proportion in PROPORTIONS.items()
        ],
        epoch_size=EPOCH_SIZE,
    )
    return (
        mixed.filter((spiral.col("lang") == "en") & (spiral.col("quality_score") >= GOOD))
        .project("sample_id", "stream_id", COLUMN, "token_count_estimate", "source_uri", "storage_shard")
        .sample(
            identity="sample_id",
            order=spiral.ShardAwareShuffle(
                seed=9176,
                shard_key=["stream_id", "storage_shard"],
                shuffle_block_size=1_000,
                sampling_granularity="row_group",
            ),
        )
        .map(tokens())
        .collate(
            batch_size=None,
            formation=spiral.WindowedBucket(
                window_size=WINDOW,
                keys=[spiral.BucketKey("len(tokens)")],
                budget=spiral.BatchBudget(max_tokens=BUDGET, oversize="truncate"),
            ),
            composition=spiral.StratifiedByStream("stream_id"),
            last=spiral.DropPartial,
            fields={
                "input_ids": spiral.Pad("tokens", pad_to_multiple_of=MULTIPLE),
                "attention_mask": spiral.PadMask("tokens", pad_to_multiple_of=MULTIPLE),
                "labels": spiral.ShiftedLabels("tokens", ignore_index=-100),
                "sample_id": spiral.List("sample_id"),
                "stream_id": spiral.List("stream_id"),
            },
        )
    )

"""The text plans of this code location, shared by the caches, the stream, training and the demo.

The training plan is that of a pretraining run at demo size. It mixes three relations 70 / 10 / 20, keeps good English
documents, tokenizes them, and forms batches of similar lengths under a budget of padded tokens. Every batch holds the
streams in their proportions.
"""

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
MEASURED: Final = 1_024  # documents per batch when lengths are measured
GOOD: Final = 0.80  # lowest quality score to train on

EPOCH_SIZE: Final = 160  # samples: about 50 batches
BUDGET: Final = 2_048  # padded tokens per batch; a longer document is truncated
MULTIPLE: Final = 32  # batch widths are multiples of this; use 128 on a GPU
WINDOW: Final = 128  # samples considered together when batches of similar lengths are formed
STEPS: Final = 96
SAVE_EVERY: Final = 8


def tokenize() -> "spiral.Tokenize":
    """Text to tokens, of any length."""
    import spiral_stream as spiral

    return spiral.Tokenize(COLUMN, tokenizer=TOKENIZER)


def cache_plan(catalog: "spiral.Catalog", stream: str) -> "spiral.Relation":
    """Read the length of every document of a relation. Its token cache is built and checked with this plan."""
    import spiral_stream as spiral

    return (
        catalog.table(RELATIONS[stream])
        .sample(order=spiral.Sequential())
        .map(tokenize() >> "tokens")
        .with_columns(length=spiral.len_("tokens"))
        .collate(batch_size=MEASURED, last=spiral.KeepPartial, fields={"length": spiral.Stack("length", dtype="int64")})
    )


def training(catalog: "spiral.Catalog") -> "spiral.Relation":
    """Token ids, attention mask and shifted labels; every batch has one width."""
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
        .map(tokenize() >> "tokens")
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


def samples(_: "spiral.PreparedStream") -> Mapping[str, Any]:
    """Return how many samples an epoch has."""
    return {"samples_per_epoch": EPOCH_SIZE}

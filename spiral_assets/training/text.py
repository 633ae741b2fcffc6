"""The text task: a causal language model small enough for a CPU, its loss, and the loss of guessing."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, islice, repeat
from math import log
from typing import Any, final

import torch

from spiral_assets.training.loop import Learner

WIDTH = 128
LAYERS = 2
HEADS = 4
LEARNING_RATE = 3e-3
JUDGED = 8  # batches
MARGIN = 0.5  # nats
IGNORED = -100  # label of padding, and of the last token of each document


def language_model(vocabulary: int, longest: int) -> torch.nn.Module:
    """A Llama of two layers with random weights: 0.95 M of them at 4,096 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=longest,
        tie_word_embeddings=True,
        use_cache=False,
    )
    made: torch.nn.Module = LlamaForCausalLM(config)
    return made


@final
class Predictor(Learner):
    """Predicts the next token."""

    UNIT = "tokens"

    def __init__(self, vocabulary: int, longest: int) -> None:
        torch.manual_seed(0)
        self.vocabulary = vocabulary
        self.model = language_model(vocabulary, longest)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, weight_decay=1e-2)

    def losses(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return the loss of each token. Labels are shifted already; the model would shift them once more."""
        logits_BTV = self.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        labels = batch["labels"]
        return torch.nn.functional.cross_entropy(
            logits_BTV.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
        ).view_as(labels)

    def counted(self, batch: dict[str, Any]) -> torch.Tensor:
        mask: torch.Tensor = batch["labels"] != IGNORED
        return mask

    def size(self, batch: dict[str, Any]) -> int:
        return int(batch["attention_mask"].sum())


@final
@dataclass(frozen=True, slots=True)
class Judgement:
    """How well the next tokens of some batches were predicted, in nats per token."""

    loss: float
    chance: float  # loss of a uniform guess over the vocabulary

    @property
    def beats_chance(self) -> bool:
        """Whether the loss lies clearly below that of guessing."""
        return self.loss < self.chance - MARGIN


@torch.no_grad()
def judge(learner: Predictor, batches: Iterable[Any]) -> Judgement:
    """Judge a model on the next `JUDGED` batches of a stream, across the end of its epoch if needed."""
    learner.model.eval()
    loss, tokens = 0.0, 0
    for batch in islice(chain.from_iterable(repeat(batches)), JUDGED):
        counted = int((batch["labels"] != IGNORED).sum())
        loss, tokens = loss + learner.loss(batch).item() * counted, tokens + counted
    return Judgement(loss / max(1, tokens), log(learner.vocabulary))

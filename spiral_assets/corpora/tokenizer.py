"""Train the demo's tokenizer: a byte-level BPE over the text relations.

Byte level, so that every text has tokens and no token is unknown. 8.6 MB and 4,096 tokens in about 3 CPU s; the same
text gives the same tokenizer.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spiral_assets import need

if TYPE_CHECKING:
    import spiral_stream as spiral

VOCABULARY: Final = 4_096
BEGIN: Final = "<s>"
END: Final = "</s>"
ROWS: Final = 64  # per batch


def train_tokenizer(columns: Sequence[pa.ChunkedArray], path: Path, *, vocabulary: int = VOCABULARY) -> Path:
    """Train a tokenizer and write it.

    Args:
        columns: texts of each relation; nulls are left out.
        path: of the ``tokenizer.json`` to write, in one step.
        vocabulary: most tokens.

    Returns:
        ``path``.
    """
    need("tokenizers", "text", "spiral_assets.corpora")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(_texts(columns), trainer)
    ends = [(token, made.token_to_id(token)) for token in (BEGIN, END)]
    made.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A {END}", special_tokens=ends)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".unfinished")
    made.save(str(draft))
    draft.replace(path)
    return path


def trained_on(catalog: "spiral.Catalog", relations: Sequence[str], column: str, path: str) -> Path:
    """Train a tokenizer on a column of some relations.

    Args:
        catalog: that has them.
        relations: their names.
        column: of text.
        path: of the ``tokenizer.json`` to write; variables of the environment are put in.
    """
    texts = [catalog.table(name).project(column).to_arrow()[column] for name in relations]
    return train_tokenizer(texts, Path(os.path.expandvars(path)))


def _texts(columns: Sequence[pa.ChunkedArray]) -> Iterator[list[str]]:
    """Batches of each column, less its nulls."""
    for column in columns:
        for at in range(0, len(column), ROWS):
            yield column[at : at + ROWS].drop_null().to_pylist()

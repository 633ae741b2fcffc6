"""The identity of a tokenizer: a digest of its content, never its name or its path.

`content_digest` identifies the bytes of a ``tokenizer.json``; the catalog keeps tokenizers under it. `encoder_digest`
covers the options of `Tokenize` too; plans and token caches use it.
"""

import hashlib
import json

from spiral_stream.transforms.text.tokenize import Tokenize


def content_digest(tokenizer_json: bytes) -> str:
    """Return the sha256 of a ``tokenizer.json``, hexadecimal."""
    return hashlib.sha256(tokenizer_json).hexdigest()


def encoder_digest(tokenizer_digest: str, tokenize: Tokenize) -> str:
    """Compute an encoder's digest, 32 hexadecimal digits, without opening the tokenizer.

    Args:
        tokenizer_digest: what `content_digest` returns for it.
        tokenize: the options.
    """
    facts = {
        "tokenizer": tokenizer_digest,
        "transform": [tokenize.NAME, tokenize.VERSION],
        "special_tokens": tokenize.special_tokens,
        "max_length": tokenize.max_length,
        "separator": tokenize.separator,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]

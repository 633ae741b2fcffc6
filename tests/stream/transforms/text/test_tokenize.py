import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from spiral_stream import Tokenize
from spiral_stream.errors import PlanError
from spiral_stream.transforms import Named


def test_an_arrow_names_the_column_of_tokens() -> None:
    transform = Tokenize("text", tokenizer="llama-tokenizer")

    assert transform >> "tokens" == Named(transform, "tokens")
    assert transform.deterministic
    assert transform.evaluation() == (transform,)
    with pytest.raises(dataclasses.FrozenInstanceError):
        transform.column = "other"  # type: ignore[misc]


@pytest.mark.parametrize("name", ["", 3, None])
def test_an_unusable_name_of_the_new_column_is_refused(name: Any) -> None:
    with pytest.raises(PlanError, match="give the name of the new column, as in Tokenize"):
        Tokenize("text", tokenizer="t") >> name  # type: ignore[unused-ignore]


@pytest.mark.parametrize(
    ("options", "way_out"),
    [
        ({"column": ""}, "Give the name of a text column"),
        ({"tokenizer": None}, r"Give a path, or the name under which catalog\.register_tokenizer\("),
        ({"special_tokens": "yes"}, "Give True or False"),
        ({"max_length": 0}, "Give a whole number of tokens from 1 on"),
        ({"max_length": 2.5}, "or None for no limit"),
        ({"max_length": True}, "Give a whole number"),
        ({"separator": ""}, "Give the text of a token, or None"),
    ],
)
def test_bad_options_are_refused_with_a_way_out(options: dict[str, Any], way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        Tokenize(**{"column": "text", "tokenizer": "t", **options})


def test_importing_the_rooms_imports_no_tokenizer_package() -> None:
    program = (
        "import sys, spiral_stream.transforms.text.encoder, spiral_stream.catalog.tokenizers\n"
        "heavy = {'transformers', 'tokenizers', 'tiktoken', 'regex'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )

    subprocess.run([sys.executable, "-c", program], check=True)

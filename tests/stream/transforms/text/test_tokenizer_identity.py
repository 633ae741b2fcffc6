"""What identifies a tokenizer stays what saved plans and caches have."""

from spiral_stream import Tokenize
from spiral_stream.transforms.text.tokenizer_identity import content_digest, encoder_digest


def test_content_and_options_count_and_names_do_not() -> None:
    plain = Tokenize("text", tokenizer="a")

    assert encoder_digest("0" * 64, plain) == encoder_digest("0" * 64, Tokenize("body", tokenizer="b"))
    changed = [encoder_digest("0" * 64, Tokenize("text", tokenizer="a", max_length=9)), encoder_digest("1" * 64, plain)]
    assert len({encoder_digest("0" * 64, plain), *changed}) == 3


def test_digests_are_those_of_saved_plans() -> None:
    assert encoder_digest("0" * 64, Tokenize("text", tokenizer="t")) == "24025c7ba2072806ea533856c4b3e86b"
    assert content_digest(b"{}") == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from spiral_stream.transforms.text.byte_pairs import Uncovered, merges_of
from spiral_stream.transforms.text.encoding_engine import Core
from spiral_stream.transforms.text.splitting import GPT2, uncovered_points, words_of
from tests.fixtures.merge_lists import merge_lists
from tests.fixtures.vocabularies import TEXTS, by_hand, byte_level

TEMPLATE = by_hand([])
TRAINED = json.loads(byte_level().to_str())
WORDS = words_of(GPT2)
CORE, LIBRARY = Core(merges_of(TRAINED), WORDS, uncovered_points()), Tokenizer.from_str(json.dumps(TRAINED))


def ours(core: Core, texts: list[str]) -> list[list[int]]:
    ids, counts = core.encode(pa.array(texts, pa.large_utf8()))
    assert (counts >= 0).all()
    return [part.tolist() for part in np.split(ids, np.cumsum(counts)[:-1])]


def both(tokenizer: dict[str, Any], texts: list[str]) -> tuple[list[list[int]], list[list[int]]]:
    library = Tokenizer.from_str(json.dumps(tokenizer))
    theirs = [encoding.ids for encoding in library.encode_batch_fast(texts, add_special_tokens=False)]
    return theirs, ours(Core(merges_of(tokenizer), WORDS, ()), texts)


@settings(max_examples=100)
@given(
    merges=merge_lists("abc", 14),
    texts=st.lists(st.text("abc", max_size=120), min_size=1, max_size=20),
    ignored=st.booleans(),
    more=st.lists(st.text("abc", min_size=2, max_size=5), max_size=2),
)
def test_any_list_of_merges_gives_the_librarys_ids(
    merges: list[tuple[str, str]], texts: list[str], ignored: bool, more: list[str]
) -> None:
    # words of more than 48 bytes are merged by a heap, and tokens that no merge makes are taken whole, or never met
    texts = [*texts, *more, *("".join(pair) for pair in merges)]
    theirs, found = both(by_hand_like(merges, more, ignore_merges=ignored), texts)

    assert theirs == found


@given(text=st.text())
def test_a_trained_tokenizer_gives_the_librarys_ids_for_any_text(text: str) -> None:
    text = "".join(letter for letter in text if ord(letter) < 0x20000)

    assert ours(CORE, [text]) == [LIBRARY.encode(text, add_special_tokens=False).ids]


def by_hand_like(merges: list[tuple[str, str]], more: list[str], **changes: Any) -> dict[str, Any]:
    texts = [*TEMPLATE["model"]["vocab"], *("".join(pair) for pair in merges), *more]
    vocab = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    model = TEMPLATE["model"] | {"vocab": vocab, "merges": [list(pair) for pair in merges], **changes}
    return {**TEMPLATE, "model": model}


def test_a_token_that_its_own_merges_do_not_make_is_met_only_where_merges_are_ignored() -> None:
    # "ab" is merged first, so "abc" = a + bc is never made, though "bc" would be
    merges = [("a", "b"), ("b", "c"), ("a", "bc")]
    for ignored, whole in ((False, 2), (True, 1)):
        theirs, found = both(by_hand(merges, ignore_merges=ignored), ["abc", "abcabc", "bc", "aabcc"])
        assert theirs == found
        assert len(found[0]) == whole


def test_ids_need_not_rise_with_the_merges() -> None:
    tokenizer = by_hand([("b", "c"), ("a", "b"), ("ab", "ab"), ("a", "bc")])
    vocab = tokenizer["model"]["vocab"]

    assert vocab["bc"] > vocab["ab"] > vocab["abab"]
    theirs, found = both(tokenizer, ["abc", "abab", "ababc", "abcabcab"])
    assert theirs == found


def test_a_token_made_in_two_ways_takes_the_place_of_the_pair_that_makes_it() -> None:
    # "abc" is listed as a + bc first, but ab is always joined before; other merges stand between the two ways
    merges = [("a", "b"), ("b", "c"), ("a", "bc"), ("c", "a"), ("ab", "c"), ("c", "b")]
    theirs, found = both(by_hand(merges), ["abc", "abca", "abcb", "cabcabcb", "bcabc"])

    assert theirs == found


def test_merges_listed_in_every_way_as_converters_write_them_are_merged_alike() -> None:
    vocab, merges = TRAINED["model"]["vocab"], TRAINED["model"]["merges"]
    every = []
    for text in ("".join(pair) for pair in merges):
        ways = [(text[:at], text[at:]) for at in range(1, len(text)) if text[:at] in vocab and text[at:] in vocab]
        every += [list(way) for way in sorted(ways, key=lambda way: (vocab[way[0]], vocab[way[1]]))]
    assert len(every) > len(merges)
    theirs, found = both({**TRAINED, "model": TRAINED["model"] | {"merges": every}}, TEXTS)

    assert theirs == found


@pytest.mark.parametrize("run", ["a", "ab", "abc", "aab"])
def test_words_of_any_length_are_merged_alike(run: str) -> None:
    tokenizer = by_hand([("a", "b"), ("a", "a"), ("ab", "ab"), ("c", "ab"), ("aa", "b"), ("abab", "abab")])
    theirs, found = both(tokenizer, [(run * size)[:size] for size in (*range(1, 130), 5_000)])

    assert theirs == found


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"type": "Unigram"}, "its model is Unigram"),
        ({"dropout": 0.1}, "dropout 0.1"),
        ({"end_of_word_suffix": "</w>"}, "end_of_word_suffix '</w>'"),
        ({"continuing_subword_prefix": "##"}, "continuing_subword_prefix '##'"),
    ],
)
def test_models_of_another_kind_are_not_covered(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(Uncovered, match=reason):
        merges_of({**TRAINED, "model": TRAINED["model"] | change})


def test_normalizers_missing_bytes_doubled_ids_and_doubled_merges_are_not_covered() -> None:
    with pytest.raises(Uncovered, match="a normalizer \\(NFKC\\)"):
        merges_of({**TRAINED, "normalizer": {"type": "NFKC"}})
    vocab = {text: number for text, number in TRAINED["model"]["vocab"].items() if text != "~"}
    with pytest.raises(Uncovered, match="lacks 1 single bytes, the first is 0x7E"):
        merges_of({**TRAINED, "model": TRAINED["model"] | {"vocab": vocab}})
    with pytest.raises(Uncovered, match="two of its tokens have one id"):
        merges_of({**TRAINED, "model": TRAINED["model"] | {"vocab": {**TRAINED["model"]["vocab"], "~~~~": 0}}})
    with pytest.raises(Uncovered, match="its ids reach 1,048,575"):
        merges_of({**TRAINED, "model": TRAINED["model"] | {"vocab": {**TRAINED["model"]["vocab"], "~~~~": 0xFFFFF}}})
    merges = TRAINED["model"]["merges"]
    with pytest.raises(Uncovered, match="1 of its merges are listed twice"):
        merges_of({**TRAINED, "model": TRAINED["model"] | {"merges": [*merges, merges[0]]}})

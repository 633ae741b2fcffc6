import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from spiral_stream.transforms.text.byte_pairs import Uncovered, bare, byte_of_letter, twin_of
from spiral_stream.transforms.text.encoding_engine import Core
from spiral_stream.transforms.text.splitting import GPT2
from tests.fixtures.vocabularies import TEXTS, by_hand, byte_level

TEMPLATE = by_hand([])
TRAINED = json.loads(byte_level().to_str())
TWIN, LIBRARY = Core(twin_of(TRAINED), GPT2), Tokenizer.from_str(json.dumps(TRAINED))


@st.composite
def merge_lists(draw: st.DrawFn) -> list[tuple[str, str]]:
    """Any list of merges over three letters: tokens made in several ways, in any order, or not at all."""
    made = ["a", "b", "c"]
    pairs: list[tuple[str, str]] = []
    for _ in range(draw(st.integers(0, 14))):
        pair = draw(st.sampled_from(made)), draw(st.sampled_from(made))
        if pair not in pairs:
            pairs.append(pair)
            made = list(dict.fromkeys([*made, "".join(pair)]))
    return draw(st.permutations(pairs))


def both(tokenizer: dict[str, Any], texts: list[str]) -> tuple[list[list[int]], list[list[int]]]:
    library = Tokenizer.from_str(json.dumps(tokenizer))
    core = Core(twin_of(tokenizer), GPT2)
    theirs = [encoding.ids for encoding in library.encode_batch_fast(texts, add_special_tokens=False)]
    return theirs, [core.encode(text)[0].tolist() for text in texts]


@settings(max_examples=100)
@given(merges=merge_lists(), texts=st.lists(st.text("abc", max_size=40), min_size=1, max_size=20))
def test_any_list_of_merges_has_a_twin_with_equal_ids(merges: list[tuple[str, str]], texts: list[str]) -> None:
    texts = [*texts, *("".join(pair) for pair in merges)]
    theirs, ours = both(by_hand_like(merges), texts)

    assert theirs == ours


@given(text=st.text())
def test_a_trained_tokenizer_and_its_twin_agree_on_any_text(text: str) -> None:
    assert TWIN.encode(text)[0].tolist() == LIBRARY.encode(text, add_special_tokens=False).ids


def by_hand_like(merges: list[tuple[str, str]]) -> dict[str, Any]:
    texts = [*TEMPLATE["model"]["vocab"], *("".join(pair) for pair in merges)]
    vocab = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    model = TEMPLATE["model"] | {"vocab": vocab, "merges": [list(pair) for pair in merges]}
    return {**TEMPLATE, "model": model}


def test_a_token_that_its_own_merges_do_not_make_is_left_out() -> None:
    # "ab" is merged first, so "abc" = a + bc is never made, though "bc" would be and a naive table would join ab + c
    tokenizer = by_hand([("a", "b"), ("b", "c"), ("a", "bc")])
    twin = twin_of(tokenizer)

    assert b"abc" not in twin.ranks
    assert {b"ab", b"bc"} <= set(twin.ranks)
    theirs, ours = both(tokenizer, ["abc", "abcabc", "bc", "aabcc"])
    assert theirs == ours
    assert len(theirs[0]) == 2


def test_ids_need_not_rise_with_the_merges() -> None:
    tokenizer = by_hand([("b", "c"), ("a", "b"), ("ab", "ab"), ("a", "bc")])
    vocab = tokenizer["model"]["vocab"]

    assert vocab["bc"] > vocab["ab"] > vocab["abab"]
    theirs, ours = both(tokenizer, ["abc", "abab", "ababc", "abcabcab"])
    assert theirs == ours


def test_a_token_made_in_two_ways_takes_the_place_of_the_pair_that_makes_it() -> None:
    # "abc" is listed as a + bc first, but ab is always joined before; other merges stand between the two ways
    merges = [("a", "b"), ("b", "c"), ("a", "bc"), ("c", "a"), ("ab", "c"), ("c", "b")]
    theirs, ours = both(by_hand(merges), ["abc", "abca", "abcb", "cabcabcb", "bcabc"])

    assert theirs == ours


def test_merges_listed_in_every_way_as_converters_write_them_have_a_twin() -> None:
    vocab, merges = TRAINED["model"]["vocab"], TRAINED["model"]["merges"]
    every = []
    for text in ("".join(pair) for pair in merges):
        ways = [(text[:at], text[at:]) for at in range(1, len(text)) if text[:at] in vocab and text[at:] in vocab]
        every += [list(way) for way in sorted(ways, key=lambda way: (vocab[way[0]], vocab[way[1]]))]
    assert len(every) > len(merges)
    theirs, ours = both({**TRAINED, "model": TRAINED["model"] | {"merges": every}}, TEXTS)

    assert theirs == ours


def test_ranks_are_whole_and_lead_back_to_ids() -> None:
    twin = twin_of(TRAINED)

    assert sorted(twin.ranks.values()) == list(range(len(twin.ids)))
    library = Tokenizer.from_str(bare(TRAINED, pre_tokenizer=False))
    letters = {byte: letter for letter, byte in byte_of_letter().items()}
    for text, rank in twin.ranks.items():
        assert library.token_to_id("".join(letters[byte] for byte in text)) == twin.ids[rank]
    assert twin.ids.dtype == np.uint32


def test_ignored_merges_with_a_token_that_they_do_not_make_are_refused() -> None:
    merges = [("a", "b"), ("b", "c"), ("a", "bc")]
    with pytest.raises(Uncovered, match="do not make token 'abc' whole"):
        twin_of(by_hand(merges, ignore_merges=True))
    with pytest.raises(Uncovered, match="do not make token 'xyz' whole"):
        twin_of(by_hand(merges[:2], ("xyz",), ignore_merges=True))

    twin_of(by_hand(merges[:2], ("xyz",)))  # never made, so never met


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
        twin_of({**TRAINED, "model": TRAINED["model"] | change})


def test_normalizers_missing_bytes_and_doubled_merges_are_not_covered() -> None:
    with pytest.raises(Uncovered, match="a normalizer \\(NFKC\\)"):
        twin_of({**TRAINED, "normalizer": {"type": "NFKC"}})
    vocab = {text: number for text, number in TRAINED["model"]["vocab"].items() if text != "~"}
    with pytest.raises(Uncovered, match="lacks 1 single bytes, the first is 0x7E"):
        twin_of({**TRAINED, "model": TRAINED["model"] | {"vocab": vocab}})
    merges = TRAINED["model"]["merges"]
    with pytest.raises(Uncovered, match="1 of its merges are listed twice"):
        twin_of({**TRAINED, "model": TRAINED["model"] | {"merges": [*merges, merges[0]]}})

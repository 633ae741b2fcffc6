"""No id may differ: drawn and real text in many scripts, encoded by the compiled engine and by the tokenizers library.

A quarter of a billion bytes of each layout at night, a few million by day. Documents are drawn from words that repeat
and words that never do, in twenty scripts, with the blanks, signs, digits and line ends of all of them between; the
real ones are source, prose and message catalogues of what is installed.
"""

import itertools
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from spiral_stream import Tokenize
from spiral_stream.transforms.text.encoder import TextEncoder
from tests.fixtures.vocabularies import END, LLAMA, MISTRAL, data, trained_sentencepiece
from tests.stream.transforms.text.test_word_automaton import O200K

PLAIN = Tokenize("text", tokenizer="t", special_tokens=False)
QWEN = LLAMA.replace(r"\p{N}{1,3}", r"\p{N}")
LAYOUTS = {"gpt2": None, "llama3": LLAMA, "qwen": QWEN, "o200k": O200K, "mistral": None}
SCRIPTS = (
    *((0x61, 0x7B), (0x41, 0x5B), (0xDF, 0x180), (0x3B1, 0x3CA), (0x430, 0x450), (0x561, 0x587), (0x5D0, 0x5EB)),
    *(
        (0x621, 0x64B),
        (0x905, 0x94E),
        (0x985, 0x9CD),
        (0xB85, 0xBCE),
        (0xE01, 0xE3B),
        (0x10D0, 0x10FB),
        (0x1200, 0x1357),
    ),
    *((0xAC00, 0xD7A4), (0x3041, 0x3097), (0x30A1, 0x30FB), (0x4E00, 0x9FA6), (0x1F300, 0x1F650), (0x10330, 0x1034B)),
    *((0x1D400, 0x1D7FF), (0x20000, 0x20100), (0x300, 0x370), (0x2000, 0x2070), (0, 0x250)),
)
BETWEEN = [
    *[" "] * 24,
    *(
        "  ",
        "\n",
        "\n\n",
        "\t",
        ", ",
        ". ",
        "'s ",
        "'LL ",
        "'ſ",
        "’s ",
        '"',
        " (",
        ") ",
        "\r\n",
        "   ",
        "\u00a0",
        "\u3000",
    ),
    *(
        "1",
        "23",
        "456",
        "78901",
        "٣",
        "½",
        "_",
        "!?",
        "…",
        "。",
        "、",
        "\x1f",
        "\u2028",
        "\x85",
        "-",
        END,
        " \n  \n",
        "",
    ),
]


def drawn(seed: int) -> Iterator[str]:
    """Documents without end; a third of the words never come again. One in 30 may have an added token."""
    draw = np.random.default_rng(seed)
    known = [_words(draw, script, 2_000) for script in SCRIPTS]
    plain = np.array([each for each in BETWEEN if each != END], dtype=object)
    for number in itertools.count():
        between = plain if number % 30 else np.array(BETWEEN, dtype=object)
        script = int(draw.integers(len(SCRIPTS)))
        count = int(draw.integers(5, 300))
        often = [known[script][at] for at in (2_000 * draw.random(count) ** 3).astype(int)]
        words = [*often, *_words(draw, SCRIPTS[script], count // 2)]
        order = draw.permutation(len(words))
        blanks = between[draw.integers(len(between), size=len(words))]
        text = "".join(words[at] + blank for at, blank in zip(order, blanks, strict=True))
        yield (text, text, text.title(), text.upper(), text.swapcase())[int(draw.integers(5))]


def _words(draw: np.random.Generator, script: tuple[int, int], count: int) -> list[str]:
    letters = draw.integers(*script, size=(count, 12), dtype=np.uint32)
    lengths = draw.integers(1, 12, size=count)
    texts = letters.tobytes().decode("utf-32-le")
    return [texts[12 * n : 12 * n + length] for n, length in enumerate(lengths)]


def real() -> Iterator[str]:
    """Text of the standard library and of installed packages, a piece of up to 20,000 letters at a time."""
    roots = Path(sysconfig.get_path("stdlib")), Path(np.__file__).parents[1]
    kinds = ("*.py", "*.md", "*.rst", "*.txt", "*.js", "*.css", "*.html", "METADATA", "*.po", "*.mo", "*.json", "*.csv")
    for root, kind in itertools.product(roots, kinds):
        for file in sorted(root.rglob(kind)):
            text = file.read_bytes()[:4_000_000].decode(errors="ignore")
            yield from (text[at : at + 20_000] for at in range(0, len(text), 20_000))


@pytest.fixture(scope="module")
def sample() -> list[str]:
    return [*itertools.islice(drawn(1), 400), *itertools.islice(real(), 200)]


def trained(sample: list[str], layout: str) -> Tokenizer:
    """A tokenizer in the layout of a family of models, of 8,000 tokens: byte-level, or of SentencePiece (Mistral)."""
    if layout == "mistral":
        learnt = Tokenizer.from_str(json.dumps(trained_sentencepiece(sample, 8_000, MISTRAL)))
        learnt.add_special_tokens([AddedToken(END, normalized=False)])
        return learnt
    split = LAYOUTS[layout]
    made = Tokenizer(models.BPE(ignore_merges=layout in {"llama3", "o200k"}))
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    made.pre_tokenizer = (
        letters if split is None else pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), letters])
    )
    if layout == "qwen":
        made.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        sample, trainers.BpeTrainer(vocab_size=8_000, show_progress=False, initial_alphabet=alphabet)
    )
    made.add_special_tokens([AddedToken(END, normalized=False)])
    return made


def compare(tokenizer: Tokenizer, texts: Iterator[str], size: int) -> int:
    """Encode documents by both until so many bytes are read; how many were."""
    encoder = TextEncoder(data(tokenizer), PLAIN)
    assert encoder.engine.startswith("compiled: ")
    done = 0
    while done < size:
        documents = list(itertools.islice(texts, 500))
        if not documents:
            return done
        values, offsets = encoder.encode(pa.array(documents, pa.large_utf8()))
        for each, low, high, text in zip(
            tokenizer.encode_batch_fast(documents, add_special_tokens=False),
            offsets[:-1].tolist(),
            offsets[1:].tolist(),
            documents,
            strict=True,
        ):
            assert each.ids == values[low:high].tolist(), json.dumps(text)
            done += len(text.encode())
    return done


@pytest.mark.timeout(600)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_id_differs_by_day(sample: list[str], layout: str) -> None:
    tokenizer = trained(sample, layout)

    compare(tokenizer, drawn(2), 600_000)
    compare(tokenizer, itertools.islice(real(), 300, None), 300_000)


@pytest.mark.slow
@pytest.mark.timeout(10_000)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_id_differs_in_a_quarter_of_a_billion_bytes_of_each_layout(sample: list[str], layout: str) -> None:
    tokenizer = trained(sample, layout)
    read = compare(tokenizer, real(), 125_000_000)
    read += compare(tokenizer, drawn(3 + list(LAYOUTS).index(layout)), 250_000_000 - read)

    assert read >= 250_000_000

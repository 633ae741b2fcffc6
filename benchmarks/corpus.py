"""Real documents that any machine has: which texts the text benchmarks run on, and their tokens.

Sources, documentation, licences and metadata of the Python standard library and of what `make install` puts beside
it are cut at blank lines into documents of drawn lengths, mean about 2 KB; repeats are dropped. A byte-level BPE of
16,384 entries is trained on every tenth document. The same machine gives the same corpus; another has other packages,
so figures are compared inside one run. Costs 150 CPU s, once.

    python -m benchmarks.corpus [--root /tmp/spiral-text] [--documents 150000]
"""

import argparse
import hashlib
import json
import os
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.peers.documents import Texts

SUFFIXES = {".py", ".pyi", ".md", ".rst", ".txt", ".h", ".js", ".html", ".css"}
NAMES = {"METADATA", "LICENSE", "COPYING", "NOTICE"}
LARGEST = 4_000_000  # bytes of a file; larger ones are tables
LONGEST = 24_000  # characters of a document
VOCABULARY = 16_384
SEPARATOR = "<|end|>"
BORDER = re.compile(r"\n[ \t]*\n")


def sources() -> list[Path]:
    """The text files of the standard library and of `.venv`, in the order of their paths inside them."""
    library = Path(sysconfig.get_path("stdlib"))
    packages = Path(np.__file__).parents[1]  # .venv's, also where .bench-venv runs
    found = []
    for root in (library, packages):
        inside = []
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name not in {"__pycache__", "site-packages", "node_modules"}]
            inside += [Path(folder, name) for name in names if Path(name).suffix in SUFFIXES or name in NAMES]
        found += sorted(inside, key=lambda path: str(path.relative_to(root)))
    return [path for path in found if 0 < path.stat().st_size <= LARGEST]


def cut(text: str, lengths: Iterator[float]) -> Iterator[str]:
    """Documents of one file: each ends at the first border past its drawn length, or at `LONGEST`."""
    start, wanted = 0, next(lengths)
    for border in BORDER.finditer(text):
        if border.end() - start >= wanted:
            yield from _bounded(text[start : border.end()])
            start, wanted = border.end(), next(lengths)
    yield from _bounded(text[start:])


def _bounded(text: str) -> Iterator[str]:
    for start in range(0, len(text), LONGEST):
        if len(text) - start >= 64:
            yield text[start : start + LONGEST]


def _drawn() -> Iterator[float]:
    """Lengths in characters: lognormal, median 1,150, mean 1,720 before the border is looked for."""
    numbers = np.random.default_rng(3)
    while True:
        yield from numbers.lognormal(np.log(1_150), 0.9, 10_000).tolist()


def documents(count: int) -> tuple[list[str], int]:
    """At most ``count`` distinct documents in a keyed order, and how many files were read."""
    kept: dict[bytes, str] = {}
    lengths, read = _drawn(), 0
    for path in sources():
        try:
            text = path.read_text()
        except (UnicodeDecodeError, OSError):
            continue
        read += 1
        for document in cut(text, lengths):
            kept.setdefault(hashlib.md5(document.encode(), usedforsecurity=False).digest(), document)
    order = np.random.default_rng(17).permutation(len(kept))[:count]
    distinct = list(kept.values())
    # Only the choice is drawn: documents lie in the order of their files, so that who does not shuffle is seen.
    return [distinct[place] for place in np.sort(order)], read


def build(texts: Texts, count: int) -> dict[str, float]:
    """Write the corpus if it is not there; what it holds, as in ``corpus.json``."""
    facts_path = texts.root / "corpus.json"
    if facts_path.exists() and (facts := json.loads(facts_path.read_text()))["asked"] == count:
        return facts
    texts.root.mkdir(parents=True, exist_ok=True)
    chosen, files = documents(count)
    tokenizer = _trained(chosen[::10])
    tokenizer.save(str(texts.tokenizer))
    flat, lengths = [], []
    for start in range(0, len(chosen), 4_096):
        for encoding in tokenizer.encode_batch_fast(chosen[start : start + 4_096], add_special_tokens=False):
            flat.append(np.array(encoding.ids, np.uint16))
            lengths.append(len(encoding))
    encoded = [document.encode() for document in chosen]
    np.save(texts.ids, np.concatenate(flat))
    np.save(texts.offsets, np.cumsum([0, *lengths], dtype=np.int64))
    np.save(texts.text, np.frombuffer(b"".join(encoded), np.uint8))
    np.save(texts.text_offsets, np.cumsum([0, *map(len, encoded)], dtype=np.int64))
    _write_tables(texts, chosen, flat)
    facts = {
        "asked": count, "documents": len(chosen), "files": files, "tokens": int(sum(lengths)),
        "bytes": sum(map(len, encoded)), "vocabulary": tokenizer.get_vocab_size(),
        "median_tokens": float(np.median(lengths)), "longest_tokens": max(lengths),
    }  # fmt: skip
    facts_path.write_text(json.dumps(facts))
    return facts


def _trained(sample: list[str]) -> "object":
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[SEPARATOR], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(sample, trainer)
    return tokenizer


def _write_tables(texts: Texts, chosen: list[str], flat: list[np.ndarray]) -> None:
    """Lance datasets `documents` (text) and `tokens`, 16 fragments each, which are also LanceDB tables."""
    import lance
    import pyarrow as pa

    count = len(chosen)
    ids = pa.array([f"doc-{number:07d}" for number in range(count)])
    step = -(-count // 16)
    shards = pa.array([f"part-{number // step:04d}" for number in range(count)])
    common = {"sample_id": ids, "storage_shard": shards}
    offsets = np.cumsum([0, *map(len, flat)], dtype=np.int32)
    tokens = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(flat)))
    for name, column in (("text", pa.array(chosen)), ("tokens", tokens)):
        table = pa.table({**common, name: column})
        where = str(texts.tables / f"{'documents' if name == 'text' else name}.lance")
        lance.write_dataset(table, where, mode="overwrite", max_rows_per_file=step, data_storage_version="2.1")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, default=Path("/tmp/spiral-text"))
    parser.add_argument("--documents", type=int, default=150_000)
    asked = parser.parse_args()
    print(json.dumps(build(Texts(asked.root), asked.documents), indent=1))


if __name__ == "__main__":
    main()

"""Write the folders of this directory: run with Mosaic's streaming 0.13.0 and Pillow installed, in a Python of its own.

    python write.py

``values.json`` says what MDSWriter was given, for comparison: bytes as hex, arrays as [dtype, shape, hex].
"""

import json
import shutil
from decimal import Decimal
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image
from streaming import MDSWriter, StreamingDataset

HERE = Path(__file__).parent
NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
COLUMNS = {
    **{name: name for name in NUMBERS},
    "int": "int",
    "text": "str",
    "data": "bytes",
    "meta.json": "json",
    "tags": "json",
    "str_int": "str_int",
    "str_float": "str_float",
    "str_decimal": "str_decimal",
    "fixed": "ndarray:int16:2,3",
    "ragged": "ndarray:float32",
    "any": "ndarray",
    "tokens": "bytes",
    "jpg": "jpeg",
    "png": "png",
    "pil": "pil",
    "many": "jpeg_array",
    "pngs": "list[png]",
    "jpgs": "list[jpeg]",
    "pils": "list[pil]",
}


def image(rng, mode="RGB"):
    shape = (5, 7) if mode == "L" else (5, 7, 3)
    return Image.fromarray(rng.integers(0, 255, shape, dtype=np.uint8), mode)


def jpeg(rng):
    out = BytesIO()
    image(rng).save(out, "JPEG")
    return out.getvalue()


def sample(k):
    rng = np.random.default_rng(k)
    return {
        **{name: getattr(np, name)(rng.integers(0, 100) / (3 if name.startswith("f") else 1)) for name in NUMBERS},
        "int": -k,
        "text": "ä" * k,
        "data": rng.bytes(k),
        "meta.json": {"width": k, "score": k / 3, "who": None if k % 2 else {"name": f"n{k}"}},
        "tags": [f"t{k}"] * (k % 3),
        "str_int": 10**k,
        "str_float": k / 7,
        "str_decimal": Decimal(k) / 3,
        "fixed": rng.integers(-9, 9, (2, 3)).astype(np.int16),
        "ragged": rng.random((k + 1,)).astype(np.float32),
        "any": rng.integers(0, 9, (k % 3 + 1, 2)),
        "tokens": np.arange(k, dtype=np.int64).tobytes(),
        "jpg": Image.open(BytesIO(jpeg(rng))),
        "png": image(rng),
        "pil": image(rng, "L" if k % 2 else "RGB"),
        "many": [jpeg(rng) for _ in range(k % 3 + 1)],
        "pngs": [image(rng) for _ in range(k % 3)],
        "jpgs": [image(rng) for _ in range(k % 2)],
        "pils": [image(rng) for _ in range(k % 2)],
    }


def shown(value):
    if isinstance(value, np.ndarray):
        return [value.dtype.name, list(value.shape), value.tobytes().hex()]
    if isinstance(value, np.generic | bytes):
        return value.item() if isinstance(value, np.generic) else value.hex()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Image.Image):
        return [value.mode, list(value.size), value.tobytes().hex()]
    if isinstance(value, list) and value and isinstance(value[0], Image.Image):
        return [shown(each) for each in value]
    return value


def write(name, count=8, columns=COLUMNS, **options):
    out = HERE / name
    shutil.rmtree(out, ignore_errors=True)
    with MDSWriter(out=str(out), columns=columns, **options) as writer:
        for k in range(count):
            made = sample(k)
            writer.write({each: made[each] for each in columns})
    read = StreamingDataset(local=str(out), shuffle=False, batch_size=1, keep_zip=True)
    return [{key: shown(value) for key, value in read[k].items()} for k in range(count)]


def main():
    small = {"text": "str", "int": "int", "png": "png"}
    found = {
        "raw": write("raw", hashes=["sha1", "xxh64"], size_limit=20_000),
        "zstd": write("zstd", columns=small, compression="zstd:7", hashes=["sha1"]),
        "gz": write("gz", columns=small, compression="gz"),
        "bz2": write("bz2", columns=small, compression="bz2"),
        "br": write("br", columns=small, compression="br"),
        "streams/one": write("streams/one", 3, small),
        "streams/two": write("streams/two", 2, small),
    }
    for folder in ("zstd", "gz", "bz2", "br"):
        for each in (HERE / folder).glob("*.mds"):
            each.unlink()  # that StreamingDataset uncompressed
    (HERE / "values.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()

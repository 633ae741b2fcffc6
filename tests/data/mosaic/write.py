"""Write the folders of this directory: run with Mosaic's streaming 0.13.0 and Pillow, in a Python of its own.

    python write.py

``values.json`` says what Mosaic's own readers read from them, written by Python's json (with NaN and Infinity).
Its modules of formats, compression and hashing are enough: the files here were made with an empty module for torch.
"""

import json
import shutil
from pathlib import Path

from streaming.base.compression import decompress
from streaming.base.format import reader_from_json
from streaming.base.format.json import JSONWriter
from streaming.base.format.mds import MDSWriter
from streaming.base.format.xsv import CSVWriter, TSVWriter, XSVWriter

HERE = Path(__file__).parent
COLUMNS = {"id": "int", "text": "str", "x": "float", "zip": "str"}
COMPRESSIONS = ("zstd:5", "gz", "bz2", "br:3", "snappy")
FLOATS = (0.1, -0.0, 1e-300, float("inf"), float("nan"), 123456.789)


def sample(k, apart):
    quoted = ['say "hi"', '"', '"open', "it's", '""', "plain"][k % 6]
    return {
        "id": (1 << 63) - 1 - k if k % 3 else -k,
        "text": f"{quoted} é{'ü' * (k % 4)}{'' if apart else chr(10) + ', ' + chr(9)}",
        "x": FLOATS[k % 6],
        "zip": f"{k:05d}",
    }


def write(name, writer, count=15, apart=True, columns=COLUMNS, **options):
    out = HERE / name
    shutil.rmtree(out, ignore_errors=True)
    with writer(out=str(out), columns=columns, **options) as made:
        for k in range(count):
            made.write({key: sample(k, apart)[key] for key in columns})
    return read(out)


def read(out):
    found = []
    for shard in json.loads((out / "index.json").read_text())["shards"]:
        made = []
        for key in ("data", "meta"):
            raw, packed = shard.get(f"raw_{key}"), shard.get(f"zip_{key}")
            if packed:
                made.append(out / raw["basename"])
                made[-1].write_bytes(decompress(shard["compression"], (out / packed["basename"]).read_bytes()))
        reader = reader_from_json(str(out), None, shard)
        found += [reader[k] for k in range(shard["samples"])]
        for path in made:
            path.unlink()
    return found


def main():
    hashed = {"hashes": ["sha1", "xxh64"], "size_limit": 600}
    found = {
        "json": write("json", JSONWriter, 40, apart=False, size_limit=2000),
        "json-newline": write("json-newline", JSONWriter, newline="\r\n", apart=False),
        "csv": write("csv", CSVWriter, **hashed),
        "tsv": write("tsv", TSVWriter, newline="\r\n"),
        "xsv": write("xsv", XSVWriter, separator="||", newline="\r\n", hashes=["blake2b"]),
    }
    for each in COMPRESSIONS:
        word = each.partition(":")[0]
        found[f"json-{word}"] = write(f"json-{word}", JSONWriter, apart=False, compression=each, **hashed)
        found[f"csv-{word}"] = write(f"csv-{word}", CSVWriter, compression=each)
    found["mds-snappy"] = write("mds-snappy", MDSWriter, columns={"id": "int", "text": "str"}, compression="snappy")
    (HERE / "values.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()

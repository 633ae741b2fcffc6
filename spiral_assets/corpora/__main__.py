"""Write a little data of every shape, for those who have none at hand: class folders, Parquet files, JSON lines.

python -m spiral_assets.corpora data
"""

import json
from pathlib import Path
from typing import Annotated, Final

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from spiral_assets.corpora.documents import articles, sources
from spiral_assets.corpora.images import write_image_relation

FILES: Final = 4  # of Parquet
DRAWN: Final = ".drawn"


def write_samples(
    folder: Annotated[Path, typer.Argument(help="Folder to write to; it must not exist.")],
    images: Annotated[int, typer.Option(min=20, help="Images to draw.")] = 600,
    characters: Annotated[int, typer.Option(min=1_000, help="Characters of each kind of text.")] = 400_000,
) -> None:
    """Write photos/<class>/<name>.jpg, articles/part-<number>.parquet and code.jsonl."""
    folder.mkdir(parents=True)
    write_image_relation(folder / DRAWN, images, form="folder", val_every=0, progress=False)
    (folder / DRAWN / "train").rename(folder / "photos")
    (folder / DRAWN / "drawn.json").unlink()
    (folder / DRAWN).rmdir()
    rows = [{"sample_id": each.path, "text": each.text} for each in articles(characters)]
    (folder / "articles").mkdir()
    for part in range(FILES):
        pq.write_table(pa.Table.from_pylist(rows[part::FILES]), folder / "articles" / f"part-{part}.parquet")
    lines = [json.dumps({"sample_id": each.path, "text": each.text}) for each in sources(characters)]
    (folder / "code.jsonl").write_text("\n".join(lines) + "\n")
    typer.echo(f"{images:,} images, {len(rows):,} articles and {len(lines):,} pieces of code in {folder}")


if __name__ == "__main__":
    typer.run(write_samples)

"""`make bench`: text as tokens per CPU second beside the peers, interleaved, written to docs/benchmarks.

`peers/documents.py` says what each must deliver. ``padded``, ``padded-2m``: token documents to bucketed padded batches
under 131,072 and 2,000,000 padded tokens; ``packed``: token documents to rows of 2,048; ``raw``: text to bucketed padded
batches; ``formation``: who shares a batch, in milliseconds a window.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import corpus, formation
from benchmarks.interleaved import (
    CONSOLE,
    ROOT,
    Cell,
    System,
    facts,
    headings,
    interleave,
    markdown,
    rows,
    run_cell,
    show,
    write_report,
)
from benchmarks.peers.documents import Texts

MOSAIC = str(ROOT / ".mosaic-venv" / "bin" / "python")
CELL = "benchmarks.text_cell"
PREPARE_S, CELL_S = 1_800.0, 900.0


@dataclass(frozen=True)
class Workload:
    """One table of the report."""

    title: str
    kind: str
    systems: Mapping[str, System]
    budget: int = 131_072


LOADERS = {
    "torch": System("torch DataLoader, batched fetch, in the consumer", "torch_text", {"workers": "none"}),
    "torch-workers": System("torch DataLoader, batched fetch, workers", "torch_text", {"workers": "processes"}),
    "spdl": System("SPDL", "spdl_text"),
    "litdata": System("LitData (hardly shuffles)", "litdata_text"),
    "grain": System("Grain", "grain_text"),
    "lancedb": System("LanceDB StreamingDataset", "lancedb_text"),
    "mosaic": System("Mosaic StreamingDataset", "mosaic_text", python=MOSAIC),
}
PADDED = LOADERS | {
    "limit": System("(no loader: the peers' kernels alone)", "limit_text", {"kernel": "padded"}, "limit"),
    "spiral": System("Spiral, token cache", "spiral_text", {"cache": "tokens"}, "ours"),
}
PACKED = {
    "grain-first-fit": System("Grain, first fit, 64 bins", "grain_text", {"strategy": "first_fit"}),
    "grain-best-fit": System("Grain, best fit, 64 bins", "grain_text", {"strategy": "best_fit"}),
    "grain-concat": System("Grain, concatenate and split", "grain_text", {"strategy": "concat"}),
    "litdata": System("LitData TokensLoader, segments by separator (hardly shuffles)", "litdata_text"),
    "lancedb": System("LanceDB pack_sequences", "lancedb_text"),
    "limit": System("(NumPy concatenate and reshape, ids only)", "limit_text", {"kernel": "concat"}, "limit"),
    "limit-segments": System(
        "(NumPy concatenate and reshape, with segments)", "limit_text", {"kernel": "concat-segments"}, "limit"
    ),
} | {
    f"spiral-{strategy.replace('_', '-')}": System(
        f"Spiral, {strategy}", "spiral_text", {"cache": "tokens", "strategy": strategy}, "ours"
    )
    for strategy in ("best_fit", "first_fit", "concat_and_split")
}
RAW = LOADERS | {
    "tokenizers": System("(tokenizers alone)", "limit_text", {"kernel": "tokenizers"}, "limit"),
    "tiktoken": System("(tiktoken alone, the same vocabulary)", "limit_text", {"kernel": "tiktoken"}, "limit"),
    "spiral": System("Spiral, no cache", "spiral_text", {"cache": "none"}, "ours"),
}
WORKLOADS = {
    "padded": Workload("Token documents -> bucketed padded batches, at most 131,072 padded tokens", "padded", PADDED),
    "padded-2m": Workload("The same, at most 2,000,000 padded tokens", "padded", PADDED, 2_000_000),
    "packed": Workload("Token documents -> packed rows of 2,048, segment ids and positions", "packed", PACKED),
    "raw": Workload("Text -> BPE -> bucketed padded batches, at most 131,072 padded tokens", "raw", RAW),
}
UNIT = "M tokens"


def main(
    workloads: Annotated[
        str, typer.Option(help="comma-separated, or all: " + ", ".join([*WORKLOADS, "formation"]))
    ] = "all",
    systems: Annotated[
        str, typer.Option(help="comma-separated names, or all: " + ", ".join(PADDED | PACKED | RAW))
    ] = "all",
    documents: Annotated[int, typer.Option(help="at most so many are taken from what the machine has")] = 150_000,
    repeats: Annotated[int, typer.Option(min=1, help="repetitions; a published figure takes 5 or more")] = 5,
    seconds: Annotated[float, typer.Option(help="measured seconds a cell, and two windows at least")] = 4.0,
    cores: Annotated[int, typer.Option(min=1, help="cores a system may use")] = 2,
    data: Annotated[Path, typer.Option(help="where the documents and their conversions are kept")] = Path(
        "/tmp/spiral-text"
    ),
    out: Annotated[Path, typer.Option(help="folder of the report")] = ROOT / "docs" / "benchmarks",
) -> None:
    """Measure tokens per CPU second of every system on the same documents."""
    names = [*WORKLOADS, "formation"] if workloads == "all" else workloads.split(",")
    _known(names, [*WORKLOADS, "formation"])
    wanted = None if systems == "all" else systems.split(",")
    _known(wanted or (), PADDED | PACKED | RAW)
    texts = Texts(data.resolve())
    found = corpus.build(texts, documents)
    versions: dict[str, str] = {}
    page: list[str] = []
    for name in names:
        if name == "formation":
            lines = formation.measure(texts, max(15, repeats))
            show("Forming the batches of 8,192 documents", formation.HEADINGS, lines)
            page += ["## Forming the batches of 8,192 documents", "", *markdown(formation.HEADINGS, lines)]
        else:
            page += _table(WORKLOADS[name], wanted, texts, repeats, seconds, cores, versions)
    count, tokens = found["documents"], found["tokens"]
    opening = [
        f"# Text: tokens per CPU second, {datetime.now(UTC):%Y-%m-%d}",
        "",
        *facts("benchmarks.text", repeats, cores, versions),
        f"- data: {count:,} real documents of {found['bytes'] / count:,.0f} bytes and {tokens / count:,.0f} tokens on average",
        f"  (median {found['median_tokens']:,.0f}, longest {found['longest_tokens']:,}), in the page cache",
        f"- vocabulary: byte-level BPE of {found['vocabulary']:,}, trained on a tenth of them",
        "",
    ]
    write_report(out, "text", [*opening, *page, *NOTES])


def _table(
    workload: Workload, wanted: list[str] | None, texts: Texts, repeats: int, seconds: float, cores: int, versions: dict
) -> list[str]:
    """Prepare, verify and measure; the section of the report."""
    systems = {name: system for name, system in workload.systems.items() if wanted is None or name in wanted}
    if not systems:
        return []
    common = [
        "--data",
        str(texts.root),
        "--kind",
        workload.kind,
        "--budget",
        str(workload.budget),
        "--cores",
        str(cores),
    ]
    checks: dict[str, dict] = {}
    notes: list[str] = []
    for name, system in list(systems.items()):
        if not Path(system.python).exists():
            CONSOLE.print(f"{name}: left out, {system.python} is not there (make bench-mosaic makes it)")
            del systems[name]
            continue
        prepared = run_cell(CELL, system, [*common, "--prepare"], PREPARE_S)
        if "missing" in prepared:
            CONSOLE.print(f"{name}: left out: {prepared['missing']}")
            del systems[name]
            continue
        own = prepared["versions"]
        versions |= {f"{package} (Mosaic)" if name == "mosaic" else package: own[package] for package in own}
        notes += [f"{system.title}: " + ", ".join(f"{n:,} {what}" for what, n in prepared["notes"].items())] * bool(
            prepared["notes"]
        )
        checks[name] = run_cell(CELL, system, [*common, "--verify"], CELL_S)
        CONSOLE.print(f"{name}: {checks[name]}")

    def run(name: str) -> Cell:
        return run_cell(CELL, systems[name], [*common, "--seconds", str(seconds)], CELL_S)

    lines = rows(systems, interleave(list(systems), repeats, run, UNIT), ",.2f" if workload.kind == "raw" else ",.1f")
    columns = (*headings(UNIT), "padding", "kept together")
    by_title = {systems[name].title: found for name, found in checks.items()}
    lines = [(*line, *_checked(by_title[line[0]])) for line in lines]
    show(workload.title, columns, lines)
    return [f"## {workload.title}", "", *markdown(columns, lines), *(line for note in notes for line in (note, ""))]


def _checked(found: dict) -> tuple[str, str]:
    padding = f"{100 * found['padding']:.1f} %" if "padding" in found else "-"
    return padding, f"{found['together']:.2f}" if "together" in found else "-"


def _known(names: object, known: object) -> None:
    for name in names:
        if name not in known:
            msg = f"{name!r} is none of {', '.join(known)}"
            raise typer.BadParameter(msg)


NOTES = [
    "Tokens are real ones, padding is not counted. *Kept together*: how often a document shares its window with the next",
    "one of the corpus, as a multiple of what a random order gives. Every system's batches are compared with the corpus",
    "before they are measured. All peers get the same NumPy kernels (`benchmarks/peers/documents.py`); what each does not",
    "do, how it is configured, and what was tried and was slower, is in `benchmarks/README.md`.",
    "",
]


if __name__ == "__main__":
    typer.run(main)

"""Code in README and docs runs, in order, in an empty folder; links lead somewhere; commands exist."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def blocks(document: Path, language: str) -> list[str]:
    return [code for name, code in BLOCK.findall(document.read_text()) if name == language]


def with_blocks(language: str) -> list[Path]:
    return [document for document in DOCUMENTS if blocks(document, language)]


@pytest.mark.parametrize("document", with_blocks("python"), ids=lambda path: path.name)
def test_the_code_of_a_document_runs(document: Path, tmp_path: Path) -> None:
    script = tmp_path / "document.py"
    script.write_text("\n".join(blocks(document, "python")))
    env = {**os.environ, "SPIRAL_CATALOG": str(tmp_path / "catalog")}

    ran = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False
    )

    assert ran.returncode == 0, ran.stderr[-3_000:]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_links_of_a_document_lead_somewhere(document: Path) -> None:
    missing = [link for link in LINK.findall(document.read_text()) if not (document.parent / link).exists()]

    assert not missing


@pytest.mark.parametrize("document", with_blocks("bash"), ids=lambda path: path.name)
def test_the_commands_of_a_document_exist(document: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in "".join(blocks(document, "bash")).splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] == "make":
            assert words[1] in targets, line
        else:
            assert words[0] == ".venv/bin/spiral", f"{line!r}: documents call make or .venv/bin/spiral"
            ran = subprocess.run(
                [sys.executable, "-c", "from spiral_stream.cli import main; main()", words[1], "--help"],
                capture_output=True,
                timeout=120,
                check=False,
            )
            assert ran.returncode == 0, line

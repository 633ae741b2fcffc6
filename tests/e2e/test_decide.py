"""The how-to page whose losses decide on shares: one, two and three ranks print the same decisions."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.pages import Runner
from tests.test_documents import DOCS, blocks

PAGE = DOCS / "howto" / "decide.md"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def runner() -> Iterator[Runner]:
    made = Runner()
    yield made
    made.close()


def test_losses_decide_the_same_on_one_two_and_three_ranks(tmp_path: Path, runner: Runner) -> None:
    pytest.importorskip("torch")
    found = blocks(PAGE)
    (tmp_path / "train.py").write_text(next(block.code for block in found if block.title == "train.py"))
    script = "\n".join(block.code for block in found if block.language == "python" and not block.title)
    (tmp_path / "prepare.py").write_text(script)
    runner.run(tmp_path, "prepare.py")

    printed = [runner.run(tmp_path, "train.py", ranks) for ranks in (1, 2, 3)]

    decisions = [[line for line in each.splitlines() if line.startswith("from batch")] for each in printed]
    assert len(decisions[0]) > 3
    assert decisions[0] == decisions[1] == decisions[2]

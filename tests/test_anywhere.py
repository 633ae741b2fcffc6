"""Conditions of other machines are made as they say, listed where people look, and drawn one per commit; a hang is a failure."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / ".ci" / "anywhere"
NAMES: list[str] = json.loads(
    subprocess.run([sys.executable, SCRIPT, "--list"], stdout=subprocess.PIPE, check=True).stdout
)
EACH_PUSH = ("umask-077", "few-files", "one-core")
SEEN = """
import os, resource, signal

def test_it():
    SEES
"""
SEES = {
    "umask-077": "mask = os.umask(0); os.umask(mask); assert mask == 0o077",
    "lc-all-c": "assert os.environ['LC_ALL'] == 'C' and 'LANG' not in os.environ",
    "tz-kolkata": "import time; assert time.timezone == -19_800",
    "no-interrupt": "assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN and os.getsid(0) != SID",
    "home-not-writable": "assert os.path.expanduser('~') == '/proc'",
    "few-files": "assert resource.getrlimit(resource.RLIMIT_NOFILE) == (256, 256)",
    "one-core": "assert len(os.sched_getaffinity(0)) == 1",
    "proxies": "import urllib.request as r; assert r.getproxies()['http'] and r.proxy_bypass('127.0.0.1')",
    "garbage": "assert os.environ['MALLOC_PERTURB_'] == '1'",
    "plain-processor": "from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__\n"
    "    assert not any(map(__cpu_features__.get, __cpu_dispatch__))",
}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in EACH_PUSH else pytest.mark.slow) for each in SEES]
)
def test_a_condition_is_what_it_says(name: str, tmp_path: Path) -> None:
    (tmp_path / "test_seen.py").write_text(SEEN.replace("SEES", SEES[name].replace("SID", str(os.getsid(0)))))
    (tmp_path / "conftest.py").write_text(
        "import os\nfor name in ('no_proxy', 'NO_PROXY'): os.environ[name] = '127.0.0.1'\n"
    )
    options = f"--rootdir {tmp_path} -n 0 {tmp_path}"
    done = subprocess.run(
        [sys.executable, SCRIPT, "--only", str(tmp_path), "--pytest", options, name],
        env={each: value for each, value in os.environ.items() if not each.startswith("PYTEST_")} | {"VENV": sys.prefix},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^{name} +passed$", done.stdout, re.MULTILINE)


def test_a_condition_that_cannot_be_made_is_said_and_is_no_success_where_it_was_asked_for(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "python-3.12"],
        env={"PYTHON_3_12": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode != 0
    assert f"not made: there is no environment at {tmp_path}. Make it: make install PYTHON=python3.12" in done.stdout


def test_every_condition_is_in_the_documents_and_runs_every_night() -> None:
    page = (ROOT / "docs" / "howto" / "any-machine.md").read_text()

    assert re.findall(r"^\| `([a-z0-9.-]+)` \|", page, re.MULTILINE) == NAMES
    flow = yaml.safe_load((ROOT / ".github" / "workflows" / "anywhere.yml").read_text())
    assert flow[True]["schedule"]  # YAML reads `on` as a truth
    assert "--list" in str(flow["jobs"]["conditions"])
    assert "anywhere --draw" in (ROOT / ".ci" / "run").read_text()


def test_commits_draw_every_condition_but_those_that_install_a_python() -> None:
    program = f"""
import importlib.machinery, importlib.util, json, sys
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("anywhere", {str(SCRIPT)!r})
room = importlib.util.module_from_spec(importlib.util.spec_from_loader("anywhere", loader))
sys.modules["anywhere"] = room
loader.exec_module(room)
print(json.dumps([room.drawn(f"{{k:012x}}abc")[0] for k in range(200)]))
"""
    found = json.loads(subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True).stdout)

    assert set(found) == {name for name in NAMES if not name.startswith("python-")}


def test_the_tests_of_every_condition_are_there() -> None:
    named = set(re.findall(r"(?:\{S\}|tests)/[\w/.]+", SCRIPT.read_text()))

    assert named
    assert [each for each in named if not (ROOT / each.replace("{S}", "tests/stream")).exists()] == []


HANGS = """
import threading, time
import pytest

@pytest.mark.timeout(1, func_only=True)  # what fixtures of conftest.py import takes longer on a slow machine
def test_it():
    threading.Thread(target=time.sleep, args=(30,), name="sleeper", daemon=True).start()
    time.sleep(30)
"""


def test_a_test_that_hangs_fails_with_the_stacks_of_all_threads(tmp_path: Path) -> None:
    (tmp_path / "test_hangs.py").write_text(HANGS)
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "1",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # the copy of conftest.py imports fixtures
    done = subprocess.run(
        [*command, str(tmp_path)], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )

    assert done.returncode == 1
    assert "Timeout (>1.0s)" in done.stdout
    assert "thread sleeper at the deadline" in done.stdout

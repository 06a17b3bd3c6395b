"""The examples run, and the learners' page is what its script makes."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_page_is_what_its_steps_print():
    done = subprocess.run(
        [sys.executable, ROOT / "examples/online_softmax.py"], capture_output=True, text=True, check=True
    )
    page = (ROOT / "docs/online_softmax.md").read_text()
    assert done.stdout.rstrip() == page.rstrip(), "run: python examples/online_softmax.py --write"


@pytest.mark.filterwarnings("ignore")
def test_shards():
    done = subprocess.run([sys.executable, ROOT / "examples/python/shards.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for way in ("with_functools", "with_processes"):
        assert any(line.startswith(way) and line.endswith("True") for line in done.stdout.splitlines())
    assert "False" not in done.stdout

"""The examples run, and the learners' page is what its script makes."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_page_is_what_its_steps_print_and_its_pictures_what_they_draw():
    done = subprocess.run(
        [sys.executable, ROOT / "examples/online_softmax.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_s_python_runs():
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize("way", ["functools", "processes", "dask"])
def test_shards(way):
    if way == "dask":
        pytest.importorskip("dask.bag", reason="Dask is not installed")
    done = subprocess.run([sys.executable, ROOT / "examples/python/shards.py", way], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rf"with_{way}: logsumexp .*, the whole row's bits: True\n", done.stdout)

"""Threads, forked children, subinterpreters, references, and the package's own promises (stubs, docstrings)."""

import ast
import concurrent.futures
import gc
import importlib
import inspect
import os
import pathlib
import re
import subprocess
import sys
import sysconfig

import numpy as np
import pytest
from conftest import bits

import softfold
from softfold import _core


def test_many_threads_at_once(rng):
    xs = [rng.standard_normal((20, 3000)).astype(np.float32) for _ in range(8)]
    want = [softfold.softmax(x, -1) for x in xs]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for got, expected in zip(pool.map(lambda x: softfold.softmax(x, -1), xs), want):
                assert bits(got) == bits(expected)


MEETING = """
import sys, threading
import numpy as np
import softfold

x = np.random.default_rng(0).standard_normal((10, 3000)).astype(np.float32)
start, row, results = threading.Barrier(16), softfold.Stream(), []

def work():
    start.wait()
    for _ in range(10):
        s = softfold.state(x, -1)
        results.append((softfold.softmax(x, -1).tobytes(), softfold.logsumexp(x, mask=x > 0).tobytes(),
                        softfold.merge(s, s).tobytes(), softfold.softmax(x[:, ::2].T, (0, 1)).tobytes()))
        row.push(x[0])
        try:
            softfold.softmax(x, 5)
        except softfold.Error:
            pass

threads = [threading.Thread(target=work) for _ in range(16)]
for t in threads: t.start()
for t in threads: t.join()
assert len(results) == 160 and len(set(results)) == 1 and row.length == 160 * 3000
print(getattr(sys, "_is_gil_enabled", lambda: True)())
"""


def test_first_calls_may_meet():
    """In a process of its own, so that what is made at the first call is made by threads that meet there. On a
    free-threaded Python they run at once: importing softfold leaves the GIL off."""
    done = subprocess.run([sys.executable, "-c", MEETING], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(not sysconfig.get_config_var("Py_GIL_DISABLED"))


def test_other_threads_run_meanwhile(rng):
    """The GIL is released: a thread that only counts gets on while a long call runs in another."""
    x = rng.standard_normal(8_000_000).astype(np.float32)

    def counted_meanwhile():
        counted = 0
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            done = pool.submit(lambda: [softfold.logsumexp(x) for _ in range(5)])
            while not done.done():
                counted += 1
        assert len(done.result()) == 5
        return counted

    # On a busy machine the calls may be over before this thread is run again.
    before = softfold.get_num_threads()
    softfold.set_num_threads(1)
    try:
        assert any(counted_meanwhile() > 0 for _ in range(20))
    finally:
        softfold.set_num_threads(before)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning")
def test_a_forked_child_folds(rng):
    x = rng.standard_normal((300, 3000)).astype(np.float32)
    want = softfold.softmax(x, -1)  # the pool's threads exist before the fork
    child = os.fork()
    if child == 0:
        os._exit(0 if bits(softfold.softmax(x, -1)) == bits(want) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


SUBINTERPRETER = """
import sys
try:
    import _interpreters as interpreters
    one = interpreters.create()
    failure = interpreters.run_string(one, "import softfold._core")
except ModuleNotFoundError:
    import _xxsubinterpreters as interpreters
    one = interpreters.create()
    try:
        interpreters.run_string(one, "import softfold._core")
        failure = None
    except interpreters.RunFailedError as e:
        failure = e
print("refused" if failure is not None else "works")
"""


def test_subinterpreters_are_refused_or_work():
    done = subprocess.run([sys.executable, "-c", SUBINTERPRETER], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("refused", "works")


def test_nothing_is_left_behind(rng):
    x = rng.standard_normal(50)
    stream = softfold.Stream("float64")

    def work():
        softfold.softmax(x)
        softfold.logsumexp(x, 0, keepdims=True, mask=x > 0)
        stream.push(x)
        softfold.merge(softfold.state(x), softfold.state(x))
        stream.partial().to_bytes()
        for bad in (lambda: softfold.softmax(x, 3), lambda: softfold.softmax(x.astype(complex))):
            with pytest.raises(softfold.Error):
                bad()

    def grown():
        blocks = sys.getallocatedblocks()
        for _ in range(300):
            work()
        gc.collect()
        return sys.getallocatedblocks() - blocks

    # Caches of the interpreter fill up in some rounds; a leak grows by one block or more with every call of every round.
    grown()
    references = sys.getrefcount(x)
    assert min(grown() for _ in range(5)) < 100
    assert sys.getrefcount(x) == references


def test_threads_from_the_environment():
    code = "import softfold; print(softfold.get_num_threads())"
    for value, want in (("3", "3"), ("many", "SOFTFOLD_THREADS=many")):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "SOFTFOLD_THREADS": value}
        )
        assert want in done.stdout + done.stderr


def test_stubs_name_what_there_is():
    tree = ast.parse((pathlib.Path(softfold.__file__).parent / "_core.pyi").read_text())
    declared = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    there = {n for n in dir(_core) if not n.startswith("_") and callable(getattr(_core, n))}
    assert declared == there
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            members = {m.name for m in node.body if isinstance(m, ast.FunctionDef) and not m.name.startswith("_")}
            assert members == {n for n in dir(getattr(_core, node.name)) if not n.startswith("_")}


def test_stubs_take_what_the_functions_take():
    tree = ast.parse((pathlib.Path(softfold.__file__).parent / "_core.pyi").read_text())
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        shown = re.sub(r"\\\d+", "None", getattr(_core, node.name).__nb_signature__[0][0])  # defaults stand as numbers
        there = ast.parse(shown + ": ...").body[0].args

        def names(a):
            return [x.arg for x in a.posonlyargs + a.args], [x.arg for x in a.kwonlyargs]

        assert names(node.args) == names(there), node.name


def test_the_support_table_s_faces():
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs/support.md").read_text()
    rows = [line.split("|")[1:-1] for line in page.partition("From Python")[2].splitlines() if line.startswith("| `")]
    assert len(rows) >= 5
    for operations, numpy, _, torch, jax in rows:
        for face, cell in (("softfold", numpy), ("softfold.torch", torch), ("softfold.jax", jax)):
            try:
                module = importlib.import_module(face)
            except ImportError:
                continue
            for name in re.findall(r"`(\w+)`", operations):
                there = hasattr(module, name) or hasattr(module, name + "_states")
                assert there == cell.strip().startswith("yes"), (face, name)


@pytest.mark.parametrize("name", [n for n in softfold.__all__ if n != "bits_version"])
def test_everything_public_is_documented(name):
    assert len(inspect.getdoc(getattr(softfold, name))) > 40

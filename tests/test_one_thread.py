"""One thread for small matrices, whichever library brings a BLAS of its own."""

import ast
import subprocess
import sys
from pathlib import Path

import ncollapse

LIMITED = """
import numpy
from ncollapse.one_thread import one_thread
from threadpoolctl import threadpool_info, threadpool_limits
with threadpool_limits(3), one_thread():
    import scipy.linalg, scipy.optimize
    print(sorted({pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}))
"""
BARE = """
import sys
sys.modules["threadpoolctl"] = None
from ncollapse.one_thread import one_thread
with one_thread():
    print("ran")
"""


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_blas_of_scipy_is_limited_though_it_is_needed_later():
    assert run(LIMITED) in ("[1]", "[]")  # none where no BLAS can be counted


def test_without_threadpoolctl_nothing_is_limited():
    assert run(BARE) == "ran"


def test_it_is_the_one_place_that_limits_threads_of_blas():
    root = Path(ncollapse.__file__).parent
    users = [
        path.name
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "threadpoolctl"
    ]
    assert users == ["one_thread.py"]

"""Ctrl-C at any moment: one line and exit code 130, also while libraries are imported."""

import os
import subprocess
import sys

import pytest

from reference.processes import listen

LIBRARY = """
import os, signal, time

try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    {then}
"""


@pytest.mark.parametrize("then", ["raise", "raise RecursionError('too deep')", "pass"])
@pytest.mark.parametrize(
    ("verb", "said"),
    [("report", "interrupted"), ("compare", "interrupted; the same command continues where it stopped")],
)
def test_an_interrupt_while_importing_is_one_line(tmp_path, then, verb, said):
    (tmp_path / "tyro.py").write_text(LIBRARY.format(then=then))
    done = interrupt(tmp_path, verb)
    assert (done.returncode, done.stderr) == (130, f"ncollapse {verb}: {said}\n")


def test_torch_is_imported_where_an_interrupt_is_caught(tmp_path):
    (tmp_path / "torch.py").write_text(LIBRARY.format(then="raise"))
    done = interrupt(tmp_path, "train", "digits", "--out", str(tmp_path / "out"))
    assert (done.returncode, done.stderr) == (130, "ncollapse train: interrupted\n")


def test_other_errors_are_still_told(tmp_path):
    (tmp_path / "tyro.py").write_text("raise RecursionError('too deep')")
    done = interrupt(tmp_path, "report")
    assert (done.returncode, done.stderr) == (1, "ncollapse report: too deep\n")


def interrupt(libraries, *arguments):
    """Run the command line with stand-ins for libraries."""
    command = [sys.executable, "-m", "ncollapse", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(libraries)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, preexec_fn=listen, timeout=60)

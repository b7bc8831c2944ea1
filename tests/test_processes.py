"""How processes of our own collect garbage and end, and that others are left alone."""

import atexit
import gc
import io
import os
import subprocess
import sys

import pytest

from ncollapse import cli, processes


@pytest.fixture
def own(monkeypatch):
    """A process that runs one of our commands, for a while."""
    monkeypatch.setattr(processes, "_own", True)
    monkeypatch.setattr(processes, "_code", None)
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("own")
def test_imports_are_not_searched_for_garbage():
    with processes.importing():
        assert not gc.isenabled()
        with processes.importing():  # as a library that imports another one
            assert not gc.isenabled()
        assert not gc.isenabled()
        assert gc.get_freeze_count() == 0
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


@pytest.mark.usefixtures("own")
def test_a_failed_import_leaves_the_collector_on():
    with pytest.raises(ImportError), processes.importing():
        raise ImportError
    assert gc.isenabled()


def test_the_collector_of_a_users_process_is_left_alone(monkeypatch):
    monkeypatch.setattr(processes, "_own", False)
    with processes.importing():
        assert gc.isenabled()
    assert processes.end_with(3) == 3
    assert processes._code is None
    assert gc.get_freeze_count() == 0


def test_only_the_program_itself_claims_its_process(monkeypatch, capsys):
    monkeypatch.setattr(processes, "_own", False)
    monkeypatch.setattr(atexit, "register", lambda work: None)
    assert cli.main(["--version"]) == 0
    assert not processes._own
    monkeypatch.setattr(sys, "argv", ["ncollapse", "--version"])
    assert cli.main() == 0
    assert processes._own
    assert capsys.readouterr().out.startswith("ncollapse ")


END = """
import atexit, os, sys, threading, time
from ncollapse.processes import claim_process, end_with

leave = os._exit

def report(code):
    print("left at once", flush=True)
    leave(code)

def late():
    time.sleep(0.3)
    print("thread done")

os._exit = report
claim_process()
atexit.register(lambda: print("handler done"))
threading.Thread(target=late).start()
CHANGE
print("no new line", end="; ")
sys.exit(end_with(7))
"""


def run_end(change="", **options):
    return subprocess.run([sys.executable, "-c", END.replace("CHANGE", change)], text=True, stderr=-1, **options)


def test_a_process_of_our_own_ends_after_its_threads_and_handlers_and_without_the_clean_up():
    done = run_end(stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == "no new line; thread done\nhandler done\nleft at once\n"


@pytest.mark.parametrize("watcher", ["sys.setprofile(lambda *_: None)", "sys.settrace(lambda *_: None)"])
def test_a_process_that_is_watched_ends_as_always(watcher):
    done = run_end(watcher, stdout=subprocess.PIPE)
    assert done.returncode == 7
    assert done.stdout == "no new line; thread done\nhandler done\n"


@pytest.mark.usefixtures("own")
def test_output_that_cannot_be_written_is_left_to_the_interpreter(monkeypatch):
    class Full(io.StringIO):
        def flush(self):
            raise OSError("No space left on device")

    left = []
    monkeypatch.setattr(os, "_exit", left.append)
    processes.end_with(7)
    for stream, codes in ((Full(), []), (None, []), (io.StringIO(), [7])):
        monkeypatch.setattr(sys, "stdout", stream)
        processes._leave()
        assert left == codes


def test_commands_end_with_their_code(tmp_path):
    for args, code in ([["predict", "nothing"], 2], [["measure", str(tmp_path / "no.npz")], 2], [["env"], 0]):
        command = [sys.executable, "-m", "ncollapse", *args]
        assert subprocess.run(command, capture_output=True).returncode == code, args

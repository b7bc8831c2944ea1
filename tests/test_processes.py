"""The garbage collector in processes of our own, and nowhere else."""

import gc
import sys

import pytest

from ncollapse import cli, processes


@pytest.fixture
def own(monkeypatch):
    """A process that runs one of our commands, for a while."""
    monkeypatch.setattr(processes, "_own", True)
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
    processes.leave_garbage()
    assert gc.get_freeze_count() == 0


def test_only_the_program_itself_claims_its_process(monkeypatch, capsys):
    monkeypatch.setattr(processes, "_own", False)
    assert cli.main(["--version"]) == 0
    assert not processes._own
    monkeypatch.setattr(sys, "argv", ["ncollapse", "--version"])
    assert cli.main() == 0
    assert processes._own
    assert capsys.readouterr().out.startswith("ncollapse ")

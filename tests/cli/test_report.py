"""`ncollapse report` from the command line."""

import errno
import os
import subprocess
import sys
import urllib.request

import pytest

from ncollapse.cli import main
from reference.runs import write_run


def test_writes_the_page_and_prints_its_path(tmp_path, capsys):
    write_run(tmp_path, {"optim.epochs": 3}, snapshot=False)
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")
    assert "CE on digits" in (tmp_path / "report.html").read_text()
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "pages" / "x.html")]) == 0
    assert (tmp_path / "pages" / "x.html").is_file()


def test_bad_folders_are_named(tmp_path, capsys):
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 2
    assert "no runs in" in capsys.readouterr().err


def test_a_file_instead_of_the_folder_is_named_as_such(tmp_path, capsys):
    (tmp_path / "features.npz").write_text("")
    assert main(["report", str(tmp_path / "features.npz")]) == 2
    assert capsys.readouterr().err.endswith(f"PATH {tmp_path}/features.npz: is a file, not a folder of runs\n")


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 1), (errno.EROFS, 2)])
@pytest.mark.parametrize("options", [["--out", "{}/r.html"], []])
def test_a_page_that_cannot_be_written_is_named(tmp_path, capsys, monkeypatch, number, code, options):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    write_run(tmp_path, {"optim.epochs": 2}, snapshot=False)
    monkeypatch.setattr(os, "replace", refuse)
    assert main(["report", str(tmp_path), *(option.format(tmp_path) for option in options)]) == code
    page = tmp_path / ("r.html" if options else "report.html")
    assert capsys.readouterr().err == f"ncollapse report: --out {page}: cannot be written: {os.strerror(number)}\n"


def test_serves_until_interrupted(tmp_path):
    write_run(tmp_path, {"optim.epochs": 3}, snapshot=False)
    command = [sys.executable, "-m", "ncollapse.cli", "report", str(tmp_path), "--serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().split()[0]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert "data-live" in answer.read().decode()
        process.terminate()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--out", "{}"], ["out:", "is a folder"]),
        (["--out", "{}/file/page.html"], ["out:", "file' is a file"]),
        (["--export", "{}/file"], ["export:", "file' is a file"]),
        (["--export", "{}/file/below"], ["export:", "file' is a file"]),
        (["--serve", "--port", "99999"], ["port", "65535", "99999"]),
    ],
)
def test_places_that_cannot_be_are_one_line_that_names_the_option(tmp_path, capsys, options, words):
    write_run(tmp_path, {"optim.epochs": 2}, snapshot=False)
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.iterdir())
    assert main(["report", str(tmp_path), *(option.format(tmp_path) for option in options)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert all(word in said for word in words)
    assert "Errno" not in said
    assert sorted(tmp_path.iterdir()) == before


def test_no_draft_is_left_where_the_page_cannot_be_written(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no space left")

    write_run(tmp_path, {"optim.epochs": 2}, snapshot=False)
    monkeypatch.setattr(os, "replace", refuse)
    assert main(["report", str(tmp_path)]) == 1
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]

"""Terminals of any encoding, closed streams, full disks, names with brackets: the job is done and the page is there."""

import io
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from ncollapse.cli import main
from ncollapse.console import console, progress

COMPARE = ["compare", "--losses", "ce", "bce", "--seeds", "2", "--epochs", "2", "--device", "cpu", "--engine", "packed"]


def start(*arguments, shell):
    """Run the command line in a shell; `shell` is appended to it, such as a redirection."""
    words = [sys.executable, "-m", "ncollapse", *arguments]
    command = ["sh", "-c", f'"$@" {shell}', "sh", *words]
    return subprocess.run(command, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=120)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Real, finished runs, so that a comparison only reads and prints."""
    out = tmp_path_factory.mktemp("compared") / "out"
    assert main([*COMPARE, "--out", str(out)]) == 0
    (out / "report.html").unlink()
    return out


def test_a_terminal_without_our_characters_degrades(runs, monkeypatch):
    printed = {}
    for encoding in ("utf-8", "ascii", "latin-1"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        assert main([*COMPARE, "--out", str(runs)]) == 0
        stream.flush()
        printed[encoding] = stream.buffer.getvalue().decode(encoding)
        assert (runs / "report.html").exists()
        (runs / "report.html").unlink()
    assert not printed["utf-8"].isascii()
    assert printed["ascii"].isascii()
    for text in printed.values():
        assert "BCE" in text
        assert "report.html" in text


def test_a_terminal_that_cannot_be_written_does_not_cost_the_page(runs, monkeypatch):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    assert main([*COMPARE, "--out", str(runs)]) == 1
    assert (runs / "report.html").exists()
    (runs / "report.html").unlink()


def test_brackets_and_bytes_in_names_are_printed_as_they_are(runs, tmp_path, capfdbinary):
    names = [b"a[/b]", b"runs[lr=0.1]", b":smile:"]
    if sys.platform.startswith("linux"):  # other systems refuse it
        names.append(b"caf\xe9")
    for name in names:
        out = os.path.join(os.fsencode(tmp_path), name)
        shutil.copytree(os.fsencode(runs), out)
        for arguments in ([*COMPARE, "--out", os.fsdecode(out)], ["report", os.fsdecode(out)]):
            assert main(arguments) == 0
            assert capfdbinary.readouterr().out.splitlines()[-1] == out + b"/report.html"
            assert os.path.exists(out + b"/report.html")
            os.unlink(out + b"/report.html")


def test_brackets_in_the_console_and_the_progress(capsys):
    console().print("a[/b] [red]x[/red] :smile:")
    assert capsys.readouterr().out == "a[/b] [red]x[/red] :smile:\n"
    with progress() as display:
        display.add_task("a[/b]", total=1, detail="[/c]")
    assert "a[/b]" in capsys.readouterr().err


def test_train_prints_a_folder_with_brackets(tmp_path, capsys):
    arguments = ["train", "digits", "--out", str(tmp_path / "a[/b]"), "--optim.epochs", "1", "--model.name", "mlp-16"]
    assert main([*arguments, "--data.samples-per-class", "10", "--device", "cpu"]) == 0
    assert "a[/b]" in capsys.readouterr().out


@pytest.mark.skipif(os.name == "nt", reason="a Unix shell")
def test_closed_streams(runs, tmp_path):
    done = start("report", str(runs), "--out", str(tmp_path / "page.html"), shell="0<&- 1>&- 2>&-")
    assert done.returncode == 0
    assert (tmp_path / "page.html").read_bytes().startswith(b"<!doctype html>")
    done = start("report", str(tmp_path / "nowhere"), shell="2>&-")
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_behind_standard_output_is_one_line():
    done = start("reproduce", "--list", shell="> /dev/full")
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("ncollapse reproduce: ")
    assert "No space left on device" in line


@pytest.mark.skipif(os.name == "nt", reason="a Unix pipe")
@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_nobody_reads_the_list_of_verbs(arguments):
    """As in `ncollapse --help | head -0`: the reader has gone before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-m", "ncollapse", *arguments], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(os.name == "nt", reason="a Unix terminal")
@pytest.mark.parametrize("wish", [{}, {"NO_COLOR": "1"}])
def test_no_color_holds_for_the_parser_too(wish):
    import pty

    ours, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | {"TERM": "xterm"} | wish
    command = [sys.executable, "-m", "ncollapse", "env", "--jsno"]
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, env=environment)
    os.close(theirs)
    os.close(ours)
    assert b"--json" in done.stderr
    assert (b"\x1b[" in done.stderr) is not bool(wish)


def test_names_of_data_sets_are_whole_on_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.delenv("NCOLLAPSE_DATA", raising=False)
    assert main(["data", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "digits: embedded, 10 classes, 1438 / 359; scikit-learn"
    assert [line.partition(":")[0] for line in lines[1:4]] == ["mnist", "fashion-mnist", "cifar10"]


@pytest.mark.parametrize("width", [60, 80])
def test_tables_of_predictions_and_certificates_fit_the_terminal(tmp_path, monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    decays = ["--weight-decay", "5e-4", "--feature-decay", "5e-4", "--bias-decay", "5e-4"]
    assert main(["predict", "bce", "--num-classes", "10", "--batch-size", "128", *decays, "--sensitivity"]) == 0
    labels = np.arange(8) % 4
    np.savez(tmp_path / "f.npz", features=np.eye(4)[labels], labels=labels, weight=np.eye(4))
    assert main(["certify", str(tmp_path / "f.npz"), *decays]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    assert "a of the logits a (I - J/K) + c J/K - b" in " ".join(out.split())


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps the folder of a process")
def test_a_deleted_working_folder_is_one_line(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    code = "import os, sys; os.rmdir(os.getcwd()); from ncollapse.cli import main; sys.exit(main(['data', 'list']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=gone, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ncollapse data: the current folder was deleted; change to another one\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predict", "bce", "--per-class", "4", "--num-classes", "3", "--no-bias", "--bias-decay", "1"], "--no-bias"),
        (
            ["predict", "ce", "--per-class", "4", "--num-classes", "3", "--gamma", "2"],
            "expected --label-smoothing; got",
        ),
        (["certify", "f.npz", "--batch-size", "0"], "--batch-size: expected a positive number, got 0.0"),
        (["certify", "f.npz", "--features", "relu"], "is for non-negative ones; use --features free"),
        (["measure", "f.npz", "--fields", "nc1,nc2"], "got nc1,nc2; give the names one by one, without commas"),
        (["measure", "f.npz", "--fields", "nc1_balance"], "got nc1_balance; did you mean nc1_balanced?"),
    ],
)
def test_errors_name_options_as_they_are_typed(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    labels = np.arange(8) % 4
    np.savez("f.npz", features=-np.eye(4)[labels], labels=labels, weight=np.eye(4))
    decays = [] if words[0] == "measure" else ["--weight-decay", "5e-4", "--feature-decay", "5e-4"]
    assert main([*words, *decays]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert said in printed.err

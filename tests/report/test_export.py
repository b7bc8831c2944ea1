"""Exports: every table and figure of a report as files that a paper can include."""

import shutil
import sys
from dataclasses import replace

import pytest

from ncollapse.report import make_report
from ncollapse.report.export import export_report
from reference.runs import write_comparison


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    write_comparison(folder, seeds=2, **{"optim.epochs": 4})
    whole = make_report(folder)
    numbers, curves, *_ = whole.sections
    return replace(whole, sections=(numbers, replace(curves, figures=curves.figures[:1])))


@pytest.mark.browser
@pytest.mark.filterwarnings("ignore")
def test_tables_and_figures_are_written(report, tmp_path):
    pytest.importorskip("kaleido")
    if not (shutil.which("chromium") or shutil.which("google-chrome")):
        pytest.skip("no Chromium on this machine: figures cannot be exported")
    written = export_report(report, tmp_path / "out")
    names = {path.name for path in written}
    assert {"summary.csv", "summary.tex", "speed.csv", "collapse.svg", "collapse.pdf", "collapse.png"} <= names
    assert all(path.stat().st_size > 0 for path in written)
    folder = tmp_path / "out"
    assert (folder / "collapse.pdf").read_bytes().startswith(b"%PDF")
    assert (folder / "collapse.png").read_bytes().startswith(b"\x89PNG")
    picture = (folder / "collapse.svg").read_text()
    assert "train NC1" in picture
    assert "var:" not in picture
    assert "rgb(0, 76, 138)" in picture, "the colour of CE in print"


def test_missing_extra_is_named(report, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(ImportError, match=r"ncollapse\[export\]"):
        export_report(report, tmp_path)

"""`ncollapse compare` reads every run once, groups once and compares once, and hands the result on to the page."""

from collections import Counter

import pytest

from ncollapse.cli import main
from ncollapse.compare import comparison, findings
from ncollapse.report import layout
from ncollapse.runs import record
from ncollapse.sweep import sweep


@pytest.fixture
def calls(monkeypatch):
    """Counts of the calls of what reads, groups and compares, wherever it is called from."""
    counted = Counter()

    def count(name, *modules):
        function = getattr(modules[0], name)

        def counting(*arguments, **options):
            counted[name] += 1
            return function(*arguments, **options)

        for module in modules:
            monkeypatch.setattr(module, name, counting)

    count("read_run", record, sweep, layout)
    count("group_runs", comparison)
    count("find", comparison)
    count("compare_records", comparison, layout)
    assert findings.find is not comparison.find
    return counted


def test_every_run_is_read_grouped_and_compared_once(tmp_path, calls, capsys, monkeypatch):
    from ncollapse.compare import plan

    monkeypatch.setattr(plan, "compare_records", comparison.compare_records)
    command = ["compare", "--out", str(tmp_path), "--epochs", "1", "--seeds", "2", "--engine", "packed"]
    command += ["--device", "cpu", "--jobs", "1"]
    for _ in range(2):  # runs that are trained now, and runs that are finished already
        calls.clear()
        assert main(command) == 0
        assert calls == {"read_run": 4, "group_runs": 1, "find": 2, "compare_records": 1}
    assert capsys.readouterr().out.rstrip().endswith("report.html")


def test_runs_that_the_command_did_not_ask_for_are_on_the_page_too(tmp_path, calls):
    from ncollapse.compare import compare_records
    from reference.runs import write_comparison, write_run

    write_comparison(tmp_path, seeds=1, **{"optim.epochs": 2})
    known = compare_records(record.read_runs(tmp_path))
    write_run(tmp_path, {"loss.name": "mse", "optim.epochs": 2}, snapshot=False)
    calls.clear()
    report = layout.make_report(tmp_path, known)
    assert len(report.records) == 3
    assert calls["read_run"] == 1, "only the new one"
    assert len(report.comparison.findings) == 3

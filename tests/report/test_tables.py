"""The tables against the records they were made from."""

import csv
import json
import math
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from ncollapse.compare import QUANTITIES, compare_records, compare_runs
from ncollapse.compare.numbers import show_estimate
from ncollapse.compare.seeds import Difference, estimate
from ncollapse.compare.variants import group_runs
from ncollapse.report import make_report
from ncollapse.report.encoding import limit_breaks
from ncollapse.report.export import escape_latex, export_table, format_latex
from ncollapse.report.html import render
from ncollapse.report.layout import name_folder
from ncollapse.report.published import find_published
from ncollapse.report.run_tables import tabulate_classes
from ncollapse.report.tables import Cell, Table, difference_cell, tabulate_summary
from ncollapse.report.terminal import print_comparison
from ncollapse.runs.record import read_runs
from reference.runs import write_comparison, write_run


def test_summary_holds_measured_predicted_and_deviation(tmp_path):
    write_comparison(tmp_path, seeds=3)
    records = read_runs(tmp_path)
    findings = compare_runs(records)
    anchors = {f.variant.label: "#x" for f in findings}
    (table,) = tabulate_summary(findings, {}, anchors)
    row = next(r for r in table.rows if r[0].text == "positive score")
    values = [r.summary["train"]["positive_score"]["mean"] for r in records if r.loss == "bce"]
    cell = row[2]
    assert cell.numbers["mean"] == pytest.approx(np.mean(values))
    assert cell.numbers["std"] == pytest.approx(np.std(values, ddof=1))
    assert cell.numbers["predicted"] == pytest.approx(7.4 * 1.02)
    relative = 100 * (np.mean(values) / (7.4 * 1.02) - 1)
    assert cell.lines[0].startswith("theory 7.548, ")
    assert float(cell.lines[0].split(", ")[1].removesuffix(" %").replace("−", "-")) == pytest.approx(relative, abs=0.06)
    assert cell.href == "#x"


def test_one_seed_is_said_on_the_page(tmp_path):
    write_comparison(tmp_path, seeds=1)
    report = make_report(tmp_path)
    table = next(t for t in report.tables if t.id == "summary")
    assert any("One seed per variant" in note for note in table.notes)
    assert table.rows[0][3].lines[0] == "one seed: no interval"
    assert not [f for f in report.figures if f.id == "differences"]


def test_a_page_of_one_run_speaks_of_no_mean_and_no_difference(tmp_path):
    write_run(tmp_path, {"optim.epochs": 6})
    report = make_report(tmp_path)
    tables = {table.id: table for table in report.tables}
    assert tables["summary"].method.startswith("The numbers of one seed")
    assert tables["summary"].notes == ("One seed per variant: no standard deviation and no interval can be given.",)
    assert "difference" not in tables["speed"].method


def test_bars_are_explained_where_they_are_drawn(tmp_path):
    for loss in ("ce", "bce"):
        write_run(tmp_path, {"loss.name": loss, "seed": 0, "optim.epochs": 6})
    assert "Bars are" not in render(make_report(tmp_path))
    for loss in ("ce", "bce"):
        write_run(tmp_path, {"loss.name": loss, "seed": 1, "optim.epochs": 6})
    assert "Bars are 95 % intervals of the mean over seeds." in render(make_report(tmp_path))


def test_columns_of_norms_and_biases_have_as_many_decimals(tmp_path):
    path = write_run(tmp_path, {"optim.epochs": 6}, num_classes=3)
    summary = json.loads((path / "summary.json").read_text())
    summary["train"]["weight_norms"] = [1.67, 16.0, 0.25]
    (path / "summary.json").write_text(json.dumps(summary))
    table = next(table for table in make_report(tmp_path).tables if table.id == "classes")
    column = next(i for i, cell in enumerate(table.columns) if cell.text.endswith("|w|"))
    assert [row[column].text for row in table.rows] == ["1.67", "16.00", "0.25"]


@pytest.mark.parametrize(("epochs", "said"), [(1, "1 epoch"), (3, "3 epochs")])
def test_the_subtitle_names_what_all_runs_share(tmp_path, epochs, said):
    for loss in ("ce", "bce"):
        write_run(tmp_path, {"loss.name": loss, "optim.epochs": epochs}, snapshot=False)
    title, subtitle = name_folder(group_runs(read_runs(tmp_path)), tmp_path)
    assert title == "CE and BCE on digits"
    assert said in subtitle.split(" · ")
    assert subtitle.endswith(" · 2 runs · one seed")


def test_many_variants_stand_in_rows(tmp_path):
    for decay in (0.0, 1e-3, 1e-2, 1e-1, 1.0):
        write_run(tmp_path, {"decays.bias": decay}, snapshot=False)
    report = make_report(tmp_path)
    table = next(t for t in report.tables if t.id == "summary-scores")
    assert len(table.rows) == 5
    assert [c.text for c in table.columns][1:4] == ["positive score", "negative score", "bias"]


def test_class_table_follows_summary_and_snapshot(tmp_path):
    path = write_run(tmp_path, {})
    (record,) = read_runs(tmp_path)
    snapshot = record.snapshot()
    table = tabulate_classes(group_runs([record]), {path: snapshot})
    assert len(table.rows) == 10
    biases = [row[-1].numbers["bias"] for row in table.rows]
    np.testing.assert_allclose(biases, snapshot["bias"], rtol=1e-6)
    accuracy = [row[2].numbers["accuracy"] for row in table.rows]
    assert accuracy == record.summary["test"]["class_accuracy"]
    assert [row[0].text for row in table.rows] == [str(k) for k in range(10)]
    names = [f"animal {k}" for k in range(10)]
    record.summary["test_by_class"] = {"names": names, **dict.fromkeys(("train_counts", "accuracy", "f1"), accuracy)}
    assert [row[0].text for row in tabulate_classes(group_runs([record]), {}).rows] == names


def test_a_variant_without_accuracies_of_its_classes_has_no_column(tmp_path):
    write_run(tmp_path, {"loss.name": "ce"}, snapshot=False)
    bare = write_run(tmp_path, {"loss.name": "bce"}, snapshot=False)
    summary = json.loads((bare / "summary.json").read_text())
    del summary["test"]["class_accuracy"]
    (bare / "summary.json").write_text(json.dumps(summary))
    records = read_runs(tmp_path)
    table = tabulate_classes(group_runs(records), {})
    assert [c.text for c in table.columns if "accuracy" in c.text] == ["CE: test accuracy"]
    assert tabulate_classes(group_runs([r for r in records if r.loss == "bce"]), {}) is None


def test_published_numbers_are_found_by_configuration(tmp_path):
    from ncollapse.train import recipes

    recipe = recipes.get("bce-vs-ce/setting-2", loss="bce", data="mnist", model="resnet18").override(seed=3)
    folder = write_run(tmp_path, {}, folder="run")
    (folder / "config.json").write_text(recipe.to_json())
    found = find_published(group_runs(read_runs(tmp_path)))
    assert found["BCE"]["train.positive_score"].value == pytest.approx(7.746, abs=0.06)
    (folder / "config.json").write_text(recipe.override(optim__epochs=7).to_json())
    assert find_published(group_runs(read_runs(tmp_path))) == {}


def test_csv_and_latex(tmp_path):
    rows = ((Cell("a_b"), Cell("1.2 ± 0.1", ("theory 1.3, −8 %",), numbers={"mean": 1.2, "std": math.nan})),)
    table = Table("t", "A table", "", (Cell("what"), Cell("x & y")), rows)
    export_table(table, tmp_path)
    lines = list(csv.reader((tmp_path / "t.csv").read_text().splitlines()))
    assert lines == [["what", "x & y mean", "x & y std"], ["a_b", "1.2", ""]]
    text = format_latex(table)
    assert r"a\_b & 1.2 $\pm$ 0.1 \\" in text
    assert r"{\footnotesize theory 1.3, $-$8 \%}" in text
    assert text.count(r"\\") == 3
    assert escape_latex("λb 10⁻⁴_{}") == r"$\lambda$b 10$^{-4}$\_\{\}"
    assert escape_latex('|w| < 1 > "0"') == "$|$w$|$ $<$ 1 $>$ ''0''"


def test_a_folder_without_runs_is_named(tmp_path):
    with pytest.raises(ValueError, match="no runs in"):
        make_report(tmp_path)
    with pytest.raises(FileNotFoundError):
        make_report(tmp_path / "nowhere")


def test_records_without_numbers_or_figures_are_named(tmp_path):
    write_comparison(tmp_path, seeds=1)
    path = write_run(tmp_path, {"seed": 5})
    summary = json.loads((path / "summary.json").read_text())
    summary["train"]["nc1"], summary["test"]["accuracy"] = math.nan, math.inf
    (path / "summary.json").write_text(json.dumps(summary))
    rows = (path / "history.jsonl").read_text().splitlines()
    third = json.loads(rows[2])
    third["train"]["nc1"] = math.inf
    rows[2] = json.dumps(third)
    (path / "history.jsonl").write_text("\n".join(rows))
    (path / "snapshot.safetensors").write_bytes(b"torn")
    notes = [note for note in make_report(tmp_path).notes if path.name in note]
    assert [n for n in notes if "snapshot.safetensors: " in n]
    assert [n for n in notes if "no number for test accuracy and train NC1;" in n]
    assert [n for n in notes if f"one epoch has no NC1 (first {third['epoch']})" in n]


def test_lines_of_cells_break_between_statements_alone():
    assert limit_breaks("theory 3.771, +0.18 %").split(" ") == ["theory\xa03.771,", "+0.18\xa0%"]
    assert limit_breaks("−0.7 [−3.5, +2.2]").split(" ") == ["−0.7", "[−3.5,\xa0+2.2]"]
    assert limit_breaks("BCE · λb 0.5 · b₀ 10, n = 1").split(" ") == [
        "BCE\xa0·",
        "λb\xa00.5\xa0·",
        "b₀\xa010,",
        "n\xa0=\xa01",
    ]


def test_the_gap_of_another_objective_is_neither_better_nor_worse(tmp_path):
    write_comparison(tmp_path, seeds=3)
    findings = compare_runs(read_runs(tmp_path))
    (table,) = tabulate_summary(findings, {}, {f.variant.label: "#x" for f in findings})
    texts = {row[0].text.strip(" \u00a0↑↓"): " ".join(row[3].lines) for row in table.rows}
    assert "better" in texts["train NC1"] or "worse" in texts["train NC1"]
    assert not re.search("better|worse", texts["certified gap"])


@pytest.mark.parametrize(
    ("key", "low", "word"),
    [
        ("test.accuracy", 0.05, "better"),
        ("test.accuracy", -0.15, "worse"),
        ("train.nc1", 0.05, "worse"),
        ("train.nc1", -0.15, "better"),
        ("train.nc1", -0.05, ""),
        ("train.bias", 0.05, ""),
    ],
)
def test_better_and_worse_follow_the_sign_and_the_interval(tmp_path, key, low, word):
    write_comparison(tmp_path, seeds=2)
    _, bce = compare_runs(read_runs(tmp_path))
    effect = {key: Difference(low + 0.05, low, low + 0.1, 0.01, 3)}
    found = replace(bce, differences=effect, ratios=effect)
    quantity = next(q for q in QUANTITIES if q.key == key)
    assert difference_cell(found, quantity).lines[0].partition("]")[2].strip() == word


def test_a_copied_run_is_noted_and_counted_once(tmp_path):
    write_comparison(tmp_path / "a", seeds=2, **{"optim.epochs": 3})
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    report = make_report(tmp_path)
    name = report.records[0].run_id
    assert f"Run {name} is there twice (a/{name}, b/{name}); it is counted once." in report.notes
    assert len(report.notes) == len(report.records) == 4
    summary, runs = (next(t for t in report.tables if t.id == id) for id in ("summary", "runs"))
    assert [c.text for c in summary.columns[1:3]] == ["CE, n = 2", "BCE, n = 2"]
    assert len(runs.rows) == 4
    assert name in render(report)


def test_speeds_without_a_record_are_dashes_with_a_note(tmp_path):
    write_run(tmp_path, {"loss.name": "bce", "optim.epochs": 3})
    path = write_run(tmp_path, {"loss.name": "ce", "optim.epochs": 3})
    (path / "history.jsonl").write_text('{"epoch": 1, "train": {"accuracy": 0.5}}')
    speed = next(t for t in make_report(tmp_path).tables if t.id == "speed")
    ce, bce = ([cell.text for cell in row] for row in speed.rows)
    assert ce[1:4] == ["never", "–", "–"]
    assert bce[2] == "never" or float(bce[2])
    assert speed.notes == ("CE: uniform accuracy, NC1, NC2 and NC3 over the epochs not recorded, or not by all runs.",)
    assert "over epochs 1 to 3 (" in speed.method


def test_different_epochs_of_measuring_are_noted(tmp_path):
    write_run(tmp_path, {"loss.name": "ce", "measure_every": 5, "optim.epochs": 5})
    write_run(tmp_path, {"loss.name": "bce", "measure_every": 1, "optim.epochs": 5})
    speed = next(t for t in make_report(tmp_path).tables if t.id == "speed")
    assert speed.notes[0].startswith("Measured at different epochs (CE every 5, BCE every 1)")


def test_tables_announce_theory_only_where_they_hold_it(tmp_path):
    for decay in (0.0, 1e-3, 1e-2, 1e-1, 1.0):
        write_run(tmp_path, {"decays.bias": decay, "optim.epochs": 2}, snapshot=False)
    methods = {t.id: t.method for t in make_report(tmp_path).tables}
    assert "theory" in methods["summary-scores"]
    assert "theory" not in methods["summary"] + methods["summary-collapse"]


def test_long_tables_say_how_many_rows_they_have(tmp_path):
    for seed in range(25):
        write_run(tmp_path, {"seed": seed, "optim.epochs": 1}, snapshot=False)
    assert "25 rows; scroll inside the table" in render(make_report(tmp_path))
    shutil.rmtree(next(tmp_path.iterdir()))
    assert "scroll inside the table" not in render(make_report(tmp_path))


def test_the_terminal_rounds_no_standard_deviation_to_zero(tmp_path, capsys):
    from rich.console import Console

    write_comparison(tmp_path, seeds=2, **{"optim.epochs": 3})
    found = compare_records(read_runs(tmp_path))
    ce, bce = found.findings
    speeds = {**bce.speeds, "log_nc1": estimate([-0.13, -0.1304]), "log_nc2": estimate([-0.5, -0.52])}
    print_comparison(Console(), replace(found, findings=(ce, replace(bce, speeds=speeds))))
    text = capsys.readouterr().out
    assert "−0.1302 ± 0.0003" in text
    assert "−0.51 ± 0.01" in text


def test_the_terminal_shows_no_interval_without_width(tmp_path, capsys):
    from rich.console import Console

    write_comparison(tmp_path, seeds=2, **{"optim.epochs": 3})
    found = compare_records(read_runs(tmp_path))
    ce, bce = found.findings
    same = Difference(0.2786, math.nan, math.nan, math.nan, 2)
    altered = replace(bce, differences=dict.fromkeys(bce.differences, same))
    print_comparison(Console(), replace(found, findings=(ce, altered)))
    text = capsys.readouterr().out
    assert "+0.279 in both seeds" in text
    assert "+0.2786 ± 0" not in text
    assert "early: epochs 1 to 3." in " ".join(text.split())


@pytest.mark.parametrize("losses", [("ce", "bce"), ("ce", "bce", "focal", "ls", "mse")])
@pytest.mark.parametrize("width", [80, 100])
def test_the_terminal_says_the_verdict_first_and_splits_no_number(tmp_path, capsys, losses, width):
    from rich.console import Console

    write_comparison(tmp_path, losses, seeds=2, **{"optim.epochs": 3})
    found = compare_records(read_runs(tmp_path))
    print_comparison(Console(width=width, force_terminal=True, color_system=None, markup=False), found)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert text.startswith(found.verdict)
    body = "\n".join(lines)
    for finding in found.findings:
        for quantity in QUANTITIES:
            written = show_estimate(finding.estimates[quantity.key], quantity.percent)
            assert written in body, f"{quantity.title} of {finding.variant.label} is not in one piece"


def test_losses_of_one_class_name_are_told_apart(tmp_path):
    for loss in ("mine.losses:Hinge", "theirs:Hinge", "ce"):
        write_run(tmp_path, {"loss.name": loss, "optim.epochs": 2})
    report = make_report(tmp_path)
    assert report.title == "CE, mine.losses:Hinge and theirs:Hinge on digits"
    assert [v.label for v in report.comparison.variants] == ["CE", "mine.losses:Hinge", "theirs:Hinge"]
    assert len(report.anchors) == 6, "each variant and each run has its own"


@pytest.mark.parametrize(("status", "heading"), [("running", "Under way"), ("interrupted", "Interrupted")])
def test_runs_that_have_not_finished_are_called_what_they_are(tmp_path, status, heading):
    write_run(tmp_path, {"seed": 0, "optim.epochs": 4})
    write_run(tmp_path, {"seed": 1, "optim.epochs": 4}, status="interrupted", epochs_done=2)
    report = make_report(tmp_path)
    records = tuple(replace(r, status=status) if r.status == "interrupted" else r for r in report.records)
    assert re.findall(r"<h2>(Under way|Interrupted)</h2>", render(replace(report, records=records))) == [heading]

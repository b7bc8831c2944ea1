"""ncollapse reproduce, from the command line to the page."""

import json
import sys

import numpy as np
import pytest

from ncollapse import cli
from ncollapse.papers.archive import unpack
from ncollapse.papers.catalogue import CATALOGUE
from ncollapse.papers.experiment import Experiment, Point
from ncollapse.runs.record import read_runs
from ncollapse.sweep.sweep import take_share
from ncollapse.train import recipes


def grid():
    """Two losses on a few digits."""
    base = recipes.get("digits").override(model__name="mlp-16", data__samples_per_class=10, optim__epochs=2)
    return [Point({"data": "digits", "loss": name}, base.override(loss__name=name)) for name in ("ce", "bce")]


@pytest.fixture
def toy(monkeypatch):
    experiment = Experiment("ncollapse/toy", "a toy", grid, finals=("train.bias", "train.weight_energy"))
    monkeypatch.setitem(CATALOGUE, "ncollapse/toy", experiment)
    return "ncollapse/toy"


def call(*words):
    return cli.main(["reproduce", *map(str, words)])


def test_runs_the_missing_and_writes_the_page(toy, tmp_path, capsys):
    out = tmp_path / "runs"
    common = (toy, "--out", out, "--engine", "packed", "--device", "cpu")
    assert call(*common, "--only", "loss=bce") == 0
    assert len(read_runs(out)) == 1
    archive = tmp_path / "records.tar.gz"
    assert call(*common, "--records", archive) == 0
    captured = capsys.readouterr()
    assert "skipped (finished)" in captured.err
    assert "epoch 2/2" in captured.err
    assert "runs: 2 finished" in captured.out
    assert "digits, bce: 1 seed, 2 epochs\n  b " in captured.out
    text = (out / "ncollapse-toy.md").read_text()
    assert "BCE | b" in text
    assert (out / "ncollapse-toy.html").read_text().startswith("<!doctype html>")
    unpack(archive, tmp_path / "kept")
    assert {r.status for r in read_runs(tmp_path / "kept")} == {"finished"}


def test_a_run_that_was_measured_at_other_epochs_is_not_run_again(toy, tmp_path, capsys):
    common = (toy, "--out", tmp_path, "--engine", "packed", "--device", "cpu", "--only", "loss=ce", "--epochs", 3)
    assert call(*common, "--measure-every", 3) == 0
    assert call(*common) == 0
    (record,) = read_runs(tmp_path)
    assert "1 finished" in capsys.readouterr().out
    assert len(record.history) == 2
    assert "CE | b" in (tmp_path / "ncollapse-toy.md").read_text()
    assert call(*common, "--dry-run") == 0
    assert "1 run, 1 finished" in capsys.readouterr().out
    assert call(*common, "--measure-every", 1) == 0, "asked for, it is measured as asked"
    assert sorted(len(r.history) for r in read_runs(tmp_path)) == [2, 3]


def test_a_run_in_another_precision_is_one_of_the_point_all_the_same(toy, tmp_path, capsys):
    common = (toy, "--out", tmp_path, "--engine", "packed", "--device", "cpu", "--only", "loss=ce")
    assert call(*common, "--precision", "bf16") == 0
    (record,) = read_runs(tmp_path)
    assert record.get("precision") == "bf16"
    assert "CE | b" in (tmp_path / "ncollapse-toy.md").read_text()
    assert call(*common, "--dry-run") == 0
    assert "1 run, 0 finished" in capsys.readouterr().out, "the precision of the recipe is another run"


def test_seeds_of_one_id_are_named_like_its_other_keys(toy, tmp_path, capsys):
    words = (f"{toy}:loss=ce:seed=1,3", f"{toy}:loss=bce", "--out", tmp_path, "--dry-run", "--json")
    assert call(*words) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [(row["loss"], row.get("seed")) for row in runs] == [("ce", 1), ("ce", 3), ("bce", None)]
    assert call(f"{toy}:seed=one", "--out", tmp_path, "--dry-run") == 2
    assert "expected seed = a number from 0 on, got seed=one" in capsys.readouterr().err


def test_an_experiment_named_twice_has_one_page(toy, tmp_path, capsys):
    words = (f"{toy}@1:loss=ce", f"{toy}@3:loss=bce", f"{toy}@3:loss=bce", "--out", tmp_path)
    assert call(*words, "--engine", "packed", "--device", "cpu", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["runs"]) == 2
    (experiment,) = result["experiments"]
    assert [line["epochs"] for line in experiment["lines"]] == [[1], [1], [3], [3]]
    text = (tmp_path / "ncollapse-toy.md").read_text()
    assert "CE | b" in text
    assert "BCE | b" in text


def test_records_are_kept_when_the_page_cannot_be_written(toy, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ncollapse.report.reproduction", None)
    kept = tmp_path / "kept"
    common = (f"{toy}@1:loss=ce", "--out", tmp_path / "runs", "--engine", "packed", "--device", "cpu")
    assert call(*common, "--records", kept) != 0
    assert "reproduction" in capsys.readouterr().err
    assert [record.status for record in read_runs(kept)] == ["finished"]


def test_prints_one_json_object(toy, tmp_path, capsys):
    words = (toy, "--out", tmp_path, "--engine", "packed", "--device", "cpu", "--seeds", 2, "--epochs", 1, "--json")
    assert call(*words) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["runs"]) == 4
    assert set(result["runs"].values()) == {"finished"}
    (experiment,) = result["experiments"]
    energies = [line for line in experiment["lines"] if line["field"] == "train.weight_energy"]
    assert [len(line["values"]) for line in energies] == [2, 2]
    assert [line["epochs"] for line in energies] == [[1], [1]]


def test_a_time_limit_exits_1_and_the_same_command_continues(toy, tmp_path, capsys):
    words = (toy, "--out", tmp_path, "--engine", "packed", "--device", "cpu", "--only", "loss=ce", "--epochs", "60")
    assert call(*words, "--time-limit", "0.2") == 1
    assert "1 interrupted" in capsys.readouterr().out
    assert call(*words) == 0


def test_a_share_runs_its_part(toy, tmp_path):
    assert call(toy, "--out", tmp_path, "--engine", "packed", "--device", "cpu", "--index", "2/2", "--epochs", "1") == 0
    (record,) = read_runs(tmp_path)
    assert record.loss == "bce"
    assert call(toy, "--out", tmp_path, "--engine", "packed", "--device", "cpu", "--index", "1/2", "--epochs", "1") == 0
    page = (tmp_path / "ncollapse-toy.md").read_text()
    assert "BCE | b" in page, "the page of the last share has all of them"
    assert "1 of 2" in page, "epochs"


def test_finished_runs_need_no_data(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    file = tmp_path / "mine.npz"
    np.savez(file, images=rng.normal(size=(40, 6)), labels=np.arange(40) % 2)
    recipe = recipes.get("digits").override(data__name=f"npz:{file}", model__name="mlp-16", optim__epochs=1)
    points = [Point({"seed": seed}, recipe.override(seed=seed)) for seed in (0, 1)]
    monkeypatch.setitem(CATALOGUE, "ncollapse/mine", Experiment("ncollapse/mine", "mine", lambda: points))
    words = ("ncollapse/mine", "--out", tmp_path / "runs", "--engine", "packed", "--device", "cpu")
    assert call(*words, "--only", "seed=0") == 0
    file.unlink()
    capsys.readouterr()
    assert call(*words, "--only", "seed=0") == 0
    assert call(*words) == 2
    assert "mine.npz not found in" in capsys.readouterr().err
    assert call(*words, "--index", "1/2") == 0, "the share that is finished"


def test_a_folder_without_its_files_stops_everything_at_once(tmp_path, capsys):
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    (folder / "train-images-idx3-ubyte").touch()
    words = ("bce-vs-ce/table-6", "bce-vs-ce/table-7", "--data-root", tmp_path, "--out", tmp_path / "runs")
    assert call(*words) == 2
    error = capsys.readouterr().err
    assert "train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz not found in" in error
    assert "cifar-10-batches-py (see ncollapse data list)" in error
    assert not (tmp_path / "runs").exists()


def test_the_plan_runs_nothing(tmp_path, capsys):
    assert call("bce-vs-ce/table-11", "--only", "batch_size=64", "--out", tmp_path, "--dry-run") == 0
    out = capsys.readouterr().out
    assert "4 runs, 0 finished; about" in out
    assert out.count(" new") == 4
    assert not list(tmp_path.iterdir())


def plan(capsys, *words):
    assert call(*words, "--dry-run", "--json") == 0
    return json.loads(capsys.readouterr().out)["runs"]


def test_filters_of_an_id_go_before_the_common_ones(capsys):
    words = ("bce-vs-ce/table-9:loss=bce:bias_init=0,10", "bce-vs-ce/table-10:bias-decay=5e-1", "--only")
    rows = plan(capsys, *words, "loss=ce", "optimizer=AdamW")
    assert [(r["id"][-2:], r["loss"], r.get("bias_init"), r.get("bias_decay")) for r in rows] == [
        ("-9", "bce", 0, None),
        ("-9", "bce", 10, None),
        ("10", "ce", None, 0.5),
    ]


def test_filters_given_twice_all_hold(capsys):
    rows = plan(capsys, "bce-vs-ce/table-6", "--only", "model=resnet18", "--only", "optimizer=sgd")
    assert rows == plan(capsys, "bce-vs-ce/table-6", "--only=model=resnet18", "--only", "optimizer=sgd")
    assert [(row["model"], row["optimizer"], row["epochs"]) for row in rows] == [("resnet18", "sgd", 100)] * 2


def test_a_file_is_no_folder_for_runs(tmp_path, capsys):
    (tmp_path / "taken").write_text("")
    assert call("bce-vs-ce/table-6", "--out", tmp_path / "taken") == 2
    assert "taken: is a file" in capsys.readouterr().err


def test_epochs_of_an_id_go_before_the_common_ones(capsys):
    def runs(*words):
        return [row["run"] for row in plan(capsys, *words, "--only", "loss=ce", "optimizer=adamw")]

    short, long = "bce-vs-ce/table-11@40:batch_size=64", "bce-vs-ce/table-11:batch_size=64"
    assert runs(short, long) == [*runs(long, "--epochs", "40"), *runs(long)]
    assert runs(short, "--epochs", "10") == runs(long, "--epochs", "40") != runs(long)
    for word, said in (
        ("@:loss=ce", "after @, as in bce-vs-ce/table-11@40, got 'bce-vs-ce/table-11@'"),
        ("@4.5", "after @, as in bce-vs-ce/table-11@40, got 'bce-vs-ce/table-11@4.5'"),
        ("@0", "epochs: expected at least 1, got 0"),
    ):
        assert call(f"bce-vs-ce/table-11{word}", "--dry-run") == 2
        assert said in capsys.readouterr().err


def test_a_run_of_two_entries_is_planned_and_shared_once(capsys):
    words = ("bce-vs-ce/table-6", "bce-vs-ce/figure-4", "bce-vs-ce/table-11:batch_size=128")
    everything = plan(capsys, *words)
    assert len(everything) == 12
    assert {row["id"] for row in everything} == {"bce-vs-ce/table-6"}
    assert [row["run"] for row in everything][:4] == [row["run"] for row in plan(capsys, *words[:1])][:4]
    for i in range(1, 4):
        both = ("bce-vs-ce/table-6", "bce-vs-ce/table-11")
        recipes = [point.recipe for name in both for point in CATALOGUE[name].grid()]
        share = take_share(list({recipe.run_id: recipe for recipe in recipes}), (i, 3))
        assert [row["run"] for row in plan(capsys, *both, "--index", f"{i}/3")] == share, "what the sweep would run"
    shares = [plan(capsys, *words, "--index", f"{i}/5") for i in range(1, 6)]
    assert sorted(r["run"] for share in shares for r in share) == sorted(r["run"] for r in everything)


def test_the_list_is_plain_and_complete(tmp_path, capsys):
    assert call("--list", "--out", tmp_path, "--data-root", tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines[1 : len(CATALOGUE) + 1]} == set(CATALOGUE)
    row = next(line for line in lines if line.startswith("bce-vs-ce/table-8 "))
    assert row.split()[:3] == ["bce-vs-ce/table-8", "12", "36"]
    assert " ".join(row.split()).endswith("cifar100 partly 4/12 scores, biases and accuracies on CIFAR100")
    assert call("--list", "--json", "--out", tmp_path, "--data-root", tmp_path) == 0
    assert len(json.loads(capsys.readouterr().out)["experiments"]) == len(CATALOGUE)


def test_the_list_knows_the_kept_records_from_anywhere(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("bce-vs-ce/table-6", "bce-vs-ce/table-3", "--list", "--json", "--data-root", tmp_path) == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)["experiments"]}
    assert rows["bce-vs-ce/table-6"]["state"].startswith(("partly ", "done here"))
    assert rows["bce-vs-ce/table-3"]["state"] == "data missing"
    assert rows["bce-vs-ce/table-3"]["data"] == ["imagenet"]


def test_a_paper_lists_its_entries(tmp_path, capsys):
    assert call("imbalanced-relu", "bce-vs-ce/vit", "imbalanced-relu/figure-2", "--list", "--json") == 0
    found = [row["id"] for row in json.loads(capsys.readouterr().out)["experiments"]]
    assert found == [*(f"imbalanced-relu/figure-{i}" for i in (1, 2, 3)), "bce-vs-ce/vit"]


def test_the_list_counts_the_runs_that_fit_the_filters(tmp_path, capsys):
    assert call("bce-vs-ce", "--list", "--json", "--only", "model=resnet50", "loss=ce", "--out", tmp_path) == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)["experiments"]}
    assert "bce-vs-ce/vit" not in rows
    assert "bce-vs-ce/table-9" not in rows, "of resnet18 alone"
    whole = [point for point in CATALOGUE["bce-vs-ce/table-7"].grid() if point.keys["model"] == "resnet50"]
    assert rows["bce-vs-ce/table-7"]["runs"] == sum(point.keys["loss"] == "ce" for point in whole) > 0
    assert call("--list", "--only", "model=nope") == 2
    assert "only: expected filters that a listed run fits, got model=nope" in capsys.readouterr().err


def test_the_plan_says_that_failed_runs_wait_for_retry(tmp_path, capsys):
    recipe = CATALOGUE["mse-landscape/figure-7"].grid()[0].recipe
    folder = tmp_path / recipe.run_id
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(recipe.to_dict()))
    summary = {"status": "failed", "run_id": recipe.run_id, "reason": "no memory", "traceback": "x"}
    (folder / "summary.json").write_text(json.dumps(summary))
    minutes = []
    for words in ([], ["--retry"]):
        assert call("mse-landscape/figure-7", "--out", tmp_path, "--dry-run", *words) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert ("1 failed (--retry runs them again)" in last) is (not words)
        minutes.append(float(last.split("about ")[1].split()[0]))
    assert minutes[1] == pytest.approx(2 * minutes[0], rel=0.05)


def test_the_list_fits_80_columns_on_a_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    assert call("--list", "--data-root", tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "experiment: expected ids"),
        (["bce-vs-ce/table-66"], "did you mean bce-vs-ce/table-6 or "),
        (["bce-vs-ce/table-6:model=vgg"], "model = resnet18, resnet50, densenet121"),
        (["bce-vs-ce/table-6:model"], "only: expected KEY=VALUE, such as model=resnet18, got 'model'"),
        (["bce-vs-ce/figure-3:bias_init=0", "--only", "bias_decay=0.5"], "no run of bce-vs-ce/figure-3 has all"),
        (["bce-vs-ce/table-6", "--index", "0/3", "--dry-run"], "got 0/3"),
        (["bce-vs-ce/table-6", "--index", "4/3", "--dry-run"], "got 4/3"),
        (
            ["bce-vs-ce/table-6", "nope/table-1", "--list"],
            "experiment: expected an id that --list prints, got 'nope/table-1'",
        ),
        (["bce-vs-ce/table-6", "--only", "model=vgg"], "model = resnet18, resnet50, densenet121"),
        (["bce-vs-ce/table-6", "--index", "3"], "index: expected i/n"),
        (["bce-vs-ce/table-6", "--data-root", "/nowhere"], "its files go into /nowhere/MNIST/raw"),
        (["mse-landscape/figure-2", "--time-limit", "-1"], "time_limit: expected"),
        (["mse-landscape/figure-2", "--jobs", "0"], "jobs: expected"),
        (["bce-vs-ce/table-6", "--seeds", "0"], "seeds: expected at least 1, got 0"),
        (["bce-vs-ce/table-6", "--only", "seed=x"], "only: expected seed = a number from 0 on, got seed=x"),
        (["bce-vs-ce/table-6", "--only", "modell=resnet18"], "only: expected one of the keys data, loss, model"),
        (["bce-vs-ce/table-6@x"], "experiment: expected a number of epochs after @, as in bce-vs-ce/table-6@40"),
        (["table-6"], "got 'table-6'; did you mean bce-vs-ce/table-6?"),
        (["all-losses"], "got 'all-losses', which is a paper: --list all-losses prints its ids"),
        (["bce-vs-ce/table-6", "--epochs", "0"], "epochs: expected at least 1, got 0"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(words, message, capsys, tmp_path):
    assert call(*words, "--out", tmp_path / "runs") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.glob("runs/*")), "nothing is left that would have to be retried"


def test_the_computed_figures_need_no_runs(tmp_path, capsys):
    assert call("mse-landscape/figure-2", "--out", tmp_path) == 0
    text = (tmp_path / "mse-landscape-figure-2.md").read_text()
    assert "**reproduced**" in text
    assert "mse-landscape/figure-2: reproduced (computed" in capsys.readouterr().out
    assert (tmp_path / "mse-landscape-figure-2.html").stat().st_size > 10_000

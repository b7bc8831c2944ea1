"""`ncollapse train`: recipe first, options after, one plain line for what is wrong."""

import json
from pathlib import Path

import pytest

from ncollapse.cli import main
from ncollapse.commands.train import parse
from ncollapse.runs.record import read_runs
from ncollapse.train import recipes, run


def test_trains_resumes_and_says_when_there_is_nothing_to_do(tmp_path, capsys):
    arguments = [
        "train",
        "digits",
        "--loss.name",
        "ce",
        "--optim.epochs",
        "2",
        "--device",
        "cpu",
        "--out",
        str(tmp_path),
    ]
    assert main([*arguments, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    recipe = recipes.get("digits", loss="ce").override(optim__epochs=2)
    assert summary["run_id"] == recipe.run_id
    assert summary["status"] == "finished"
    assert (tmp_path / recipe.run_id / "summary.json").is_file()
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "nothing was trained" in out
    assert "positive_score" in out
    (tmp_path / recipe.run_id / "summary.json").unlink()
    assert main(arguments) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*arguments, "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["train"] == summary["train"]


def test_a_loss_with_parameters_in_its_name(tmp_path, capsys):
    """Its recipe already has them when the option is applied."""
    arguments = ["train", "digits", "--optim.epochs", "1", "--device", "cpu", "--out", str(tmp_path), "--json"]
    assert main([*arguments, "--loss.name", "focal(gamma=2)"]) == 0
    named = json.loads(capsys.readouterr().out)["run_id"]
    assert main([*arguments, "--loss.name", "focal", "--loss.gamma", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["run_id"] == named
    assert main([*arguments, "--loss.name", "focal(gamma=2)", "--loss.gamma", "3"]) == 2
    assert "loss.gamma: expected none beside focal(gamma=2), got 3.0" in capsys.readouterr().err


def test_recipe_files(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text("seed = 4\n[optim]\nepochs = 1\nbatch_size = 128\n[model]\nname = 'mlp-small'\n")
    out = str(tmp_path / "runs")
    assert main(["train", str(path), "--optim.lr", "0.05", "--device", "cpu", "--out", out, "--json"]) == 0
    run_id = json.loads(capsys.readouterr().out)["run_id"]
    config = json.loads((tmp_path / "runs" / run_id / "config.json").read_text())
    assert (config["seed"], config["optim"]["lr"], config["optim"]["batch_size"]) == (4, 0.05, 128)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["digitss", "--out", "x"], ("digitss", "bce-vs-ce/setting-1")),
        (["nowhere.toml", "--out", "x"], ("nowhere.toml",)),
        (["digits", "--out", "x", "--device", "tpu9"], ("tpu9",)),
        (["digits", "--out", "x", "--optim.lr", "-1"], ("optim.lr", "-1.0", "> 0")),
        (["digits", "--out", "x", "--loss.name", "cee"], ("loss.name", "cee", "bce")),
        (["digits", "--out", "x", "--loss.gamma", "2"], ("gamma", "bce")),
        (["digits", "--out", "x", "--data.name", "cifar11"], ("data.name", "cifar11", "cifar10")),
        (["digits", "--out", "x", "--augment.mixup", "-1"], ("augment.mixup", "-1")),
        (["digits", "--out", "x", "--select", "best-validation"], ("data.validation", "best-validation")),
        (["digits", "--out", "x", "--data.name", "mnist", "--device", "cpu"], ("NCOLLAPSE_DATA", "--data-root")),
        (["bce-vs-ce/setting-1", "--out", "x", "--device", "cpu", "--data-root", "/no/such/root"], ("/no/such/root",)),
        (["--out", "x", "digits"], ("RECIPE: expected it first", "train digits --out ...", "got --out")),
        (["digits", "--out", "file"], ("--out file: is a file, not a folder",)),
        (["digits", "--out", "x", "--model.name", "resnet19", "--device", "cpu"], ("resnet19", "resnet18")),
        ([], ("usage", "digits")),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NCOLLAPSE_DATA", raising=False)
    (tmp_path / "file").write_text("")
    assert main(["train", *arguments]) == 2
    assert not (tmp_path / "x").exists()
    error = capsys.readouterr().err
    assert all(word in error for word in words)
    assert "Traceback" not in error
    assert error.count("\n") == 1 or not arguments


@pytest.mark.parametrize(
    "form", [["--data.name", "mnist", "--loss.name", "ce"], ["--data.name=mnist", "--loss.name=ce"]]
)
def test_a_choice_brings_its_companions_and_options_win(form):
    _, recipe = parse(["bce-vs-ce/setting-4", *form, "--optim.epochs", "3", "--out", "x"])
    assert recipe == recipes.get("bce-vs-ce/setting-4", loss="ce", data="mnist").override(optim__epochs=3)
    assert (recipe.data.image_size, recipe.data.channels, recipe.model.bias_init) == (32, 3, 0.0)
    _, recipe = parse(
        ["bce-vs-ce/setting-4", *form, "--model.bias-init", "theory", "--data.image-size", "28", "--out", "x"]
    )
    assert (recipe.data.image_size, recipe.model.bias_init) == (28, "theory")
    _, recipe = parse(
        ["imbalanced-relu/mlp-1024", "--loss.name", "bce", "--data.per-class-counts", "1", "2", "--out", "x"]
    )
    assert (recipe.loss.name, recipe.data.per_class_counts) == ("bce", (1, 2))


def test_interrupted_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("ncollapse.commands.train.run", interrupt)
    assert main(["train", "digits", "--out", str(tmp_path)]) == 130
    assert "--resume" in capsys.readouterr().err


def test_tracker_writes_beside_the_run(tmp_path, capsys):
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    options = ["--optim.epochs", "1", "--device", "cpu", "--tracker", "tensorboard", "--json", "--out", str(tmp_path)]
    assert main(["train", "digits", *options]) == 0
    run_id = json.loads(capsys.readouterr().out)["run_id"]
    assert list((tmp_path / "tensorboard" / run_id).glob("events*"))
    assert [record.run_id for record in read_runs(tmp_path)] == [run_id]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model.head", "etf", "--model.feature-dim", "4"], "dim: expected at least num_classes - 1 = 9"),
        (["--model.weights", "nowhere.pt"], "nowhere.pt"),
        (["--data.per-class-counts", "5", "5"], "data.per_class_counts = (5, 5)"),
        (["--data.name", "npz:mine.npz"], "mine.npz"),
    ],
)
def test_a_recipe_that_turns_out_impossible_leaves_nothing(options, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.npz").write_text("not yet")
    arguments = ["train", "digits", "--optim.epochs", "1", "--device", "cpu", *options]
    assert main([*arguments, "--out", "deep/runs"]) == 2
    assert said in capsys.readouterr().err
    assert not Path("deep").exists()
    Path("deep").mkdir()
    assert main([*arguments, "--out", "deep/runs"]) == 2
    assert list(Path("deep").iterdir()) == []


def test_a_run_that_failed_before_training_may_start_again(tmp_path, monkeypatch):
    def fail(*args):
        raise RuntimeError("no memory")

    recipe = recipes.get("digits").override(optim__epochs=1)
    monkeypatch.setattr("ncollapse.train.loop.prepare", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        run(recipe, tmp_path, device="cpu")
    assert [record.status for record in read_runs(tmp_path)] == ["failed"]
    monkeypatch.undo()
    assert run(recipe, tmp_path, device="cpu", resume=False)["status"] == "finished"


def test_a_refusal_takes_away_no_record_of_before(tmp_path, monkeypatch):
    recipe = recipes.get("digits").override(optim__epochs=1)
    for error in (RuntimeError("no memory"), ValueError("not possible")):
        monkeypatch.setattr("ncollapse.train.loop.prepare", lambda *args, error=error: (_ for _ in ()).throw(error))
        with pytest.raises(type(error)):
            run(recipe, tmp_path, device="cpu")
    (record,) = read_runs(tmp_path)
    assert record.summary["reason"] == "ValueError: not possible"


@pytest.mark.parametrize("options", [["--optim.lr", "fast"], ["--optim.lrr", "1"], ["--select", "worst"], []])
def test_usage_errors_are_the_parsers(options, capsys, tmp_path):
    out = [] if not options else ["--out", str(tmp_path)]
    with pytest.raises(SystemExit) as caught:
        main(["train", "digits", *options, *out])
    assert caught.value.code == 2
    assert capsys.readouterr().err


def test_help_lists_recipes_and_options(capsys):
    assert main(["train", "--help"]) == 0
    assert "imbalanced-relu/mlp-1024" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        main(["train", "digits", "--help"])
    assert caught.value.code == 0
    assert "--optim.lr" in capsys.readouterr().out


@pytest.mark.parametrize(
    "verb", ["measure", "predict", "certify", "compare", "train digits", "reproduce", "report", "data"]
)
def test_help_has_plain_placeholders(verb, capsys):
    with pytest.raises(SystemExit) as left:
        main([*verb.split(), "--help"])
    assert left.value.code == 0
    printed = capsys.readouterr().out
    assert "{None}" not in printed
    assert "FLOAT" in printed or "PATH" in printed


@pytest.mark.parametrize(
    ("verb", "text"),
    [
        ("measure", "The classifier's dotted name, where the network has several."),
        ("predict", "The exponent of the focal loss (default 3)."),
        ("compare", "or fields such as crop=4 flip rotation=15."),
        ("reproduce", "with what it needs and its state; with --only its runs that fit."),
        ("train digits", "Say what would be trained and what it costs, and stop."),
    ],
)
def test_help_keeps_sentences_whole_and_names_no_empty_default(verb, text, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100" if verb == "train digits" else "400")  # wider, its panels stand side by side
    with pytest.raises(SystemExit):
        main([*verb.split(), "--help"])
    printed = capsys.readouterr().out
    assert text in printed
    own = printed.partition("--name STR")[0]  # below are the fields of a recipe, where "none" is a value
    assert not [empty for empty in ("none", "", "False") if f"(default: {empty})" in own]


def test_help_explains_every_field(capsys):
    with pytest.raises(SystemExit):
        main(["train", "digits", "--help"])
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for text in ("The learning rate before any schedule.", "The momentum of SGD.", "Mirror left to right with"):
        assert text in printed
    assert "--lr FLOAT, --optim.lr FLOAT" in printed


def test_short_names_change_the_recipe():
    words = ["--lr", "0.3", "--model", "mlp-77", "--batch-size", "16", "--weight-decay", "0.1", "--epochs", "30"]
    _, recipe = parse(["bce-vs-ce/setting-1", "--out", "x", *words, "--augment", "standard", "rotation=5"])
    assert (recipe.optim.lr, recipe.model.name, recipe.optim.batch_size) == (0.3, "mlp-77", 16)
    assert (recipe.optim.weight_decay, recipe.optim.epochs, recipe.schedule.milestones) == (0.1, 30, (9, 18, 24))
    assert (recipe.augment.crop, recipe.augment.rotation) == (4, 5.0)
    _, recipe = parse(["bce-vs-ce/setting-1", "--out", "x", "--optim.epochs", "30", "--loss.gamma", "none"])
    assert (recipe.optim.epochs, recipe.schedule.milestones) == (30, (30, 60, 80))


def test_a_dry_run_of_train_starts_nothing(tmp_path, capsys):
    assert main(["train", "digits", "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "recipe: digits"
    assert lines[3].startswith("runs: 1, 0 finished; about ")
    assert lines[-1] == recipes.get("digits").run_id
    assert not (tmp_path / "out").exists()

"""`ncollapse predict` from the outside."""

import json

import pytest

import ncollapse as nc
from ncollapse.cli import main

BCE = ["predict", "bce", "--num-classes", "10", "--batch-size", "128"]
DECAYS = ["--weight-decay", "5e-4", "--feature-decay", "5e-4"]


def test_json_is_the_prediction(capsys):
    assert main([*BCE, *DECAYS, "--bias-decay", "5e-4", "--features", "relu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = nc.predict(
        "bce", num_classes=10, batch_size=128, weight_decay=5e-4, feature_decay=5e-4, bias_decay=5e-4, features="relu"
    )
    for name in (
        "phase",
        "positive_score",
        "negative_score",
        "bias",
        "weight_energy",
        "objective",
        "critical_bias_decay",
    ):
        assert found[name] == getattr(expected, name)
    assert found["sensitivity"] == expected.sensitivity()
    assert found["printed_theorem"]["weight_energy"] == pytest.approx(314.617, abs=1e-3)
    assert found["problem"]["per_class"] == 12.8


def test_json_has_no_infinities(capsys):
    assert main(["predict", "ce", "--num-classes", "3", "--per-class", "1", *DECAYS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    assert found["critical_bias_decay"] is None
    assert found["printed_theorem"] is None


def test_table_puts_the_printed_theorem_beside(capsys):
    assert main([*BCE, *DECAYS, "--bias-decay", "5e-4", "--sensitivity"]) == 0
    out = capsys.readouterr().out
    assert "saturated phase" in out
    assert "printed Theorem 3.2" in out
    row = next(line for line in out.splitlines() if line.startswith("bias "))
    assert row.split()[1:3] == ["3.57771", "4.52727"]
    assert "derivative by" in out
    assert "critical_bias_decay" in out
    assert main([*BCE, *DECAYS]) == 0
    assert "printed" not in capsys.readouterr().out


def test_class_counts(capsys):
    options = ["--class-counts", "500", "300", "4", *DECAYS, "--no-bias", "--features", "relu"]
    assert main(["predict", "ce", *options]) == 0
    out = capsys.readouterr().out
    expected = nc.predict(
        "ce", class_counts=[500, 300, 4], weight_decay=5e-4, feature_decay=5e-4, bias=False, features="relu"
    )
    assert f"{expected.class_gaps[2]:.6g}" in out
    assert f"{expected.collapse_ratio:.6g}" in out


def test_loss_parameters_reach_the_loss(capsys):
    for options, params in (
        (["focal", "--gamma", "2", "--num-classes", "100"], {"gamma": 2.0}),
        (["mse", "--kappa", "1", "--beta", "15", "--num-classes", "4"], {"kappa": 1.0, "beta": 15.0}),
        (["mse", "--alpha", "2", "--M", "3", "--num-classes", "4"], {"alpha": 2.0, "M": 3.0}),
        (["ls", "--alpha", "0.2", "--num-classes", "4"], {"alpha": 0.2}),
        (["bce", "--label-smoothing", "0.2", "--num-classes", "4"], {"label_smoothing": 0.2}),
    ):
        assert main(["predict", *options, "--per-class", "1", *DECAYS, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["problem"]["loss_params"] == params
    assert main(["predict", "focal", "--gamma", "2", "--num-classes", "100", "--per-class", "1", *DECAYS]) == 0
    assert "first-order transition: mu_lo 0.0107128, mu_c 0.0111565, mu_hi 0.0114039" in capsys.readouterr().out


def test_numerical(capsys):
    options = ["--class-counts", "5", "3", "1", *DECAYS]
    assert main(["predict", "bce", *options, "--method", "closed"]) == 2
    assert "no closed form is known for bce with unequal class counts; --method numerical" in capsys.readouterr().err
    for method in (["--method", "numerical"], []):
        assert main(["predict", "bce", *options, *method]) == 0
        printed = capsys.readouterr()
        assert "certified" in printed.out
        assert "lower_bound" in printed.out
        assert printed.err == ""


@pytest.mark.parametrize(
    ("options", "suggested"),
    [
        (["ce", "--class-counts", "5", "3", "1"], ["--features relu with --no-bias", "--method numerical"]),
        (["ce", "--class-counts", "5", "3", "1", "--no-bias"], ["--features relu", "--method numerical"]),
        (["ce", "--num-classes", "5", "--per-class", "1", "--dim", "3"], ["--method numerical"]),
    ],
)
def test_refusals_suggest_options_that_work(options, suggested, capsys):
    assert main(["predict", *options, *DECAYS, "--method", "closed"]) == 2
    error = capsys.readouterr().err
    assert "=" not in error.replace(">=", "")
    for suggestion in suggested:
        assert suggestion in error
        assert main(["predict", *options, *DECAYS, "--method", "closed", *suggestion.replace(" with", "").split()]) == 0


def test_numbers_that_are_no_thresholds_and_negative_zeros_are_not_printed(capsys):
    assert main(["predict", "mse", "--num-classes", "4", "--per-class", "2", *DECAYS, "--features", "relu"]) == 0
    rows = {line.split()[0]: line.split()[1] for line in capsys.readouterr().out.splitlines() if len(line.split()) > 1}
    assert rows["mean_component"] == "0"
    assert rows["critical_bias_decay"] == "never"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["hinge", "--num-classes", "3", "--per-class", "1", *DECAYS], "package.module:Class, got 'hinge'"),
        (["ce", "--num-classes", "1", "--per-class", "1", *DECAYS], ": --num-classes: expected"),
        (["ce", "--num-classes", "3", *DECAYS], "give --per-class, --batch-size or --class-counts"),
        (["ce", "--num-classes", "3", "--per-class", "1", "--weight-decay", "1", "--feature-decay", "0"], "infinity"),
        (
            ["bce", "--num-classes", "3", "--per-class", "1", "--weight-decay", "1e-300", "--feature-decay", "1"],
            ": --weight-decay: expected a number between 1e-200 and 1e+100, got 1e-300",
        ),
        (
            ["ce", "--num-classes", "3", "--per-class", "1", "--weight-decay", "1", "--feature-decay", "-1"],
            ": --feature-decay",
        ),
    ],
)
def test_bad_input_is_one_line(options, message, capsys):
    assert main(["predict", *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_usage_error_is_the_parsers():
    with pytest.raises(SystemExit) as caught:
        main(["predict", "ce", "--num-classes", "three", *DECAYS])
    assert caught.value.code == 2

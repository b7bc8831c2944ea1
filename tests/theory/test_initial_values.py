"""What SGD keeps of initial values that the loss does not see: proved, and found again in printed numbers."""

import json
import runpy
from pathlib import Path

import pytest
import torch

import ncollapse as nc
from ncollapse.papers import publications
from ncollapse.papers.catalogue import get_experiment
from ncollapse.theory import decay_alone
from ncollapse.train import recipes
from ncollapse.train.initial_values import share_left

ROOT = Path(__file__).parents[2]
RATES = [0.3] * 20 + [0.05] * 20 + [0.7] * 3


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "scripts" / "initial_values.py"))


@pytest.fixture(scope="module")
def text():
    """What theory.md says, on one line."""
    return " ".join((ROOT / "docs" / "theory.md").read_text().split())


def follow_sgd(parameters, closure, momentum, decay=0.0):
    """torch's own SGD over `RATES`; `closure` makes the gradients."""
    optimizer = torch.optim.SGD(parameters, 1.0, momentum=momentum, weight_decay=decay)
    for rate in RATES:
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        closure()
        optimizer.step()


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("decay", [0.0, 1e-3, 0.1])
def test_it_is_what_torch_leaves_of_a_parameter_without_a_loss(momentum, decay):
    value = torch.ones(1, dtype=torch.float64, requires_grad=True)
    follow_sgd([value], lambda: (0 * value).sum().backward(), momentum, decay)
    assert decay_alone(RATES, decay, momentum) == pytest.approx(value.item(), rel=1e-13)


def test_rates_that_last_some_steps_are_those_steps():
    rates = [0.3, 0.3, 0.05, 0.7]
    each = [rate for rate in rates for _ in range(7)]
    assert decay_alone(rates, 0.1, 0.9, steps=7) == pytest.approx(decay_alone(each, 0.1, 0.9), rel=1e-12)
    assert decay_alone([], 0.1) == 1


LOSSES = {
    "ce": (nc.CELoss(), True),
    "focal": (nc.FocalLoss(gamma=2), True),
    "ls": (nc.LabelSmoothingLoss(alpha=0.1), True),
    "bce": (nc.BCELoss(), False),
    "mse": (nc.MSELoss(), False),
}


@pytest.mark.parametrize("name", LOSSES)
def test_means_over_classes_keep_it_whatever_the_data_are(name):
    """A small network on random data, trained in float64: true of losses that do not see shifts, and of no other."""
    loss, blind = LOSSES[name]
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 6, generator=generator).double(), torch.arange(40) % 4
    trunk = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU()).double()
    head = nc.LinearHead(8, 4, bias_init=2.0).double()
    start = [part.detach().mean(0).clone() for part in (head.weight, head.bias)]

    def closure():
        h = trunk(x)
        (loss(head(h), y) + nc.decay(head, h, 0.02, 1e-3, 0.01)).backward()

    follow_sgd([*trunk.parameters(), *head.parameters()], closure, 0.5)
    for part, first, decay in zip((head.weight, head.bias), start, (0.02, 0.01)):
        expected = decay_alone(RATES, decay, 0.5) * first
        assert torch.allclose(part.detach().mean(0), expected, rtol=1e-11, atol=1e-14) is blind


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"^decay: expected a finite number of at least 0, got -1$"):
        decay_alone(RATES, -1)
    with pytest.raises(ValueError, match=r"^momentum: expected a number in \[0, 1\), got 1\.0$"):
        decay_alone(RATES, 0.1, 1.0)


def test_the_share_of_a_recipe_is_known_where_it_does_not_depend_on_data():
    setting = recipes.get("bce-vs-ce/setting-1", loss="ce", data="mnist")
    assert share_left(setting, "bias", samples=30_000) > share_left(setting, "bias") > 0
    assert share_left(setting.override(loss__name="bce"), "bias") is None
    assert share_left(setting.override(optim__name="adamw"), "bias") is None
    assert share_left(setting.override(data__name="npz:my-data"), "bias") is None
    assert share_left(setting.override(optim__clip_norm=1.0), "bias") is None
    moved = setting.override(
        optim__clip_norm=1.0, decays__bias=0.0, optim__weight_decay=5e-4
    )  # is added after clipping
    assert share_left(moved, "bias") == share_left(setting, "bias")


def test_printed_biases(script, text):
    """All of them but one within 0.0012, most to the last digit; none of it fitted."""
    rows = script["follow_biases"]()
    exact = sum(row["half_digit"] for row in rows)
    assert f"{exact} of the {len(rows)} printed biases" in text
    for number in range(6, 12):
        (note,) = (n for n in get_experiment(f"bce-vs-ce/table-{number}").notes if "initial draw" in n)
        assert f"{exact} of the {len(rows)} that the paper prints" in note
    worst = sorted(rows, key=lambda row: row["off_by"])[-1]
    assert worst["where"]["bias_decay"] == 5e-5
    assert f"the others within {worst['off_by']:.4f}" in text
    eight = [row for row in rows if row["table"] == "table-11"]
    assert len(eight) == 8
    assert {f"{row['predicted']:.4f}" for row in eight} == {"-0.0072", "-0.0073", "-0.0074"}


def test_one_printed_bias_gives_the_others_of_resnet18(script):
    """The start as Table 9 prints it, instead of the one that the authors' code draws."""
    start = publications.load("bce-vs-ce")["table-9"].find(
        "train.bias", data="mnist", model="resnet18", loss="ce", optimizer="sgd", bias_init=0
    )
    rows = [row for row in script["follow_biases"]() if row["where"]["model"] == "resnet18"]
    rows = [row for row in rows if row["where"]["data"] != "cifar100"]
    assert len(rows) == 25
    for row in rows:
        initial = 10.0 if row["table"] == "table-10" else float(row["where"].get("bias_init", 0))
        assert (initial + start.value) * row["share"] == pytest.approx(float(row["published"]), abs=1.3e-3), row


def test_the_printed_biases_show_the_delay_of_the_schedule(script, text):
    """Table 10 at the default decay: 4.0998 is printed."""
    setting = recipes.get("bce-vs-ce/setting-1", loss="ce", data="mnist", model="resnet18")
    start = 10 + script["STARTS"]["resnet18", 10][0]
    late, early = (start * share_left(setting.override(schedule__lag=lag), "bias") for lag in (1, 0))
    assert late == pytest.approx(4.0998, abs=2e-4)
    assert f"without it, it would be {early:.4f}" in text
    assert early - late > 0.05


def test_printed_scores_have_the_sign_of_the_initial_weights(script, text):
    rows = [row for row in script["compare_scores"]() if row["known"]]
    alike = [row for row in rows if row["mean_score"] * row["start"] > 0]
    assert f"{len(alike)} of the {len(rows)} networks" in text
    others = [(row["table"], row["where"].get("batch_size", row["where"]["model"])) for row in rows if row not in alike]
    assert others == [("table-8", "resnet50"), ("table-11", 1024), ("table-11", 2048)]


def test_the_record_is_current(script):
    record = json.loads((ROOT / "results" / "theory" / "initial-values.json").read_text())
    now = {"biases": script["follow_biases"](), "scores": script["compare_scores"]()}
    for part, rows in now.items():
        assert len(record[part]) == len(rows)
        for old, new in zip(record[part], rows):
            texts = [key for key, value in new.items() if not isinstance(value, float)]
            assert {key: old[key] for key in texts} == {key: new[key] for key in texts}
            assert all(old[key] == pytest.approx(new[key], rel=1e-9, abs=1e-12) for key in new.keys() - texts)

"""The published numbers: what can be recomputed from other printed numbers is."""

import math
from decimal import Decimal

import pytest

from ncollapse.papers import publications
from ncollapse.papers.publications import Cell, tabulated_alpha

SIZES = {
    "bce-vs-ce": {
        "table-1": 96,
        "table-2": 96,
        "table-3": 12,
        "table-4": 6,
        "table-6": 102,
        "table-7": 102,
        "table-8": 102,
        "table-9": 36 * 4 + 18,
        "table-10": 24 * 4 + 12,
        "table-11": 32 * 4 + 16,
        "table-12": 24 * 8,
        "table-13": 24 * 8,
    },
    "bce-vs-ce-early": {"table-1": 54, "table-2": 144, "table-3": 96},
}


def last_digit(printed: str) -> Decimal:
    return Decimal(1).scaleb(int(Decimal(printed).as_tuple().exponent))


@pytest.mark.parametrize("paper", publications.PAPERS)
def test_every_cell_is_a_number_with_a_place(paper):
    places = set()
    for entry, publication in publications.load(paper).items():
        for cell in publication.cells:
            assert math.isfinite(cell.value)
            assert cell.std is None or float(cell.std) >= 0
            places.add((entry, cell.row, cell.column))
    assert len(places) == sum(len(p.cells) for p in publications.load(paper).values())


@pytest.mark.parametrize("paper", SIZES)
def test_every_table_is_complete(paper):
    sizes = {name: len(p.cells) for name, p in publications.load(paper).items() if name.startswith("table")}
    assert sizes == SIZES[paper]


@pytest.mark.parametrize("table", ["table-6", "table-7", "table-8", "table-9", "table-10", "table-11"])
def test_alpha_follows_from_rho_and_b(table):
    publication = publications.load("bce-vs-ce")[table]
    checked = 0
    for cell in publication.cells:
        if cell.field != "alpha":
            continue
        rho = publication.find("train.weight_energy", **cell.where).value
        bias = publication.find("train.bias", **cell.where).value
        classes = 100 if cell.where["data"] == "cifar100" else 10
        value = tabulated_alpha(rho, bias, classes, cell.where.get("batch_size", 128))
        assert abs(value - cell.value) <= cell.unit_in_last_place, (cell.where, value, cell.mean)
        checked += 1
    assert checked == {"table-9": 18, "table-10": 12, "table-11": 16}.get(table, 6)


def test_alpha_with_its_printed_formula_does_not_follow():
    table = publications.load("bce-vs-ce")["table-6"]
    where = {"data": "mnist", "model": "resnet18", "optimizer": "adamw", "loss": "bce"}
    rho, bias = table.find("train.weight_energy", **where).value, table.find("train.bias", **where).value
    with_term = tabulated_alpha(rho, bias, 10, 128) + 5e-4 * bias
    assert abs(with_term - table.find("alpha", **where).value) > 0.001


@pytest.mark.parametrize(
    ("early", "final", "scale", "exceptions"),
    [
        ("table-1", "table-7", 1, []),
        ("table-2", "table-1", 1, [("CIFAR10, D121, CE", "SGD, DA1, A_Uni")]),
        ("table-3", "table-2", 100, []),
    ],
)
def test_the_early_version_repeats_the_final_one(early, final, scale, exceptions):
    table = publications.load("bce-vs-ce")[final]
    differ = []
    for cell in publications.load("bce-vs-ce-early")[early].cells:
        if cell.field.endswith("gain"):
            continue
        other = table.find(cell.field, **cell.where)
        for mine, theirs in ((cell.mean, other.mean), (cell.std, other.std)):
            if mine is None or theirs is None:
                assert early != "table-1" or cell.field in ("alpha", "train.accuracy")
                continue
            tolerance = max(last_digit(mine) * scale, last_digit(theirs)) / 2
            if abs(Decimal(mine) * scale - Decimal(theirs)) > tolerance:
                differ.append((cell.row, cell.column))
    assert differ == exceptions


def test_the_gains_follow_but_for_two_misprints():
    table = publications.load("bce-vs-ce-early")["table-2"]
    wrong = {}
    for cell in table.cells:
        if not cell.field.endswith(".gain"):
            continue
        field = cell.field.removesuffix(".gain")
        ce, bce = (table.find(field, **cell.where, loss=loss).mean for loss in ("ce", "bce"))
        gain = Decimal(bce) - Decimal(ce)
        if abs(gain - Decimal(cell.mean)) > last_digit(cell.mean) / 2:
            wrong[cell.row, cell.column] = (cell.mean, f"{gain:+}")
    assert wrong == {
        ("CIFAR100, D121, Delta", "SGD, DA1, A"): ("+0.21", "+0.31"),
        ("CIFAR100, D121, Delta", "SGD, DA1+DA2, A_Uni"): ("+7.85", "+7.86"),
    }
    notes = " ".join(table.notes)
    assert "+0.21" in notes
    assert "+7.85" in notes


def test_batch_128_repeats_table_6():
    tables = publications.load("bce-vs-ce")
    where = {"data": "mnist", "model": "resnet18"}
    repeated = 0
    for cell in tables["table-11"].cells:
        if cell.where["batch_size"] == 128:
            keys = {**where, "optimizer": cell.where["optimizer"], "loss": cell.where["loss"]}
            other = tables["table-6"].find(cell.field, **keys)
            assert (cell.mean, cell.std) == (other.mean, other.std)
            repeated += 1
    assert repeated == 18


def test_scores_of_ce_are_centred():
    """Under CE the scores of a sample sum to nearly nothing: s_pos + (K - 1) s_neg is small against s_pos."""
    for name, classes in (("table-6", 10), ("table-7", 10), ("table-9", 10), ("table-10", 10), ("table-11", 10)):
        table = publications.load("bce-vs-ce")[name]
        cells = [c for c in table.cells if c.field == "train.positive_score" and c.where["loss"] == "ce"]
        assert cells, name
        for cell in cells:
            negative = table.find("train.negative_score", **cell.where).value
            assert abs(cell.value + (classes - 1) * negative) < 0.03 * cell.value, cell.where


def test_percent_becomes_a_fraction():
    cell = Cell("", "", {}, "test.accuracy", "92.8", percent=True)
    assert cell.value == pytest.approx(0.928)
    assert cell.unit_in_last_place == pytest.approx(0.001)


def test_unknown_paper_is_named():
    with pytest.raises(ValueError, match="there are bce-vs-ce"):
        publications.load("nothing")

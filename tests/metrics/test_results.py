"""A measurement as a table, numbers, CSV, a data frame and a pickle."""

import builtins
import csv
import io
import math
import pickle

import pytest
import torch

import ncollapse as nc
from ncollapse.metrics.table import at_collapse, least_simplex_distance, make_table


@pytest.fixture(scope="module")
def measured():
    g = torch.Generator().manual_seed(0)
    return nc.measure(torch.randn(60, 6, generator=g), torch.arange(60) % 4, torch.randn(4, 6, generator=g))


def test_print_shows_the_table(measured):
    text = str(measured)
    assert text.splitlines() == [line.text for line in make_table(measured)]
    assert f"{measured.nc1:.6g}" in text
    assert "Within-class collapse (NC1)" in text
    assert "not measured: numerical_rank" in text
    assert len(repr(nc.Measurement(counts=tuple(range(50_000)), nc1=0.5))) < 200


def test_a_measurement_equals_its_own_pickle(measured):
    again = pickle.loads(pickle.dumps(measured))
    assert math.isnan(measured.numerical_rank)
    assert again == measured
    assert hash(again) == hash(measured)
    assert again != nc.Measurement(nc1=measured.nc1)
    assert measured != "nc1"
    spread = pickle.loads(pickle.dumps(nc.Measurement(positive_score=nc.Spread(mean=1.0))))
    assert spread == nc.Measurement(positive_score=nc.Spread(mean=1.0))
    assert spread != nc.Measurement(positive_score=nc.Spread(mean=2.0))


def test_numbers_csv_and_frame_agree(measured, tmp_path):
    numbers = measured.to_numbers()
    assert numbers["nc1"] == measured.nc1
    assert numbers["positive_score.std"] == measured.positive_score.std
    assert "numerical_rank" not in numbers
    rows = list(csv.reader(io.StringIO(measured.to_csv(tmp_path / "m.csv"))))
    assert rows[0] == ["field", "value"]
    assert {name: float(value) for name, value in rows[1:]} == numbers
    assert (tmp_path / "m.csv").read_text() == measured.to_csv()
    pandas = pytest.importorskip("pandas")
    frame = measured.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.iloc[0].to_dict() == numbers


def test_without_pandas_the_csv_is_named(measured, monkeypatch):
    plain = builtins.__import__

    def refuse(name, *arguments, **options):
        if name == "pandas":
            raise ImportError(name)
        return plain(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"^to_frame: needs pandas .* to_csv does without it"):
        measured.to_frame()


def test_collapsed_is_a_deprecated_name(measured):
    with pytest.warns(DeprecationWarning, match="renamed to scores_concentrated") as found:
        assert measured.collapsed is measured.scores_concentrated
    assert found[0].filename == __file__, "the line of the caller is the one to change"
    assert nc.Measurement.from_dict({"collapsed": True}).scores_concentrated is True


def test_at_full_collapse_is_what_the_dimensions_allow():
    """K = 50 classes in d = 8: no simplex ETF, and the column shows the least distance instead."""
    g = torch.Generator().manual_seed(0)
    rows = torch.linalg.qr(torch.randn(50, 9, generator=g, dtype=torch.float64)).Q
    rows = rows[:, 1:] - rows[:, 1:].mean(0)
    frame = torch.linalg.qr(rows).Q  # 50 vectors in 8 dimensions with a projection as Gram matrix, centred
    m = nc.measure(frame, torch.arange(50), frame)
    least = least_simplex_distance(50, 8)
    assert least == pytest.approx(1.092, abs=5e-4)
    for name in ("nc2", "nc2_uncentred", "nc2_means", "nc3", "nc3_centred"):
        assert getattr(m, name) == pytest.approx(least, rel=1e-9), name
        assert at_collapse(name, "0", m) == "1.09173"
    assert m.nc2_rank == pytest.approx(0.0, abs=1e-12)
    assert at_collapse("nc2_rank", "0", m) == "0"
    assert at_collapse("means_rank", "K−1", m) == "8"
    assert at_collapse("equiangle_means", "0", m) == "> 0"
    assert at_collapse("cosine_margin", "K/(K−1)", m) == "< 1.02041"
    line = next(line.text for line in make_table(m) if line.text.startswith("  nc2 "))
    assert "1.09173" in line.split("distance")[0]


@pytest.mark.parametrize("seed", range(5))
def test_no_frame_is_nearer_than_the_least_distance(seed):
    g = torch.Generator().manual_seed(seed)
    weight = torch.randn(12, 3, generator=g)
    assert nc.measure(weight, torch.arange(12), weight, fields=["nc2"]).nc2 >= least_simplex_distance(12, 3)

"""What a measurement may be compared with."""

import json

import pytest

import ncollapse as nc

DECAYS = {"weight_decay": 1e-2, "feature_decay": 1e-2}


@pytest.fixture(scope="module")
def five():
    return nc.predict("ce", 5, per_class=1, **DECAYS)


@pytest.mark.parametrize("nothing", [None, 3.0, "ce"])
def test_what_predicts_nothing_is_refused(nothing):
    with pytest.raises(TypeError, match=f"prediction must be a Prediction, .* not {nothing!r}"):
        nc.Measurement(nc1=0.1).compare(nothing)


def test_another_number_of_classes_is_refused(five):
    ten = nc.predict("ce", 10, per_class=1, **DECAYS)
    measured = nc.measure(*ten.configuration())
    for other in (five, five.to_dict(), json.loads(five.to_json()), five.measurement, five.measurement.to_dict()):
        with pytest.raises(ValueError, match="prediction is for 5 classes, but 10 were measured"):
            measured.compare(other)
    assert abs(measured.compare(ten)["positive_score"].deviation) < 1e-12


def test_an_unknown_number_of_classes_is_not_held_against_it(five):
    assert nc.Measurement(nc1=0.1).compare(five)["nc1"].measured == 0.1
    assert nc.measure(*five.configuration()).compare({"weight_energy": 1.0})["weight_energy"].predicted == 1.0
    assert nc.Measurement(nc1=0.1).compare({}) == {}

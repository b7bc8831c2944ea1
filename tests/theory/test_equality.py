"""Results equal their own pickle, undefined numbers included, under every version of Python."""

import pickle

import pytest

import ncollapse as nc

DECAYS = {"weight_decay": 5e-3, "feature_decay": 5e-3}
POINT = nc.predict("ce", 3, per_class=4, **DECAYS).configuration(dim=4)


@pytest.mark.parametrize(
    "result",
    [
        nc.Spread(),
        nc.predict("ce", class_counts=[8, 4, 2], bias=False, features="relu", **DECAYS),
        nc.certify(*POINT, loss="ce", **DECAYS),
        nc.measure(*POINT),
    ],
    ids=["spread", "prediction", "certificate", "measurement"],
)
def test_a_result_equals_its_pickle(result):
    copy = pickle.loads(pickle.dumps(result))
    assert copy is not result
    assert copy == result
    assert hash(copy) == hash(result)
    assert "nan" in repr(vars(result))  # otherwise this would test nothing


def test_different_results_differ():
    assert nc.predict("ce", 3, per_class=4, **DECAYS) != nc.predict("ce", 4, per_class=4, **DECAYS)
    assert nc.Spread(mean=1.0) != nc.Spread()
    assert nc.Spread() != 3

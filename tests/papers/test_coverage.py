"""How much of an experiment was run, in words that count."""

import pytest

from ncollapse.papers.coverage import Coverage


@pytest.mark.parametrize(
    ("coverage", "said"),
    [
        (Coverage(8), ""),
        (Coverage(8, 8, 8), "8 of 8 runs"),
        (Coverage(1, 1, 3), "1 of 1 run, 3 with all seeds"),
        (Coverage(8, 3, 3, 2, ((10, 200), (20, 100))), "3 of 8 runs, 2 at 20 of 100 and 10 of 200 epochs"),
        (
            Coverage(8, 3, 3, 3, ((10, 100), (50, 100)), 1),
            "3 of 8 runs, at 10 and 50 of 100 epochs, 1 of them too short to judge",
        ),
        (Coverage(8, 3, 3, 3, ((10, 100),), 3), "3 of 8 runs, at 10 of 100 epochs"),
        (Coverage(8, 3, 3, longer=2), "3 of 8 runs, 2 trained for longer than asked for"),
    ],
)
def test_the_parts_of_a_coverage_are_counted(coverage, said):
    assert coverage.detail == said
    assert coverage.qualify("not run") == "not run"


def test_a_coverage_is_complete_at_the_length_asked_for_alone():
    assert Coverage(2, 2, 2).complete
    for other in (Coverage(2, 1, 1), Coverage(2, 2, 2, 1, ((5, 10),)), Coverage(2, 2, 2, longer=1)):
        assert not other.complete
    assert not Coverage(2).only_trials, "nothing was run"
    assert Coverage(2, 1, 1, 1, ((1, 10),), 1).only_trials
    assert Coverage(9, 3, 3, 3, ((30, 100), (24, 100), (25, 100)), 1).deciding_epochs == "25 and 30 of 100 epochs"
    assert Coverage(1, 1, 1, 1, ((30, 100),)).qualify("partly run, so far") == "partly run, so far at 30 of 100 epochs"

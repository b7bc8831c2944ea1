"""Claims in settings that a paper did not run are shown, and count for nothing of the paper's."""

import pytest

from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.imbalanced_relu import COLLAPSE
from ncollapse.papers.markdown import BEYOND, to_markdown
from ncollapse.papers.outcome import evaluate, list_beyond, list_claims
from ncollapse.report.reproduction import summarise
from ncollapse.runs.record import RunRecord
from reference.scripts import load_script

FALLING, STAYING = (1.0, 0.5, 0.01), (1.0, 0.9, 0.8)
ENTRY = "imbalanced-relu/figure-2"


def finished(tmp_path, epochs=None, **courses):
    """Runs of figure 2 by optimiser, whose metrics take these values; `epochs` are how long they were."""
    records = []
    for point in get_experiment(ENTRY).grid():
        name = point.keys["optimizer"]
        values = courses.get(name.replace("-", "_"))
        if values:
            names = [field.removeprefix("train.") for field in COLLAPSE]
            rows = [{"epoch": e, "train": dict.fromkeys(names, value)} for e, value in enumerate(values, 1)]
            recipe = point.recipe.with_epochs(epochs) if epochs else point.recipe
            records.append(RunRecord(tmp_path, name, recipe.to_dict(), {}, rows, {"status": "finished"}, "finished"))
    return records


@pytest.mark.parametrize(
    ("sgd", "adam", "verdict"), [(STAYING, FALLING, "not reproduced"), (FALLING, STAYING, "reproduced")]
)
def test_the_verdict_is_that_of_the_optimiser_that_the_paper_names(sgd, adam, verdict, tmp_path):
    outcome = evaluate(get_experiment(ENTRY), finished(tmp_path, sgd=sgd, adam=adam, sgd_momentum=adam))
    assert outcome.verdict == verdict
    assert [claim.text.startswith("under SGD the") for claim in outcome.claims] == [True]
    assert [claim.holds for claim in outcome.claims] == [sgd == FALLING]
    assert [claim.holds for claim in outcome.beyond] == [adam == FALLING] * 2
    assert outcome.detail.endswith(f"beyond the paper {2 * (adam == FALLING)} of 2 claims hold")
    assert list_claims([outcome]) == list(outcome.claims)
    assert list_beyond([outcome, outcome]) == list(outcome.beyond)
    assert len(outcome.records) == 3, "all of them are shown"
    row = load_script("reproduction").tabulate_papers([outcome])[-1]
    assert f"{int(sgd == FALLING)} of 1 ({100 * (sgd == FALLING):.1f} %); beyond the paper" in row


def test_the_page_lists_them_apart(tmp_path):
    outcome = evaluate(get_experiment(ENTRY), finished(tmp_path, sgd=STAYING, adam=FALLING))
    before, _, after = to_markdown(outcome).partition(f"{BEYOND}:")
    assert "- does not hold: under SGD the" in before
    assert "under Adam" not in before
    assert "- holds: under Adam" in after
    assert "under SGD with momentum" not in after, "what was not run is no open claim"
    assert any(said.startswith("Ours, beyond the paper: holds: under Adam") for said in summarise(outcome))


def test_runs_of_ours_alone_decide_nothing_of_the_paper(tmp_path):
    outcome = evaluate(get_experiment(ENTRY), finished(tmp_path, adam=FALLING))
    assert (outcome.verdict, outcome.claims) == ("not run", [])
    assert [claim.holds for claim in outcome.beyond] == [True]


def test_the_coverage_is_of_the_paper_s_runs(tmp_path):
    records = [*finished(tmp_path, sgd=STAYING), *finished(tmp_path, epochs=2000, adam=FALLING)]
    outcome = evaluate(get_experiment(ENTRY), records)
    assert outcome.coverage.complete
    assert outcome.coverage_of(outcome.beyond[0]).epochs == "2000 of 4000 epochs"
    assert outcome.coverage_of(outcome.claims[0]) is outcome.coverage

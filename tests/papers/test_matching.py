"""Which runs belong to which point of a grid: by what they train, their length, seed, precision and schedule."""

from dataclasses import replace

from ncollapse.papers.catalogue import get_experiment
from ncollapse.papers.matching import group_by_point, match
from ncollapse.runs.identity import point_key
from ncollapse.runs.record import RunRecord
from reference.paper_runs import record


def test_runs_of_other_length_and_seed_belong_to_the_same_point():
    points = get_experiment("bce-vs-ce/table-9").grid()
    marks = {point_key(p.recipe.to_dict()) for p in points}
    assert len(marks) == 36
    short = points[0].recipe.with_epochs(40).override(seed=7)
    assert point_key(short.to_dict()) == point_key(points[0].recipe.to_dict())
    assert point_key(short.override(optim__batch_size=64).to_dict()) not in marks


def test_lengths_of_the_grid_are_told_apart(tmp_path):
    points = [
        p for p in get_experiment("all-losses/figure-4").grid() if p.keys["width"] == 2 and p.keys["loss"] == "ce"
    ]
    assert [p.keys["epochs"] for p in points] == [100, 200, 400, 800]
    lengths = (100, 800, 20, 50)
    records = [
        record(type(points[0])({}, points[0].recipe.with_epochs(length)), tmp_path / str(length)) for length in lengths
    ]
    found = {
        p.keys["epochs"]: [r.get("optim.epochs") for r in runs]
        for p, runs in ((m.point, m.records) for m in match(points, records))
    }
    assert found == {100: [100], 200: [], 400: [], 800: [800]}


def test_copies_are_no_further_seeds(tmp_path):
    point = get_experiment("bce-vs-ce/table-9").grid()[0]
    runs = [record(point, tmp_path / name) for name in ("a", "b")]
    again = type(point)({}, point.recipe.override(measure_every=5))
    other = type(point)({}, point.recipe.override(seed=1))
    runs += [record(again, tmp_path / "c"), record(other, tmp_path / "d")]
    (only,) = match([point], runs)
    found = list(only.records)
    assert found == [runs[0], runs[3]]


def test_where_the_grid_varies_the_length_a_run_belongs_to_the_nearest(tmp_path):
    """By ratio: 400 epochs are nearer to 1000 than to 100."""
    point = get_experiment("bce-vs-ce/table-9").grid()[0]
    points = [type(point)({"epochs": n}, point.recipe.override(optim__epochs=n)) for n in (100, 1000)]
    for epochs, wanted in ((20, 0), (250, 0), (400, 1), (900, 1), (5000, 1)):
        run = record(type(point)({}, point.recipe.override(optim__epochs=epochs)), tmp_path / str(epochs))
        assert [len(m.records) for m in match(points, [run])] == [1 - wanted, wanted]


def test_of_one_seed_the_precision_asked_for_counts_and_then_the_fuller_history(tmp_path):
    point = get_experiment("bce-vs-ce/table-9").grid()[0]
    exact = record(type(point)({}, point.recipe.override(precision="fp32")), tmp_path / "a")
    sparse, full = record(point, tmp_path / "b"), record(point, tmp_path / "c")
    exact = replace(exact, history=[{"epoch": 1}, {"epoch": 2}])
    full = replace(full, history=[{"epoch": 1}])
    assert point.recipe.precision == "bf16"
    for runs in ([exact, sparse, full], [full, sparse, exact]):
        assert [list(m.records) for m in match([point], runs)] == [[full]]
    assert [list(m.records) for m in match([point], [exact])] == [[exact]]


def test_runs_with_the_lag_asked_for_push_out_the_others(tmp_path):
    point = get_experiment("bce-vs-ce/table-9").grid()[0]
    assert point.recipe.schedule.lag == 1
    early = [type(point)({}, point.recipe.override(schedule__lag=0, seed=seed)) for seed in (0, 1)]
    early = [record(p, tmp_path / str(p.recipe.seed)) for p in early]
    del early[0].config["schedule"]["lag"]  # a run from before recipes said so
    late = record(type(point)({}, point.recipe.override(seed=2, precision="fp32")), tmp_path / "late")
    assert [list(m.records) for m in match([point], early)] == [early]
    assert [list(m.records) for m in match([point], [*early, late])] == [[late]]


def test_unfinished_runs_do_not_count(tmp_path):
    point = get_experiment("bce-vs-ce/table-9").grid()[0]
    done = record(point, tmp_path)
    assert len(group_by_point([done])) == 1
    failed = RunRecord(tmp_path, "x", done.config, {}, [], {"status": "failed"}, "failed")
    assert group_by_point([failed]) == {}

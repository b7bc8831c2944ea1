"""Runs made by hand, for the checks of what the papers say."""

from pathlib import Path

from ncollapse.runs.record import RunRecord


def run(seed=0, epochs=10, history=(), **final):
    """A finished run whose summary says `final`, double underscores for dots; biases and scores are means."""
    summary = {"status": "finished", "train": {}, "test": {}}
    for key, value in final.items():
        part, _, field = key.partition("__")
        spread = field in ("bias", "positive_score", "negative_score", "cosine_margin")
        summary.setdefault(part, {})[field] = (
            {"mean": value, "std": 0.0, "min": value, "max": value} if spread else value
        )
    config = {"seed": seed, "optim": {"epochs": epochs}}
    return RunRecord(Path("no-such-run"), "x", config, {}, list(history), summary, "finished")


def curve(*values):
    """A history in which every NC metric takes these values."""
    return [{"epoch": e, "train": dict.fromkeys(("nc1", "nc2", "nc3"), v)} for e, v in enumerate(values, 1)]


def record(point, path, **train):
    """A finished run of a point whose summary says `train`; numbers stand for means with spread 0.01."""
    fields = {k: v if k in ("weight_energy", "nc1", "accuracy") else {"mean": v, "std": 0.01} for k, v in train.items()}
    summary = {"status": "finished", "train": fields, "test": {}}
    return RunRecord(path, str(path), point.recipe.to_dict(), {}, [], summary, "finished")

"""Trackers for our own trainer: every line of history goes to TensorBoard or to an MLflow server.

train.run(recipe, "runs", trackers=[TensorBoardTracker("runs/tensorboard")])
"""

from __future__ import annotations

import time
from functools import cached_property, partial
from os import PathLike
from types import TracebackType
from typing import Any

from ncollapse.metrics.flattening import flatten

SKIPPED = ("epoch", "step")


class Tracker:
    """Something that takes lines of history and is closed in the end; a context manager."""

    def log(self, record: dict[str, Any]) -> None:
        """Take one line of history."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish writing."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_numbers(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of a line of history: train/nc1, test/accuracy, train/positive_score.mean, certificate/gap, lr.

    >>> read_numbers({"epoch": 3, "lr": 0.1, "train": {"nc1": 0.5, "bias": {"mean": 1.0}}, "certificate": None})
    {'lr': 0.1, 'train/nc1': 0.5, 'train/bias.mean': 1.0}
    """
    return flatten({name: value for name, value in record.items() if name not in SKIPPED}, "/")


class TensorBoardTracker(Tracker):
    """Write event files that `tensorboard --logdir FOLDER` shows; the folder is made with the first line of history."""

    def __init__(self, folder: str | PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError("TensorBoardTracker needs tensorboard: pip install 'ncollapse[tensorboard]'") from error
        self._make = partial(SummaryWriter, str(folder))

    @cached_property
    def writer(self) -> Any:
        """Torch's writer of event files."""
        return self._make()

    def log(self, record: dict[str, Any]) -> None:
        """Write one line of history at its epoch."""
        for name, value in read_numbers(record).items():
            self.writer.add_scalar(name, value, record["epoch"])
        self.writer.flush()

    def close(self) -> None:
        """Finish the event file."""
        if "writer" in vars(self):
            self.writer.close()


class MLflowTracker(Tracker):
    """Log to an MLflow run: on the server at `uri`, or where MLFLOW_TRACKING_URI says.

    `params` (a flat dictionary) are kept with the run; `run_id` names it once it has begun.
    """

    def __init__(
        self,
        uri: str | None = None,
        experiment: str = "ncollapse",
        name: str | None = None,
        params: dict[str, Any] | None = None,
    ) -> None:
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise ImportError("MLflowTracker needs mlflow: pip install 'ncollapse[mlflow]'") from error
        self.client = MlflowClient(tracking_uri=uri)
        known = self.client.get_experiment_by_name(experiment)
        home = self.client.create_experiment(experiment) if known is None else known.experiment_id
        self.run_id: str = self.client.create_run(home, run_name=name).info.run_id
        for key, value in (params or {}).items():
            self.client.log_param(self.run_id, key, value)

    def log(self, record: dict[str, Any]) -> None:
        """Log one line of history at its epoch, in one request."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, record["epoch"]) for name, value in read_numbers(record).items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def close(self) -> None:
        """Mark the run as finished."""
        self.client.set_terminated(self.run_id)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.client.set_terminated(self.run_id, "FINISHED" if kind is None else "FAILED")

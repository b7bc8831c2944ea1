"""A Hugging Face Trainer callback that measures collapse at the end of epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ncollapse.features import split_batch
from ncollapse.monitoring import Monitor, Observation
from ncollapse.theory import Problem

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError("the Trainer callback needs transformers: pip install 'ncollapse[huggingface]'") from error


class NeuralCollapseCallback(TrainerCallback):  # type: ignore[misc]
    """Measure the model after every `every`-th epoch and log all numbers, the predicted optimum and the certified gap.

    Add it to a Trainer that exists: `trainer.add_callback(NeuralCollapseCallback(trainer))`. It logs as the Trainer
    does, to `trainer.state.log_history` and to all that `report_to` names: nc/nc1, predicted/positive_score,
    certified/gap. `history` holds the observations, from the untrained model to the last state, which is always
    measured.

    Args:
        trainer: the Trainer that logs.
        loader: what to measure on; by default the Trainer's training set, in order, through its own collator.
        problem, samples, seed, layer, split: see `ncollapse.monitor`. The pooled vector of a token model is found.
    """

    def __init__(
        self,
        trainer: Any,
        loader: Any = None,
        every: int = 1,
        *,
        problem: Problem | None = None,
        samples: int | None = None,
        seed: int = 0,
        layer: str | None = None,
        split: Callable[[Any], tuple[Any, Any]] = split_batch,
    ) -> None:
        self.trainer, self.loader = trainer, loader
        self.options: dict[str, Any] = {"every": every, "problem": problem, "samples": samples, "seed": seed}
        self.options |= {"layer": layer, "split": split}
        self.monitor: Monitor | None = None

    @property
    def history(self) -> list[Observation]:
        """What was measured so far."""
        return [] if self.monitor is None else self.monitor.history

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure before the first step."""
        loader = given["train_dataloader"] if self.loader is None else self.loader
        self.monitor = Monitor(given["model"], loader, **self.options)
        self.monitor.epoch = round(state.epoch or 0)
        self.monitor.observe()
        self._log(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure after an epoch."""
        if self.monitor is not None and self.monitor.step() is not None:
            self._log(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure the last state, where `every` passed over it."""
        if self.monitor is not None and self.monitor.finish() is not None:
            self._log(control)

    def _log(self, control: Any) -> None:
        due = control.should_log
        self.trainer.log(self.history[-1].numbers())
        control.should_log = due  # logging clears it, and the Trainer's own numbers may be due as well

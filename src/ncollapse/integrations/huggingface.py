"""A Hugging Face Trainer callback that measures collapse at the end of epochs."""

from __future__ import annotations

from typing import Any

from ncollapse.features.spool import FeatureSpool
from ncollapse.heads import Head
from ncollapse.integrations.callback import CollapseCallback
from ncollapse.monitoring import Monitor
from ncollapse.monitoring.layers import LayerSpools

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError("the Trainer callback needs transformers: pip install 'ncollapse[huggingface]'") from error


class TrainerMonitor(Monitor):
    """A monitor whose model runs in the Trainer's precision."""

    trainer: Any = None

    def read_model(self, spool: FeatureSpool, outputs: LayerSpools) -> Head:
        """See `Monitor.read_model`."""
        with self.trainer.compute_loss_context_manager():
            return super().read_model(spool, outputs)


class NeuralCollapseCallback(CollapseCallback, TrainerCallback):  # type: ignore[misc]
    """Measure the model after every `every`-th epoch and log all numbers, the predicted optimum and the certified gap.

    Add it to a Trainer that exists: `trainer.add_callback(NeuralCollapseCallback(trainer))`. It logs as the Trainer
    does, to `trainer.state.log_history` and to all that `report_to` names: nc/nc1, predicted/positive_score,
    certified/gap. `history` holds the observations, from the untrained model to the last state, which is always
    measured. Models that classify sequences, images or tokens and causal language models work as they are.

    Args:
        trainer: the Trainer that logs.
        loader: what to measure on; by default the Trainer's training set, in order, through its own collator.
        features, head: a function or module that returns the features, and their classifier, for models without a
            linear one; as `model` and `head` of `ncollapse.monitor`.
        prefix: put before every name that is logged, as in val/nc/nc1; two callbacks need different ones.
        problem, samples, seed, layer, split, layers, pool, shift, ignore_index, min_count, fields: see
            `ncollapse.monitor`.
    """

    def __init__(self, trainer: Any, loader: Any = None, every: int = 1, **options: Any) -> None:
        super().__init__(loader, every, **options)
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure before the first step."""
        self.refuse_same_prefix(self.trainer.callback_handler.callbacks)
        loader = given["train_dataloader"] if self.loader is None else self.loader
        model = given["model"] if self.features is None else self.features
        self.monitor = TrainerMonitor(model, loader, **self.options)
        self.monitor.trainer = self.trainer
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
        self.trainer.log(self.numbers())
        control.should_log = due  # logging clears it, and the Trainer's own numbers may be due as well

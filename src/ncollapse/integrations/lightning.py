"""A Lightning callback that measures collapse at the end of epochs, for `lightning` and for `pytorch_lightning`."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from ncollapse.features import undisturbed
from ncollapse.features.extraction import Model
from ncollapse.features.spool import FeatureSpool
from ncollapse.heads import Head
from ncollapse.integrations.callback import CollapseCallback
from ncollapse.monitoring import Monitor
from ncollapse.monitoring.layers import LayerSpools

NAMESPACES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


def find_bases() -> tuple[type, ...]:
    """The Callback classes of the namespaces that are installed: each Trainer asks for its own."""
    found = tuple(import_module(home).Callback for name, home in NAMESPACES.items() if find_spec(name))
    if not found:
        raise ImportError("the Lightning callback needs Lightning: pip install 'ncollapse[lightning]'")
    return found


def refuse_outer_shards(model: nn.Module | None) -> None:
    """Raise for FSDPStrategy, which wraps the module from outside: the module by itself has no weights to run with."""
    if type(model).__name__ == "FullyShardedDataParallel":
        raise ValueError(
            "strategy: expected one that leaves the module runnable, got FSDPStrategy; use ModelParallelStrategy with "
            "fully_shard in configure_model, or DDPStrategy"
        )


class TrainerMonitor(Monitor):
    """A monitor whose batches and model go the Trainer's way: transfer hooks and precision as in a training step."""

    def __init__(self, trainer: Any, model: Model, loader: Any, **options: Any) -> None:
        super().__init__(model, loader, **options)
        self.trainer, self.take_apart = trainer, self.split
        self.split = self.prepare

    def prepare(self, batch: Any) -> tuple[Any, Any]:
        """Inputs and labels, after what a Trainer does to every batch."""
        trainer = self.trainer
        batch = trainer.precision_plugin.convert_input(batch)
        batch = trainer.lightning_module._on_before_batch_transfer(batch)
        return self.take_apart(trainer.strategy.batch_to_device(batch))

    def read_model(self, spool: FeatureSpool, outputs: LayerSpools) -> Head:
        """See `Monitor.read_model`."""
        with undisturbed(self.trainer.lightning_module), self.trainer.precision_plugin.forward_context():
            return super().read_model(spool, outputs)


class NeuralCollapseCallback(CollapseCallback, *find_bases()):  # type: ignore[misc]
    """Measure the model after every `every`-th epoch and log all numbers, the predicted optimum and the certified gap.

    They go to every logger of the Trainer and to `trainer.callback_metrics`, as nc/nc1, predicted/positive_score,
    certified/gap, so that EarlyStopping and ModelCheckpoint can monitor them; in epochs that are not measured they find
    the latest numbers. `history` holds the observations, from the untrained model to the last state, which is always
    measured. Batches go through the hooks of the module or data module (`on_after_batch_transfer` and its like), and
    the model runs in the Trainer's precision.

    Args:
        loader: what to measure on, best the training set without augmentation; by default the Trainer's own training
            loader, read in order, with whatever augmentation its data set does.
        network: the attribute of the LightningModule to measure, where its own `forward` does not return the logits.
        features, head: a function or module that returns the features, and their classifier, for models without a
            linear one; as `model` and `head` of `ncollapse.monitor`.
        prefix: put before every name that is logged, as in val/nc/nc1; two callbacks need different ones.
        problem, samples, seed, layer, split, layers, pool, shift, ignore_index, min_count, fields: see
            `ncollapse.monitor`.
    """

    def __init__(self, loader: Any = None, every: int = 1, *, network: str | None = None, **options: Any) -> None:
        super().__init__(loader, every, **options)
        self.network = network

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Measure before the first step."""
        self.refuse_same_prefix(trainer.callbacks)
        refuse_outer_shards(trainer.strategy.model)
        loader = trainer.train_dataloader if self.loader is None else self.loader
        model = self._find_network(pl_module) if self.features is None else self.features
        self.monitor = TrainerMonitor(trainer, model, loader, **self.options)
        self.monitor.epoch = trainer.current_epoch
        self.monitor.observe()
        self._pass_on(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure after an epoch."""
        if self.monitor is not None and self.monitor.step() is not None:
            # all processes have the same numbers; without sync_dist Lightning warns once for each of them
            pl_module.log_dict(self.numbers(), on_step=False, on_epoch=True, sync_dist=True, batch_size=1)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure the last state, where `every` passed over it."""
        if self.monitor is not None and self.monitor.finish() is not None:
            self._pass_on(trainer)

    def _pass_on(self, trainer: Any) -> None:
        numbers = self.numbers()
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in numbers.items()})
        for logger in trainer.loggers:
            logger.log_metrics(numbers, step=trainer.global_step)

    def _find_network(self, module: nn.Module) -> nn.Module:
        if self.network is not None:
            return module.get_submodule(self.network)
        if type(module).forward.__module__.partition(".")[0] in ("torch", *NAMESPACES):
            raise ValueError(
                "network: expected the name of the attribute that holds the network, since "
                f"{type(module).__name__} defines no forward, got None"
            )
        return module

"""`monitor`: watch the collapse of any model while it trains, in a loop of your own."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ncollapse.features import split_batch
from ncollapse.features.extraction import Model, Split, Taken, run_model
from ncollapse.features.given_heads import HeadSource, is_function, refuse_computed
from ncollapse.features.layers import LayerTaps, Pool
from ncollapse.features.sampling import divide
from ncollapse.features.spool import FeatureSpool
from ncollapse.features.tokens import TokenRule
from ncollapse.heads import Head
from ncollapse.metrics import Measurement, measure
from ncollapse.monitoring.layers import LayerProfile, LayerSpools
from ncollapse.monitoring.observation import Observation, format_history
from ncollapse.monitoring.processes import Alone, Together, find_processes
from ncollapse.theory import Certificate, Problem, certify, predict_if_known

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(repr=False)
class Monitor:
    """See `monitor`. `history` holds the observations, `epoch` counts the calls of `step`."""

    model: Model
    loader: Iterable[Any]
    every: int = 1
    problem: Problem | None = None
    samples: int | None = None
    seed: int = 0
    layer: str | None = None
    head: HeadSource | None = None
    split: Split = split_batch
    log: Callable[[dict[str, float], int], None] | None = None
    prefix: str = ""
    layers: str | Sequence[str] | None = None
    pool: Pool = None
    shift: bool | None = None
    ignore_index: int = -100
    min_count: int = 1
    fields: str | Sequence[str] | None = None
    distributed: bool = True
    history: list[Observation] = field(default_factory=list)
    epoch: int = 0

    def __post_init__(self) -> None:
        for name, value in (("every", self.every), ("min_count", self.min_count)):
            if not isinstance(value, (int, np.integer)) or value < 1:
                raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}")
        if not isinstance(self.problem, Problem | None):
            raise TypeError(f"problem: expected an ncollapse.Problem, got {type(self.problem).__name__}")
        if self.log is not None and not callable(self.log):
            raise TypeError(f"log: expected a function of (numbers, epoch), got {self.log!r}")
        if not isinstance(self.prefix, str):
            raise TypeError(f"prefix: expected a string, got {self.prefix!r}")
        refuse_computed(self.head)
        processes = find_processes(self.distributed, self.model)
        self.share = divide(self.loader, self.samples, self.seed, processes.rank, processes.size)
        self.processes: Alone | Together = processes if self.share.divided else Alone()
        self.prediction = predict_if_known(self.problem)
        self._first_weight: Tensor | None = None

    def __enter__(self) -> Monitor:
        """Measure the untrained model, so that what does not fit is known before an epoch is spent."""
        self.observe()
        return self

    def step(self) -> Measurement | None:
        """Call it after each epoch; every `every`-th time the model is measured and the measurement returned."""
        self.epoch += 1
        return self.observe().measurement if self.epoch % self.every == 0 else None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.finish()

    def finish(self) -> Observation | None:
        """Measure the last state, if the latest call of `step` did not; leaving the `with` block does this."""
        return self.observe() if not self.history or self.history[-1].epoch != self.epoch else None

    def observe(self) -> Observation:
        """Measure now, and add to `history`."""
        began = time.perf_counter()
        with contextlib.ExitStack() as stack:
            spool, outputs = stack.enter_context(FeatureSpool()), LayerSpools(stack)
            head = self.processes.run(lambda: self.read_model(spool, outputs))
            self.processes.collect([spool, *outputs.values()])
            measured, certificate, profile = self.processes.share(lambda: self._measure(spool, head, outputs))
        seconds = time.perf_counter() - began
        self.history.append(Observation(self.epoch, measured, certificate, self.prediction, seconds, profile))
        self._warn_frozen(head)
        if self.log is not None:
            self.log(self.history[-1].numbers(self.prefix), self.epoch)
        return self.history[-1]

    def read_model(self, spool: FeatureSpool, outputs: LayerSpools) -> Head:
        """Run the model over this process's share of the data: its features, its classifier, its layers' outputs."""

        def receive(taken: Taken) -> None:
            spool.take(taken)
            outputs.add(taken)

        head, _ = run_model(
            self.model,
            self.share.batches,
            receive,
            layer=self.layer,
            head=self.head,
            split=self.split,
            tokens=TokenRule(self.shift, self.ignore_index),
            limit=self.share.limit,
            taps=None if self.layers is None else LayerTaps(self.layers, self.pool),
        )
        assert head is not None
        return head

    def _measure(
        self, spool: FeatureSpool, head: Head, outputs: LayerSpools
    ) -> tuple[Measurement, Certificate | None, LayerProfile | None]:
        counts = spool.counts(head.num_classes)
        if self.min_count > 1:
            wanted = counts >= self.min_count
            if not bool(wanted.any()):
                raise ValueError(f"min_count: no class has {self.min_count} samples; the largest has {counts.max()}")
            for each in (spool, *outputs.values()):
                each.keep_classes(wanted)
            counts = counts * wanted
        # the fields that need decays are defined for labels, not for mixed targets
        labelled = None if self.problem is None or self.problem.soft else self.problem
        with warnings.catch_warnings():
            if self.history:
                warnings.filterwarnings("ignore", message="measure: ")  # said at the first measurement
            if self.min_count > 1:
                warnings.filterwarnings(
                    "ignore", message="measure: no sample of class"
                )  # they were left out on request
            measured = measure(spool, head=head, problem=labelled, fields=self.fields)
            profile = outputs.measure(head.num_classes) if outputs else None
        certificate = _certify(spool, counts, head, self.problem)
        return measured, certificate, profile

    def _warn_frozen(self, head: Head) -> None:
        """Warn once if tensors given as head= did not change while the features did."""
        if self.head is None or isinstance(self.head, nn.Module) or is_function(self.head):
            return
        if self._first_weight is None:
            self._first_weight = head.weight
            return
        first, last = self.history[0].measurement, self.history[-1].measurement
        changed = len(self.history) == 2 and first.feature_energy != last.feature_energy
        if changed and torch.equal(self._first_weight, head.weight):
            warnings.warn(
                "head: the features have changed since the first measurement, the weight has not; if it is trained, "
                "pass the module or a function, head=lambda: (weight, threshold); a function also silences this",
                stacklevel=4,
            )

    @property
    def last(self) -> Measurement:
        """The latest measurement."""
        if not self.history:
            raise ValueError("nothing measured yet: use the monitor in a `with` block, or call observe()")
        return self.history[-1].measurement

    def plot(self, *, dark: bool = False) -> go.Figure:
        """A plotly figure of the main numbers over the epochs, with the predicted optimum as dashed lines.

        With `layers`, their profiles over depth follow. `dark` takes the colours of the report's dark theme. `.show()`
        opens it, `.write_html("nc.html")` saves it.
        """
        from ncollapse.monitoring.drawing import draw_history

        return draw_history(self.history, dark)

    def __str__(self) -> str:
        return format_history(self.history)

    def __repr__(self) -> str:
        return f"<Monitor of {type(self.model).__name__}: epoch {self.epoch}, {len(self.history)} observations>"


def monitor(
    model: Model,
    loader: Iterable[Any],
    every: int = 1,
    *,
    problem: Problem | None = None,
    samples: int | None = None,
    seed: int = 0,
    layer: str | None = None,
    head: HeadSource | None = None,
    split: Split = split_batch,
    log: Callable[[dict[str, float], int], None] | None = None,
    prefix: str = "",
    layers: str | Sequence[str] | None = None,
    pool: Pool = None,
    shift: bool | None = None,
    ignore_index: int = -100,
    min_count: int = 1,
    fields: str | Sequence[str] | None = None,
    distributed: bool = True,
) -> Monitor:
    """Watch a model while it trains; the training is left exactly as it would be without.

    Args:
        model: any module that ends in a linear layer, also inside DistributedDataParallel, FSDP or torch.compile; or,
            with `head`, a module or function that returns the features.
        loader: what to measure on: best the training set without augmentation. A DataLoader is read in order, each
            sample once, whatever its sampler; or a list of (inputs, labels) batches.
        every: measure after every so many calls of `step`; the last state is always measured.
        problem: the loss and the decays of the training, for the predicted optimum (where it has a closed form) and the
            certified gap to it. The gap is that of the samples the problem counts, however many are measured.
        samples: measure on so many samples only, the same ones each time, drawn by `seed`: every class by its share,
            with at least two samples where possible. Of a stream, the first ones.
        layer: the classifier's dotted name, where the model has several.
        head: the classifier of a model that returns features: a torch.nn.Linear, LinearHead, ETFHead; or, for a
            classifier that is computed (cosine, LoRA), a function that returns (weight, threshold) at each measurement.
        split: a function from a batch to (inputs, labels), for batches that are neither pairs nor dictionaries.
        log: called with (numbers by name, epoch), to pass them on.
        prefix: put before every name that is logged, as in val/nc/nc1.
        layers: also measure the outputs of these modules, see `ncollapse.measure_layers`; `pool` is its argument.
        shift: for labels [B, T], one a token: whether the vector at position t is classified as the label at t + 1.
            None: yes for causal language models of Hugging Face, no for others. Padding (attention_mask) is left out.
        ignore_index: samples and tokens with this label are left out.
        min_count: classes with fewer samples are left out; for vocabularies with many rare tokens.
        fields: names of the fields to measure, see `ncollapse.measure`.
        distributed: in several processes (torch.distributed) each runs the model on its share of a DataLoader's data
            set, rank 0 measures, and all get the result; every process has to call. False: this process measures all of
            the data by itself, as in `if rank == 0:`. Batches that are not a DataLoader's each process measures as they
            are.

    Features wait in host memory, in a temporary file beyond 256 MiB, and go back to the device batch by batch.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> with monitor(model, [(torch.randn(10, 4), torch.arange(10) % 2)]) as watch:
    ...     for epoch in range(3):
    ...         pass  # train here
    ...         measurement = watch.step()
    >>> [seen.epoch for seen in watch.history], watch.last.num_samples
    ([0, 1, 2, 3], 10)
    """
    return Monitor(
        model,
        loader,
        every,
        problem,
        samples,
        seed,
        layer,
        head,
        split,
        log,
        prefix,
        layers,
        pool,
        shift,
        ignore_index,
        min_count,
        fields,
        distributed,
    )


def _certify(spool: FeatureSpool, counts: Tensor, head: Head, problem: Problem | None) -> Certificate | None:
    """The certified gap for as many samples as the problem counts; with batches alone, in the measured shares."""
    if problem is None or problem.soft or not problem.loss.convex:
        return None
    shared = problem.batch_size is not None and problem.class_counts is None
    if not shared and int(counts.count_nonzero()) != problem.num_classes:
        return None
    return certify(spool, head=head, problem=problem)

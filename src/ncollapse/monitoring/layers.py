"""`measure_layers`: how collapse progresses with depth, every layer measured in one pass over the data."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ncollapse.features.batches import split_batch
from ncollapse.features.extraction import Split, Taken, run_model
from ncollapse.features.layers import LayerTaps, Pool
from ncollapse.features.sampling import divide
from ncollapse.features.spool import HELD_BYTES, FeatureSpool
from ncollapse.features.tokens import TokenRule
from ncollapse.metrics import measure
from ncollapse.monitoring.processes import Alone, find_processes

if TYPE_CHECKING:
    import plotly.graph_objects as go

FIELDS = ("nc1", "nc2_means", "cdnv", "nearest_mean_accuracy", "means_rank")
WIDEST_RANKED = 4096
"""The widest layer whose effective rank is measured: it takes a d x d matrix."""


@dataclass(frozen=True)
class LayerValues:
    """How collapsed one layer's output is; fields of `Measurement` have the same meaning here.

    effective_rank: (sum of the eigenvalues)^2 / sum of their squares, of the covariance of all samples: K - 1 at full
    collapse of balanced classes, NaN for layers wider than 4096.
    """

    nc1: float
    nc2_means: float
    cdnv: float
    nearest_mean_accuracy: float
    means_rank: int | None
    effective_rank: float
    dim: int
    num_samples: int

    def to_dict(self) -> dict[str, float | int | None]:
        """Plain values by name."""
        return dataclasses.asdict(self)


class LayerProfile(dict[str, LayerValues]):
    """Name of a layer -> its values, in the order in which the layers ran."""

    def to_dict(self) -> dict[str, dict[str, float | int | None]]:
        """Plain nested dictionaries."""
        return {name: values.to_dict() for name, values in self.items()}

    def plot(self) -> go.Figure:
        """A plotly figure, one panel a field, layers from left to right."""
        return draw_profiles({"": self})

    def __str__(self) -> str:
        names = [item.name for item in dataclasses.fields(LayerValues)]
        rows = [["layer", *names]]
        rows += [[layer, *(_write(getattr(values, name)) for name in names)] for layer, values in self.items()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))] for row in rows)
        return "\n".join("  ".join(line) for line in lines)


def measure_layers(
    model: nn.Module,
    loader: Iterable[Any],
    layers: str | Sequence[str] | None = None,
    *,
    pool: Pool = None,
    samples: int | None = None,
    seed: int = 0,
    split: Split = split_batch,
    shift: bool | None = None,
    ignore_index: int = -100,
    num_classes: int | None = None,
    distributed: bool = True,
) -> LayerProfile:
    """Measure the output of every named layer in one pass over the data, the model in eval mode and left as it was.

    Args:
        model: any module.
        loader: a DataLoader or a list of (inputs, labels) batches; read as by `ncollapse.monitor`.
        layers: dotted names of modules, in which `*` stands for one part ("blocks.*"); None: the model's children.
        pool: None flattens an output [B, ...] to vectors; "mean" averages over the positions of [B, C, H, W] and the
            tokens of [B, T, d] first; or a function from the output to [B, d].
        samples: measure on this many samples only; see `ncollapse.monitor`.
        seed: the seed by which they are drawn.
        split: a function from a batch to (inputs, labels).
        distributed: whether several processes divide the data.
        shift: for labels [B, T], one a token: whether the label of a token is that of the next.
        ignore_index: for labels [B, T]: the label of tokens that are left out.
        num_classes: K, where the largest label does not say it.

    Outputs wait in host memory, and in a temporary file beyond 256 MiB. Several processes divide the data.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> profile = measure_layers(model, [(torch.randn(10, 4), torch.arange(10) % 2)])
    >>> list(profile), profile["1"].dim
    (['0', '1', '2'], 8)
    """
    processes = find_processes(distributed, model)
    share = divide(loader, samples, seed, processes.rank, processes.size)
    processes = processes if share.divided else Alone()
    taps = LayerTaps(layers, pool)
    rule = TokenRule(shift, ignore_index)
    with contextlib.ExitStack() as stack:
        spools = LayerSpools(stack)
        processes.run(
            lambda: run_model(
                model,
                share.batches,
                spools.add,
                split=split,
                tokens=rule,
                limit=share.limit,
                taps=taps,
                classify=False,
            )
        )
        processes.collect(list(spools.values()))
        return processes.share(lambda: spools.measure(num_classes))


class LayerSpools(dict[str, FeatureSpool]):
    """The outputs of every layer, by name; they are closed with the stack."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        super().__init__()
        self.stack = stack

    def add(self, taken: Taken) -> None:
        """Take the outputs of one batch."""
        for name, rows in taken.outputs.items():
            if name not in self:
                limit = HELD_BYTES // len(taken.outputs)
                self[name] = self.stack.enter_context(FeatureSpool(rows.device, limit))
            self[name].add(rows, taken.labels)

    def measure(self, num_classes: int | None) -> LayerProfile:
        """The values of every layer."""
        profile = LayerProfile()
        with warnings.catch_warnings():
            for name, spool in self.items():
                profile[name] = measure_layer(spool, num_classes)
                warnings.filterwarnings("ignore", message="measure: no sample of class")  # the first layer has said it
        return profile


def measure_layer(spool: FeatureSpool, num_classes: int | None = None) -> LayerValues:
    """The values of one layer."""
    found = measure(spool, num_classes=num_classes, fields=FIELDS)
    return LayerValues(
        **{name: getattr(found, name) for name in FIELDS},
        effective_rank=measure_effective_rank(spool, found.num_samples),
        dim=found.dim,
        num_samples=found.num_samples,
    )


def measure_effective_rank(spool: FeatureSpool, num_samples: int) -> float:
    """(trace C)^2 / trace(C^2) of the covariance C of all samples."""
    dim = spool.dim or 0
    if dim > WIDEST_RANKED:
        return math.nan
    mean = torch.zeros(dim, dtype=torch.float64, device=spool.device)
    for features, _ in spool:
        mean += features.double().sum(0) / num_samples
    gram = torch.zeros(dim, dim, dtype=torch.float64, device=spool.device)
    for features, _ in spool:
        rows = features.double() - mean
        gram.addmm_(rows.T, rows)
    return float(gram.trace().square() / gram.square().sum())  # NaN where all samples are equal


def draw_profiles(profiles: Mapping[str, LayerProfile]) -> go.Figure:
    """A plotly figure of one or several profiles, each under its name."""
    import plotly.graph_objects as go

    from ncollapse.report.figures.depth import draw_depth
    from ncollapse.report.panels import for_print
    from ncollapse.report.style import PRINT

    figure = go.Figure(for_print(draw_depth({name: profile.to_dict() for name, profile in profiles.items()}).spec))
    room = 30  # for plotly's buttons, which would cover the titles, and would be dark without a colour below them
    figure.update_layout(margin_t=figure.layout.margin.t + room, height=figure.layout.height + room)
    return figure.update_layout(paper_bgcolor=PRINT["paper"], plot_bgcolor=PRINT["paper"])


def _write(value: float | int | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.4g}"

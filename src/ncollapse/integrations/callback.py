"""What the callbacks for Lightning and for Hugging Face share: their options and their names in the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ncollapse.features import split_batch
from ncollapse.features.extraction import Model, Split
from ncollapse.features.given_heads import HeadSource, refuse_computed
from ncollapse.features.layers import Pool
from ncollapse.monitoring import Monitor, Observation
from ncollapse.theory import Problem


class CollapseCallback:
    """Options of a monitor that is made when the training begins, and what it has measured so far."""

    def __init__(
        self,
        loader: Any = None,
        every: int = 1,
        *,
        features: Model | None = None,
        head: HeadSource | None = None,
        prefix: str = "",
        problem: Problem | None = None,
        samples: int | None = None,
        seed: int = 0,
        layer: str | None = None,
        split: Split = split_batch,
        layers: str | Sequence[str] | None = None,
        pool: Pool = None,
        shift: bool | None = None,
        ignore_index: int = -100,
        min_count: int = 1,
        fields: str | Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if (features is None) != (head is None):
            missing, given = ("features", "head") if features is None else ("head", "features")
            raise ValueError(f"{missing}: expected beside {given}=, got None; a model by itself needs neither")
        refuse_computed(head)
        self.loader, self.features, self.prefix = loader, features, prefix
        self.options: dict[str, Any] = {
            "every": every,
            "head": head,
            "prefix": prefix,
            "problem": problem,
            "samples": samples,
            "seed": seed,
            "layer": layer,
            "split": split,
            "layers": layers,
            "pool": pool,
            "shift": shift,
            "ignore_index": ignore_index,
            "min_count": min_count,
            "fields": fields,
        }
        self.monitor: Monitor | None = None

    @property
    def history(self) -> list[Observation]:
        """What was measured so far."""
        return [] if self.monitor is None else self.monitor.history

    def numbers(self) -> dict[str, float]:
        """The latest numbers under the names that are logged."""
        return self.history[-1].numbers(self.prefix)

    def refuse_same_prefix(self, callbacks: Iterable[Any]) -> None:
        """Raise if another callback logs under the same names: loggers would mix or average the two."""
        for other in callbacks:
            if isinstance(other, CollapseCallback) and other is not self and other.prefix == self.prefix:
                raise ValueError(
                    f"prefix: expected a different one for each NeuralCollapseCallback, got {self.prefix!r} twice; "
                    "give one of them its own, as in NeuralCollapseCallback(..., prefix='val')"
                )

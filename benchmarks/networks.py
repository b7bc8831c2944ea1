"""Milliseconds of a training step by network: ours beside what else PyTorch offers for the same network.

    python benchmarks/train.py --models resnet18 resnet50 vit-small --json OUT

Every column trains on the same random batch, in bfloat16 as our loader makes it, with bfloat16 autocast, channels-last
memory, cuDNN's search and torch's fused optimiser. All but the first column of the others are captured whole in a CUDA
graph, as ours is.

    ours          as `ncollapse train` runs it
    ours-compiled with `--compile True`: our operators in a network that torch.compile compiles
    torch-update  the same, all weights updated by torch's fused optimiser at the end of the step and cast by torch
    one-stream    ours without streams beside it, and where its time goes (kernels.py)
    eager         the same network with torch's own kernels, launched one by one
    graph         the same, captured
    compiled      the same under torch.compile, captured; `--autotune` asks for mode="max-autotune"
    library       torchvision's network, or timm's for vit-small, with the stem for small images, captured
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from kernels import count_norm_bytes, measure_bandwidth, profile_step
from torch import Tensor, nn

from ncollapse.models import create, norm
from ncollapse.train import optimiser
from ncollapse.train.backend import own_stream, switches
from ncollapse.train.casting import CastFeatures
from ncollapse.train.objective import Objective
from ncollapse.train.recipe import DecaySpec, LossSpec, OptimSpec
from ncollapse.train.step import EagerStep, GraphStep, Tally

STEPS, ROUNDS = 50, 5
OURS = ("ours", "ours-compiled", "torch-update", "one-stream")
COLUMNS = (*OURS, "eager", "graph", "compiled", "library")


@contextmanager
def without_our_kernels() -> Iterator[None]:
    before = norm.HAS_TRITON
    norm.HAS_TRITON = False
    try:
        yield
    finally:
        norm.HAS_TRITON = before


def adapt_library(name: str) -> nn.Module:
    """The library's network with the stem for small images and 10 classes."""
    if name == "vit-small":
        from timm import create_model

        return create_model("vit_small_patch16_224", img_size=32, patch_size=4, num_classes=10)  # type: ignore[no-any-return]
    from torchvision.models import get_model

    network = get_model({"wide-resnet50-2": "wide_resnet50_2"}.get(name, name), num_classes=10)
    if name.startswith("densenet"):
        width = network.features.conv0.out_channels
        network.features.conv0 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        network.features.norm0 = network.features.relu0 = network.features.pool0 = nn.Identity()
    else:
        network.conv1, network.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return network  # type: ignore[no-any-return]


class LibraryObjective(nn.Module):
    """Cross-entropy of a plain classifier, called as our objective is."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, y: Tensor, size: int) -> tuple[Tensor, Tensor]:
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            logits = self.model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        return loss, loss.detach()


def make_step(
    objective: nn.Module,
    solver: optimiser.Optimiser,
    spec: OptimSpec,
    device: torch.device,
    batch: int,
    graph: bool,
) -> Callable[[], None]:
    """One training step on a fixed random batch."""
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(batch, 3, 32, 32, device=device, generator=generator, dtype=torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last)
    y = torch.randint(10, (batch,), device=device, generator=generator)
    tally = Tally(device)
    if not graph:
        step: Any = EagerStep(objective, solver, spec, tally)
        return lambda: step(x, y, batch)
    step = GraphStep(objective, solver, spec, tally, [(x, y)], torch.cuda.graph_pool_handle())
    return step.graphs[batch].graph.replay  # type: ignore[no-any-return]


def time_step(work: Callable[[], None]) -> float:
    """Milliseconds: the median of some rounds of device time."""
    for _ in range(5):
        work()
    rounds = []
    for _ in range(ROUNDS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()  # type: ignore[no-untyped-call]
        for _ in range(STEPS):
            work()
        end.record()  # type: ignore[no-untyped-call]
        end.synchronize()
        rounds.append(begin.elapsed_time(end) / STEPS)
    return sorted(rounds)[ROUNDS // 2]


def time_column(column: str, name: str, device: torch.device, batch: int, autotune: bool) -> dict[str, Any]:
    """One cell: milliseconds a step, and the seconds until the first one was ready."""
    torch.manual_seed(0)
    began = time.perf_counter()
    spec = OptimSpec("adamw" if name == "vit-small" else "sgd", 1e-3, weight_decay=5e-4)
    if column == "library":
        model = adapt_library(name).to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        solver = optimiser.make(spec, model)
        work = make_step(LibraryObjective(model), solver, spec, device, batch, graph=True)
    else:
        network = create(name, 10).to(device).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        loss, solver = LossSpec("ce").make().to(device), optimiser.make(spec, network)
        objective = Objective(network, loss, DecaySpec(), precision="bf16")
        if column in OURS:
            objective.features = CastFeatures(
                network,
                overlap=column != "one-stream",
                compile=column == "ours-compiled",
                optimiser=None if column == "torch-update" else solver,
            )
        elif column == "compiled":
            mode = "max-autotune-no-cudagraphs" if autotune else None
            objective.features = torch.compile(network.features, mode=mode)
        work = make_step(objective, solver, spec, device, batch, graph=column != "eager")
    torch.cuda.synchronize()
    ready = time.perf_counter() - began
    cell: dict[str, Any] = {"ms": time_step(work), "ready_s": ready}
    if column == "one-stream":
        floor = count_norm_bytes(name, batch) / measure_bandwidth(device)
        cell |= {**profile_step(work), "least_norm_us": round(1e6 * floor, 1)}
    return cell


def time_networks(
    names: list[str], device: torch.device, batch: int, columns: list[str], autotune: list[str]
) -> dict[str, Any]:
    """The table; a cell that fails holds its error."""
    table: dict[str, Any] = {}
    for name in names:
        table[name] = {}
        for column in columns:
            torch._dynamo.reset()
            torch.cuda.empty_cache()
            with switches(device, "bf16", False), own_stream(device):
                try:
                    if column in OURS:
                        cell: Any = time_column(column, name, device, batch, False)
                    else:
                        with without_our_kernels():
                            cell = time_column(column, name, device, batch, name in autotune)
                except Exception as error:  # a library may be missing, or not know the network
                    cell = {"error": f"{type(error).__name__}: {error}"[:200]}
            if column == "compiled":
                cell["mode"] = "max-autotune" if name in autotune else "default"
            table[name][column] = cell
            print(f"{name:20s} {column:12s} {cell}", flush=True)
    return table


def show_table(table: dict[str, Any]) -> str:
    """The milliseconds as lines of text."""
    columns = [column for column in COLUMNS if any(column in row for row in table.values())]
    widths = {column: max(14, len(column) + 2) for column in columns}
    lines = [f"{'ms a step':20s}" + "".join(f"{column:>{widths[column]}s}" for column in columns)]
    for name, row in table.items():
        found = {c: f"{row[c]['ms']:.2f}" if "ms" in row.get(c, {}) else "-" for c in columns}
        cells = [f"{found[c]:>{widths[c]}s}" for c in columns]
        lines.append(f"{name:20s}" + "".join(cells))
    return "\n".join(lines)


def write_table(path: Path, found: dict[str, Any]) -> None:
    """Write the table as JSON; cells that the file has and `found` has not are kept, if GPU, torch and batch agree."""
    rows: dict[str, Any] = {}
    if path.exists():
        old = json.loads(path.read_text(encoding="utf-8"))
        if all(old.get(key) == found[key] for key in ("gpu", "torch", "batch")):
            rows, commands = old["networks"], [old["command"], found["command"]]
            found = {**found, "command": "; ".join(dict.fromkeys(commands))}
    for name, row in found["networks"].items():
        rows[name] = {**rows.get(name, {}), **row}
    path.write_text(json.dumps({**found, "networks": rows}, indent=1) + "\n", encoding="utf-8")

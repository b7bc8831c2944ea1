"""What docs/speed.md, docs/sweeps.md and the README say of speed is what the records under results/benchmarks say."""

import json
import math
import re
from pathlib import Path

import torch

from ncollapse.models import create
from ncollapse.runs.record import read_runs

ROOT = Path(__file__).parents[1]
NETWORKS = {
    "ResNet18": "resnet18",
    "ResNet50": "resnet50",
    "WideResNet50-2": "wide-resnet50-2",
    "DenseNet121": "densenet121",
    "ViT-small": "vit-small",
}


def test_steps_are_those_of_the_record():
    """Both tables of docs/speed.md, cell by cell."""
    record = json.loads((ROOT / "results/benchmarks/networks-h200.json").read_text())["networks"]
    lines = (ROOT / "docs/speed.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    found = [row for row in rows if row[0].split(",")[0] in NETWORKS and len(row) != 6]
    assert len(found) == 10
    for first, *cells in found:
        row = record[NETWORKS[first.split(",")[0]]]
        if len(cells) == 4:
            wanted = [row[column]["ms"] for column in ("ours", "graph", "library", "eager")]
        else:
            spent = row["one-stream"]["kernels_us"]
            kinds = ("convolutions", "input gradients", "weight gradients", "matrix products", "stem")
            groups = [kinds, ("norm",), ("attention", "layer norms and GELU"), ("optimiser and casts",)]
            sums = [sum(spent.get(kind, 0.0) for kind in group) / 1e3 for group in groups]
            norms, least = cells[2].rstrip(")").split(" (")
            cells = [cells[0], cells[1], norms, least, *cells[3:]]
            wanted = [row["one-stream"]["ms"], sums[0], sums[1], row["one-stream"]["least_norm_us"] / 1e3, *sums[2:]]
            wanted.append(row["one-stream"]["launches"])
        for cell, value in zip(cells, wanted, strict=True):
            digits = len(cell.partition(".")[2])
            assert cell == f"{value:.{digits}f}"


def test_evaluation_is_that_of_the_record():
    record = json.loads((ROOT / "results/benchmarks/evaluate-h200.json").read_text())["networks"]
    lines = (ROOT / "docs/speed.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ResNet")]
    found = [row for row in rows if len(row) == 6]
    assert len(found) == len(record)
    for name, *cells in found:
        row = record[name.lower()]
        assert row["fault"] is None
        assert cells[:3] == [f"{row[way]['ms']:.0f}" for way in ("folded", "unfolded", "torch")]
        assert cells[3:] == [f"{row[way]['error']:.3f}" for way in ("folded", "torch")]


def test_the_readme_has_the_steps_and_the_seconds_of_the_records():
    record = json.loads((ROOT / "results/benchmarks/networks-h200.json").read_text())["networks"]
    shown = ("ResNet18", "ResNet50", "DenseNet121", "ViT-small")
    rows = [record[NETWORKS[name]] for name in shown]
    columns = ("ours", "library", "eager")
    times = [", ".join(f"{row[column]['ms']:#.3g}" for row in rows) + " ms" for column in columns]
    readme, docs = ((ROOT / name).read_text() for name in ("README.md", "docs/speed.md"))
    assert f"a training step of {', '.join(shown)}, batch 128, bf16" in readme
    assert all(f"| {line} |" in readme for line in times)
    command = json.loads((ROOT / "results/benchmarks/command-h200.json").read_text())
    summary = json.loads((ROOT / f"results/runs/{command['run']}/summary.json").read_text())
    assert summary["time"]["wall_s"] < command["seconds"] < summary["time"]["wall_s"] + 5
    assert f"| {command['seconds']:.0f} s for the whole command |" in readme
    assert f"{command['seconds']:.1f} s since for" in " ".join(docs.split())


def test_updates_are_told_as_measured():
    record = json.loads((ROOT / "results/benchmarks/networks-h200.json").read_text())["networks"]
    text = " ".join((ROOT / "docs/speed.md").read_text().split())
    for name, network in NETWORKS.items():
        row = record[network]
        assert f"{name} {row['ours']['ms']:.2f} instead of {row['torch-update']['ms']:.2f}" in text


def test_choices_and_max_autotune_are_told_as_measured():
    choices = json.loads((ROOT / "results/benchmarks/choices-h200.json").read_text())["networks"]
    text = " ".join((ROOT / "docs/speed.md").read_text().split())
    first, second = choices["resnet50"][0], choices["densenet121"][1]
    assert f"sums ({first[0]['ms']:.2f} to {first[-1]['ms']:.2f}, in one process)" in text
    assert f"under way ({second[0]['ms']:.2f} to {second[1]['ms']:.2f})" in text
    record = json.loads((ROOT / "results/benchmarks/networks-h200.json").read_text())["networks"]
    resnet, vit = (record[name]["compiled"] for name in ("resnet18", "vit-small"))
    assert resnet["mode"] == vit["mode"] == "max-autotune"
    beside = "ours_in_this_process_ms"
    assert f"ResNet18 {resnet['ms']:.2f} ms beside {resnet[beside]:.2f} of ours" in text
    assert f"ViT-small {vit['ms']:.2f} beside {vit[beside]:.2f}" in text
    minutes = [round(2 * cell["first_search_s"] / 60) / 2 for cell in (resnet, vit)]
    assert f"Its search took {minutes[0]} and {minutes[1]} minutes" in text
    assert f"{resnet['ours_first_ready_s']:.0f} and {vit['ours_first_ready_s']:.0f} s the first time" in text
    seconds = int(record["resnet50"]["compiled"]["error"].split()[3])
    assert f"had not ended after {seconds / 60:.1f} minutes" in text


def test_the_bytes_of_the_norms_are_those_of_their_passes():
    """By passes that read or write a map in bfloat16, and one bit a value at the ends of blocks."""
    batch, bit, total = 128, 1 / 16, 0.0
    network = create("resnet50", 10).to("meta")
    sizes = {}
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.register_forward_hook(lambda _, given, __, name=name: sizes.update({name: given[0].numel()}))
    network.forward_features(torch.empty(batch, 3, 32, 32, device="meta"))
    for name, size in sizes.items():
        shortcut = f"{name.rpartition('.')[0]}.downsample.1" in sizes
        if "downsample" in name:
            maps = 0.0  # counted with the block's last norm
        elif name.endswith("bn3"):
            last = name == [key for key in sizes if key.endswith("bn3")][-1]
            maps = (15 if shortcut else 10 if last else 11) + 2 * bit
        else:
            maps = 8 if "." in name.removeprefix("trunk.") else 10  # the stem's map is used twice
        total += 2 * maps * size
    text = " ".join((ROOT / "docs/speed.md").read_text().split())
    assert f"ResNet50's norms read and write {total / 1e9:.1f} GB a step" in text
    record = json.loads((ROOT / "results/benchmarks/networks-h200.json").read_text())["networks"]["resnet50"]
    rate = 2 * 8 * sum(sizes.values()) / record["one-stream"]["least_norm_us"]  # bytes a microsecond
    assert f"which takes {total / rate / 1e3:.1f} ms at that rate" in text


def test_kernels_that_were_tried_are_told_as_measured():
    record = json.loads((ROOT / "results/benchmarks/tried-h200.json").read_text())
    inside, small = (record[key] for key in record if "norm" in key)
    names = {"resnet18": "ResNet18", "resnet50": "ResNet50", "densenet121": "DenseNet121"}
    text = " ".join((ROOT / "docs/speed.md").read_text().split())
    for network, row in inside.items():
        assert f"{names[network]} {row['tried']:.2f}" in text
        assert f" instead of {row['kept']:.2f}" in text
    (compiled,) = (record[key] for key in record if "torch.compile" in key)
    row = compiled["vit-small"]
    assert (
        f"Compiled by torch it took {row['tried']:.2f} ms, where our kernels of that time took {row['kept']:.2f}."
        in text
    )
    for network, row in small.items():
        assert f"{names[network]} {100 * (row['tried'] / row['kept'] - 1):+.0f} %" in text


def test_what_packing_gains_is_told_as_measured():
    text = " ".join((ROOT / "docs/sweeps.md").read_text().split())
    record = json.loads((ROOT / "results/benchmarks/h200.json").read_text())
    epoch = record["full_run"]["now"]["seconds_of_an_epoch"]["median, beside the measurement of the one before"]
    together = record["packed_now"]["steps_per_s_together"]
    assert f"made {together} steps a second together, and one alone {math.ceil(50_000 / 128) / epoch:.0f} (" in text
    command = "ncollapse reproduce imbalanced-relu/figure-1@4000/40:optimizer=adam "
    runs = [run for run in read_runs(ROOT / "results/runs") if run.env["command"].startswith(command)]
    rates = [run.history[-1]["step"] / run.history[-1]["time"]["elapsed_s"] for run in runs]
    assert len(rates) == 4
    assert f"made {round(sum(rates), -2):,.0f} steps a second together" in text


def test_the_papers_way_of_measuring_is_told_as_measured():
    record = json.loads((ROOT / "results/benchmarks/h200.json").read_text())["train"]
    text = (ROOT / "docs/speed.md").read_text()
    ours, theirs = record["ours"], record["baseline"]
    times = [(way["step_s"], way["train_s"], way["measure_s"]) for way in (ours, theirs)]
    rows = [(fast, slow) for fast, slow in zip(*times, strict=True)]
    rows.append(tuple(way["train_s"] + way["measure_s"] for way in (ours, theirs)))
    names = ("a training step", "an epoch of training", "measuring train and test in full")
    for name, (fast, slow) in zip((*names, "an epoch with its measurement"), rows, strict=True):
        (cells,) = re.findall(rf"\| {name} \| ([\d.]+) m?s \| ([\d.]+) m?s \| ([\d.]+) \|", text)
        scale = 1e3 if name == "a training step" else 1.0
        for cell, value in zip(cells, (scale * fast, scale * slow, slow / fast), strict=True):
            assert cell == f"{value:.{len(cell.partition('.')[2])}f}"

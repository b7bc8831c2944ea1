"""The figures of docs/theory.md, and its tables of results, from the library and the records under results/theory.

python scripts/theory_figures.py                figures to docs/figures and tables into docs/theory.md
python scripts/theory_figures.py --tables       the tables alone
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

import ncollapse as nc
from ncollapse.report.export import fix_ids

ROOT = Path(__file__).parents[1]
FIGURES, PAGE, RESULTS = ROOT / "docs" / "figures", ROOT / "docs" / "theory.md", ROOT / "results" / "theory"
PHASES = ("centred", "orthogonal-frame", "saturated", "mean-only", "collapsed")
NAMES = {"orthogonal-frame": "orthogonal frame", "mean-only": "mean only"}
# Okabe and Ito's colours, told apart by readers with any colour vision.
COLOURS = {
    "centred": "#56B4E9",
    "orthogonal-frame": "#0072B2",
    "saturated": "#E69F00",
    "mean-only": "#CC79A7",
    "collapsed": "#BBBBBB",
}


def draw_phases() -> Any:
    """The phase of the BCE optimum over (lambda_b, mu), K = 10, for free and for ReLU features."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    k = 10
    bias_decays, mus = np.logspace(-6, 2, 129), np.logspace(-4, 0, 97)
    figure = make_subplots(1, 2, subplot_titles=("free features", "ReLU features (H ≥ 0)"), horizontal_spacing=0.09)
    steps = [((i + end) / len(PHASES), COLOURS[phase]) for i, phase in enumerate(PHASES) for end in (0, 1)]
    for column, features in enumerate(("free", "relu"), 1):
        settings = {"num_classes": k, "per_class": 1, "features": features}
        codes = [
            [
                PHASES.index(nc.predict("bce", weight_decay=mu, feature_decay=mu, bias_decay=lb, **settings).phase)
                for lb in bias_decays
            ]
            for mu in mus
        ]
        figure.add_heatmap(
            x=np.log10(bias_decays),
            y=np.log10(mus),
            z=codes,
            zmin=-0.5,
            zmax=4.5,
            colorscale=steps,
            showscale=False,
            row=1,
            col=column,
        )
        batches = np.array([16, 32, 64, 128, 256, 512, 1024, 2048])
        rows = [("Table 11: batch 16 … 2048", np.full(8, 5e-4), 5e-4 * np.sqrt(batches / k), "circle")]
        decays = np.array([0.5, 0.05, 5e-3, 5e-4, 5e-5, 5e-6])
        rows.append(("Table 10: λ_b 5e-6 … 0.5", decays, np.full(6, 5e-4 * math.sqrt(12.8)), "x"))
        for name, x, y, symbol in rows:
            figure.add_scatter(
                x=np.log10(x),
                y=np.log10(y),
                mode="markers",
                name=f"bce-vs-ce {name}",
                marker={"symbol": symbol, "size": 7, "color": "black"},
                showlegend=column == 1,
                row=1,
                col=column,
            )
        figure.update_xaxes(title="bias decay λ_b", row=1, col=column, **_powers(-6, 2, 2))
        figure.update_yaxes(title="μ = √(n λ_W λ_H)" if column == 1 else None, row=1, col=column, **_powers(-4, 0, 1))
    for phase in PHASES:
        marker = {"symbol": "square", "size": 12, "color": COLOURS[phase]}
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", name=NAMES.get(phase, phase), marker=marker))
    return _finish(figure, 1000, 480)


def draw_published() -> Any:
    """Predicted against published, one panel a quantity, AdamW and SGD."""
    from plotly.subplots import make_subplots

    rows = json.loads((RESULTS / "predicted-vs-published.json").read_text())["rows"]
    fields = {
        "weight_energy": "|W|²",
        "positive_score": "positive score",
        "negative_score": "negative score",
        "bias": "bias (BCE)",
    }
    figure = make_subplots(
        2,
        4,
        subplot_titles=[f"{name}, {o}" for o in ("AdamW", "SGD") for name in fields.values()],
        vertical_spacing=0.14,
    )
    colours = {"ce": "#0072B2", "bce": "#D55E00"}
    for line, optimizer in enumerate(("adamw", "sgd"), 1):
        for column, field in enumerate(fields, 1):
            chosen = [r for r in rows if r["where"]["optimizer"] == optimizer and r["field"] == field]
            if field == "bias":
                chosen = [r for r in chosen if r["where"]["loss"] == "bce"]
            log = field == "weight_energy"
            for loss, colour in colours.items():
                part = [r for r in chosen if r["where"]["loss"] == loss]
                figure.add_scatter(
                    x=[r["predicted"] for r in part],
                    y=[float(r["published"]) for r in part],
                    mode="markers",
                    name=loss.upper(),
                    marker={"color": colour, "size": 6, "opacity": 0.7},
                    showlegend=line == 1 and column == 1,
                    row=line,
                    col=column,
                )
            both = [r["predicted"] for r in chosen] + [float(r["published"]) for r in chosen]
            both = [v for v in both if not log or v > 0]
            ends = [min(both), max(both)]
            style = {"mode": "lines", "line": {"color": "#999999", "width": 1}, "showlegend": False}
            figure.add_scatter(x=ends, y=ends, row=line, col=column, **style)
            kind = {"type": "log", "dtick": 1} if log else {"type": "linear"}
            figure.update_xaxes(title="predicted" if line == 2 else None, row=line, col=column, **kind)
            figure.update_yaxes(title="published" if column == 1 else None, row=line, col=column, **kind)
    return _finish(figure, 1100, 620)


def draw_landscapes() -> Any:
    """The loss over norm and angle before a fixed ETF, with the direction of descent (mse-landscape Figs. 2 and 8)."""
    import plotly.figure_factory as ff
    from plotly.subplots import make_subplots

    losses = {
        "MSE": ("mse", {}),
        "CE": ("ce", {}),
        "BCE": ("bce", {"bias": math.log(99)}),
        "MSE, α = 1, M = 5": ("mse", {"alpha": 1.0, "M": 5.0}),
    }
    figure = make_subplots(1, 4, subplot_titles=list(losses), shared_yaxes=True, horizontal_spacing=0.03)
    for column, (name, options) in enumerate(losses.values(), 1):
        settings = {"num_classes": 100, **options}
        fine = nc.landscape(name, norms=np.linspace(0.05, 6, 80), angles=np.linspace(0, math.pi, 80), **settings)
        figure.add_heatmap(
            x=fine.norms,
            y=fine.angles,
            z=np.log10(fine.value + 1e-3),
            colorscale="Cividis",
            showscale=False,
            row=1,
            col=column,
        )
        field = nc.landscape(name, norms=np.linspace(0.4, 5.6, 12), angles=np.linspace(0.15, 2.95, 12), **settings)
        x, y = np.meshgrid(field.norms, field.angles)
        length = np.hypot(field.d_norm, field.d_angle) + 1e-9
        arrows = ff.create_quiver(
            x,
            y,
            -field.d_norm / length,
            -field.d_angle / length,
            scale=0.22,
            arrow_scale=0.35,
            line={"color": "white", "width": 1},
        )
        for trace in arrows.data:
            trace.showlegend = False
            figure.add_trace(trace, row=1, col=column)
        figure.update_xaxes(title="norm s", range=[0.05, 6], row=1, col=column)
    figure.update_yaxes(title="angle θ to w_k", range=[0, math.pi], row=1, col=1)
    return _finish(figure, 1100, 360)


def _powers(low: int, high: int, step: int) -> dict[str, Any]:
    ticks = list(range(low, high + 1, step))
    return {"tickvals": ticks, "ticktext": [f"10<sup>{tick}</sup>" for tick in ticks]}


def _finish(figure: Any, width: int, height: int) -> Any:
    figure.update_layout(
        width=width,
        height=height,
        template="plotly_white",
        font={"size": 13},
        legend={"orientation": "h", "y": -0.18, "x": 0.5, "xanchor": "center"},
        margin={"l": 60, "r": 20, "t": 40, "b": 60},
    )
    return figure


def write_tables() -> dict[str, str]:
    """The marked tables of the page, from the records."""
    summary = json.loads((RESULTS / "predicted-vs-published.json").read_text())["summary"]
    answers = json.loads((RESULTS / "open-questions.json").read_text())
    return {
        "published": _write_published(summary),
        "initial": _write_initial(json.loads((RESULTS / "initial-values.json").read_text())["biases"]),
        "minority": _write_minority(answers["minority_collapse"]),
        "early": _write_early(answers["early_collapse"]),
        "dimension": _write_dimension(answers["small_dimension"]),
        "mixed": _write_mixed(json.loads((RESULTS / "mixed-targets.json").read_text())["errors"]),
        "random": _write_random(json.loads((RESULTS / "random-problems.json").read_text())["table"]),
    }


def _write_mixed(errors: list[dict[str, Any]]) -> str:
    data = {"cifar10": "CIFAR10", "cifar100": "CIFAR100"}
    signs = {"difference": "z⁺ − z⁻", "positive": "z⁺", "negative": "z⁻"}
    lines = []
    for line in errors:
        loss, _, logit = line["logit"].partition(" ")
        optimiser = {"adamw": "AdamW", "sgd": "SGD"}[line["optimizer"]]
        numbers = [f"{line[key]:.2f}" for key in ("measured", "free", "unseen_partner")]
        lines.append((data[line["data"]], optimiser, loss.upper(), signs[logit], str(line["runs"]), *numbers))
    head = ("data", "optimiser", "loss", "logit", "runs", "mean measured", "error, free", "error, unseen partner")
    return _grid(head, lines, right=4)


def _write_random(table: list[dict[str, Any]]) -> str:
    def show(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    lines = [
        (
            *(r["loss"], r["features"], str(r["problems"]), str(r["closed"]), show(r["excess"], ".0e")),
            *(show(r["bound"], ".0e"), show(r["gap"], ".0e"), show(r["slowest"], ".1f")),
        )
        for r in table
    ]
    names = ("problems", "in closed form", "above the brute force", "bound above the best value")
    return _grid(("loss", "features", *names, "gap, d ≥ K", "slowest, s"), lines, right=2)


def _write_published(summary: list[dict[str, Any]]) -> str:
    lines = []
    for s in sorted(summary, key=lambda s: (int(s["table"].partition("-")[2]), s["loss"], s["optimizer"])):
        optimiser = {"adamw": "AdamW", "sgd": "SGD"}[s["optimizer"]]
        errors = (f"{s['mean']:.2%}", f"{s['largest']:.2%}")
        lines.append((s["table"].replace("-", " "), s["loss"].upper(), optimiser, str(s["numbers"]), *errors))
    return _grid(("table", "loss", "optimiser", "numbers", "mean error", "largest"), lines, right=3)


def _write_initial(rows: list[dict[str, Any]]) -> str:
    """Tables 6 to 8 and 10: what is printed, and what decay leaves of the start."""
    networks = {"resnet18": "ResNet18", "resnet50": "ResNet50", "densenet121": "DenseNet121"}
    lines = []
    for row in rows:
        where = row["where"]
        if row["table"] in ("table-9", "table-11"):
            continue
        case = (row["table"].replace("-", " "), where["data"].upper(), networks[where["model"]])
        numbers = (f"{row['start']:.4f}", f"{row['share']:.4f}", f"{row['predicted']:.4f}", row["published"])
        lines.append((*case, f"{where.get('bias_decay', 5e-4):g}", *numbers))
    head = ("table", "data", "network", "λ_b", "initial mean", "share left", "remainder", "printed")
    return _grid(head, lines, right=3)


def _write_minority(rows: list[dict[str, Any]]) -> str:
    names = ("majority", "minority", "features", "bias", "loss")
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    lines = []
    for (majority, minority, features, bias, loss), part in groups.items():
        margins = [f"{r['minority_margin']:.4f}" if abs(r["minority_margin"]) > 1e-5 else "0" for r in part]
        case = (f"{majority} + {minority}", features, "free" if bias else "none", loss.upper())
        gap = max(abs(r["gap"]) for r in part)
        lines.append((*case, f"{part[0]['threshold']:.2f}", *margins, f"{gap:.0e}"))
    head = ("classes", "features", "bias", "loss", "R predicted", *(f"{r['factor']:g} R" for r in part), "largest gap")
    return _grid(head, lines, right=4)


def _write_early(rows: list[dict[str, Any]]) -> str:
    lines = [
        (
            r["loss"].upper(),
            f"{r['bias_decay']:g}",
            f"{r['factor']:g}",
            f"{r['minority_margin']:.4f}" if abs(r["minority_margin"]) > 1e-5 else "0",
            f"{r['minority_norm']:.3f}" if r["minority_norm"] > 1e-5 else "0",
            f"{abs(r['gap']):.0e}",
        )
        for r in rows
    ]
    return _grid(("loss", "λ_b", "R/R*", "margin", "norm of the minority feature", "gap"), lines, right=3)


def _write_dimension(rows: list[dict[str, Any]]) -> str:
    lines = [
        (
            f"{r['num_classes']}, {r['dim']}",
            f"{r['decay']:g}",
            "free" if r["bias"] else "none",
            r["loss"].upper(),
            f"{r['objective']:.6f}",
            f"{r['full_dimension']:.6f}",
            _count(r["weight_norms"]),
            f"{r['largest_cosine']:.3f}",
            _count(r["biases"]) if r["bias"] else "",
            f"{r['lowest_positive_logit']:.2f}",
            f"{r['highest_negative_logit']:.2f}",
        )
        for r in rows
    ]
    head = (
        "K, d",
        "decay",
        "bias",
        "loss",
        "f",
        "f, d ≥ K",
        "norms of w",
        "max cos",
        "b",
        "min pos − b",
        "max neg − b",
    )
    return _grid(head, lines, right=4)


def _grid(head: tuple[str, ...], lines: list[tuple[str, ...]], right: int) -> str:
    rule = ("---",) * right + ("---:",) * (len(head) - right)
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *lines))


def _count(values: list[float]) -> str:
    """2.19 ×4, 2.58 ×4"""
    groups: list[list[float]] = []
    for value in sorted(values):
        if groups and value - groups[-1][-1] < 2e-3:
            groups[-1].append(value)
        else:
            groups.append([value])
    return ", ".join(f"{np.mean(group) + 0.0:.2f} ×{len(group)}".replace("-0.00", "0.00") for group in groups)


def fill_page(text: str) -> str:
    """Put the tables between their marks."""
    for name, table in write_tables().items():
        start, end = f"<!-- table: {name} -->\n", "\n<!-- end -->"
        head, rest = text.split(start)
        text = head + start + table + end + rest.split(end, 1)[1]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", action="store_true")
    if not parser.parse_args().tables:
        FIGURES.mkdir(parents=True, exist_ok=True)
        for name, figure in (("phases", draw_phases()), ("predicted-vs-published", draw_published())):
            (FIGURES / f"{name}.svg").write_text(fix_ids(figure.to_image("svg").decode()))
        draw_landscapes().write_image(FIGURES / "landscapes.png", scale=1.5)
    PAGE.write_text(fill_page(PAGE.read_text()))


if __name__ == "__main__":
    main()

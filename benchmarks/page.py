"""The page's weight: bytes and time to the first figure, against plotly's whole bundle and against a thousand runs.

    python benchmarks/page.py [--runs 1000]

Writes synthetic runs into a temporary folder, makes their page and opens it in the system's Chromium. Prints one JSON
object. `main_thread_s` is the CPU time of the page's main thread, in which the page is parsed, laid out and drawn: it
is the wall clock of a machine that has nothing else to do, and does not grow where others use the same cores.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from reference.runs import write_comparison, write_run

LIMIT_BYTES = 15e6
LIMIT_SECONDS = 3.0


def main() -> None:
    """Measure the page of six runs and that of many."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1000, help="how many runs the large folder has")
    asked = parser.parse_args()
    from plotly.offline import get_plotlyjs

    from ncollapse.report.html import BUNDLE, read_template

    with tempfile.TemporaryDirectory() as folder:
        small = measure(write_comparison(Path(folder) / "small", seeds=3, **{"optim.epochs": 60}))
        large = measure(write_many(Path(folder) / "large", asked.runs))
    whole, bundle = len(get_plotlyjs()), len(read_template(BUNDLE))
    result = {
        "bundle": {"bytes": bundle, "share_of_plotly": round(bundle / whole, 3)},
        "six_runs": small,
        f"{asked.runs}_runs": large,
        "bytes_per_further_run": round((large["bytes"] - small["bytes"]) / max(1, asked.runs - 6)),
        "within_limits": large["bytes"] < LIMIT_BYTES and large.get("main_thread_s", 0) < LIMIT_SECONDS,
    }
    print(json.dumps(result, indent=1))


def write_many(folder: Path, runs: int) -> Path:
    """Runs over data sets, networks, optimisers, losses, bias decays and starts; every fortieth has a snapshot."""
    written = 0
    for start in (0.0, 1.0, 2.0, 4.0, 8.0, 10.0):
        for decay in (0.0, 5e-6, 5e-5, 5e-4, 5e-3, 5e-2, 0.5):
            for data in ("mnist", "cifar10", "cifar100"):
                for model in ("resnet18", "mlp-256"):
                    for optimiser in ("sgd", "adamw"):
                        for loss in ("ce", "bce"):
                            if written == runs:
                                return folder
                            changes = {"data.name": data, "model.name": model, "optim.name": optimiser}
                            changes |= {"loss.name": loss, "decays.bias": decay, "model.bias_init": start}
                            write_run(folder, {**changes, "optim.epochs": 60}, per_class=5, snapshot=written % 40 == 0)
                            written += 1
    return folder


def measure(folder: Path) -> dict[str, Any]:
    """Size of the page of a folder, seconds to make it, and what opening it takes."""
    from ncollapse.report import write_report

    began = time.perf_counter()
    page = write_report(folder)
    made = time.perf_counter() - began
    return {"bytes": page.stat().st_size, "made_in_s": round(made, 2), **open_page(page)}


def open_page(page: Path) -> dict[str, float]:
    """Seconds from navigation to the first figure and to the last, the best of three; nothing without Chromium.

    Of the first figure both the wall clock (`first_figure_s`) and the main thread's CPU time (`main_thread_s`).
    """
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        return {}
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        found = [watch_opening(browser, page.resolve().as_uri()) for _ in range(3)]
        browser.close()
    return {name: round(min(one[name] for one in found), 2) for name in found[0]}


def watch_opening(browser: Any, address: str) -> dict[str, float]:
    """Open a page once and read the browser's own clocks."""
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    tab = context.new_page()
    session = context.new_cdp_session(tab)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def used() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(float(item["value"]) for item in metrics if item["name"] == "TaskDuration")

    tab.goto(address, wait_until="commit")
    tab.wait_for_function("performance.getEntriesByName('first-figure').length > 0", timeout=300_000, polling=20)
    first = used()
    tab.wait_for_selector("html[data-ready=true]", timeout=300_000)
    every = used()
    wall = tab.evaluate("performance.getEntriesByName('first-figure')[0].startTime") / 1000
    context.close()
    return {"first_figure_s": wall, "main_thread_s": first, "main_thread_all_figures_s": every}


if __name__ == "__main__":
    main()

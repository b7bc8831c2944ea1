"""One headless Chromium for all browser tests, and pages of synthetic runs that they share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reference.runs import write_comparison, write_grid, write_run

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The system's Chromium through playwright; tests that need it skip without it."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium on this machine: the page is not opened in a browser")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


class Opened:
    """A page that has drawn all its figures, with everything it said and asked for on the way."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1200, "height": 900}, **options)
        self.page = self.context.new_page()
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.messages.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.messages.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.messages.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector(".main-svg", state="attached", timeout=60000)
        # from the start of navigation to the first figure, by the browser's own clock
        self.first_figure = self.page.evaluate("performance.getEntriesByName('first-figure')[0].startTime") / 1000
        self.page.wait_for_selector("html[data-ready=true]", timeout=120000)


@pytest.fixture(scope="session")
def hostile_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two losses and three seeds, and among them everything that may go wrong with a record."""
    folder = tmp_path_factory.mktemp("runs")
    write_comparison(folder, **{"optim.epochs": 12})
    write_run(folder, {"loss.name": "bce", "seed": 7, "optim.epochs": 12}, status="failed", epochs_done=3)
    write_run(folder, {"loss.name": "ce", "seed": 8, "optim.epochs": 12}, status="interrupted", epochs_done=4)
    named = {"name": "<script>alert(1)</script>", "model.name": "{{7*7}}<img src=x onerror=alert(2)>"}
    write_run(folder, {**named, "seed": 0, "optim.epochs": 12}, folder="{{7*7}}")
    broken = write_run(folder, {"seed": 9, "optim.epochs": 12}, folder="half-written")
    (broken / "summary.json").write_text('{"status": "fini')
    torn = write_run(folder, {"seed": 10, "optim.epochs": 12}, folder="torn")
    lines = (torn / "history.jsonl").read_text().splitlines()
    lines[4] = lines[4].replace('"nc1": ', '"nc1": NaN, "was": ')
    (torn / "history.jsonl").write_text("\n".join(lines[:6] + lines[9:11]) + '\n{"epoch": 12, "tra')
    (torn / "snapshot.safetensors").write_bytes(b"not tensors")
    (folder / "nothing").mkdir()
    (folder / "nothing" / "config.json").write_text("[]")
    return folder


@pytest.fixture(scope="session")
def hostile_page(chromium: Any, hostile_folder: Path) -> Iterator[Opened]:
    """The page of those runs, opened from its file."""
    from ncollapse.report import write_report

    opened = Opened(chromium, write_report(hostile_folder))
    yield opened
    opened.context.close()


@pytest.fixture(scope="session")
def grid_page(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Opened, Path]]:
    """The page of bce-vs-ce Fig. 3's sixty runs."""
    from ncollapse.report import write_report

    path = write_report(write_grid(tmp_path_factory.mktemp("grid")))
    opened = Opened(chromium, path)
    yield opened, path
    opened.context.close()


@pytest.fixture(scope="session")
def experiment_page(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """The page of bce-vs-ce Table 1 from the records kept in the repository."""
    from ncollapse.papers.catalogue import get_experiment
    from ncollapse.papers.outcome import evaluate
    from ncollapse.report.reproduction import write_experiment
    from ncollapse.runs.record import read_runs

    records = read_runs(Path(__file__).parents[2] / "results" / "runs")
    path = tmp_path_factory.mktemp("experiment") / "page.html"
    opened = Opened(chromium, write_experiment(path, evaluate(get_experiment("bce-vs-ce/table-1"), records)))
    yield opened
    opened.context.close()

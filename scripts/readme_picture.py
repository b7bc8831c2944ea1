"""Make docs/figures/report.png, the README's picture: two views of the page of a real comparison on digits.

    python scripts/readme_picture.py [FOLDER]

FOLDER holds the runs of `ncollapse compare` (they are made in `demo` where it is missing). Needs Chromium.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from ncollapse.report import write_report

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "figures" / "report.png"
VIEWS = ("#main", "#collapse-curves")
SIZE = {"width": 1120, "height": 1180}
FRAME = "margin:0;padding:20px;display:flex;gap:20px;background:#dedbd2"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "demo"
    if not folder.is_dir():
        losses = ["--losses", "ce", "bce", "--seeds", "3"]
        subprocess.run([sys.executable, "-m", "ncollapse.cli", "compare", *losses, "--out", str(folder)], check=True)
    address = write_report(folder).resolve().as_uri()
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("no Chromium on this machine: the picture cannot be taken")
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport=SIZE, color_scheme="light", reduced_motion="reduce")
        page.goto(address)
        page.wait_for_selector("html[data-ready=true]", timeout=120000)
        shots = []
        for view in VIEWS:
            top = 0 if view == "#main" else page.locator(view).bounding_box()["y"] - 24
            page.evaluate("top => scrollTo(0, top)", top)
            page.wait_for_timeout(300)
            shots.append(base64.b64encode(page.screenshot()).decode())
        page.set_viewport_size({"width": 2 * SIZE["width"] + 60, "height": SIZE["height"] + 40})
        images = "".join(f'<img style="border-radius:8px" src="data:image/png;base64,{shot}">' for shot in shots)
        page.set_content(f'<body style="{FRAME}">{images}</body>')
        page.wait_for_timeout(300)
        page.screenshot(path=TARGET)
        browser.close()
    print(TARGET)


if __name__ == "__main__":
    main()

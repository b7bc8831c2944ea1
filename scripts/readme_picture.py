"""Make docs/figures/report.png, the README's picture: the answer and the curves of a real comparison on digits.

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
VIEWS = ("#findings .card", "#figure-collapse")
WIDTH = 1260
"""The width of the window; the picture shows some 980 pixels of it, and its text stays readable at 830."""
FRAME = "margin:0;padding:16px;display:flex;flex-direction:column;gap:16px;background:#fffefb"


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
        options = {"color_scheme": "light", "reduced_motion": "reduce", "device_scale_factor": 1.5}
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, **options)
        page.goto(address)
        page.wait_for_selector("html[data-ready=true]", timeout=300_000)
        page.add_style_tag(content="section { content-visibility: visible !important; }")
        page.wait_for_timeout(500)
        shots = [base64.b64encode(page.locator(view).first.screenshot()).decode() for view in VIEWS]
        images = "".join(f'<img style="width:100%" src="data:image/png;base64,{shot}">' for shot in shots)
        sheet = browser.new_page(viewport={"width": 1000, "height": 300}, device_scale_factor=1.5)
        sheet.set_content(f'<body style="{FRAME}">{images}</body>')
        sheet.wait_for_timeout(1000)
        sheet.screenshot(path=TARGET, full_page=True)
        browser.close()
    print(TARGET)


if __name__ == "__main__":
    main()

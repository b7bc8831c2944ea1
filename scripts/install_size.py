"""What a clean install costs: python scripts/install_size.py [--keep DIR].

Builds the wheel and installs it into three new environments with the versions of constraints.txt: the core alone
(torch, numpy, scipy and ncollapse without its other dependencies), the usual install with the commands, and with image
folders. Prints the number of packages, the size of site-packages and the seconds pip took, downloads included.
"""

import argparse
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
INSTALLS = {
    "core alone": [["torch", "numpy", "scipy"], ["--no-deps", "{wheel}"]],
    "with the commands": [["torch"], ["{wheel}"]],
    "with image folders": [["torch"], ["{wheel}[images]"]],
}
CHECKS = {
    "core alone": [
        "-c",
        "import ncollapse as nc; print(nc.predict('ce', 3, per_class=4, weight_decay=1e-2, feature_decay=1e-2).phase)",
    ],
    "with the commands": ["-m", "ncollapse", "--version"],
    "with image folders": ["-m", "ncollapse", "env"],
}


def run(*command: str) -> str:
    return subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout


def count_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="leave the environments in this folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        home = args.keep or Path(scratch)
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", f"{home}/dist", ".")
        (wheel,) = (home / "dist").glob("*.whl")
        print(f"wheel: {wheel.stat().st_size / 1e6:.1f} MB")
        print("| install | packages | site-packages | seconds |\n| --- | --- | --- | --- |")
        for name, steps in INSTALLS.items():
            folder = home / name.replace(" ", "-")
            venv.create(folder, with_pip=True)
            python = str(folder / ("Scripts" if sys.platform == "win32" else "bin") / "python")
            (packages,) = folder.rglob("site-packages")
            before = count_bytes(packages)
            begun = time.perf_counter()
            for step in steps:
                words = [word.format(wheel=wheel) for word in step]
                run(python, "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt", *words)
            seconds = time.perf_counter() - begun
            installed = len(run(python, "-m", "pip", "freeze").splitlines())
            run(python, *CHECKS[name])
            print(
                f"| {name} | {installed} | {(count_bytes(packages) - before) / 1e6:,.0f} MB | {seconds:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()

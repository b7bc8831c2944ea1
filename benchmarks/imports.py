"""Import time of ncollapse beside torch's own: medians over fresh interpreters, taken in turn, and their ratio.

    python benchmarks/imports.py [--repeats 7]

"ncollapse" is `import ncollapse` alone; "core" also loads the losses, heads, metrics and theory behind its names.
"optimisers" adds SciPy's, which come with the first call that needs one; "train" is what `ncollapse train` imports
before it reads its options.
"""

import argparse
import statistics
import subprocess
import sys

STATEMENTS = {
    "torch": "import torch",
    "ncollapse": "import ncollapse",
    "core": "import ncollapse.frames, ncollapse.heads, ncollapse.losses, ncollapse.metrics, ncollapse.theory",
    "optimisers": "import ncollapse.theory, ncollapse.metrics, scipy.optimize",
    "train": "import ncollapse.commands.train",
}


def time_import(statement: str) -> float:
    """Return the seconds the statement takes in a fresh interpreter, without the interpreter's own start."""
    code = f"import time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description="Import time of ncollapse beside torch's own.")
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    for statement in STATEMENTS.values():
        time_import(statement)  # fills the file cache
    times: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for _ in range(repeats):
        for name, statement in STATEMENTS.items():
            times[name].append(time_import(statement))
    torch_s = statistics.median(times["torch"])
    print(f"{'import':<12}{'median s':>10}{'x torch':>10}   (n = {repeats})")
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:<12}{median:>10.3f}{median / torch_s:>10.2f}")


if __name__ == "__main__":
    main()

"""The README's Python runs as written, in order, in an empty folder; the first NC curve takes at most ten lines."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_every_block_runs_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "readme"}
    for number, block in enumerate(BLOCKS, 1):
        exec(compile(block, f"README.md, Python block {number}", "exec"), names)
    assert "NC1" in next(tmp_path.glob("*.html")).read_text(encoding="utf-8")


def test_the_first_curve_takes_ten_lines():
    block = next(block for block in BLOCKS if "nc.monitor(" in block)
    lines = [line for line in block.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert len(lines) <= 10

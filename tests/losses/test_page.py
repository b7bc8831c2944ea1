"""The example in docs/losses.md runs as printed."""

import re
from pathlib import Path


def test_the_page_on_losses():
    page = Path(__file__).parents[2] / "docs" / "losses.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names = {}
    exec(example, names)
    assert names["head"].weight.grad.any()
    assert names["objective"] > 0

"""The progress display keeps what matters on narrow terminals."""

import io

import pytest
from rich.console import Console

from ncollapse.console import progress


@pytest.mark.parametrize("width", [60, 80, 120])
def test_bar_epoch_and_time_left_stay_whole(width):
    output = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    display = progress(output)
    task = display.add_task("bce-vs-ce/setting-2", total=100, detail="")
    display.update(
        task, completed=31, detail="NC1 0.0123  accuracy 0.987  loss 0.123  NC2 0.0045  NC3 0.006  152 steps/s"
    )
    output.print(display.get_renderable())
    (line,) = output.file.getvalue().splitlines()
    assert len(line) <= width
    assert line.startswith("bce-vs-ce/setting-2 ━━━━━━")
    assert " 31/100 -:--:-- NC1" in line or width < 70
    assert " 31/100 -:--:-- " in line

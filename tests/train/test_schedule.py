"""The learning rate of each epoch against PyTorch's own schedulers."""

import pytest
import torch
from torch.optim import lr_scheduler

from ncollapse.train import OptimSpec, Recipe, ScheduleSpec
from ncollapse.train.schedule import milestones, rate_at

EPOCHS, RATE = 30, 0.05
SCHEDULES = {
    "constant": (ScheduleSpec(), lambda o: lr_scheduler.ConstantLR(o, 1.0)),
    "milestones": (
        ScheduleSpec("step", milestones=(1, 7, 20), factor=0.3),
        lambda o: lr_scheduler.MultiStepLR(o, [1, 7, 20], 0.3),
    ),
    "shares": (
        ScheduleSpec("step", milestones=(0.5, 0.75)),
        lambda o: lr_scheduler.MultiStepLR(o, [15, 22], 0.1),
    ),
    "period": (ScheduleSpec("step", period=4, factor=0.7), lambda o: lr_scheduler.StepLR(o, 4, 0.7)),
    "cosine": (ScheduleSpec("cosine", min_lr=0.002), lambda o: lr_scheduler.CosineAnnealingLR(o, EPOCHS, 0.002)),
    "cosine with a period": (ScheduleSpec("cosine", period=5), lambda o: lr_scheduler.CosineAnnealingLR(o, EPOCHS)),
    "restarts": (
        ScheduleSpec("restarts", min_lr=0.001, period=8),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 8, eta_min=0.001),
    ),
}


@pytest.mark.parametrize("lag", [0, 3])
@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_those_of_pytorch(name, lag):
    spec, make = SCHEDULES[name]
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=RATE)
    scheduler, wanted = make(optimiser), [RATE] * lag
    for _ in range(EPOCHS - lag):
        wanted.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    spec = ScheduleSpec(**{**{field: getattr(spec, field) for field in spec.__dataclass_fields__}, "lag": lag})
    recipe = Recipe(optim=OptimSpec(lr=RATE, epochs=EPOCHS), schedule=spec)
    assert [rate_at(recipe, epoch) for epoch in range(1, EPOCHS + 1)] == pytest.approx(wanted, rel=1e-9)
    assert milestones(recipe) == {"milestones": (1, 7, 20), "shares": (15, 22)}.get(name, ())

"""A loss in one file with one registration: what a user writes to add one.

Cross-entropy at temperature 2, L = 2 CE(z/2). Its conjugate follows from that of cross-entropy: (T L(./T))* = T L*.
"""

import torch.nn.functional as F

from ncollapse.losses import CELoss, ConvexForm, Loss, register

TEMPERATURE = 2.0


@register("toy")
class ToyLoss(Loss):
    contrastive = True

    def forward(self, logits, target):
        if target.ndim == 1:
            target = F.one_hot(target.long(), logits.shape[1]).to(logits)
        values = -TEMPERATURE * (target * (logits / TEMPERATURE).log_softmax(1)).sum(1)
        return values if self.reduction == "none" else values.mean()

    def convex_form(self, targets):
        return ToyForm(self, targets)


class ToyForm(ConvexForm):
    def __init__(self, loss, targets):
        super().__init__(loss, targets)
        self.plain = CELoss().convex_form(targets)

    def conjugate(self, gradient):
        return TEMPERATURE * self.plain.conjugate(gradient)

    def invert(self, gradient):
        return TEMPERATURE * self.plain.invert(gradient)

    def balance(self, gradient, shares):
        return self.plain.balance(gradient, shares)

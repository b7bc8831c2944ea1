"""Inputs of any structure, and loaders that are made anew with all their options."""

import multiprocessing
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ncollapse.features import extract, plain_order
from ncollapse.features.batches import move

X, Y = torch.randn(90, 6, generator=torch.Generator().manual_seed(0)), torch.arange(90) % 3


class Pair(NamedTuple):
    left: Tensor
    right: list[Tensor]


def test_named_tuples_are_moved_and_passed_on():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 3)

        def forward(self, left, right):
            return self.fc(left + right[0])

    pair = Pair(X, [X])
    moved = move(pair, torch.device("meta"))
    assert isinstance(moved, Pair)
    assert (moved.left.device.type, moved.right[0].device.type) == ("meta", "meta")
    assert torch.equal(extract(Net(), [(pair, Y)]).features, 2 * X)


def test_a_loader_made_anew_keeps_its_options():
    context = multiprocessing.get_context("spawn")
    options = {"num_workers": 1, "multiprocessing_context": context, "prefetch_factor": 5, "timeout": 60}
    again = plain_order(DataLoader(TensorDataset(X, Y), 30, shuffle=True, **options))
    assert again.multiprocessing_context is context
    assert (again.prefetch_factor, again.timeout, again.num_workers) == (5, 60, 1)
    assert plain_order(DataLoader(TensorDataset(X, Y), 30, shuffle=True)).prefetch_factor is None

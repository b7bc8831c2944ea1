"""Subsets hold every class, are fixed by the seed, and are found without loading samples."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import ncollapse as nc
from ncollapse.features.sampling import divide, draw_stratified, find_labels, plain_order

X, Y = torch.randn(90, 6, generator=torch.Generator().manual_seed(0)), torch.arange(90) % 3


class Named(Dataset):
    """Labels under a name; loading a sample is an error, so that reading labels must not."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise AssertionError("a sample was loaded")


@given(st.lists(st.integers(1, 60), min_size=2, max_size=12), st.data())
def test_every_class_keeps_its_share(counts, data):
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    samples = data.draw(st.integers(1, len(labels) - 1)) if len(labels) > 1 else 1
    chosen = draw_stratified(labels[torch.randperm(len(labels))], samples, seed=3)
    assert len(set(chosen.tolist())) == samples
    found = labels[draw_stratified(labels, samples, seed=3)].bincount(minlength=len(counts))
    least = min(2, samples // len(counts))
    for count, got in zip(counts, found.tolist()):
        assert min(count, least) <= got <= count
        assert got <= least + 1 + samples * count / len(labels)


def test_a_rare_class_is_never_left_out():
    labels = torch.tensor([0] * 960 + [1] * 38 + [2] * 2)
    data = TensorDataset(torch.randn(1000, 4), labels)
    loader = DataLoader(data, 50, shuffle=True)
    model = torch.nn.Linear(4, 3)
    for seed in range(20):  # at random, 50 of 1000 leave the class of two out nine times in ten
        seen = nc.monitor(model, loader, samples=50, seed=seed).observe().measurement
        assert seen.num_samples == 50
        assert seen.counts[2] == 2


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (Named(targets=[3, 1, 0, 2]), [3, 1, 0, 2]),
        (Named(labels=np.array([1, 1, 0, 0], dtype=np.uint8)), [1, 1, 0, 0]),
        (Named(labels=["cat", "dog", "cat", "dog"], targets=torch.tensor([0, 1, 0, 1])), [0, 1, 0, 1]),
        (Named(labels=[0, 1]), None),  # the names of two classes, not the labels of four samples
        (Named(y=[0.5, 1.0, 0.0, 1.0]), None),
        (Subset(Named(targets=[3, 1, 0, 2]), [2, 0]), [0, 3]),
        (ConcatDataset([Named(targets=[0, 1, 2, 3]), TensorDataset(X, Y)]), [0, 1, 2, 3, *Y.tolist()]),
        (ConcatDataset([Named(), TensorDataset(X, Y)]), None),
        (TensorDataset(X), None),
    ],
)
def test_labels_are_found_without_loading(dataset, expected):
    found = find_labels(dataset)
    assert (None if found is None else found.tolist()) == expected


def test_unknown_labels_are_said():
    class Silent(Dataset):
        def __len__(self):
            return 90

        def __getitem__(self, index):
            return X[index], Y[index]

    with pytest.warns(UserWarning, match="samples: Silent does not say its labels .* attribute `targets`"):
        batches = plain_order(DataLoader(Silent(), 30), samples=20)
    assert sum(len(y) for _, y in batches) == 20


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y))


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield from zip(X, Y)


@pytest.mark.parametrize("stream", [Stream(), Endless()])
def test_the_first_samples_of_a_stream(stream):
    model = torch.nn.Linear(6, 3)
    seen = nc.monitor(model, DataLoader(stream, 16), samples=40).observe().measurement
    assert seen == nc.measure(X[:40], Y[:40], head=model)
    batches = [(X[:50], Y[:50]), (X[50:], Y[50:])]
    assert nc.monitor(model, batches, samples=60).observe().measurement.num_samples == 60


def test_labels_of_few_bits_leave_room_for_ignored_ones():
    model, labels = torch.nn.Linear(6, 3), Y.to(torch.uint8)
    assert nc.monitor(model, [(X, labels)], samples=40).observe().measurement.num_samples == 40


def test_a_stream_is_one_process_s_own():
    assert divide(DataLoader(Stream(), 16), rank=1, size=2).divided is False
    assert divide(DataLoader(TensorDataset(X, Y), 16), rank=1, size=2).divided is True

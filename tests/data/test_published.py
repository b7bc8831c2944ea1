"""The image data sets themselves, against what is published about them; needs NCOLLAPSE_DATA."""

import pytest
import torch

from ncollapse.data import INFO, NORMALISATION, EvalLoader, load, long_tail, per_class_counts

MNIST_TRAIN = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
MNIST_TEST = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)
STATISTICS = {
    "mnist": ((0.1307,), (0.3081,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


@pytest.fixture(scope="module", params=list(STATISTICS))
def train(request, data_root):
    return load(request.param, data_root)


def test_counts_and_shapes(train):
    info = INFO[train.name]
    expected = MNIST_TRAIN if train.name == "mnist" else (info.train // info.num_classes,) * info.num_classes
    assert train.counts() == expected
    assert train.shape == info.shape


def test_pixel_statistics(train):
    mean, std = STATISTICS[train.name]
    pixels = train.images.float().div_(255)
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(mean, abs=6e-5)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx(std, abs=6e-5)


def test_subsets_the_papers_train_on(train):
    if train.name == "cifar10":
        counts = (100, 100, 200, 200, 300, 300, 400, 400, 500, 500)
        assert per_class_counts(train, counts).counts() == counts
    if train.name == "cifar100":
        tail = long_tail(train, 100)
        assert len(tail) == 10847
        assert (tail.counts()[0], tail.counts()[-1]) == (500, 5)


def test_mnist_as_the_networks_see_it(data_root):
    test = load("mnist", data_root, "test")
    assert test.counts() == MNIST_TEST
    x, _ = next(iter(EvalLoader(test, 2000, normalise=NORMALISATION["mnist"], image_size=32, channels=3)))
    assert x.shape == (2000, 3, 32, 32)
    assert torch.equal(x[:, 0], x[:, 2])
    assert float(x.min()) == pytest.approx(-0.1307 / 0.3081, abs=1e-4)


def test_class_names(data_root):
    assert load("cifar10", data_root, "test").classes[3] == "cat"
    hundred = load("cifar100", data_root, "test")
    assert (hundred.classes[0], hundred.classes[99]) == ("apple", "worm")
    assert hundred.counts() == (100,) * 100

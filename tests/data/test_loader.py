"""Batches are a function of seed, epoch and step; ranks share them; nothing is lost or doubled."""

import pytest
import torch

from ncollapse.data import NORMALISATION, Augment, Dataset, DeviceLoader, EvalLoader, load
from ncollapse.data import loader as module
from ncollapse.data.augment import normalise, resize

FULL = Augment(crop=1, flip=True, rotation=15.0, mixup=0.8, cutmix=1.0, mix_probability=0.8, label_smoothing=0.1)


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def stack(loader, epoch, start=0):
    x, y = zip(*loader.epoch(epoch, start))
    return torch.cat(x), torch.cat(y)


def test_an_epoch_is_a_permutation_without_augmentation(digits):
    marked = Dataset(torch.arange(100.0)[:, None], torch.arange(100) % 4, tuple("abcd"), "marked", "train")
    loader = DeviceLoader(marked, 16, drop_last=False, seed=1)
    first, second = stack(loader, 0), stack(loader, 1)
    assert loader.steps == len(loader) == 7
    assert torch.equal(first[0][:, 0].sort().values, torch.arange(100.0))
    assert torch.equal(first[1], first[0][:, 0].long() % 4)
    assert not torch.equal(first[0], second[0])
    assert not torch.equal(first[0], stack(DeviceLoader(marked, 16, drop_last=False, seed=2), 0)[0])
    assert len(stack(DeviceLoader(marked, 16, seed=1), 0)[0]) == 96


@pytest.mark.parametrize("augment", [None, Augment(crop=1, flip=True), FULL])
def test_batches_do_not_depend_on_history_threads_or_chunks(digits, augment, monkeypatch):
    def make():
        return DeviceLoader(digits, 100, augment=augment, seed=7, drop_last=False)

    whole = list(make().epoch(3))
    resumed = make()
    torch.set_num_threads(2)
    rest = zip(whole[5:], resumed.epoch(3, 5), strict=True)
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in rest)
    monkeypatch.setitem(module.CHUNK_BYTES, "cpu", 1)
    single = make()
    for step in (14, 2, 9):
        x, y = single.prepare(3, step)
        assert torch.equal(x, whole[step][0])
        assert torch.equal(y, whole[step][1])


@pytest.mark.parametrize("augment", [None, FULL])
@pytest.mark.parametrize("drop_last", [True, False])
def test_the_ranks_make_up_the_global_batch(digits, augment, drop_last):
    options = {"augment": augment, "seed": 4, "drop_last": drop_last}
    whole = DeviceLoader(digits, 96, **options)
    ranks = [DeviceLoader(digits, 96, rank=rank, world_size=3, **options) for rank in range(3)]
    for (x, y), *shares in zip(whole.epoch(2), *(rank.epoch(2) for rank in ranks), strict=True):
        assert torch.equal(torch.cat([share[0] for share in shares]), x)
        assert torch.equal(torch.cat([share[1] for share in shares]), y)


def test_leaving_one_augmentation_out_changes_no_other(digits):
    both = DeviceLoader(digits, 64, augment=Augment(crop=2, flip=True), seed=1)
    crop = DeviceLoader(digits, 64, augment=Augment(crop=2), seed=1)
    x, y = next(both.epoch(0))
    plain, same = next(crop.epoch(0))
    assert torch.equal(y, same)
    flipped = [not torch.equal(a, b) for a, b in zip(x, plain)]
    assert 16 < sum(flipped) < 48, "about half of the 64"
    assert all(torch.equal(a, b.flip(2) if turned else b) for a, b, turned in zip(x, plain, flipped))


def test_crops_move_along_rows_and_columns_apart():
    """A bright pixel in the middle comes to all 25 places of a padding of 2, about as often to each."""
    images = torch.zeros(2500, 1, 5, 5, dtype=torch.uint8)
    images[:, 0, 2, 2] = 255
    marked = Dataset(images, torch.arange(2500) % 2, ("a", "b"), "marked", "train")
    x, _ = stack(DeviceLoader(marked, 100, augment=Augment(crop=2), seed=0), 0)
    assert torch.equal((x != 0).flatten(1).sum(1), torch.ones(2500, dtype=torch.int64))
    places = x.flatten(1).argmax(1).bincount(minlength=25)
    assert 60 < places.min() <= places.max() < 150  # 100 expected, standard deviation 9.8


def test_normalised_three_channel_input(digits):
    options = {"image_size": 32, "channels": 3, "normalise": NORMALISATION["mnist"], "channels_last": True}
    loader = EvalLoader(digits, 500, dtype=torch.bfloat16, **options)
    x, y = next(iter(loader))
    assert x.shape == (500, 3, 32, 32)
    assert loader.shape == (3, 32, 32)
    assert x.dtype == torch.bfloat16
    assert x.is_contiguous(memory_format=torch.channels_last)
    expected = normalise(resize(digits.images[:500], 32), (0.1307,), (0.3081,), torch.bfloat16)
    assert torch.equal(x, expected.expand(-1, 3, -1, -1))
    assert torch.equal(y, digits.labels[:500])
    mixed, _ = next(DeviceLoader(digits, 64, augment=FULL, **options).epoch(0))
    assert mixed.is_contiguous(memory_format=torch.channels_last)


def test_buffers_are_filled_in_place(digits):
    loader = DeviceLoader(digits, 64, augment=FULL, seed=3)
    out = torch.zeros(64, 1, 8, 8), torch.zeros(64, 10)
    x, y = loader.prepare(1, 4, out=out)
    assert x is out[0]
    assert y is out[1]
    expected = loader.prepare(1, 4)
    assert torch.equal(out[0], expected[0])
    assert torch.equal(out[1], expected[1])


def test_evaluation_runs_through_everything_in_order_twice(digits):
    loader = EvalLoader(digits, 400)
    for _ in range(2):
        assert torch.equal(torch.cat([y for _, y in loader]), digits.labels)
    assert len(loader) == len(list(loader)) == 4
    shares = [EvalLoader(digits, 100, rank=rank, world_size=4) for rank in range(4)]
    assert torch.equal(torch.cat([y for share in shares for _, y in share]), digits.labels)


def test_the_global_generator_is_left_alone(digits):
    before = torch.get_rng_state()
    list(DeviceLoader(digits, 256, augment=FULL).epoch(0))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 5000}, "batch_size"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"batch_size": 10, "world_size": 3}, "multiple of the 3 processes"),
        ({"channels": 3, "normalise": ((0.1, 0.2), (1.0, 1.0))}, "normalise"),
        ({"augment": Augment(resized_crop=0.5)}, "resized_crop"),
    ],
)
def test_impossible_arguments_are_named(digits, options, match):
    with pytest.raises(ValueError, match=match):
        DeviceLoader(digits, **{"batch_size": 10, **options})


def test_vectors_are_not_cropped():
    with pytest.raises(ValueError, match="augment: expected a data set of images"):
        DeviceLoader(load("gaussian"), 10, augment=Augment(crop=4))

"""Whole-batch augmentation equals its naive twins, image by image."""

import numpy as np
import pytest
import torch

from ncollapse.data import augment
from ncollapse.data.augment import Augment
from ncollapse.data.mixing import Mix, draw_mix, mix_images, mix_targets
from reference import augment as naive


@pytest.fixture
def images():
    return torch.randint(1, 256, (7, 3, 9, 10), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def test_crop_equals_its_twin(images):
    top, left = torch.tensor([0, 1, 2, 3, 4, 5, 8]), torch.tensor([8, 0, 4, 4, 1, 7, 8])
    found = augment.crop(images, top, left, 4)
    for n, image in enumerate(images.numpy()):
        assert np.array_equal(found[n], naive.crop_one(image, int(top[n]), int(left[n]), 4))


def test_flip_equals_its_twin(images):
    where = torch.tensor([True, False, True, True, False, False, True])
    found = augment.flip(images, where)
    for n, image in enumerate(images.numpy()):
        assert np.array_equal(found[n], naive.flip_one(image, bool(where[n])))


def test_rotation_equals_its_twin(images):
    degrees = torch.tensor([0.0, 15.0, -15.0, 7.3, -2.1, 90.0, 44.0], dtype=torch.float64)
    found = augment.rotate(images, degrees)
    for n, image in enumerate(images.numpy()):
        twin, clear = naive.rotate_one(image, float(degrees[n]))
        assert clear.mean() > 0.5 or degrees[n] == 90
        assert np.array_equal(found[n].numpy()[:, clear], twin[:, clear])


def test_rotation_gives_the_pixels_of_pillow():
    """What torchvision's RandomRotation does to an image: nearest neighbour, black outside. A few pixels are ties."""
    pillow = pytest.importorskip("PIL.Image")
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (50, 32, 32, 3), dtype=np.uint8)
    degrees = generator.uniform(-15, 15, len(images))
    ours = augment.rotate(torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(degrees))
    theirs = [np.asarray(pillow.fromarray(image).rotate(angle)) for image, angle in zip(images, degrees)]
    assert (ours.permute(0, 2, 3, 1).numpy() != np.stack(theirs)).mean() < 1e-3


def test_a_quarter_turn_of_a_square_is_exact():
    x = torch.arange(1, 17, dtype=torch.uint8).reshape(1, 1, 4, 4)
    assert torch.equal(augment.rotate(x, torch.tensor([90.0])), torch.rot90(x, 1, (2, 3)))


def test_resize_equals_its_twin(images):
    found = augment.resize(images, 16)
    assert found.dtype == torch.uint8
    for n, image in enumerate(images.numpy()):
        twin = naive.resize_one(image.astype(float), 16)
        assert np.abs(found[n].numpy() - twin).max() <= 0.5 + 1e-3


def test_normalise_uses_the_unit_scale_for_bytes(images):
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    found = augment.normalise(images, mean, std)
    for c in range(3):
        assert torch.allclose(found[:, c], (images[:, c].double() / 255 - mean[c]).div(std[c]).float(), atol=1e-5)
    same = augment.normalise(images.float(), mean, std)
    assert torch.allclose(same[:, 1], (images[:, 1].float() - mean[1]) / std[1])


def test_random_draws_cover_their_range():
    generator = torch.Generator().manual_seed(1)
    top, left = augment.draw_crop(4000, 4, generator)
    assert set(top.tolist()) == set(left.tolist()) == set(range(9))
    assert 0.45 < augment.draw_flip(4000, generator).float().mean() < 0.55
    angles = augment.draw_rotation(4000, 15.0, generator)
    assert -15 <= angles.min() < -14.8
    assert 14.8 < angles.max() <= 15


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_mixing_equals_its_twin(smoothing):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(4, 6, 3, 8, 9, generator=generator)
    y = torch.randint(5, (4, 6), generator=generator)
    boxes = torch.tensor([[0, 0, 0, 0], [2, 6, 1, 9], [0, 0, 0, 0], [0, 3, 0, 2]])
    share = torch.tensor([0.3, 1 - 32 / 72, 1.0, 1 - 6 / 72])
    mix = Mix(share, boxes)
    mixed, targets = mix_images(x, mix), mix_targets(y, 5, mix, smoothing)
    for s in range(4):
        twin = naive.mix_batch(x[s].numpy(), y[s].numpy(), 5, float(share[s]), boxes[s].tolist(), smoothing)
        assert np.allclose(mixed[s], twin[0], atol=1e-6)
        assert np.allclose(targets[s], twin[1], atol=1e-6)
    assert torch.allclose(targets.sum(-1), torch.ones(4, 6))


def test_mix_draws_follow_the_probabilities():
    augmentation = Augment(mixup=0.8, cutmix=1.0, mix_probability=0.8, switch_probability=0.5)
    mix = draw_mix(20_000, 32, 32, augmentation, torch.Generator().manual_seed(3))
    boxed = (mix.box != 0).any(1)
    assert abs(float((mix.share < 1).float().mean()) - 0.8) < 0.02
    assert 0.36 < float(boxed.float().mean()) < 0.41
    blended = mix.share[(mix.share < 1) & ~boxed]
    # Beta(0.8, 0.8) has mean 1/2 and variance 1 / (4 (2 * 0.8 + 1))
    assert abs(float(blended.mean()) - 0.5) < 0.01
    assert abs(float(blended.var()) - 1 / (4 * 2.6)) < 0.005
    area = (mix.box[:, 1] - mix.box[:, 0]) * (mix.box[:, 3] - mix.box[:, 2])
    assert torch.allclose(mix.share[boxed], 1 - area[boxed] / 1024)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, (False, False, False)),
        ({"mixup": 0.8}, (True, True, False)),
        ({"cutmix": 0.4}, (True, True, False)),
        ({"mixup": 0.8, "cutmix": 1.0, "mix_probability": 0.5}, (True, True, False)),
        ({"mixup": 0.8, "cutmix": 1.0, "mix_probability": 0.0}, (False, False, False)),
        ({"mix_probability": 0.5}, (False, False, False)),
        ({"label_smoothing": 0.1}, (False, True, False)),
        ({"crop": 1}, (False, False, True)),
        ({"flip": True}, (False, False, True)),
        ({"rotation": 0.5}, (False, False, True)),
        ({"resized_crop": 0.2}, (False, False, True)),
    ],
)
def test_what_an_augmentation_does(settings, found):
    augmentation = Augment(**settings)
    assert (augmentation.mixes, augmentation.soft_targets, augmentation.spatial) == found


def test_one_kind_of_mixing_alone():
    generator = torch.Generator().manual_seed(4)
    assert not draw_mix(100, 8, 8, Augment(mixup=0.8), generator).box.any()
    cut = draw_mix(100, 8, 8, Augment(cutmix=1.0), generator)
    assert all((share == 1) or box.any() for share, box in zip(cut.share, cut.box))


@pytest.mark.parametrize(
    ("bad", "name"),
    [
        ({"crop": -1}, "crop"),
        ({"crop": 1.5}, "crop"),
        ({"rotation": 200.0}, "rotation"),
        ({"mix_probability": 1.2}, "mix_probability"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"mixup": float("nan")}, "mixup"),
    ],
)
def test_impossible_values_are_named(bad, name):
    with pytest.raises(ValueError, match=f"augment.{name}"):
        Augment(**bad)


@pytest.mark.parametrize("value", ["x", None])
def test_values_that_are_no_numbers_are_named(value):
    with pytest.raises(TypeError, match=r"augment\.flip: expected a number, got"):
        Augment(flip=value)


def test_every_draw_of_a_mix_is_a_new_one():
    """One draw after another from one generator, and the first of two."""
    settings = Augment(mixup=1.0, cutmix=1.0, switch_probability=0.5)
    generator = torch.Generator().manual_seed(0)
    first, second = (draw_mix(2000, 64, 64, settings, generator) for _ in range(2))
    other = draw_mix(2000, 64, 64, settings, torch.Generator().manual_seed(1))
    again = draw_mix(2000, 64, 64, settings, torch.Generator().manual_seed(0))
    assert torch.equal(first.share, again.share)
    assert torch.equal(first.box, again.box)
    for one, two in ((first, second), (first, other)):
        blended = ~(one.box.any(1) | two.box.any(1))
        assert blended.sum() > 400
        assert abs(np.corrcoef(one.share[blended], two.share[blended])[0, 1]) < 0.15


def test_images_of_floats_are_moved_like_bytes(images):
    degrees = torch.tensor([0.0, 15.0, -15.0, 7.3, -2.1, 90.0, 44.0], dtype=torch.float64)
    assert torch.equal(augment.rotate(images.double(), degrees), augment.rotate(images, degrees).double())
    top, left = torch.arange(7), torch.arange(7).flip(0)
    assert torch.equal(augment.crop(images.double(), top, left, 4), augment.crop(images, top, left, 4).double())
    resized = augment.resize(images.double(), 5)
    assert resized.dtype == torch.float64
    assert (resized - augment.resize(images, 5)).abs().max() <= 0.5 + 1e-3


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_normalising_leaves_the_images_as_they_were(images, dtype):
    given = images.to(dtype)
    kept = given.clone()
    augment.normalise(given, (0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
    assert torch.equal(given, kept)

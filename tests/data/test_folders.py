"""Image folders: classes, missing ones, streaming with the face and the draws of the resident loaders."""

import random

import pytest
import torch

from ncollapse.data import (
    Augment,
    DeviceLoader,
    EvalLoader,
    FolderEvalLoader,
    FolderLoader,
    MissingSplit,
    decoding,
    eval_loader,
    folders,
    load,
    loader_factory,
    samples_per_class,
    train_loader,
    validation_split,
)
from ncollapse.data.decoding import decode, draw_window
from ncollapse.data.folders import load_mini_imagenet

Image = pytest.importorskip("PIL.Image")
MIXED = Augment(crop=2, flip=True, mixup=0.8, cutmix=1.0, label_smoothing=0.1)


def write_image(path, shade, size=(12, 9)):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [(shade, (7 * place) % 256, place % 200) for place in range(size[0] * size[1])]
    image = Image.new("RGB", size)
    image.putdata(rows)
    image.save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    for part, count in (("train", 8), ("val", 3)):
        for label, name in enumerate(("ant", "bee", "cat")):
            for number in range(count):
                write_image(root / part / name / f"{number}.png", 80 * label + number)
    return root


@pytest.fixture
def data(folder):
    return load(f"folder:{folder}")


def test_classes_and_files(folder, data):
    assert data.classes == ("ant", "bee", "cat")
    assert data.counts() == (8, 8, 8)
    assert load(f"folder:{folder}", split="test").counts() == (3, 3, 3)


def test_dot_files_are_no_images(tmp_path):
    for part in ("train", "test"):
        for name in ("ant", "bee"):
            write_image(tmp_path / part / name / "0.png", 1)
            (tmp_path / part / name / "._0.png").write_bytes(b"Mac OS X")
            (tmp_path / part / name / ".hidden.jpg").touch()
    found = load(f"folder:{tmp_path}")
    assert found.counts() == (1, 1)
    assert len(decode(found, 8, workers=0).images) == 2


def test_subsets_of_folders(data):
    few = samples_per_class(data, 5, seed=1)
    assert few.counts() == (5, 5, 5)
    assert set(few.paths) <= set(data.paths)
    rest, held = validation_split(data, 0.25)
    assert (rest.counts(), held.counts()) == ((6, 6, 6), (2, 2, 2))
    assert held.split == "validation"


def test_decoding_cuts_the_centre(data):
    images = decode(data, 9, workers=0).images
    assert images.shape == (24, 3, 9, 9)
    with Image.open(data.paths[5]) as file:
        from numpy import asarray

        # (12 - 9) / 2 lies between two pixels: Pillow resamples the box it is given
        expected = asarray(file.convert("RGB").resize((9, 9), Image.Resampling.BILINEAR, box=(1.5, 0, 10.5, 9)))
    assert torch.equal(images[5].permute(1, 2, 0), torch.from_numpy(expected.copy()))


@pytest.mark.parametrize("augment", [None, MIXED])
def test_streams_equal_the_resident_loader(data, augment):
    resident = DeviceLoader(decode(data, 8, workers=0), 10, augment=augment, seed=5, drop_last=False)
    stream = FolderLoader(data, 10, image_size=8, augment=augment, seed=5, drop_last=False, workers=0)
    assert stream.steps == resident.steps == 3
    for (x, y), (other, target) in zip(resident.epoch(2), stream.epoch(2), strict=True):
        assert torch.allclose(x, other, atol=1e-6)
        assert torch.equal(y, target)
    x, y = stream.prepare(2, 1)
    assert torch.allclose(x, resident.prepare(2, 1)[0], atol=1e-6)
    assert torch.allclose(stream.prepare(2, 2)[0], resident.prepare(2, 2)[0], atol=1e-6)


@pytest.mark.parametrize("augment", [Augment(resized_crop=0.2, flip=True), MIXED])
def test_ranks_of_a_stream_make_up_the_batch(data, augment):
    options = {"image_size": 8, "augment": augment, "seed": 2, "workers": 0}
    whole = FolderLoader(data, 12, **options)
    ranks = [FolderLoader(data, 12, rank=rank, world_size=3, **options) for rank in range(3)]
    for (x, y), *shares in zip(whole.epoch(1), *(rank.epoch(1) for rank in ranks), strict=True):
        assert torch.allclose(torch.cat([share[0] for share in shares]), x, atol=1e-6)
        assert torch.allclose(torch.cat([share[1] for share in shares]), y)


def test_workers_change_nothing(data):
    options = {"image_size": 8, "augment": Augment(resized_crop=0.1), "seed": 2}
    alone = FolderLoader(data, 10, workers=0, **options)
    helped = FolderLoader(data, 10, workers=1, **options)
    for epoch in range(2):
        for (x, y), (other, target) in zip(alone.epoch(epoch), helped.epoch(epoch), strict=True):
            assert torch.equal(x, other)
            assert torch.equal(y, target)


def test_few_images_wait_for_no_workers(data, monkeypatch):
    asked = []

    class Workers(decoding.DecodingWorkers):
        def __init__(self, decoder, workers, device):
            asked.append(workers)
            super().__init__(decoder, 0, device)

    monkeypatch.setattr(decoding, "DecodingWorkers", Workers)
    images = decode(data, 8).images
    monkeypatch.setattr(decoding, "DECODED_ALONE", len(data) - 1)
    assert torch.equal(decode(data, 8).images, images)
    assert asked == [0, None]


def test_evaluation_in_order(data):
    loader = FolderEvalLoader(data, 7, image_size=8, workers=0)
    resident = EvalLoader(decode(data, 8, workers=0), 7)
    for _ in range(2):
        assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(loader, resident))
    assert len(loader) == 4
    shares = [FolderEvalLoader(data, 7, image_size=8, rank=rank, world_size=2, workers=0) for rank in range(2)]
    assert torch.equal(torch.cat([y for share in shares for _, y in share]), data.labels)


def test_the_loader_that_fits_is_chosen(data, monkeypatch):
    options = {"image_size": 8, "workers": 0}
    assert isinstance(train_loader(data, 6, **options), DeviceLoader)
    with monkeypatch.context() as patch:
        patch.setattr(loader_factory, "decode", None)  # decoded once, for training
        assert isinstance(eval_loader(data, 6, **options), EvalLoader)
    assert isinstance(train_loader(data, 6, augment=Augment(resized_crop=0.1), **options), FolderLoader)
    monkeypatch.setattr(loader_factory, "RESIDENT_BYTES", 100)
    assert isinstance(train_loader(data, 6, **options), FolderLoader)
    assert isinstance(eval_loader(data, 6, **options), FolderEvalLoader)
    assert isinstance(train_loader(load("digits"), 6), DeviceLoader)
    assert isinstance(eval_loader(load("digits"), 6), EvalLoader)
    with pytest.raises(ValueError, match="image_size"):
        train_loader(data, 6)


def test_windows_have_the_area_and_aspect_asked_for():
    source = random.Random(0)
    for _ in range(500):
        left, top, right, bottom = draw_window(100, 80, 0.25, source)
        assert 0 <= left < right <= 100
        assert 0 <= top < bottom <= 80
        assert (right - left) * (bottom - top) >= 0.24 * 8000
        assert 0.72 <= (right - left) / (bottom - top) <= 1.37
    # an extreme panorama: no draw fits, the widest allowed window in the centre
    assert draw_window(1000, 10, 1.0, source) == pytest.approx((500 - 20 / 3, 0, 500 + 20 / 3, 10))


def test_a_missing_class_folder_is_named(folder, tmp_path):
    write_image(tmp_path / "train" / "ant" / "0.png", 1)
    write_image(tmp_path / "train" / "bee" / "0.png", 1)
    with pytest.raises(MissingSplit, match=r"test or .*val"):
        load(f"folder:{tmp_path}", split="test")
    write_image(tmp_path / "test" / "ant" / "0.png", 1)
    with pytest.raises(ValueError, match="test has no class folder bee"):
        load(f"folder:{tmp_path}")
    (tmp_path / "test" / "bee").mkdir()
    with pytest.raises(ValueError, match="holds no image"):
        load(f"folder:{tmp_path}", split="test")
    with pytest.raises(FileNotFoundError, match="no folder"):
        load(f"folder:{tmp_path / 'nowhere'}")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_is_named(tmp_path, workers):
    for part in ("train", "test"):
        for name in ("ant", "bee"):
            write_image(tmp_path / part / name / "0.png", 1)
    broken = tmp_path / "train" / "bee" / "0.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(ValueError, match=rf"cannot decode {broken}"):
        decode(load(f"folder:{tmp_path}"), 8, workers=workers)


@pytest.mark.parametrize("few_shot", [False, True])
def test_mini_imagenet_is_split_over_all_classes(tmp_path, monkeypatch, few_shot):
    monkeypatch.setattr(folders, "MINI_CLASSES", 6)
    monkeypatch.setattr(folders, "MINI_PER_CLASS", 12)
    monkeypatch.setattr(folders, "MINI_TEST", 2)
    for label in range(6):
        home = tmp_path / ("train", "val", "test")[label // 2] if few_shot else tmp_path
        (home / f"n{label}").mkdir(parents=True)
        for number in range(12):
            (home / f"n{label}" / f"{number:02}.jpg").touch()
    train, test = load_mini_imagenet(tmp_path, "train"), load_mini_imagenet(tmp_path, "test")
    assert (train.counts(), test.counts()) == ((10,) * 6, (2,) * 6)
    assert not set(train.paths) & set(test.paths)
    assert train.record[-1]["draw"] == "split"
    next(tmp_path.rglob("00.jpg")).unlink()
    with pytest.raises(ValueError, match="6 class folders of 12 images; found 6 of 11 to 12"):
        load_mini_imagenet(tmp_path, "train")

"""Readers of files made here: what is right is read, what is wrong is refused with the reason."""

import gzip
import io
import pickle
import struct

import numpy as np
import pytest
import torch

from ncollapse.data import INFO, Dataset, MissingSplit, load
from ncollapse.data.catalogue import list_files
from ncollapse.data.cifar import load_cifar, read_pickle
from ncollapse.data.idx import DIGITS, load_idx, read_idx
from ncollapse.data.splits import split_stratified


def idx_bytes(array):
    return b"\x00\x00\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_round_trip(tmp_path, zipped):
    images = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
    labels = np.arange(20, dtype=np.uint8) % 10
    for name, array in (("t10k-images-idx3-ubyte", images), ("t10k-labels-idx1-ubyte", labels)):
        raw = idx_bytes(array)
        (tmp_path / (name + ".gz" * zipped)).write_bytes(gzip.compress(raw) if zipped else raw)
    data = load_idx(tmp_path, "test", "mnist", DIGITS)
    assert np.array_equal(data.images[:, 0], images)
    assert np.array_equal(data.labels, labels)
    with pytest.raises(FileNotFoundError, match="train-images-idx3-ubyte"):
        load_idx(tmp_path, "train", "mnist", DIGITS)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda raw: raw[:-1], "truncated: shape .* needs 45 bytes, it has 44"),
        (lambda raw: raw[:10], "its header alone takes 16"),
        (lambda raw: raw + b"x", "too long"),
        (lambda raw: b"", "starts with nothing"),
        (lambda raw: b"\x00\x00\x0d" + raw[3:], "no idx file"),
        (lambda raw: gzip.compress(raw)[:-9], "truncated gzip"),
    ],
)
def test_broken_idx_is_refused(tmp_path, change, match):
    path = tmp_path / "file"
    path.write_bytes(change(idx_bytes(np.ones((5, 3, 3), np.uint8))))
    with pytest.raises(ValueError, match=match):
        read_idx(path)


def test_mnist_of_the_wrong_size_is_refused(tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    (folder / "train-images-idx3-ubyte").write_bytes(idx_bytes(np.ones((5, 28, 28), np.uint8)))
    (folder / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.ones(5, np.uint8)))
    with pytest.raises(ValueError, match=r"must hold 60000 images .* the files hold 5"):
        load("mnist", tmp_path)


def write_cifar(folder, protocol, count=4):
    rng = np.random.default_rng(0)
    batch = {b"data": rng.integers(0, 256, (count, 3072), dtype=np.uint8), b"fine_labels": [0, 1, 2, 1][:count]}
    (folder / "train").write_bytes(pickle.dumps(batch, protocol=protocol))
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"apple", b"baby", b"bear"]}, protocol=protocol))
    return batch


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_cifar_is_read_whatever_the_protocol(tmp_path, protocol):
    batch = write_cifar(tmp_path, protocol)
    data = load_cifar(tmp_path, "train", "cifar100")
    assert np.array_equal(data.images.reshape(4, -1), batch[b"data"])
    assert data.labels.tolist() == [0, 1, 2, 1]
    assert data.classes == ("apple", "baby", "bear")


def test_cifar_of_python_2(tmp_path):
    # what cPickle of Python 2 wrote: byte strings, and numpy's old module name
    raw = bytes(range(12))
    parts = [
        b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R",
        b"(K\x01K\x03K\x04\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
        b"\x89U\x0c" + raw + b"tbs.",
    ]
    path = tmp_path / "batch"
    path.write_bytes(b"".join(parts))
    found = read_pickle(path)
    assert np.array_equal(found["data"], np.frombuffer(raw, np.uint8).reshape(3, 4))


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_malicious_pickle_is_not_run(tmp_path):
    write_cifar(tmp_path, 2)
    victim = tmp_path / "victim"
    (tmp_path / "train").write_bytes(pickle.dumps({b"data": Evil(victim)}))
    with pytest.raises(ValueError, match=r"io\.open.*refused, nothing was run"):
        load_cifar(tmp_path, "train", "cifar100")
    assert not victim.exists()


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (np.array([{"a": 1}], dtype=object), "array of type"),
        (np.ones(3), "array of type"),
        (np.random.default_rng(0), "refused"),
        (complex(1, 2), "builtins.complex"),
        (eval, "builtins.eval"),
    ],
)
def test_only_bytes_come_in(tmp_path, content, match):
    path = tmp_path / "file"
    path.write_bytes(pickle.dumps({b"data": content}, protocol=2).replace(b"__builtin__", b"builtins"))
    with pytest.raises(ValueError, match=match):
        read_pickle(path)


@pytest.mark.parametrize("raw", [b"", b"hello", b"\x80\x02}", b"\x80\x04K\x01.", b"\x80\x02(cos\nsystem\nS'true'\no."])
def test_broken_pickles_are_refused(tmp_path, raw):
    path = tmp_path / "file"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=str(path)):
        read_pickle(path)


def test_a_truncated_batch_is_refused(tmp_path):
    write_cifar(tmp_path, 2)
    path = tmp_path / "train"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="damaged or truncated"):
        load_cifar(tmp_path, "train", "cifar100")


# {"data": numpy's _reconstruct(ndarray, (0,), "b")}, and never a state that fills it
HOLLOW = b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87Rs."


def test_an_array_that_is_never_filled(tmp_path):
    write_cifar(tmp_path, 2)
    (tmp_path / "train").write_bytes(HOLLOW)
    with pytest.raises(ValueError, match=r"train is a damaged or truncated pickle: an array is never filled"):
        load_cifar(tmp_path, "train", "cifar100")


@pytest.mark.parametrize("wrong", [-1, 3, 2**80, 10**5000, True, None, b"1"], ids=lambda wrong: type(wrong).__name__)
def test_cifar_labels_that_name_no_class(tmp_path, wrong):
    batch = write_cifar(tmp_path, 2)
    (tmp_path / "train").write_bytes(pickle.dumps({**batch, b"fine_labels": [0, 1, wrong, 2]}, protocol=2))
    with pytest.raises(ValueError, match=r"train: fine_labels must be a list of whole numbers 0..2; that of image 2"):
        load_cifar(tmp_path, "train", "cifar100")


def test_cifar_names_that_are_none(tmp_path):
    write_cifar(tmp_path, 2)
    (tmp_path / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"apple", 3]}, protocol=2))
    with pytest.raises(ValueError, match="meta: fine_label_names must be a list of strings"):
        load_cifar(tmp_path, "train", "cifar100")


def test_digits_are_split_once_and_for_all():
    train, test = load("digits"), load("digits", split="test")
    assert (len(train), len(test)) == (INFO["digits"].train, INFO["digits"].test)
    assert train.images.dtype == torch.uint8
    assert int(train.images.max()) == 255
    from sklearn.datasets import load_digits

    bunch = load_digits()
    whole = torch.cat([train.images, test.images]).double().mul(16 / 255).round().sort(0).values
    assert torch.equal(whole[:, 0], torch.from_numpy(bunch.images).sort(0).values)
    assert torch.equal(
        torch.bincount(torch.cat([train.labels, test.labels])), torch.bincount(torch.tensor(bunch.target))
    )


@pytest.mark.parametrize("shape", [(6, 3, 5, 4), (6, 5, 4), (6, 5, 4, 3)])
def test_npz_images(tmp_path, shape):
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.savez(
        tmp_path / "a.npz", images=images, labels=np.arange(6) % 3, test_images=images, test_labels=np.arange(6) % 2
    )
    data = load(f"npz:{tmp_path / 'a.npz'}")
    assert data.shape == (1 if len(shape) == 3 else 3, 5, 4)
    assert data.num_classes == 3
    test = load(f"npz:{tmp_path / 'a.npz'}", split="test")
    assert (test.labels.tolist(), test.num_classes) == ([0, 1, 0, 1, 0, 1], 3)


def test_npz_vectors_and_names(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(4, 7))
    np.savez(tmp_path / "a.npz", images=vectors, labels=[0, 1, 1, 0], classes=["cat", "dog"])
    data = load(f"npz:{tmp_path / 'a.npz'}")
    assert data.images.dtype == torch.float32
    assert data.classes == ("cat", "dog")
    with pytest.raises(MissingSplit, match="test_images and test_labels"):
        load(f"npz:{tmp_path / 'a.npz'}", split="test")


@pytest.mark.parametrize("half", ["test_images", "test_labels"])
def test_half_a_test_set_is_refused(tmp_path, half):
    """A misspelt name would silently be replaced by a fifth of the training samples."""
    np.savez(tmp_path / "a.npz", images=np.ones((4, 7)), labels=[0, 1, 1, 0], **{half: np.ones((4, 7))})
    for split in ("train", "test"):
        with pytest.raises(ValueError, match=f"both test_images and test_labels or neither, got {half} alone"):
            load(f"npz:{tmp_path / 'a.npz'}", split=split)


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint64])
def test_npz_labels_of_every_whole_type(tmp_path, kind):
    np.savez(tmp_path / "a.npz", images=np.ones((3, 2)), labels=np.array([0, 2, 1], kind))
    data = load(f"npz:{tmp_path / 'a.npz'}")
    assert (data.labels.tolist(), data.labels.dtype, data.num_classes) == ([0, 2, 1], torch.int64, 3)


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"images": np.ones((3, 2)), "labels": np.ones(3)}, "whole numbers"),
        ({"images": np.ones((3, 2)), "labels": np.array([0, 1, 2]), "classes": ["a", "b"]}, "0..1, got 0..2"),
        ({"images": np.ones((3, 2)), "labels": np.array(["a", "b", "c"])}, "labels must be whole numbers, got <U1"),
        ({"images": np.ones((3, 2)), "labels": np.zeros(4, int)}, r"labels: expected int64 \[3\]"),
        ({"images": np.full((3, 2), np.nan), "labels": np.zeros(3, int)}, "NaN"),
        ({"images": np.full((3, 2), 1e39), "labels": np.zeros(3, int)}, "numbers of 32 bits, of at most 3.4e"),
        ({"images": np.ones((3, 2)), "labels": np.array([1, 2, 3])}, "no training sample has the label 0: labels - 1"),
        ({"images": np.ones((3, 2)), "labels": np.array([0, 2, 5])}, "has the label 1, 3, 4: numpy.unique"),
        ({"images": np.ones((3, 2)), "labels": np.array([-1, 0, 1])}, "0..1, got -1..1"),
        ({"images": np.ones((3, 2), int), "labels": np.zeros(3, int)}, "uint8 or floating point"),
        ({"pictures": np.ones(3)}, "it has pictures"),
    ],
)
def test_npz_that_does_not_fit_is_refused(tmp_path, arrays, match):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=match):
        load(f"npz:{tmp_path / 'a.npz'}")


@pytest.mark.parametrize("split", ["train", "test"])
def test_npz_with_test_labels_of_a_class_without_training_samples(tmp_path, split):
    arrays = {"images": np.ones((3, 2)), "labels": np.array([0, 1, 1]), "test_images": np.ones((6, 2))}
    np.savez(tmp_path / "a.npz", **arrays, test_labels=np.array([0, 7, 6, 1, 3, 2]))
    match = r"a\.npz: the array labels has no class 2, 3, 6 and 1 more, the array test_labels has"
    with pytest.raises(ValueError, match=match):
        load(f"npz:{tmp_path / 'a.npz'}", split=split)
    np.savez(tmp_path / "b.npz", **arrays, test_labels=np.array([0, 2, 1, 1, 1, 2]), classes=["a", "b", "c"])
    assert load(f"npz:{tmp_path / 'b.npz'}", split=split).num_classes == 3  # meant, since they have names


def test_npz_may_name_classes_that_it_does_not_train(tmp_path):
    names = {"classes": ["a", "b", "c"]}
    np.savez(tmp_path / "a.npz", images=np.ones((3, 2)), labels=np.array([0, 2, 2]), **names)
    assert load(f"npz:{tmp_path / 'a.npz'}").num_classes == 3


def test_no_npz_at_all(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04nonsense")
    with pytest.raises(ValueError, match=r"a\.npz: not a readable \.npz file"):
        load(f"npz:{tmp_path / 'a.npz'}")
    with pytest.raises(FileNotFoundError):
        load(f"npz:{tmp_path / 'b.npz'}")


def npy_bytes(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def damage(raw):
    """A deflate stream whose first block is of a type that does not exist."""
    start = raw.index(b"images.npy") + len(b"images.npy") + struct.unpack("<H", raw[28:30])[0]
    return raw[:start] + b"\xff" * 8 + raw[start + 8 :]


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    ("write", "match"),
    [
        (lambda path, arrays: path.write_text("images, labels\n1, 2\n"), "not a readable .npz file"),
        (lambda path, arrays: path.write_bytes(b""), "not a readable .npz file"),
        (lambda path, arrays: path.write_bytes(npy_bytes(arrays["images"])), "a single array, not an .npz archive"),
        (
            lambda path, arrays: np.savez(path, **{key: value.astype(object) for key, value in arrays.items()}),
            "images holds pickled objects",
        ),
        (
            lambda path, arrays: np.savez(path, **arrays, classes=np.array([{}, {}], object)),
            "classes holds pickled objects",
        ),
        (lambda path, arrays: np.savez(path, **{key: value[:0] for key, value in arrays.items()}), "holds no samples"),
        (
            lambda path, arrays: np.savez(path, **{**arrays, "test_images": np.ones((4, 3))}),
            r"images are \[2\] each, but test_images \[3\]",
        ),
        (
            lambda path, arrays: np.savez(path, **{key: value + 10**12 for key, value in arrays.items()}),
            "labels: expected values below 1000000, got 1000000000001",
        ),
    ],
    ids=["text", "nothing", "npy", "objects", "names", "empty", "shapes", "labels"],
)
def test_a_file_that_is_no_npz_of_ours_is_named(tmp_path, write, match, split):
    path = tmp_path / "a.npz"
    arrays = {"images": np.ones((4, 2)), "labels": np.arange(4) % 2}
    write(path, {**arrays, **{f"test_{key}": value for key, value in arrays.items()}})
    with pytest.raises(ValueError, match=match) as error:
        load(f"npz:{path}", split=split)
    assert str(error.value).startswith(str(path))


def test_a_damaged_deflate_stream_is_named(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, images=np.random.default_rng(0).normal(size=(40, 20)), labels=np.arange(40) % 2)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"a\.npz: not a readable \.npz file"):
        load(f"npz:{path}")


def test_npz_images_of_one_shape_in_two_layouts(tmp_path):
    last, first = np.zeros((4, 5, 6, 3), np.uint8), np.zeros((4, 3, 5, 6), np.uint8)
    labels = {"labels": np.arange(4), "test_labels": np.arange(4)}
    np.savez(tmp_path / "a.npz", images=last, test_images=first, **labels)
    for split in ("train", "test"):
        assert load(f"npz:{tmp_path / 'a.npz'}", split=split).shape == (3, 5, 6)


def test_nothing_cannot_be_split():
    with pytest.raises(ValueError, match=r"^labels: no samples"):
        split_stratified(torch.zeros(0, dtype=torch.int64), 0.2, seed=0)


@pytest.mark.parametrize(("geometry", "cosine"), [("etf", -1 / 3), ("orthogonal", 0.0)])
def test_gaussian_means_have_their_geometry(geometry, cosine):
    data = load(f"gaussian:num_classes=4,dim=8,per_class=50,geometry={geometry},std=0.0")
    means = torch.stack([data.images[data.labels == k].mean(0) for k in range(4)])
    expected = torch.full((4, 4), cosine).fill_diagonal_(1.0)
    assert torch.allclose(means @ means.T, expected, atol=1e-5)


def test_gaussian_noise_and_splits():
    name = "gaussian:num_classes=3,dim=5,per_class=4000,test_per_class=7,std=0.5,seed=9"
    train, test = load(name), load(name, split="test")
    assert train.counts() == (4000,) * 3
    assert test.counts() == (7,) * 3
    spread = torch.cat([train.images[train.labels == k] - train.images[train.labels == k].mean(0) for k in range(3)])
    assert abs(float(spread.std()) - 0.5) < 0.01
    assert torch.equal(load(name).images, train.images)
    assert not torch.equal(train.images[:7], test.images[:7])


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("gaussian:size=3", "no option 'size'"),
        ("gaussian:dim=two", "dim: expected a whole number, got 'two'"),
        ("gaussian:dim=2", "dim >= 9"),
        ("gaussian:geometry=cube", "geometry"),
        ("imagenette", "data set: expected .*got 'imagenette'"),
        ("npz:", "data set: expected .*got 'npz:'"),
    ],
)
def test_unknown_names_and_options(name, match):
    with pytest.raises(ValueError, match=match):
        load(name)


def test_a_missing_data_set_says_where_it_goes(tmp_path, monkeypatch):
    monkeypatch.delenv("NCOLLAPSE_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"cifar-10-batches-py"):
        load("cifar10", tmp_path)
    with pytest.raises(ValueError, match="NCOLLAPSE_DATA"):
        load("cifar10")
    with pytest.raises(ValueError, match="split: expected"):
        load("digits", split="validation")


@pytest.mark.parametrize(
    ("images", "labels", "match"),
    [
        (torch.zeros(2, 3, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), "images: expected"),
        (torch.zeros(2, 3), torch.zeros(2), "labels: expected int64"),
        (torch.zeros(2, 3), torch.tensor([0, 5]), "0..1"),
    ],
)
def test_a_data_set_checks_itself(images, labels, match):
    with pytest.raises(ValueError, match=match):
        Dataset(images, labels, ("a", "b"), "toy", "train")


def test_a_home_folder_in_a_name_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    np.savez(tmp_path / "mine.npz", images=np.zeros((4, 3), np.float32), labels=np.array([0, 1, 0, 1]))
    assert len(load("npz:~/mine.npz")) == 4
    assert list_files("npz:~/mine.npz", None) == [tmp_path / "mine.npz"]

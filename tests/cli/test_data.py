"""`ncollapse data list|check`."""

import json
import pickle

import numpy as np
import pytest

from ncollapse.cli import main
from ncollapse.data import INFO
from ncollapse.data.check import check_data


@pytest.fixture(autouse=True)
def no_root(monkeypatch):
    monkeypatch.delenv("NCOLLAPSE_DATA", raising=False)


def write_cifar10(root):
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    names = [name.encode() for name in "abcdefghij"]
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}, protocol=2))
    batch = {b"data": np.zeros((10_000, 3072), np.uint8), b"labels": [n % 10 for n in range(10_000)]}
    raw = pickle.dumps(batch, protocol=3)
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        (folder / name).write_bytes(raw)
    return folder


def run_json(capsys, *args):
    code = main(["data", *args, "--json"])
    found = json.loads(capsys.readouterr().out)
    return code, {item["name"]: item for item in found["data"]}


def test_list_tells_where_to_put_what_is_missing(tmp_path, capsys):
    (tmp_path / "cifar-100-python").mkdir()
    code, found = run_json(capsys, "list", "--root", str(tmp_path))
    assert code == 0
    assert list(found) == list(INFO)
    assert found["digits"]["state"] == "embedded"
    assert found["cifar100"]["state"] == "there"
    assert found["mnist"]["state"] == "missing"
    assert found["mnist"]["where"] == str(tmp_path / "MNIST" / "raw")
    assert main(["data", "list", "--root", str(tmp_path)]) == 0
    assert "put it into" in capsys.readouterr().out


def test_list_without_a_root(capsys):
    assert main(["data", "list"]) == 0
    assert "NCOLLAPSE_DATA" in capsys.readouterr().out


def test_check_reads_and_compares_sums(tmp_path, capsys, monkeypatch):
    write_cifar10(tmp_path)
    monkeypatch.setenv("NCOLLAPSE_DATA", str(tmp_path))
    code, found = run_json(capsys, "check")
    assert code == 0
    assert found["cifar10"]["state"] == "sound"
    assert len(found["cifar10"]["warnings"]) == 7
    assert "published c99cafc152244af753f735de768cd75f" in found["cifar10"]["warnings"][1]
    assert found["digits"]["state"] == "embedded"


def test_check_names_the_damage(tmp_path, capsys):
    folder = write_cifar10(tmp_path)
    (folder / "data_batch_3").unlink()
    code, found = run_json(capsys, "check", "cifar10", "--root", str(tmp_path))
    assert code == 1
    assert list(found) == ["cifar10"]
    assert found["cifar10"]["state"] == "damaged"
    assert "data_batch_3" in found["cifar10"]["problems"][0]
    assert main(["data", "check", "cifar10", "--root", str(tmp_path)]) == 1
    assert "problem: cifar10" in capsys.readouterr().out


def test_bad_input_is_one_line(tmp_path, capsys):
    for args in (
        ["check", "cifar11", "--root", str(tmp_path)],
        ["list", "--root", str(tmp_path / "no")],
        ["list", "mnist"],
    ):
        assert main(["data", *args]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_named_data_set_that_is_missing_fails_the_check(tmp_path, capsys):
    code, found = run_json(capsys, "check", "digits", "mnist", "--root", str(tmp_path))
    assert (code, found["mnist"]["state"]) == (1, "missing")
    assert run_json(capsys, "check", "--root", str(tmp_path))[0] == 0
    assert main(["data", "check", "imagenett"]) == 2
    assert "names: expected digits, " in (said := capsys.readouterr().err)
    assert "did you mean imagenet?" in said


def test_what_is_really_there(data_root):
    for finding in check_data(data_root):
        assert finding.state in ("sound", "embedded", "missing"), finding.problems


def test_check_survives_a_pickle_that_never_fills_its_array(tmp_path, capsys):
    folder = write_cifar10(tmp_path)
    hollow = b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87Rs."
    (folder / "test_batch").write_bytes(hollow)
    _, found = run_json(capsys, "check", "cifar10", "--root", str(tmp_path))
    assert found["cifar10"]["state"] == "damaged"
    assert "an array is never filled" in found["cifar10"]["problems"][0]


def write_pictures(folder, counts):
    image = pytest.importorskip("PIL.Image")
    for name, count in counts.items():
        for i in range(count):
            (folder / name).mkdir(parents=True, exist_ok=True)
            image.fromarray(np.full((5, 4, 3), i, np.uint8)).save(folder / name / f"{i}.png")


def test_check_reads_a_folder_of_one_s_own(tmp_path, capsys):
    write_pictures(tmp_path / "pets", {"ant": 10, "bee": 5, "wasp": 2})
    name = f"folder:{tmp_path / 'pets'}"
    code, found = run_json(capsys, "check", name)
    assert code == 0
    assert (found[name]["state"], found[name]["train"], found[name]["num_classes"]) == ("sound", 17, 3)
    assert "no test split: a fifth of each class is held out for it" in found[name]["notes"]
    assert "training samples a class: 2 (wasp) to 10 (ant), ratio 5" in found[name]["notes"]
    assert "wasp: fewer than 3 samples" in found[name]["warnings"][0]
    for i in range(7):
        (tmp_path / "pets" / "ant" / f"{i}.png").write_bytes(b"no picture")
    assert main(["data", "check", name]) == 1
    printed = capsys.readouterr().out
    assert printed.count("cannot decode") == 5
    assert "train: 2 more images cannot be decoded" in printed


def test_check_reads_an_array_file_of_one_s_own(tmp_path, capsys):
    np.savez(tmp_path / "mine.npz", images=np.zeros((9, 4, 4), np.uint8), labels=np.arange(9) % 3)
    name = f"npz:{tmp_path / 'mine.npz'}"
    code, found = run_json(capsys, "check", name, "digits")
    assert code == 0
    assert {name, "digits"} == set(found)
    assert found[name]["train"] == 9
    code, found = run_json(capsys, "check", "npz:nowhere.npz")
    assert code == 1
    assert "nowhere.npz" in found["npz:nowhere.npz"]["problems"][0]

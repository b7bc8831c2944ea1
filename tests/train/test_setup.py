"""How a run is prepared: what goes on side by side, and that errors come out as they are."""

import threading

import pytest
import torch

from ncollapse.train import recipes, run, setup
from ncollapse.train.background import begin
from ncollapse.train.distributed import World


def test_work_that_is_begun_is_done_in_another_thread():
    done = begin(threading.current_thread)
    assert done.result(10) is not threading.current_thread()
    assert done.result().daemon  # it does not keep an interrupted process from ending


@pytest.mark.parametrize("kind", [ValueError, FileNotFoundError, KeyboardInterrupt])
def test_an_error_of_work_that_was_begun_is_the_same_error(kind):
    error = kind("data: expected something else")

    def fail():
        raise error

    with pytest.raises(kind) as caught:
        begin(fail).result(10)
    assert caught.value is error


class Reached(Exception):
    """The place after the data were read."""


def prepare_on(device, monkeypatch, read):
    """Prepare a run there as far as its loaders; return what they were made of."""
    monkeypatch.setattr(setup, "load_splits", read)

    def make_loaders(recipe, splits, world):
        raise Reached(splits)

    monkeypatch.setattr(setup, "make_loaders", make_loaders)
    world = World(0, 1, torch.device(device))
    with pytest.raises(Reached) as caught:
        setup.prepare(recipes.get("digits"), None, world, "root", None, None)
    return caught.value.args[0]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_data_for_a_gpu_are_read_while_kernels_are_imported(monkeypatch, device):
    imported, places = threading.Event(), []

    def read(recipe, root):
        if device == "cuda":
            assert imported.wait(10)
        places.append((recipe.name, root, threading.current_thread() is threading.main_thread()))
        return "splits"

    monkeypatch.setattr(setup, "import_kernels", imported.set)
    assert prepare_on(device, monkeypatch, read) == "splits"
    assert places == [("digits", "root", device == "cpu")]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_data_that_cannot_be_read_are_the_error_of_the_reader(monkeypatch, device):
    def read(recipe, root):
        raise FileNotFoundError("digits is missing")

    with pytest.raises(FileNotFoundError, match="digits is missing"):
        prepare_on(device, monkeypatch, read)


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
@pytest.mark.parametrize("model", ["mlp-24", "resnet18"])
def test_modes_around_a_run_do_not_reach_it(model, around, tmp_path):
    recipe = recipes.get("digits").override(
        model__name=model, optim__epochs=1, data__samples_per_class=3, optim__batch_size=15, optim__lr=0.01
    )
    run(recipe, tmp_path / "plain", device="cpu")
    with around():
        run(recipe, tmp_path / "inside", device="cpu")
    for name in ("final.safetensors", "snapshot.safetensors"):
        plain, inside = (tmp_path / place / recipe.run_id / name for place in ("plain", "inside"))
        assert plain.read_bytes() == inside.read_bytes()


def test_another_default_dtype_is_refused(tmp_path):
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ValueError, match=r"default dtype: expected float32 while runs train, got torch\.float64"):
            run(recipes.get("digits"), tmp_path / "runs", device="cpu")
    finally:
        torch.set_default_dtype(torch.float32)
    assert not (tmp_path / "runs").exists()

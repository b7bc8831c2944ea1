"""A checkpoint measured from the command line."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file, save_model
from sklearn.datasets import load_digits

import ncollapse as nc
from ncollapse import cli, data
from ncollapse.checkpoints import build, fill, measure_checkpoint
from ncollapse.data.normalisation import choose_normalisation
from ncollapse.models import create
from ncollapse.models.weights import read_weights
from ncollapse.train import recipes, run

FACTORY = """
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU())
        self.fc = nn.Linear(12, num_classes)

    def forward(self, x):
        return self.fc(self.trunk(x))

def build(num_classes):
    return Net(num_classes)

def fixed():
    return Net(10)

def loose(**options):
    return Net(**options)

def wide(width, num_classes=10):
    return Net(num_classes)

def deep():
    return nn.Sequential(nn.Flatten(), nn.Linear(100, 12), nn.Linear(12, 10))

class Tied(Net):
    def __init__(self, num_classes=10):
        super().__init__(num_classes)
        self.again = self.trunk
        self.twin = nn.Linear(12, num_classes)
        self.twin.weight = self.fc.weight

class Held(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.module = Net(num_classes)
        self.fc = nn.Linear(num_classes, num_classes)

    def forward(self, x):
        return self.fc(self.module(x))

class Noted(Net):
    def get_extra_state(self):
        return {"calls": 3}

    def set_extra_state(self, state):
        raise AssertionError("not to be loaded")

def failing(num_classes):
    raise KeyError("width of the trunk")

class Stumbling(Net):
    def forward(self, x):
        raise AssertionError("expects colour images")

ready = Net(10)

def nothing():
    return 3
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A working folder with a module of one's own, imported afresh."""
    (tmp_path / "own_network.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "own_network", raising=False)
    return tmp_path


@pytest.fixture
def network(home):
    import own_network

    torch.manual_seed(0)
    return own_network.build(10)


def expect(network, normalise=data.NORMALISATION["digits"]):
    samples = data.load("digits")
    batches = data.EvalLoader(samples, normalise=normalise)
    x = torch.cat([x for x, _ in batches])
    with torch.no_grad():
        features = network.eval().trunk(x)
    return nc.measure(features, samples.labels, head=network.fc)


def save_plain(state, folder):
    save_file(state, folder / "w.safetensors")
    return folder / "w.safetensors"


def save_ddp(state, folder):
    torch.save({f"module._orig_mod.{name}": value for name, value in state.items()}, folder / "w.pt")
    return folder / "w.pt"


def save_lightning(state, folder):
    state = {f"net._orig_mod.{name}": value for name, value in state.items()}
    torch.save({"state_dict": state, "epoch": 3, "hyper_parameters": {"lr": 0.1}}, folder / "w.ckpt")
    return folder / "w.ckpt"


def save_shards(state, folder, kind="safetensors"):
    names = list(state)
    parts = {f"part-1.{kind}": names[:3], f"part-2.{kind}": names[3:]}
    for file, held in parts.items():
        part = {name: state[name] for name in held}
        save_file(part, folder / file) if kind == "safetensors" else torch.save(part, folder / file)
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    stem = "model.safetensors" if kind == "safetensors" else "pytorch_model.bin"
    (folder / f"{stem}.index.json").write_text(json.dumps(index))
    return folder / f"{stem}.index.json"


def save_under(key):
    def save(state, folder):
        torch.save({"epoch": 3, key: state, "optimizer": {"lr": 0.1}}, folder / "w.pt")
        return folder / "w.pt"

    return save


@pytest.mark.parametrize(
    "save",
    [
        save_plain,
        save_ddp,
        save_lightning,
        *(save_under(key) for key in ("state_dict", "model_state_dict", "model", "net")),
        save_shards,
        lambda state, folder: save_shards(state, folder, "bin"),
        lambda state, folder: save_shards(state, folder).parent,
    ],
    ids=[
        *("safetensors", "wrapped", "lightning", "state_dict", "model_state_dict", "model", "net"),
        *("shards", "torch shards", "folder"),
    ],
)
def test_weights_in_any_form_give_the_network_s_numbers(home, network, capsys, save):
    path = save(network.state_dict(), home)
    command = ["measure", "--model", "own_network:build", "--weights", str(path), "--data", "digits", "--json"]
    assert cli.main(command) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found, exact = json.loads(out), expect(network)
    assert found["num_samples"] == 1438
    assert found["accuracy"] == exact.accuracy
    assert found["nc1"] == pytest.approx(exact.nc1, rel=1e-4)
    assert found["positive_score"]["mean"] == pytest.approx(exact.positive_score.mean, rel=1e-4)


@pytest.mark.parametrize(
    ("asked", "mean", "std", "words"),
    [
        ([], 0.3058, 0.3759, "minus mean 0.3058, over std 0.3759 (our recipes' for digits)"),
        (["--normalise", "recipe"], 0.3058, 0.3759, "minus mean 0.3058, over std 0.3759 (our recipes' for digits)"),
        (["--normalise", "none"], 0.0, 1.0, "pixels in [0, 1], not normalised (as asked)"),
        (["--normalise", "0.5/0.25"], 0.5, 0.25, "minus mean 0.5, over std 0.25 (as given)"),
    ],
    ids=["auto", "recipe", "none", "numbers"],
)
def test_pixels_are_normalised_as_asked_and_it_is_printed(home, network, capsys, asked, mean, std, words):
    path = save_plain(network.state_dict(), home)
    command = ["measure", "--model", "own_network:build", "--weights", str(path), "--data", "digits", *asked]
    assert cli.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nc1"] == pytest.approx(expect(network, ((mean,), (std,))).nc1, rel=1e-4)
    assert (found["normalisation"]["mean"], found["normalisation"]["std"]) == ([mean], [std])
    assert cli.main(command) == 0
    assert words in " ".join(capsys.readouterr().out.split())


def test_a_model_that_says_its_own_normalisation(home, network):
    path = save_plain(network.state_dict(), home)
    (home / "own_network.py").write_text(
        FACTORY + "\n\nclass Timm(Net):\n    pretrained_cfg = {'mean': (0.4,), 'std': (0.2,)}\n"
    )
    __import__("importlib").reload(__import__("own_network"))
    found = measure_checkpoint("own_network:Timm", path, "digits", normalise="model")
    assert found.measurement.nc1 == pytest.approx(expect(network, ((0.4,), (0.2,))).nc1, rel=1e-4)
    assert found.normalisation.origin == "the model's pretrained_cfg"
    with pytest.raises(ValueError, match="normalise: 'model' needs a network with a `pretrained_cfg`"):
        measure_checkpoint("own_network:Net", path, "digits", normalise="model")


@pytest.mark.parametrize(
    ("text", "dataset", "message"),
    [
        ("timm", "digits", "normalise: expected auto, none, recipe, imagenet, model or MEAN"),
        ("0.5", "digits", "normalise: expected auto"),
        ("0.5,0.5/0.2", "digits", "as many means as standard deviations"),
        ("0.5/0", "digits", "all of these > 0"),
        ("recipe", "npz:a.npz", "normalise: 'recipe' is known for digits, mnist"),
    ],
)
def test_what_names_no_normalisation(text, dataset, message):
    with pytest.raises(ValueError, match=message):
        choose_normalisation(text, dataset)


def test_data_without_a_recipe_are_left_as_they_are_and_it_is_said():
    assert choose_normalisation("auto", "npz:a.npz").describe() == (
        "pixels in [0, 1], not normalised (no recipe says how for npz:a.npz)"
    )
    assert choose_normalisation("imagenet", "folder:x").mean == (0.485, 0.456, 0.406)


def test_a_factory_is_told_the_number_of_classes_where_it_listens(home):
    for name in ("build", "fixed", "loose", "Net"):
        assert build(f"own_network:{name}", 10, (1, 8, 8)).fc.out_features == 10
    assert build("own_network:loose", 7, (1, 8, 8)).fc.out_features == 7


def test_our_own_networks_and_the_test_split(home):
    torch.manual_seed(0)
    made = create("mlp-small", 10, in_channels=1, image_size=8)
    save_file(made.state_dict(), home / "w.safetensors")
    found = measure_checkpoint("mlp-small", home / "w.safetensors", "digits", split="test")
    assert found.measurement.num_samples == 359
    assert found.unexpected == ()


@pytest.mark.parametrize("own", [True, False])
def test_parts_are_those_of_training(own, home):
    """Own data without a test set: what a run holds out; with one, and by default, what the file holds."""
    x, y = load_digits(return_X_y=True)
    arrays = {"images": (16 * x).astype(np.uint8).reshape(-1, 8, 8)[:1000], "labels": y[:1000]}
    tests = {"test_images": arrays["images"][:50], "test_labels": arrays["labels"][:50]}
    np.savez(home / "own.npz", **arrays, **({} if own else tests))
    recipe = recipes.get("digits").override(data__name=f"npz:{home / 'own.npz'}", optim__epochs=1)
    summary = run(recipe, home / "run", device="cpu")
    (weights,) = home.glob("run/*/final.safetensors")
    found = {
        split: measure_checkpoint("mlp-small", weights, recipe.data.name, split=split, device="cpu").measurement
        for split in ("train", "test", None)
    }
    for split in ("train", "test"):
        assert found[split].nc1 == pytest.approx(summary[split]["nc1"], rel=1e-6)
    assert found[None].num_samples == 1000
    sizes = found["train"].num_samples, found["test"].num_samples
    assert sizes == ((1000 - sizes[1], pytest.approx(200, abs=5)) if own else (1000, 50))


def test_unexpected_tensors_are_reported_and_measured_past(home, network, capsys):
    state = {**network.state_dict(), "ema.fc.weight": torch.zeros(2)}
    path = save_plain(state, home)
    command = ["measure", "--model", "own_network:fixed", "--weights", str(path), "--data", "digits"]
    assert cli.main(command) == 0
    out, err = capsys.readouterr()
    assert "nc1" in out
    assert err == f"ncollapse measure: 1 unexpected in {path}: ema.fc.weight\n"


def test_a_network_partly_at_random_is_refused(home, network):
    state = network.state_dict()
    del state["fc.bias"], state["trunk.1.weight"]
    state["extra"], state["fc.weight"] = torch.zeros(1), torch.zeros(7, 12)
    path = save_plain(state, home)
    with pytest.raises(ValueError, match=r"2 missing: trunk.1.weight, fc.bias; 1 unexpected: extra; 1 of other"):
        fill(network, path)
    before = create("mlp-small", 5)
    save_file(create("mlp-small", 6).state_dict(), home / "k.safetensors")
    with pytest.raises(ValueError, match=r"head.weight \[6, 256\] instead of \[5, 256\]"):
        fill(before, home / "k.safetensors")


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "model.", "model._orig_mod."])
def test_an_attribute_called_module_keeps_its_name(home, prefix):
    import own_network

    torch.manual_seed(0)
    made = own_network.Held()
    path = save_plain({f"{prefix}{name}": value for name, value in made.state_dict().items()}, home)
    fresh = own_network.Held()
    assert fill(fresh, path) == ()
    assert all(torch.equal(a, b) for a, b in zip(made.state_dict().values(), fresh.state_dict().values()))
    two = {f"{name}.{key}": value for name in ("ema", "model") for key, value in made.state_dict().items()}
    with pytest.raises(ValueError, match="missing"):  # which of them?
        fill(fresh, save_plain({name: value.clone() for name, value in two.items()}, home))


def test_names_that_only_a_wrapper_tells_apart(tmp_path):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module, self.weight = torch.nn.Linear(2, 2, bias=False), torch.nn.Parameter(torch.randn(2, 2))

    made, fresh = Net(), Net()
    for prefix in ("", "module.", "_orig_mod."):
        fill(fresh, save_plain({f"{prefix}{name}": value for name, value in made.state_dict().items()}, tmp_path))
        assert torch.equal(fresh.weight, made.weight)
        assert torch.equal(fresh.module.weight, made.module.weight)


def test_tied_weights_need_one_copy(home, network):
    import own_network

    torch.manual_seed(0)
    made, fresh = own_network.Tied(), own_network.Tied()
    save_model(made, str(home / "w.safetensors"))
    assert len(read_weights(home / "w.safetensors")) < len(made.state_dict())
    assert fill(fresh, home / "w.safetensors") == ()
    assert all(torch.equal(a, b) for a, b in zip(made.state_dict().values(), fresh.state_dict().values()))
    state = read_weights(home / "w.safetensors")
    gone = [name for name in ("fc.weight", "twin.weight") if state.pop(name, None) is not None]
    assert len(gone) == 1
    with pytest.raises(ValueError, match=r"2 missing: fc.weight, twin.weight$"):
        fill(fresh, save_plain(state, home))


def test_extra_state_is_left_out_and_mentioned(home, network):
    import own_network

    torch.save({"model": {**network.state_dict(), "_extra_state": {"calls": 3}}}, home / "w.pt")
    made = own_network.Noted(10)
    with pytest.warns(UserWarning, match=r"weights: .*w.pt holds _extra_state, which is not loaded"):
        assert fill(made, home / "w.pt") == ()
    assert torch.equal(made.fc.weight, network.fc.weight)


def test_a_file_that_wraps_itself_is_refused(home, network):
    around = {"epoch": 3}
    around["model"] = around
    torch.save(around, home / "w.pt")
    with pytest.raises(ValueError, match="no dictionary of tensors"):
        fill(network, home / "w.pt")


def test_errors_of_the_user_s_own_code_name_it_and_keep_their_cause(home, network):
    path = save_plain(network.state_dict(), home)
    with pytest.raises(ValueError, match=r"^model: own_network:failing made no .* KeyError: 'width of the") as error:
        build("own_network:failing", 10, (1, 8, 8))
    assert isinstance(error.value.__cause__, KeyError)
    expected = r"^model: own_network:Stumbling cannot be run on .*: AssertionError: expects colour images$"
    with pytest.raises(ValueError, match=expected) as error:
        measure_checkpoint("own_network:Stumbling", path, "digits")
    assert isinstance(error.value.__cause__, AssertionError)
    (home / "own_broken.py").write_text("undefined_name\n")
    with pytest.raises(ImportError, match=r"'own_broken:build' cannot be imported .*NameError: name 'undefined_name'"):
        build("own_broken:build", 10, (1, 8, 8))
    with pytest.raises(ValueError, match=r"^layer: 'trunk.0' is no linear layer"):  # ours, and no fault of the network
        measure_checkpoint("own_network:build", path, "digits", layer="trunk.0")


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "own_network:build"], "or all of --model, --weights and --data, got no --weights and --data"),
        (["--model", "m", "--weights", "w.pt"], "or all of --model, --weights and --data, got no --data"),
        ([], "or all of --model, --weights and --data, got neither"),
        (["x.npz", "--model", "m"], "got both"),
        (["--model", "own_network:none", "--weights", "w.pt", "--data", "digits"], "cannot be imported as package"),
        (["--model", "nowhere:build", "--weights", "w.pt", "--data", "digits"], "No module named 'nowhere'"),
        (["--model", "own_network:nothing", "--weights", "w.pt", "--data", "digits"], "returned int, not a torch.nn"),
        (["--model", "own_network:wide", "--weights", "w.pt", "--data", "digits"], "own_network:wide needs width; exp"),
        (["--model", "own_network:ready", "--weights", "w.pt", "--data", "digits"], "is a Net, not a function or cla"),
        (["--model", ":build", "--weights", "w.pt", "--data", "digits"], "':build' cannot be imported as package"),
        (
            ["--model", "own_network:deep", "--weights", "deep.pt", "--data", "digits"],
            "inputs of digits, of shape [1",
        ),
        (["--model", "own_network:build", "--weights", "junk.pt", "--data", "digits"], "or is no file of torch's"),
        (["--model", "own_network:build", "--weights", "none.pt", "--data", "digits"], "no file of weights at none.pt"),
        (["--model", "own_network:build", "--weights", "evil.pt", "--data", "digits"], "nothing in it is executed"),
        (["--model", "own_network:build", "--weights", "bad.safetensors", "--data", "digits"], "not a readable safe"),
        (["--model", "own_network:build", "--weights", "bad.index.json", "--data", "digits"], "no index of shards"),
        (["--model", "own_network:build", "--weights", "empty", "--data", "digits"], "no weights in empty"),
        (["--model", "own_network:build", "--weights", "w.pt", "--data", "nonsense"], "got 'nonsense'"),
    ],
)
def test_bad_input_is_one_line_and_code_2(home, capsys, arguments, message):
    torch.save({"fc.weight": torch.zeros(10, 12)}, home / "w.pt")
    torch.save({"fc.weight": Evil()}, home / "evil.pt")
    deep = {"1.weight": (12, 100), "1.bias": (12,), "2.weight": (10, 12), "2.bias": (10,)}
    torch.save({name: torch.zeros(shape) for name, shape in deep.items()}, home / "deep.pt")
    (home / "bad.safetensors").write_bytes(b"no")
    (home / "junk.pt").write_bytes(b"abc")
    (home / "bad.index.json").write_text("[]")
    (home / "empty").mkdir()
    assert cli.main(["measure", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_shards_outside_the_folder_are_not_read(home, network):
    (home / "inner").mkdir()
    save_file({"a": torch.zeros(1)}, home / "secret.safetensors")
    (home / "inner" / "m.index.json").write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    with pytest.raises(FileNotFoundError, match=r"inner/secret.safetensors"):
        fill(network, home / "inner" / "m.index.json")


def test_a_network_without_linear_classifier(home):
    (home / "own_flat.py").write_text("from torch import nn\ndef build():\n    return nn.Flatten()\n")
    save_file({"x": torch.zeros(1)}, home / "w.safetensors")
    with pytest.raises(ValueError, match="no linear layer at all"):
        measure_checkpoint("own_flat:build", home / "w.safetensors", "digits")

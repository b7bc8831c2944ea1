"""Norms are folded only where that agrees with torch's own kernels; the other kernels stay on."""

import pytest
import torch

from ncollapse.models import create, folded, norm
from ncollapse.train import verify, verify_folding
from ncollapse.train.distributed import World
from ncollapse.train.evaluate import Extractor
from ncollapse.train.verify_folding import SoiledOutputs, find_folding_fault, randomise_norms
from reference.folding import convolve_add_relu, convolve_relu, fold_on_cpu


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """Comparisons that passed elsewhere do not count here, and what is switched off here is on again."""
    monkeypatch.setenv("NCOLLAPSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(verify, "_verified", set())
    monkeypatch.setattr(verify, "describe_gpu", lambda _: ("a GPU",))
    monkeypatch.setattr(folded, "FOLDS", True)
    monkeypatch.setattr(norm, "HAS_TRITON", True)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return create("wide-resnet18-0.25", 10, image_size=8)


@pytest.fixture
def pretended(monkeypatch):
    return fold_on_cpu(monkeypatch, torch.bfloat16, can_fold=norm.is_fusing)


class OnGPU:
    """The first samples of a run, as far as the verification looks at them."""

    is_cuda, device, shape = True, torch.device("cuda"), (8, 3, 8, 8)

    def __getitem__(self, _):
        return self

    def float(self):
        return torch.randn(self.shape)


def test_a_folded_network_passes_and_stays_as_it_was(model, pretended):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert find_folding_fault(model, torch.randn(8, 3, 8, 8)) is None
    assert pretended, "nothing was folded"
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model.training


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("relu", lambda x, kernel, bias, *rest: convolve_relu(x, kernel, torch.zeros_like(bias), *rest)),
        ("add_relu", lambda x, kernel, z, a, bias, *rest: convolve_add_relu(x, kernel, z, 0.0, bias, *rest)),
        ("add_relu", lambda x, kernel, z, a, bias, *rest: convolve_add_relu(x, kernel, z, a, -bias, *rest)),
        ("relu", lambda *args: convolve_relu(*args) * float("nan")),
    ],
)
def test_wrong_convolutions_are_found(model, pretended, monkeypatch, name, harm):
    monkeypatch.setattr(torch, f"cudnn_convolution_{name}", harm)
    assert "their features differ by" in find_folding_fault(model, torch.randn(8, 3, 8, 8))


def test_a_densenet_is_compared_too(pretended, monkeypatch):
    torch.manual_seed(0)
    model, x = create("densenet121-small", 10, image_size=16), torch.randn(8, 3, 16, 16)
    assert find_folding_fault(model, x) is None
    assert len(pretended) == 58
    monkeypatch.setattr(
        torch, "cudnn_convolution_relu", lambda x, kernel, b, *rest: convolve_relu(x, kernel, -b, *rest)
    )
    assert "their features differ by" in find_folding_fault(model, x)


def test_the_scale_of_a_norm_is_not_overlooked(model, pretended, monkeypatch):
    plain = folded.fold_norm
    monkeypatch.setattr(folded, "fold_norm", lambda layer, *args, **kw: (layer[0].weight.bfloat16(), plain(layer)[1]))
    assert "their features differ by" in find_folding_fault(model, torch.randn(8, 3, 8, 8))


def test_a_failure_stops_folding_alone(model, pretended, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("Unable to find an engine to execute this computation")

    monkeypatch.setattr(torch, "cudnn_convolution_relu", fail)
    verify_folding.verify_folding("resnet18", model, OnGPU(), "bf16")
    assert not folded.FOLDS
    assert norm.HAS_TRITON
    said = "model.name = 'resnet18': batch norms are not folded into the convolutions on this GPU: RuntimeError: Unable"
    assert said in caplog.text


def test_a_comparison_is_made_once_and_only_where_norms_are_folded(model, monkeypatch):
    asked = []
    monkeypatch.setattr(verify_folding, "find_folding_fault", lambda *args: asked.append(args))
    verify_folding.verify_folding("mlp", create("mlp-16", 10), OnGPU(), "bf16")
    verify_folding.verify_folding("resnet18", model, OnGPU(), "fp32")
    assert not asked
    for _ in range(2):
        verify_folding.verify_folding("resnet18", model, OnGPU(), "bf16")
        verify._verified.clear()  # the next process
    assert len(asked) == 1


def test_the_copy_has_statistics_and_weights_of_its_own(model):
    x = torch.randn(8, 3, 8, 8)
    with torch.no_grad():
        twin = randomise_norms(model, x)
        first = twin.trunk.conv1(x)
    torch.testing.assert_close(twin.trunk.bn1.running_mean, first.mean((0, 2, 3)))
    assert twin.trunk.bn1.weight.std() > 0.1
    assert twin.trunk.bn1.bias.std() > 0.1
    assert not twin.training


def test_outputs_are_written_over_nan(monkeypatch):
    """The memory is given back at once, so that the output of the same size gets it."""
    made = []
    monkeypatch.setattr(torch, "full", lambda shape, value, **kw: made.append((tuple(shape), value, kw["dtype"])))
    monkeypatch.setattr(torch, "cudnn_convolution_relu", lambda *args: "called")
    args = torch.zeros(2, 3, 8, 8), torch.zeros(5, 3, 3, 3), torch.zeros(5), (2, 2), (1, 1), (1, 1), 1
    assert SoiledOutputs().__torch_function__(torch.cudnn_convolution_relu, (), args) == "called"
    assert [(shape, dtype) for shape, _, dtype in made] == [((2, 5, 4, 4), torch.float32)]
    assert made[0][1] != made[0][1]


def test_a_capture_without_fused_kernels_is_made_without_folding(model, monkeypatch, caplog):
    """cuDNN may have kernels for the few samples of the comparison, and none for a whole batch."""
    tried = []

    def capture(work, buffers, pool, *, kernels, search):
        tried.append(folded.FOLDS)
        if folded.FOLDS:
            raise RuntimeError("FIND was unable to find an engine")
        return lambda x: work(x)

    monkeypatch.setattr("ncollapse.train.evaluate.Captured", capture)
    extract = Extractor(model.eval(), "fp32", World(0, 1, torch.device("cpu")), pool="a pool")
    x = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(extract.extract(x), model.features(x))
    assert tried == [True, False]
    assert "batches [4, 3, 8, 8]: batch norms are not folded" in caplog.text


def test_other_failures_of_a_capture_are_raised(monkeypatch):
    def capture(*_, **__):
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr("ncollapse.train.evaluate.Captured", capture)
    extract = Extractor(create("mlp-16", 10), "fp32", World(0, 1, torch.device("cpu")), pool="a pool")
    with pytest.raises(RuntimeError, match="illegal"):
        extract.extract(torch.randn(4, 3, 32, 32))
    assert folded.FOLDS


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet32", "densenet121"])
def test_no_fault_on_this_gpu(name):
    torch.manual_seed(0)
    model = create(name, 10).cuda().to(memory_format=torch.channels_last)
    x = torch.randn(16, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    assert find_folding_fault(model, x) is None

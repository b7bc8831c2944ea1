"""The fused kernels are used only where they agree with torch's own."""

from pathlib import Path

import pytest
import torch

import ncollapse
from ncollapse.models import create, norm
from ncollapse.train import verified, verify
from ncollapse.train.verify import differentiate_features, find_fault


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Comparisons that passed elsewhere do not count here."""
    monkeypatch.setenv("NCOLLAPSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(verify, "_verified", set())


@pytest.fixture
def model():
    torch.manual_seed(0)
    return create("wide-resnet18-0.25", 10, image_size=8)


def test_the_plain_network_agrees_with_itself_and_stays_as_it_was(model):
    x = torch.randn(8, 3, 8, 8)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert find_fault(model, x, "fp32") is None
    features, gradients = differentiate_features(model, x, "fp32", fused=False)
    assert features.shape == (8, model.num_features)
    assert gradients.numel() == sum(p.numel() for p in model.trunk.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda h: h * 1.5, "their features differ by 0.5 of the norm, and 0.1 are allowed"),
        (lambda h: h.detach() + h.sum() * 0, "their gradients differ by 1 of"),
        (lambda h: h * float("nan"), "their features differ by nan"),
        (lambda h: h.view(-1, 7), "RuntimeError"),
    ],
)
def test_wrong_kernels_are_found(model, monkeypatch, harm, said):
    plain = type(model).features

    def features(self, x):
        h = plain(self, x)
        return harm(h) if norm.is_fusing() else h

    monkeypatch.setattr(type(model), "features", features)
    assert said in find_fault(model, torch.randn(8, 3, 8, 8), "fp32")


def test_kernels_that_are_wrong_in_bfloat16_alone(model, monkeypatch):
    plain = type(model).features

    def features(self, x):
        h = plain(self, x)
        return h * 1.5 if norm.is_fusing() and torch.is_autocast_enabled("cpu") else h

    x = torch.randn(8, 3, 8, 8)
    assert find_fault(model, x, "bf16") is None
    monkeypatch.setattr(type(model), "features", features)
    assert find_fault(model, x, "fp32") is None
    assert "features differ by 0.5" in find_fault(model, x, "bf16")


def test_a_network_that_enlarges_rounding_is_not_taken_for_a_fault(model, monkeypatch):
    """The gradients of deep networks differ by more than their norm in bfloat16, with torch's own kernels too."""
    errors = {False: 1.26, True: 1.3}

    def differentiate(model, x, precision, *, fused):
        error = errors[fused] if precision == "bf16" else 0.0
        return torch.tensor([1.0, 0.0]), torch.tensor([1.0, error])

    monkeypatch.setattr(verify, "differentiate_features", differentiate)
    assert find_fault(model, torch.zeros(1), "bf16") is None
    errors[True] = 2.6
    assert "gradients differ by 2.6 of the norm, and 1.9 are allowed" in find_fault(model, torch.zeros(1), "bf16")


def test_a_comparison_that_passed_is_not_repeated(tmp_path, monkeypatch):
    monkeypatch.setenv("NCOLLAPSE_CACHE", str(tmp_path))
    facts = ("resnet18", "bf16", (3, 32, 32), "a GPU", 13000, "2.11.0", "3.6.0")
    assert not verified.was_verified(*facts)
    verified.remember_verified(*facts)
    assert verified.was_verified(*facts)
    for i in range(len(facts)):
        assert not verified.was_verified(*facts[:i], "another", *facts[i + 1 :])
    monkeypatch.setattr(verified, "_digest_sources", lambda: "other kernels")
    assert not verified.was_verified(*facts)


def test_every_kernel_counts_as_one_of_the_sources():
    """A comparison is repeated when a file of `models` has changed: no other folder may hold a kernel."""
    package = Path(ncollapse.__file__).parent
    files = {path for path in package.rglob("*.py") if "@triton.jit" in path.read_text(encoding="utf-8")}
    assert len(files) >= 4
    assert {path.parent for path in files} == {package / "models"}


def test_a_cache_that_cannot_be_written_changes_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("NCOLLAPSE_CACHE", str(tmp_path / "file"))
    verified.remember_verified("resnet18")
    assert not verified.was_verified("resnet18")


def test_the_cache_is_in_the_users_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("NCOLLAPSE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert verified.locate_cache() == tmp_path / "ncollapse"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert verified.locate_cache() == tmp_path / ".cache" / "ncollapse"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_verification_on_this_gpu_is_remembered(tmp_path, monkeypatch):
    monkeypatch.setenv("NCOLLAPSE_CACHE", str(tmp_path))
    monkeypatch.setattr(verify, "_verified", set())
    asked = []
    monkeypatch.setattr(verify, "find_fault", lambda *args: asked.append(args))
    model, x = create("wide-resnet18-0.25", 10).cuda(), torch.zeros(2, 3, 32, 32, device="cuda")
    verify.verify_kernels("wide-resnet18-0.25", model, x, "bf16")
    verify._verified.clear()
    verify.verify_kernels("wide-resnet18-0.25", model, x, "bf16")
    assert len(asked) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "densenet121", "densenet121-small", "vit-small", "resnet32"])
def test_no_fault_on_this_gpu(name):
    torch.manual_seed(0)
    model = create(name, 10).cuda().to(memory_format=torch.channels_last)
    x = torch.randn(16, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    assert find_fault(model, x, "bf16") is None


def test_images_in_bfloat16_are_compared_in_float32(model, monkeypatch):
    class OnGPU:
        """As the loaders of a run in bfloat16 give them."""

        is_cuda, device, images = True, torch.device("cuda"), torch.randn(8, 3, 8, 8).bfloat16()
        shape = images.shape

        def __getitem__(self, which):
            return self.images[which]

    monkeypatch.setattr(norm, "HAS_TRITON", True)
    monkeypatch.setattr(verify, "describe_gpu", lambda _: ("a GPU",))
    verify.verify_kernels("a network of its own", model, OnGPU(), "bf16")
    assert norm.HAS_TRITON


def test_a_fault_switches_the_kernels_off(model, monkeypatch, caplog):
    class OnGPU:
        is_cuda, device, shape = True, torch.device("cuda"), (8, 3, 8, 8)

        def __getitem__(self, _):
            return self

        def float(self):
            return self

    monkeypatch.setattr(norm, "HAS_TRITON", True)
    monkeypatch.setattr(verify, "describe_gpu", lambda _: ("a GPU",))
    monkeypatch.setattr(verify, "find_fault", lambda *_: "no such instruction")
    verify.verify_kernels("resnet18", model, OnGPU(), "bf16")
    assert not norm.HAS_TRITON
    assert "'resnet18': the fused kernels are not used on this GPU, torch's own are: no such instruction" in caplog.text


def test_kernels_are_imported_once_and_errors_are_left_to_their_use(monkeypatch):
    tried = []

    def fail(name):
        tried.append(name)
        raise ImportError("libcuda.so is not a library")

    monkeypatch.setattr(verify, "import_module", fail)
    monkeypatch.setattr(norm, "HAS_TRITON", True)
    verify.import_kernels.cache_clear()
    for _ in range(3):
        verify.import_kernels()
    verify.import_kernels.cache_clear()
    assert tried == ["ncollapse.models.fused_norm"]

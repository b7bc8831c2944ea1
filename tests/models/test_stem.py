"""The first convolution as a matrix product; its kernel on a GPU or in Triton's interpreter."""

import pytest
import torch
from torch import nn

from ncollapse.models import stem
from ncollapse.train.objective import autocast
from reference.norm_ops import INTERPRETED
from reference.windows import define_windows

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


@pytest.mark.skipif(not ON_GPU and not INTERPRETED, reason="the kernel needs a GPU, or TRITON_INTERPRET=1")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(4, 3, 8, 6), (3, 1, 5, 5), (2, 2, 1, 3)])
def test_the_kernel_matches_the_definition(shape, dtype):
    from ncollapse.models.fused_stem import copy_windows

    x = torch.randn(shape, device=DEVICE).contiguous(memory_format=torch.channels_last).to(dtype)
    tolerance = 0.0 if ON_GPU else 2**-7  # the interpreter cuts off where a GPU rounds
    torch.testing.assert_close(copy_windows(x, stem.COLUMNS), define_windows(x), rtol=tolerance, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_product_is_the_convolution(monkeypatch, channels, dtype):
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, 16, 3, padding=1, bias=False).to(DEVICE)
    x = torch.randn(4, channels, 8, 6, device=DEVICE).contiguous(memory_format=torch.channels_last).to(dtype)
    found = []
    for product in (True, False):
        conv.zero_grad()
        with monkeypatch.context() as patch, autocast(x.device, "bf16"):
            if not ON_GPU and product:
                patch.setattr(stem, "can_multiply", lambda conv, x: True)
                patch.setattr(stem, "unfold_windows", define_windows)
            assert stem.can_multiply(conv, x) or not product
            y = stem.convolve_stem(conv, x) if product else conv(x)
        y.float().square().sum().backward()
        found.append((y.detach().float(), conv.weight.grad))
        assert y.is_contiguous(memory_format=torch.channels_last) or not product
    for a, b in zip(*found):
        assert torch.linalg.vector_norm(a - b) <= 1e-2 * torch.linalg.vector_norm(b)


def test_other_cases_are_torchs():
    conv, x = nn.Conv2d(3, 4, 3, padding=1, bias=False), torch.randn(2, 3, 8, 8)
    assert not stem.can_multiply(conv, x)
    assert torch.equal(stem.convolve_stem(conv, x), conv(x))

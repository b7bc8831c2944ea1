"""The weights cast together give what autocast gives, layer by layer."""

import pytest
import torch

from ncollapse.models import create
from ncollapse.train.casting import CastFeatures
from ncollapse.train.objective import autocast


@pytest.mark.parametrize("name", ["resnet32", "vit-small", "mlp-32"])
def test_as_autocast(name):
    torch.manual_seed(0)
    network = create(name, 4, image_size=16).to(memory_format=torch.channels_last)
    x = torch.randn(8, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    cast, found = CastFeatures(network), []
    for features in (cast, network.features):
        network.zero_grad()
        with autocast(x.device, "bf16"):
            h = features(x)
        h.square().sum().backward()
        assert h.dtype == torch.float32
        found.append([h.detach(), *(p.grad for p in network.trunk.parameters())])
    assert all(weight.dtype == torch.float32 and weight.grad is not None for weight in cast.weights.values())
    assert len(cast.weights) == {"resnet32": 31, "vit-small": 49, "mlp-32": 6}[name]
    for a, b in zip(*found):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * float(b.abs().max()))


def test_compiled_into_one_graph(monkeypatch):
    """All but the cast: what is compiled sees the weights in bfloat16. A second network is not compiled again."""
    graphs = []

    def record(graph, example_inputs):
        graphs.append([tensor.dtype for tensor in example_inputs if isinstance(tensor, torch.Tensor)])
        return graph.forward

    compiled, x = torch.compile, torch.randn(3, 3, 16, 16)
    monkeypatch.setattr(torch, "compile", lambda work: compiled(work, backend=record, fullgraph=True))
    for seed in range(2):
        torch.manual_seed(seed)
        network = create("vit-small", 4, image_size=16)
        network.trunk.layers = network.trunk.layers[:1]
        cast, found = CastFeatures(network, compile=True), []
        for features in (cast, network.features):
            network.zero_grad()
            with autocast(x.device, "bf16"):
                h = features(x)
            h.square().sum().backward()
            found.append([h.detach(), *(p.grad for p in network.trunk.parameters())])
        for a, b in zip(*found):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * float(b.abs().max()))
    assert len(graphs) == 1
    assert graphs[0].count(torch.bfloat16) == len(cast.weights)

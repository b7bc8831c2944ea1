"""Compiled networks: one graph each, of which the fused norm is a node, and the same numbers."""

import pytest
import torch

from ncollapse.models import NAMES, create, densenet, norm, resnet, vit
from ncollapse.train.objective import autocast
from reference.norm_ops import register


@pytest.fixture
def shallow(monkeypatch):
    """Networks of the same parts, one of each in a stage: tracing takes as long as there are layers."""
    monkeypatch.setattr(resnet, "DEPTHS", dict.fromkeys(resnet.DEPTHS, (1, 1, 1, 2)))
    monkeypatch.setattr(resnet, "DEPTHS_32", (1, 1, 2))
    shapes = {name: (growth, width, (1, 1, 1, 2)) for name, (growth, width, _) in densenet.SHAPES.items()}
    monkeypatch.setattr(densenet, "SHAPES", shapes)
    monkeypatch.setattr(vit, "DEPTH", 2)
    torch._dynamo.reset()


def count_graphs(network, x):
    """How many graphs a training step's forward pass falls into; a break makes more than one."""
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    features = torch.compile(network.features, backend=keep)
    with autocast(x.device, "bf16"):
        features(x).sum().backward()
    return graphs


@pytest.mark.parametrize("name", NAMES)
def test_no_graph_breaks(shallow, name):
    network = create(name, 4, image_size=16)
    assert len(count_graphs(network, torch.randn(2, 3, 16, 16))) == 1


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch, where it traces one
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet32", "densenet121-small"])
def test_no_graph_breaks_with_the_fused_norm(shallow, monkeypatch, name):
    register()
    monkeypatch.setattr(norm, "can_fuse", lambda norm, x, residual: True)
    network = create(name, 4, image_size=16).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    (graph,) = count_graphs(network, x)
    norms = sum(isinstance(module, torch.nn.BatchNorm2d) for module in network.modules())
    assert sum(node.target is torch.ops.ncollapse.norm_statistics.default for node in graph.graph.nodes) == norms


def test_a_second_network_of_the_kind_is_not_compiled_again(shallow):
    built = []

    def keep(graph, inputs):
        built.append(graph)
        return graph.forward

    x = torch.randn(2, 3, 16, 16)
    for seed in range(2):
        torch.manual_seed(seed)
        network = create("resnet18", 4, image_size=16)
        found = torch.compile(network.features, backend=keep)(x)
        with torch.no_grad():
            torch.testing.assert_close(found, network.features(x), rtol=1e-4, atol=1e-4)
    assert len(built) == 1

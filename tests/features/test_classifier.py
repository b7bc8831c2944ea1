"""Only a linear classifier is measured as one, at the vector it classifies."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ncollapse as nc
from ncollapse.features import extract

X, Y = torch.randn(90, 6, generator=torch.Generator().manual_seed(0)), torch.arange(90) % 3
BATCHES = [(X[:50], Y[:50]), (X[50:], Y[50:])]


class Cosine(nn.Linear):
    def forward(self, x):
        return F.linear(F.normalize(x), F.normalize(self.weight))


class Manual(nn.Linear):
    """Linear, by other operations and in a precision of its own."""

    def forward(self, x):
        return (x.double() @ self.weight.double().T + self.bias.double()).float()


class Adapted(nn.Module):
    """A linear layer with an adapter of low rank beside it, zero at first."""

    def __init__(self, inplace, layers):
        super().__init__()
        self.base_layer, self.inplace = nn.Linear(8, 3), inplace
        if layers:
            self.lora_A, self.lora_B = nn.Linear(8, 2, bias=False), nn.Linear(2, 3, bias=False)
            self.rate = self.lora_B.weight
        else:
            self.down, self.rate = nn.Parameter(torch.randn(2, 8)), nn.Parameter(torch.zeros(3, 2))
        nn.init.zeros_(self.rate)

    def forward(self, x):
        out = self.base_layer(x)
        more = self.lora_B(self.lora_A(x)) if hasattr(self, "lora_A") else x @ self.down.T @ self.rate.T
        if self.inplace:
            out += more
            return out
        return out + more


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_layer_that_normalises_is_refused(dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), Cosine(8, 3)).to(dtype)
    batches = [(X.to(dtype), Y)]
    with pytest.raises(ValueError, match=r"layer: '2', a Cosine, does not return W h - b .* layer=.* head="):
        nc.monitor(net, batches).observe()
    with pytest.raises(ValueError, match="layer: '2', a Cosine"):
        nc.monitor(net, batches, layer="2").observe()
    with pytest.raises(ValueError, match="head, a Cosine, does not"):
        nc.monitor(net[:2], batches, head=net[2]).observe()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layer", [nn.Linear, Manual, nc.LinearHead, nc.ETFHead])
def test_linear_layers_of_any_precision_pass(layer, dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), layer(64, 3)).to(dtype)
    for scale in (1e-3, 1.0, 1e2):
        assert extract(net, [(scale * X.to(dtype), Y)]).layer == "2"
    wide = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), layer(64, 3))
    with torch.autocast("cpu", torch.bfloat16):
        assert extract(wide, BATCHES).layer == "2"
        assert extract(wide[:2], BATCHES, head=wide[2]).layer is None
    assert extract(net[:2], [(X.to(dtype), Y)], head=wide[2]).head.num_classes == 3


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("layers", [False, True])
def test_an_adapted_head_is_refused_once_it_differs(inplace, layers):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), Adapted(inplace, layers))
    watch = nc.monitor(net, BATCHES)
    logits = net(X)
    assert watch.observe().measurement.accuracy == pytest.approx(float((logits.argmax(1) == Y).float().mean()))
    with torch.no_grad():
        net[2].rate.normal_(std=0.01)
    with pytest.raises(ValueError, match=r"no linear layer, plain, scaled or normalised; .*2\.base_layer"):
        watch.observe()


class Ends(nn.Module):
    def __init__(self, end):
        super().__init__()
        self.trunk, self.fc, self.end = nn.Linear(6, 8), nn.Linear(8, 3), end

    def forward(self, x):
        return self.end(self.fc(torch.relu(self.trunk(x))), x)


@pytest.mark.parametrize(
    "end",
    [
        lambda z, x: z.softmax(1),
        lambda z, x: z.log_softmax(1),
        lambda z, x: z.sigmoid(),
        lambda z, x: z.mul_(7),
        lambda z, x: z.half(),
        lambda z, x: z / 0.07 - 2,
    ],
    ids=["softmax", "log-softmax", "sigmoid", "in place", "half", "shifted"],
)
def test_scaled_and_normalised_logits_are_the_layer_s(end):
    assert extract(Ends(end), BATCHES).layer == "fc"


@pytest.mark.parametrize(
    "end",
    [lambda z, x: z + x[:, :3], lambda z, x: z * x[:, :1], lambda z, x: 0 * z, lambda z, x: z.round()],
    ids=["added", "scaled by sample", "constant", "rounded"],
)
def test_other_logits_are_not(end):
    with pytest.raises(ValueError, match="no linear layer, plain, scaled or normalised"):
        extract(Ends(end), BATCHES)
    assert extract(Ends(end), BATCHES, layer="fc").features.shape == (90, 8)


def test_features_are_copies():
    class Reusing(nn.Module):
        """Writes every batch into the same memory, and over it once it is classified."""

        def __init__(self):
            super().__init__()
            self.room, self.fc = torch.empty(30, 6), nn.Linear(6, 3)

        def forward(self, x):
            self.room.copy_(x)
            out = self.fc(self.room)
            self.room.zero_()
            return out

    room, labels = torch.empty(30, 6), torch.empty(30, dtype=torch.long)

    def write(x):
        return room.copy_(x)

    class Loader:
        def __iter__(self):
            for x, y in zip(X.split(30), Y.split(30)):
                yield x, labels.copy_(y % 2)

    net = Reusing()
    weight = net.fc.weight.clone()
    found = extract(net, Loader())
    assert torch.equal(found.features, X)
    assert torch.equal(found.labels, Y % 2)
    assert torch.equal(extract(write, Loader(), head=net.fc).features, X)
    nn.init.zeros_(net.fc.weight)
    assert torch.equal(found.head.weight, weight)


class Tokens(nn.Module):
    def __init__(self, pool, dim=4, classes=3):
        super().__init__()
        self.fc, self.pool = nn.Linear(dim, classes), pool

    def forward(self, tokens):
        return self.pool(self.fc(tokens))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("classes", [2, 5])
def test_tokens_pooled_after_the_classifier(classes, dtype):
    torch.manual_seed(0)
    tokens = torch.randn(40, 200, 4, dtype=dtype)
    batches = [(tokens[:39], Y[:39] % 2), (tokens[39:], Y[39:40] % 2)]  # many tokens and few rows: some come close
    net = Tokens(lambda z: z.mean(1), classes=classes).to(dtype)
    found = extract(net, batches)
    assert torch.allclose(found.features.double(), tokens.double().mean(1), atol=1e-6)
    last = extract(Tokens(lambda z: z[:, -1].float(), classes=classes).to(dtype), batches)
    assert torch.equal(last.features, tokens[:, -1])


@pytest.mark.parametrize("pool", [lambda z: z.amax(1), lambda z: z[:, :100].mean(1), lambda z: z[:, 0] * 1.001])
def test_other_pooling_is_refused(pool):
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=r"neither the output of the classifier 'fc' for one token nor the mean"):
        extract(Tokens(pool), [(torch.randn(8, 200, 4), Y[:8])])

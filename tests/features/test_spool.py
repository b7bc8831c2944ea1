"""Features are read back bit for bit, from memory and from disk."""

import pytest
import torch

import ncollapse as nc
from ncollapse.features.spool import FeatureSpool


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("limit", [0, 100, 1 << 20])
def test_batches_come_back_any_number_of_times(limit, dtype):
    torch.manual_seed(0)
    batches = [(torch.randn(count, 5).to(dtype), torch.randint(0, 3, (count,))) for count in (7, 1, 12)]
    with FeatureSpool(limit=limit) as spool:
        for batch in batches:
            spool.add(*batch)
        for _ in range(2):
            for (features, labels), (x, y) in zip(spool, batches, strict=True):
                assert features.dtype == dtype
                assert torch.equal(features, x)
                assert torch.equal(labels, y)
        assert (spool._file is None) == (limit > 1000)
        assert spool.counts(4).tolist() == torch.cat([y for _, y in batches]).bincount(minlength=4).tolist()


@pytest.mark.parametrize("labels", [[0.7, 1.2], [False, True]])
def test_labels_that_are_no_integers_are_refused_and_not_cut_off(labels):
    model = torch.nn.Linear(3, 2)
    batches = [(torch.randn(2, 3), torch.tensor(labels))]
    kind = str(batches[0][1].dtype).removeprefix("torch.")
    for measure in (nc.measure_layers, lambda *arguments: nc.monitor(*arguments).observe()):
        with pytest.raises(ValueError, match=rf"^labels: expected integers 0..K-1, got {kind}; .*labels.long\(\)"):
            measure(torch.nn.Sequential(model), batches)


def test_measured_from_disk_as_from_memory():
    torch.manual_seed(0)
    x, y = torch.randn(90, 6), torch.arange(90) % 3
    with FeatureSpool(limit=0) as spool:
        for part in range(0, 90, 25):
            spool.add(x[part : part + 25], y[part : part + 25])
        assert nc.measure(spool).nc1 == pytest.approx(nc.measure(x, y).nc1, rel=1e-12)


def test_chosen_classes_alone_are_read():
    with FeatureSpool(limit=0) as spool:
        spool.add(torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 2, 1]))
        spool.add(torch.ones(1, 2), torch.tensor([2]))  # nothing of it is left
        spool.keep_classes(torch.tensor([True, True, False]))
        ((features, labels),) = list(spool)
    assert labels.tolist() == [0, 1, 1]
    assert features[:, 0].tolist() == [0, 2, 6]


def test_widths_must_agree():
    with FeatureSpool() as spool:
        spool.add(torch.ones(1, 2), torch.tensor([0]))
        with pytest.raises(ValueError, match="features: width 3 after batches of width 2"):
            spool.add(torch.ones(1, 3), torch.tensor([0]))

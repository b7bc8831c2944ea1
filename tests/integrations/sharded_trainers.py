"""Run by torchrun: both callbacks beside models that FSDP (fully_shard) holds in parts; rank 0 prints JSON."""

import json
import os
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: what is imported later keeps one alive past its end
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

import ncollapse as nc

SEED = torch.Generator().manual_seed(0)
Y = torch.arange(33) % 3


def describe(callback, model, features, head):
    """What the callback measured, beside NC1 of the whole weights at the end; every process has to call."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    assert isinstance(head.weight, DTensor)
    whole = {name: parameter.full_tensor() for name, parameter in model.named_parameters()}
    return {
        "nc1": [seen.measurement.nc1 for seen in callback.history],
        "samples": [seen.measurement.num_samples for seen in callback.history],
        "exact": nc.measure(*features(whole)).nc1,
    }


def huggingface(folder):
    """As accelerate's FSDP 2 shards a model on GPUs; on a CPU it would fall back to DistributedDataParallel."""
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    from ncollapse.integrations.huggingface import NeuralCollapseCallback

    tokens = torch.randint(0, 50, (33, 5), generator=SEED)
    data = [{"input_ids": x, "attention_mask": torch.ones_like(x), "labels": y} for x, y in zip(tokens, Y)]
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=50, num_labels=3, max_position_embeddings=8, **sizes)
    torch.manual_seed(0)
    model, twin = (BertForSequenceClassification(config).eval() for _ in range(2))
    quiet = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    arguments = TrainingArguments(folder, num_train_epochs=2, per_device_train_batch_size=8, **quiet)
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    trainer.accelerator.state.distributed_type = DistributedType.FSDP
    trainer.is_fsdp_enabled = True
    callback = NeuralCollapseCallback(trainer)
    trainer.add_callback(callback)
    trainer.log = lambda *given, **named: None
    trainer.train()

    def features(whole):
        twin.load_state_dict(whole, strict=False)
        with torch.no_grad():
            return twin.bert(tokens).pooler_output, Y, twin.classifier.weight, -twin.classifier.bias

    return describe(callback, model, features, model.classifier)


def lightning(folder):
    """ModelParallelStrategy, with fully_shard in configure_model."""
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import ModelParallelStrategy

    from ncollapse.integrations.lightning import NeuralCollapseCallback

    x = torch.randn(33, 6, generator=SEED)

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

        def configure_model(self):
            for module in (self.net[0], self.net[2], self.net):
                fully_shard(module, mesh=self.device_mesh["data_parallel"])

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, index):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = NeuralCollapseCallback()
    strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    options = {"accelerator": "cpu", "devices": 2, "strategy": strategy, "enable_checkpointing": False}
    trainer = pl.Trainer(max_epochs=2, callbacks=[callback], **options, **quiet)
    module = Module()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        trainer.fit(module, DataLoader(TensorDataset(x, Y), batch_size=16))

    def features(whole):
        hidden = torch.relu(x @ whole["net.0.weight"].T + whole["net.0.bias"])
        return hidden, Y, whole["net.2.weight"], -whole["net.2.bias"]

    found = describe(callback, module, features, module.net[2])
    logged = float(trainer.callback_metrics["nc/nc1"])
    return {**found, "logged": logged, "warned": [str(item.message) for item in heard if "sync_dist" in str(item)]}


if __name__ == "__main__":
    for case in (huggingface, lightning):  # the first makes the group
        result = case(sys.argv[1])
        if dist.get_rank() == 0:
            print(json.dumps([case.__name__, result]), flush=True)
    dist.destroy_process_group()
    os._exit(0)  # models of FSDP keep the group alive; at the interpreter's own exit its threads may abort the process

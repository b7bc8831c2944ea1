"""A Hugging Face Trainer and one more callback: collapse in the Trainer's own log.

python examples/huggingface_trainer.py --epochs 5 --out trainer
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from ncollapse.integrations.huggingface import NeuralCollapseCallback


class Digits(Dataset):
    """Pixels and labels under the names the model asks for."""

    def __init__(self) -> None:
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index):
        return {"pixel_values": self.images[index], "labels": int(self.labels[index])}


def main(epochs: int, out: str) -> None:
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        num_labels=10,
    )
    args = TrainingArguments(
        out,
        num_train_epochs=epochs,
        per_device_train_batch_size=64,
        learning_rate=2e-3,
        logging_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(ViTForImageClassification(config), args, train_dataset=Digits())
    watch = NeuralCollapseCallback(trainer)
    trainer.add_callback(watch)
    trainer.train()
    for seen in watch.history:
        print(f"epoch {seen.epoch:3d}  NC1 {seen.measurement.nc1:.4f}  accuracy {seen.measurement.accuracy:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", default="trainer", help="the Trainer's folder")
    main(**vars(parser.parse_args()))

"""Fine-tune a timm model with BCE and mixup, and watch it collapse on the clean images.

pip install 'ncollapse[vision]'
python examples/timm_finetune.py --model resnet18 --weights resnet18.safetensors --data cifar10 --root data
"""

import argparse

import timm
import torch
from timm.data import Mixup

import ncollapse as nc
from ncollapse.data import NORMALISATION, Augment, eval_loader, load, train_loader


def main(
    model: str, weights: str | None, data: str, root: str | None, size: int, samples: int | None, epochs: int
) -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images = load(data, root)
    if samples is not None:
        images = images.select(torch.randperm(len(images))[:samples])
    form = {"image_size": size, "channels": 3, "normalise": NORMALISATION.get(data), "device": device}
    batches = train_loader(images, 64, augment=Augment(flip=data != "digits"), **form)
    clean = eval_loader(images, 256, **form)

    options = {} if weights is None else {"checkpoint_path": weights}
    net = timm.create_model(model, num_classes=images.num_classes, **options).to(device)
    mixup = Mixup(mixup_alpha=0.2, label_smoothing=0.0, num_classes=images.num_classes)
    loss = nc.BCELoss()  # summed over classes: its scale, and so every decay, is that of the theory
    optimiser = torch.optim.AdamW(net.parameters(), lr=5e-4, weight_decay=0.01)

    with nc.monitor(net, clean) as watch:
        for epoch in range(epochs):
            net.train()
            for x, y in batches.epoch(epoch):
                x, targets = mixup(x, y)  # soft targets [B, K]
                value = loss(net(x), targets)
                optimiser.zero_grad()
                value.backward()
                optimiser.step()
            m = watch.step()
            print(f"epoch {epoch + 1:3d}  NC1 {m.nc1:.4f}  accuracy {m.accuracy:.4f}  uniform {m.uniform_accuracy:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--weights", help="pretrained weights (safetensors), for the same number of classes")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--root")
    parser.add_argument("--size", type=int, default=32, help="of the images")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--epochs", type=int, default=3)
    main(**vars(parser.parse_args()))

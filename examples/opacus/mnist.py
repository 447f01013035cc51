"""MNIST with a loop as Opacus's users write it: ``--library`` changes the import, and nothing else.

    python examples/opacus/mnist.py --library lehr --epochs 5
    python examples/opacus/mnist.py --library opacus --epochs 5

MNIST is looked for where Lehr looks (``--data-dir``); ``--data digits`` trains on the small digits that ship with it.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lehr import data


def privacy_engine(library: str) -> Any:
    """The only lines that differ."""
    if library == "opacus":
        from opacus import PrivacyEngine
    else:
        from lehr.integrations.opacus import PrivacyEngine
    return PrivacyEngine


class SampleConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 8, 2, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 4, 2)
        self.fc1 = nn.Linear(32 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2, 1)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2, 1)
        x = functional.relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc2(x)
        return logits


def records(name: str, data_dir: str | None) -> tuple[TensorDataset, TensorDataset]:
    found = data.load(name, data_dir)
    prepare = found.preparation.prepared
    parts = ((prepare(part.inputs), part.targets) for part in (found.train, found.test))
    resized = ((functional.interpolate(images, (28, 28)), labels) for images, labels in parts)
    train, test = (TensorDataset(images, labels) for images, labels in resized)
    return train, test


def train(model: nn.Module, loader: DataLoader[Any], optimizer: optim.Optimizer, device: str) -> float:
    model.train()
    criterion = nn.CrossEntropyLoss()
    began = time.perf_counter()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
    return time.perf_counter() - began


@torch.no_grad()
def test(model: nn.Module, loader: DataLoader[Any], device: str) -> float:
    model.eval()
    right = [(model(images.to(device)).argmax(1) == labels.to(device)).float() for images, labels in loader]
    return float(torch.cat(right).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=["lehr", "opacus"], default="lehr")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--sigma", type=float, default=1.0, help="noise multiplier")
    parser.add_argument("--max-per-sample-grad-norm", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0, help="of the weights at the start, never of the noise")
    args = parser.parse_args()
    warnings.simplefilter("ignore")

    torch.manual_seed(args.seed)
    train_set, test_set = records(args.data, args.data_dir)
    train_loader: DataLoader[Any] = DataLoader(train_set, batch_size=args.batch_size)
    test_loader: DataLoader[Any] = DataLoader(test_set, batch_size=1024)
    model: nn.Module = SampleConvNet().to(args.device)
    optimizer: optim.Optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0)
    engine = privacy_engine(args.library)()
    model, optimizer, train_loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=train_loader,
        noise_multiplier=args.sigma,
        max_grad_norm=args.max_per_sample_grad_norm,
    )
    for epoch in range(1, args.epochs + 1):
        seconds = train(model, train_loader, optimizer, args.device)
        epsilon = engine.get_epsilon(delta=args.delta)
        accuracy = test(model, test_loader, args.device)
        print(f"{args.library} epoch {epoch}: accuracy {accuracy:.4f}, ε = {epsilon:.2f}, {seconds:.1f} s")


if __name__ == "__main__":
    main()

"""CIFAR-10 with a loop as Opacus's users write it: a target ε, physical batches, a fixed model.

    python examples/opacus/cifar10.py --library lehr --epochs 3 --epsilon 8

``--library`` changes the imports, and nothing else. ``--data digits`` trains on the small digits that ship with it.
"""

from __future__ import annotations

import argparse
import time
import warnings
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lehr import data


def names_of(library: str) -> Any:
    """The only lines that differ."""
    if library == "opacus":
        from opacus import PrivacyEngine
        from opacus.utils.batch_memory_manager import BatchMemoryManager
        from opacus.validators import ModuleValidator
    else:
        from lehr.integrations.opacus import BatchMemoryManager, PrivacyEngine
        from lehr.integrations.opacus.validators import ModuleValidator
    return SimpleNamespace(
        PrivacyEngine=PrivacyEngine, BatchMemoryManager=BatchMemoryManager, ModuleValidator=ModuleValidator
    )


def convnet(num_classes: int) -> nn.Module:
    """Four convolutions with BatchNorm, which the validator replaces."""
    layers: list[nn.Module] = []
    for wide, wider in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(wide, wider, 3, padding=1), nn.BatchNorm2d(wider), nn.ReLU(), nn.AvgPool2d(2)]
    layers += [nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(128, num_classes))


def records(name: str, data_dir: str | None) -> tuple[TensorDataset, TensorDataset]:
    found = data.load(name, data_dir)
    parts = ((found.preparation.prepared(part.inputs), part.targets) for part in (found.train, found.test))
    sized = ((functional.interpolate(images.expand(-1, 3, -1, -1), (32, 32)), labels) for images, labels in parts)
    train, test = (TensorDataset(images.contiguous(), labels) for images, labels in sized)
    return train, test


def train(args: Any, model: nn.Module, loader: Any, optimizer: Any, manager: Any) -> float:
    model.train()
    criterion = nn.CrossEntropyLoss()
    began = time.perf_counter()
    with manager(
        data_loader=loader, max_physical_batch_size=args.max_physical_batch_size, optimizer=optimizer
    ) as physical:
        for images, labels in physical:
            optimizer.zero_grad()
            loss = criterion(model(images.to(args.device)), labels.to(args.device))
            loss.backward()
            optimizer.step()
    return time.perf_counter() - began


@torch.no_grad()
def test(model: nn.Module, loader: DataLoader[Any], device: str) -> float:
    model.eval()
    right: list[Tensor] = [
        (model(images.to(device)).argmax(1) == labels.to(device)).float() for images, labels in loader
    ]
    return float(torch.cat(right).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=["lehr", "opacus"], default="lehr")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--max-physical-batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--max-per-sample-grad-norm", type=float, default=1.2)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--data", default="cifar-10")
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0, help="of the weights at the start, never of the noise")
    args = parser.parse_args()
    warnings.simplefilter("ignore")

    torch.manual_seed(args.seed)
    names = names_of(args.library)
    train_set, test_set = records(args.data, args.data_dir)
    train_loader: DataLoader[Any] = DataLoader(train_set, batch_size=args.batch_size)
    test_loader: DataLoader[Any] = DataLoader(test_set, batch_size=512)
    model = names.ModuleValidator.fix(convnet(10)).to(args.device)
    optimizer = optim.NAdam(model.parameters(), lr=args.lr)
    engine = names.PrivacyEngine()
    model, optimizer, train_loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=train_loader,
        target_epsilon=args.epsilon,
        target_delta=args.delta,
        epochs=args.epochs,
        max_grad_norm=args.max_per_sample_grad_norm,
    )
    for epoch in range(1, args.epochs + 1):
        seconds = train(args, model, train_loader, optimizer, names.BatchMemoryManager)
        epsilon = engine.get_epsilon(delta=args.delta)
        accuracy = test(model, test_loader, args.device)
        print(f"{args.library} epoch {epoch}: accuracy {accuracy:.4f}, ε = {epsilon:.2f}, {seconds:.1f} s")


if __name__ == "__main__":
    main()

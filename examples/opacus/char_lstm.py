"""Which language a name is from, character by character, by an LSTM in a loop as Opacus's users write it.

    python examples/opacus/char_lstm.py --library lehr --epochs 5

``--library`` changes the imports, and nothing else. The names are made up: every language has its own syllables.
"""

from __future__ import annotations

import argparse
import time
import warnings
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, TensorDataset

LETTERS = "abcdefghijklmnopqrstuvwxyz"
LANGUAGES = {
    "first": ("ka", "mi", "ro", "shi", "to", "na", "yu"),
    "second": ("berg", "stein", "hof", "mann", "fel", "der"),
    "third": ("ov", "ski", "va", "dim", "ya", "kol"),
    "fourth": ("elli", "ni", "ro", "ca", "tti", "vio"),
}
LONGEST = 15


def names_of(library: str) -> Any:
    """The only lines that differ."""
    if library == "opacus":
        from opacus import PrivacyEngine
        from opacus.layers import DPLSTM
    else:
        from lehr.integrations.opacus import PrivacyEngine
        from lehr.integrations.opacus.layers import DPLSTM
    return SimpleNamespace(PrivacyEngine=PrivacyEngine, DPLSTM=DPLSTM)


class CharNNClassifier(nn.Module):
    def __init__(self, lstm: Any, *, embedding_size: int, hidden_size: int, num_layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS) + 1, embedding_size)
        self.lstm = lstm(embedding_size, hidden_size, num_layers=num_layers, batch_first=True)
        self.out_layer = nn.Linear(hidden_size, len(LANGUAGES))

    def forward(self, letters: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(letters))
        logits: Tensor = self.out_layer(hidden[:, -1, :])
        return logits


def names(count: int, seed: int) -> TensorDataset:
    """Names of two to four syllables, padded in front with zeros."""
    generator = torch.Generator().manual_seed(seed)
    rows, labels = [], []
    for _ in range(count):
        language = int(torch.randint(len(LANGUAGES), (), generator=generator))
        syllables = list(LANGUAGES.values())[language]
        drawn = torch.randint(len(syllables), (int(torch.randint(2, 5, (), generator=generator)),), generator=generator)
        name = "".join(syllables[int(place)] for place in drawn)[-LONGEST:]
        rows.append([0] * (LONGEST - len(name)) + [LETTERS.index(letter) + 1 for letter in name])
        labels.append(language)
    return TensorDataset(torch.tensor(rows), torch.tensor(labels))


def train(model: nn.Module, loader: DataLoader[Any], optimizer: optim.Optimizer, device: str) -> float:
    model.train()
    criterion = nn.CrossEntropyLoss()
    began = time.perf_counter()
    for letters, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(letters.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
    return time.perf_counter() - began


@torch.no_grad()
def test(model: nn.Module, loader: DataLoader[Any], device: str) -> float:
    model.eval()
    right = [(model(letters.to(device)).argmax(1) == labels.to(device)).float() for letters, labels in loader]
    return float(torch.cat(right).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=["lehr", "opacus"], default="lehr")
    parser.add_argument("--records", type=int, default=8000)
    parser.add_argument("--batch-size", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=2.0)
    parser.add_argument("--sigma", type=float, default=1.0, help="noise multiplier")
    parser.add_argument("--max-per-sample-grad-norm", type=float, default=1.5)
    parser.add_argument("--delta", type=float, default=8e-5)
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--num-layers", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0, help="of the weights at the start, never of the noise")
    args = parser.parse_args()
    warnings.simplefilter("ignore")

    torch.manual_seed(args.seed)
    library = names_of(args.library)
    train_loader: DataLoader[Any] = DataLoader(names(args.records, seed=1), batch_size=args.batch_size)
    test_loader: DataLoader[Any] = DataLoader(names(2000, seed=2), batch_size=1000)
    model: nn.Module = CharNNClassifier(
        library.DPLSTM, embedding_size=32, hidden_size=args.hidden_size, num_layers=args.num_layers
    ).to(args.device)
    optimizer: optim.Optimizer = optim.SGD(model.parameters(), lr=args.lr)
    engine = library.PrivacyEngine()
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

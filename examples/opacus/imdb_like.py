"""Text classification by a small BERT, randomly initialised, in a loop as Opacus's users write it.

    python examples/opacus/imdb_like.py --library lehr --epochs 3

``--library`` changes the import, and nothing else. Reviews are made up: words of praise, words of blame, and many that
say nothing. The model is that of ``transformers`` where it is installed, and torch's own encoder where it is not.
"""

from __future__ import annotations

import argparse
import time
import warnings
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, Dataset

WORDS, LENGTH, OPINIONS = 200, 24, 20


def privacy_engine(library: str) -> Any:
    """The only lines that differ."""
    if library == "opacus":
        from opacus import PrivacyEngine
    else:
        from lehr.integrations.opacus import PrivacyEngine
    return PrivacyEngine


class Reviews(Dataset[dict[str, Tensor]]):
    """Batches of dictionaries, as tokenizers make them."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(2, (count,), generator=generator)
        self.input_ids = torch.randint(2 * OPINIONS, WORDS, (count, LENGTH), generator=generator)
        opinions = torch.randint(OPINIONS, (count, LENGTH), generator=generator) + OPINIONS * self.labels[:, None]
        has_opinion = torch.rand(count, LENGTH, generator=generator) < 0.35
        self.input_ids = torch.where(has_opinion, opinions, self.input_ids)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"input_ids": self.input_ids[place], "labels": self.labels[place]}


class Bert(nn.Module):
    """The BERT of ``transformers``, of which the logits are asked for. Positions are given, one row for each record."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        import transformers

        bert: Any = transformers  # whose types do not know all that its classes take
        config = bert.BertConfig(
            vocab_size=WORDS,
            hidden_size=hidden_size,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=2 * hidden_size,
            max_position_embeddings=LENGTH,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=2,
            attn_implementation="eager",
        )
        self.bert = bert.BertForSequenceClassification(config)
        # A table that all records look up at the same places has no gradient by record in Opacus: it is frozen there.
        self.bert.bert.embeddings.position_embeddings.requires_grad_(False)

    def forward(self, input_ids: Tensor) -> Tensor:
        positions = torch.arange(LENGTH, device=input_ids.device).expand(len(input_ids), -1)
        kinds = torch.zeros_like(input_ids)
        logits: Tensor = self.bert(input_ids=input_ids, position_ids=positions, token_type_ids=kinds).logits
        return logits


class Encoder(nn.Module):
    """The same in torch's own layers."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, hidden_size)
        self.first, self.second = nn.Linear(hidden_size, 2 * hidden_size), nn.Linear(2 * hidden_size, hidden_size)
        self.norm, self.out = nn.LayerNorm(hidden_size), nn.Linear(hidden_size, 2)

    def forward(self, input_ids: Tensor) -> Tensor:
        words = self.words(input_ids)
        words = self.norm(words + self.second(torch.relu(self.first(words))))
        logits: Tensor = self.out(words.mean(1))
        return logits


def network(hidden_size: int) -> nn.Module:
    return Bert(hidden_size) if find_spec("transformers") else Encoder(hidden_size)


def train(model: nn.Module, loader: DataLoader[Any], optimizer: optim.Optimizer, device: str) -> float:
    model.train()
    criterion = nn.CrossEntropyLoss()
    began = time.perf_counter()
    for batch in loader:
        optimizer.zero_grad()
        loss = criterion(model(batch["input_ids"].to(device)), batch["labels"].to(device))
        loss.backward()
        optimizer.step()
    return time.perf_counter() - began


@torch.no_grad()
def test(model: nn.Module, loader: DataLoader[Any], device: str) -> float:
    model.eval()
    right = [(model(batch["input_ids"].to(device)).argmax(1) == batch["labels"].to(device)).float() for batch in loader]
    return float(torch.cat(right).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=["lehr", "opacus"], default="lehr")
    parser.add_argument("--records", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--sigma", type=float, default=0.5, help="noise multiplier")
    parser.add_argument("--max-per-sample-grad-norm", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-4)
    parser.add_argument("--hidden-size", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0, help="of the weights at the start, never of the noise")
    args = parser.parse_args()
    warnings.simplefilter("ignore")

    torch.manual_seed(args.seed)
    train_loader: DataLoader[Any] = DataLoader(Reviews(args.records, seed=1), batch_size=args.batch_size)
    test_loader: DataLoader[Any] = DataLoader(Reviews(1000, seed=2), batch_size=500)
    model = network(args.hidden_size).to(args.device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer: optim.Optimizer = optim.Adam(trained, lr=args.lr)
    engine = privacy_engine(args.library)()
    model, optimizer, train_loader = engine.make_private(
        module=model.train(),
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

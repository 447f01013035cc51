"""Fine-tune a small language model on texts, privately: all weights, and an adapter by LoRA.

    apt install fortunes                                  # the records: 15,000 short texts, each one a record
    python examples/language_model.py
    python examples/language_model.py --text notes.txt    # your own: records are separated by blank lines

Nothing is downloaded. A small model of GPT-2's shape reads bytes. It is first trained, without privacy, on the
docstrings of Python's standard library, which are public. It is then fine-tuned with ``LehrTrainer``; each of the two
private models has an ε of its own, and publishing both costs more than publishing one. Without Debian's fortunes, and
without ``--text``, the records are paragraphs of SciPy's docstrings.

Both models are attacked. Canaries are short texts of a new token that no other text has (Panda et al. 2025). Each is
among the records with probability 1/2, by a coin of its own. The attack guesses which ones were, from by how much the
final model lowered their losses, and the number of right guesses gives a lower bound on ε that assumes nothing
(Steinke, Nasr & Jagielski 2023). The attack looks at a private model and at canaries only, so that it costs the other
records nothing.

Perplexities are per byte, on texts that are held out: this example treats them as public.
"""

from __future__ import annotations

import argparse
import ast
import copy
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scipy
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from lehr.auditing import LowerBound, one_run
from lehr.integrations.transformers import LehrTrainer, PrivacyConfig

FORTUNES = Path("/usr/share/games/fortunes")
BYTES = 256
EDGE = BYTES  # the token before and after a text
FIRST_CANARY = BYTES + 1
IGNORED = -100  # the label of a token without a loss
AT_ONCE = 64  # records that are processed together
GUESSED = 2  # guesses are made about half of the canaries, those with the clearest scores

HEADER = f"\n{'model':26}{'trained':>9}{'perplexity':>12}{'ε':>8}{'ε shown by the attack':>23}{'seconds':>9}"

Record = dict[str, Tensor]


@dataclass(frozen=True)
class Outcome:
    """One model: its perplexity, what it cost, and what the attack shows."""

    name: str
    trained: int
    perplexity: float
    seconds: float
    epsilon: float | None
    shown: LowerBound | None


def main() -> None:
    given = options()
    torch.manual_seed(given.seed)
    texts, source = private_texts(given.text)
    order = torch.randperm(len(texts)).tolist()
    held_out = [texts[place] for place in order[: len(texts) // 10]]
    private = [texts[place] for place in order[len(texts) // 10 :]]
    public = docstrings(Path(sysconfig.get_path("stdlib")))[: given.public_records]
    print(f"private: {len(private):,} records, and {len(held_out):,} held out, from {source}")
    print(f"public: {len(public):,} paragraphs of the docstrings of Python's standard library")

    canaries = [encode([FIRST_CANARY + number], length=given.length) for number in range(given.canaries)]
    is_in = torch.rand(given.canaries) < 0.5
    records = [encode(text.encode(), length=given.length) for text in private]
    records += [canary for canary, coin in zip(canaries, is_in.tolist(), strict=True) if coin]
    tested = [encode(text.encode(), length=given.length) for text in held_out]

    base, seconds = gpt2(given), time.perf_counter()
    train_publicly(
        base,
        [encode(text.encode(), length=given.length) for text in public],
        given.public_steps,
        batch=AT_ONCE,
        lr=3e-3,
    )
    before = losses(base, canaries)
    seconds = time.perf_counter() - seconds
    print(HEADER, flush=True)
    print_row(Outcome("before fine-tuning", parameters(base), perplexity(base, tested), seconds, None, None))
    sampled = {"before fine-tuning": sample(base, given)}

    for name in ("LoRA, private", "all weights, private", "all weights, not private"):
        model: Any = copy.deepcopy(base)
        if name.startswith("LoRA"):
            model = adapted(model, rank=given.rank)
        seconds, epsilon, delta = time.perf_counter(), None, 1e-5
        if name.endswith("not private"):
            train_publicly(model, records, given.steps, batch=given.batch_size, lr=1e-3)
        else:
            trainer = fine_tune(model, records, given, learning_rate=5e-3 if name.startswith("LoRA") else 2e-3)
            assert trainer.certificate is not None
            epsilon, delta = trainer.certificate.epsilon, trainer.certificate.delta
        seconds = time.perf_counter() - seconds
        shown = attack(before - losses(model, canaries), is_in, delta=delta)
        print_row(Outcome(name, parameters(model), perplexity(model, tested), seconds, epsilon, shown))
        sampled[name] = sample(model, given)

    for name, text in sampled.items():
        print(f"\nsampled, {name}:\n{text}")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="own records, separated by blank lines")
    parser.add_argument("--epsilon", type=float, default=8.0, help="of each private model (default: 8)")
    parser.add_argument("--steps", type=int, default=60, help="of fine-tuning (default: 60)")
    parser.add_argument("--batch-size", type=int, default=256, help="expected, of fine-tuning (default: 256)")
    parser.add_argument("--clip-norm", type=float, default=0.5, help="of the gradient of a record (default: 0.5)")
    parser.add_argument("--rank", type=int, default=8, help="of LoRA (default: 8)")
    parser.add_argument("--length", type=int, default=64, help="texts are cut to so many tokens (default: 64)")
    parser.add_argument("--width", type=int, default=64, help="of the model (default: 64)")
    parser.add_argument("--layers", type=int, default=2, help="of the model (default: 2)")
    parser.add_argument("--canaries", type=int, default=256, help="of which half are among the records (default: 256)")
    parser.add_argument("--public-steps", type=int, default=500, help="of the training in public (default: 500)")
    parser.add_argument("--public-records", type=int, help="so many paragraphs only (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, split and coins; noise is never seeded")
    return parser.parse_args()


def private_texts(path: Path | None) -> tuple[list[str], str]:
    """The records, and where they come from. A text that occurs twice is one record."""
    if path is not None:
        texts, source = paragraphs(path.read_text(encoding="utf-8")), str(path)
    elif FORTUNES.is_dir():
        files = sorted(one for one in FORTUNES.iterdir() if one.is_file() and not one.suffix)
        read = [one.read_text(encoding="utf-8", errors="replace").split("\n%\n") for one in files]
        texts, source = [text.strip() for one in read for text in one], f"Debian's fortunes ({FORTUNES})"
    else:
        texts, source = docstrings(Path(scipy.__file__).parent), "SciPy's docstrings, since there are no fortunes"
    return list(dict.fromkeys(text for text in texts if text)), source


def paragraphs(text: str) -> list[str]:
    return [part.strip() for part in text.split("\n\n") if part.strip()]


def docstrings(folder: Path) -> list[str]:
    """The paragraphs of all docstrings in a folder of Python files, each once."""
    documented = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    found: list[str] = []
    for path in sorted(folder.rglob("*.py")):
        if not {"site-packages", "test", "tests", "idlelib"}.isdisjoint(path.relative_to(folder).parts):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the code of others
            tree = ast.parse(path.read_bytes())
        nodes = (node for node in ast.walk(tree) if isinstance(node, documented))
        found += [part for node in nodes for part in paragraphs(ast.get_docstring(node) or "")]
    return list(dict.fromkeys(found))


def encode(tokens: Sequence[int] | bytes, *, length: int) -> Record:
    """A text as bytes between two edges, cut or padded to a length. Padding has no loss and is not attended to."""
    ids = torch.tensor([EDGE, *tokens, EDGE][:length])
    padded = torch.full((length,), EDGE)
    padded[: len(ids)] = ids
    is_text = torch.arange(length) < len(ids)
    return {"input_ids": padded, "attention_mask": is_text.long(), "labels": padded.where(is_text, IGNORED)}


def gpt2(given: argparse.Namespace) -> Any:
    """A model of GPT-2's shape. Dropout is for small data sets that are read many times."""
    dropouts: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = GPT2Config(
        vocab_size=FIRST_CANARY + given.canaries,
        n_positions=given.length,
        n_embd=given.width,
        n_layer=given.layers,
        n_head=4,
        bos_token_id=EDGE,
        eos_token_id=EDGE,
        **dropouts,
    )
    return GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]


def adapted(model: Any, *, rank: int) -> Any:
    """The model with a LoRA in every linear layer of its blocks; only these are trained."""
    layers = ["c_attn", "c_proj", "c_fc"]
    config = LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=2 * rank, target_modules=layers, fan_in_fan_out=True)
    return get_peft_model(model, config)


def fine_tune(model: Any, records: list[Record], given: argparse.Namespace, *, learning_rate: float) -> LehrTrainer:
    """Train privately. The trainer has the certificate."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = LehrTrainer(
            model=model,
            args=TrainingArguments(
                output_dir=f"{folder}/out",
                max_steps=given.steps,
                per_device_train_batch_size=AT_ONCE,
                learning_rate=learning_rate,
                lr_scheduler_type="linear",
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                use_cpu=True,
                disable_tqdm=True,
            ),
            train_dataset=records,
            privacy=PrivacyConfig(
                epsilon=given.epsilon,
                delta=1e-5,
                records=len(records),
                expected_batch_size=given.batch_size,
                clip_norm=given.clip_norm,
                settings_chosen_on="fixed",
            ),
        )
        trainer.train()
    return trainer


def train_publicly(model: Any, records: list[Record], steps: int, *, batch: int, lr: float) -> None:
    """Train without privacy."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    model.train()
    for _ in range(steps):
        drawn = torch.randint(len(records), (batch,)).tolist()
        optimizer.zero_grad()
        token_losses(model, [records[place] for place in drawn]).nanmean(1).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()


def token_losses(model: Any, records: Sequence[Record]) -> Tensor:
    """The loss of every token, NaN for padding: one row for each record."""
    batch = {name: torch.stack([record[name] for record in records]) for name in records[0]}
    labels = batch.pop("labels")[:, 1:]
    logits = model(**batch).logits[:, :-1]
    found = cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED)
    return found.masked_fill(labels == IGNORED, torch.nan)


@torch.no_grad()
def evaluated(model: Any, records: Sequence[Record]) -> Tensor:
    """The losses of all tokens of all records, as ``token_losses`` has them."""
    model.eval()
    parts = [records[first : first + AT_ONCE] for first in range(0, len(records), AT_ONCE)]
    return torch.cat([token_losses(model, part) for part in parts])


def losses(model: Any, records: Sequence[Record]) -> Tensor:
    """The mean loss of every record."""
    return evaluated(model, records).nanmean(1)


def perplexity(model: Any, records: Sequence[Record]) -> float:
    """Per byte."""
    return float(evaluated(model, records).nanmean().exp())


def attack(scores: Tensor, is_in: Tensor, *, delta: float) -> LowerBound:
    """Guess that the largest scores are those of canaries which were among the records, and the smallest are not.

    How many guesses are made is fixed before the attack.
    """
    order, half = scores.argsort(), len(scores) // GUESSED // 2
    right = int(is_in[order[-half:]].sum() + (~is_in[order[:half]]).sum())
    return one_run.lower_bound(right=right, guesses=2 * half, canaries=len(scores), delta=delta)


def sample(model: Any, given: argparse.Namespace) -> str:
    """One text. Tokens of canaries are not sampled."""
    model.eval()
    ids = model.generate(
        input_ids=torch.tensor([[EDGE]]),
        attention_mask=torch.ones(1, 1, dtype=torch.long),
        do_sample=True,
        temperature=0.7,
        max_length=given.length,
        pad_token_id=EDGE,
        suppress_tokens=list(range(FIRST_CANARY, FIRST_CANARY + given.canaries)),
    )
    return bytes(token for token in ids[0].tolist() if token < BYTES).decode(errors="replace")


def parameters(model: Any) -> int:
    return sum(one.numel() for one in model.parameters() if one.requires_grad)


def print_row(one: Outcome) -> None:
    epsilon = "none" if one.epsilon is None else f"{one.epsilon:.2f}"
    shown = "" if one.shown is None else f"at least {one.shown.epsilon:.2f}"
    row = f"{one.name:26}{one.trained:>9,}{one.perplexity:>12.2f}{epsilon:>8}{shown:>23}{one.seconds:>9.0f}"
    print(row, flush=True)


if __name__ == "__main__":
    main()

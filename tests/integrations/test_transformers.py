"""The trainer of transformers trains privately: whole models, adapters and heads on frozen backbones."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, default_collate

from lehr.accounting.ledger import Ledger
from lehr.certificates.run_reading import read_run
from lehr.errors import InvalidValue, NotPrivate
from lehr.gradients.execution import rng_states
from lehr.gradients.precision import margin
from lehr.integrations.external_loop import ExternalRun, PrivacyConfig
from lehr.planning.budget import Budget
from lehr.planning.plan import USER
from lehr.privacy.clipping import QuantileClip
from tests.integrations.opacus.loops import draw_everywhere
from tests.integrations.ranks import alone
from tests.integrations.refusals import invalid

transformers = pytest.importorskip("transformers")
from transformers import (  # noqa: E402
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    TrainerCallback,
    TrainingArguments,
)

from lehr.integrations.transformers import LehrTrainer, record_losses  # noqa: E402

RECORDS = 24


class Sentences(Dataset[dict[str, Tensor]]):
    """Token ids of different length, padded; the label is whether the first is large."""

    def __init__(self, *, is_causal: bool = False) -> None:
        self.is_causal = is_causal

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        length = 3 + index % 4
        ids = torch.tensor([(7 * index + 3 * offset) % 17 + 2 for offset in range(6)])
        mask = (torch.arange(6) < length).long()
        labels = torch.where(mask.bool(), ids, -100) if self.is_causal else (ids[0] > 10).long()
        return {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}


class Spans(Sentences):
    def __getitem__(self, index: int) -> dict[str, Tensor]:
        record = super().__getitem__(index)
        record["start_positions"] = record["end_positions"] = record.pop("labels")
        return record


def a_bert(kind: Any = BertForSequenceClassification) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 8, "max_position_embeddings": 8}
    return kind(BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


def a_gpt2() -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 20, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8}
    others: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(bos_token_id=1, eos_token_id=1, **sizes, **others))  # type: ignore[no-untyped-call]


def a_trainer(folder: Path, model: Any = None, dataset: Any = None, kind: Any = LehrTrainer, **changed: Any) -> Any:
    settings: dict[str, Any] = {"max_steps": 2, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    settings |= {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "learning_rate": 0.01}
    settings |= {"logging_steps": 1, "lr_scheduler_type": "constant", **changed.pop("arguments", {})}
    privacy = {"noise_multiplier": 1.0, "delta": 1e-3, "records": RECORDS, **changed.pop("privacy", {})}
    return kind(
        model=model or a_bert(),
        train_dataset=dataset or Sentences(),
        args=TrainingArguments(output_dir=str(folder / "out"), **settings),
        privacy=PrivacyConfig(**privacy),
        **changed,
    )


def steps_charged(folder: Path) -> int:
    with Ledger.open(folder / "out-privacy" / "ledger.db") as ledger:
        return ledger.count("steps")


def changed_by_training(trainer: LehrTrainer) -> set[str]:
    model: Any = trainer.model
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    trainer.train()
    return {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}


def test_train_takes_the_planned_steps_and_leaves_a_certified_run(tmp_path: Path) -> None:
    trainer = a_trainer(
        tmp_path,
        eval_dataset=Sentences(),
        eval_dataset_is_public=True,
        arguments={"eval_strategy": "steps", "eval_steps": 2},
        privacy={"noise_multiplier": None, "epsilon": 6.0, "settings_chosen_on": "fixed"},
    )
    output = trainer.train()
    assert trainer.state.global_step == steps_charged(tmp_path) == read_run(tmp_path / "out-privacy").steps_charged == 2
    assert trainer.certificate is not None
    assert 5.9 < trainer.epsilon_spent <= 6.0
    assert trainer.certificate.epsilon <= 6.001
    assert "the evaluation records" in trainer.certificate.stated.treated_as_public
    assert trainer.privacy.expected_batch_size == 8  # four at once, accumulated twice
    # Only public values are logged.
    logged = {name for row in trainer.state.log_history for name in row}
    assert {"epsilon", "eval_loss"} <= logged
    assert not (logged | output.metrics.keys()) & {"loss", "train_loss", "total_flos"}
    assert output.training_loss is None
    # Samples per second count the expected batch size.
    speeds = [output.metrics[f"train_{what}_per_second"] for what in ("samples", "steps")]
    assert speeds[0] == pytest.approx(8 * speeds[1], rel=0.05)
    assert trainer.state.total_flos == 0
    assert trainer.num_examples(trainer.get_train_dataloader()) == RECORDS
    # The key is not in the folder that is uploaded.
    assert (tmp_path / "out-privacy" / "private" / "key").exists()
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name == "key"]


@pytest.mark.parametrize("make, is_causal", [(a_bert, False), (a_gpt2, True)])
def test_a_step_is_the_clipped_sum_over_the_draw(tmp_path: Path, make: Any, is_causal: bool) -> None:
    trained, dataset = make(), Sentences(is_causal=is_causal)
    before = {name: value.detach().clone() for name, value in trained.named_parameters()}
    trainer = a_trainer(
        tmp_path,
        trained,
        dataset,
        arguments={"max_steps": 1, "optim": "sgd", "learning_rate": 1.0},
        privacy={"noise_multiplier": 1e-6, "clip_norm": 0.3},
    )
    drawn: list[int] = []
    step = trainer.training_step

    def noting(*args: Any, **kwargs: Any) -> Any:
        drawn.extend([index for batch in trainer._open_run().batches(0) for index in batch.indices_P.tolist()])
        return step(*args, **kwargs)

    trainer.training_step = noting
    trainer.train()
    expected = by_hand(make(), dataset, drawn, clip_norm=0.3, divisor=8)
    for name, value in trained.named_parameters():
        torch.testing.assert_close(before[name] - value.detach(), expected[name], rtol=1e-3, atol=2e-6)


def by_hand(model: nn.Module, dataset: Sentences, drawn: list[Any], *, clip_norm: float, divisor: float) -> Any:
    """Each sentence alone and without its padding; positions and losses are the model's own.

    Of a user, ``drawn`` has a list of sentences, whose gradients are averaged.
    """
    sums = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    for unit in drawn:
        records = unit if isinstance(unit, list) else [unit]
        model.zero_grad()
        for index in records:
            record = dataset[index]
            length = int(record["attention_mask"].sum())
            labels = record["labels"][:length] if dataset.is_causal else record["labels"]
            loss = model(input_ids=record["input_ids"][:length][None], labels=labels[None]).loss
            (loss / len(records)).backward()
        grads = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
        norm = float(torch.stack([grad.norm() for grad in grads.values()]).norm())
        for name, grad in grads.items():
            sums[name] += grad * min(1.0, clip_norm / (norm * (1 + margin(torch.float32)))) / divisor
    return sums


OWNERS = [f"user {index * index % 7}" for index in range(RECORDS)]  # four users, of 4, 7, 7 and 6 records
USERS: dict[str, Any] = {"records": None, "users": 4, "records_per_user": 5, "expected_batch_size": 2}


@pytest.mark.parametrize(
    "make, records_per_user, changed",
    [
        (a_bert, 5, {}),
        (a_bert, 1, {}),
        (a_gpt2, 5, {"arguments": {"gradient_checkpointing": True, "dataloader_num_workers": 2}}),
        (a_gpt2, 5, {"tiled_head": True}),
    ],
    ids=["bert", "one each", "checkpointed", "tiled"],
)
def test_a_step_of_users_averages_each_before_the_clip(
    tmp_path: Path, make: Any, records_per_user: int, changed: dict[str, Any]
) -> None:
    trained, dataset = make(), Sentences(is_causal=make is a_gpt2)
    before = {name: value.detach().clone() for name, value in trained.named_parameters()}
    arguments = {"max_steps": 1, "optim": "sgd", "learning_rate": 1.0, "per_device_train_batch_size": 2}
    trainer = a_trainer(
        tmp_path,
        trained,
        dataset,
        owners=OWNERS,
        **{**changed, "arguments": {**arguments, **changed.get("arguments", {})}},
        privacy={
            **USERS,
            "records_per_user": records_per_user,
            "expected_batch_size": 4,
            "noise_multiplier": 1e-6,
            "clip_norm": 0.3,
        },
    )
    drawn: list[list[int]] = []
    step = trainer.training_step

    def noting(*args: Any, **kwargs: Any) -> Any:
        for indices in trainer._open_run().record_indices(0):
            drawn.extend([*dict.fromkeys(user)] for user in indices.view(-1, records_per_user).tolist())
        return step(*args, **kwargs)

    trainer.training_step = noting
    trainer.train()
    # Everybody is drawn, and enters with as many different records of their own as the bound allows.
    of_each = [{OWNERS[index] for index in records} for records in drawn]
    assert sorted(of_each, key=str) == [{owner} for owner in sorted({*OWNERS})]
    assert sorted(map(len, drawn)) == sorted(min(records_per_user, OWNERS.count(owner)) for owner in {*OWNERS})
    expected = by_hand(make(), dataset, drawn, clip_norm=0.3, divisor=4)
    for name, value in trained.named_parameters():
        torch.testing.assert_close(before[name] - value.detach(), expected[name], rtol=1e-3, atol=2e-6)


class Owned(Sentences):
    """With a column of owners, as a data set of Hugging Face has it."""

    column_names = ("input_ids", "attention_mask", "labels", "user")

    def __getitem__(self, index: Any) -> Any:
        return OWNERS if index == "user" else super().__getitem__(index)

    def remove_columns(self, names: list[str]) -> Sentences:
        assert names == ["user"]
        return Sentences()


def test_certificate_report_and_budget_state_users_and_the_bound(tmp_path: Path) -> None:
    Budget.create(tmp_path / "budget", dataset="texts", epsilon=20.0, delta=1e-3, unit=USER).close()
    privacy = {**USERS, "settings_chosen_on": "fixed", "budget": tmp_path / "budget"}
    privacy |= {"noise_multiplier": 4.0}
    trainer = a_trainer(tmp_path, dataset=Owned(), owners="user", privacy=privacy)
    trainer.train()
    stated = trainer.certificate.stated
    assert stated.unit_of_privacy == "one user with all their records, at most 5 of them in a step"
    assert (stated.records, stated.treated_as_public) == (4, ("the number of users",))
    plan = read_run(tmp_path / "out-privacy").plan
    assert plan is not None
    assert (plan.unit, plan.records_per_user, plan.sampling_probability) == (USER, 5, 0.5)
    assert stated.unit_of_privacy in (tmp_path / "out-privacy" / "report.html").read_text(encoding="utf-8")
    assert trainer.num_examples(trainer.get_train_dataloader()) == 4
    with Budget.open(tmp_path / "budget") as budget:
        assert [paid.is_settled for paid in budget.status().runs] == [True]
    with invalid("unit"):
        a_trainer(tmp_path / "records", privacy={"budget": tmp_path / "budget", "name": "records"}).train()


@pytest.mark.parametrize(
    "name, owners, privacy",
    [
        ("owners", OWNERS[1:], USERS),
        ("owners", [*OWNERS[1:], None], USERS),
        ("owners", [float("nan"), *range(1, RECORDS)], USERS),
        ("owners", "user", USERS),  # these records have no columns
        ("owners", None, USERS),
        ("users", OWNERS, {}),
        ("users", OWNERS, {**USERS, "users": 0}),
        ("records", OWNERS, {**USERS, "records": RECORDS}),
        ("records", OWNERS, {"records": None}),
        ("records_per_user", OWNERS, {**USERS, "records_per_user": 0}),
        ("records_per_user", None, {"records_per_user": 2}),
    ],
)
def test_owners_and_users_that_do_not_fit_are_refused(
    tmp_path: Path, name: str, owners: Any, privacy: dict[str, Any]
) -> None:
    with pytest.raises(InvalidValue) as error:
        a_trainer(tmp_path, owners=owners, privacy=privacy)
    assert error.value.name == name
    assert "user 1" not in str(error.value)


def test_a_number_of_users_that_is_far_off_is_refused(tmp_path: Path) -> None:
    with invalid("users"):
        a_trainer(tmp_path, owners=OWNERS, privacy={**USERS, "users": RECORDS}).train()
    assert not (tmp_path / "out-privacy").exists()


def test_a_resumed_run_has_the_same_owners(tmp_path: Path) -> None:
    given: dict[str, Any] = {"arguments": {"save_strategy": "steps", "save_steps": 2, "max_steps": 5}, "privacy": USERS}
    with pytest.raises(KeyboardInterrupt):
        a_trainer(tmp_path, owners=OWNERS, callbacks=[Breaks()], **given).train()
    for others in ([*OWNERS[:-1], OWNERS[1]], OWNERS):
        trainer = a_trainer(tmp_path, owners=others, **given)
        with nullcontext() if others is OWNERS else invalid("data"):
            trainer.train(resume_from_checkpoint=True)
    assert (trainer.state.global_step, steps_charged(tmp_path)) == (4, 5)


def test_only_a_peft_adapter_is_trained(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    model = peft.get_peft_model(a_bert(), settings)
    changed = changed_by_training(a_trainer(tmp_path, model))
    assert changed == {name for name, value in model.named_parameters() if value.requires_grad}
    assert any("lora_B" in name for name in changed)


def test_only_a_head_is_trained_and_empty_draws_are_noisy_steps(tmp_path: Path) -> None:
    model = a_bert()
    model.bert.requires_grad_(False)
    trainer = a_trainer(tmp_path, model, privacy={"expected_batch_size": 0.001, "physical_batch": 1})
    assert changed_by_training(trainer) == {"classifier.weight", "classifier.bias"}
    assert trainer.state.global_step == 2


class Pictures(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        pixels = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(index))
        return {"pixel_values": pixels, "labels": torch.tensor(index % 2)}


def a_llama(**changed: Any) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 8, "max_position_embeddings": 8, "num_key_value_heads": 1}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **changed))


def a_vit() -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8}
    sizes |= {"intermediate_size": 8, "patch_size": 4}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes))


def a_lora() -> Any:
    return adapted(a_llama(), "LoraConfig", r=2, target_modules=["q_proj", "v_proj"])


def adapted(model: Any, kind: str, **settings: Any) -> Any:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, getattr(peft, kind)(task_type="CAUSAL_LM", **settings))


def a_soft_prompt() -> Any:
    return adapted(a_gpt2(), "PromptTuningConfig", num_virtual_tokens=2)


def a_lora_of_bfloat16() -> Any:
    return adapted(a_llama(dtype=torch.bfloat16).bfloat16(), "LoraConfig", r=2, target_modules=["q_proj", "v_proj"])


@pytest.mark.parametrize(
    "make, given",
    [
        (a_gpt2, {"bf16": True}),
        (lambda: a_gpt2().bfloat16(), {"bf16": True}),
        (a_llama, {"gradient_checkpointing": True, "bf16": True}),
        (a_lora_of_bfloat16, {"bf16": True}),
        (a_lora_of_bfloat16, {"gradient_checkpointing": True}),
        (a_soft_prompt, {}),
        (a_vit, {}),
    ],
    ids=["bf16", "bf16 weights", "checkpointed", "lora", "checkpointed lora", "soft prompt", "class token"],
)
def test_what_is_trained_changes_and_is_kept_in_float32(tmp_path: Path, make: Any, given: dict[str, Any]) -> None:
    model = make()
    frozen = {name: value.dtype for name, value in model.named_parameters() if not value.requires_grad}
    dataset = Pictures() if make is a_vit else Sentences(is_causal=True)
    trained = changed_by_training(a_trainer(tmp_path, model, dataset, arguments={"max_steps": 1, **given}))
    assert trained == {name for name, value in model.named_parameters() if value.requires_grad}
    for name, value in model.named_parameters():
        assert value.dtype is frozen.get(name, torch.float32), name


def test_trained_weights_of_half_precision_are_refused_without_bf16(tmp_path: Path) -> None:
    with invalid("model"):
        a_trainer(tmp_path, a_gpt2().bfloat16(), Sentences(is_causal=True)).train()
    assert not (tmp_path / "out-privacy").exists()


@pytest.mark.slow
def test_a_compiled_step_is_the_step_of_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []

    def compile_eagerly(step: Any, **settings: Any) -> Any:  # dynamo follows the whole step; inductor takes a minute
        compiled.append(settings)
        return compile_by_torch(step, backend="eager", **settings)

    compile_by_torch = torch.compile
    monkeypatch.setattr(torch, "compile", compile_eagerly)
    trainer = a_trainer(tmp_path, a_gpt2(), Sentences(is_causal=True), arguments={"torch_compile": True})
    assert changed_by_training(trainer) == {name for name, _ in trainer.model.named_parameters()}
    assert len(compiled) == 1


def test_checkpoints_do_not_say_how_many_random_numbers_the_records_took(tmp_path: Path) -> None:
    """Dropout and collation take more of them the more records are drawn, and checkpoints hold the generators' states.

    Nor does the seed of the arguments, which is 42 by default, tell these numbers.
    """
    states: list[Any] = []
    drawn: list[Any] = []

    def collate(records: list[Any]) -> Any:
        if trainer._private_run is not None:  # before, a few records are tried
            drawn.extend(draw_everywhere() for _ in range(len(records)))
        return default_collate(records)

    def noting(*args: Any, **kwargs: Any) -> Any:
        states.append(rng_states(torch.device("cpu")))
        return step(*args, **kwargs)

    for number in range(2):
        model = a_bert()
        model.bert.embeddings.dropout.p = 0.5
        trainer = a_trainer(tmp_path / str(number), model, data_collator=collate, arguments={"max_steps": 3})
        step, before = trainer.training_step, {name: value.clone() for name, value in model.named_parameters()}
        trainer.training_step = noting
        trainer.train()
        assert any(not value.equal(before[name]) for name, value in model.named_parameters())
        assert all(state == states[-3] for state in states[-3:])
    assert len(states) == 6
    assert all(len(set(numbers)) == len(drawn) > 6 for numbers in zip(*drawn, strict=True))


@pytest.mark.parametrize(
    "make, is_bf16",
    [(lambda: a_gpt2(), True), (lambda: a_llama(), False), (lambda: a_lora(), True)],
    ids=["gpt2", "llama", "lora"],
)
def test_a_head_in_tiles_trains_the_same_weights(tmp_path: Path, make: Any, is_bf16: bool) -> None:
    def trained(folder: Path, _: int, **job: Any) -> dict[str, Any]:
        arguments = {"bf16": is_bf16, "optim": "sgd", "learning_rate": 0.1}
        trainer = a_trainer(folder, make(), Sentences(is_causal=True), arguments=arguments, **job)
        trainer.train()
        return {"weights": dict(trainer.model.named_parameters()), "has_labels": not trainer._drops_labels}

    expected, found = (alone(tmp_path / str(is_tiled), trained, tiled_head=is_tiled) for is_tiled in (False, True))
    assert (expected["has_labels"], found["has_labels"]) == (False, True)
    before = dict(make().named_parameters())
    changed = {name for name, value in before.items() if not value.equal(expected["weights"][name].to(value.dtype))}
    assert changed == {name for name, value in before.items() if value.requires_grad}
    for name in changed:
        steps = [(said["weights"][name] - before[name]).detach() for said in (expected, found)]
        assert (steps[0] - steps[1]).norm() <= (2e-2 if is_bf16 else 1e-4) * steps[0].norm(), name


def test_a_head_is_in_tiles_where_logits_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, (largest, is_tiled) in enumerate(((4 * 4 * 6 * 20, False), (4 * 4 * 6 * 20 - 1, True))):
        monkeypatch.setattr("lehr.integrations.transformers.LARGE_LOGITS", largest)
        trainer = a_trainer(tmp_path / str(place), a_gpt2(), Sentences(is_causal=True), arguments={"max_steps": 1})
        trainer.train()
        assert trainer._drops_labels != is_tiled


def scaled(model: Any) -> Any:
    """A model that does something to its logits."""
    forward = type(model).forward

    class Scaled(type(model)):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            outputs = forward(self, *args, **kwargs)
            outputs["logits"] = outputs["logits"] * 0.1
            return outputs

    Scaled.__name__ = type(model).__name__
    model.__class__ = Scaled
    return model


@pytest.mark.parametrize("make", [a_bert, lambda: scaled(a_gpt2()), a_soft_prompt], ids=["bert", "scaled", "prompt"])
def test_other_heads_cannot_be_in_tiles(tmp_path: Path, make: Any) -> None:
    model = make()
    with invalid("tiled_head"):
        kept = {"remove_unused_columns": False}
        a_trainer(tmp_path, model, Sentences(is_causal=make is not a_bert), tiled_head=True, arguments=kept).train()
    assert not (tmp_path / "out-privacy").exists()


class Breaks(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 3:
            raise KeyboardInterrupt


def test_a_resumed_run_charges_repeated_steps(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2, "max_steps": -1, "num_train_epochs": 1}
    more = {"records": 40}  # the stated number of records decides: five steps
    with pytest.raises(KeyboardInterrupt):
        a_trainer(tmp_path, arguments=saving, privacy=more, callbacks=[Breaks()]).train()
    assert steps_charged(tmp_path) == 3
    trainer = a_trainer(tmp_path, arguments=saving, privacy=more)
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    # The third step was charged twice, so that the plan of five ends one step earlier.
    assert steps_charged(tmp_path) == 5
    assert trainer.state.global_step == 4


def test_a_clip_norm_that_follows_a_quantile_is_resumed_from_a_checkpoint(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2, "max_steps": 5}
    more = {"clipping": QuantileClip(100.0)}
    with pytest.raises(KeyboardInterrupt):
        a_trainer(tmp_path, arguments=saving, privacy=more, callbacks=[Breaks()]).train()
    saved = json.loads((tmp_path / "out" / "checkpoint-2" / "trainer_state.json").read_text())["stateful_callbacks"]
    [learnt] = [one["attributes"]["clip_norm"] for one in saved.values() if "clip_norm" in one.get("attributes", {})]
    assert learnt != 100.0  # the count of so few records is mostly noise
    trainer, started = a_trainer(tmp_path, arguments=saving, privacy=more), []
    add = ExternalRun.add

    def noting(run: ExternalRun, *batch: Any) -> None:
        started.append(run.clip_state["clip_norm"])
        add(run, *batch)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ExternalRun, "add", noting)
        trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert started[0] == learnt


BEST = {"load_best_model_at_end": True} | dict.fromkeys(("save_strategy", "eval_strategy"), "epoch")


class OneIsLonger(Sentences):
    """With a record that is not among those that are tried."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        record = super().__getitem__(index)
        longer = ("input_ids", "attention_mask") if index == 1 else ()
        return {
            name: nn.functional.pad(value, (0, name in longer)) for name, value in record.items() if value.dim()
        } | {"labels": record["labels"]}


def padded(records: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {
        name: pad_sequence([record[name] for record in records], batch_first=True)
        if records[0][name].dim()
        else torch.stack([record[name] for record in records])
        for name in records[0]
    }


class UpToFour(Sentences):
    """Padded to the length of its own."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        record = super().__getitem__(index)
        return {name: value[: 3 + index % 4] if value.dim() else value for name, value in record.items()}


@pytest.mark.usefixtures("met")
@pytest.mark.parametrize(
    "name, given",
    [
        ("model", {"model": a_gpt2(), "dataset": Sentences(is_causal=True)}),  # its head is tied
        ("bf16", {"arguments": {"bf16": True}}),
        ("torch_compile", {"arguments": {"torch_compile": True}}),
        ("gradient_checkpointing", {"arguments": {"gradient_checkpointing": True}}),
        ("tiled_head", {"tiled_head": True}),
        ("load_best_model_at_end", {"arguments": BEST, "eval_dataset": Sentences(), "eval_dataset_is_public": True}),
        ("eval_on_start", {"arguments": {"eval_on_start": True}}),
        ("model_init", {"model_init": a_bert}),
        ("optimizer", {"arguments": {"optim": "adafactor"}}),
        ("clipping", {"privacy": {"clipping": QuantileClip(1.0)}}),
        ("train_dataset", {"dataset": UpToFour(), "data_collator": padded}),
    ],
)
def test_what_needs_whole_weights_is_refused_with_sharded_ones(
    tmp_path: Path, name: str, given: dict[str, Any]
) -> None:
    with invalid(name):
        a_trainer(tmp_path, sharded=True, **given).train()
    assert not (tmp_path / "out-privacy").exists()


@pytest.mark.usefixtures("met")
def test_a_record_of_another_length_stops_a_sharded_run_before_its_step_is_charged(tmp_path: Path) -> None:
    given = {"arguments": {"max_steps": 1}, "privacy": {"expected_batch_size": RECORDS}}
    with invalid("inputs"):
        a_trainer(tmp_path, dataset=OneIsLonger(), data_collator=padded, sharded=True, **given).train()
    assert not (tmp_path / "out-privacy").exists()


@pytest.mark.usefixtures("met")
def test_whole_weights_are_not_moved_before_they_are_sharded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device stands for a GPU that is too small. Weights that are moved there are lost."""
    trainer = a_trainer(tmp_path, sharded=True, arguments={"max_steps": 1})
    monkeypatch.setattr(type(trainer.accelerator), "device", torch.device("meta"))
    trainer._move_model_to_device(trainer.model, torch.device("meta"))
    trainer.train()
    assert trainer.state.global_step == 1


@pytest.mark.usefixtures("met")
def test_a_sharded_model_is_trained_once(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path, sharded=True, arguments={"max_steps": 1})
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    released = load_file(tmp_path / "out-privacy" / "model.safetensors")
    for name, value in load_file(tmp_path / "saved" / "model.safetensors").items():
        torch.testing.assert_close(value, released[name], rtol=0, atol=0)
    with invalid("train"):
        trainer.train()


def test_sharded_weights_need_processes(tmp_path: Path) -> None:
    with invalid("sharded"):
        a_trainer(tmp_path, sharded=True).train()
    assert not (tmp_path / "out-privacy").exists()


class OwnLoss(LehrTrainer):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs)


class OwnLosses(LehrTrainer):
    def losses(self, *args: Any, **kwargs: Any) -> Any:
        return super().losses(*args, **kwargs).abs()


class OwnBatches(LehrTrainer):
    def get_train_dataloader(self) -> Any:
        return DataLoader(Sentences(), batch_size=8)


@pytest.mark.parametrize(
    "name, given",
    [
        ("eval_dataset_is_public", {"eval_dataset": Sentences()}),
        ("compute_loss_func", {"compute_loss_func": cross_entropy}),
        ("hyperparameter_search", {}),
        ("directory", {"privacy": {"directory": "out/mine"}}),
        ("torch_compile_mode", {"arguments": {"torch_compile_mode": "max-autotune"}}),
        ("losses", {"kind": OwnLosses}),
        ("label_smoothing_factor", {"arguments": {"label_smoothing_factor": 0.1}}),
        ("neftune_noise_alpha", {"arguments": {"neftune_noise_alpha": 1.0}}),
        ("skip_memory_metrics", {"arguments": {"skip_memory_metrics": False}}),
        ("train_sampling_strategy", {"arguments": {"train_sampling_strategy": "group_by_length"}}),
        ("compute_loss", {"kind": OwnLoss}),
        ("get_train_dataloader", {"kind": OwnBatches}),
        ("hyperparameter_search", {"kind": OwnLoss, "record_losses": cross_entropy}),
    ],
)
def test_unsafe_settings_are_refused_by_name(
    tmp_path: Path, name: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with invalid(name):
        a_trainer(tmp_path, **given).hyperparameter_search()
    assert not (tmp_path / "out-privacy").exists()


def crowded(outputs: Any, inputs: Any) -> Tensor:
    scores: Tensor = outputs["logits"][:, 0]
    return scores + len(scores)  # which the others in its batch decide


def with_words_of_others(records: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    batch: dict[str, Tensor] = default_collate(records)
    is_other = torch.rand(batch["input_ids"].shape) < 0.5
    batch["input_ids"] = torch.where(is_other, batch["input_ids"].roll(1, 0), batch["input_ids"])
    return batch


def without_mask(records: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Padded to the longest of its draw, without an attention mask."""
    words = [record["input_ids"][record["input_ids"] > 0] for record in records]
    labels = torch.stack([record["labels"] for record in records])
    return {"input_ids": pad_sequence(words, batch_first=True), "labels": labels}


@pytest.mark.parametrize(
    "given",
    [
        {"record_losses": lambda outputs, inputs: outputs["logits"].mean()},
        {"record_losses": crowded},
        {"data_collator": with_words_of_others},
        {"data_collator": without_mask},
        {"model": a_bert(BertForQuestionAnswering), "dataset": Spans()},  # without logits and labels
    ],
    ids=["one loss", "crowded", "words of others", "without mask", "without logits"],
)
def test_losses_that_mix_records_are_refused_before_anything_begins(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises((NotPrivate, InvalidValue)):
        a_trainer(tmp_path, **given).train()
    assert not (tmp_path / "out-privacy").exists()


def test_a_parameter_outside_the_model_is_refused(tmp_path: Path) -> None:
    scale, model = nn.Parameter(torch.ones(1)), a_bert()
    optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    with invalid("optimizer"):
        a_trainer(tmp_path, model, optimizers=(optimizer, schedule)).train()
    assert scale.detach().equal(torch.ones(1))


def test_each_record_has_the_mean_loss_over_its_own_tokens() -> None:
    logits, labels = torch.randn(2, 4, 5), torch.tensor([[1, 2, 3, 4], [1, -100, -100, 2]])
    found = record_losses(logits, labels, is_causal=True)
    alone = [cross_entropy(logits[row, :-1], labels[row, 1:]) for row in range(2)]
    torch.testing.assert_close(found, torch.stack(alone))


def test_the_tokens_of_a_draw_are_not_counted(tmp_path: Path) -> None:
    """transformers counts those of every batch for a model that takes their number, and waits for the GPU."""
    counted: list[Any] = []

    class Noting(LehrTrainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            counted.append(num_items_in_batch)
            return super().training_step(model, inputs, num_items_in_batch)

    a_trainer(tmp_path, a_gpt2(), Sentences(is_causal=True), kind=Noting).train()
    assert counted
    assert set(counted) == {None}


@pytest.mark.parametrize(
    "logits, labels",
    [
        (torch.zeros(2, 1), torch.ones(2)),
        (torch.zeros(2, 3), torch.ones(2, 3)),
        (torch.zeros(2, 3), torch.ones(2).long()),
    ],
)
def test_numbers_and_classes_have_one_loss_per_record(logits: Tensor, labels: Tensor) -> None:
    assert record_losses(logits, labels, is_causal=False).shape == (2,)
    for wrong in (None, torch.zeros(2, 3, 4)):
        with pytest.raises(InvalidValue):
            record_losses(logits, wrong, is_causal=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_benchmark_measures_every_side() -> None:
    from benchmarks.transformers import SIDES, cases_of, run

    rows = [row for case in cases_of("cpu", quick=True) for row in run(case, rounds=1)]
    assert [row["who"] for row in rows] == 3 * list(SIDES)
    assert all(row["ms"] > 0 and not row["note"] for row in rows)

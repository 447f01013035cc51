"""Private fine-tuning with the trainer of Hugging Face's transformers; adapters of PEFT and frozen backbones too.

    trainer = LehrTrainer(
        model=model, args=TrainingArguments(output_dir="out", num_train_epochs=3), train_dataset=dataset,
        terms=Terms(epsilon=8.0, delta=1e-5, records=20_000))
    trainer.train()

Every step is taken on a Poisson draw, the loss is that of each record by itself, gradients are clipped one by one, and
what the optimizer finds has its noise. The optimizer, its schedule, checkpoints, callbacks and evaluation are the
trainer's own. It needs ``pip install 'lehr[hugging-face]'``.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.utils.data import DataLoader, IterableDataset, Sampler

from lehr.compat.each_record import Loop, refuse_mixed_records, some_of
from lehr.compat.private_run import PrivateRun, Terms
from lehr.compat.trained_parameters import refuse_other_parameters
from lehr.errors import InvalidValue
from lehr.gradients.batches import one_each, trainable
from lehr.gradients.rules.linear import bias_grads, outer_product
from lehr.interfaces import Contributions, LayerRule, Site, register_layer_rule
from lehr.reports.certificate import Certificate

try:
    from transformers import Trainer, TrainingArguments
    from transformers import __version__ as transformers_version
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from transformers.pytorch_utils import Conv1D
except ImportError as error:  # pragma: no cover
    allowed = "installed where it is used: pip install 'lehr[hugging-face]'"
    raise InvalidValue("transformers", allowed=allowed, given="not installed") from error

RecordLosses: TypeAlias = Callable[[Any, Mapping[str, Tensor]], Tensor]
IGNORED = -100  # the label of a token that no loss is taken of
FOLDER = "privacy"  # beside the trainer's output folder, which is uploaded whole: the key of the noise is in the run's
WITHHELD = ("loss", "train_loss", "total_flos")  # of private records, without noise


class LehrTrainer(Trainer):
    """The trainer of transformers, private. A subclass of yours becomes so by ``class Mine(LehrTrainer, MyTrainer)``.

    ``terms`` say what is promised (``lehr.compat.private_run.Terms``). Where they have no ``expected_batch_size``, it
    is the one of the arguments, accumulation included, and ``per_device_train_batch_size`` is how many records are run
    at once. The plan has ``max_steps``, or ``num_train_epochs`` passes over the stated number of records.

    ``record_losses(outputs, inputs)`` gives one loss for each record, of what the model returned and of the batch with
    its labels. Left out it is the usual one for classes, numbers, several classes at once, and tokens, where each
    record has the mean over its own tokens. Evaluation is refused unless ``eval_dataset_is_public``.

    After ``train``: ``certificate``, where the terms say how the settings were chosen, and ``epsilon_spent``.
    """

    def __init__(
        self,
        *,
        terms: Terms,
        args: TrainingArguments,
        record_losses: RecordLosses | None = None,
        eval_dataset_is_public: bool = False,
        **others: Any,
    ) -> None:
        _refuse_unfit(args, others, eval_dataset_is_public=eval_dataset_is_public)
        _refuse_unfit_subclass(type(self), has_record_losses=record_losses is not None)
        declared = ("the evaluation records",) if others.get("eval_dataset") is not None else ()
        self.terms = _completed(replace(terms, treated_as_public=(*terms.treated_as_public, *declared)), args)
        self.certificate: Certificate | None = None
        self.epsilon_spent = 0.0
        self._record_losses = record_losses
        self._open: PrivateRun | None = None
        super().__init__(args=_arguments(args, self.terms), **others)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train, and leave a folder with the ledger, a certificate where one can be given, and a page."""
        try:
            output = super().train(*args, **kwargs)
            if self._open is not None:
                weights = {name: value.detach() for name, value in trainable(self._open.model).items()}
                self._open.steps.engine.detach()
                self.certificate = self._open.end(weights)
            return output._replace(training_loss=math.nan)
        finally:
            self._close()

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The records that each step drew, all of one step at once."""
        dataset: Any = self.train_dataset
        return DataLoader(
            dataset,
            batch_sampler=_WholeDraws(self._opened, steps=self.terms.steps_per_pass),
            collate_fn=self._collated,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and torch.cuda.is_available(),
        )

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One private step: physical batch after physical batch, then a charge, noise, and gradients to step with.

        The loss that is returned is zero: that of the records is private.
        """
        run: PrivateRun = self._opened()
        model.train()
        inputs = self._prepare_inputs(inputs)
        num_records = sum(len(part.places) for part in run.steps.parts())
        _refuse_other_batches(inputs, num_records=num_records)
        for first in range(0, num_records, run.steps.draws.physical_batch):
            rows = slice(first, first + run.steps.draws.physical_batch)
            losses = self.losses(model, {name: value[rows] for name, value in inputs.items()})
            losses.mean().backward()  # type: ignore[no-untyped-call]
            run.steps.add()
        refuse_other_parameters(model, _optimizer(self))
        run.steps.write(run.steps.release())
        if run.is_over:
            self.control.should_training_stop = True
        return torch.zeros((), device=self.args.device)

    def losses(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """One loss for each record. Labels are kept from the model, which would make one number of them."""
        given = {name: value for name, value in inputs.items() if name != "labels"}
        outputs = model(**given, **_positions(model, given))
        num_records = len(next(iter(inputs.values())))
        if self._record_losses is not None:
            found = self._record_losses(outputs, inputs)
        else:
            found = record_losses(_logits(outputs), inputs.get("labels"), is_causal=_is_causal(model))
        return one_each(found, num_records=num_records)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """What the trainer logs, without what comes from private records, and with ε."""
        for name in WITHHELD:
            logs.pop(name, None)
        if self._open is not None:
            logs["epsilon"] = self._open.epsilon_spent
        super().log(logs, *args, **kwargs)

    def num_examples(self, dataloader: object) -> int:
        """The stated number of records."""
        return self.terms.records

    def floating_point_ops(self, inputs: object) -> int:
        """Not told: it would follow from how many records were drawn, and how long they are."""
        return 0

    def hyperparameter_search(self, *_: object, **__: object) -> Any:
        """Refused: every trial costs privacy, and so does the choice among them."""
        allowed = "left out: trials on private records are counted by lehr.search"
        raise InvalidValue("hyperparameter_search", allowed=allowed, given="a search")

    def _opened(self) -> PrivateRun:
        """The run, which begins with the first step, or goes on where a checkpoint was loaded."""
        if self._open is None:
            model: Any = self.model
            dataset: Any = self.train_dataset
            optimizer = _optimizer(self)
            refuse_other_parameters(model, optimizer)
            self._try(model, dataset)
            self._open = PrivateRun(
                self.terms,
                model=model,
                optimizer=optimizer,
                door=f"transformers {transformers_version}",
                steps=self.args.max_steps,
                num_held=len(dataset),
                resumed_at=self.state.global_step or None,
            )
            self._open.steps.engine.attach()
        return self._open

    @property
    def _collated(self) -> Callable[[list[Any]], Any]:
        found: Callable[[list[Any]], Any] = self._get_collator_with_removed_columns(
            self.data_collator, description="training"
        )
        return found

    def _try(self, model: nn.Module, dataset: Any) -> None:
        """Collation and losses as they are, on a few records."""
        collate = self._collated
        loop = Loop(
            model=model,
            batch_of=lambda records: self._prepare_inputs(collate(records)),
            loss_of=lambda batch: self.losses(model, batch).mean(),
        )
        refuse_mixed_records(loop, some_of(dataset, len(dataset)))

    def _close(self) -> None:
        if self._open is not None:
            self.epsilon_spent = self._open.epsilon_spent
            self._open.steps.engine.detach()
            self._open.close()
            self._open = None


class _WholeDraws(Sampler[list[int]]):
    """All records of a step at once; the run is asked for when the first step is due."""

    def __init__(self, opened: Callable[[], PrivateRun], *, steps: int) -> None:
        self._opened, self._steps = opened, steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[int]]:
        run = self._opened()
        first = run.steps.step
        for step in range(first, min(first + self._steps, run.last_step)):
            yield [place for part in run.steps.draws.parts(step) for place in part.places]


def record_losses(logits: Tensor, labels: Tensor | None, *, is_causal: bool) -> Tensor:
    """The loss of each record: over its classes, over its number, or the mean over its own tokens.

    >>> logits = torch.zeros(2, 3, 5)
    >>> labels = torch.tensor([[1, 2, 3], [4, -100, -100]])
    >>> [f"{loss:.4f}" for loss in record_losses(logits, labels, is_causal=False)]
    ['1.6094', '1.6094']
    """
    if labels is None:
        allowed = "among the inputs, or a loss of your own for each record (record_losses)"
        raise InvalidValue("labels", allowed=allowed, given=None)
    is_number = labels.is_floating_point()
    if logits.dim() == 3 and labels.dim() == 2 and not is_number:
        return _token_means(logits[:, :-1], labels[:, 1:]) if is_causal else _token_means(logits, labels)
    if logits.dim() == 2 and labels.dim() == 1 and not is_number:
        return cross_entropy(logits, labels, reduction="none")
    if is_number and labels.dim() == 1 and logits.shape == (len(labels), 1):
        return (logits.squeeze(1) - labels).square()
    if is_number and labels.dim() == 2 and logits.shape == labels.shape:
        return binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(1)
    given = f"logits {tuple(logits.shape)}, labels {tuple(labels.shape)}"
    raise InvalidValue("record_losses", allowed="given for a model whose loss is none of the usual ones", given=given)


def _token_means(logits: Tensor, labels: Tensor) -> Tensor:
    losses = cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED)
    return losses.sum(1) / (labels != IGNORED).sum(1).clamp_min(1)


def _logits(outputs: Any) -> Tensor:
    if "logits" not in outputs:
        allowed = "given for a model whose outputs have no logits"
        raise InvalidValue("record_losses", allowed=allowed, given=sorted(outputs))
    logits: Tensor = outputs["logits"]
    return logits


def _optimizer(trainer: Trainer) -> torch.optim.Optimizer:
    optimizer: Any = trainer.optimizer  # perhaps in accelerate's own
    found: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
    return found


def _is_causal(model: nn.Module) -> bool:
    return type(_base(model)).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()


def _base(model: nn.Module) -> nn.Module:
    """The model within PEFT's, or the model itself."""
    inner = getattr(model, "get_base_model", None)
    found: nn.Module = model if inner is None else inner()
    return found


def _positions(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Positions for each record, where the model would look up one row of them for all: the same numbers.

    A model that follows padding makes its own.
    """
    base, ids = _base(model), inputs.get("input_ids")
    is_taken = "position_ids" in inspect.signature(type(base).forward).parameters
    follows_padding = any(hasattr(layer, "create_position_ids_from_input_ids") for layer in base.modules())
    if ids is None or "position_ids" in inputs or not is_taken or follows_padding:
        return {}
    return {"position_ids": torch.arange(ids.shape[1], device=ids.device).expand(ids.shape).contiguous()}


def _completed(terms: Terms, args: TrainingArguments) -> Terms:
    batch = args.per_device_train_batch_size
    return replace(
        terms,
        expected_batch_size=terms.expected_batch_size or batch * args.gradient_accumulation_steps,
        physical_batch=terms.physical_batch or batch,
        directory=_outside(terms.directory, Path(str(args.output_dir)).absolute()),
    )


def _outside(directory: str | Path | None, output: Path) -> Path:
    if directory is None:
        return output.with_name(f"{output.name}-{FOLDER}")
    if Path(directory).resolve().is_relative_to(output.resolve()):
        allowed = "outside of output_dir, which is uploaded whole: the key of the noise is in the folder of the run"
        raise InvalidValue("directory", allowed=allowed, given=str(directory))
    return Path(directory)


def _arguments(args: TrainingArguments, terms: Terms) -> TrainingArguments:
    """The arguments with what is done here taken out: portions, clipping, and where a resumed loader stands."""
    changed = copy.copy(args)
    changed.gradient_accumulation_steps = 1
    changed.max_grad_norm = 0.0
    changed.ignore_data_skip = True
    if args.max_steps <= 0:
        changed.max_steps = max(1, math.ceil(args.num_train_epochs * terms.steps_per_pass))
    return changed


def _refuse_unfit(args: TrainingArguments, others: Mapping[str, Any], *, eval_dataset_is_public: bool) -> None:
    """What would break the guarantee, or mean something else than it says."""
    dataset: object = others.get("train_dataset")
    if dataset is None or isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        allowed = "one whose records have places: each record is drawn by its own coin"
        raise InvalidValue("train_dataset", allowed=allowed, given=type(dataset).__name__)
    if others.get("eval_dataset") is not None and not eval_dataset_is_public:
        allowed = "True where there is an eval_dataset, whose metrics have no noise"
        raise InvalidValue("eval_dataset_is_public", allowed=allowed, given=False)
    if others.get("compute_loss_func") is not None:
        allowed = "left out: record_losses gives one loss for each record"
        raise InvalidValue("compute_loss_func", allowed=allowed, given="a function")
    for name, fit in _LEFT_OUT.items():
        given = getattr(args, name, fit)
        if given != fit and given:
            raise InvalidValue(name, allowed=f"{fit!r} for private training", given=given)
    if args.world_size != 1 or args.n_gpu > 1:
        raise InvalidValue("world_size", allowed="one process with one device", given=(args.world_size, args.n_gpu))


def _refuse_unfit_subclass(kind: type[LehrTrainer], *, has_record_losses: bool) -> None:
    """What a subclass writes over without being asked again."""
    given = f"that of {kind.__name__}"
    if not has_record_losses and kind.compute_loss is not Trainer.compute_loss:
        allowed = "left as it is: record_losses gives one loss for each record, and is what is trained on"
        raise InvalidValue("compute_loss", allowed=allowed, given=given)
    if kind.get_train_dataloader is not LehrTrainer.get_train_dataloader:
        allowed = "left as it is: other batches than the draws would be counted as if they were those"
        raise InvalidValue("get_train_dataloader", allowed=allowed, given=given)


_LEFT_OUT: dict[str, object] = {
    "auto_find_batch_size": False,
    "bf16": False,
    "deepspeed": None,
    "fp16": False,
    "fsdp": [],
    "gradient_checkpointing": False,
    "include_num_input_tokens_seen": "no",
    "label_smoothing_factor": 0.0,
    "neftune_noise_alpha": None,
    "torch_compile": False,
    "train_sampling_strategy": "random",
}


def _refuse_other_batches(inputs: Mapping[str, Any], *, num_records: int) -> None:
    shapes = {name: tuple(value.shape) if isinstance(value, Tensor) else value for name, value in inputs.items()}
    if not all(isinstance(shape, tuple) and shape[:1] == (num_records,) for shape in shapes.values()):
        allowed = "tensors that begin with the records that were drawn"
        raise InvalidValue("batch", allowed=allowed, given=sorted(shapes))


def _conv1d(layer: nn.Module, sites: Mapping[str, Site]) -> Contributions:
    """GPT-2's linear layer, whose weight stands the other way round."""
    site = sites["output"]
    turned = Site(inputs=site.output_grads, output_grads=site.inputs)
    return {"weight": outer_product(turned), "bias": bias_grads(site)}


register_layer_rule(Conv1D, LayerRule(contributions=_conv1d))

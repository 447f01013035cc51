"""Private fine-tuning with Hugging Face's ``Trainer``, including PEFT adapters and frozen backbones.

    trainer = LehrTrainer(
        model=model, args=TrainingArguments(output_dir="out", num_train_epochs=3), train_dataset=dataset,
        privacy=PrivacyConfig(epsilon=8.0, delta=1e-5, records=20_000))
    trainer.train()

Every step uses a Poisson draw, computes one loss per record, clips every record's gradient, and adds noise. The
gradients come from the engine of ``lehr.fit``, compiled on a GPU or with ``torch_compile=True``. Optimizer, schedule,
checkpoints, callbacks and evaluation remain the trainer's. Install with ``pip install 'lehr[hugging-face]'``.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.utils.data import DataLoader

from lehr.certificates.certificate import Certificate
from lehr.data.records import take_column
from lehr.errors import InvalidValue, MissingExtra
from lehr.gradients.batches import LossFn, each, one_each, trainable, weighted
from lehr.gradients.execution import is_out_of_memory
from lehr.gradients.hooked import ShardedEngine
from lehr.gradients.language_heads import IGNORED, losses_of_tiled, mean_over_tokens, with_tiled_head
from lehr.gradients.precision import HALF, widen
from lehr.integrations.external_loop import ExternalRun, ExternalSampler, PrivacyConfig, count_records, views_of_users
from lehr.integrations.record_independence import RecordLoop, sample_records
from lehr.interfaces import Inputs, moved
from lehr.optim.optimizers import OPTIMIZERS
from lehr.privacy.clipping import FlatClip
from lehr.privacy.rng import RunKey
from lehr.run.distributed import ALONE, Ranks, join_ranks, refuse_wrapped
from lehr.run.loop import Engine
from lehr.run.sharded import OPTIMIZER, Shards
from lehr.run.train_state import evaluating
from lehr.training.engines import check_processes, engine_for, is_shardable, sharded_engine_for
from lehr.training.training_run import SHARDABLE_OPTIMIZERS

try:
    from transformers import Trainer, TrainingArguments
    from transformers import __version__ as transformers_version
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
except ImportError as error:  # pragma: no cover
    raise MissingExtra("transformers", extra="hugging-face") from error

__all__ = ["LehrTrainer", "PrivacyConfig"]

RecordLosses: TypeAlias = Callable[[Any, Mapping[str, Tensor]], Tensor]
LOG = logging.getLogger("lehr")
LARGE_LOGITS = 2**31  # bytes of a physical batch's logits in float32, from which on a head is run in tiles
PRIVATE_LOGS = ("loss", "train_loss", "total_flos")  # computed from private records without noise
_FINE, _ROUGH = 1e-3, 2e-2  # differences between losses that are the same: in float32, in bfloat16
_SAVED = "LehrTrainer"  # what trainer_state.json calls the run's folder
_OWN_SHARDING = "omitted: with LehrTrainer(sharded=True) every process of torchrun holds some rows of the weights"
# Training arguments that private training does not support, and their values when unused.
_UNSUPPORTED: dict[str, object] = {
    "auto_find_batch_size": False,
    "deepspeed": None,
    "fp16": False,
    "fsdp": [],
    "include_num_input_tokens_seen": "no",
    "label_smoothing_factor": 0.0,
    "neftune_noise_alpha": None,
    "torch_compile_mode": None,
    "train_sampling_strategy": "random",
}


class LehrTrainer(Trainer):
    """Hugging Face's trainer, private. For a trainer of your own use ``class Mine(LehrTrainer, MyTrainer)``.

    The default ``expected_batch_size`` of ``privacy`` is that of the arguments, including accumulation and processes;
    ``per_device_train_batch_size`` records are run at once. The plan has ``max_steps``, or ``num_train_epochs`` passes
    over the stated number of records.

    ``bf16`` runs the model in bfloat16, and its outputs, losses, norms and sums are float32 or better. What is trained
    has float32 weights: trained weights of half precision become float32 with ``bf16``, and are refused without it.
    Frozen weights stay as they are. The step is compiled on a GPU, if records have one length, and with
    ``torch_compile``.

    ``record_losses(outputs, inputs)`` returns one loss per record, from the model's outputs and the batch with its
    labels. The default covers classification, regression, multi-label classification, and tokens, where each record has
    the mean over its own tokens. Evaluation is refused unless ``eval_dataset_is_public``.

    ``owners`` protects users in place of records: an id for each record, or the name of a column of the data set, which
    the model is not given. ``privacy`` then states ``users``, and ``per_device_train_batch_size`` counts users, each
    with ``records_per_user`` records that are run at once.

    ``tiled_head`` runs the head of a causal language model and its loss in tiles of the vocabulary, so that logits are
    never held whole; by default, where those of a physical batch take more than 2 GiB in float32.

    Under ``torchrun`` every process takes its share of each draw, and rank 0 writes the files. Every process has the
    whole weights, or with ``sharded`` some rows of each (FSDP2); the model then stays sharded, and is trained once.

    After ``train``: ``epsilon_spent``, ``certificate`` if ``privacy`` says how the settings were chosen, and the run's
    folder, ``privacy.directory``. By default it is ``{output_dir}-privacy``; each further training gets a new folder,
    ``{output_dir}-privacy-2`` and so on, and costs its own ε. ``resume_from_checkpoint`` continues the run of the
    checkpoint.
    """

    def __init__(
        self,
        *,
        privacy: PrivacyConfig,
        args: TrainingArguments,
        record_losses: RecordLosses | None = None,
        owners: Any = None,
        eval_dataset_is_public: bool = False,
        tiled_head: bool | None = None,
        sharded: bool = False,
        **others: Any,
    ) -> None:
        _refuse_unsupported(args, others, eval_dataset_is_public=eval_dataset_is_public)
        if sharded:
            _refuse_unshardable(args, {**others, "tiled_head": tiled_head})
        for name, kind in (("compute_loss", Trainer), ("get_train_dataloader", LehrTrainer), ("losses", LehrTrainer)):
            if getattr(type(self), name) is not getattr(kind, name) and (kind is LehrTrainer or record_losses is None):
                allowed = "not overridden: records are sampled here, and record_losses returns one loss per record"
                raise InvalidValue(name, allowed=allowed, given=f"overridden in {type(self).__name__}")
        if isinstance(owners, str):
            others["train_dataset"], owners = take_column(others["train_dataset"], owners)
        privacy.user_records(owners, num_records=count_records(others["train_dataset"]))
        output, batch = Path(str(args.output_dir)).absolute(), args.per_device_train_batch_size
        self._is_default_directory = privacy.directory is None
        directory = Path(privacy.directory or output.with_name(f"{output.name}-privacy"))
        if directory.resolve().is_relative_to(output.resolve()):
            allowed = "outside of output_dir, which is uploaded whole: the run's folder holds the secret key"
            raise InvalidValue("directory", allowed=allowed, given=str(directory))
        public = ("the evaluation records",) if others.get("eval_dataset") is not None else ()
        self.privacy = replace(
            privacy,
            treated_as_public=(*privacy.treated_as_public, *public),
            expected_batch_size=privacy.expected_batch_size
            or batch * args.gradient_accumulation_steps * args.world_size,
            physical_batch=privacy.physical_batch or batch,
            directory=directory,
        )
        self._directory = directory
        self.certificate: Certificate | None = None
        self.epsilon_spent = 0.0
        self._record_losses, self._owners = record_losses, owners
        self._tiled_head, self._is_sharded = tiled_head, sharded
        self._drops_labels = True  # a model whose head is in tiles is given them
        self._private_run: ExternalRun | None = None
        self._ranks: Ranks = ALONE
        self._shards: Shards | None = None
        self._whole: dict[str, Tensor] | None = None  # the weights, while sharded ones are saved
        self._is_bf16, self._is_compiled = args.bf16, args.torch_compile
        # Accumulation, clipping, precision, compilation, and skipping batches after a resume are done here.
        args = copy.copy(args)
        args.gradient_accumulation_steps, args.max_grad_norm, args.ignore_data_skip = 1, 0.0, True
        args.bf16, args.mixed_precision, args.torch_compile, args.torch_compile_backend = False, "no", False, None
        args.logging_nan_inf_filter = False  # it would wait for the GPU in every step, for a loss that is always zero
        if args.max_steps <= 0:
            args.max_steps = max(1, math.ceil(args.num_train_epochs * self.privacy.steps_per_epoch))
        args.average_tokens_across_devices = False  # would exchange the number of tokens in each draw, to no use
        super().__init__(args=args, **others)
        self.model_accepts_loss_kwargs = False  # tokens would be counted in every step, and the GPU waited for
        if self.accelerator.mixed_precision != "no":
            given = self.accelerator.mixed_precision
            raise InvalidValue("mixed_precision", allowed="set by bf16=True of the training arguments", given=given)

    def create_accelerator_and_postprocess(self) -> None:
        """Never wrap the model for several processes: gradients are already summed over them when they are written."""
        super().create_accelerator_and_postprocess()
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise InvalidValue("launcher", allowed=_OWN_SHARDING, given="accelerate's FSDP or DeepSpeed")
        prepare = partial(self.accelerator.prepare_model, evaluation_mode=True)

        def unplaced(model: nn.Module, device_placement: bool | None = None, **_: Any) -> Any:
            return prepare(model, device_placement=False)  # accelerate itself would ask for True

        self.accelerator.prepare_model = unplaced if self._is_sharded else prepare

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        if not self._is_sharded:  # otherwise each rank's rows are moved, since the whole may not fit
            super()._move_model_to_device(model, device)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train, and leave a folder with ledger, report, and a certificate if there is one.

        ``training_loss`` of the output is None: the loss of private records is not released.
        """
        if self._shards is not None:
            raise InvalidValue("train", allowed="called once with sharded=True", given="another training")
        self._ranks = join_ranks()
        with self._ranks.session():
            return self._train(resume_from_checkpoint, *args, **kwargs)

    def _train(self, resume_from_checkpoint: str | bool | None, *args: Any, **kwargs: Any) -> Any:
        try:
            resumed = resume_from_checkpoint
            if resumed is True:
                resumed = self._ranks.from_rank_0(self._last_checkpoint)
            output = super().train(resumed, *args, **kwargs)
            if self._private_run is not None:
                weights = {name: value.detach() for name, value in trainable(self._private_run.model).items()}
                self.certificate = self._private_run.finish(weights)
            return output._replace(training_loss=None)  # type: ignore[arg-type]
        finally:
            if self._private_run is not None:
                self.epsilon_spent = self._private_run.epsilon_spent
                self._private_run.close()
                self._private_run = None

    def get_train_dataloader(self) -> DataLoader[Any]:
        """A loader whose batches are whole draws."""
        dataset: Any = self.train_dataset
        return DataLoader(
            dataset,
            batch_sampler=ExternalSampler(self._open_run, steps=self.privacy.steps_per_epoch, is_whole=True),
            collate_fn=self._get_collator_with_removed_columns(self.data_collator, description="training"),
            num_workers=self.args.dataloader_num_workers,
            generator=RunKey.fresh().at(step=0, attempt=0).generator("workers", "cpu"),  # seeds the workers
            pin_memory=self.args.dataloader_pin_memory and torch.cuda.is_available(),
        )

    def get_batch_samples(self, epoch_iterator: Iterator[Any], *args: Any, **kwargs: Any) -> Any:
        """The next draw, collated with random numbers from the run's key: the seed of the arguments is known."""
        run = self._open_run()
        with contextlib.nullcontext() if run.is_over else run.seeded(self.args.device, "collation"):
            return super().get_batch_samples(epoch_iterator, *args, **kwargs)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One private step over all physical batches of a draw. The returned loss is zero: the true one is private."""
        run = self._open_run()
        model.train()
        inputs = self._prepare_inputs(each(lambda leaf: moved(leaf, self.args.device), inputs))
        sizes = [len(indices) for indices in run.record_indices(run.step)]
        if not all(isinstance(value, Tensor) and value.shape[:1] == (sum(sizes),) for value in inputs.values()):
            allowed = "tensors with one row for each record that was drawn"
            raise InvalidValue("batch", allowed=allowed, given=sorted(inputs))
        with run.seeded(self.args.device):
            for rows in zip(*(value.split(sizes) for value in inputs.values()), strict=True):
                batch = dict(zip(inputs, rows, strict=True))
                run.add(self._model_inputs(batch), batch)
        run.release()
        saved = cast(dict[str, Any], self.state.stateful_callbacks)
        saved[_SAVED]["attributes"] = dict(run.clip_state)
        if run.is_over:
            self.control.should_training_stop = True
        return torch.zeros((), device=self.args.device)

    def losses(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """One loss per record. The model is not given the labels, since it would reduce its loss over the batch."""
        with self.compute_loss_context_manager():
            outputs = model(**_without_labels(inputs))
        return one_each(self._losses_of(widen(outputs), inputs), num_records=len(next(iter(inputs.values()))))

    def compute_loss_context_manager(self) -> Any:
        """Evaluation in bfloat16, if training is: frozen weights and trained ones may be of different types."""
        return torch.autocast(self.args.device.type, torch.bfloat16, enabled=self._is_bf16)

    def _losses_of(self, outputs: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        if self._record_losses is not None:
            return self._record_losses(outputs, inputs)
        if "logits" not in outputs:
            raise InvalidValue("record_losses", allowed="given for a model without logits", given=sorted(outputs))
        model = cast(nn.Module, self.model)
        is_causal = _is_causal(model)
        logits = outputs["logits"]
        if logits.dim() == 3:
            logits = logits[:, _virtual_tokens(model) :]
        return record_losses(logits, inputs.get("labels"), is_causal=is_causal)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log without values of private records, and with ε."""
        for name in PRIVATE_LOGS:
            logs.pop(name, None)
        if self._private_run is not None:
            logs["epsilon"] = self._private_run.epsilon_spent
        super().log(logs, *args, **kwargs)

    def get_total_train_batch_size(self, args: object) -> int:
        """The expected batch size, for samples per second: how many records or users were drawn is private."""
        return round(self.privacy.batch_size)

    def num_examples(self, dataloader: object) -> int:
        """The stated number of records, or of users."""
        return self.privacy.stated_number

    def floating_point_ops(self, inputs: object) -> int:
        """Zero: the true number depends on how many records were drawn, and how long they are."""
        return 0

    def hyperparameter_search(self, *_: object, **__: object) -> Any:
        """Not supported: every trial costs privacy, and so does the selection."""
        raise InvalidValue("hyperparameter_search", allowed="replaced by lehr.search", given="a search")

    # Sharded weights: the files of a checkpoint are those of one process.

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model as ``Trainer`` does. With sharded weights every process must call it."""
        if self._shards is not None:
            self._whole = self._shards.whole(self._shards.local.state_dict())
        try:
            super().save_model(output_dir, _internal_call)
        finally:
            self._whole = None

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        super()._save(output_dir, state_dict if self._whole is None else self._whole)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self._shards is None:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        optimizer: Any = self.optimizer
        whole = self._map_optimizer(optimizer.state_dict(), self._shards.gathered)
        vars(optimizer)["state_dict"] = lambda: whole
        try:
            super()._save_optimizer_and_scheduler(output_dir)
        finally:
            del vars(optimizer)["state_dict"]

    def _get_grad_norm(self, model: nn.Module, grad_norm: float | None = None) -> Tensor | float:
        """The norm of the released mean. ``Trainer`` would also multiply all gradients by one."""
        if self._shards is None:
            return torch.nn.utils.get_total_norm([value.grad for value in model.parameters() if value.grad is not None])
        grads = [value.grad.double() for value in self._shards.local.parameters() if value.grad is not None]
        return math.sqrt(sum(self._ranks.gather(sum(float(grad.square().sum()) for grad in grads))))

    def _shard(self, engine: ShardedEngine, padding: tuple[Inputs, Any, Tensor]) -> Shards:
        """Leave each rank with its rows: of the weights, and of the optimizer's state."""
        model, device = cast(nn.Module, self.model), self.args.device
        optimizer: Any = getattr(self.optimizer, "optimizer", self.optimizer)
        if type(optimizer) not in [OPTIMIZERS[name] for name in SHARDABLE_OPTIMIZERS]:
            allowed = f"torch's {', '.join(SHARDABLE_OPTIMIZERS)} with sharded weights"
            raise InvalidValue("optimizer", allowed=allowed, given=type(optimizer).__name__)
        names = {id(value): name for name, value in model.named_parameters()}
        self._trained = [names[id(value)] for group in optimizer.param_groups for value in group["params"]]
        clipping = self.privacy.clipping or FlatClip(self.privacy.clip_norm)
        clip = clipping.rule(clipping.start(trainable(model)), 0)
        shards = Shards(model, engine, self._ranks, device)
        gc.collect()  # the engine that was tried has reference cycles, which would keep the whole weights in memory
        engine.private_sum(clip, *each(lambda leaf: moved(leaf, device), padding))
        shards.bind()
        state, local = optimizer.state_dict(), dict(shards.local.named_parameters())
        for group in optimizer.param_groups:
            group["params"] = [local[names[id(value)]] for value in group["params"]]
        optimizer.load_state_dict(
            self._map_optimizer(
                state, lambda tensors: {name: shards.rows_of_tensor(name, value) for name, value in tensors.items()}
            )
        )
        self._shards = shards
        return shards

    def _map_optimizer(
        self, saved: dict[str, Any], change: Callable[[dict[str, Tensor]], dict[str, Tensor]]
    ) -> dict[str, Any]:
        """The state of an optimizer with other tensors, which ``change`` is given by their names in a checkpoint."""
        indices = [index for group in saved["param_groups"] for index in group["params"]]
        named = {
            f"{OPTIMIZER}/{name}/{key}": (index, key)
            for index, name in zip(indices, self._trained, strict=True)
            for key, value in saved["state"].get(index, {}).items()
            if isinstance(value, Tensor)
        }
        changed = change({name: saved["state"][index][key] for name, (index, key) in named.items()})
        state = {index: dict(values) for index, values in saved["state"].items()}
        for name, value in changed.items():
            index, key = named[name]
            state[index][key] = value
        return {**saved, "state": state}

    def _open_run(self) -> ExternalRun:
        """The run, which is opened, or resumed, with the first step."""
        if self._private_run is None:
            model: Any = self.model
            model.train()
            optimizer: Any = self.optimizer
            collate = self._get_collator_with_removed_columns(self.data_collator, description="training")
            resumed_at = self.state.global_step or None
            saved = cast(dict[str, Any], self.state.stateful_callbacks).get(_SAVED, {}) if resumed_at else {}
            found = self._ranks.from_rank_0(lambda: str(self._run_directory(is_resumed=resumed_at is not None)))
            cast(dict[str, Any], self.state.stateful_callbacks)[_SAVED] = {
                "args": {"directory": Path(found).name},
                "attributes": {},
            }
            self.privacy = replace(self.privacy, directory=Path(found))
            # The whole weights of a model that will be sharded are on the CPU.
            device = torch.device("cpu") if self._is_sharded else self.args.device
            loop = RecordLoop(
                model=model,
                batch_of=lambda records: each(
                    lambda leaf: moved(leaf, device), dict(self._prepare_inputs(collate(records)))
                ),
                loss_of=lambda batch: self.losses(model, batch).mean(),
            )
            engine, shard = self._engine(loop)
            self._private_run = ExternalRun(
                self.privacy,
                model=model,
                optimizer=getattr(optimizer, "optimizer", optimizer),  # perhaps wrapped by accelerate
                dataset=self.train_dataset,
                loop=loop,
                library=f"transformers {transformers_version}",
                steps=self.args.max_steps,
                owners=self._owners,
                resumed_at=resumed_at,
                clip_state=saved.get("attributes"),
                engine=engine,
                shard=shard,
                ranks=self._ranks,
            )
        return self._private_run

    def _engine(self, loop: RecordLoop) -> tuple[Engine, Callable[[], Shards] | None]:
        """The engine, tried on a batch of zeros before anything is spent, and what shards the weights."""
        model, size, records_per_user = loop.model, self.privacy.physical_batch, self.privacy.records_per_user
        assert size is not None
        clipping = self.privacy.clipping or FlatClip(self.privacy.clip_norm)
        if self._is_sharded:
            check_processes(self.args.device)
            if not is_shardable(clipping):
                allowed = "one that uses norms and has no state, with sharded weights"
                raise InvalidValue("clipping", allowed=allowed, given=type(clipping).__name__)
            size = max(2, size)  # that records are kept apart cannot be seen of one alone
        rows = size * (records_per_user or 1)
        _keep_trained_in_float32(model, is_bf16=self._is_bf16)
        records = sample_records(self.train_dataset, count_records(self.train_dataset))
        batches = [loop.batch_of([record]) for record in records]
        zeros = {name: value.new_zeros(rows, *value.shape[1:]) for name, value in batches[0].items()}
        tiled = None if self._is_sharded else self._with_tiled_head(batches, rows)
        self._drops_labels = tiled is None
        has_one_length = len({tuple(value.shape for value in batch.values()) for batch in batches}) == 1
        losses_of: LossFn = self._losses_of if tiled is None else losses_of_tiled
        padding: tuple[Inputs, Any] = self._model_inputs(zeros), zeros
        if records_per_user is not None:
            losses_of, padding = weighted(losses_of), views_of_users(*padding, torch.ones(size, records_per_user))
        mask, views = torch.zeros(size, dtype=torch.bool), records_per_user or 1
        if self._is_sharded:
            if not has_one_length:
                allowed = "records of one length with sharded=True, for example padded with padding='max_length'"
                raise InvalidValue("train_dataset", allowed=allowed, given="records of several lengths")
            tried = (*padding, mask)
            sharded, _ = sharded_engine_for(model, losses_of, views=views, clipping=clipping, padding=tried)
            return sharded, partial(self._shard, sharded, tried)
        engine, how = engine_for(
            tiled or model,
            losses_of,
            views=views,
            precision="bfloat16" if self._is_bf16 else "as_model",
            compiled=self._is_compiled or (self.args.device.type == "cuda" and has_one_length),
            clipping=clipping,
            padding=(*padding, mask),
        )
        if self.args.device.type == "cuda" and not has_one_length:
            how = f"{how}; records that are all padded to one length get a compiled step"
        LOG.info("gradients are computed %s", how)
        return engine, None

    def _model_inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return _without_labels(batch) if self._drops_labels else dict(batch)

    def _with_tiled_head(self, batches: list[dict[str, Tensor]], size: int) -> nn.Module | None:
        """The model with its head in tiles, if it is a causal language model with large logits and the same losses."""
        model = cast(nn.Module, self.model)
        inner, labels = _base_model(model), batches[0].get("labels")
        head = getattr(inner, "get_output_embeddings", lambda: None)()
        is_tried = self._record_losses is None and _is_causal(model) and not _virtual_tokens(model)
        tiled = None
        if is_tried and head is not None and labels is not None and labels.dim() == 2:
            is_large = 4 * size * max(batch["labels"].shape[1] for batch in batches) * len(head.weight) > LARGE_LOGITS
            if is_large if self._tiled_head is None else self._tiled_head:
                tiled = with_tiled_head(model, inner)
        if tiled is not None and not all(self._has_same_loss(tiled, batch) for batch in batches):
            tiled = None
        if self._tiled_head and tiled is None:
            allowed = "None for a model that is not a causal language model with a plain linear head and loss"
            raise InvalidValue("tiled_head", allowed=allowed, given=True)
        return tiled

    def _has_same_loss(self, tiled: nn.Module, batch: dict[str, Tensor]) -> bool:
        """Whether the losses are those of the model, which may do something to its logits."""
        model = cast(nn.Module, self.model)
        try:
            with torch.no_grad(), evaluating(model), evaluating(tiled), self.compute_loss_context_manager():
                expected, found = self.losses(model, batch), losses_of_tiled(tiled(**batch), batch)
        except (TypeError, ValueError, AttributeError, LookupError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            return False
        tolerance = _ROUGH if self._is_bf16 else _FINE
        return torch.allclose(expected, found, rtol=tolerance, atol=tolerance)

    def _last_checkpoint(self) -> str | bool:
        """The last checkpoint of the newest run. An older run in the same ``output_dir`` may have later steps."""
        runs = [self._directory]
        if self._is_default_directory:
            further = (self._directory.with_name(f"{self._directory.name}-{number}") for number in count(2))
            runs += takewhile(Path.exists, further)
        found = {}
        for path in Path(str(self.args.output_dir)).glob("checkpoint-*/trainer_state.json"):
            state = json.loads(path.read_text(encoding="utf-8"))
            if state["stateful_callbacks"].get(_SAVED, {}).get("args") == {"directory": runs[-1].name}:
                found[state["global_step"]] = str(path.parent)
        if not found and len(runs) > 1:
            allowed = f"a path: {runs[-1]}, the newest run, has no checkpoint"
            raise InvalidValue("resume_from_checkpoint", allowed=allowed, given=True)
        return found[max(found)] if found else True

    def _run_directory(self, *, is_resumed: bool) -> Path:
        """The folder of the checkpoint's run, or of a new run. Checkpoints hold the folder's name."""
        directory, saved = self._directory, cast(dict[str, Any], self.state.stateful_callbacks)
        if is_resumed and self._is_default_directory and _SAVED in saved:
            directory = directory.with_name(saved[_SAVED]["args"]["directory"])
        elif not is_resumed and directory.is_dir() and any(directory.iterdir()):
            if not self._is_default_directory:
                allowed = (
                    "a new folder, or left out for one beside output_dir; "
                    "train(resume_from_checkpoint=True) continues an unfinished run"
                )
                raise InvalidValue("directory", allowed=allowed, given=str(directory))
            numbered = (directory.with_name(f"{directory.name}-{number}") for number in count(2))
            directory = next(path for path in numbered if not path.exists())
            LOG.warning(
                "new run in %s, since %s holds another one: each has its own ε, and a budget adds them up; "
                "train(resume_from_checkpoint=True) continues an unfinished run",
                directory,
                self._directory,
            )
        return directory


def record_losses(logits: Tensor, labels: Tensor | None, *, is_causal: bool) -> Tensor:
    """The loss of each record: over its classes, its number, its labels, or the mean over its own tokens.

    >>> logits = torch.zeros(2, 3, 5)
    >>> labels = torch.tensor([[1, 2, 3], [4, -100, -100]])
    >>> [f"{loss:.4f}" for loss in record_losses(logits, labels, is_causal=False)]
    ['1.6094', '1.6094']
    """
    if labels is None:
        raise InvalidValue("labels", allowed="among the inputs, or give record_losses", given=None)
    is_number = labels.is_floating_point()
    if logits.dim() == 3 and labels.dim() == 2 and not is_number:
        logits, labels = (logits[:, :-1], labels[:, 1:]) if is_causal else (logits, labels)
        losses = cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED)
        return mean_over_tokens(losses, labels)
    if logits.dim() == 2 and labels.dim() == 1 and not is_number:
        return cross_entropy(logits, labels, reduction="none")
    if is_number and labels.dim() == 1 and logits.shape == (len(labels), 1):
        return (logits.squeeze(1) - labels).square()
    if is_number and labels.dim() == 2 and logits.shape == labels.shape:
        return binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(1)
    given = f"logits {tuple(logits.shape)}, labels {tuple(labels.shape)}"
    raise InvalidValue("record_losses", allowed="given for a model with an unusual loss", given=given)


def _keep_trained_in_float32(model: nn.Module, *, is_bf16: bool) -> None:
    """Half precision rounds small updates to zero, so that what is trained has weights in float32."""
    for name, parameter in trainable(model).items():
        if parameter.dtype in HALF and not is_bf16:
            allowed = "one whose trained weights are float32, or bf16=True, which makes them float32"
            raise InvalidValue("model", allowed=allowed, given=f"{name}: {parameter.dtype}")
        if parameter.dtype in HALF:
            parameter.data = parameter.data.float()


def _without_labels(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in inputs.items() if name != "labels"}


def _virtual_tokens(model: nn.Module) -> int:
    """How many tokens a soft prompt of PEFT puts before those of a record, in a model that returns logits for them."""
    config = getattr(model, "active_peft_config", None)
    is_prompt = getattr(config, "is_prompt_learning", False) and str(getattr(config, "peft_type", "")).endswith(
        "TUNING"
    )
    is_before = is_prompt and "PREFIX" not in str(config.peft_type) and config.task_type == "CAUSAL_LM"  # type: ignore[union-attr]
    return int(config.num_virtual_tokens) if is_before else 0  # type: ignore[union-attr]


def _is_causal(model: nn.Module) -> bool:
    return type(_base_model(model)).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()


def _base_model(model: nn.Module) -> nn.Module:
    """The model inside PEFT's wrapper, or the model itself."""
    inner = getattr(model, "get_base_model", None)
    base: nn.Module = model if inner is None else inner()
    return base


def _refuse_unshardable(args: TrainingArguments, others: Mapping[str, Any]) -> None:
    """Refuse, with sharded weights, what needs them whole."""
    names = ("bf16", "torch_compile", "gradient_checkpointing", "load_best_model_at_end", "eval_on_start")
    given = {**{name: getattr(args, name) for name in names}, **others}
    for name in (*names, "tiled_head", "model_init"):
        if given.get(name):
            raise InvalidValue(name, allowed="omitted with sharded=True", given=given[name])


def _refuse_unsupported(args: TrainingArguments, others: Mapping[str, Any], *, eval_dataset_is_public: bool) -> None:
    """Refuse arguments that would break the guarantee, or would not do what they say."""
    count_records(others.get("train_dataset"))
    if others.get("eval_dataset") is not None and not eval_dataset_is_public:
        allowed = "True if there is an eval_dataset, whose metrics have no noise"
        raise InvalidValue("eval_dataset_is_public", allowed=allowed, given=False)
    if others.get("compute_loss_func") is not None:
        raise InvalidValue("compute_loss_func", allowed="replaced by record_losses", given="a function")
    for name, unused in _UNSUPPORTED.items():
        given = getattr(args, name, unused)
        if given != unused and given:
            allowed = _OWN_SHARDING if name in ("fsdp", "deepspeed") else f"{unused!r} for private training"
            raise InvalidValue(name, allowed=allowed, given=given)
    if not args.skip_memory_metrics:
        allowed = "True: the memory in use tells how many records were drawn"
        raise InvalidValue("skip_memory_metrics", allowed=allowed, given=False)
    if isinstance(others.get("model"), nn.Module):
        refuse_wrapped(others["model"])
    if args.n_gpu > 1:
        raise InvalidValue("n_gpu", allowed="one device for each process: start them with torchrun", given=args.n_gpu)

"""``lehr train``: train privately from a configuration file or from options, or resume a run."""

from __future__ import annotations

import inspect
import math
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from lehr.certificates.guarantee import claim_summary, published_text
from lehr.cli import common
from lehr.config import RunConfig, options
from lehr.errors import InvalidValue
from lehr.integrations.loggers import TensorBoard
from lehr.planning.plan import RECORD
from lehr.rounding import at_most, exactly

if TYPE_CHECKING:
    from torch import nn

    from lehr.training.ending import Run

_WITH_RESUME = {"budget"} | {
    name for name, each in options().items() if each.table in ("data", "run") and name not in ("directory", "seed")
}


@common.config_options()
def train(
    config: Annotated[Path | None, Argument(metavar="[CONFIG.toml]", help="Configuration file.")] = None,
    *,
    resume: Annotated[Path | None, Option(metavar="RUN", help="Continue the run in this folder.")] = None,
    settings: common.Settings = None,
    tensorboard: Annotated[Path | None, Option(metavar="FOLDER", help="Write TensorBoard scalars.")] = None,
    json: common.Json = False,
    **fields: Any,
) -> None:
    """Train a network on private records. The proven ε is charged before each step, and certified at the end.

    Options override CONFIG.toml, and --set overrides both. --resume continues a stopped run, bit for bit. With
    --network package.module:factory, Lehr imports and calls your own code, from the current folder or installed.
    """
    from lehr.run.distributed import is_rank_0
    from lehr.training.fit import fit
    from lehr.training.prepare import config_of_run

    factory = None
    if ":" in (fields["network"] or ""):  # only as an option: a file never decides which code runs
        factory = fields.pop("network")
    if resume is not None:
        common.refuse("resume", config=config, set=settings or None)
        common.refuse("resume", **{name: value for name, value in fields.items() if name not in _WITH_RESUME})
        base = config_of_run(resume, has_own_network=factory is not None)
        fields |= {"directory": resume, "resume": True}
    else:
        base = RunConfig() if config is None else RunConfig.read(config)
    fields["quiet"] = fields["quiet"] or json or None
    chosen = base.with_options(**fields).with_values(**common.parse_settings(settings or ()))
    model = None
    if factory is not None:
        model, chosen = _own_network(factory, chosen), chosen.with_tables(model={})
    run = fit(model, config=chosen, callbacks=[] if tensorboard is None else [TensorBoard(tensorboard)])
    if not is_rank_0():  # of several processes, one prints
        return
    if json:
        common.print_json(_shape(run))
    else:
        common.print_facts("Trained", _rows(run))


def _own_network(spec: str, config: RunConfig) -> nn.Module:
    """The network that the user's factory returns, called with [model] and, if it takes it, the number of classes."""
    import torch
    from torch import nn

    from lehr.data.catalogue import CATALOGUE

    module, _, name = spec.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)  # as `python -m` does; the command `lehr` does not
    try:
        factory: Any = import_module(module)
        for part in name.split("."):
            factory = getattr(factory, part)
        arguments = {key: value for key, value in config.model.items() if key != "network"}
        known = CATALOGUE.get(config.data.name or "")
        num_classes = config.data.num_classes or (None if known is None else known.num_classes)
        if "num_classes" in inspect.signature(factory).parameters and num_classes is not None:
            arguments = {"num_classes": num_classes, **arguments}
        with torch.random.fork_rng(devices=[]):
            if config.run.seed is not None:
                torch.manual_seed(config.run.seed)
            made = factory(**arguments)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        allowed = f"package.module:factory, importable from here and callable with the keys of [model] ({error})"
        raise InvalidValue("network", allowed=allowed, given=spec) from error
    finally:
        sys.path.remove(here)
    if not isinstance(made, nn.Module):
        raise InvalidValue("network", allowed="a factory that returns a torch module", given=type(made).__name__)
    return made


def _shape(run: Run) -> dict[str, object]:
    last = run.evaluations[-1] if run.evaluations else None
    return {
        "run": run.directory,
        "reason": run.end.reason,
        "steps": run.end.step,
        "accepted": run.end.accepted,
        "epsilon": run.certificate and run.certificate.epsilon,
        "epsilon_spent": run.end.epsilon_spent if run.promises_nothing is None else None,
        "delta": run.plan.delta,
        "proven": claim_summary(run.proven if run.promises_nothing is None else None),
        "published": claim_summary(run.published),
        "promises_nothing": run.promises_nothing,
        "accuracy": last and last.accuracy,
        "loss": last and last.loss,
    }


def _rows(run: Run) -> dict[str, str]:
    rows = {"run": str(run.directory), "ended": f"{run.end.reason}, {run.end.step:,} steps"}
    if run.end.accepted != run.end.step or run.plan.stops_at_accepted is not None:
        planned = f"; {run.plan.steps:,} were planned" if run.plan.limit is None else ""
        rows["accepted"] = f"{run.end.accepted:,} of {run.end.step:,} candidates{planned}"
    rows["accuracy"] = "not evaluated: there are no test records"
    if run.evaluations:
        last = run.evaluations[-1]
        rows["accuracy"] = f"{last.accuracy_text} on {last.on} (loss {last.loss:.4f})"
    promised = run.proven if run.certificate is None else run.certificate  # whose ε may be the limit of a budget
    unit = "" if run.plan.unit == RECORD else f", for {run.plan.unit_text}"
    rows["ε, proven"] = f"{at_most(promised.epsilon)} at δ = {exactly(promised.delta)}{unit}"
    if run.promises_nothing is not None:
        rows["ε, proven"] = f"no privacy: {run.promises_nothing}"
    elif not math.isfinite(promised.epsilon):
        rows["ε, proven"] = "infinity: there is no privacy"
    if run.published is not None:
        rows["ε as published"] = published_text(run.published)
    if run.certificate is None:
        rows["certificate"] = "none yet: state how the settings were chosen when you release the model"
        if not math.isfinite(run.proven.epsilon) or run.promises_nothing is not None:
            rows["certificate"] = "none: nothing is guaranteed"
    rows["report"] = str(run.directory / "report.html")
    return rows


train_command = common.command_app(train, common.TRAIN)

"""``lehr plan``, ``lehr account`` and ``lehr simulate``: what a run costs, and what it will reach."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Exit, Option

from lehr import validate
from lehr.accounting import Answer, Bound, answers, smallest_of
from lehr.accounting.events import (
    Adjacency,
    BallsInBins,
    Event,
    Gaussian,
    PoissonSampled,
    Repeated,
    counted,
    steps_per_event,
    to_json,
)
from lehr.cli import common
from lehr.config import BANDED, CLIP_NORM, MOMENTUM, RunConfig
from lehr.errors import InvalidValue, StoreError, UnsupportedEvent
from lehr.files import atomic, strict_json
from lehr.planning.plan import Plan, delta_for, make_plan
from lehr.planning.recommendation import Recommendation, recommend_plan, recommended_batch_size
from lehr.planning.simulation import check_confidence, simulation_words
from lehr.planning.tan import FIGURE_STEP_FACTORS, TanOutlook, tan_outlook
from lehr.reports import plan_page
from lehr.reports.chart import draw_in_terminal
from lehr.reports.prediction_page import prediction_facts, prediction_sentences, prediction_text
from lehr.rounding import at_most, exactly

Delta = Annotated[float, Option(help="The δ of (ε, δ).")]
DefaultDelta = Annotated[
    float | None, Option(help="The δ of (ε, δ); by default the largest power of ten below 1/records.")
]
AdjacencyOption = Annotated[Adjacency, Option(help="Which data sets count as neighbours.")]
BinsOption = Annotated[
    int | None, Option(help="Steps of an epoch of balls-in-bins sampling, in place of a batch size.")
]
LargestBatchOption = Annotated[
    int | None,
    Option(help="Truncated Poisson sampling: larger batches are cut to this at random."),
]
_RECORDS = "Number of records. You state it, and it is public."


def steps_of(whole: Event, **named: int) -> Event:
    """This many steps of a run that repeats one event; an error has the name of the option."""
    [name] = named
    atoms = list(counted(whole))
    if len(atoms) != 1:
        raise InvalidValue(name, allowed="given only for a run that repeats one event", given=str(whole))
    return Repeated(atoms[0], math.ceil(validate.count(**named) / steps_per_event(atoms[0])))


def read_plan(path: Path) -> Plan:
    """The plan in a file that ``lehr plan --save`` wrote."""
    try:
        return strict_json.read(path, Plan.from_json)
    except StoreError as error:
        if path.is_file() and atomic.is_database(path):
            raise StoreError(f"cannot use {path}: it is not a plan, but a budget, a ledger or a database") from error
        raise


def refuse_other_adjacency(adjacency: Adjacency, *, expected: Adjacency) -> None:
    """An error if two files are counted by different adjacencies: their noise multipliers do not mean the same."""
    if adjacency is not expected:
        raise InvalidValue("adjacency", allowed=f"{expected.value} in every file of one run", given=adjacency.value)


# lehr plan


@common.config_options(
    "epsilon",
    "noise_multiplier",
    "steps",
    "epochs",
    "expected_batch_size",
    "records_per_user",
    "max_records_per_user",
    "bands",
    "correlation",
)
def plan(
    records: Annotated[int, Option(help=f"{_RECORDS} Of users, with --records-per-user.")],
    delta: DefaultDelta = None,
    adjacency: AdjacencyOption = Adjacency.ADD_OR_REMOVE_ONE,
    bins: BinsOption = None,
    largest_batch: LargestBatchOption = None,
    html: Annotated[Path | None, Option(metavar="FILE", help="Write the plan as a web page.")] = None,
    save: Annotated[Path | None, Option(metavar="FILE", help="Write the plan as JSON.")] = None,
    overwrite: common.Overwrite = False,
    no_chart: Annotated[bool, Option("--no-chart", help="Print no chart.")] = False,
    tan: Annotated[bool, Option("--tan", help="Also analyse the total amount of noise, and propose settings.")] = False,
    json: common.Json = False,
    **numbers: Any,
) -> None:
    """Plan a private run: from --epsilon and --records alone, batch size, noise and steps are recommended.

    With three of --epsilon, --noise-multiplier, --steps and --batch-size, the fourth is computed. The run never costs
    more than --epsilon. With --tan, the plan is compared with other settings at the same ε by their total amount of
    noise.
    """
    for file in filter(None, (save, html)):
        atomic.refuse_to_replace(file, overwrite=overwrite)
    with common.working("Finding the plan"):
        records_per_user = numbers.pop("records_per_user")
        made, recommended = _make(
            numbers, records=records, delta=delta, adjacency=adjacency, bins=bins, largest_batch=largest_batch
        )
        made = replace(made, records_per_user=records_per_user)
        bound, claim = made.bound(), made.claim()
    draws = not (json or no_chart) and recommended is None
    outlook = curve = None
    if tan:
        factors = FIGURE_STEP_FACTORS if json or html is not None else (1.0,) if draws else ()
        with common.working("Counting other settings by the tight accountant: seconds, with very many steps a minute"):
            outlook = tan_outlook(made, step_factors=factors)
    if (draws and not tan) or html is not None:
        with common.working("Counting ε against steps"):
            curve = plan_page.epsilon_chart(made)
    if save is not None:
        strict_json.write(save, made.to_json(), overwrite=overwrite)
    if html is not None and curve is not None:
        page = plan_page.render(made, bound=bound, claim=claim, curve=curve, outlook=outlook)
        atomic.write(html, page, overwrite=overwrite)
    if json:
        common.print_json(
            {
                "plan": made.to_json(),
                "sampling_probability": made.sampling_probability,
                "epsilon": bound.epsilon,
                "accountant": bound.accountant,
                "passed_over": [{"accountant": one.accountant, "reason": one.reason} for one in bound.passed_over],
                "claim": {"kind": claim.kind, "theorem": claim.theorem, "proof": claim.proof},
                **({} if outlook is None else {"tan": outlook.to_json()}),
                **({} if recommended is None else {"recommendation": recommended.to_json()}),
                "html": html,
                "save": save,
            }
        )
        return
    title = "Plan" if recommended is None else "Recommended plan"
    common.print_facts(title, plan_page.plan_facts(made, bound))
    if recommended is not None:
        _print_recommendation(recommended)
    if outlook is not None:
        _print_outlook(outlook, draws=draws)
    elif curve is not None and draws:
        common.print_line(draw_in_terminal(curve, width=common.width()))


def _make(
    numbers: dict[str, Any],
    *,
    records: int,
    delta: float | None,
    adjacency: Adjacency,
    bins: int | None,
    largest_batch: int | None,
) -> tuple[Plan, Recommendation | None]:
    """The plan of these numbers, and the recommendation if more than one of them is missing."""
    epochs = numbers.pop("epochs")
    bands, correlation = numbers.pop("bands"), numbers.pop("correlation") or BANDED
    max_records_per_user = numbers.pop("max_records_per_user")
    bands = 1 if bands is None else bands
    if bins is not None:
        common.refuse("bins", expected_batch_size=numbers["expected_batch_size"], largest_batch=largest_batch)
    if epochs is not None:
        common.refuse("epochs", steps=numbers["steps"])
        batch = numbers["expected_batch_size"] or recommended_batch_size(records)
        batch = batch if bins is None else records / validate.count(bins=bins)
        numbers["steps"] = max(1, round(epochs * records / batch))
    rest: dict[str, Any] = {"records": records, "delta": delta, "adjacency": adjacency, **numbers}
    num_given = sum(value is not None for value in numbers.values())
    if bins is not None:
        return make_plan(**rest, bins=bins, max_records_per_user=max_records_per_user), None
    if num_given < 3 and numbers["epsilon"] is None:
        allowed = "given: the rest is then recommended; or give noise_multiplier, steps and expected_batch_size"
        raise InvalidValue("epsilon", allowed=allowed, given=None)
    if num_given < 3:
        if bands != 1:
            allowed = "1 for a recommended plan; or give three of epsilon, noise_multiplier, steps and batch size"
            raise InvalidValue("bands", allowed=allowed, given=bands)
        if largest_batch is not None:
            allowed = "omitted for a recommended plan; or give three of epsilon, noise_multiplier, steps and batch size"
            raise InvalidValue("largest_batch", allowed=allowed, given=largest_batch)
        if max_records_per_user is not None:
            allowed = "omitted for a recommended plan; or give three of epsilon, noise_multiplier, steps and batch size"
            raise InvalidValue("max_records_per_user", allowed=allowed, given=max_records_per_user)
        recommended = recommend_plan(**rest)
        return recommended.plan, recommended
    others: dict[str, Any] = {"largest_batch": largest_batch, "max_records_per_user": max_records_per_user}
    return make_plan(bands=bands, correlation=correlation, **others, **rest), None


def _print_recommendation(recommended: Recommendation) -> None:
    common.print_facts("Why", recommended.reasons)
    rows = [
        (
            each.name,
            f"{each.plan.expected_batch_size:,.10g}",
            f"{each.plan.steps:,}",
            plan_page.noise_text(each.plan.noise_multiplier),
            f"{each.signal:.1%}",
            f"{each.compute:.2g}",
            f"{each.learning_rate:g}",
        )
        for each in recommended.alternatives
    ]
    headings = ("at the same ε", "batch", "steps", "noise", "signal", "compute", "rate")
    common.print_table("Alternatives", headings, rows)
    plan = recommended.plan
    common.print_line(
        "Signal is q·√steps/σ: what the steps learn over their noise. Compute is the\n"
        "number of records that are processed. Rate is a learning rate to start from,\n"
        f"with clip norm {CLIP_NORM:g} and momentum {MOMENTUM:g}.\n\n"
        f"  lehr train --epsilon {exactly(recommended.epsilon)} --delta {exactly(plan.delta)} "
        f"--batch-size {plan.expected_batch_size:.10g} --steps {plan.steps} \\\n"
        f"      --learning-rate {recommended.learning_rate:g} --records {plan.records}{_bands_options(plan)} ..."
    )


def _bands_options(plan: Plan) -> str:
    if plan.bands == 1:
        return ""
    return f" --bands {plan.bands}" + (f" --correlation {plan.correlation}" if plan.correlation != BANDED else "")


def _print_outlook(outlook: TanOutlook, *, draws: bool) -> None:
    common.print_facts("Total amount of noise", plan_page.tan_facts(outlook.standing))
    if draws:
        common.print_line(f"{plan_page.draw_constant_eta(outlook, width=common.width())}\n")
    for table in plan_page.tan_tables(outlook):
        common.print_table(table.title, table.headings, table.rows)


# lehr account


@common.config_options("noise_multiplier", "expected_batch_size", "steps")
def account(
    records: Annotated[int | None, Option(help=_RECORDS)] = None,
    sampling_probability: Annotated[float | None, Option(help="In place of batch size and records.")] = None,
    delta: DefaultDelta = None,
    adjacency: Annotated[
        Adjacency | None, Option(help="Which data sets count as neighbours; add-or-remove-one by default.")
    ] = None,
    bins: BinsOption = None,
    largest_batch: LargestBatchOption = None,
    plan: Annotated[Path | None, Option(metavar="FILE", help="A plan written by `lehr plan --save`.")] = None,
    json: common.Json = False,
    **fields: Any,
) -> None:
    """Compute the ε of a run with every accountant. An estimate is not a guarantee.

    Describe the run by its options, or by --plan alone.
    """
    described = {**fields, "records": records, "sampling_probability": sampling_probability, "bins": bins}
    described["largest_batch"] = largest_batch
    from_file = None if plan is None else read_plan(plan)
    if from_file is not None:
        common.refuse("plan", **described, delta=delta, adjacency=adjacency)
        event, delta, adjacency = from_file.event, from_file.delta, from_file.adjacency
    else:
        delta = common.required(delta=delta) if records is None else delta_for(delta, records=records)
        adjacency = adjacency or Adjacency.ADD_OR_REMOVE_ONE
        event = _event(described, delta=delta, adjacency=adjacency)
    with common.working("Counting"):
        results = answers(event, delta=delta, adjacency=adjacency)
    try:
        smallest = smallest_of(results, event=event, delta=delta, adjacency=adjacency)
    except UnsupportedEvent:
        smallest = None
    if json:
        common.print_json(
            {
                "event": to_json(event),
                "delta": delta,
                "adjacency": adjacency.value,
                "epsilon": smallest and smallest.epsilon,
                "accountant": smallest and smallest.accountant,
                "answers": [
                    {name: getattr(answer, name) for name in ("accountant", "epsilon", "is_estimate", "reason")}
                    for answer in results
                ],
            }
        )
    else:
        rows = [_answer_row(answer, smallest) for answer in results]
        common.print_table(f"ε at δ = {exactly(delta)}, {adjacency.value}", ("accountant", "ε", ""), rows)
        common.print_line(f"The run: {event}")
        if from_file is not None and from_file.simulates is not None:
            common.print_line(f"This plan guarantees nothing: {simulation_words(from_file)}")
    if smallest is None:
        raise Exit(common.NO)


def _event(described: dict[str, Any], *, delta: float, adjacency: Adjacency) -> Event:
    """The run of these options: its noise and steps, and either batch size and records or the probability."""
    probability, bins, largest_batch = map(described.pop, ("sampling_probability", "bins", "largest_batch"))
    if bins is not None:
        described.pop("records")  # δ may follow from it, ε does not
        batch = {"expected_batch_size": described.pop("expected_batch_size"), "largest_batch": largest_batch}
        common.refuse("bins", sampling_probability=probability, **batch)
        numbers = {name: common.required(**{name: value}) for name, value in described.items()}
        epoch = BallsInBins(bins, Gaussian(numbers["noise_multiplier"]))
        return Repeated(epoch, math.ceil(validate.count(steps=numbers["steps"]) / epoch.bins))
    if probability is not None:
        batch = {name: described.pop(name) for name in ("expected_batch_size", "records")}
        common.refuse("sampling_probability", **batch, largest_batch=largest_batch)
    numbers = {name: common.required(**{name: value}) for name, value in described.items()}
    if probability is None:
        return Plan(delta=delta, adjacency=adjacency, largest_batch=largest_batch, **numbers).event
    step = PoissonSampled(probability, Gaussian(numbers["noise_multiplier"]))
    return Repeated(step, validate.count(steps=numbers["steps"]))


def _answer_row(answer: Answer, smallest: Bound | None) -> tuple[str, str, str]:
    if answer.epsilon is None:
        return answer.accountant, "–", answer.reason
    note = "a proven bound"
    if answer.is_estimate:
        note = "an estimate, not a guarantee"
    elif smallest is not None and answer.accountant == smallest.accountant:
        note = "the smallest proven bound"
    return answer.accountant, at_most(answer.epsilon), note


# lehr simulate


@common.config_options("data_dir", "device", "physical_batch", "compiled")
def simulate(
    batches: Annotated[str, Option(help="Smaller batch sizes to simulate with, such as 64,128,256,512.")],
    config: Annotated[Path | None, Argument(metavar="[CONFIG.toml]", help="The run to predict.")] = None,
    *,
    settings: common.Settings = None,
    seeds: Annotated[int, Option(help="Runs of each batch size, with different initial weights.")] = 3,
    to: Annotated[
        Path | None, Option(metavar="FOLDER", help="Folder for the runs; CONFIG-simulated by default.")
    ] = None,
    confidence: Annotated[float, Option(help="Confidence of the interval.")] = 0.95,
    quiet: common.Quiet = False,
    json: common.Json = False,
    **fields: Any,
) -> None:
    """Predict the accuracy of a private run from cheap runs with smaller batches, and write a web page.

    Batch and noise shrink together, so that steps stay equally noisy and accuracies lie near a line over the logarithm
    of the batch size. Simulated runs protect nobody: [data] of the configuration must be declared public or synthetic.
    The same command continues after an interruption and repeats no finished run.
    """
    from lehr.search.scaling import Scaling

    check_confidence(confidence=confidence)
    try:
        sizes = [float(word) for word in batches.split(",")]
    except ValueError as error:
        raise InvalidValue("batches", allowed="numbers separated by commas: 64,128,256", given=batches) from error
    base = RunConfig() if config is None else RunConfig.read(config)
    chosen = base.with_values(**common.parse_settings(settings or ()))
    where = to or Path("simulated" if config is None else f"{config.stem}-simulated")
    with common.working("Planning"):
        scaling = Scaling.of(chosen, batches=sizes, num_seeds=seeds, directory=where)
    with common.resumable():
        prediction = scaling.predict(confidence=confidence, quiet=quiet or json, **fields)
    if json:
        common.print_json({**prediction.to_json(), "folder": where, "left_out": list(scaling.left_out)})
        return
    common.print_facts("Simulated", prediction_facts(prediction))
    for sentence in (prediction_text(prediction), *prediction_sentences(prediction)):
        common.print_line(sentence)
    if scaling.left_out:
        common.print_line(f"Left out, because they were not asked for: {', '.join(scaling.left_out)}.")
    common.print_line(f"{where / 'prediction.html'}: the same, with a chart of the runs and the law")


plan_command = common.command_app(
    plan,
    "  lehr plan --epsilon 3 --records 60000\n",
    "  lehr plan --epsilon 3 --delta 1e-5 --records 60000 --expected-batch-size 512 \\\n",
    "      --noise-multiplier 1.23 --html plan.html --save plan.json\n",
)

account_command = common.command_app(
    account,
    "  lehr account --noise-multiplier 1.23 --expected-batch-size 512 --records 60000 \\\n",
    "      --steps 4698 --delta 1e-5\n",
)

simulate_command = common.command_app(
    simulate,
    "  lehr simulate --set data.name=digits --set data.declared=public --set privacy.steps=12 \\\n",
    "      --set privacy.noise_multiplier=2 --set privacy.expected_batch_size=256 \\\n",
    "      --set method.learning_rate=1 --batches 16,32,64 --seeds 1 --to cheap\n",
)

"""A cheap stand-in for a plan: a smaller batch, with as much noise for each record in it (Sander et al. 2023).

What a step adds to the weights is a mean over the batch and noise. With batch and noise multiplier shrunk by the same
factor, that noise is the same and the mean is taken over fewer records, so that the steps go nearly the same way at a
fraction of the cost. What is lost is the privacy: the noise no longer hides anybody, and ε says so.

>>> reference = Plan(noise_multiplier=3.0, expected_batch_size=4096, records=50_000, steps=2500, delta=1e-5)
>>> cheap = simulate(reference, expected_batch_size=128)
>>> cheap.noise_multiplier, cheap.steps, cheap.simulates == reference
(0.09375, 2500, True)
>>> round(reference.bound().epsilon, 1), cheap.bound().epsilon > 1000
(6.6, True)
"""

from __future__ import annotations

from dataclasses import replace

from lehr import validate
from lehr.errors import InvalidValue
from lehr.events import NOTHING, Adjacency
from lehr.planning.plan import Plan


def simulate(plan: Plan, *, expected_batch_size: float) -> Plan:
    """The plan with a smaller batch, and with the same ratio of noise to batch and the same steps.

    It is for records that need no protection: a run of it is labelled a simulation and is never certified.
    """
    refuse_what_is_not_simulated(plan)
    batch = validate.positive(expected_batch_size=expected_batch_size)
    if not batch < plan.expected_batch_size:
        allowed = f"less than the {plan.expected_batch_size:g} of the plan that is simulated"
        raise InvalidValue("expected_batch_size", allowed=allowed, given=expected_batch_size)
    noise_multiplier = plan.noise_multiplier * batch / plan.expected_batch_size
    return replace(plan, expected_batch_size=batch, noise_multiplier=noise_multiplier, simulates=plan)


def refuse_what_is_not_simulated(plan: Plan) -> None:
    """The law is about the noise on sums of gradients: a plan that does more to the records is not simulated by it."""
    if plan.simulates is not None:
        raise InvalidValue("plan", allowed="one that is no simulation itself", given="a simulation")
    if plan.noise_multiplier == 0:
        raise InvalidValue("noise_multiplier", allowed="a number > 0 in a plan that is simulated", given=0)
    if plan.asked != NOTHING or plan.limit is not None or plan.stops_at_accepted is not None:
        allowed = "of steps that are all taken and ask the records for nothing else"
        raise InvalidValue("plan", allowed=allowed, given="one whose method asks, stops or pays as it goes")
    if plan.adjacency is not Adjacency.ADD_OR_REMOVE_ONE:
        raise InvalidValue("plan", allowed="one with Poisson sampling", given=plan.adjacency.value)


def simulation_words(plan: Plan) -> str:
    """What a simulation is, for everywhere that it is shown; only of a plan that is one."""
    assert plan.simulates is not None
    large, small = plan.simulates, plan
    return (
        f"it is a simulation of batches of {large.expected_batch_size:,.10g} at noise multiplier "
        f"{large.noise_multiplier:.6g} by batches of {small.expected_batch_size:,.10g} at {small.noise_multiplier:.6g}"
    )

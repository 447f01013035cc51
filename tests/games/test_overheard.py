from __future__ import annotations

import torch

from lehr.games.overheard import OverheardNoise, overheard
from lehr.interfaces import PrivateSum, ReleasedSum, Taken
from lehr.methods.agd import agd
from lehr.methods.dpopt import dpopt
from lehr.methods.dpsgd import dpsgd
from lehr.rng import RunKey

PRIVATE = PrivateSum(values={"weight": torch.arange(6.0)}, sensitivity=0.5)


def test_what_is_heard_is_what_went_in_and_what_came_out() -> None:
    heard: list[tuple[PrivateSum, ReleasedSum]] = []
    noise = overheard(dpsgd(), lambda private, released: heard.append((private, released))).noise
    released = noise.release(PRIVATE, noise_multiplier=2.0, randomness=RunKey(bytes(32)).at(0, 0), state={})
    assert heard == [(PRIVATE, released)]


def test_the_noise_is_the_same_to_the_bit() -> None:
    method = dpsgd()
    given = {"noise_multiplier": 2.0, "randomness": RunKey(bytes(32)).at(3, 1), "state": {}}
    alone = method.noise.release(PRIVATE, **given)  # type: ignore[arg-type]
    listened_to = overheard(method, lambda private, released: None).noise.release(PRIVATE, **given)  # type: ignore[arg-type]
    assert torch.equal(alone.values["weight"], listened_to.values["weight"])
    assert (alone.noise_std, alone.noise_multiplier) == (listened_to.noise_std, listened_to.noise_multiplier)


def test_everything_else_is_passed_on() -> None:
    parameters = {"weight": torch.zeros(6)}
    for method in (dpopt(), agd()):
        listened_to = OverheardNoise(method.noise, lambda private, released: None)
        assert listened_to.needs_bounds == method.noise.needs_bounds
        assert listened_to.needs_limit == method.noise.needs_limit
        assert listened_to.event(2.0) == method.noise.event(2.0)
        state = method.noise.start(parameters)
        assert listened_to.start(parameters).keys() == state.keys()
        assert listened_to.factor(state) == method.noise.factor(state)
        released = ReleasedSum(values={"weight": torch.ones(6)}, noise_std=1.0, noise_multiplier=1.0)
        taken = Taken(released=released, divisor=2.0, is_accepted=False)
        assert str(listened_to.learn(state, taken)) == str(method.noise.learn(state, taken))

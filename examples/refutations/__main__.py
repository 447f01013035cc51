"""All refutations, one after another: ``python -m examples.refutations``. About two minutes."""

from __future__ import annotations

from examples.refutations import (
    accumulated,
    drawn_size,
    empty_batches,
    half_space,
    raw_prior,
    refutation,
    shuffled,
    two_tails,
)

if __name__ == "__main__":
    for module in (two_tails, half_space, raw_prior, drawn_size, shuffled, empty_batches, accumulated):
        refutation.main(module.refute, picture=f"refuted_{module.__name__.rpartition('.')[2]}.svg")

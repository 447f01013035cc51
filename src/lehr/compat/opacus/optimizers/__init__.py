"""The optimizer of a private loop, in Opacus's shape."""

from lehr.compat.opacus.optimizers.optimizer import DPOptimizer

__all__ = ["DPOptimizer"]

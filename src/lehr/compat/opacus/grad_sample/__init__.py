"""The model of a private loop, in Opacus's shape."""

from lehr.compat.opacus.grad_sample.grad_sample_module import GradSampleHooks, GradSampleModule

__all__ = ["GradSampleHooks", "GradSampleModule"]

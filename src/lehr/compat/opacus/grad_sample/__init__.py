"""The model of a private loop, in Opacus's shape."""

from lehr.compat.opacus.grad_sample.grad_sample_module import GradSampleHooks, GradSampleModule
from lehr.compat.opacus.grad_sample.utils import register_grad_sampler, register_norm_sampler

__all__ = ["GradSampleHooks", "GradSampleModule", "register_grad_sampler", "register_norm_sampler"]

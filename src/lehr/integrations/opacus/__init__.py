"""Opacus's names over Lehr's engine: change the import, keep the loop.

    from lehr.integrations.opacus import PrivacyEngine

Every public name of Opacus 1.6 is found at the same path below this package. What is the same, better or missing:
``docs/opacus.md``.
"""

import sys

from lehr.integrations.opacus import (
    accountants,
    grad_sample,
    layers,
    migration,
    optimizers,
    schedulers,
    utils,
    validators,
)
from lehr.integrations.opacus.accountants import create_accountant, get_noise_multiplier, register_accountant
from lehr.integrations.opacus.data_loader import DPDataLoader
from lehr.integrations.opacus.grad_sample import GradSampleHooks, GradSampleModule
from lehr.integrations.opacus.layers import DPGRU, DPLSTM, DPRNN, DPMultiheadAttention, SequenceBias
from lehr.integrations.opacus.migration import UnprovenWarning
from lehr.integrations.opacus.optimizers import DPOptimizer
from lehr.integrations.opacus.privacy_engine import PrivacyEngine
from lehr.integrations.opacus.utils import BatchMemoryManager
from lehr.integrations.opacus.validators import ModuleValidator

__all__ = [
    "DPGRU",
    "DPLSTM",
    "DPRNN",
    "BatchMemoryManager",
    "DPDataLoader",
    "DPMultiheadAttention",
    "DPOptimizer",
    "GradSampleHooks",
    "GradSampleModule",
    "ModuleValidator",
    "PrivacyEngine",
    "SequenceBias",
    "UnprovenWarning",
    "create_accountant",
    "get_noise_multiplier",
    "register_accountant",
]

# Opacus's paths that are no file here, and the module that has their names.
_PATHS = {
    accountants: "accountants.accountant accountants.gdp accountants.prv accountants.rdp accountants.registry "
    "accountants.utils",
    grad_sample: "grad_sample.grad_sample_hooks grad_sample.grad_sample_module grad_sample.gsm_base grad_sample.utils",
    layers: "layers.dp_multihead_attention layers.dp_rnn",
    migration: "distributed lightning",
    optimizers: "optimizers.optimizer",
    schedulers: "schedulers.grad_clip_scheduler schedulers.noise_scheduler",
    utils: "utils.batch_memory_manager utils.fast_gradient_clipping_utils utils.uniform_sampler",
    validators: "validators.errors validators.module_validator",
}
for _module, _paths in _PATHS.items():
    for _path in _paths.split():
        sys.modules[f"{__name__}.{_path}"] = _module

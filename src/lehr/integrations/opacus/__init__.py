"""Opacus's names over Lehr's engine: change the import, keep the loop.

    from lehr.integrations.opacus import PrivacyEngine

Every public name of Opacus 1.6 is found at the same path below this package. What is the same, better or missing:
``docs/opacus.md``.
"""

import sys

from lehr.integrations.opacus import accountants, data_loader, grad_sample, layers, optimizers, validators
from lehr.integrations.opacus.accountants import (
    UnprovenWarning,
    create_accountant,
    get_noise_multiplier,
    register_accountant,
)
from lehr.integrations.opacus.data_loader import BatchMemoryManager, DPDataLoader
from lehr.integrations.opacus.grad_sample import GradSampleHooks, GradSampleModule
from lehr.integrations.opacus.layers import DPGRU, DPLSTM, DPRNN, DPMultiheadAttention, SequenceBias
from lehr.integrations.opacus.optimizers import DPOptimizer
from lehr.integrations.opacus.privacy_engine import PrivacyEngine
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
    data_loader: "utils utils.batch_memory_manager utils.fast_gradient_clipping_utils utils.uniform_sampler",
    grad_sample: "distributed grad_sample.grad_sample_hooks grad_sample.grad_sample_module grad_sample.gsm_base "
    "grad_sample.utils",
    layers: "layers.dp_multihead_attention layers.dp_rnn",
    optimizers: "optimizers.optimizer schedulers schedulers.grad_clip_scheduler schedulers.noise_scheduler",
    validators: "validators.errors validators.module_validator",
}
sys.modules.update({f"{__name__}.{path}": module for module, paths in _PATHS.items() for path in paths.split()})
utils, schedulers, distributed = data_loader, optimizers, grad_sample

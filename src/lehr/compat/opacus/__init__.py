"""Opacus's names over Lehr's engine: change the import, keep the loop.

    from lehr.compat.opacus import PrivacyEngine

Names stand where Opacus 1.6 has them, below this package instead of ``opacus``, and the common ones here as well. What
is the same, what is better and what is missing: ``docs/opacus.md``.

- ``privacy_engine``: ``PrivacyEngine``; over ``private_steps`` (what a step does), ``records_first`` (where its records
  stand), ``draws`` and ``drawn_loader`` (which records it is about), ``collation`` (whether they are kept apart),
  ``spending`` (what it costs), ``promise``, ``checkpoints`` and ``notes``
- ``data_loader``, ``optimizers``, ``grad_sample``, ``validators``, ``layers``, ``schedulers``, ``accountants``,
  ``utils``: what Opacus has under these names
- ``quantile_clip``: adaptive clipping
- ``distributed``, ``lightning``: names that can be imported, and say what to use instead
"""

from lehr.compat.opacus.accountants import create_accountant, register_accountant
from lehr.compat.opacus.accountants.utils import get_noise_multiplier
from lehr.compat.opacus.data_loader import DPDataLoader
from lehr.compat.opacus.grad_sample import GradSampleHooks, GradSampleModule
from lehr.compat.opacus.layers import DPGRU, DPLSTM, DPRNN, DPMultiheadAttention, SequenceBias
from lehr.compat.opacus.notes import UnprovenWarning
from lehr.compat.opacus.optimizers import DPOptimizer
from lehr.compat.opacus.privacy_engine import PrivacyEngine
from lehr.compat.opacus.utils.batch_memory_manager import BatchMemoryManager
from lehr.compat.opacus.validators import ModuleValidator

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

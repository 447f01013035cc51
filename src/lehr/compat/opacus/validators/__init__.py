"""Which layers can be trained privately, and what to put in the place of those that cannot."""

from lehr.compat.opacus.validators.module_validator import (
    ModuleValidator,
    register_module_fixer,
    register_module_validator,
)

__all__ = ["ModuleValidator", "register_module_fixer", "register_module_validator"]

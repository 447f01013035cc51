"""What a validator says about a model. All of these are errors of Lehr and ``ValueError``, as in Opacus.

UnsupportedError
└── UnsupportedModuleError
    ├── UnsupportableModuleError          no such layer can ever be private
    ├── NotYetSupportedModuleError        this one cannot, as it is
    ├── ShouldReplaceModuleError          ``ModuleValidator.fix`` puts another in its place
    └── IllegalModuleConfigurationError   the layer can, set up otherwise
"""

from __future__ import annotations

from lehr.errors import LehrError, NotPrivate


class UnsupportedError(LehrError, ValueError):
    """Something that cannot be trained privately."""


class UnsupportedModuleError(UnsupportedError):
    """A layer that cannot be trained privately as it is."""


class UnsupportableModuleError(UnsupportedModuleError):
    """A layer of a kind that can never be trained privately."""


class NotYetSupportedModuleError(UnsupportedModuleError):
    """A layer that Lehr cannot train privately."""


class ShouldReplaceModuleError(UnsupportedModuleError):
    """A layer that ``ModuleValidator.fix`` replaces."""


class IllegalModuleConfigurationError(UnsupportedModuleError):
    """A layer that can be trained privately when it is set up otherwise."""


class NotSupported(NotPrivate, NotImplementedError):
    """What ``GradSampleModule`` raises for a model that cannot be trained privately."""

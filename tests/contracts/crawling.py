"""Finds the components of the library, so that a new one is held to the contract of its kind."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType


def classes_of(place: ModuleType) -> set[type]:
    """The classes that a module, or the modules of a package, define."""
    below = pkgutil.iter_modules(getattr(place, "__path__", ()))
    modules = [place, *(importlib.import_module(f"{place.__name__}.{found.name}") for found in below)]
    return {
        kind
        for module in modules
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if kind.__module__ == module.__name__
    }

"""Layers that cannot be private, refused by name with a way out."""

from __future__ import annotations

from torch import nn


def refuse_what_cannot_be_private(model: nn.Module) -> None:
    """Raise for the first layer that mixes records."""

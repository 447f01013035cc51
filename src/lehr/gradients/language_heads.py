"""The head of a causal language model together with its cross entropy, in tiles of the vocabulary.

    TiledCrossEntropy   a layer that takes the last hidden states and the labels, and returns one loss per token
    with_tiled_head     a causal language model of transformers that ends in this layer

Logits, and their gradients, are positions times vocabulary: in float32 often more than all else that a step keeps. Here
they exist for one tile of the vocabulary at a time. The forward pass goes through the tiles once, with a softmax that
is rescaled on the way, and computes the gradient of the hidden states in the same pass. The norms of the head's
gradient, and its weighted sum, compute each tile again (``contributions.TiledHead``).

Axes: B records, T positions, V vocabulary, I inputs of the head.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from lehr.gradients.contributions import TiledHead, head_tiles
from lehr.interfaces import Contributions, LayerRule, Site, Tap, at_least_float32, register_layer_rule

IGNORED = -100  # the label of tokens without a loss
TOKEN_LOSSES = "token_losses"


class TiledCrossEntropy(nn.Module):
    """A linear layer without bias and its cross entropy: ``losses_BT``, zero at ignored labels.

    Its rule goes through tiles. Without it, a trained head is run as usual, so that ordinary differentiation is right,
    and the tiles are tried against it.
    """

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self._parameters = head._parameters  # the same, under the same names, also if they are replaced there
        self.training, self.is_trained = head.training, head.weight.requires_grad

    def forward(self, hidden_BTI: Tensor, labels_BT: Tensor) -> Tensor:
        if not self.is_trained:
            return _run(self, lambda site, inputs, output: output, hidden_BTI, labels_BT)
        weight: Any = self.weight
        logits = linear(hidden_BTI, weight).transpose(1, 2)
        return cross_entropy(
            logits.to(at_least_float32(logits.dtype)), labels_BT, reduction="none", ignore_index=IGNORED
        )


def _run(layer: TiledCrossEntropy, tap: Tap, hidden_BTI: Tensor, labels_BT: Tensor) -> Tensor:
    hidden_BTI = tap("labels", labels_BT, hidden_BTI)
    weight: Any = layer.weight
    with torch.no_grad():
        normalisers_BT, mean_BTI, at_label_BT, dtype = _softmax_by_tiles(hidden_BTI, weight, labels_BT)
        is_counted_BT = labels_BT != IGNORED
        own_BTI = weight[labels_BT.clamp_min(0)].to(mean_BTI.dtype)
        grads_BTI = torch.where(is_counted_BT.unsqueeze(-1), mean_BTI - own_BTI, 0)
        losses_BT = torch.where(is_counted_BT, normalisers_BT - at_label_BT, 0)
    exact = hidden_BTI.to(grads_BTI.dtype)
    # The value of the losses, with the gradient that was computed with them.
    losses_BT = losses_BT + ((exact - exact.detach()) * grads_BTI).sum(-1)
    # What is kept of the head's own gradient: the hidden states, and one number for each position beside them.
    losses_BT = tap("normalisers", normalisers_BT, losses_BT)
    return tap("output", hidden_BTI.to(dtype), losses_BT)


def _softmax_by_tiles(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, torch.dtype]:
    """Of each position the log of the sum of exponentials, the mean row of the weight, and the logit of the label.

    Also the type in which logits are computed, which autocast may decide.
    """
    exact, computed = at_least_float32(hidden.dtype), hidden.dtype
    largest = torch.full_like(hidden[..., 0], -torch.inf, dtype=exact)
    total, at_label = torch.zeros_like(largest), torch.zeros_like(largest)
    mean = torch.zeros_like(hidden, dtype=exact)
    for first, last in head_tiles(weight.shape[0]):
        rows = weight[first:last]
        logits = linear(hidden, rows)
        computed, logits = logits.dtype, logits.to(exact)
        highest = torch.maximum(largest, logits.amax(-1))
        shrink = (largest - highest).exp()
        shares = (logits - highest.unsqueeze(-1)).exp()
        total = total * shrink + shares.sum(-1)
        product = torch.matmul(shares.to(rows.dtype), rows)
        mean = mean * shrink.unsqueeze(-1) + product.to(exact)
        inside = (labels >= first) & (labels < last)
        chosen = logits.gather(-1, (labels - first).clamp(0, last - first - 1).unsqueeze(-1)).squeeze(-1)
        at_label = torch.where(inside, chosen, at_label)
        largest = highest
    return largest + total.log(), mean / total.unsqueeze(-1), at_label, computed


def _contributions(layer: TiledCrossEntropy, sites: Mapping[str, Site]) -> Contributions:
    site, labels, normalisers = sites["output"], sites["labels"].inputs, sites["normalisers"].inputs

    def positions(values: Tensor, *last: int) -> Tensor:
        """Views and positions of a record on one axis."""
        return values.reshape(values.shape[0], -1, *last)

    scales = positions(site.output_grads * (labels != IGNORED))
    inputs = positions(site.inputs, site.inputs.shape[-1])
    weight: Any = layer.weight
    return {"weight": TiledHead(weight, inputs, positions(labels), scales, positions(normalisers))}


register_layer_rule(TiledCrossEntropy, LayerRule(contributions=_contributions, forward=_run))


class _TiledModel:
    """Mixed into the class of a causal language model: with labels, it returns the losses of the tokens."""

    def forward(self: Any, *args: Any, labels: Tensor, **kwargs: Any) -> dict[str, Tensor]:
        hidden = self.base_model(*args, **kwargs)[0]
        return {TOKEN_LOSSES: self.get_output_embeddings()(hidden[:, :-1], labels[:, 1:])}


def mean_over_tokens(losses_BT: Tensor, labels_BT: Tensor) -> Tensor:
    """Each record's mean over its own tokens that have a loss; the losses of the others are zero."""
    return losses_BT.sum(1) / (labels_BT != IGNORED).sum(1).clamp_min(1)


def losses_of_tiled(outputs: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> Tensor:
    """One loss per record, from what a model with a tiled head returns."""
    return mean_over_tokens(outputs[TOKEN_LOSSES], inputs["labels"][:, 1:])


def with_tiled_head(model: nn.Module, inner: nn.Module) -> nn.Module | None:
    """The same model, with the same parameters under the same names; None if ``inner`` ends in no plain linear layer.

    ``inner`` is the causal language model of transformers in it. Whether it does nothing to hidden states and logits
    but what is done here has to be tried: losses must be those of the model.
    """
    head = getattr(inner, "get_output_embeddings", lambda: None)()
    if (
        type(head) is not nn.Linear
        or getattr(head, "bias", None) is not None
        or getattr(inner, "base_model", inner) is inner
    ):
        return None
    paths = {id(layer): path for path, layer in model.named_modules()}
    if id(inner) not in paths or id(head) not in paths:
        return None
    changed = _replaced(model, paths[id(head)], TiledCrossEntropy(head))
    found = changed.get_submodule(paths[id(inner)])
    found.__class__ = type(type(inner).__name__, (_TiledModel, type(inner)), {})
    return changed


def _replaced(model: nn.Module, path: str, layer: nn.Module) -> nn.Module:
    """The model with another layer at this path. The layers above it are copied, everything else is shared."""
    name, _, rest = path.partition(".")
    changed = copy.copy(model)
    changed._modules = dict(model._modules)
    changed._modules[name] = layer if not rest else _replaced(model.get_submodule(name), rest, layer)
    return changed

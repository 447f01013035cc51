"""Small networks of many kinds, each with a batch for it, to be differentiated record by record.

They are written here, or built by transformers and peft from configurations without any download.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, rnn
from torch.utils.checkpoint import checkpoint

RECORDS, LENGTH, WIDTH, WORDS = 3, 4, 6, 11

# Shapes of one record.
IMAGE, SEQUENCE, ROW = (3, 8, 8), (LENGTH, WIDTH), (WIDTH,)


@dataclass(frozen=True)
class Network:
    """How to build it, what its inputs look like, and which engines refuse it, where some do."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    refused_by: frozenset[str] = frozenset()


ZOO: dict[str, Network] = {}


def reals(*shape: int) -> Callable[[], Tensor]:
    """Records of real numbers."""
    return lambda: torch.randn(RECORDS, *shape).double()


def words(length: int = LENGTH) -> Tensor:
    """Records of words; none is the first word, which pads."""
    return torch.randint(1, WORDS, (RECORDS, length))


def mask() -> Tensor:
    """Which words count: another number of them in every record."""
    return (torch.arange(LENGTH) <= torch.arange(1, RECORDS + 1).unsqueeze(1)).long()


def masked_words() -> dict[str, Tensor]:
    """What transformers' tokenizers return."""
    return {"input_ids": words(), "attention_mask": mask()}


def network(name: str, inputs: Callable[[], Any], *refused_by: str) -> Callable[[Any], Any]:
    """Puts what it decorates, a class without arguments or a function, into the zoo."""

    def add(build: Any) -> Any:
        ZOO[name] = Network(build, inputs, frozenset(refused_by))
        return build

    return add


# ---------------------------------------------------------------------------------------------- images


class Attention(nn.Module):
    """As in timm: one product for queries, keys and values."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        records, length, _ = x.shape
        q, k, v = self.qkv(x).reshape(records, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        out = functional.scaled_dot_product_attention(q, k, v)
        result: Tensor = self.proj(out.transpose(1, 2).reshape(records, length, WIDTH))
        return result


class Block(nn.Module):
    def __init__(self, scale: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 8), nn.GELU(), nn.Linear(8, WIDTH))
        self.gamma = nn.Parameter(torch.full((WIDTH,), 0.5)) if scale else None

    def forward(self, x: Tensor) -> Tensor:
        attended = self.attn(self.norm1(x))
        x = x + (attended if self.gamma is None else self.gamma * attended)
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class PatchEmbed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, WIDTH, 4, stride=4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.proj(x).flatten(2).transpose(1, 2)
        return result


@network("vit", reals(*IMAGE))
class VisionTransformer(nn.Module):
    def __init__(self, scale: bool = False) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed()
        self.cls_token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.randn(1, 5, WIDTH))
        self.blocks = nn.Sequential(Block(scale), Block(scale))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1) + self.pos_embed
        result: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return result


@network("vit with registers and layer scale", reals(*IMAGE))
def _registers() -> nn.Module:
    return VisionTransformer(scale=True)


@network("vit with positions by number", reals(*IMAGE))
class PositionsByNumber(VisionTransformer):
    """Positions are looked up once for all records."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(5, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        x = torch.cat([self.cls_token.repeat(x.shape[0], 1, 1), x], 1)
        x = x + self.positions(torch.arange(5).unsqueeze(0)) + self.pos_embed
        result: Tensor = self.head(self.norm(self.blocks(x)).mean(1))
        return result


class ConvNeXtBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv_dw = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)
        self.gamma = nn.Parameter(torch.full((WIDTH,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv_dw(x).permute(0, 2, 3, 1))
        y = self.gamma * self.fc2(functional.gelu(self.fc1(y)))
        return x + y.permute(0, 3, 1, 2)  # type: ignore[no-any-return]


@network("convnext", reals(*IMAGE))
def _convnext() -> nn.Module:
    stem = nn.Conv2d(3, WIDTH, 4, stride=4)
    return nn.Sequential(stem, ConvNeXtBlock(), ConvNeXtBlock(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))


@network("swin windows", reals(*IMAGE))
class Windows(nn.Module):
    """Windows are folded into the record axis, and a table of relative positions is read by number."""

    index: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, WIDTH, 2, stride=2)
        self.attn = Attention()
        self.table = nn.Parameter(torch.randn(4, WIDTH))
        self.register_buffer("index", torch.arange(4).flip(0))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        records = x.shape[0]
        windows = x.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 4, 5, 1).reshape(-1, 4, WIDTH)
        attended = self.attn(windows + self.table[self.index])
        result: Tensor = self.head(attended.reshape(records, -1, WIDTH).mean(1))
        return result


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(channels, 2, 1), nn.Conv2d(2, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x * torch.sigmoid(self.fc2(functional.silu(self.fc1(x.mean((2, 3), keepdim=True)))))
        return result


@network("mobile net", reals(*IMAGE))
def _mobile() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
        nn.GroupNorm(2, 8),
        nn.Hardswish(inplace=True),
        nn.Conv2d(8, 8, 3, padding=1, groups=8),
        nn.SiLU(inplace=True),
        SqueezeExcite(8),
        nn.Conv2d(8, 4, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 5),
    )


class Residual(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm1, self.norm2 = norm(4), norm(4)
        self.skip_gain = nn.Parameter(torch.tensor(0.3))  # a gain of its own, as in normaliser-free networks

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        return functional.relu(x + self.skip_gain * y)


def _resnet(norm: Callable[[int], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), Residual(norm), nn.Flatten(), nn.Linear(144, 5))


ZOO["resnet of group norm"] = Network(lambda: _resnet(lambda channels: nn.GroupNorm(2, channels)), reals(*IMAGE))
ZOO["resnet of batch norm"] = Network(
    lambda: _resnet(nn.BatchNorm2d), reals(*IMAGE), frozenset({"ghost", "materialised", "hooked"})
)
ZOO["resnet of instance norm"] = Network(
    lambda: _resnet(lambda channels: nn.InstanceNorm2d(channels, affine=True)), reals(*IMAGE)
)
ZOO["resnet without norm"] = Network(lambda: _resnet(lambda _: nn.Identity()), reals(*IMAGE))


@network("dense net", reals(*IMAGE))
class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3 + 2 * at, 2, 3, padding=1) for at in range(3))
        self.head = nn.Linear(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = torch.cat([x, functional.elu(conv(x))], 1)
        result: Tensor = self.head(x.mean((2, 3)))
        return result


@network("u-net", reals(*IMAGE))
class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 4, 2, stride=2)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)
        self.last = nn.Conv2d(6, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(torch.cat([x, self.up(torch.tanh(self.down(x)))], 1))
        return result


@network("capsules", reals(*IMAGE))
class Capsules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.primary = nn.Conv2d(3, 8, 4, stride=4)
        self.routes = nn.Parameter(0.3 * torch.randn(8, 5, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        capsules = self.primary(x).reshape(x.shape[0], 8, 4)
        votes = torch.einsum("bci,cdij->bcdj", capsules, self.routes)
        logits = torch.zeros_like(votes[..., 0])
        for _ in range(2):
            combined = (logits.softmax(2).unsqueeze(-1) * votes).sum(1)
            logits = logits + torch.einsum("bcdj,bdj->bcd", votes, combined)
        return combined.norm(dim=-1)  # type: ignore[no-any-return]


@network("mixer", reals(*SEQUENCE))
class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.channels = nn.Linear(LENGTH, LENGTH), nn.Linear(WIDTH, WIDTH)
        self.alpha, self.beta = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.alpha + self.beta
        x = x + self.tokens(x.transpose(1, 2)).transpose(1, 2)
        result: Tensor = self.channels(x).mean(1)
        return result


@network("weight norm", reals(*ROW))
def _weight_norm() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(WIDTH, 8)), nn.Tanh(), nn.Linear(8, 5))


# ------------------------------------------------------------------------------------------ recurrent


class Recurrent(nn.Module):
    def __init__(self, cell: nn.RNNBase) -> None:
        super().__init__()
        self.cell = cell
        self.head = nn.Linear(cell.hidden_size * (1 + cell.bidirectional), 5)

    def forward(self, x: Tensor) -> Tensor:
        if self.cell.batch_first:
            last: Tensor = self.head(self.cell(x)[0][:, -1])
            return last
        result: Tensor = self.head(self.cell(x.transpose(0, 1))[0].mean(0))
        return result


for _kind in (nn.LSTM, nn.GRU, nn.RNN):
    for _settings in ({"batch_first": True}, {"bidirectional": True, "num_layers": 2}):
        ZOO[f"{_kind.__name__} {' '.join(_settings)}"] = Network(
            lambda kind=_kind, settings=_settings: Recurrent(kind(WIDTH, 4, **settings)),  # type: ignore[misc]
            reals(*SEQUENCE),
        )


@network("packed sequences", lambda: (words(), mask().sum(1)), "hooked")
class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.cell = nn.LSTM(WIDTH, 4, batch_first=True)
        self.head = nn.Linear(4, 5)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = rnn.pack_padded_sequence(self.table(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.cell(packed)
        result: Tensor = self.head(hidden[-1])
        return result


@network("cells in a loop", reals(*SEQUENCE))
class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(WIDTH, 4)
        self.start = nn.Parameter(torch.randn(4))
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.start.expand(x.shape[0], -1)
        for at in range(x.shape[1]):
            hidden = self.cell(x[:, at], hidden)
        result: Tensor = self.head(hidden)
        return result


@network("recurrence by linear layers", reals(*SEQUENCE))
class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.head = nn.Linear(WIDTH, 4), nn.Linear(4, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.new_zeros(x.shape[0], 4)
        for at in range(x.shape[1]):
            hidden = torch.tanh(self.inner(x[:, at]) + self.outer(hidden))
        result: Tensor = self.head(hidden)
        return result


# ----------------------------------------------------------------------------------------------- text


@network("rotary attention", reals(*SEQUENCE))
class Rotary(nn.Module):
    cos: Tensor
    sin: Tensor
    causal: Tensor

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(LENGTH).unsqueeze(1) / 10.0 ** torch.arange(3).double()
        self.register_buffer("cos", angles.cos().repeat(1, 2))
        self.register_buffer("sin", angles.sin().repeat(1, 2))
        self.register_buffer("causal", torch.full((LENGTH, LENGTH), -torch.inf).double().triu(1))
        self.qk, self.v, self.out = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)

    def turned(self, x: Tensor) -> Tensor:
        half = torch.cat([-x[..., 3:], x[..., :3]], -1)
        return x * self.cos + half * self.sin

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.qk(x).chunk(2, -1)
        scores = self.turned(q) @ self.turned(k).transpose(1, 2) / math.sqrt(WIDTH) + self.causal
        result: Tensor = self.out(scores.softmax(-1) @ self.v(x)).mean(1)
        return result


@network("transformer with time first", reals(*SEQUENCE))
class TimeFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.layer(x.transpose(0, 1)).mean(0))
        return result


@network("transformer with padding", masked_words)
class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
        )
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.layers(self.table(input_ids), src_key_padding_mask=attention_mask == 0)
        kept = attention_mask.unsqueeze(-1).to(hidden.dtype)
        result: Tensor = self.head((hidden * kept).sum(1) / kept.sum(1))
        return result


@network("encoder and decoder", lambda: (words(), words()))
class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.body = nn.Transformer(WIDTH, 2, 1, 1, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.float64)
        result: Tensor = self.head(self.body(self.table(source), self.table(target), tgt_mask=causal)).mean(1)
        return result


@network("positions for all records", words)
class SharedPositions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = self.positions(torch.arange(LENGTH)[None])
        result: Tensor = self.head(torch.tanh(self.table(tokens) + positions)).mean(1)
        return result


@network("positions of the first record", words)
class FirstPositions(SharedPositions):
    """The positions that all records share are read from the first row, which is no record's own."""

    def forward(self, tokens: Tensor) -> Tensor:
        positions = self.positions(torch.arange(LENGTH)[None])[0]
        result: Tensor = self.head(torch.tanh(self.table(tokens) * positions)).mean(1)
        return result


@network("positions without a record axis", words)
class BarePositions(SharedPositions):
    def forward(self, tokens: Tensor) -> Tensor:
        positions = self.positions(torch.arange(LENGTH))
        result: Tensor = self.head(torch.tanh(self.table(tokens) + positions)).mean(1)
        return result


for _mode in ("sum", "mean", "max"):
    ZOO[f"embedding bag {_mode}"] = Network(
        lambda mode=_mode: nn.Sequential(nn.EmbeddingBag(WORDS, WIDTH, mode=mode), nn.Linear(WIDTH, 5)),  # type: ignore[misc]
        words,
    )


@network("embedding bag with offsets", lambda: (words(), mask().sum(1)), "ghost", "hooked")
class Offsets(nn.Module):
    """Bags of all records in one line: nothing says where a record ends."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(WORDS, WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        offsets = torch.arange(tokens.shape[0]) * tokens.shape[1]
        result: Tensor = self.head(self.bag(tokens.flatten(), offsets))
        return result


@network("sparse embedding", words)
class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH, sparse=True)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.head(self.table(tokens).mean(1))
        return result


@network("sparse embedding used by hand", words, "hooked")
class SparseByHand(Sparse):
    def forward(self, tokens: Tensor) -> Tensor:
        looked = functional.embedding(tokens, self.table.weight, sparse=True)
        result: Tensor = self.head(looked.mean(1))
        return result


ZOO["sparse embedding bag"] = Network(
    lambda: nn.Sequential(nn.EmbeddingBag(WORDS, WIDTH, mode="sum", sparse=True), nn.Linear(WIDTH, 5)), words
)


@network("convolutions over text", words)
class TextConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.convs = nn.ModuleList(nn.Conv1d(WIDTH, 3, width, padding=1) for width in (2, 3))
        self.head = nn.Linear(6, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.table(tokens).transpose(1, 2)
        pooled = [functional.relu(conv(hidden)).amax(2) for conv in self.convs]
        result: Tensor = self.head(torch.cat(pooled, 1))
        return result


@network("gated state space", reals(*SEQUENCE))
class StateSpace(nn.Module):
    """Parameters of a scan beside linear layers, as in Mamba."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 5)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 2, padding=1, groups=WIDTH)
        self.a_log, self.skip = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        values, gate = self.inner(x).chunk(2, -1)
        values = functional.silu(self.conv(values.transpose(1, 2))[..., :LENGTH].transpose(1, 2))
        state, states = torch.zeros_like(values[:, 0]), []
        for at in range(LENGTH):
            state = state * torch.exp(-self.a_log.exp()) + values[:, at]
            states.append(state)
        hidden = (torch.stack(states, 1) + self.skip * values) * functional.silu(gate)
        result: Tensor = self.out(hidden).mean(1)
        return result


# ---------------------------------------------------------------------------------- parts by themselves


@network("tied autoencoder", reals(*ROW))
class TiedAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(WIDTH, 3)
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(torch.tanh(self.encoder(x)), self.encoder.weight.t(), self.bias)


@network("prototypes and a temperature", reals(*ROW))
class Prototypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(WIDTH, 4)
        self.prototypes = nn.Parameter(torch.randn(5, 4))
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return -self.temperature * torch.cdist(self.features(x), self.prototypes)


@network("adaptive activations", reals(*ROW))
def _activations() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.PReLU(8), nn.Linear(8, 4), nn.PReLU(), nn.Linear(4, 5))


@network("bilinear", lambda: (reals(*ROW)(), reals(*ROW)()))
class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Bilinear(WIDTH, WIDTH, 5)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        result: Tensor = self.both(left, right)
        return result


@network("a buffer in the backward pass", reals(*ROW))
class Scaled(nn.Module):
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 4), nn.Linear(4, 5)
        self.register_buffer("scale", torch.linspace(0.5, 2, 4))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(torch.tanh(self.first(x)) * self.scale)
        return result


@network("a counter in a buffer", reals(*ROW))
class Counter(Scaled):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


@network("a counter and a parameter", reals(*ROW))
class CounterBeside(Counter):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * self.gain)


@network("a running mean in a buffer", reals(*ROW), "hooked")
class RunningMean(Scaled):
    """What records leave in the buffer would be released without noise; only a loop of one's own releases it."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH).double())

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return super().forward(x)


@network("a layer that is called without arguments", reals(*ROW))
class WithoutArguments(nn.Module):
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Parameter(torch.randn(5, WIDTH))

        def forward(self) -> Tensor:
            return self.tokens

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.tokens = nn.Linear(WIDTH, WIDTH), self.Tokens()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x) @ self.tokens().t()
        return result


@network("nothing of it is used", reals(*ROW), "hooked")
class Unused(nn.Module):
    """A trained layer of which no loss depends, beside one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.frozen = nn.Linear(WIDTH, 5), nn.Linear(WIDTH, 5).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.frozen(x)
        return result if not torch.is_grad_enabled() else result + 0 * result.detach().requires_grad_()


@network("a branch on the values of a record", reals(*ROW), "hooked")
class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 5), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        rows = [(self.first if row.sum() > 0 else self.second)(row) for row in x]
        return torch.stack(rows)


# ------------------------------------------------------------------------------------ experts and graphs


@network("experts, all of them weighed", reals(*ROW))
class Weighed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, 5) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        outputs = torch.stack([expert(x) for expert in self.experts], 2)
        return (outputs * self.gate(x).softmax(1).unsqueeze(1)).sum(2)  # type: ignore[no-any-return]


@network("experts, the best of them", reals(*ROW), "hooked")
class Routed(Weighed):
    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(1).max(1)
        outputs = x.new_zeros(x.shape[0], 5)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            if len(rows):
                outputs = outputs.index_copy(0, rows, weights[rows].unsqueeze(1) * expert(x[rows]))
        return outputs


@network("experts as one stack of weights", reals(*SEQUENCE))
class Stacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3, bias=False)
        self.weights = nn.Parameter(torch.randn(3, WIDTH, 5))

    def forward(self, x: Tensor) -> Tensor:
        best = self.gate(x).softmax(-1)
        return torch.einsum("blw,ewo,ble->blo", x, self.weights, best).mean(1)


@network("graph convolution", lambda: (reals(*SEQUENCE)(), (torch.rand(RECORDS, LENGTH, LENGTH) < 0.5).double()))
class Graph(nn.Module):
    """A graph in each record."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 4), nn.Linear(4, 5)
        self.own = nn.Parameter(torch.tensor(0.5))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        normalised = edges / edges.sum(-1, keepdim=True).clamp_min(1)
        hidden = torch.relu(normalised @ self.first(nodes) + self.own * self.first(nodes))
        result: Tensor = self.last(hidden).sum(1)
        return result


@network("graph attention over lists of edges", lambda: (reals(*SEQUENCE)(), torch.randint(LENGTH, (RECORDS, 2, 5))))
class GraphAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(WIDTH, 4), nn.Linear(4, 5)
        self.attention = nn.Parameter(torch.randn(8))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        hidden = self.layer(nodes)
        source, target = (edges[:, at].unsqueeze(-1).expand(-1, -1, 4) for at in (0, 1))
        sent, received = hidden.gather(1, source), hidden.gather(1, target)
        weights = functional.leaky_relu(torch.cat([sent, received], -1) @ self.attention).exp().unsqueeze(-1)
        result: Tensor = self.head(torch.zeros_like(hidden).scatter_add(1, target, weights * sent)).mean(1)
        return result


@network("siamese", lambda: (reals(*ROW)(), reals(*ROW)()))
class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, 5))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return (self.branch(left) - self.branch(right)).abs()  # type: ignore[no-any-return]


@network("siamese in one batch", lambda: {"left": reals(*ROW)(), "right": reals(*ROW)()})
class SiameseTogether(Siamese):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        one, other = self.branch(torch.cat([left, right], 0)).chunk(2, 0)
        return (one - other).abs()  # type: ignore[no-any-return]


@network("hypernetwork", lambda: (reals(*ROW)(), reals(3)()))
class Hypernetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Linear(3, 5 * WIDTH)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return torch.bmm(self.maker(condition).reshape(-1, 5, WIDTH), x.unsqueeze(2)).squeeze(2)


# ------------------------------------------------------------------------------------------ checkpoints


class Checkpointed(nn.Module):
    reentrant = False

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, WIDTH))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant:
            x = x.requires_grad_() if x.is_leaf else x
        result: Tensor = self.head(checkpoint(self.block, x, use_reentrant=self.reentrant))
        return result


class Reentrant(Checkpointed):
    reentrant = True


ZOO["checkpoints"] = Network(Checkpointed, reals(*ROW), frozenset({"hooked"}))
ZOO["reentrant checkpoints"] = Network(Reentrant, reals(*ROW), frozenset({"ghost", "materialised", "hooked"}))


# ------------------------------------------------------------------------------------------ mixed records


@network("mean over the batch", reals(*ROW), "ghost", "hooked")
class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        result: Tensor = self.last(hidden - hidden.mean(0))
        return result


# ------------------------------------------------------------------------------------------------ random


class LayerDrop(nn.Module):
    """A layer that is left out by the toss of a coin, of Python's or torch's."""

    def __init__(self, coin: Callable[[], bool]) -> None:
        super().__init__()
        self.coin = coin
        self.first, self.dropped, self.last = nn.Linear(WIDTH, 4), nn.Linear(4, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        if not self.training or self.coin():
            x = x + self.dropped(x)
        result: Tensor = self.last(x)
        return result


class WholeBatchDepth(nn.Module):
    """A branch that is left out for all records or for none, as torchvision's StochasticDepth in mode "batch"."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.branch, self.last = nn.Linear(WIDTH, 4), nn.Linear(4, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        result: Tensor = self.last(x + self.branch(x) * (torch.rand(1, 1) < 0.5).to(x.dtype))
        return result


COINS: dict[str, Callable[[], bool]] = {
    "python": lambda: random.random() < 0.5,
    "torch": lambda: bool(torch.rand([]) < 0.5),
}

"""Small networks of many kinds, each with a batch for it, to be differentiated record by record."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import rnn
from torch.utils.checkpoint import checkpoint

from tests.gradients.small_models import Model

RECORDS, LENGTH, WIDTH, WORDS = 3, 4, 6, 11
IMAGE, SEQUENCE, ROW = (3, 8, 8), (LENGTH, WIDTH), (WIDTH,)  # shapes of one record
ALL = ("ghost", "materialised", "hooked")


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


def add(name: str, inputs: Callable[[], Any], build: Callable[[], nn.Module], *refused_by: str) -> None:
    ZOO[name] = Network(build, inputs, frozenset(refused_by))


def network(
    name: str, inputs: Callable[[], Any], refused_by: tuple[str, ...] = (), **parts: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds a network of these parts, run by the function that this decorates."""

    def put(run: Callable[..., Any]) -> Callable[..., Any]:
        add(name, inputs, lambda: made(run, **parts), *refused_by)
        return run

    return put


def made(run: Callable[..., Any], **parts: Any) -> Any:
    """A pair of sizes is a linear layer, a list the shape of a parameter, and a function makes anything else."""
    kinds: dict[type, Callable[[Any], Any]] = {
        tuple: lambda sizes: nn.Linear(*sizes),
        list: lambda shape: nn.Parameter(torch.randn(shape)),
    }
    return Model(run, **{name: kinds.get(type(part), lambda make: make())(part) for name, part in parts.items()})


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs)


# ---------------------------------------------------------------------------------------------- images


def attention() -> nn.Module:
    """As in timm: one product for queries, keys and values."""

    def run(model: Any, x: Tensor) -> Any:
        q, k, v = model.qkv(x).reshape(*x.shape[:2], 3, 2, -1).permute(2, 0, 3, 1, 4).unbind(0)
        out = functional.scaled_dot_product_attention(q, k, v)
        return model.proj(out.transpose(1, 2).reshape(x.shape))

    return Model(run, qkv=linear(WIDTH, 3 * WIDTH), proj=linear(WIDTH, WIDTH))


def block(*, has_scale: bool) -> nn.Module:
    def run(model: Any, x: Tensor) -> Any:
        attended = model.attn(model.norm1(x))
        x = x + (model.gamma * attended if has_scale else attended)
        return x + model.mlp(model.norm2(x))

    scale = {"gamma": nn.Parameter(torch.full((WIDTH,), 0.5))} if has_scale else {}
    mlp = nn.Sequential(linear(WIDTH, 8), nn.GELU(), linear(8, WIDTH))
    return Model(run, norm1=nn.LayerNorm(WIDTH), norm2=nn.LayerNorm(WIDTH), attn=attention(), mlp=mlp, **scale)


def vision_transformer(*, has_scale: bool = False) -> dict[str, Any]:
    return {
        "embed": lambda: nn.Conv2d(3, WIDTH, 4, stride=4),
        "token": [1, 1, WIDTH],
        "positions": [1, 5, WIDTH],
        "blocks": lambda: nn.Sequential(block(has_scale=has_scale), block(has_scale=has_scale)),
        "norm": lambda: nn.LayerNorm(WIDTH),
        "head": (WIDTH, 5),
    }


@network("vit with registers and layer scale", reals(*IMAGE), **vision_transformer(has_scale=True))
@network("vit", reals(*IMAGE), **vision_transformer())
def _vit(model: Any, x: Tensor) -> Any:
    x = model.embed(x).flatten(2).transpose(1, 2)
    x = torch.cat([model.token.expand(x.shape[0], -1, -1), x], 1) + model.positions
    return model.head(model.norm(model.blocks(x))[:, 0])


@network("vit with positions by number", reals(*IMAGE), table=lambda: nn.Embedding(5, WIDTH), **vision_transformer())
def _positions_by_number(model: Any, x: Tensor) -> Any:
    """Positions are looked up once for all records."""
    x = model.embed(x).flatten(2).transpose(1, 2)
    x = torch.cat([model.token.repeat(x.shape[0], 1, 1), x], 1)
    x = x + model.table(torch.arange(5).unsqueeze(0)) + model.positions
    return model.head(model.norm(model.blocks(x)).mean(1))


def convnext_block() -> nn.Module:
    def run(model: Any, x: Tensor) -> Any:
        y = model.norm(model.depthwise(x).permute(0, 2, 3, 1))
        return x + (model.gamma * model.last(functional.gelu(model.first(y)))).permute(0, 3, 1, 2)

    layers = {"first": linear(WIDTH, 8), "last": linear(8, WIDTH), "norm": nn.LayerNorm(WIDTH)}
    depthwise = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH)
    return Model(run, **layers, depthwise=depthwise, gamma=nn.Parameter(torch.full((WIDTH,), 0.1)))


add(
    "convnext",
    reals(*IMAGE),
    lambda: nn.Sequential(
        nn.Conv2d(3, WIDTH, 4, stride=4), convnext_block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear(6, 5)
    ),
)


@network(
    "swin windows",
    reals(*IMAGE),
    embed=lambda: nn.Conv2d(3, WIDTH, 2, stride=2),
    attn=attention,
    table=[4, WIDTH],
    index=lambda: torch.arange(4).flip(0),
    head=(WIDTH, 5),
)
def _windows(model: Any, x: Tensor) -> Any:
    """Windows are folded into the record axis, and a table of relative positions is read by number."""
    x = model.embed(x)
    windows = x.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 4, 5, 1).reshape(-1, 4, WIDTH)
    return model.head(model.attn(windows + model.table[model.index]).reshape(x.shape[0], -1, WIDTH).mean(1))


def squeeze_excite() -> nn.Module:
    def run(model: Any, x: Tensor) -> Any:
        return x * torch.sigmoid(model.last(functional.silu(model.first(x.mean((2, 3), keepdim=True)))))

    return Model(run, first=nn.Conv2d(8, 2, 1), last=nn.Conv2d(2, 8, 1))


add(
    "mobile net",
    reals(*IMAGE),
    lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
        nn.GroupNorm(2, 8),
        nn.Hardswish(inplace=True),
        nn.Conv2d(8, 8, 3, padding=1, groups=8),
        nn.SiLU(inplace=True),
        squeeze_excite(),
        nn.Conv2d(8, 4, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        linear(4, 5),
    ),
)


def resnet(norm: Callable[[], nn.Module]) -> nn.Module:
    def run(model: Any, x: Tensor) -> Any:
        y = model.norm2(model.conv2(functional.relu(model.norm1(model.conv1(x)))))
        return functional.relu(x + model.gain * y)

    convolutions = {f"conv{at}": nn.Conv2d(4, 4, 3, padding=1) for at in (1, 2)}
    residual = Model(run, **convolutions, norm1=norm(), norm2=norm(), gain=nn.Parameter(torch.tensor(0.3)))
    return nn.Sequential(nn.Conv2d(3, 4, 3), residual, nn.Flatten(), linear(144, 5))


add("resnet of group norm", reals(*IMAGE), lambda: resnet(lambda: nn.GroupNorm(2, 4)))
add("resnet of instance norm", reals(*IMAGE), lambda: resnet(lambda: nn.InstanceNorm2d(4, affine=True)))
add("resnet of batch norm", reals(*IMAGE), lambda: resnet(lambda: nn.BatchNorm2d(4)), *ALL)


@network("capsules", reals(*IMAGE), primary=lambda: nn.Conv2d(3, 8, 4, stride=4), routes=[8, 5, 4, 4])
def _capsules(model: Any, x: Tensor) -> Any:
    votes = torch.einsum("bci,cdij->bcdj", model.primary(x).reshape(x.shape[0], 8, 4), 0.3 * model.routes)
    logits = torch.zeros_like(votes[..., 0])
    for _ in range(2):
        combined = (logits.softmax(2).unsqueeze(-1) * votes).sum(1)
        logits = logits + torch.einsum("bcdj,bdj->bcd", votes, combined)
    return combined.norm(dim=-1)


@network("mixer", reals(*SEQUENCE), tokens=(LENGTH, LENGTH), channels=(WIDTH, WIDTH), alpha=[WIDTH])
def _mixer(model: Any, x: Tensor) -> Any:
    x = x * model.alpha
    return model.channels(x + model.tokens(x.transpose(1, 2)).transpose(1, 2)).mean(1)


# ------------------------------------------------------------------------------------------ recurrent


def recurrent(cell: nn.RNNBase) -> nn.Module:
    def run(model: Any, x: Tensor) -> Any:
        states = model.cell(x if cell.batch_first else x.transpose(0, 1))[0]
        return model.head(states[:, -1] if cell.batch_first else states.mean(0))

    return Model(run, cell=cell, head=linear(cell.hidden_size * (1 + cell.bidirectional), 5))


for _kind in (nn.LSTM, nn.GRU, nn.RNN):
    for _settings in ({"batch_first": True}, {"bidirectional": True, "num_layers": 2}):
        add(
            f"{_kind.__name__} {' '.join(_settings)}",
            reals(*SEQUENCE),
            lambda kind=_kind, settings=_settings: recurrent(kind(WIDTH, 4, **settings)),  # type: ignore[misc]
        )


@network(
    "packed sequences",
    lambda: (words(), mask().sum(1)),
    refused_by=("hooked",),
    table=lambda: nn.Embedding(WORDS, WIDTH, padding_idx=0),
    cell=lambda: nn.LSTM(WIDTH, 4, batch_first=True),
    head=(4, 5),
)
def _packed(model: Any, tokens: Tensor, lengths: Tensor) -> Any:
    packed = rnn.pack_padded_sequence(model.table(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False)
    return model.head(model.cell(packed)[1][0][-1])


@network("cells in a loop", reals(*SEQUENCE), cell=lambda: nn.GRUCell(WIDTH, 4), start=[4], head=(4, 5))
def _cells(model: Any, x: Tensor) -> Any:
    hidden = model.start.expand(x.shape[0], -1)
    for at in range(x.shape[1]):
        hidden = model.cell(x[:, at], hidden)
    return model.head(hidden)


@network("recurrence by linear layers", reals(*SEQUENCE), inner=(WIDTH, 4), outer=(4, 4), head=(4, 5))
def _by_hand(model: Any, x: Tensor) -> Any:
    hidden = x.new_zeros(x.shape[0], 4)
    for at in range(x.shape[1]):
        hidden = torch.tanh(model.inner(x[:, at]) + model.outer(hidden))
    return model.head(hidden)


# ----------------------------------------------------------------------------------------------- text


def _angles() -> Tensor:
    return torch.arange(LENGTH).unsqueeze(1) / 10.0 ** torch.arange(3).double()


@network(
    "rotary attention",
    reals(*SEQUENCE),
    cos=lambda: _angles().cos().repeat(1, 2),
    sin=lambda: _angles().sin().repeat(1, 2),
    causal=lambda: torch.full((LENGTH, LENGTH), -torch.inf).double().triu(1),
    qk=(WIDTH, 2 * WIDTH),
    v=(WIDTH, WIDTH),
    out=(WIDTH, 5),
)
def _rotary(model: Any, x: Tensor) -> Any:
    def turned(x: Tensor) -> Any:
        return x * model.cos + torch.cat([-x[..., 3:], x[..., :3]], -1) * model.sin

    q, k = model.qk(x).chunk(2, -1)
    scores = turned(q) @ turned(k).transpose(1, 2) / math.sqrt(WIDTH) + model.causal
    return model.out(scores.softmax(-1) @ model.v(x)).mean(1)


def encoder_layer(**settings: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, **settings)


@network("transformer with time first", reals(*SEQUENCE), layer=encoder_layer, head=(WIDTH, 5))
def _time_first(model: Any, x: Tensor) -> Any:
    return model.head(model.layer(x.transpose(0, 1)).mean(0))


@network(
    "transformer with padding",
    masked_words,
    table=lambda: nn.Embedding(WORDS, WIDTH, padding_idx=0),
    layers=lambda: nn.TransformerEncoder(encoder_layer(batch_first=True), 2, enable_nested_tensor=False),
    head=(WIDTH, 5),
)
def _padded(model: Any, input_ids: Tensor, attention_mask: Tensor) -> Any:
    hidden = model.layers(model.table(input_ids), src_key_padding_mask=attention_mask == 0)
    kept = attention_mask.unsqueeze(-1).to(hidden.dtype)
    return model.head((hidden * kept).sum(1) / kept.sum(1))


def _encoder_decoder() -> nn.Module:
    def run(model: Any, source: Tensor, target: Tensor) -> Any:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.float64)
        return model.head(model.body(model.table(source), model.table(target), tgt_mask=causal)).mean(1)

    body = nn.Transformer(WIDTH, 2, 1, 1, 8, dropout=0.0, batch_first=True)
    model: Any = Model(run, table=nn.Embedding(WORDS, WIDTH), body=body, head=nn.Linear(WIDTH, WORDS, bias=False))
    model.head.weight = model.table.weight
    return model  # type: ignore[no-any-return]


add("encoder and decoder", lambda: (words(), words()), _encoder_decoder)


POSITIONS: dict[str, Any] = {
    "table": lambda: nn.Embedding(WORDS, WIDTH),
    "positions": lambda: nn.Embedding(LENGTH, WIDTH),
    "head": (WIDTH, 5),
}


@network("positions for all records", words, **POSITIONS)
def _shared_positions(model: Any, tokens: Tensor) -> Any:
    return model.head(torch.tanh(model.table(tokens) + model.positions(torch.arange(LENGTH)[None]))).mean(1)


@network("positions of the first record", words, **POSITIONS)
def _first_positions(model: Any, tokens: Tensor) -> Any:
    """The positions that all records share are read from the first row, which is no record's own."""
    return model.head(torch.tanh(model.table(tokens) * model.positions(torch.arange(LENGTH)[None])[0])).mean(1)


@network("positions without a record axis", words, **POSITIONS)
def _bare_positions(model: Any, tokens: Tensor) -> Any:
    return model.head(torch.tanh(model.table(tokens) + model.positions(torch.arange(LENGTH)))).mean(1)


for _mode in ("sum", "mean", "max"):
    add(
        f"embedding bag {_mode}",
        words,
        lambda mode=_mode: nn.Sequential(  # type: ignore[misc]
            nn.EmbeddingBag(WORDS, WIDTH, mode=mode, sparse=mode == "sum"), linear(WIDTH, 5)
        ),
    )


@network(
    "embedding bag with offsets",
    lambda: (words(), mask().sum(1)),
    refused_by=("ghost", "hooked"),
    bag=lambda: nn.EmbeddingBag(WORDS, WIDTH),
    head=(WIDTH, 5),
)
def _offsets(model: Any, tokens: Tensor, lengths: Tensor) -> Any:
    """Bags of all records in one line: nothing says where a record ends."""
    return model.head(model.bag(tokens.flatten(), torch.arange(tokens.shape[0]) * tokens.shape[1]))


SPARSE: dict[str, Any] = {"table": lambda: nn.Embedding(WORDS, WIDTH, sparse=True), "head": (WIDTH, 5)}


@network("sparse embedding", words, **SPARSE)
def _sparse(model: Any, tokens: Tensor) -> Any:
    return model.head(model.table(tokens).mean(1))


@network("sparse embedding used by hand", words, ("hooked",), **SPARSE)
def _sparse_by_hand(model: Any, tokens: Tensor) -> Any:
    return model.head(functional.embedding(tokens, model.table.weight, sparse=True).mean(1))


@network(
    "gated state space",
    reals(*SEQUENCE),
    inner=(WIDTH, 2 * WIDTH),
    out=(WIDTH, 5),
    conv=lambda: nn.Conv1d(WIDTH, WIDTH, 2, padding=1, groups=WIDTH),
    a_log=[WIDTH],
    skip=[WIDTH],
)
def _state_space(model: Any, x: Tensor) -> Any:
    """Parameters of a scan beside linear layers, as in Mamba."""
    values, gate = model.inner(x).chunk(2, -1)
    values = functional.silu(model.conv(values.transpose(1, 2))[..., :LENGTH].transpose(1, 2))
    state, states = torch.zeros_like(values[:, 0]), []
    for at in range(LENGTH):
        state = state * torch.exp(-model.a_log.exp()) + values[:, at]
        states.append(state)
    return model.out((torch.stack(states, 1) + model.skip * values) * functional.silu(gate)).mean(1)


# ---------------------------------------------------------------------------------- parts by themselves


@network("tied autoencoder", reals(*ROW), encoder=(WIDTH, 3), bias=[WIDTH])
def _tied_autoencoder(model: Any, x: Tensor) -> Any:
    return functional.linear(torch.tanh(model.encoder(x)), model.encoder.weight.t(), model.bias)


@network(
    "prototypes and a temperature",
    reals(*ROW),
    features=(WIDTH, 4),
    prototypes=[5, 4],
    temperature=lambda: nn.Parameter(torch.tensor(2.0)),
)
def _prototypes(model: Any, x: Tensor) -> Any:
    return -model.temperature * torch.cdist(model.features(x), model.prototypes)


add("bilinear", lambda: (reals(*ROW)(), reals(*ROW)()), lambda: nn.Bilinear(WIDTH, WIDTH, 5))


SCALED: dict[str, Any] = {"first": (WIDTH, 4), "last": (4, 5), "scale": lambda: torch.linspace(0.5, 2, 4)}
COUNTED: dict[str, Any] = {**SCALED, "calls": lambda: torch.zeros((), dtype=torch.long)}


@network("a buffer in the backward pass", reals(*ROW), **SCALED)
def _scaled(model: Any, x: Tensor) -> Any:
    return model.last(torch.tanh(model.first(x)) * model.scale)


@network("a counter in a buffer", reals(*ROW), **COUNTED)
def _counter(model: Any, x: Tensor) -> Any:
    model.calls += 1
    return _scaled(model, x)


@network("a counter and a parameter", reals(*ROW), gain=[WIDTH], **COUNTED)
def _counter_beside(model: Any, x: Tensor) -> Any:
    return _counter(model, x * model.gain)


@network("a running mean in a buffer", reals(*ROW), ("hooked",), mean=lambda: torch.zeros(WIDTH).double(), **SCALED)
def _running_mean(model: Any, x: Tensor) -> Any:
    """What records leave in the buffer would be released without noise; only a loop of one's own releases it."""
    model.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
    return _scaled(model, x)


@network(
    "a layer that is called without arguments",
    reals(*ROW),
    layer=(WIDTH, WIDTH),
    tokens=lambda: Model(lambda model: model.own, own=nn.Parameter(torch.randn(5, WIDTH))),
)
def _without_arguments(model: Any, x: Tensor) -> Any:
    return model.layer(x) @ model.tokens().t()


@network(
    "nothing of it is used",
    reals(*ROW),
    refused_by=("hooked",),
    layer=(WIDTH, 5),
    frozen=lambda: linear(WIDTH, 5).requires_grad_(False),
)
def _unused(model: Any, x: Tensor) -> Any:
    """A trained layer of which no loss depends, beside one that is frozen."""
    result = model.frozen(x)
    return result if not torch.is_grad_enabled() else result + 0 * result.detach().requires_grad_()


@network("a branch on the values of a record", reals(*ROW), refused_by=("hooked",), first=(WIDTH, 5), second=(WIDTH, 5))
def _branch(model: Any, x: Tensor) -> Any:
    return torch.stack([(model.first if row.sum() > 0 else model.second)(row) for row in x])


# ------------------------------------------------------------------------------------ experts and graphs


EXPERTS: dict[str, Any] = {
    "gate": (WIDTH, 3),
    "experts": lambda: nn.ModuleList(linear(WIDTH, 5) for _ in range(3)),
}


@network("experts, all of them weighed", reals(*ROW), **EXPERTS)
def _weighed(model: Any, x: Tensor) -> Any:
    outputs = torch.stack([expert(x) for expert in model.experts], 2)
    return (outputs * model.gate(x).softmax(1).unsqueeze(1)).sum(2)


@network("experts, the best of them", reals(*ROW), ("hooked",), **EXPERTS)
def _routed(model: Any, x: Tensor) -> Any:
    weights, chosen = model.gate(x).softmax(1).max(1)
    outputs = x.new_zeros(x.shape[0], 5)
    for number, expert in enumerate(model.experts):
        rows = (chosen == number).nonzero().squeeze(1)
        if len(rows):
            outputs = outputs.index_copy(0, rows, weights[rows].unsqueeze(1) * expert(x[rows]))
    return outputs


@network(
    "experts as one stack of weights",
    reals(*SEQUENCE),
    gate=lambda: nn.Linear(WIDTH, 3, bias=False),
    weights=[3, WIDTH, 5],
)
def _stacked(model: Any, x: Tensor) -> Any:
    return torch.einsum("blw,ewo,ble->blo", x, model.weights, model.gate(x).softmax(-1)).mean(1)


@network(
    "graph convolution",
    lambda: (reals(*SEQUENCE)(), (torch.rand(RECORDS, LENGTH, LENGTH) < 0.5).double()),
    first=(WIDTH, 4),
    last=(4, 5),
    own=lambda: nn.Parameter(torch.tensor(0.5)),
)
def _graph(model: Any, nodes: Tensor, edges: Tensor) -> Any:
    """A graph in each record."""
    normalised = edges / edges.sum(-1, keepdim=True).clamp_min(1)
    return model.last(torch.relu(normalised @ model.first(nodes) + model.own * model.first(nodes))).sum(1)


@network(
    "graph attention over lists of edges",
    lambda: (reals(*SEQUENCE)(), torch.randint(LENGTH, (RECORDS, 2, 5))),
    layer=(WIDTH, 4),
    head=(4, 5),
    attention=[8],
)
def _graph_attention(model: Any, nodes: Tensor, edges: Tensor) -> Any:
    hidden = model.layer(nodes)
    source, target = (edges[:, at].unsqueeze(-1).expand(-1, -1, 4) for at in (0, 1))
    sent, received = hidden.gather(1, source), hidden.gather(1, target)
    weights = functional.leaky_relu(torch.cat([sent, received], -1) @ model.attention).exp().unsqueeze(-1)
    return model.head(torch.zeros_like(hidden).scatter_add(1, target, weights * sent)).mean(1)


BRANCH: dict[str, Any] = {"branch": lambda: nn.Sequential(linear(WIDTH, 4), nn.Tanh(), linear(4, 5))}


@network("siamese in one batch", lambda: {"left": reals(*ROW)(), "right": reals(*ROW)()}, **BRANCH)
def _siamese_together(model: Any, left: Tensor, right: Tensor) -> Any:
    one, other = model.branch(torch.cat([left, right], 0)).chunk(2, 0)
    return (one - other).abs()


@network("hypernetwork", lambda: (reals(*ROW)(), reals(3)()), maker=(3, 5 * WIDTH))
def _hypernetwork(model: Any, x: Tensor, condition: Tensor) -> Any:
    return torch.bmm(model.maker(condition).reshape(-1, 5, WIDTH), x.unsqueeze(2)).squeeze(2)


# ------------------------------------------------------------------- checkpoints, mixed records, random numbers


CHECKPOINTED: dict[str, Any] = {
    "block": lambda: nn.Sequential(linear(WIDTH, 8), nn.Tanh(), linear(8, WIDTH)),
    "head": (WIDTH, 5),
}


@network("checkpoints", reals(*ROW), ("hooked",), **CHECKPOINTED)
def _checkpoints(model: Any, x: Tensor) -> Any:
    return model.head(checkpoint(model.block, x, use_reentrant=False))


@network("reentrant checkpoints", reals(*ROW), ALL, **CHECKPOINTED)
def _reentrant(model: Any, x: Tensor) -> Any:
    return model.head(checkpoint(model.block, x.requires_grad_() if x.is_leaf else x, use_reentrant=True))


@network("mean over the batch", reals(*ROW), ("ghost", "hooked"), first=(WIDTH, 4), last=(4, 5))
def _centred(model: Any, x: Tensor) -> Any:
    hidden = model.first(x)
    return model.last(hidden - hidden.mean(0))


def with_coin(coin: Callable[[], bool]) -> Any:
    """A layer that is left out by the toss of a coin, of Python's or torch's."""

    def run(model: Any, x: Tensor) -> Any:
        x = torch.tanh(model.first(x))
        return model.last(x + model.dropped(x) if not model.training or model.coin() else x)

    return Model(run, coin=coin, first=linear(WIDTH, 4), dropped=linear(4, 4), last=linear(4, 5))


def whole_batch_depth() -> nn.Module:
    """A branch that is left out for all records or for none, as torchvision's StochasticDepth in mode "batch"."""

    def run(model: Any, x: Tensor) -> Any:
        x = torch.tanh(model.first(x))
        return model.last(x + model.branch(x) * (torch.rand(1, 1) < 0.5).to(x.dtype))

    return Model(run, first=linear(WIDTH, 4), branch=linear(4, 4), last=linear(4, 5))


COINS: dict[str, Callable[[], bool]] = {
    "python": lambda: random.random() < 0.5,
    "torch": lambda: bool(torch.rand([]) < 0.5),
}

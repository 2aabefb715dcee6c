# SPDX-License-Identifier: Apache-2.0
"""Modules as people write them, for deploy/export_torch.py --input; and what it must refuse."""
import math

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, PLACES, VOCAB, CLASSES, SIDE = 8, 2, 6, 11, 4, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        n, steps, width = x.size()
        q, k, v = self.qkv(self.ln1(x)).split(width, dim=2)
        q, k, v = (t.view(n, steps, HEADS, width // HEADS).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).contiguous().view(n, steps, width))
        return x + self.mlp(self.ln2(x))


class Gpt(nn.Module):
    """As nanoGPT has it."""

    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(PLACES + 2, WIDTH)
        self.blocks = nn.ModuleList([Block()])
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(0, ids.size(1), device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


class ByHand(nn.Module):
    """Two inputs; attention of matmul and softmax, and nn.MultiheadAttention."""

    def __init__(self):
        super().__init__()
        self.words, self.kinds = nn.Embedding(VOCAB, WIDTH), nn.Embedding(3, WIDTH)
        self.places = nn.Parameter(torch.randn(1, PLACES, WIDTH))
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(2 * WIDTH, CLASSES)
        self.attn = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def heads(self, x):
        return x.reshape(x.shape[0], x.shape[1], HEADS, -1).permute(0, 2, 1, 3)

    def forward(self, ids, types):
        x = self.words(ids) + self.kinds(types) + self.places
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        a = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(WIDTH / HEADS), dim=-1)
        x = self.norm(x + (a @ v).permute(0, 2, 1, 3).flatten(2))
        x = x - 0.5 * self.attn(x, x, x, need_weights=False)[0]
        first, rest = x[:, 0], x[:, 1:].mean(dim=1)
        return self.out(torch.cat([first, F.relu(rest)], dim=-1))


class Picture(nn.Module):
    """Branches of convolutions, a gate, halves that change places."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(3, 6, 1)
        self.bn, self.pool, self.gate = nn.BatchNorm2d(6), nn.AdaptiveAvgPool2d(1), nn.Linear(6, 6)
        self.fc = nn.Linear(6 * 4 * 4, CLASSES)

    def forward(self, x):
        y = F.relu(self.bn(self.a(x)) + self.b(x))
        y = y * torch.sigmoid(self.gate(self.pool(y).flatten(1))).unsqueeze(-1).unsqueeze(-1)
        u, v = y.chunk(2, dim=1)
        y = torch.cat((v, F.silu(u)), 1)[:, :, 2:6, 2:6]
        return self.fc(torch.flatten(y, 1))


class Encoder(nn.Module):
    """PyTorch's own layers, with a table of places [places, features] that is longer than a record;
    behind a place and behind the length of a record nothing is seen."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDTH), nn.Parameter(torch.randn(PLACES + 2, WIDTH))
        self.first = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, 0.0, batch_first=True, layer_norm_eps=1e-6)
        self.rest = nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.q, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.register_buffer("causal", torch.triu(torch.ones(PLACES, PLACES, dtype=torch.bool), 1))

    def forward(self, ids, lengths):
        x = self.words(ids) + self.places[: ids.shape[1]]
        hidden = torch.arange(ids.shape[1], device=ids.device)[None] >= lengths[:, None]
        x = self.first(x, src_key_padding_mask=hidden)
        x = self.rest(x, nn.Transformer.generate_square_subsequent_mask(ids.shape[1]), hidden)
        seen = (~hidden)[:, None, None, :] & ~self.causal
        q = self.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        x = x + F.scaled_dot_product_attention(q, q, q, attn_mask=seen).transpose(1, 2).flatten(2)
        return self.out(x)


class Ordinary(nn.Module):
    """What forward may do besides: a module twice, changes in place, zeros and every other place, a
    class token, a table that does not learn, numbers and a learned one, and a choice by a value."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.relu, self.shared = nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Linear(4, 4)
        self.token, self.alpha, self.fc = nn.Parameter(torch.randn(1, 1, 4)), nn.Parameter(torch.tensor(0.5)), nn.Linear(4, CLASSES)
        self.register_buffer("sines", torch.sin(torch.arange(20.0)).reshape(1, 5, 4))

    def forward(self, x):
        out = self.bn(self.conv(x))
        out += F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, 1))
        x = F.adaptive_avg_pool2d(self.relu(out), (2, 2)).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.size(0), -1, -1), x], dim=1)
        x = x + self.sines[:, :x.size(1)]
        x = self.shared(self.relu(self.shared(x)))
        gate = torch.sigmoid(self.alpha)
        x = gate * x[:, 0] + (1 - gate) * x.mean(dim=1)
        x = torch.where((x > 0.1) | (x < -0.2), x, 0.25)
        return self.fc(x)


class Everyday(nn.Module):
    """Frames that are joined with the records, a mask of padding by ids, a norm with two uses, rows
    of a parameter by constant numbers, exp and logsumexp."""

    def __init__(self):
        super().__init__()
        self.cnn = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 4))
        self.words, self.norm, self.attn = nn.Embedding(VOCAB, WIDTH), nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.near, self.scale, self.fc = nn.Parameter(torch.randn(2 * PLACES - 1, 1)), nn.Parameter(torch.tensor(0.1)), nn.Linear(WIDTH + 12, CLASSES)
        self.register_buffer("apart", torch.arange(PLACES)[None] - torch.arange(PLACES)[:, None] + PLACES - 1)

    def forward(self, ids, pixels):
        n, frames, h, w = pixels.shape
        seen = self.cnn(pixels.reshape(n * frames, 1, h, w)).view(n, -1)
        padded = ids == 0
        x = self.norm(self.words(ids))
        x = self.norm(x + self.attn(x, x, x, key_padding_mask=padded)[0])
        scores = x @ x.transpose(1, 2) + self.near[self.apart.view(-1)].view(PLACES, PLACES)
        a = torch.softmax(scores.masked_fill(padded.unsqueeze(1), -1e9), dim=-1)
        x = a @ x * (~padded).unsqueeze(-1)
        return self.fc(torch.cat([torch.logsumexp(x, 1) * self.scale.exp(), seen], dim=1))


NETS = {"ordinary": (Ordinary, ["pixels:f32:3x8x8"]), "gpt": (Gpt, ["ids:i64:6"]), "byhand": (ByHand, ["ids:i64:6", "types:i64:6"]),
        "encoder": (Encoder, ["ids:i64:6", "lengths:i64"]), "picture": (Picture, ["pixels:f32:3x8x8"]),
        "everyday": (Everyday, ["ids:i64:6", "pixels:f32:3x8x8"])}


def net(name):
    torch.manual_seed(7)
    return NETS[name][0]().train()


# ---- what cannot be a session -----------------------------------------

class Calls(nn.Module):
    """One linear layer, and whatever is done with its value."""

    def __init__(self, then):
        super().__init__()
        self.q, self.then = nn.Linear(4, 4), then
        self.table = nn.Parameter(torch.zeros(2, 4))

    def forward(self, x):
        return self.then(self, self.q(x))


def changed_view(q):
    part = q[:, :1]
    part.add_(1)
    return q + 1


def masked(m, q):
    q = q.unsqueeze(1)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=torch.eye(3, dtype=torch.bool))


def layer(**more):
    return nn.TransformerEncoderLayer(4, 2, 4, **{"batch_first": True, **more})


def by_lengths(compare, use):
    """A module with an input of lengths, and what attention makes of the comparison."""
    class Lengths(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.attn = nn.Linear(4, 4), nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x, lengths):
            return use(self, self.q(x), compare(torch.arange(3)[None], lengths[:, None]))

    return Lengths()


def padding(m, q, mask):
    return m.attn(q, q, q, key_padding_mask=mask)[0]


def seen(m, q, mask):
    q = q.unsqueeze(1)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def both_ways(m, q):
    return q if q.sum() > 0 else -q


REFUSED = [
    (lambda m, q: torch.sin(q), r"'sin' \(traced_nets.py:\d+\): sin is no layer, nor several; export_torch.py --list"),
    (masked, r"'scaled_dot_product_attention' .*: attn_mask of its own; what there is: causal ones, and torch.arange"),
    (both_ways, r"'bool' \(traced_nets.py:\d+\): a number of a tensor, which decides something: a session does one"),
    (lambda m, q: torch.sin(q) + torch.log(q).sum(0), r"'sin' .*\n'log' "),
    (lambda m, q: torch.sin(torch.sin(q)).mean(0) + 1, r"^'sin' \(traced_nets.py:\d+, and 1 more times\): [^\n]*$"),
    (lambda m, q: q + q.size(0), r"'add' depends on the number of records in a batch; use a constant"),
    (lambda m, q: q * torch.rand(4), r"'mul' .*random numbers that forward draws; a session draws those of nn.Dropout alone"),
    (lambda m, q: q.detach(), r"'detach' .*computes the gradient of all that it computes; freeze parameters"),
    (lambda m, q: changed_view(q), r"'add' .*a tensor of which a view was changed in place since; write that without '_'"),
    (lambda m, q: q.reshape(-1, 4), r"'output' .*an output of records that a reshape has joined with another dimension; reshape it back"),
    (lambda m, q: q.reshape(-1, 4).mean(0), r"'mean' .*mean of records that a reshape has joined with another dimension; reshape it back before, x.view\(b, t"),
    (lambda m, q: q.reshape(1, -1), r"'reshape' .*it joins or divides records of a batch"),
    (lambda m, q: m.table[torch.tensor([0, 1, 1])].softmax(0) + q, r"'softmax' .*: softmax of what is made of a parameter alone"),
    (lambda m, q: q + torch.randn_like(q), r"'randn_like' .*Make them an input of their own, --input noise:f32:EXTENTS"),
    (lambda m, q: q.masked_fill(q > 0, float("-inf")).sum(1), r"'sum' .*: masked_fill with -inf where records decide; softmax\(dim=-1\) comes next"),
    (lambda m, q: q.transpose(0, 1), r"'output' .*an output with the records in its second dimension; transpose\(0, 1\) it"),
    (lambda m, q: torch.sigmoid(q.permute(2, 1, 0)), r"'permute' .*a permutation that moves the records"),
    (lambda m, q: q.mean(0), r"'mean' .*a mean over the records of a batch"),
    (lambda m, q: q + m.table, r"'add' .*values of \[11, 3, 4\] and \[11, 2, 4\]; they need as many dimensions"),
    (lambda m, q: (q, q), r"'output' .*an output that is not one value"),
    (lambda m, q: q.reshape(-1, 1, 1, 1, 1, 1, 1, 1, 12), r"'reshape' .*a reshape gives 2 to 8 dimensions"),
    (lambda m, q: q + q.mean(1), r"'add' .*values of \[11, 3, 4\] and \[11, 4\]; they need as many"),
    (lambda m, q: q[:, 1:1], r"'getitem' .*the empty range 1..1"),
]

def twice(make):
    """A module that is called twice, over x:f32:3x4."""
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.m = make()

        def forward(self, x):
            return self.m(self.m(x))

    return Twice()


SHARED = [  # over x:f32:3x4
    (lambda: twice(lambda: nn.BatchNorm1d(3)), r"'m' \(traced_nets.py:\d+\): a second use of the parameters of 'm' \(BatchNorm1d\); .*, so give each place a BatchNorm1d of its own"),
    (lambda: twice(lambda: torch.nn.utils.weight_norm(nn.Linear(4, 4))), r"'m' \(traced_nets.py:\d+\): hooks \(torch.nn.utils.remove_weight_norm leaves the plain weight\), which no layer has"),
    (lambda: twice(lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4))), r"parametrizations of weight \(torch.nn.utils.parametrize.remove_parametrizations leaves the plain tensor\)"),
]

ENCODERS = [  # nn.Sequential of these, traced over x:f32:3x4
    (lambda: layer(batch_first=False), r"'0' .*: batch_first=False; make the module with batch_first=True"),
    (lambda: layer(activation=torch.tanh), r"the activation tanh; there are relu, gelu and silu"),
    (lambda: nn.TransformerDecoderLayer(4, 2, 4), r"TransformerDecoderLayer: of PyTorch's transformers there is TransformerEncoder"),
]

MASKS = [  # over x:f32:3x4 and lengths:i64
    (lambda: by_lengths(torch.gt, padding), r"'gt' .*: a comparison that counts one place more or less; what there is: causal"),
    (lambda: by_lengths(torch.lt, padding), r"key_padding_mask the wrong way round: there True is what is hidden"),
    (lambda: by_lengths(torch.lt, seen), r"attn_mask of the shape \[11, 3\], where \[11, 1, 1, 3\] is needed"),
    (lambda: by_lengths(lambda i, n: i + 1 < n, padding), r"a comparison with other numbers than 0, 1, 2"),
    (lambda: by_lengths(lambda i, n: (i < n).float(), padding), r"'float' .*: a change from torch.bool to torch.float32"),
    (lambda: by_lengths(lambda i, n: (i < n) & torch.eye(3, dtype=torch.bool), padding), r"'and' .*: a mask of its own"),
]

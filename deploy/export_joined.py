# SPDX-License-Identifier: Apache-2.0
"""Tensors that are no [N, ...]. Those whose first dimension is the records and another one
together, as x.view(b * t, c, h, w) makes them: a network for each frame, a window or a step. The
value of a session keeps both apart. A convolution sees the frames one above the other, with rows of
zeros between them. And what is made of a parameter alone: its value is the same for each record."""
import torch
from torch import nn

from export_values import Run, Unsupported, Weight, leaves, mapped, need


def zeros(shape, dtype=torch.float32):
    return torch.zeros((), dtype=dtype).expand([int(n) for n in shape])


class Joined(Run):
    """A tensor with a dimension of records and `times` others; its value is [N, times, ...]. outer:
    whether the records are the outer ones. place: that dimension of the tensor."""

    def __init__(self, data, value, times, outer, place=0):
        super().__init__(data, value)
        self.times, self.outer, self.place = times, outer, place

    def inner(self):
        """The value as a tensor, with both dimensions first."""
        rest = [n for d, n in enumerate(self.data.shape) if d != self.place]
        return Run(zeros([self.value.shape[0], self.times, *rest], self.data.dtype), self.value)

    def like(self, run, place=0):
        """What a function of inner() gives, with both dimensions in one again."""
        rest = list(run.data.shape[2:])
        return Joined(zeros([*rest[:place], self.data.shape[self.place], *rest[place:]], run.data.dtype), run.value, self.times, self.outer, place)


class Lone(Run):
    """What a function gives of a parameter alone; its value is [N, ...] all the same."""

    def beside(self, t, rank):
        """The value beside one of `rank` dimensions, the records among them."""
        shape = list(self.data.shape)
        need(len(shape) < rank or len(shape) == rank and shape[0] == 1, f"{shape} of a parameter beside {rank} dimensions")
        shape = [1] * (rank - 1 - len(shape)) + shape if len(shape) < rank else shape[1:]
        n = self.value.shape[0]
        return Run(zeros([n, *shape], self.data.dtype), t.reshape(self.value, [n, *shape]))


def joins(x, data):
    """How many times the records a reshape of x has in its first dimension; 0: it is no such."""
    n = x.value.shape[0]
    return data.shape[0] // n if x.at == 0 and data.dim() > 1 and data.shape[0] > n and data.shape[0] % n == 0 else 0


def reshape_value(t, x, shape):
    """A value of exactly this shape: [N, times] of numbers has no dimension more."""
    return t.reshape(x, [int(n) for n in shape])


def join(t, x, data):
    """x, whose records are first (or second), reshaped to data, whose first dimension has them."""
    times = data.shape[0] // x.value.shape[0]
    return Joined(data, reshape_value(t, x.value, [x.value.shape[0], times, *data.shape[1:]]), times, not x.at)


HINT = "of records that a reshape has joined with another dimension"
# Functions of each number alone, and those that take a dimension: {name: position of it}.
ALONE = {"add", "iadd", "radd", "sub", "rsub", "isub", "mul", "imul", "rmul", "truediv", "div", "itruediv", "neg", "pow", "sqrt", "rsqrt", "exp", "abs", "square", "dropout", "contiguous", "clone", "to",
         "float", "type_as", "clamp", "clamp_min", "clamp_max", "clip", "maximum", "minimum", "linear", "layer_norm", "embedding", "matmul", "bmm", "rmatmul"}
ALONG = {"softmax": 1, "log_softmax": 1, "mean": 1, "sum": 1, "max": 1, "min": 1, "cat": 1, "concat": 1, "chunk": 2, "split": 2, "narrow": 1, "unbind": 1, "flip": 1, "cumsum": 1, "var": 1, "std": 1,
         "logsumexp": 1, "normalize": 2}
WEIGHTED = {"linear", "layer_norm", "embedding", "matmul", "bmm", "rmatmul"}
SHAPED = {"view", "reshape", "flatten", "squeeze", "unsqueeze", "unflatten", "view_as", "reshape_as"}
MOVED = {"permute", "transpose", "swapaxes", "swapdims", "movedim"}
POOLS = {"max_pool2d", "avg_pool2d", "max_pool1d", "avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool1d", "adaptive_max_pool2d", "adaptive_max_pool1d", "interpolate"}


def in_joined(t, name, function, args, kwargs, order_of, elementwise):
    """A function of such tensors: that of their inner ones, a dimension later. elementwise: names
    of further functions of each number alone."""
    x = next(a for a in leaves([args, kwargs]) if isinstance(a, Joined))
    hint = f"{name} {HINT}; reshape it back before, x.view(b, t, ...)"
    if name.startswith("new_"):
        return t.call(name, function, [x.inner(), *args[1:]], kwargs)
    for a in leaves([args, kwargs]):
        alike = not isinstance(a, Run) or isinstance(a, Lone) or isinstance(a, Joined) and (a.times, a.outer, a.place) == (x.times, x.outer, x.place)
        need(alike, hint)
    if name in SHAPED:
        return shaped(t, x, function, args, kwargs, hint)
    if name in MOVED:
        return moved(t, x, order_of(function, x.data.dim(), *args[1:], **kwargs))
    if name == "getitem":
        return item(t, x, args[1], hint)
    need(x.place == 0, hint)
    if name in POOLS:
        return channelwise(t, x, lambda y: t.call(name, function, [y, *args[1:]], kwargs))
    if name in ALONG:
        args, kwargs = shifted(x, name, args, kwargs, hint)
    else:
        need(name in ALONE or name in elementwise and "pool" not in name, hint)
    inner = (lambda a: a.inner() if isinstance(a, Joined) else a) if name in WEIGHTED else lambda a: inner_of(t, x, a, hint)
    made = t.call(name, function, *mapped(inner, [args, kwargs]))
    return mapped(lambda y: x.like(y) if isinstance(y, Run) else y, made)


def inner_of(t, x, a, hint):
    """An argument beside inner tensors: a constant of as many dimensions has one more."""
    if isinstance(a, Joined):
        return a.inner()
    if isinstance(a, Lone):
        return a.beside(t, 1 + x.data.dim())
    if isinstance(a, (torch.Tensor, Weight)) and (a.data if isinstance(a, Weight) else a).dim() == x.data.dim():
        plain = a.data if isinstance(a, Weight) else a
        need(plain.shape[0] == 1 and not (isinstance(a, Weight) and a.then), hint)
        return Weight(plain.unsqueeze(0), a.name, a.whole, a.learns) if isinstance(a, Weight) else plain.unsqueeze(0)
    return a


def shaped(t, x, function, args, kwargs, hint):
    plain = mapped(lambda a: a.data if isinstance(a, Run) else a, [args[1:], kwargs])
    data, n = function(x.data, *plain[0], **plain[1]), x.value.shape[0]
    need(x.place == 0, hint)
    if data.dim() and data.shape[0] == n * x.times:
        return Joined(data, reshape_value(t, x.value, [n, x.times, *data.shape[1:]]), x.times, x.outer)
    if not x.outer:
        need(list(data.shape[:2]) == [x.times, n], hint)
        return Run(data, reshape_value(t, x.value, [n, x.times, *data.shape[2:]]), 1)
    need(data.dim() and data.shape[0] % n == 0, hint)
    if data.shape[0] == n:
        return Run(data, t.reshape(x.value, list(data.shape)))
    times = data.shape[0] // n
    return Joined(data, reshape_value(t, x.value, [n, times, *data.shape[1:]]), times, True)


def moved(t, x, order):
    """The value has the records and `times` first, whatever the tensor's order."""
    axes = list(range(2, 1 + x.data.dim()))
    axes.insert(x.place, 0)
    axes = [axes[o] for o in order]
    place = axes.index(0)
    value = t.permute(x.value, [0, 1, *(a for a in axes if a)])
    return Joined(x.data.permute(list(order)), value, x.times, x.outer, place)


def item(t, x, index, hint):
    index = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in index:
        k = index.index(Ellipsis)
        index[k:k + 1] = [slice(None)] * (x.data.dim() - sum(i is not None for i in index) + 1)
    index += [slice(None)] * (x.data.dim() - sum(i is not None for i in index))
    need(all(i is None or isinstance(i, (int, slice)) for i in index), hint)
    dims = [k for k, i in enumerate(index) if i is not None]  # of the tensor's dimensions
    at = dims[x.place]
    need(index[at] == slice(None), hint)
    place = sum(not isinstance(i, int) for i in index[:at])
    made = t.call("getitem", torch.Tensor.__getitem__, [x.inner(), (slice(None), slice(None), *index[:at], *index[at + 1:])], {})
    return x.like(made, place)


def shifted(x, name, args, kwargs, hint):
    """Its dimensions, one later, since two stand for the first."""
    args, kwargs, at, rank = list(args), dict(kwargs), ALONG[name], x.data.dim()
    key = next((k for k in ("dim", "axis", "dims") if k in kwargs), None)
    default = {"normalize": 1}.get(name, 0)
    given = kwargs[key] if key else args[at] if len(args) > at else default

    def later(d):
        need(isinstance(d, int) and d % rank != 0, hint)
        return d % rank + 1
    new = type(given)(later(d) for d in given) if isinstance(given, (list, tuple)) else later(given)
    if key or len(args) <= at:
        kwargs[key or "dim"] = new
    else:
        args[at] = new
    return args, kwargs


def channelwise(t, x, over):
    """A function that takes each channel alone: all channels of all frames are channels."""
    s, n = x.data.shape, x.value.shape[0]
    need(x.data.dim() > 2, f"a pool {HINT}")
    flat = Run(zeros([n, x.times * s[1], *s[2:]]), t.reshape(x.value, [n, x.times * s[1], *s[2:]]))
    made = over(flat)
    shape = [n, x.times, s[1], *made.data.shape[2:]]
    return x.like(Run(zeros(shape), t.reshape(made.value, shape)))


# ---- of parameters alone

def in_lone(t, name, function, args, kwargs, order_of, elementwise):
    """A function of such tensors, or of one beside a value of records."""
    x = next(a for a in leaves([args, kwargs]) if isinstance(a, Lone))
    partner = next((a for a in leaves([args, kwargs]) if isinstance(a, Run) and not isinstance(a, Lone)), None)
    hint = f"{name} of what is made of a parameter alone"
    if partner is not None:
        need(name in ALONE and name not in WEIGHTED or name in elementwise, hint)
        return t.call(name, function, *mapped(lambda a: a.beside(t, partner.data.dim()) if isinstance(a, Lone) else a, [args, kwargs]))
    n = x.value.shape[0]
    if name in SHAPED:
        data = function(x.data, *args[1:], **kwargs)
        return Lone(data, reshape_value(t, x.value, [n, *data.shape]))
    if name in MOVED:
        order = order_of(function, x.data.dim(), *args[1:], **kwargs)
        return Lone(x.data.permute(list(order)), t.permute(x.value, [0, *(o + 1 for o in order)]))
    need(name in ALONE and name not in WEIGHTED or name in elementwise and "pool" not in name, hint)
    rank = 1 + max(a.data.dim() for a in leaves([args, kwargs]) if isinstance(a, Lone))
    made = t.call(name, function, *mapped(lambda a: a.beside(t, rank) if isinstance(a, Lone) else a, [args, kwargs]))
    return Lone(zeros(made.data.shape[1:]), made.value)


def rows_of_parameter(t, w, index):
    """Rows of a parameter by numbers that no record changes: a product with ones and zeros."""
    beside = t.any_run(w.name)
    n, (rows, width) = beside.value.shape[0], w.data.shape
    v = t.permute(t.reshape(t.block(w, w.data, beside), [n, rows, width]), [0, 2, 1])
    name = t.unique(f"{w.name}.rows", False)
    t.names.discard(name)
    t.frozen.append(name)
    made = t.linear(v, name, torch.nn.functional.one_hot(index.flatten() % rows, rows).float(), None)
    shape = [*index.shape, width]
    return Lone(zeros(shape), reshape_value(t, t.permute(made, [0, 2, 1]), [n, *shape]))


# ---- modules

def joined_module(t, m, path, x, padded):
    """A module over such a tensor. padded: adds zeros to a dimension of a value."""
    need(x.place == 0, f"{type(m).__name__} {HINT}, which is not the first one")
    if isinstance(m, (nn.Linear, nn.LayerNorm, nn.Embedding, nn.Dropout)) or type(m).__name__ == "RMSNorm":
        return x.like(t.one_layer(m, path, x.inner()))
    if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d)):
        return over_all(t, m, path, x)
    if isinstance(m, (nn.Conv1d, nn.Conv2d)):
        return stacked(t, m, path, x, padded)
    raise Unsupported(f"{type(m).__name__} {HINT}; there are linear layers, norms of rows and of batches, convolutions, pools and functions of each number")


def over_all(t, m, path, x):
    """A batch norm over the places of all frames: [N, C, times * H, W]."""
    s, n = list(x.data.shape), x.value.shape[0]
    v = t.permute(x.value, [0, 2, 1, *range(3, 1 + len(s))])
    shape = [n, s[1], x.times * s[2], *s[3:]] if len(s) > 2 else [n, s[1], x.times]
    made = t.one_layer(m, path, Run(zeros(shape), t.reshape(v, shape)))
    v = t.reshape(made.value, [n, s[1], x.times, *s[2:]])
    return x.like(Run(zeros([n, x.times, *s[1:]]), t.permute(v, [0, 2, 1, *range(3, 1 + len(s))])))


def stacked(t, m, path, x, padded):
    """A convolution over [N, C, times * rows, W]. The rows of a frame are its own, its padding, and
    as many as the stride needs; rows of the output that reach over two frames are left out."""
    s, n, places = list(x.data.shape), x.value.shape[0], len(m.kernel_size)
    need(len(s) == 2 + places, f"an input of rank {len(s)}")
    layer, _ = t.layer_of(m, len(s))
    layer = dict(layer)
    op, pads = layer.pop("op"), layer.get("pad", 0)
    pads = list(pads) if isinstance(pads, (list, tuple)) else [pads] * places
    step, reach = m.stride[0], m.dilation[0] * (m.kernel_size[0] - 1) + 1
    rows = s[2] + 2 * pads[0]
    pitch, out = -(-rows // step) * step, (rows - reach) // step + 1
    need(out > 0, f"a kernel of {reach} rows over {rows}")
    v = t.permute(x.value, [0, 2, 1, *range(3, 1 + len(s))])
    v = padded(t, v, 3, pads[0], pitch - s[2] - pads[0], "constant")
    v = t.reshape(v, [n, s[1], x.times * pitch, *s[3:]])
    v = padded(t, v, 2, 0, max(0, reach - step), "constant")
    layer["pad"] = [0, pads[1]] if places == 2 else 0
    width = [] if places == 1 else [(s[3] + 2 * pads[1] - m.dilation[1] * (m.kernel_size[1] - 1) - 1) // m.stride[1] + 1]
    shape = [n, m.out_channels, x.times * pitch // step, *width]
    made = t.with_weights(m, path, Run(zeros(v.shape), v), zeros(shape), op, layer)
    v = t.reshape(made.value, [n, m.out_channels, x.times, pitch // step, *width])
    v = t.permute(t.cut(v, 3, 0, out), [0, 2, 1, *range(3, 1 + len(s))])
    return x.like(Run(zeros([n, x.times, m.out_channels, out, *width]), v))

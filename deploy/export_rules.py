# SPDX-License-Identifier: Apache-2.0
"""What a function or a module of PyTorch is among the layers of a session. export_traced.py calls
these rules; each raises Unsupported with what is in the way and what to write instead."""
import inspect
import math
import operator
import re
from collections import namedtuple

import torch
from torch import nn
from torch.nn import functional as F

from export_joined import Joined, join, joined_module, joins
from export_values import Absent, Again, Choice, Column, Ends, Hidden, HiddenBy, Mask, Missing, Ones, Records, Run, Spread, States, Unsupported, Weight, compared, leaves, mapped, need, need_layer, seen_by

METADATA = {"shape", "dtype", "device", "ndim", "is_cuda", "layout", "requires_grad", "is_sparse", "is_quantized", "is_mkldnn", "is_meta",
            "is_nested", "is_leaf", "names", "itemsize", "nbytes", "is_mps", "is_xpu", "is_cpu", "grad_fn", "is_vulkan", "is_ipu",
            "size", "dim", "numel", "nelement", "len", "stride", "is_contiguous", "is_floating_point", "is_complex", "element_size",
            "get_device", "ndimension", "repr", "format", "set_requires_grad", "storage_offset", "is_tensor", "is_inference"}
MAX_POOL = "kernel_size stride padding dilation ceil_mode return_indices"
AVG_POOL = "kernel_size stride padding ceil_mode count_include_pad divisor_override"
# Functions that are modules without parameters: {function: (module, names of its arguments)}.
FUNCTIONS = {
    **{f: (m, "") for f, m in (("relu", "ReLU"), ("silu", "SiLU"), ("sigmoid", "Sigmoid"), ("tanh", "Tanh"), ("relu6", "ReLU6"), ("hardswish", "Hardswish"),
                               ("hardsigmoid", "Hardsigmoid"), ("mish", "Mish"))},
    "gelu": ("GELU", "approximate"), "leaky_relu": ("LeakyReLU", "negative_slope"), "elu": ("ELU", "alpha"),
    "softplus": ("Softplus", "beta threshold"), "hardtanh": ("Hardtanh", "min_val max_val"),
    "max_pool2d": ("MaxPool2d", MAX_POOL), "avg_pool2d": ("AvgPool2d", AVG_POOL), "max_pool1d": ("MaxPool1d", MAX_POOL), "avg_pool1d": ("AvgPool1d", AVG_POOL),
    **{f"adaptive_{k}_pool{d}d": (f"Adaptive{k.title()}Pool{d}d", "output_size") for k in ("max", "avg") for d in (1, 2)},
}
# Classes of modules that need not be followed: they are named as they are.
NO_LAYERS = (nn.Transformer, nn.TransformerDecoder, nn.TransformerDecoderLayer)
SEVERAL = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)
RECURRENT = (nn.LSTM, nn.GRU)
NORMS = ("layernorm", "groupnorm", "rmsnorm")  # without statistics that training changes
SHARED = ("linear", "conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d", "embedding")


def whole(dim, rank):
    return dim % rank


def blank(shape, dtype=torch.float32):
    """A tensor of that shape, without memory: of a value only the shape counts."""
    return torch.zeros((), dtype=dtype).expand([int(n) for n in shape])


def broadcast(a, b):
    return blank(torch.broadcast_shapes(a.shape, b.shape))


def alone(shape):
    """As a value has it: a number of each record is [N, 1]."""
    return list(shape) if len(shape) > 1 else [*shape, 1]


# ---- sums and products

def check_alike(a, b):
    """What add and mul take. PyTorch also puts dimensions before those of the smaller one."""
    fits = len(a.shape) == len(b.shape) and a.shape[0] == b.shape[0]
    need(fits and all(1 in (n, m) or n == m for n, m in zip(a.shape[1:], b.shape[1:])),
         f"values of {list(a.shape)} and {list(b.shape)}; they need as many dimensions, each alike or 1: unsqueeze(1) the smaller one")


def weight_of(x):
    """A tensor that no layer makes, as a constant."""
    return Weight(x, None, x, False) if isinstance(x, torch.Tensor) else x


def beside(t, a, b):
    """(a, b) as values, one of which a layer has made; the other may be a number, a constant or a
    parameter."""
    a, b = weight_of(a), weight_of(b)
    run = a if isinstance(a, Run) else b
    need(isinstance(run, Run), "two tensors that no layer makes")

    def value(x):
        if isinstance(x, Run):
            return x
        need(not isinstance(x, Mask), "a mask of lengths as a number; it goes to attention")
        if isinstance(x, Weight) and x.data.dim() == 0 and not x.learns and not x.then:
            x = float(x.data)
        return t.weight(x, run) if isinstance(x, Weight) else t.number(x, run)
    return value(a), value(b)


def summed(t, a, b):
    check_alike(a, b)
    data = broadcast(a, b)
    return Run(data, t.emit("add", [a.value, b.value], alone(data.shape)))


def rule_add(t, a, b, *, alpha=1):
    if alpha != 1:
        b = rule_mul(t, b, alpha)
    left, right = (weight_of(v) for v in (a, b))
    for x, w in ((left, right), (right, left)):
        if isinstance(x, Run) and isinstance(w, Weight) and not w.learns and not w.then and w.data.is_floating_point() and bool((w.data == float("-inf")).any()):
            need(bool(((w.data == 0) | (w.data == float("-inf"))).all()), "a mask with other numbers than 0 and -inf")
            return hidden_by(x, w.data != 0)
    for x, w in ((left, right), (right, left)):
        if isinstance(x, Run) and isinstance(w, Weight) and is_table(x, w) and w.name not in t.split:
            return with_table(t, x, w)
        if isinstance(x, Run) and isinstance(w, (int, float)) and w == 0:
            return x
    return summed(t, *beside(t, a, b))


def rule_sub(t, a, b, *, alpha=1):
    if isinstance(b, (int, float)):
        if b == 1 and isinstance(a, Run) and (a.value.name, "i64", []) in t.inputs:
            return Ends(a.data, a.value)
        return rule_add(t, a, -b * alpha)
    if not isinstance(a, Run) and isinstance(b, Run):
        return rule_add(t, rule_mul(t, b, -alpha), a)
    if not isinstance(b, Run):
        w = weight_of(b)
        return rule_add(t, a, rule_mul(t, beside(t, a, w)[1], -alpha))
    return rule_add(t, a, rule_mul(t, b, -alpha))


def is_table(x, w):
    """Whether it is rows one after another of a table, a row a place of [N, places, features]."""
    s, whole_table = list(w.data.shape), w.whole
    if x.data.dim() != 3 or w.then or w.name is None or s[-2:] != list(x.shape[1:]) or whole_table.dim() < 2:
        return False
    if len(s) == 3 and s[0] != 1 and w.data.stride(0) != 0:
        return False
    rows = w.data[0] if len(s) == 3 else w.data
    width = whole_table.shape[-1]
    return width == s[-1] and rows.stride() == (width, 1) and whole_table.is_contiguous() and whole_table.dtype == torch.float32


def with_table(t, x, w):
    """[1, places, features] keeps its name; any other is the weight of a layer of it."""
    rows = w.whole.numel() // w.whole.shape[-1]
    first = (w.data.storage_offset() - w.whole.storage_offset()) // w.whole.shape[-1]
    more = {"offset": first} if first else {}
    data = x.data
    at, _, leaf = w.name.rpartition(".")
    if w.name in t.called or w.name in t.constants:
        t.split.add(w.name)
        raise Again
    t.called.add(w.name)
    if not w.learns:
        t.frozen.append(w.name)
    if leaf == "weight" and w.whole.dim() == 2:
        need(at not in t.names, f"a second use of '{at}'")
        return Run(data, t.emit("positions", [x.value], x.shape, at, rows=rows, **more))
    if w.whole.dim() == 3 and w.whole.shape[0] == 1 and w.learns:
        return Run(data, t.emit("positions", [x.value], x.shape, w.name, rows=rows, bare=True, **more))
    t.moved[f"{w.name}.weight"] = w.whole.reshape(rows, -1)
    t.taken.add(w.name)
    return Run(data, t.emit("positions", [x.value], x.shape, w.name, rows=rows, **more))


def rule_mul(t, a, b):
    if isinstance(a, (int, float)):
        a, b = b, a
    b = float(b.data) if isinstance(weight_of(b), Weight) and not weight_of(b).learns and not weight_of(b).then and weight_of(b).data.numel() == 1 and weight_of(b).data.dim() == 0 else b
    if isinstance(a, Run) and isinstance(b, (int, float)):
        return Run(a.data, t.scaled(a.value, b))
    a, b = beside(t, a, b)
    check_alike(a, b)
    data = broadcast(a, b)
    return Run(data, t.emit("mul", [a.value, b.value], alone(data.shape)))


def rule_div(t, a, b, *, rounding_mode=None):
    need(rounding_mode is None, f"rounding_mode={rounding_mode!r}")
    if isinstance(b, (int, float)):
        return rule_mul(t, a, 1 / b)
    if isinstance(weight_of(b), Weight) and not weight_of(b).learns:
        return rule_mul(t, a, 1 / weight_of(b).data)
    need("pow" in t.ops, "a division by a value; there is no op for it, so multiply by a number or a parameter instead")
    a, b = beside(t, a, b)
    return rule_mul(t, a, rule_pow(t, b, -1))


def rule_pow(t, x, exponent):
    need(isinstance(x, Run) and isinstance(exponent, (int, float)), "an exponent that is no number")
    if exponent in (1, 2, 3, 4):
        made = x
        for _ in range(int(exponent) - 1):
            made = rule_mul(t, made, x)
        return made
    need("pow" in t.ops, f"pow with exponent {exponent}; there is no op for it, only 1 to 4 as products")
    return Run(x.data, t.emit("pow", [x.value], x.value.shape, exponent=float(exponent)))


def rule_matmul(t, a, b):
    a, b = weight_of(a), weight_of(b)
    if isinstance(b, Weight) and b.data.dim() == 1 and isinstance(a, Run) and b.name and not b.then:
        row = Weight(b.data.unsqueeze(0), b.name, b.whole.unsqueeze(0), b.learns)
        return RULES["squeeze"](t, rule_linear(t, a, row, None), -1)
    if isinstance(a, Run) and isinstance(b, Weight) and b.data.dim() == 2 and b.name and not b.then:
        if b.data.is_contiguous() and b.data.shape == b.whole.shape:
            return rule_linear(t, a, Weight(b.data, b.name, b.whole, b.learns), None, stored="in")
        if b.data.t().is_contiguous() and b.data.t().shape == b.whole.shape:
            return rule_linear(t, a, Weight(b.data.t(), b.name, b.whole, b.learns), None)
    if isinstance(a, Run) and isinstance(b, Weight):
        b = t.weight(b, a, True)
    if isinstance(b, Run) and isinstance(a, Weight):
        a = t.weight(a, b, True)
    need(isinstance(a, Run) and isinstance(b, Run) and a.data.dim() == b.data.dim() > 2 and a.shape[:-2] == b.shape[:-2],
         "a product of other shapes than [N, ..., m, k] and [N, ..., k, n]; use linear or scaled_dot_product_attention, or equal leading dimensions")
    need(a.shape[-1] == b.shape[-2], f"a product of {list(a.shape)} and {list(b.shape)}")
    data = blank([*a.shape[:-1], b.shape[-1]])
    return Run(data, t.emit("matmul", [a.value, b.value], data.shape))


def rule_baddbmm(t, x, a, b, *, beta=1, alpha=1):
    return rule_add(t, rule_mul(t, x, beta), rule_mul(t, rule_matmul(t, a, b), alpha))


def rule_einsum(t, equation, *operands):
    operands = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    need(len(operands) == 2 and "->" in equation and "." not in equation, f"einsum '{equation}'; there are products of two tensors with letters")
    left, out = equation.replace(" ", "").split("->")
    la, lb = left.split(",")
    a, b = operands
    need(all(isinstance(v, Run) for v in operands) and la[0] == lb[0] == out[0] and len(set(la)) == len(la) and len(set(lb)) == len(lb),
         f"einsum '{equation}'; both are values with the records first, in the result as well")
    both, inner = [c for c in la if c in lb and c in out], [c for c in la if c in lb and c not in out]
    only_a, only_b = [c for c in la if c not in lb], [c for c in lb if c not in la]
    need(set(out) == {*both, *only_a, *only_b} and inner, f"einsum '{equation}'; each letter that one tensor alone has is in the result")
    size = {**dict(zip(la, a.shape)), **dict(zip(lb, b.shape))}
    total = lambda letters: math.prod(size[c] for c in letters)
    def shaped(v, letters, order, rows, columns):
        v = rule_permute(t, v, [letters.index(c) for c in order])
        return reshaped(torch.Tensor.reshape)(t, v, [size[both[0]], total(both[1:]), total(rows), total(columns)])
    x = shaped(a, la, both + only_a + inner, only_a, inner)
    y = shaped(b, lb, both + inner + only_b, inner, only_b)
    made = rule_matmul(t, x, y)
    made = reshaped(torch.Tensor.reshape)(t, made, [size[c] for c in both + only_a + only_b])
    return rule_permute(t, made, [(both + only_a + only_b).index(c) for c in out])


# ---- shapes

def reshaped(function):
    def rule(t, x, *args, **kwargs):
        data = function(x.data, *args, **kwargs)
        if joins(x, data):
            return join(t, x, data)
        return Run(data, t.reshape(x.value, list(data.shape)))
    return rule


def rule_permute(t, x, *order, dims=None):
    order = dims or (order[0] if len(order) == 1 and isinstance(order[0], (list, tuple)) else order)
    order = [whole(d, x.data.dim()) for d in order]
    if order[:1] != [0] and len(order) > 1 and order[1] == 0:
        value = t.permute(x.value, [0, order[0], *order[2:]])
        return Run(x.data.permute(order), value, 1)
    return Run(x.data.permute(order), t.permute(x.value, order))


def order_of(function, rank, *args, **kwargs):
    """The order in which a function puts dimensions."""
    return [n - 2 for n in function(torch.empty(tuple(range(2, 2 + rank)), device="meta"), *args, **kwargs).shape]


def rule_transpose(t, x, dim0, dim1):
    order = list(range(x.data.dim()))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return rule_permute(t, x, order)


def rule_turned(t, x):
    need(x.data.dim() > 2, "the transpose of a matrix that has the records; write it for a tensor of 3 or more dimensions")
    return rule_transpose(t, x, -2, -1)


def rule_same(t, x, *args, **kwargs):
    return x


def rule_cast(t, x, *args, **kwargs):
    """to(), type_as() and others that change no number."""
    wanted = [a for a in leaves([args, kwargs]) if isinstance(a, torch.dtype)] + [a.dtype for a in args if hasattr(a, "dtype")]
    need(wanted or not any(isinstance(a, str) for a in args) or args[0][:4] in ("cpu", "cuda"), "a type by its name; write torch.float32")
    need(all(d == x.dtype for d in wanted), f"a change from {x.dtype} to {wanted[0] if wanted else ''}; give the input as that type")
    return x


def as_dtype(dtype):
    return lambda t, x: rule_cast(t, x, dtype)


def rule_expand(t, x, *shape):
    shape = list(shape[0]) if len(shape) == 1 and isinstance(shape[0], (list, tuple, torch.Size)) else list(shape)
    need(len(shape) == x.data.dim(), f"expand to {shape} of {list(x.shape)}: unsqueeze it to as many dimensions first")
    value, n = x.value, x.data.dim()
    for d in range(n):
        times = shape[d] // x.shape[d] if shape[d] not in (-1, x.shape[d]) else 1
        need(d > 0 or times == 1, "an expand of the records")
        if times > 1:
            value = t.concat([value] * times, d)
    return Run(x.data.expand(*shape), value)


def rule_spread(t, x, *shape):
    """An expand, which is written down only where something needs all places."""
    shape = list(shape[0]) if len(shape) == 1 and isinstance(shape[0], (list, tuple, torch.Size)) else list(shape)
    data = x.data.expand(*shape)
    is_later = len(shape) == x.data.dim() > 1 and data.shape[0] == x.shape[0] and type(x) is Run
    return Spread(data, x) if is_later and data.shape != x.shape else rule_expand(t, x, *shape)


BROADCASTING = {"add", "iadd", "radd", "sub", "isub", "rsub", "subtract", "mul", "imul", "rmul", "multiply", "truediv", "div", "divide"}


def laid_out(t, name, args, kwargs):
    """Expanded values as `name` takes them: as they were before, or with all places."""
    given = [a for a in leaves([args, kwargs]) if isinstance(a, Run)]
    full = [a.shape for a in given if not isinstance(a, Spread)]

    def one(a):
        if not isinstance(a, Spread):
            return a
        return a.small if name in BROADCASTING and a.shape in full else rule_expand(t, a.small, *a.shape)
    return mapped(one, [args, kwargs])


def rule_repeat(t, x, *times):
    times = list(times[0]) if len(times) == 1 and isinstance(times[0], (list, tuple, torch.Size)) else list(times)
    need(len(times) == x.data.dim() and times[0] == 1, f"repeat{tuple(times)} of {list(x.shape)}; it repeats dimensions behind the records")
    value = x.value
    for d, k in enumerate(times):
        value = t.concat([value] * k, d) if k > 1 else value
    return Run(x.data.repeat(*times), value)


def strided(t, value, dim, step):
    """Every step-th place of a dimension: a pool over single places."""
    shape, rest = value.shape, math.prod(value.shape[1:dim])
    flat = t.reshape(value, [shape[0], rest, shape[dim], math.prod(shape[dim + 1:])])
    kept = -(-shape[dim] // step)
    made = t.emit("avgpool", [flat], [shape[0], rest, kept, flat.shape[3]], kernel=1, stride=[step, 1])
    return t.reshape(made, [*shape[:dim], kept, *shape[dim + 1:]])


def rule_item(t, x, index):
    need(isinstance(x, Run), "an index into what is no value of a layer")
    index = list(index) if isinstance(index, tuple) else [index]
    if len(index) == 2 and isinstance(index[1], Ends) and x.data.dim() == 3:
        rows = index[0].data if isinstance(index[0], Weight) else index[0]
        need(rows == slice(None) if isinstance(rows, slice) else rows.tolist() == list(range(len(x.data))), "an index by other records than all in their order")
        need(not isinstance(rows, slice), "an index by lengths of all records; write x[torch.arange(x.size(0)), lengths - 1]")
        return Run(x.data[:, 0], t.emit("last", [x.value, index[1].value], [x.shape[0], x.shape[2]]))
    if Ellipsis in index:
        k = index.index(Ellipsis)
        index[k:k + 1] = [slice(None)] * (x.data.dim() - sum(i is not None for i in index) + 1)
    if x.dtype == torch.int64:
        return column_of(t, x, index)
    value, dim = x.value, 0
    for i in index:
        need(i is None or isinstance(i, (int, slice)), f"an index by {'a tensor' if isinstance(i, (Run, Weight, torch.Tensor)) else type(i).__name__}; there are numbers and ranges")
        if i is None:
            continue
        if isinstance(i, int):
            need(dim > 0, "an index into the records of a batch")
            i = whole(i, x.shape[dim])
            i = slice(i, i + 1)
        start, stop, step = i.indices(x.shape[dim])
        if (start, stop) != (0, x.shape[dim]):
            value = t.cut(value, dim, start, stop)
        if step != 1:
            need(dim > 0, "an index into the records of a batch")
            value = strided(t, value, dim, step)
        dim += 1
    data = x.data[tuple(index)]
    return Run(data, t.reshape(value, list(data.shape)))


def column_of(t, x, index):
    """A column of the last dimension of an input of numbers."""
    kept = [i for i in index if i is not None and i != slice(None)]
    if not kept:
        data = x.data[tuple(index)]
        return Run(data, t.reshape(x.value, list(data.shape)))
    need(len(index) == x.data.dim() > 1 and len(kept) == 1 and isinstance(index[-1], int), "a part of an input of numbers; only one column of the last dimension is one, x[..., k]")
    return Run(x.data[tuple(index)], Column(x.value.name, x.shape[:-1], whole(index[-1], x.shape[-1])))


def rule_narrow(t, x, dim, start, length):
    dim = whole(dim, x.data.dim())
    return Run(x.data.narrow(dim, start, length), t.cut(x.value, dim, start, start + length))


def rule_select(t, x, dim, index):
    return rule_item(t, x, (slice(None),) * whole(dim, x.data.dim()) + (index,))


def parts(cutter):
    def rule(t, x, size=None, dim=0, **more):
        size, at, found = more.get("split_size_or_sections", more.get("split_size", more.get("chunks", size))), 0, []
        for part in cutter(x.data, size, dim):
            length = part.shape[dim]
            found.append(rule_narrow(t, x, dim, at, length))
            at += length
        return tuple(found)
    return rule


def rule_unbind(t, x, dim=0):
    return tuple(rule_select(t, x, dim, k) for k in range(x.shape[dim]))


def rule_iter(t, x):
    need(False, "a loop over the records of a batch")


def rule_cat(t, tensors, dim=0, axis=None):
    dim = dim if axis is None else axis
    tensors = [weight_of(v) for v in tensors]
    partner = next(v for v in tensors if isinstance(v, Run))
    dim = whole(dim, partner.data.dim())
    need(dim != 0, "records of a batch that are joined")
    first, rest = tensors[0], tensors[1:]
    if isinstance(first, Weight) and is_token(t, first, partner) and dim == 1 and all(isinstance(v, Run) for v in rest):
        joined = rule_cat(t, rest, 1) if len(rest) > 1 else rest[0]
        width = first.whole.shape[-1]
        if first.name in t.called:
            t.split.add(first.name)
            raise Again
        t.called.add(first.name)
        t.moved[first.name] = first.whole.reshape(1, 1, width)
        data = torch.cat([first.data.expand(Records.n, 1, width), joined.data], 1)
        return Run(data, t.emit("prepend", [joined.value], data.shape, first.name))
    runs = [v if isinstance(v, Run) else t.weight(v, partner, True) for v in tensors]
    data = torch.cat([v.data for v in runs], dim)
    return Run(data, t.concat([v.value for v in runs], dim))


def is_token(t, w, x):
    """Whether it is one learned place, the same of each record, beside [N, places, features]."""
    s, n = list(w.data.shape), x.shape[0]
    return (w.learns and not w.then and x.data.dim() == 3 and s in ([n, 1, x.shape[2]], [1, 1, x.shape[2]]) and w.whole.numel() == x.shape[2]
            and w.name not in t.split and w.name not in t.constants and (s[0] == 1 or w.data.stride(0) == 0))


def rule_stack(t, tensors, dim=0):
    tensors = list(tensors)
    rank = next(v for v in tensors if isinstance(v, Run)).data.dim() + 1
    dim = whole(dim, rank)
    if dim == 0:
        need(rank > 1 and all(isinstance(v, Run) for v in tensors), "a stack of records")
        made = rule_stack(t, tensors, 1)
        return Run(made.data.transpose(0, 1), made.value, 1)
    return rule_cat(t, [RULES["unsqueeze"](t, v, dim) if isinstance(v, Run) else weight_of(v.data.unsqueeze(dim) if isinstance(v, Weight) else v.unsqueeze(dim)) for v in tensors], dim)


def rule_pad(t, x, pad, mode="constant", value=None):
    """Zeros, or copies of places, around dimensions."""
    pads = list(pad)
    need(mode in ("constant", "reflect", "replicate", "circular") and (value in (None, 0, 0.0) or mode != "constant"), f"pad with mode={mode!r} and value={value}; it is 0")
    made = x
    for k in range(0, len(pads), 2):
        dim = x.data.dim() - 1 - k // 2
        made = Run(made.data, padded(t, made.value, dim, pads[k], pads[k + 1], mode))
    data = F.pad(x.data, pads, mode) if mode != "constant" else F.pad(x.data, pads)
    return Run(data, made.value)


def padded(t, v, dim, before, after, mode):
    size = v.shape[dim]
    if before < 0 or after < 0:
        v = t.cut(v, dim, max(0, -before), size - max(0, -after))
        before, after, size = max(0, before), max(0, after), v.shape[dim]

    def edge(places):
        return [t.cut(v, dim, k, k + 1) for k in places]

    def zeros(n):
        """n places of 0, in pieces no longer than the dimension."""
        pieces = [min(size, n - at) for at in range(0, n, size)]
        return [t.scaled(t.cut(v, dim, 0, piece), 0.0) for piece in pieces]
    need(dim > 0, "padding of the records")
    left, right = {"constant": lambda: (zeros(before), zeros(after)), "replicate": lambda: (edge([0] * before), edge([size - 1] * after)),
                   "reflect": lambda: (edge(range(before, 0, -1)), edge(range(size - 2, size - 2 - after, -1))),
                   "circular": lambda: (edge(range(size - before, size)), edge(range(after)))}[mode]()
    return t.concat([*left, v, *right], dim) if left or right else v


def rule_flip(t, x, *dims):
    dims = dims[0] if len(dims) == 1 and isinstance(dims[0], (list, tuple)) else dims
    value = x.value
    for d in (whole(d, x.data.dim()) for d in dims):
        need(d > 0, "a flip of the records")
        value = t.emit("flip", [value], value.shape, dim=d) if "flip" in t.ops else t.concat([t.cut(value, d, k, k + 1) for k in reversed(range(value.shape[d]))], d)
    return Run(x.data.flip(list(dims)), value)


def rule_roll(t, x, shifts, dims=None):
    need(dims is not None, "roll over all values; name dims")
    shifts, dims = ((v,) if isinstance(v, int) else v for v in (shifts, dims))
    value = x.value
    for s, d in zip(shifts, dims):
        d = whole(d, x.data.dim())
        need(d > 0, "a roll of the records")
        n, s = value.shape[d], s % value.shape[d]
        if s:
            value = t.emit("roll", [value], value.shape, shifts=s, dim=d) if "roll" in t.ops else t.concat([t.cut(value, d, n - s, n), t.cut(value, d, 0, n - s)], d)
    return Run(x.data.roll(shifts, dims), value)


def rule_shuffle(t, x, upscale_factor):
    n, c, h, w = x.shape
    r = upscale_factor
    v = t.permute(t.reshape(x.value, [n, c // r ** 2, r, r, h, w]), [0, 1, 4, 2, 5, 3])
    data = F.pixel_shuffle(x.data, r)
    return Run(data, t.reshape(v, list(data.shape)))


def rule_unshuffle(t, x, downscale_factor):
    n, c, h, w = x.shape
    r = downscale_factor
    v = t.permute(t.reshape(x.value, [n, c, h // r, r, w // r, r]), [0, 1, 3, 5, 2, 4])
    data = F.pixel_unshuffle(x.data, r)
    return Run(data, t.reshape(v, list(data.shape)))


def rule_channel_shuffle(t, x, groups):
    n, c, *rest = x.shape
    v = t.reshape(x.value, [n, groups, c // groups, *rest])
    v = t.permute(v, [0, 2, 1, *range(3, 3 + len(rest))])
    return Run(x.data, t.reshape(v, list(x.shape)))


# ---- means, maxima

def rule_mean(t, x, dim=None, keepdim=False, *, dtype=None, axis=None):
    dim = dim if axis is None else axis
    need(dim is not None and dtype is None, "a mean over everything, the records too; name dim=")
    dims = sorted({whole(d, x.data.dim()) for d in (dim if isinstance(dim, (tuple, list)) else [dim])}, reverse=True)
    value, shape = x.value, list(x.shape)
    need(0 not in dims, "a mean over the records of a batch")
    if dims == [3, 2] and len(shape) == 4:
        value = t.emit("globalavgpool", [value], [*shape[:2], 1, 1])
    else:
        for d in dims:
            shape.pop(d)
            value = t.emit("mean", [value], alone(shape), dim=d) if len(shape) > 1 else row_mean(t, value)
    data = x.data.mean(dims, keepdim)
    return Run(data, t.reshape(value, list(data.shape)))


def row_mean(t, v):
    """Of [N, features], as [N, 1]."""
    v = t.reshape(v, [v.shape[0], 1, v.shape[1]])
    return t.emit("mean", [v], v.shape[:2], dim=2)


def rule_sum(t, x, dim=None, keepdim=False, *, dtype=None, axis=None):
    dim = dim if axis is None else axis
    need(dim is not None, "a sum over everything, the records too; name dim=")
    dims = {whole(d, x.data.dim()) for d in (dim if isinstance(dim, (tuple, list)) else [dim])}
    need(0 not in dims, "a sum over the records of a batch")
    return rule_mul(t, rule_mean(t, x, dim, keepdim), math.prod(x.shape[d] for d in dims))


Extreme = namedtuple("Extreme", "values indices")


def largest(t, x, dim, keepdim=False):
    """[..., 1, ...] of the largest value, by a pool over the dimension."""
    dim = whole(dim, x.data.dim())
    need(dim > 0, "a maximum over the records of a batch")
    s = list(x.shape)
    flat = t.reshape(x.value, [s[0], math.prod(s[1:dim]), s[dim], math.prod(s[dim + 1:])])
    v = t.emit("maxpool", [flat], [*flat.shape[:2], 1, flat.shape[3]], kernel=[s[dim], 1], stride=1)
    data = x.data.max(dim, keepdim)[0]
    return Run(data, t.reshape(v, list(data.shape)))


def rule_max(t, x, dim=None, keepdim=False, *, other=None):
    if other is not None or isinstance(dim, (Run, Weight, torch.Tensor)):
        a, b = beside(t, x, other if other is not None else dim)
        return summed(t, b, Run(a.data, as_layer(t, nn.ReLU(), rule_sub(t, a, b)).value))
    need(dim is not None, "a maximum over everything, the records too; name dim=")
    found = largest(t, x, dim, keepdim)
    return Extreme(found, Absent(torch.zeros(found.data.shape, dtype=torch.int64), "indices of max; a session has the values alone"))


def rule_min(t, x, dim=None, keepdim=False, *, other=None):
    if other is not None or isinstance(dim, (Run, Weight, torch.Tensor)):
        a, b = beside(t, x, other if other is not None else dim)
        return rule_sub(t, a, Run(a.data, as_layer(t, nn.ReLU(), rule_sub(t, a, b)).value))
    found = rule_max(t, rule_mul(t, x, -1), dim, keepdim)
    return Extreme(rule_mul(t, found.values, -1), found.indices)


def rule_abs(t, x):
    both = [as_layer(t, nn.ReLU(), v) for v in (x, rule_mul(t, x, -1))]
    return summed(t, *both)


def rule_softmax(kind):
    def rule(t, x, dim=None, *_, dtype=None, **__):
        need(dim is not None and dtype in (None, torch.float32), "softmax without dim")
        dim, last = whole(dim, x.data.dim()), x.data.dim() - 1
        need(dim > 0, "a softmax over the records of a batch")
        order = list(range(last + 1))
        order[dim], order[last] = last, dim
        v = t.permute(x.value, order)
        return Run(x.data, t.permute(t.emit(kind, [v], v.shape), order))
    return rule


def rule_masked_fill(t, x, mask, value):
    if isinstance(mask, Choice):
        hides = isinstance(value, (int, float)) and value <= LEAST_SCORE and isinstance(x, Run)
        return HiddenBy(x, mask, float(value)) if hides else rule_where(t, mask, value, x)
    mask = mask.data if isinstance(mask, Weight) else mask
    value = float(value) if isinstance(value, (int, float)) else float(weight_of(value).data)
    need(isinstance(x, Run) and isinstance(mask, torch.Tensor), "a mask that records decide; attention takes lengths, as an input lengths:i64")
    if value == 0:
        return rule_mul(t, x, (~mask.bool()).float())
    need(value <= LEAST_SCORE, f"masked_fill with {value}; there are scores of attention, filled with -inf, and products with a constant")
    return hidden_by(x, mask.bool())


LARGEST = float(torch.finfo(torch.float32).max)


def comparison(name, of_lengths):
    """A rule for a value of floats beside a number, a constant or another value; of_lengths: the
    rule for the others."""
    def rule(t, a, b):
        if is_counted(a, b):
            return by_number(t, name, a, b)
        if isinstance(b, Run) and not isinstance(a, Run):
            return rule_of({"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}[name], t, b, a) if b.dtype.is_floating_point else of_lengths(t, a, b)
        return rule_of(name, t, a, b) if isinstance(a, Run) and a.dtype.is_floating_point else of_lengths(t, a, b)
    return rule


def is_counted(x, other):
    """Whether it compares whole numbers of a record with a number."""
    other = other.item() if isinstance(other, torch.Tensor) and other.dim() == 0 else other
    return isinstance(x, Run) and x.dtype == torch.int64 and isinstance(other, (int, float)) and not isinstance(other, bool)


def by_number(t, name, x, number):
    """A comparison of whole numbers: rows of a table of ones and zeros, as many as an nn.Embedding
    has, so that a session refuses the same numbers."""
    number = float(number)
    key = f"{name} {number} {x.value.name} {getattr(x.value, 'column', None)}"
    if key not in t.constants:
        rows = max([m.num_embeddings for m in t.model.modules() if isinstance(m, nn.Embedding)] + [min(int(abs(number)), 1 << 20) + 2])
        more = {"column": x.value.column} if isinstance(x.value, Column) else {}
        made = t.emit("embedding", [x.value], [*x.shape, 1], rows=rows, out=1, **more)
        t.moved[f"{made.name}.weight"] = getattr(operator, name)(torch.arange(rows), number).float().reshape(rows, 1)
        t.frozen.append(made.name)
        t.constants[key] = t.reshape(made, alone(x.shape))
    return Ones(blank(x.shape, torch.bool), Run(blank(x.shape), t.constants[key]), 0.5)


def shaped_choice(t, name, args, kwargs):
    """A comparison in another shape: what it compares has that shape."""
    x = args[0]
    (run,), _ = laid_out(t, name, [RULES[name](t, x.run, *args[1:], **kwargs)], {})
    return type(x)(blank(run.shape, torch.bool), run, x.threshold, x.above)


# Functions that leave a comparison one.
SHAPING = {"view", "reshape", "flatten", "squeeze", "unsqueeze", "expand", "expand_as", "permute", "transpose", "getitem", "contiguous", "clone", "repeat"}


def rule_of(name, t, x, other):
    need("where" in t.ops, "a comparison of a value; there is no op for it")
    other = weight_of(other)
    need(not getattr(other, "learns", False), f"a comparison with the parameter '{getattr(other, 'name', '')}', which learns nothing by it; make it a buffer")
    if isinstance(other, Weight) and other.data.dim() == 0 and not other.learns and not other.then:
        other = float(other.data)
    run, number = (x, float(other)) if isinstance(other, (int, float)) else (rule_sub(t, x, other), 0.0)
    need(abs(number) <= LARGEST, f"a comparison with {number}")
    if name in ("lt", "ge"):
        run, number = rule_mul(t, run, -1), -number
    return Choice(blank(run.shape).bool(), run, number, name in ("lt", "gt"))


def spread(t, x, like, shape):
    """A value, a number or a constant as a value of `shape`, beside the value `like` of that
    shape."""
    if isinstance(x, Choice):
        x = ones_where(t, x)
    x = weight_of(x)
    if isinstance(x, Weight) and not x.learns and not x.then and x.data.unique().numel() == 1:
        x = float(x.data.flatten()[0])
    if isinstance(x, (int, float)):  # a sigmoid of 0 is 0.5
        half = t.emit("sigmoid", [t.scaled(like.value, 0.0)], like.value.shape)
        return t.scaled(half, 2 * float(x))
    run = t.weight(x, like, True) if isinstance(x, Weight) else x
    return rule_expand(t, run, *shape).value


def chosen(t, choice, a, b):
    parts = [weight_of(v) for v in (choice, a, b) if not isinstance(v, (int, float))]
    shape = torch.broadcast_shapes(*(p.shape for p in parts))
    need(len(shape) == len(choice.shape) and shape[0] == choice.shape[0], f"a choice by {list(choice.shape)} of values of {list(shape)}; give the comparison as many dimensions")
    like = rule_expand(t, choice.run, *shape)
    inputs = [spread(t, v, like, shape) for v in ((a, b) if choice.above else (b, a))]
    return Run(blank(shape), t.emit("where", [like.value, *inputs], like.value.shape, threshold=choice.threshold))


def ones_where(t, choice):
    if isinstance(choice, Ones):
        return choice.run
    return chosen(t, choice, 1.0, 0.0)


def rule_not(t, x):
    need(isinstance(x, Choice), BY_VALUE)
    if isinstance(x, Ones):
        return Ones(x.data, rule_add(t, rule_mul(t, x.run, -1), 1.0), 0.5)
    return Choice(x.data, x.run, x.threshold, not x.above)


def both(t, a, b):
    need(all(isinstance(v, Choice) for v in (a, b)), BY_VALUE)
    product = rule_mul(t, ones_where(t, a), ones_where(t, b))
    return Ones(blank(product.shape, torch.bool), product, 0.5)


def either(t, a, b):
    return rule_not(t, both(t, *(rule_not(t, v) for v in (a, b))))


def rule_eq(t, a, b, name="eq"):
    x = a if isinstance(a, Run) else b
    if is_counted(x, b if x is a else a):
        return by_number(t, name, x, b if x is a else a)
    need(isinstance(x, Run) and x.dtype.is_floating_point, "== of whole numbers of a record; there are comparisons of floats")
    a, b = (a, b) if x is a else (b, a)
    return both(t, rule_of("le", t, a, b), rule_of("ge", t, a, b))


def rule_ne(t, a, b):
    made = rule_eq(t, a, b, "ne")
    return made if is_counted(a, b) or is_counted(b, a) else rule_not(t, made)


def rule_where(t, condition, a, b):
    if isinstance(condition, Choice):
        return chosen(t, condition, a, b)
    mask = condition.data if isinstance(condition, Weight) else condition
    need(isinstance(mask, torch.Tensor), "a mask that records decide; attention takes lengths, as an input lengths:i64")
    if isinstance(a, Run) and not isinstance(b, Run):
        return rule_masked_fill(t, a, ~mask.bool(), b)
    if isinstance(b, Run) and not isinstance(a, Run):
        return rule_masked_fill(t, b, mask.bool(), a)
    kept = mask.float()
    return rule_add(t, rule_mul(t, a, kept), rule_mul(t, b, 1 - kept))


LEAST_SCORE = -1e4  # softmax makes exactly 0 of what is so far below the others


def hidden_by(x, mask):
    need(bool((~mask).any(-1).all()), "a mask that leaves a place nothing to see")
    return Hidden(x, mask)


LOWEST = -1e30  # added to a score that is hidden: softmax makes exactly 0 of it, in f32 and in f64


def lowered(t, x, keep):
    """Scores, lowered where `keep` is 0. With 1 they stay as they are."""
    check_alike(x, keep)
    below = rule_mul(t, rule_add(t, keep, -1.0), -LOWEST)
    return Run(x.data, t.emit("add", [x.value, below.value], x.value.shape))


def hidden_scores(t, name, *args, **kwargs):
    """What is done with scores of which some are hidden: a softmax of their last dimension."""
    if any(isinstance(a, HiddenBy) for a in leaves([args, kwargs])):
        x, rest = args[0], args[1:]
        if name in ("float", "contiguous"):
            return x
        dim = kwargs.get("dim", rest[0] if rest else None)
        if isinstance(x, HiddenBy) and name == "softmax" and dim in (-1, x.data.dim() - 1):
            return RULES[name](t, lowered(t, Run(x.data, x.value), ones_where(t, rule_not(t, x.choice))), *rest, **kwargs)
        return t.call(name, None, *mapped(lambda a: filled(t, a) if isinstance(a, HiddenBy) else a, [args, kwargs]))
    return constant_scores(t, name, *args, **kwargs)


def filled(t, x):
    need(math.isfinite(x.fill), f"masked_fill with {x.fill} where records decide; softmax(dim=-1) comes next, or fill with a finite number")
    return rule_where(t, x.choice, x.fill, Run(x.data, x.value))


def constant_scores(t, name, x, *args, **kwargs):
    """Scores that a constant hides."""
    need(isinstance(x, Hidden) and name in ("softmax", "log_softmax", "float", "contiguous"), f"{name} of scores that a mask has filled; softmax(dim=-1) comes first")
    if name in ("float", "contiguous"):
        return x
    low = torch.zeros(x.hidden.shape).masked_fill(x.hidden, -3e38)
    need(name == "softmax", "log_softmax of scores that a mask has filled")
    return RULES[name](t, summed(t, *beside(t, Run(x.data, x.value), Weight(low, None, low, False))), *args, **kwargs)


def rule_normalize(t, x, p=2.0, dim=1, eps=1e-12):
    need(p == 2 and {"pow", "clamp"} <= set(t.ops), "normalize; there are no ops for it: nn.LayerNorm and nn.GroupNorm divide by a deviation")
    squares = rule_clamp(t, rule_sum(t, rule_mul(t, x, x), dim, True), eps * eps)
    return rule_mul(t, x, rule_pow(t, squares, -0.5))


def rule_norm(t, x, p=2, dim=None, keepdim=False, *rest, **more):
    need(p in (2, 2.0, "fro", None) and not rest and "sqrt" in t.ops, f"norm with p={p}; there is p=2, where the runtime has the op sqrt")
    return by_op("sqrt")(t, rule_sum(t, rule_mul(t, x, x), dim, keepdim))


def rule_cosine(t, a, b, dim=1, eps=1e-8):
    return rule_sum(t, rule_mul(t, rule_normalize(t, a, 2, dim, eps), rule_normalize(t, b, 2, dim, eps)), dim)


def rule_distance(t, a, b, p=2.0, eps=1e-6, keepdim=False):
    return rule_norm(t, rule_add(t, rule_sub(t, a, b), eps), p, -1, keepdim)


def rule_var(t, x, dim=None, unbiased=None, keepdim=False, *, correction=None):
    need("var" in t.ops, "var; there is no op for it: nn.LayerNorm and nn.GroupNorm divide by a deviation")
    need(isinstance(dim, int), "var over several dimensions; flatten them first")
    minus = correction if correction is not None else 1 if unbiased in (None, True) else 0
    shape = [n for k, n in enumerate(x.shape) if k != whole(dim, x.data.dim())]
    v = t.emit("var", [x.value], alone(shape), dim=whole(dim, x.data.dim()), correction=minus)
    data = x.data.var(dim, keepdim=keepdim)
    return Run(data, t.reshape(v, list(data.shape)))


def by_op(op, hint="", **fixed):
    """An elementwise function that is an op of the runtime, where it has it."""
    def rule(t, x, *args, **kwargs):
        need(op in t.ops, f"{op} is no layer of this runtime{hint}")
        need(not [a for a in args if a not in (None, False)], "more arguments")
        return Run(x.data, t.emit(op, [x.value], x.value.shape, **fixed))
    rule.op = op
    return rule


def rule_exp(t, x):
    """e^x is sigmoid(x) / sigmoid(-x)."""
    need("pow" in t.ops, "exp; there are no ops for it")
    up, down = (as_layer(t, nn.Sigmoid(), v) for v in (x, rule_mul(t, x, -1)))
    return rule_mul(t, up, rule_pow(t, down, -1))


def rule_logsumexp(t, x, dim, keepdim=False):
    """What log_softmax subtracts, of the first place."""
    dim = dim[0] if isinstance(dim, (list, tuple)) and len(dim) == 1 else dim
    need(isinstance(dim, int) and whole(dim, x.data.dim()) > 0, "logsumexp over several dimensions, or over the records")
    first = rule_narrow(t, rule_sub(t, x, rule_softmax("log_softmax")(t, x, dim)), dim, 0, 1)
    return first if keepdim else RULES["squeeze"](t, first, dim)


def rule_glu(t, x, dim=-1):
    a, b = parts(torch.chunk)(t, x, 2, dim)
    return rule_mul(t, a, as_layer(t, nn.Sigmoid(), b))


def rule_celu(t, x, alpha=1.0, inplace=False):
    return rule_mul(t, as_layer(t, nn.ELU(), rule_mul(t, x, 1 / alpha)), alpha)


def rule_softshrink(t, x, lambd=0.5):
    above, below = (as_layer(t, nn.ReLU(), rule_sub(t, v, lambd)) for v in (x, rule_mul(t, x, -1)))
    return rule_sub(t, above, below)


def rule_threshold(t, x, threshold, value, inplace=False):
    return chosen(t, rule_of("gt", t, x, threshold), x, value)


SELU = 1.6732632423543772, 1.0507009873554805  # alpha and scale of Klambauer et al., 2017
# Functions of each number alone that are several layers.
COMPOSED = {
    "selu": lambda t, x, inplace=False: rule_mul(t, as_layer(t, nn.ELU(SELU[0]), x), SELU[1]), "celu": rule_celu, "softshrink": rule_softshrink, "threshold": rule_threshold,
    "softsign": lambda t, x: rule_div(t, x, rule_add(t, rule_abs(t, x), 1.0)), "tanhshrink": lambda t, x: rule_sub(t, x, as_layer(t, nn.Tanh(), x)),
    **dict.fromkeys(("logsigmoid", "log_sigmoid"), lambda t, x: rule_mul(t, as_layer(t, nn.Softplus(threshold=40), rule_mul(t, x, -1)), -1)),
    "hardshrink": lambda t, x, lambd=0.5: chosen(t, rule_of("gt", t, rule_abs(t, x), lambd), x, 0.0),
}


def rule_one_hot(t, x, num_classes=-1):
    """A row of ones and zeros for each number: a table that does not learn."""
    need(isinstance(x, Run) and x.dtype == torch.int64 and num_classes > 0, "one_hot without num_classes, or of what is no input of numbers")
    more = {"column": x.value.column} if isinstance(x.value, Column) else {}
    made = t.emit("embedding", [x.value], [*x.shape, num_classes], rows=num_classes, out=num_classes, **more)
    t.moved[f"{made.name}.weight"] = torch.eye(num_classes)
    t.frozen.append(made.name)
    shape = [*x.shape, num_classes]
    return Ones(blank(shape, torch.bool), Run(blank(shape), made), 0.5)


def rule_clamp(t, x, min=None, max=None):
    need(all(v is None or isinstance(v, (int, float)) for v in (min, max)), "clamp by a tensor; it takes numbers")
    if max is None and min == 0:
        return as_layer(t, nn.ReLU(), x)
    need("clamp" in t.ops, "clamp is no layer of this runtime; F.relu bounds from below")
    return Run(x.data, t.emit("clamp", [x.value], x.value.shape, **{k: float(v) for k, v in (("min", min), ("max", max)) if v is not None}))


def rule_cumsum(t, x, dim):
    need("cumsum" in t.ops and whole(dim, x.data.dim()) > 0, "cumsum is no layer of this runtime, or over the records; a matmul with a triangle is one")
    return Run(x.data, t.emit("cumsum", [x.value], x.value.shape, dim=whole(dim, x.data.dim())))


# ---- functions that are modules

def module_of(name, args, kwargs):
    """The module of a function, with the settings of the call."""
    kind, words = FUNCTIONS[name]
    given = {**dict(zip(words.split(), args)), **kwargs}
    given.pop("inplace", None)
    takes = set(inspect.signature(getattr(nn, kind).__init__).parameters)
    default = {"ceil_mode": False, "return_indices": False, "dilation": 1, "divisor_override": None}
    extra = {k for k in given if k not in takes}
    need(not [k for k in extra if given[k] not in (None, default.get(k))], f"{name} with {', '.join(sorted(extra))}")
    return getattr(nn, kind)(**{k: v for k, v in given.items() if k in takes})


def as_layer(t, m, x):
    """A module without parameters over a value: as an op has it, else made of others."""
    if MADE.get(type(m)) is made_adaptive:
        return made_adaptive(t, m, x)
    try:
        layer, keeps = t.layer_of(m, x.data.dim())
    except (Unsupported, LookupError) as e:
        made = MADE.get(type(m))
        if made is None:
            need_layer(isinstance(e, Unsupported), f"{type(m).__name__} is no layer of this runtime")
            raise
        return made(t, m, x)
    data = x.data if keeps else t.shaped(m, x)
    attributes = {k: v for k, v in layer.items() if k != "op"}
    return Run(data, t.emit(layer["op"], [x.value], alone(data.shape), **attributes))


def by_module(name):
    def rule(t, x, *args, **kwargs):
        need(isinstance(x, Run), "an argument that is no value of a layer")
        return as_layer(t, module_of(name, args, kwargs), x)
    return rule


def pair(v):
    return list(v) if isinstance(v, (tuple, list)) else [v, v]


def made_pool(t, m, x):
    """A pool with ceil_mode: places that a window reaches behind the border are copies of the last
    one, which change no maximum."""
    need(x.data.dim() == 4 and m.ceil_mode, f"an input of rank {x.data.dim()}, dilation or indices: it takes [N, channels, height, width]")
    kernel, stride, pad = (pair(v) for v in (m.kernel_size, m.stride, m.padding))
    is_max = isinstance(m, nn.MaxPool2d)
    plain_pool = (nn.MaxPool2d if is_max else nn.AvgPool2d)(kernel, stride, pad)
    want, value = t.shaped(m, x).shape, x.value
    for k in range(2):
        over = (want[2 + k] - 1) * stride[k] + kernel[k] - x.shape[2 + k] - 2 * pad[k]
        if over > 0:
            need(is_max, "ceil_mode with a window that reaches over the border; give it an input that its stride divides")
            value = padded(t, value, 2 + k, 0, over, "replicate")
    layer, _ = t.layer_of(plain_pool, 4)
    return Run(blank(want), t.emit(layer.pop("op"), [value], want, **layer))


def made_adaptive(t, m, x):
    """Where the extents are multiples of the output's, it is a pool of equal windows."""
    dims = x.data.dim() - 2
    sizes = [m.output_size] * dims if isinstance(m.output_size, int) else list(m.output_size)
    sizes = [n if s is None else s for s, n in zip(sizes, x.shape[2:])]
    need(x.data.dim() in (3, 4), f"an input of rank {x.data.dim()}; it takes [N, channels, ...]")
    if sizes == list(x.shape[2:]):
        return x
    is_max, shape = "Max" in type(m).__name__, list(x.shape)
    if sizes == [1, 1] and not is_max:
        return Run(blank([*shape[:2], 1, 1]), t.emit("globalavgpool", [x.value], [*shape[:2], 1, 1]))
    fits, op = all(n % s == 0 for n, s in zip(shape[2:], sizes)), f"adaptive_{'max' if is_max else 'avg'}pool{dims}d"
    if not fits and op in t.ops:
        return Run(blank([*shape[:2], *sizes]), t.emit(op, [x.value], [*shape[:2], *sizes], output_size=sizes if dims == 2 else sizes[0]))
    need(fits, f"an output of {sizes} of extents {shape[2:]}, of which it is no divisor; let the output be 1, or a divisor")
    flat = t.reshape(x.value, [*shape[:2], *([1] if dims == 1 else []), *shape[2:]])
    kernel = [1] * (2 - dims) + [n // s for n, s in zip(shape[2:], sizes)]
    v = t.emit("maxpool" if is_max else "avgpool", [flat], [*shape[:2], *[1] * (2 - dims), *sizes], kernel=kernel, stride=kernel)
    return Run(blank([*shape[:2], *sizes]), t.reshape(v, [*shape[:2], *sizes]))


def made_line_pool(t, m, x):
    """A pool over [N, channels, length] as one over images of height 1."""
    one = lambda v: v[0] if isinstance(v, (tuple, list)) else v
    kind = nn.MaxPool2d if isinstance(m, nn.MaxPool1d) else nn.AvgPool2d
    more = {k: getattr(m, k) for k in ("ceil_mode", "count_include_pad", "return_indices") if hasattr(m, k)}
    flat = kind((1, one(m.kernel_size)), (1, one(m.stride)), (0, one(m.padding)), **more)
    need(x.data.dim() == 3 and one(getattr(m, "dilation", 1)) == 1, "dilation, or an input that is not [N, channels, length]")
    image = Run(x.data.unsqueeze(2), t.reshape(x.value, [*x.shape[:2], 1, x.shape[2]]))
    made = as_layer(t, flat, image)
    data = made.data.squeeze(2)
    return Run(data, t.reshape(made.value, list(data.shape)))


MADE = {nn.MaxPool2d: made_pool, nn.AvgPool2d: made_pool, nn.MaxPool1d: made_line_pool, nn.AvgPool1d: made_line_pool,
        **dict.fromkeys((nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool1d), made_adaptive)}


def rule_interpolate(t, x, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None, antialias=False):
    data = F.interpolate(x.data[:1], size, scale_factor, mode, align_corners).expand(x.shape[0], *[-1] * (x.data.dim() - 1))
    have, want = list(x.shape[2:]), list(data.shape[2:])
    if have == want:
        return x
    if mode == "nearest" and all(n % m == 0 for n, m in zip(want, have)) or set(have) == {1}:
        return Run(data, repeated(t, x.value, [n // m for n, m in zip(want, have)]))
    op = {"nearest": "upsample_nearest", "bilinear": "upsample_bilinear", "linear": "upsample_bilinear"}.get(mode)
    need(op in t.ops and not antialias, f"interpolate of {have} to {want} with mode={mode!r}; there is " + (", ".join(o for o in ("upsample_nearest", "upsample_bilinear") if o in t.ops) or "'nearest' to a multiple"))
    more = {"align_corners": True} if align_corners else {}
    if size is not None or recompute_scale_factor or all(n == m * f for n, m, f in zip(want, have, scale_factor if isinstance(scale_factor, (tuple, list)) else [scale_factor] * len(have))):
        more["size"] = want if len(want) == 2 else want[0]
    else:
        need(isinstance(scale_factor, (int, float)), f"scale_factor={scale_factor}; it takes one number, or give size")
        more["scale_factor"] = float(scale_factor)
    return Run(data, t.emit(op, [x.value], data.shape, **more))


def repeated(t, v, times):
    """Each place of the dimensions behind the channels so often."""
    for k, n in enumerate(times):
        if n > 1:
            shape, dim = list(v.shape), 2 + k
            flat = t.reshape(v, [shape[0], math.prod(shape[1:dim + 1]), 1, math.prod(shape[dim + 1:])])
            shape[dim] *= n
            v = t.reshape(t.concat([flat] * n, 2), shape)
    return v


def rule_dropout(t, x, p=0.5, training=True, inplace=False):
    return Run(x.data, t.emit("dropout", [x.value], x.value.shape, p=float(p))) if training and p else x


def rule_feature_dropout(t, x, p=0.5, training=True, inplace=False):
    """Dropout of whole channels: of ones [N, C, 1, ...], which the value is multiplied by."""
    if not training or not p:
        return x
    need(x.data.dim() > 2, f"dropout of the channels of {list(x.shape)}; use nn.Dropout")
    return kept_at_random(t, x, p, 2)


def kept_at_random(t, x, p, dims):
    """The value times a dropout of ones, a number for each place of its first dimensions."""
    v = x.value
    for dim in range(dims, len(v.shape)):
        v = t.cut(v, dim, 0, 1)
    ones = t.scaled(t.emit("sigmoid", [t.scaled(v, 0.0)], v.shape), 2.0)
    kept = t.emit("dropout", [ones], v.shape, p=float(p))
    return Run(x.data, t.emit("mul", [x.value, kept], x.value.shape))


def made_stochastic_depth(t, m, x):
    """torchvision's StochasticDepth, timm's DropPath: a whole record, or not."""
    p = getattr(m, "p", getattr(m, "drop_prob", None))
    if not m.training or not p:
        return x
    need(getattr(m, "mode", "row") == "row" and getattr(m, "scale_by_keep", True), "mode='batch', or without a scale")
    return kept_at_random(t, x, p, 1)


def is_stochastic_depth(m):
    return (type(m).__module__.partition(".")[0], type(m).__name__) in (("torchvision", "StochasticDepth"), ("timm", "DropPath"))


def rule_layer_norm(t, x, normalized_shape, weight=None, bias=None, eps=1e-5):
    need(isinstance(weight, Weight) and isinstance(bias, Weight), "layer_norm without weight and bias; use nn.LayerNorm")
    name = owner(t, weight)
    t.moved.update({f"{name}.weight": weight.data, f"{name}.bias": bias.data})
    t.taken |= {weight.name, bias.name}
    return Run(x.data, t.emit("layernorm", [x.value], x.value.shape, name, shape=list(normalized_shape), eps=float(eps)))


def owner(t, w):
    """The name of a layer that has this weight."""
    at, _, leaf = w.name.rpartition(".")
    return at if leaf == "weight" and at and at not in t.names else w.name


def rule_linear(t, x, weight, bias=None, stored="out"):
    need(isinstance(x, Run), "an argument that is no value of a layer")
    need(isinstance(weight, Weight) and not weight.then and weight.name and weight.data.is_contiguous() and weight.data.shape == weight.whole.shape,
         "a weight that is no whole parameter; make it an nn.Linear")
    w, more = weight.data, {"transposed": True} if stored == "in" else {}
    out = w.shape[1 if stored == "in" else 0]
    data = blank([*x.shape[:-1], out])
    before = t.owners.get(weight.name)
    name = None if before else owner(t, weight)
    if before:
        more["tied"] = before
    else:
        t.owners[weight.name] = name
        t.moved[f"{name}.weight"] = w
        t.taken.add(weight.name)
    own_bias = isinstance(bias, Weight) and bias.name and not bias.then and bias.data.shape == bias.whole.shape and not before and bias.name not in t.taken
    if own_bias:
        t.moved[f"{name}.bias"] = bias.data
        t.taken.add(bias.name)
    made = Run(data, t.emit("linear", [x.value], alone(data.shape), name, out=out, bias=bool(own_bias), **more))
    return made if bias is None or own_bias else rule_add(t, made, bias)


def rule_embedding(t, x, weight, padding_idx=None, *rest, **more):
    need(isinstance(x, Run) and isinstance(weight, Weight) and weight.name and not any(rest), "an embedding of other settings; use nn.Embedding")
    before = t.owners.get(weight.name)
    name = None if before else owner(t, weight)
    given = {"tied": before} if before else {}
    if not before:
        t.owners[weight.name] = name
        t.moved[f"{name}.weight"] = weight.data
        t.taken.add(weight.name)
    data = blank([*x.shape, weight.data.shape[1]])
    if padding_idx is not None:
        given["padding_idx"] = padding_idx % weight.data.shape[0]
    return Run(data, t.emit("embedding", [x.value], data.shape, name, rows=weight.data.shape[0], out=weight.data.shape[1], **given))


def rule_attention(t, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """[N, heads, T, width] becomes [N, T, heads width], and back: where a module has just moved
    the heads, nothing of that is left."""
    need(all(isinstance(x, Run) for x in (q, k, v)), "an argument that is no value of a layer")
    if all(x.data.dim() == 3 for x in (q, k, v)):
        made = rule_attention(t, *(RULES["unsqueeze"](t, x, 1) for x in (q, k, v)), attn_mask, dropout_p, is_causal, scale)
        return RULES["squeeze"](t, made, 1)
    need(all(x.data.dim() == 4 for x in (q, k, v)), "other tensors than [N, heads, T, width]")
    n, heads, steps, width = q.shape
    if scale is not None and abs(scale * width ** 0.5 - 1) >= 1e-6:
        q = rule_mul(t, q, scale * width ** 0.5)
    need(k.shape == v.shape and k.shape[3] == width, "keys and values of other widths")
    need(enable_gqa or k.shape[1] == heads, "other heads of keys")
    if isinstance(attn_mask, (Choice, Run)):
        need(k.shape[1] == heads, "other heads of keys under a mask by values")
        return attend_by_values(t, q, k, v, attn_mask, bool(is_causal), dropout_p)
    seen = (bool(is_causal), None) if attn_mask is None else seen_by("attn_mask", attn_mask, steps, k.shape[2], True)
    flat = [t.reshape(t.permute(x.value, [0, 2, 1, 3]), [n, x.shape[2], x.shape[1] * width]) for x in (q, k, v)]
    y = t.attend(*flat, heads, k.shape[1], seen, dropout_p)
    y = t.permute(t.reshape(y, [n, steps, heads, width]), [0, 2, 1, 3])
    return Run(blank(q.shape), y)


def attend_by_values(t, q, k, v, mask, causal, p):
    """Attention as products and a softmax, since the op knows masks by lengths alone. mask: a
    comparison, True where a place is seen, or numbers that are added to the scores."""
    note = "attention with a mask by values is several layers, which keep the scores of all pairs; with an input of lengths it is one"
    t.notes += [note] if note not in t.notes else []
    scores = rule_matmul(t, rule_mul(t, q, q.shape[-1] ** -0.5), rule_transpose(t, k, -2, -1))
    if isinstance(mask, Choice):
        scores = lowered(t, scores, ones_where(t, mask))
    else:
        scores = summed(t, scores, mask)
    if causal:
        hidden = torch.ones(1, 1, *scores.shape[2:], dtype=torch.bool).triu(1)
        low = torch.zeros(hidden.shape).masked_fill(hidden, LOWEST)
        scores = summed(t, *beside(t, scores, Weight(low, None, low, False)))
    return rule_matmul(t, rule_dropout(t, RULES["softmax"](t, scores, -1), p), v)


# Functions that take a comparison itself; others take its ones and zeros.
CHOOSING = {"where", "masked_fill", "masked_fill_", "invert", "logical_not", "bitwise_not", "and", "logical_and", "bitwise_and", "or", "logical_or", "bitwise_or"}


def refused(why):
    def rule(t, *args, **kwargs):
        raise Unsupported(why)
    rule.is_refusal = True
    return rule


DRAWS = "random numbers that forward draws; a session draws those of nn.Dropout alone. Make them an input of their own, --input noise:f32:EXTENTS, with records that were drawn before"
BY_VALUE = "a number of a tensor, which decides something: a session does one thing for all records"
RULES = {
    **dict.fromkeys(("add", "iadd", "radd"), rule_add), **dict.fromkeys(("sub", "isub", "subtract"), rule_sub), "rsub": lambda t, a, b, **k: rule_sub(t, b, a, **k),
    **dict.fromkeys(("mul", "imul", "rmul", "multiply"), rule_mul), **dict.fromkeys(("truediv", "div", "divide", "itruediv"), rule_div),
    **dict.fromkeys(("rtruediv", "rdiv"), lambda t, a, b: rule_div(t, b, a)), "reciprocal": lambda t, x: rule_div(t, 1.0, x), "square": lambda t, x: rule_pow(t, x, 2), "pow": rule_pow,
    "neg": lambda t, x: rule_mul(t, x, -1), "pos": rule_same, **dict.fromkeys(("matmul", "bmm", "mm"), rule_matmul), "rmatmul": lambda t, a, b: rule_matmul(t, b, a),
    "addmm": rule_baddbmm, "baddbmm": rule_baddbmm, "einsum": rule_einsum,
    **dict.fromkeys(("reshape", "view"), reshaped(torch.Tensor.reshape)), "reshape_as": lambda t, x, y: RULES["reshape"](t, x, y.shape), "view_as": lambda t, x, y: RULES["reshape"](t, x, y.shape),
    "flatten": reshaped(torch.flatten), "ravel": refused("ravel joins the records; use flatten(1)"), "unsqueeze": reshaped(torch.unsqueeze), "squeeze": reshaped(torch.squeeze),
    "unflatten": reshaped(torch.Tensor.unflatten), "permute": rule_permute, **dict.fromkeys(("transpose", "swapaxes", "swapdims"), rule_transpose), "movedim": lambda t, x, a, b: rule_permute(t, x, order_of(torch.movedim, x.data.dim(), a, b)),
    "T": rule_turned, "mT": rule_turned, "t": rule_turned, **dict.fromkeys(("contiguous", "clone", "requires_grad", "cuda", "cpu"), rule_same),
    **dict.fromkeys(("to", "type", "type_as"), rule_cast), "float": as_dtype(torch.float32), "long": as_dtype(torch.int64), "double": as_dtype(torch.float64), "half": as_dtype(torch.float16),
    "expand": rule_spread, "expand_as": lambda t, x, y: rule_spread(t, x, *y.shape), "repeat": rule_repeat, "broadcast_to": rule_spread, "flip": rule_flip, "roll": rule_roll,
    "getitem": rule_item, "narrow": rule_narrow, "select": rule_select, "iter": rule_iter,
    "split": parts(torch.split), "chunk": parts(torch.chunk), "tensor_split": parts(torch.tensor_split), "unbind": rule_unbind,
    **dict.fromkeys(("cat", "concat", "concatenate"), rule_cat), "stack": rule_stack, "pad": rule_pad,
    "pixel_shuffle": rule_shuffle, "pixel_unshuffle": rule_unshuffle, "channel_shuffle": rule_channel_shuffle, "native_channel_shuffle": rule_channel_shuffle,
    "mean": rule_mean, "sum": rule_sum, "max": rule_max, "min": rule_min, "maximum": rule_max, "minimum": rule_min, "abs": rule_abs,
    "softmax": rule_softmax("softmax"), "log_softmax": rule_softmax("log_softmax"), "softmin": lambda t, x, dim=None, **k: rule_softmax("softmax")(t, rule_mul(t, x, -1), dim),
    "dropout": rule_dropout, **dict.fromkeys(("dropout1d", "dropout2d", "dropout3d", "feature_dropout"), rule_feature_dropout),
    "lt": comparison("lt", compared("seen", None)), "gt": comparison("gt", compared(None, "seen")), "ge": comparison("ge", compared("hidden", None)), "le": comparison("le", compared(None, "hidden")),
    "eq": rule_eq, "ne": rule_ne, **dict.fromkeys(("invert", "logical_not", "bitwise_not"), rule_not), **dict.fromkeys(("and", "logical_and", "bitwise_and"), both), **dict.fromkeys(("or", "logical_or", "bitwise_or"), either),
    **{name: by_module(name) for name in FUNCTIONS}, **COMPOSED, "glu": rule_glu, "one_hot": rule_one_hot, "interpolate": rule_interpolate, "upsample": rule_interpolate,
    "layer_norm": rule_layer_norm, "linear": rule_linear, "embedding": rule_embedding, "scaled_dot_product_attention": rule_attention,
    "exp": rule_exp, "logsumexp": rule_logsumexp, "sqrt": by_op("sqrt"), "rsqrt": lambda t, x: rule_pow(t, x, -0.5), "var": rule_var, "std": lambda t, x, *a, **k: by_op("sqrt")(t, rule_var(t, x, *a, **k)),
    "normalize": rule_normalize, **dict.fromkeys(("norm", "linalg_vector_norm", "linalg_norm"), rule_norm), "cosine_similarity": rule_cosine, "pairwise_distance": rule_distance,
    "masked_fill": rule_masked_fill, "where": rule_where, "zeros_like": lambda t, x, **k: torch.zeros(x.shape), "ones_like": lambda t, x, **k: torch.ones(x.shape),
    "full_like": lambda t, x, value, **k: torch.full(x.shape, float(value)),
    "new_zeros": lambda t, x, *shape, **k: torch.zeros(*shape, dtype=k.get("dtype", x.dtype)), "new_ones": lambda t, x, *shape, **k: torch.ones(*shape, dtype=k.get("dtype", x.dtype)),
    "new_full": lambda t, x, shape, value, **k: torch.full(shape, value, dtype=k.get("dtype", x.dtype)), "new_tensor": lambda t, x, value, **k: torch.tensor(value, dtype=k.get("dtype", x.dtype)),
    "clamp": rule_clamp, "clip": rule_clamp, "clamp_min": lambda t, x, min: rule_clamp(t, x, min), "clamp_max": lambda t, x, max: rule_clamp(t, x, None, max), "cumsum": rule_cumsum,
    **dict.fromkeys(("bool", "item", "int", "index", "tolist", "numpy", "equal", "allclose", "any", "all"), refused(BY_VALUE)),
    "detach": refused("detach(): a session computes the gradient of all that it computes; freeze parameters instead"),
    "data": refused(".data, which has no gradient; use the tensor itself"),
    **dict.fromkeys(("setitem", "index_put", "index_copy", "scatter", "masked_scatter", "copy"), refused("a part of a tensor that is written; make a list of the parts and torch.cat or torch.stack them")),
    **dict.fromkeys(("rand_like", "randn_like", "bernoulli", "normal", "randint_like"), refused(DRAWS)),
    **dict.fromkeys(("argmax", "argsort", "argmin", "topk", "sort"), refused("places of values, which have no gradient; take them of the output of predict")),
    **dict.fromkeys(("amax", "amin"), refused("amax, which divides the gradient among equal values; use torch.max(x, dim)[0]")),
    **dict.fromkeys(("pack_padded_sequence",), refused("packed sequences; leave them padded, or give lengths to attention")),
}


# ---- tensors with the records second, as batch_first=False has them

EACH = {"add", "iadd", "radd", "sub", "rsub", "isub", "mul", "imul", "rmul", "truediv", "div", "neg", "dropout", "linear", "layer_norm", "contiguous", "clone", "to", "float", "type_as", "abs", *FUNCTIONS, *COMPOSED}
BEHIND = {"mean": 1, "sum": 1, "max": 1, "min": 1, "softmax": 1, "log_softmax": 1, "unbind": 1, "narrow": 1, "select": 1, "squeeze": 1, "cat": 1, "concat": 1, "chunk": 2, "split": 2, "flip": 1}


def turned(x):
    return Run(x.data.transpose(0, 1), x.value, 1 - x.at)


def turned_constant(a):
    """A constant beside such a value, with the records first as well."""
    if isinstance(a, torch.Tensor) and a.dim() == 3:
        return a.transpose(0, 1)
    if isinstance(a, Weight) and a.data.dim() == 3 and not a.then:
        return Weight(a.data.transpose(0, 1), a.name, a.whole, a.learns)
    return turned(a) if isinstance(a, Run) else a


def in_second(t, name, function, args, kwargs):
    """A function of tensors [T, N, ...]: over [N, T, ...], with dimensions 0 and 1 exchanged."""
    x = next(a for a in leaves([args, kwargs]) if isinstance(a, Run) and a.at)
    hint = f"{name} of a tensor with the records in its second dimension; use batch_first=True, or transpose(0, 1) it before"
    if name in EACH:
        need(all(a.at for a in leaves([args, kwargs]) if isinstance(a, Run)), f"{name} of tensors with the records first and second")
        return turned(t.call(name, function, *mapped(turned_constant, [args, kwargs])))
    if name in ("permute", "transpose", "swapaxes"):
        order = order_of(function, x.data.dim(), *args[1:], **kwargs)
        return rule_permute(t, turned(x), [{0: 1, 1: 0}.get(d, d) for d in order])
    if name == "getitem":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        need(len(index) < 2 or index[1] == slice(None), hint)
        made = rule_item(t, turned(x), (slice(None), index[0], *index[2:]))
        return made if isinstance(index[0], int) else turned(made)
    if name in ("view", "reshape", "flatten", "squeeze"):
        data = (torch.Tensor.reshape if name == "view" else function)(x.data, *args[1:], **kwargs)
        if x.shape[0] == 1 and data.shape[0] == x.shape[1]:
            return Run(data, t.reshape(x.value, list(data.shape)))
        if data.dim() > 1 and data.shape[0] == x.shape[0] * x.shape[1]:
            return join(t, x, data)
        if data.dim() > 1 and data.shape[:2] == x.shape[:2]:
            return Run(data, t.reshape(x.value, [data.shape[1], data.shape[0], *data.shape[2:]]), 1)
        need(False, hint)
    need(name in BEHIND, hint)
    return along(t, name, function, x, args, kwargs, hint)


def along(t, name, function, x, args, kwargs, hint):
    """A function with a dimension: 0 becomes 1."""
    args, kwargs, at = list(args), dict(kwargs), BEHIND[name]
    given = kwargs.get("dim", args[at] if len(args) > at else 0)
    dims = [whole(d, x.data.dim()) for d in (given if isinstance(given, (tuple, list)) else [given])]
    need(1 not in dims, hint)
    new = [{0: 1}.get(d, d) for d in dims]
    new = new if isinstance(given, (tuple, list)) else new[0]
    if "dim" in kwargs or len(args) <= at:
        kwargs["dim"] = new
    else:
        args[at] = new
    keeps = name in ("softmax", "log_softmax", "narrow", "cat", "concat", "chunk", "split", "flip") or kwargs.get("keepdim") or 0 not in dims
    made = t.call(name, function, *mapped(turned_constant, [args, kwargs]))
    return mapped(lambda y: turned(y) if keeps and isinstance(y, Run) else y, made)


# ---- modules

def activation_of(m):
    """The op of what an encoder layer has between its two linear layers."""
    if m in (F.relu, torch.relu) or type(m) is nn.ReLU:
        return "relu"
    if m is F.gelu or type(m) is nn.GELU:
        return "gelu_tanh" if getattr(m, "approximate", "none") == "tanh" else "gelu"
    if m is F.silu or type(m) is nn.SiLU:
        return "silu"
    raise Unsupported(f"the activation {getattr(m, '__name__', type(m).__name__)}; there are relu, gelu and silu")


def is_parametrized(m):
    return bool(getattr(m, "parametrizations", None))


def what_hooks(m):
    """In words, with what removes them."""
    if getattr(m, "parametrizations", None):
        return f"parametrizations of {', '.join(m.parametrizations)} (torch.nn.utils.parametrize.remove_parametrizations leaves the plain tensor)"
    names = {type(h).__name__: re.sub("(?<=[a-z])(?=[A-Z])", "_", type(h).__name__).lower() for h in getattr(m, "_forward_pre_hooks", {}).values()}
    known = [f"torch.nn.utils.remove_{names[n]}" for n in sorted(names) if n in ("WeightNorm", "SpectralNorm")]
    return f"hooks ({', '.join(known)} leaves the plain weight)" if known else "hooks or parametrizations"


class Modules:
    """What Follower does with modules that are layers, or several of them."""

    def is_leaf(self, m):
        known = self.is_layer(m) or is_parametrized(m) or is_stochastic_depth(m) or isinstance(m, (nn.Identity, *SEVERAL, *NO_LAYERS, *RECURRENT, nn.RNN))
        return known or type(m).__module__.startswith("torch.nn.modules") and not list(m.children()) and not isinstance(m, nn.Sequential)

    def rows_of(self, m, path, numbers):
        """Rows of a table by numbers that no input changes."""
        if numbers.dim() == 2 and numbers.shape[0] == Records.n and bool((numbers == numbers[:1]).all()):
            numbers = numbers[:1]
        flat = numbers.flatten().tolist()
        first = flat[0] if flat else 0
        table = m.weight.detach()
        if flat != list(range(first, first + len(flat))) or m.padding_idx is not None:
            self.refuse(path, "rows of a table by other numbers than one after another, or with padding_idx; use torch.arange")
            return self.wrap(Run(table[numbers], self.broken(table[numbers])))
        return self.wrap(Weight(table[first:first + len(flat)].reshape(*numbers.shape, -1), f"{path}.weight", table))

    def broken(self, data):
        from export_values import Value
        return Value("?", data.shape, True)

    def shaped(self, m, x):
        """A blank tensor of the shape that the module gives: one record is computed."""
        made = self.numbers(m, torch.zeros([1, *x.shape[1:]], dtype=x.dtype))
        return made[:1].expand(x.shape[0], *[-1] * (made.dim() - 1))

    def call_module(self, m, path, args, kwargs):
        args, kwargs = laid_out(self, "", *mapped(self.of_latest, [args, kwargs]))
        if isinstance(m, nn.Identity):
            return args[0]
        need(not is_parametrized(m), f"{what_hooks(m)}, which no layer has; remove them before the export")
        need(not isinstance(m, NO_LAYERS), f"{type(m).__name__}: of PyTorch's transformers there is TransformerEncoder, and MultiheadAttention")
        for a in leaves([args, kwargs]):
            need(not isinstance(a, Absent), getattr(a, "why", ""))
        if isinstance(m, RECURRENT) and type(m) in RECURRENT:
            return self.recurrent(m, path, *args, **kwargs)
        if isinstance(m, SEVERAL):
            several = {nn.MultiheadAttention: self.multihead, nn.TransformerEncoder: self.encoder, nn.TransformerEncoderLayer: self.encoder_layer}
            need(type(m) in several and not m._forward_hooks and not m._forward_pre_hooks, f"{type(m).__name__}, a module of its own or with hooks")
            return several[type(m)](m, path, args, kwargs)
        if type(m) is nn.EmbeddingBag:
            return self.bag(m, path, *args, **kwargs)
        need_layer(self.is_layer(m) or is_stochastic_depth(m) or type(m) in MADE, f"{type(m).__name__} is no layer of this runtime")
        x = args[0] if args else next(iter(kwargs.values()))
        need(len(args) + len(kwargs) == 1, "more arguments than one")
        need(isinstance(x, Run), "an argument that is no value of a layer")
        if isinstance(m, nn.Dropout) and m.p == 0:
            return x
        if isinstance(x, Joined):
            return joined_module(self, m, path, x, padded)
        if is_stochastic_depth(m):
            return made_stochastic_depth(self, m, x)
        if x.at:
            need(type(m) in (nn.Linear, nn.LayerNorm, nn.Dropout, nn.Identity) or not list(m.parameters()) and self.is_layer(m) and type(m).__name__ in {c for c, _ in FUNCTIONS.values()},
                 f"{type(m).__name__} over a tensor with the records in its second dimension; transpose(0, 1) it before")
            return turned(self.one_layer(m, path, turned(x)))
        return self.one_layer(m, path, x)

    def one_layer(self, m, path, x):
        if not list(m.parameters()):
            made = MADE.get(type(m))
            if made:
                return as_layer(self, m, x)
        try:
            layer, keeps = self.layer_of(m, x.data.dim())
        except LookupError:
            raise Missing(f"{type(m).__name__} is no layer of this runtime; export_torch.py --list names what there is") from None
        data = x.data if keeps else self.shaped(m, x)
        layer, more = dict(layer), {}
        op = layer.pop("op")
        if not list(m.parameters()):
            return Run(data, self.emit(op, [x.value], alone(data.shape), **layer))
        return self.with_weights(m, path, x, data, op, layer)

    def bag(self, m, path, x, *rest, **more):
        """Rows of a table for [N, places], and their mean or sum."""
        need(isinstance(x, Run) and x.data.dim() == 2 and not rest and not more and m.mode in ("mean", "sum") and m.max_norm is None and m.padding_idx is None,
             f"EmbeddingBag with offsets, weights, padding_idx or mode='{m.mode}'; give it [N, places], or use nn.Embedding and a mean")
        table = nn.Embedding(m.num_embeddings, m.embedding_dim)
        table.weight = m.weight
        return (rule_mean if m.mode == "mean" else rule_sum)(self, self.one_layer(table, path, x), 1)

    def with_weights(self, m, path, x, data, op, layer):
        """A layer whose weight an earlier one may have too: then it is tied, and a bias of both is
        a value."""
        weight, bias = m.weight, getattr(m, "bias", None)
        before = self.owners.get(id(weight))
        if op in NORMS and (before is not None or path in self.split):
            if path not in self.split:
                self.split |= {self.paths[id(o)] for o in self.model.modules() if getattr(o, "weight", None) is weight}
                raise Again
            return self.shared_norm(m, path, x, data, op, layer)
        need(before is None or op in SHARED, f"a second use of the parameters of '{before}' ({type(m).__name__}); linear, convolutions, embeddings and norms without running statistics share theirs, so give each place a {type(m).__name__} of its own")
        more, name = {}, None if path in self.called else path
        self.called.add(path)
        if before:
            more["tied"] = before
            if bias is not None and id(bias) in self.biases and path not in self.split:
                self.split |= {self.paths[id(o)] for o in self.model.modules() if getattr(o, "bias", None) is bias}
                raise Again
        if isinstance(x.value, Column):
            more["column"] = x.value.column
        split = path in self.split
        if split:
            layer["bias"] = False
        made = self.emit(op, [x.value], alone(data.shape), name, **layer, **more)
        if not before:
            self.owners[id(weight)] = made.name
        if bias is None:
            return Run(data, made)
        self.biases.add(id(bias))
        if not split:
            return Run(data, made)
        side = bias.detach() if op == "linear" else bias.detach().reshape(-1, *[1] * (data.dim() - 2))
        w = Weight(side, f"{path}.bias", bias.detach())
        first = next((n for n, p in self.model.named_parameters() if p is bias), w.name)
        w.name = first
        return summed(self, Run(data, made), self.weight(w, Run(data, made)))

    def shared_norm(self, m, path, x, data, op, layer):
        """A norm whose parameters have several uses: its own are ones and zeros that do not learn,
        and the shared ones are a product and a sum behind it."""
        name = self.unique(f"{path}.norm", False)
        self.names.discard(name)
        made = Run(data, self.emit(op, [x.value], alone(data.shape), name, **layer))
        self.frozen.append(name)
        for leaf, like, rule in (("weight", torch.ones_like, rule_mul), ("bias", torch.zeros_like, rule_add)):
            p = getattr(m, leaf, None)
            if p is None:
                continue
            self.moved[f"{name}.{leaf}"] = like(p.detach())
            first = next(n for n, q in self.model.named_parameters() if q is p)
            w = p.detach().reshape(-1, *[1] * (data.dim() - 2)) if op == "groupnorm" else p.detach()
            made = rule(self, made, Weight(w, first, p.detach()))
        return made

    def recurrent(self, m, path, x, hx=None):
        """The sequence of outputs, and the last states."""
        need(isinstance(x, Run) and x.data.dim() == 3, "an input that is no value [N, places, features]; leave sequences padded")
        is_lstm = isinstance(m, nn.LSTM)
        need(hx is None or all(isinstance(h, torch.Tensor) and not bool(h.any()) for h in leaves([hx])), "first states that are not 0")
        need(bool(x.at) != m.batch_first, "batch_first=False; make the module with batch_first=True")
        need(path not in self.called, f"a second call of '{path}', which has parameters; give each place a {type(m).__name__} of its own")
        self.called.add(path)
        inner = turned(x) if x.at else x
        both = 2 if m.bidirectional else 1
        if m.num_layers > 1 and (m.dropout or m.bidirectional):
            self.divided.add(path)
        divided = path in self.divided or m.bidirectional
        out, states = self.steps(m, path, inner, both) if divided else self.one_op(m, path, inner)
        last = self.last_states(m, path, states, both, divided)
        out = turned(out) if x.at else out
        return out, (last, Absent(torch.zeros(last.data.shape), "the cell state c of an LSTM; a session has its outputs and h alone")) if is_lstm else last

    def one_op(self, m, path, x):
        try:
            layer, _ = self.layer_of(m if m.batch_first else batch_first(m), 3)
        except LookupError:
            raise Missing(f"{type(m).__name__} is no layer of this runtime; an nn.LSTM is") from None
        layer = dict(layer)
        data = torch.zeros(*x.shape[:2], m.hidden_size)
        made = Run(data, self.emit(layer.pop("op"), [x.value], data.shape, path, **layer))
        return made, [made]

    def steps(self, m, path, x, both):
        """An op of each layer and direction."""
        op, found = self.recurrent_op(m), []
        if both == 2:
            need("flip" in self.ops, "bidirectional=True; use two modules, or one direction")
        for k in range(m.num_layers):
            made = [self.direction(m, path, x, op, k, back) for back in range(both)]
            found += made
            x = made[0] if both == 1 else Run(torch.cat([r.data for r in made], 2), self.concat([r.value for r in made], 2))
            if m.dropout and k < m.num_layers - 1:
                x = Run(x.data, self.emit("dropout", [x.value], x.value.shape, p=float(m.dropout)))
        return x, found

    def recurrent_op(self, m):
        try:
            return self.layer_of(batch_first(m, True), 3)[0]["op"]
        except LookupError:
            raise Missing(f"{type(m).__name__} is no layer of this runtime; an nn.LSTM is") from None

    def direction(self, m, path, x, op, k, back):
        suffix, name = f"_l{k}{'_reverse' if back else ''}", f"{path}.l{k}{'_reverse' if back else ''}".strip(".")
        for leaf in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            t = getattr(m, leaf + suffix, None)
            if isinstance(t, torch.Tensor):
                self.moved[f"{name}.{leaf}_l0"] = t
                self.taken.add(f"{path}.{leaf}{suffix}".strip("."))
        data, value = torch.zeros(*x.shape[:2], m.hidden_size), x.value
        more = {} if m.bias else {"bias": False}
        if back:
            value = self.emit("flip", [value], value.shape, dim=1)
        made = self.emit(op, [value], data.shape, name, out=m.hidden_size, **more)
        return Run(data, self.emit("flip", [made], data.shape, dim=1) if back else made)

    def last_states(self, m, path, states, both, divided):
        """[layers, N, hidden]: the last step of each direction, which of the second is the first
        place."""
        ends = []
        for k, r in enumerate(states):
            step = 0 if both == 2 and k % 2 else r.shape[1] - 1
            ends.append(rule_item(self, r, (slice(None), step)))
        count = m.num_layers * both
        if count > 1 and not divided:
            return States(torch.zeros(count, *ends[0].shape), path, ends[0])
        made = rule_stack(self, ends, 1) if count > 1 else reshaped(torch.unsqueeze)(self, ends[0], 1)
        return Run(made.data.transpose(0, 1), made.value, 1)

    def multihead(self, m, target, args, kwargs):
        names = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal")
        given = {**dict(zip(names, args)), **kwargs}
        x = [given[k] for k in names[:3]]
        need(all(isinstance(v, Run) for v in x), "an argument that is no value of a layer")
        need(all(bool(v.at) != m.batch_first for v in x), "batch_first=False; make the module with batch_first=True")
        need(m.in_proj_weight is not None and m.bias_k is None and not m.add_zero_attn, "kdim, vdim, add_bias_kv or add_zero_attn")
        second = x[0].at
        x = [turned(v) if v.at else v for v in x]
        causal, lengths = seen_by("attn_mask", given.get("attn_mask"), x[0].shape[1], x[1].shape[1], False)
        need(not lengths, "an attn_mask of lengths; they are the key_padding_mask")
        padding = given.get("key_padding_mask")
        by_values = isinstance(padding, Choice)
        _, lengths = seen_by("key_padding_mask", None if by_values else padding, 1, x[1].shape[1], False)
        biases = m.in_proj_bias.chunk(3) if m.in_proj_bias is not None else (None,) * 3
        is_second = self.named(target, "q") in self.names
        if is_second and target not in self.split:
            self.split.add(target)
            raise Again

        def project(v, what, weight, bias, whole, leaf):
            """A linear layer. Of a module with several uses later ones are tied to the first, and a
            bias is a value of its own."""
            name = self.named(target, what)
            if target not in self.split:
                return self.linear(v, name, weight, bias)
            shape, out = [*v.shape[:-1], weight.shape[0]], weight.shape[0]
            made = self.emit("linear", [v], shape, out=out, bias=False, tied=name) if is_second else self.linear(v, name, weight, None)
            w = Weight(bias.detach(), self.named(target, leaf), whole.detach()) if bias is not None else None
            return rule_add(self, Run(blank(shape), made), w).value if w else made
        parts = [project(v.value, what, weight, bias, m.in_proj_bias, "in_proj_bias") for v, what, weight, bias in zip(x, ("q", "k", "v"), m.in_proj_weight.chunk(3), biases)]
        if by_values:
            y = self.attend_heads(m, parts, padding, causal)
        else:
            y = self.attend(*parts, m.num_heads, m.num_heads, (causal, lengths), m.dropout, None if is_second else self.named(target, "attention"))
        y = project(y, "out_proj", m.out_proj.weight, m.out_proj.bias, m.out_proj.bias, "out_proj.bias")
        self.taken |= {f"{target}.{n}".strip(".") for n, _ in m.named_parameters()}
        made = Run(torch.zeros(x[0].shape), y)
        weights = Absent(torch.zeros(x[0].shape[0], x[0].shape[1], x[1].shape[1]), "the weights of attention; a session has its output alone")
        return turned(made) if second else made, weights

    def named(self, target, what):
        return f"{target}.{what}".strip(".")

    def attend_heads(self, m, parts, hidden, causal):
        """Attention of [N, places, features] each, under a comparison [N, keys] that hides keys."""
        n, _, width = parts[0].shape
        split = [[n, v.shape[1], m.num_heads, width // m.num_heads] for v in parts]
        q, k, v = (Run(blank([s[0], s[2], s[1], s[3]]), self.permute(self.reshape(v, s), [0, 2, 1, 3])) for v, s in zip(parts, split))
        seen = shaped_choice(self, "reshape", (rule_not(self, hidden), [n, 1, 1, hidden.shape[1]]), {})
        y = attend_by_values(self, q, k, v, seen, causal, m.dropout)
        return self.reshape(self.permute(y.value, [0, 2, 1, 3]), [n, parts[0].shape[1], width])

    def inner(self, m, target, x):
        """A module in one that is several layers."""
        return x if isinstance(m, nn.Dropout) and m.p == 0 else self.one_layer(m, target, x)

    def encoder(self, m, target, args, kwargs):
        names = ("src", "mask", "src_key_padding_mask", "is_causal")
        given = {**dict(zip(names, args)), **kwargs}
        x, masks = given["src"], (given.get("mask"), given.get("src_key_padding_mask"))
        for k, layer in enumerate(m.layers):
            need(type(layer) is nn.TransformerEncoderLayer, f"{type(layer).__name__} among its layers")
            x = self.encoder_layer(layer, f"{target}.layers.{k}".strip("."), (x, *masks), {})
        if m.norm is None:
            return x
        made = self.inner(m.norm, f"{target}.norm".strip("."), turned(x) if x.at else x)
        return turned(made) if x.at else made

    def encoder_layer(self, m, target, args, kwargs):
        names = ("src", "src_mask", "src_key_padding_mask", "is_causal")
        given = {**dict(zip(names, args)), **kwargs}
        x, masks = given["src"], {"attn_mask": given.get("src_mask"), "key_padding_mask": given.get("src_key_padding_mask")}
        need(isinstance(x, Run) and x.data.dim() == 3, "an argument that is no value [N, places, features]")
        need(bool(x.at) != m.self_attn.batch_first, "batch_first=False; make the module with batch_first=True")
        if x.at:
            m_first = lambda y: turned(y)
            return turned(self.layers_of(m, target, m_first(x), masks))
        return self.layers_of(m, target, x, masks)

    def layers_of(self, m, target, x, masks):
        at = lambda name: self.named(target, name)
        once = lambda name: None if at(name) in self.names else at(name)

        def add(a, b, name):
            return Run(a.data, self.emit("add", [a.value, b.value], a.shape, once(name)))

        def attended(x):
            given = x if m.self_attn.batch_first else turned(x)
            y, _ = self.multihead(m.self_attn, at("self_attn"), (given, given, given), masks)
            return self.inner(m.dropout1, at("dropout1"), turned(y) if y.at else y)

        def fed(x):
            y = self.inner(m.linear1, at("linear1"), x)
            y = Run(y.data, self.emit(activation_of(m.activation), [y.value], y.shape, once("activation")))
            y = self.inner(m.linear2, at("linear2"), self.inner(m.dropout, at("dropout"), y))
            return self.inner(m.dropout2, at("dropout2"), y)

        def norm(k, x):
            return self.inner(getattr(m, f"norm{k}"), at(f"norm{k}"), x)

        if m.norm_first:
            x = add(x, attended(norm(1, x)), "add1")
            return add(x, fed(norm(2, x)), "add2")
        x = norm(1, add(x, attended(x), "add1"))
        return norm(2, add(x, fed(x), "add2"))


def batch_first(m, one=False):
    """The module's settings with the records first, and with `one` of one layer and direction."""
    more = {"proj_size": m.proj_size} if getattr(m, "proj_size", 0) else {}
    return type(m)(1, m.hidden_size, 1 if one else m.num_layers, bias=bool(m.bias), batch_first=True, **more)


# ---- for the page

NEEDS_OP = {"rsqrt": "pow", "exp": "pow", "rtruediv": "pow", "reciprocal": "pow", "var": "var", "std": "var", "clamp": "clamp", "clip": "clamp", "clamp_min": "clamp", "clamp_max": "clamp", "cumsum": "cumsum", "normalize": "clamp", "norm": "sqrt", "linalg_vector_norm": "sqrt", "linalg_norm": "sqrt", "cosine_similarity": "clamp",
            "pairwise_distance": "sqrt", "selu": "elu", "celu": "elu", "softsign": "pow", "logsigmoid": "softplus", "log_sigmoid": "softplus", "threshold": "where", "hardshrink": "where"}


def functions(ops, modules):
    """Names of torch, torch.nn.functional and of tensors' methods that become layers with these ops
    and modules, and those that are refused with a way out."""
    operators = {n for n in RULES if hasattr(torch.Tensor, f"__{n}__")}
    known = [n for n in RULES if n not in operators or any(hasattr(o, n) for o in (torch, F))]
    made = {m.__name__ for m in MADE}
    has = lambda n: (FUNCTIONS[n][0] in modules or FUNCTIONS[n][0] in made) if n in FUNCTIONS else getattr(RULES[n], "op", NEEDS_OP.get(n, "add")) in ops
    no = {n for n in known if getattr(RULES[n], "is_refusal", False)}
    return sorted(n for n in known if n not in no and has(n)), sorted(no)

# SPDX-License-Identifier: Apache-2.0
"""What export_torch.py does with a module that is no nn.Sequential: torch.fx follows it, and each
thing that it does on records of the extents of --input becomes a layer of a session."""
import dis
import functools
import inspect
import os
import re

import torch
from torch import fx, nn
from torch.nn import functional as F

from export_values import BATCH, MASK_RULES, Mask, RowsOf, Run, Unsupported, Value, Weight, compared, leaves, need, seen_by


def input_of(text):
    """(name, dtype, extents of a record) of "ids:i64:16" or "pixels:f32:3x8x8"."""
    match = re.fullmatch(r"([A-Za-z0-9_-]+):(f32|i64)((?::\d+(?:x\d+)*)?)", text)
    if not match:
        raise Unsupported(f"--input {text}: expected NAME:f32:3x8x8 or NAME:i64:16, without the batch")
    name, dtype, extents = match.groups()
    return name, dtype, [int(n) for n in extents[1:].split("x")] if extents else []


def example(dtype, extents):
    shape = [BATCH, *extents]
    return torch.zeros(shape, dtype=torch.int64) if dtype == "i64" else torch.rand(shape)


NO_LAYERS = (nn.Transformer, nn.TransformerDecoder, nn.TransformerDecoderLayer)
SEVERAL = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)


MAX_RANK = 8  # dimensions of a value of a session, the batch among them


class Followed(fx.Proxy):
    """A value that is traced. torch 1.13 cannot unpack one into names with Python 3.11."""

    def __iter__(self):
        frame = inspect.currentframe().f_back
        at = next((i for i in dis.get_instructions(frame.f_code) if i.offset == frame.f_lasti), None)
        if at and at.opname == "UNPACK_SEQUENCE":
            return (self[k] for k in range(at.argval))
        return self.tracer.iter(self)


class Tracer(fx.Tracer):
    """Stops at the modules that are layers, or several of them."""

    def __init__(self, is_layer):
        super().__init__()
        self.is_layer = is_layer

    def proxy(self, node):
        return Followed(node, self)

    def is_leaf_module(self, m, path):
        return self.is_layer(m) or isinstance(m, (nn.Identity, *SEVERAL, *NO_LAYERS))


class Layers(fx.Interpreter):
    """Runs a traced module, and writes down a layer for each thing that it does. layer_of: (layer,
    whether it keeps the shape) of a module over an input of that rank."""

    def __init__(self, gm, inputs, layer_of):
        super().__init__(gm)
        self.layer_of = layer_of
        self.inputs, self.layers, self.values, self.names = inputs, [], {}, set()
        self.called, self.taken, self.at, self.moved = set(), set(), None, {}
        self.extra_traceback = False

    # ---- writing a layer down

    def emit(self, op, sources, shape, name=None, /, **attributes):
        need(not name or name not in self.names, f"the name '{name}', which an input or another layer has")
        name = self.unique(name or self.at.name)
        layer = {"op": op, **attributes, "name": name, "from": [s.name for s in sources]}
        self.layers.append(layer)
        made = Value(name, shape)
        self.values[name] = (layer, made, list(sources))
        return made

    def unique(self, name):
        need(re.fullmatch(r"[A-Za-z0-9_.-]{1,63}", name),
             f"its name '{name}', which has 1 to 63 letters, digits, '.', '_' or '-'")
        taken, k = name, 1
        while taken in self.names:
            taken, k = f"{name}-{k}", k + 1
        self.names.add(taken)
        return taken

    def maker(self, v, op):
        """(layer, source) of a value, if a layer of this op has made it."""
        layer, _, sources = self.values.get(v.name, ({}, None, []))
        return (layer, sources[0]) if layer.get("op") == op else (None, None)

    def reshape(self, v, shape, name=None):
        """Of a reshape the source is reshaped; what has the shape already stays."""
        need(shape and shape[0] == BATCH and v.shape[0] == BATCH, f"the shape {shape} of {v.shape}: it joins or divides records of a batch")
        _, source = self.maker(v, "reshape")
        v = source or v
        if list(shape) == v.shape:
            return v
        need(2 <= len(shape) <= MAX_RANK, f"the shape {shape}; a reshape gives 2 to {MAX_RANK} dimensions, and a number a record is [N, 1]")
        if len(shape) == 2 and len(v.shape) > 2:
            return self.emit("flatten", [v], shape, name)
        return self.emit("reshape", [v], shape, name, shape=list(shape[1:]))

    def permute(self, v, order, name=None):
        need(order[0] == 0, "a permutation that moves the records of a batch")
        layer, source = self.maker(v, "permute")
        if layer:
            order, v = [([0] + layer["order"])[k] for k in order], source
        if list(order) == list(range(len(order))):
            return v
        return self.emit("permute", [v], [v.shape[k] for k in order], name, order=list(order[1:]))

    def cut(self, v, dim, start, stop, name=None):
        need(dim != 0, "an index into the records of a batch")
        if start == 0 and stop >= v.shape[dim]:
            return v
        need(start < stop, f"the empty range {start}..{stop} of a dimension")
        shape = list(v.shape)
        shape[dim] = stop - start
        return self.emit("slice", [v], shape, name, dim=dim, start=start, stop=stop)

    def scaled(self, v, factor, name=None):
        return v if factor == 1 else self.emit("scale", [v], v.shape, name, factor=float(factor))

    def linear(self, v, name, weight, bias):
        self.moved[f"{name}.weight"] = weight
        if bias is not None:
            self.moved[f"{name}.bias"] = bias
        return self.emit("linear", [v], [*v.shape[:-1], weight.shape[0]], name, out=weight.shape[0], bias=bias is not None)

    def attend(self, q, k, v, heads, kv_heads, seen, p, name=None):
        """seen: (whether a place sees none behind it, the lengths of samples or None)"""
        more = {"kv_heads": kv_heads} if kv_heads != heads else {}
        sources = [q, k, v] + ([seen[1]] if seen[1] else [])
        return self.emit("attention", sources, q.shape, name, heads=heads, causal=seen[0], p=float(p), **more)

    # ---- what is run

    def run_node(self, n):
        self.at = n
        try:
            return super().run_node(n)
        except Unsupported as e:
            raise Unsupported(f"'{n.name}' ({place_of(n)}): {e}") from None

    def placeholder(self, target, args, kwargs):
        index = [n for n in self.module.graph.nodes if n.op == "placeholder"].index(self.at)
        need(index < len(self.inputs) or self.at.args, f"an input without --input {target}:f32:EXTENTS")
        if index >= len(self.inputs):
            return self.at.args[0]
        name, dtype, extents = self.inputs[index]
        self.names.add(name)
        return Run(example(dtype, extents), Value(name, [BATCH, *extents]))

    def get_attr(self, target, args, kwargs):
        value = super().get_attr(target, args, kwargs)
        return Weight(value, target) if isinstance(value, nn.Parameter) else value

    def call_module(self, target, args, kwargs):
        m = self.fetch_attr(target)
        if isinstance(m, nn.Identity):
            return args[0]
        need(target not in self.called or not list(m.parameters()), f"a second call of '{target}', which has parameters")
        # a module without parameters, as a ReLU, may come again
        name = None if target in self.called else target
        self.called.add(target)
        need(not isinstance(m, NO_LAYERS), f"{type(m).__name__}: of PyTorch's transformers there is TransformerEncoder, and MultiheadAttention")
        if isinstance(m, SEVERAL):
            several = {nn.MultiheadAttention: self.multihead, nn.TransformerEncoder: self.encoder, nn.TransformerEncoderLayer: self.encoder_layer}
            need(type(m) in several and not m._forward_hooks and not m._forward_pre_hooks, f"{type(m).__name__}, a module of its own or with hooks")
            return several[type(m)](m, target, args, kwargs)
        x = args[0]
        need(len(args) == 1 and not kwargs, "more arguments than one")
        if isinstance(m, nn.Embedding) and not isinstance(x, Run):
            return RowsOf(m(x), target, m, x)
        need(isinstance(x, Run), "an argument that is no value of a layer")
        layer, keeps_shape = self.layer_of(m, x.data.dim())
        data = x.data if keeps_shape else m(x.data)
        data = data[0] if isinstance(m, nn.LSTM) else data
        attributes = {k: v for k, v in layer.items() if k != "op"}
        made = Run(data, self.emit(layer["op"], [x.value], data.shape, name, **attributes))
        return (made, None) if isinstance(m, nn.LSTM) else made

    def multihead(self, m, target, args, kwargs):
        names = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal")
        given = {**dict(zip(names, args)), **kwargs}
        need(m.batch_first, "batch_first=False")
        need(m.in_proj_weight is not None and m.bias_k is None and not m.add_zero_attn, "kdim, vdim, add_bias_kv or add_zero_attn")
        x = [given[k] for k in names[:3]]
        need(all(isinstance(v, Run) for v in x), "an argument that is no value of a layer")
        causal, lengths = seen_by("attn_mask", given.get("attn_mask"), x[0].shape[1], x[1].shape[1], False)
        need(not lengths, "an attn_mask of lengths; they are the key_padding_mask")
        _, lengths = seen_by("key_padding_mask", given.get("key_padding_mask"), 1, x[1].shape[1], False)
        biases = m.in_proj_bias.chunk(3) if m.in_proj_bias is not None else (None,) * 3
        parts = [self.linear(v.value, f"{target}.{what}", weight, bias)
                 for v, what, weight, bias in zip(x, ("q", "k", "v"), m.in_proj_weight.chunk(3), biases)]
        y = self.attend(*parts, m.num_heads, m.num_heads, (causal, lengths), m.dropout, f"{target}.attention")
        y = self.linear(y, f"{target}.out_proj", m.out_proj.weight, m.out_proj.bias)
        self.taken |= {f"{target}.{n}" for n, _ in m.named_parameters()}
        return Run(m(*(v.data for v in x), need_weights=False)[0], y), None

    def inner(self, m, target, x):
        """A module in one that is several layers."""
        p = getattr(m, "p", None)
        return x if isinstance(m, nn.Dropout) and p == 0 else self.call_module(target, (x,), {})

    def encoder(self, m, target, args, kwargs):
        names = ("src", "mask", "src_key_padding_mask", "is_causal")
        given = {**dict(zip(names, args)), **kwargs}
        x, masks = given["src"], (given.get("mask"), given.get("src_key_padding_mask"))
        for k, layer in enumerate(m.layers):
            need(type(layer) is nn.TransformerEncoderLayer, f"{type(layer).__name__} among its layers")
            x = self.encoder_layer(layer, f"{target}.layers.{k}", (x, *masks), {})
        return self.inner(m.norm, f"{target}.norm", x) if m.norm is not None else x

    def encoder_layer(self, m, target, args, kwargs):
        names = ("src", "src_mask", "src_key_padding_mask", "is_causal")
        given = {**dict(zip(names, args)), **kwargs}
        x, masks = given["src"], {"attn_mask": given.get("src_mask"), "key_padding_mask": given.get("src_key_padding_mask")}
        need(isinstance(x, Run) and x.data.dim() == 3, "an argument that is no value [N, places, features]")

        def add(a, b, name):
            return Run(a.data, self.emit("add", [a.value, b.value], a.shape, f"{target}.{name}"))

        def attended(x):
            y, _ = self.multihead(m.self_attn, f"{target}.self_attn", (x, x, x), masks)
            return self.inner(m.dropout1, f"{target}.dropout1", y)

        def fed(x):
            y = self.inner(m.linear1, f"{target}.linear1", x)
            y = Run(y.data, self.emit(activation_of(m.activation), [y.value], y.shape, f"{target}.activation"))
            y = self.inner(m.linear2, f"{target}.linear2", self.inner(m.dropout, f"{target}.dropout", y))
            return self.inner(m.dropout2, f"{target}.dropout2", y)

        def norm(k, x):
            return self.inner(getattr(m, f"norm{k}"), f"{target}.norm{k}", x)

        if m.norm_first:
            x = add(x, attended(norm(1, x)), "add1")
            return add(x, fed(norm(2, x)), "add2")
        x = norm(1, add(x, attended(x), "add1"))
        return norm(2, add(x, fed(x), "add2"))

    def call_function(self, target, args, kwargs):
        return self.call(getattr(target, "__name__", str(target)), target, args, kwargs)

    def call_method(self, target, args, kwargs):
        return self.call(target, lambda x, *a, **k: getattr(x, target)(*a, **k), args, kwargs)

    def call(self, name, function, args, kwargs):
        """A constant is computed; what is made of a layer's value has to be a layer."""
        given = leaves([args, kwargs])
        if not any(isinstance(a, (Run, Weight, RowsOf, Mask)) for a in given):
            return function(*args, **kwargs)
        plain_name = name.strip("_")
        if any(isinstance(a, Mask) for a in given) and plain_name in MASK_RULES:
            return MASK_RULES[plain_name](function, *args, **kwargs)
        rule = RULES.get(plain_name if name not in RULES else name)
        need(rule, f"{name} is no layer; what there is: {', '.join(sorted(RULES))}")
        return rule(self, *args, **kwargs)

    def output(self, target, args, kwargs):
        result = args[0]
        if isinstance(result, (tuple, list)) and len(result) == 1:
            result = result[0]
        need(isinstance(result, Run), "an output that is not one value")
        need(len(result.value.shape) > 1, "an output of one number a record without a dimension of its own; let it be [N, 1]")
        self.result = result.value
        return result


def place_of(n):
    """Where the program does it, as far as torch.fx knows."""
    lines = [line.strip() for line in (n.stack_trace or "").splitlines() if line.strip().startswith("File")]
    file = re.search(r'File "(.*)", line (\d+)', lines[-1]) if lines else None
    return f"{os.path.basename(file.group(1))}:{file.group(2)}" if file else n.op


def activation_of(m):
    """The op of what an encoder layer has between its two linear layers."""
    if m in (F.relu, torch.relu) or type(m) is nn.ReLU:
        return "relu"
    if m is F.gelu or type(m) is nn.GELU:
        return "gelu_tanh" if getattr(m, "approximate", "none") == "tanh" else "gelu"
    if m is F.silu or type(m) is nn.SiLU:
        return "silu"
    raise Unsupported(f"the activation {getattr(m, '__name__', type(m).__name__)}; there are relu, gelu and silu")


# ---- rules: what a function of a value is among layers

def whole(dim, rank):
    return dim % rank


def plain(op, **fixed):
    def rule(t, x, *args, **kwargs):
        need(not [a for a in args if a not in (None, False)], "more arguments")
        return Run(x.data, t.emit(op, [x.value], x.shape, **fixed))
    return rule


def check_alike(a, b):
    """What add and mul take. PyTorch also puts dimensions before those of the smaller one."""
    fits = len(a.shape) == len(b.shape) and a.shape[0] == b.shape[0]
    need(fits and all(1 in (n, m) or n == m for n, m in zip(a.shape, b.shape)),
         f"values of {list(a.shape)} and {list(b.shape)}; they need as many dimensions, each alike or 1")


def rule_add(t, a, b, *, alpha=1, sign=1):
    need(alpha == 1, f"alpha={alpha}")
    if isinstance(a, (Weight, RowsOf)):
        a, b = b, a
        need(sign == 1, "a difference with a table")
    if isinstance(b, RowsOf):
        return with_positions(t, a, b)
    if isinstance(b, Weight):
        return with_table(t, a, b)
    for v in (a, b):
        need(isinstance(v, Run), "a number to add; there are scale, add and mul")
    check_alike(a, b)
    right = b.value if sign == 1 else t.scaled(b.value, -1)
    data = a.data + b.data
    return Run(data, t.emit("add", [a.value, right], data.shape))


def with_positions(t, x, rows):
    numbers = rows.numbers.flatten().tolist()
    first = numbers[0] if numbers else 0
    need(numbers == list(range(first, first + len(numbers))) and x.data.dim() == 3 and len(numbers) == x.shape[1],
         "a table by other rows than one after another, a row a place")
    need(rows.name not in t.names, f"a second call of '{rows.name}'")
    need(rows.module.padding_idx is None, f"padding_idx={rows.module.padding_idx} of a table of places")
    more = {"offset": first} if first else {}
    return Run(x.data + rows.data, t.emit("positions", [x.value], x.shape, rows.name, rows=rows.module.num_embeddings, **more))


def with_table(t, x, w):
    """[1, places, features] keeps its name; [places, features] is the weight of a layer of it."""
    shape, places = list(w.data.shape), list(x.shape[1:])
    need(x.data.dim() == 3 and shape in ([1, *places], places),
         f"the parameter '{w.name}' {shape} beside {list(x.shape)}; a table of places is [places, features]")
    need(w.name not in t.names, f"a second use of '{w.name}'")
    more = {"offset": w.first} if w.first else {}
    if len(shape) == 2:
        t.moved[f"{w.name}.weight"] = w.whole
        t.taken.add(w.name)
        return Run(x.data + w.data, t.emit("positions", [x.value], x.shape, w.name, rows=w.whole.shape[0], **more))
    return Run(x.data + w.data, t.emit("positions", [x.value], x.shape, w.name, rows=w.whole.shape[1], bare=True, **more))


def rows_of_weight(w, index):
    """[:, first:last] of a table [1, places, features], [first:last] of a [places, features]."""
    index = list(index) if isinstance(index, tuple) else [index]
    dim = w.data.dim() - 2
    need(w.data.dim() in (2, 3) and all(isinstance(i, slice) and i.step in (None, 1) for i in index),
         f"an index into the parameter '{w.name}' by other than places one after another")
    ranges = [i.indices(n)[:2] for i, n in zip(index, w.data.shape)]
    others = [r == (0, n) for k, (r, n) in enumerate(zip(ranges, w.data.shape)) if k != dim]
    need(all(others), f"a part of the parameter '{w.name}' that is not all features")
    first = ranges[dim][0] if dim < len(ranges) else 0
    return Weight(w.data[tuple(index)], w.name, w.whole, w.first + first)


def rule_mul(t, a, b):
    if isinstance(a, (int, float)):
        a, b = b, a
    need(isinstance(a, Run), "a factor that is no value of a layer")
    if isinstance(b, (int, float)):
        return Run(a.data * b, t.scaled(a.value, b))
    need(isinstance(b, Run), "a parameter as a factor")
    check_alike(a, b)
    data = a.data * b.data
    return Run(data, t.emit("mul", [a.value, b.value], data.shape))


def rule_div(t, a, b):
    need(isinstance(a, Run) and isinstance(b, (int, float)), "a division by what is no number")
    return rule_mul(t, a, 1 / b)


def rule_matmul(t, a, b):
    need(isinstance(a, Run) and isinstance(b, Run) and a.data.dim() == b.data.dim() > 2 and a.shape[:-2] == b.shape[:-2],
         "a product of other shapes than [N, ..., m, k] and [N, ..., k, n]")
    data = a.data @ b.data
    return Run(data, t.emit("matmul", [a.value, b.value], data.shape))


def reshaped(function):
    def rule(t, x, *args, **kwargs):
        data = function(x.data, *args, **kwargs)
        return Run(data, t.reshape(x.value, list(data.shape)))
    return rule


def rule_permute(t, x, *order, dims=None):
    order = dims or (order[0] if len(order) == 1 else order)
    order = [whole(d, x.data.dim()) for d in order]
    return Run(x.data.permute(order), t.permute(x.value, order))


def rule_transpose(t, x, dim0, dim1):
    order = list(range(x.data.dim()))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return rule_permute(t, x, order)


def rule_same(t, x, *args, **kwargs):
    return x


def rule_size(t, x, dim=None):
    return x.shape if dim is None else x.shape[dim]


def rule_attr(t, x, name):
    need(name in ("shape", "dtype", "device", "T", "mT"), f"its attribute {name}")
    return rule_transpose(t, x, -2, -1) if name in ("T", "mT") else getattr(x, name)


def rule_item(t, x, index):
    if isinstance(x, (tuple, list, torch.Size)):
        return x[index]
    if isinstance(x, Weight):
        return rows_of_weight(x, index)
    index = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in index:
        k = index.index(Ellipsis)
        index[k:k + 1] = [slice(None)] * (x.data.dim() - sum(i is not None for i in index) + 1)
    value, dim = x.value, 0
    for i in index:
        need(i is None or isinstance(i, (int, slice)), f"an index by {type(i).__name__}")
        if i is None:
            continue
        if isinstance(i, int):
            i = whole(i, x.shape[dim])
            i = slice(i, i + 1)
        start, stop, step = i.indices(x.shape[dim])
        need(step == 1, f"a step of {step}")
        if (start, stop) != (0, x.shape[dim]):
            value = t.cut(value, dim, start, stop)
        dim += 1
    data = x.data[tuple(index)]
    return Run(data, t.reshape(value, list(data.shape)))


def rule_narrow(t, x, dim, start, length):
    dim = whole(dim, x.data.dim())
    return Run(x.data.narrow(dim, start, length), t.cut(x.value, dim, start, start + length))


def rule_select(t, x, dim, index):
    return rule_item(t, x, (slice(None),) * whole(dim, x.data.dim()) + (index,))


def parts(cutter):
    def rule(t, x, size, dim=0):
        at, found = 0, []
        for part in cutter(x.data, size, dim):
            length = part.shape[dim]
            found.append(rule_narrow(t, x, dim, at, length))
            at += length
        return tuple(found)
    return rule


def rule_unbind(t, x, dim=0):
    return tuple(rule_select(t, x, dim, k) for k in range(x.shape[dim]))


def rule_cat(t, tensors, dim=0):
    if isinstance(tensors[0], Weight):
        raise Unsupported(f"the parameter '{tensors[0].name}' among what is joined")
    need(all(isinstance(v, Run) for v in tensors), "a tensor that is no value of a layer")
    dim = whole(dim, tensors[0].data.dim())
    need(dim != 0, "records of a batch that are joined")
    left = tensors[0]
    for k in range(1, len(tensors), 7):
        some = [left, *tensors[k:k + 7]]
        data = torch.cat([v.data for v in some], dim)
        left = Run(data, t.emit("concat", [v.value for v in some], data.shape, dim=dim))
    return left


def rule_mean(t, x, dim, keepdim=False):
    dims = sorted({whole(d, x.data.dim()) for d in (dim if isinstance(dim, (tuple, list)) else [dim])}, reverse=True)
    value, shape = x.value, list(x.shape)
    for d in dims:
        need(d != 0, "a mean over the records of a batch")
        shape.pop(d)
        value = t.emit("mean", [value], shape, dim=d)
    data = x.data.mean(dims, keepdim)
    return Run(data, t.reshape(value, list(data.shape)))


def rule_softmax(op):
    def rule(t, x, dim=None, *_, **__):
        need(dim is not None and whole(dim, x.data.dim()) == x.data.dim() - 1, f"dim={dim}; it is over the last one")
        return Run(x.data, t.emit(op, [x.value], x.shape))
    return rule


def rule_dropout(t, x, p=0.5, training=True, inplace=False):
    return Run(x.data, t.emit("dropout", [x.value], x.shape, p=float(p))) if training else x


def rule_gelu(t, x, approximate="none"):
    return plain("gelu" if approximate == "none" else "gelu_tanh")(t, x)


def rule_leaky(t, x, negative_slope=0.01, inplace=False):
    return plain("leaky_relu", factor=float(negative_slope))(t, x)


def rule_attention(t, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """[N, heads, T, width] becomes [N, T, heads width], and back: where a module has just moved
    the heads, nothing of that is left."""
    need(all(isinstance(x, Run) and x.data.dim() == 4 for x in (q, k, v)), "other tensors than [N, heads, T, width]")
    n, heads, steps, width = q.shape
    need(scale is None or abs(scale * width ** 0.5 - 1) < 1e-6, f"scale={scale}; it is 1 / sqrt(width)")
    need(k.shape == v.shape and k.shape[3] == width, "keys and values of other widths")
    need(enable_gqa or k.shape[1] == heads, "other heads of keys")
    seen = (bool(is_causal), None) if attn_mask is None else seen_by("attn_mask", attn_mask, steps, k.shape[2], True)
    flat = [t.reshape(t.permute(x.value, [0, 2, 1, 3]), [n, x.shape[2], x.shape[1] * width]) for x in (q, k, v)]
    y = t.attend(*flat, heads, k.shape[1], seen, dropout_p)
    y = t.permute(t.reshape(y, [n, steps, heads, width]), [0, 2, 1, 3])
    return Run(torch.zeros(q.shape), y)


RULES = {
    "add": rule_add, "iadd": rule_add, "sub": functools.partial(rule_add, sign=-1), "mul": rule_mul, "imul": rule_mul,
    "truediv": rule_div, "div": rule_div, "neg": lambda t, x: rule_mul(t, x, -1), "matmul": rule_matmul, "bmm": rule_matmul,
    "reshape": reshaped(torch.Tensor.reshape), "view": reshaped(torch.Tensor.reshape), "flatten": reshaped(torch.flatten),
    "unsqueeze": reshaped(torch.unsqueeze), "squeeze": reshaped(torch.squeeze), "unflatten": reshaped(torch.Tensor.unflatten),
    "permute": rule_permute, "transpose": rule_transpose, "swapaxes": rule_transpose, "contiguous": rule_same, "clone": rule_same,
    "size": rule_size, "getattr": rule_attr, "getitem": rule_item, "narrow": rule_narrow, "select": rule_select,
    "split": parts(torch.split), "chunk": parts(torch.chunk), "unbind": rule_unbind, "cat": rule_cat, "concat": rule_cat,
    "mean": rule_mean, "softmax": rule_softmax("softmax"), "log_softmax": rule_softmax("log_softmax"), "dropout": rule_dropout,
    "relu": plain("relu"), "silu": plain("silu"), "tanh": plain("tanh"), "sigmoid": plain("sigmoid"), "gelu": rule_gelu,
    "lt": compared("seen", None), "gt": compared(None, "seen"), "ge": compared("hidden", None), "le": compared(None, "hidden"),
    "leaky_relu": rule_leaky, "scaled_dot_product_attention": rule_attention,
}


# ---- a whole module

def live(layers, result):
    """Without the layers that nothing reads."""
    wanted, kept = {result}, []
    for layer in reversed(layers):
        if layer["name"] in wanted:
            kept.append(layer)
            wanted.update(layer["from"])
    return kept[::-1]


def arrays_of(model, t):
    """{name in the session: tensor}; all of the model's are among them."""
    names, wrong, found = {layer["name"] for layer in t.layers}, [], dict(t.moved)
    owners = {}
    for key, value in model.state_dict(keep_vars=True).items():
        at, _, leaf = key.rpartition(".")
        if key in t.taken:
            continue
        if at not in names and key not in names:
            if isinstance(value, nn.Parameter):
                wrong.append(f"'{key}': belongs to no layer that is exported")
            continue
        wanted = torch.int64 if leaf == "num_batches_tracked" else torch.float32
        if value.dtype != wanted:
            wrong.append(f"'{key}': {value.dtype}, expected {wanted}")
        elif owners.setdefault(id(value), key) != key:
            wrong.append(f"'{key}': shared with '{owners[id(value)]}'")
        found[key] = value
    if wrong:
        raise Unsupported("\n".join(wrong))
    return {name: value.detach().cpu().contiguous().numpy() for name, value in found.items()}


def traced(model, inputs, is_layer, layer_of):
    """([layer, ...], arrays) of a module that torch.fx can follow."""
    if not inputs:
        raise Unsupported(f"{type(model).__name__} is not an nn.Sequential: it is traced, and needs --input NAME:f32:EXTENTS for each input")
    try:
        graph = Tracer(is_layer).trace(model)
    except (TypeError, RuntimeError, fx.proxy.TraceError) as e:
        raise Unsupported(f"{type(model).__name__}: torch.fx cannot follow it: {e}") from None
    t = Layers(fx.GraphModule(model, graph), inputs, layer_of)
    with torch.no_grad():
        t.run()
    need(t.layers, "the model has no layers")
    t.layers = live(t.layers, t.result.name)
    need(t.layers and t.layers[-1]["name"] == t.result.name, "an output that is an input")
    read = {name for layer in t.layers for name in layer["from"]}
    for name, _, _ in inputs:
        need(name in read, f"no layer reads the input '{name}'")
    arrays, before = arrays_of(model, t), inputs[0][0]
    for layer in t.layers:
        if layer["from"] == [before]:
            del layer["from"]
        before = layer["name"]
    return t.layers, arrays

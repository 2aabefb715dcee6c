# SPDX-License-Identifier: Apache-2.0
"""What export_torch.py does with a module over the extents of --input: it calls forward with
tensors that write down what is done with them, as layers of a session. All that is in the way is
collected, each with the place in forward; export_rules.py says what a function of a value is among
layers."""
import os
import re
import sys
import traceback

import torch
from torch import nn

from export_rules import BY_VALUE, CHOOSING, COMPOSED, DRAWS, FUNCTIONS, METADATA, RULES, SHAPING, Modules, blank, hidden_scores, in_second, laid_out, ones_where, order_of, shaped_choice
from export_joined import HINT, Joined, Lone, in_joined, in_lone, rows_of_parameter
from export_values import HELD, MASK_RULES, Absent, Again, Choice, Column, Hidden, Mask, Missing, Records, Run, Spread, States, Unsupported, Value, Weight, leaves, mapped, need, need_layer


def input_of(text):
    """(name, dtype, extents of a record) of "ids:i64:16" or "pixels:f32:3x8x8"."""
    match = re.fullmatch(r"([A-Za-z0-9_-]+):(f32|i64)((?::\d+(?:x\d+)*)?)", text)
    if not match:
        raise Unsupported(f"--input {text}: expected NAME:f32:3x8x8 or NAME:i64:16, without the batch")
    name, dtype, extents = match.groups()
    return name, dtype, [int(n) for n in extents[1:].split("x")] if extents else []


def example(dtype, extents):
    return blank([Records.n, *extents], torch.int64 if dtype == "i64" else torch.float32)


MAX_RANK = 8  # dimensions of a value of a session, the batch among them
MAX_NAME = 63
# ops that read inputs of i64, or only say their shape
TAKE_NUMBERS = ("embedding", "last", "attention", "reshape")
TORCH = os.path.dirname(torch.__file__) + os.sep
OWN = {os.path.join(os.path.dirname(os.path.realpath(__file__)), f"export_{n}.py") for n in ("traced", "rules", "values", "joined", "torch")}


class Traced(torch.Tensor):
    """A tensor that forward is given. It has no numbers: only `held` of it has. Views of one tensor
    share a group, which counts changes in place."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        given = leaves([args, kwargs or {}])
        return next(a for a in given if isinstance(a, Traced)).follower.dispatch(function, args, kwargs or {})


def storage(t):
    return (t.untyped_storage() if hasattr(t, "untyped_storage") else t.storage()).data_ptr()


def place():
    """File and line of forward that is being run: the innermost that is neither PyTorch's nor
    ours."""
    f = sys._getframe(1)
    while f is not None:
        file = f.f_code.co_filename
        if not file.startswith(TORCH) and os.path.realpath(file) not in OWN:
            return f"{os.path.basename(file)}:{f.f_lineno}"
        f = f.f_back
    return "forward"


class Graph:
    """Layers as they are written down."""

    def __init__(self, inputs):
        self.inputs, self.layers, self.values, self.names = inputs, [], {}, set()
        # label: of layers without a name of their own
        self.reserved, self.scope, self.label = set(), [], "layer"
        self.taken, self.moved, self.constants, self.halves = set(), {}, {}, {}
        self.frozen = []  # names of what does not learn: constants

    def emit(self, op, sources, shape, name=None, /, **attributes):
        """A layer. name: exactly that; None: one by the function."""
        need(not name or name not in self.names, f"the name '{name}', which an input or another layer has; give --input another name")
        need(op == "embedding" or not any(isinstance(s, Column) for s in sources), "a column of an input of numbers, which an nn.Embedding alone reads; give it as an input of its own")
        numbers = {n for n, dtype, _ in self.inputs if dtype == "i64"}.intersection(s.name for s in sources)
        need(not numbers or op in TAKE_NUMBERS, f"{op} of '{min(numbers, default='')}', an input of numbers; an nn.Embedding reads it, or attention as lengths")
        name = self.unique(name) if name else self.unique(self.label, False)
        layer = {"op": op, **attributes, "name": name, "from": [s.name for s in sources]}
        self.layers.append(layer)
        made = Value(name, shape if len(shape) > 1 else [*shape, 1])
        self.values[name] = (layer, made, list(sources))
        return made

    def unique(self, name, exact=True):
        if not exact:
            name = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
            name = name if len(name) <= MAX_NAME - 5 else name.rpartition(".")[2][-MAX_NAME + 5:]
        need(re.fullmatch(rf"[A-Za-z0-9_.-]{{1,{MAX_NAME}}}", name),
             f"its name '{name}', which has 1 to {MAX_NAME} letters, digits, '.', '_' or '-'")
        found, k = name, 1
        while found in self.names or not exact and found in self.reserved:
            found, k = f"{name}-{k}", k + 1
        self.names.add(found)
        return found

    def maker(self, v, op):
        """(layer, source) of a value, if a layer of this op has made it."""
        layer, _, sources = self.values.get(v.name, ({}, None, []))
        return (layer, sources[0]) if layer.get("op") == op else (None, None)

    def reshape(self, v, shape, name=None):
        """Of a reshape the source is reshaped; what has the shape already stays."""
        n = v.shape[0]
        need(shape and shape[0] == n, f"the shape {list(shape)} of {v.shape}: it joins or divides records of a batch")
        shape = list(shape) if len(shape) > 1 else [n, 1]
        _, source = self.maker(v, "reshape")
        v = source or v
        if shape == v.shape:
            return v
        need(len(shape) <= MAX_RANK, f"the shape {shape}; a reshape gives 2 to {MAX_RANK} dimensions")
        if len(shape) == 2 and len(v.shape) > 2:
            return self.emit("flatten", [v], shape, name)
        return self.emit("reshape", [v], shape, name, shape=shape[1:])

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
        layer, _ = self.maker(v, "concat")
        if layer and layer["dim"] == dim:
            at = 0
            for part in self.values[v.name][2]:
                if (start, stop) == (at, at + part.shape[dim]):
                    return part
                at += part.shape[dim]
        shape = list(v.shape)
        shape[dim] = stop - start
        return self.emit("slice", [v], shape, name, dim=dim, start=start, stop=stop)

    def concat(self, values, dim):
        while len(values) > 1:
            some = values[:8]
            shape = list(some[0].shape)
            shape[dim] = sum(v.shape[dim] for v in some)
            values = [self.emit("concat", some, shape, dim=dim), *values[8:]]
        return values[0]

    def scaled(self, v, factor, name=None):
        return v if factor == 1 else self.emit("scale", [v], v.shape, name, factor=float(factor))

    def linear(self, v, name, weight, bias, **more):
        self.moved[f"{name}.weight"] = weight
        if bias is not None:
            self.moved[f"{name}.bias"] = bias
        return self.emit("linear", [v], [*v.shape[:-1], weight.shape[0]], name, out=weight.shape[0], bias=bias is not None, **more)

    def attend(self, q, k, v, heads, kv_heads, seen, p, name=None):
        """seen: (whether a place sees none behind it, the lengths of samples or None)"""
        more = {"kv_heads": kv_heads} if kv_heads != heads else {}
        sources = [q, k, v] + ([seen[1]] if seen[1] else [])
        return self.emit("attention", sources, q.shape, name, heads=heads, causal=seen[0], p=float(p), **more)

    # ---- numbers and parameters as values

    def half(self, v):
        """[N, 1] of 0.5, made of a value of floats: sigmoid of 0."""
        if v.name not in self.halves:
            x, label = v, self.label
            self.label = f"{label}.number"
            for dim in range(1, len(v.shape)):
                x = self.cut(x, dim, 0, 1)
            x = self.scaled(self.reshape(x, [v.shape[0], 1]), 0.0)
            self.halves[v.name] = self.emit("sigmoid", [x], x.shape)
            self.label = label
        return self.halves[v.name]

    def number(self, c, x):
        """A number, as a value to be broadcast to that of x."""
        need(x.dtype.is_floating_point, f"a number beside a value of {x.dtype}; layers compute in floats")
        shape = [x.value.shape[0]] + [1] * (len(x.value.shape) - 1)
        v = self.reshape(self.scaled(self.half(x.value), 2 * float(c)), shape)
        return Run(blank([1 if k else n for k, n in enumerate(x.data.shape)]), v)

    def table(self, w):
        """[name of the layer, tensor]; a constant has a name of its own, and does not learn."""
        is_long = len(w.name or "") > MAX_NAME
        name = self.unique(w.name if is_long else f"{self.label}.constant", False) if is_long or not w.name else w.name
        if name != w.name:
            self.names.discard(name)
        if not w.learns:
            self.frozen.append(name)
        return name

    def weight(self, w, x, full=False):
        """A parameter or a constant as a value, to be broadcast to that of x, or (full) with all
        its extents."""
        if w.then:
            name, function, args, kwargs = w.then
            args, kwargs = mapped(lambda a: self.weight(a, x, full) if isinstance(a, Weight) else a, [args, kwargs])
            return self.call(name, function, args, kwargs)
        t, rank, n = w.data, x.data.dim(), x.value.shape[0]
        need(t.dim() <= rank, f"the tensor {list(t.shape)} beside {list(x.shape)}, which has fewer dimensions")
        if t.dim() == rank:
            need(t.shape[0] == 1 or t.shape[0] == n and bool((t == t[:1]).all()),
                 f"the constant {list(t.shape)}, with numbers of its own for each record")
            t = t[0]
        extents = [1] * (rank - 1 - t.dim()) + list(t.shape)
        if not w.learns and t.numel() and bool((t == t.flatten()[0]).all()) and not full:
            return self.number(float(t.flatten()[0]), x)
        value = self.block(w, t, x)
        return Run(t.reshape([1, *extents]).expand(n, *extents).float(), self.reshape(value, [n, *extents]))

    def block(self, w, t, x):
        """[N, values of t], of a layer that has the whole parameter."""
        need(w.learns or t.dtype in (torch.float32, torch.int64, torch.int32, torch.bool), f"a constant of {t.dtype}; make it float32")
        whole = w.whole if w.name else t
        if not w.learns:
            whole = whole.detach().float().contiguous()
        need(whole.is_contiguous() and (not w.learns or t.is_contiguous()),
             f"'{w.name}' in another order of its values; write .permute(...) of it as a parameter of that shape")
        if w.name in self.called:  # as a table or a class token: now it is a value everywhere
            self.split.add(w.name)
            raise Again
        key = w.name or f"constant {whole.data_ptr()} {list(whole.shape)}"
        size = whole.numel()
        if key not in self.constants:
            name = self.table(w)
            one = self.scaled(self.half(x.value), 2.0)
            self.taken |= {name, w.name}
            self.constants[key] = self.linear(one, name, whole.reshape(size, 1), None)
        first = t.storage_offset() - whole.storage_offset() if w.name and w.learns else 0
        if w.name and not w.learns and t.numel() != size:
            first = t.storage_offset() - w.whole.storage_offset()
            need(t.is_contiguous(), f"a part of '{w.name}' that is not one block")
        return self.cut(self.constants[key], 1, first, first + t.numel())


class Follower(Modules, Graph):
    """Runs forward. layer_of: (layer, whether it keeps the shape) of a module over an input of that
    rank; is_layer: whether there is one."""

    def __init__(self, model, inputs, is_layer, layer_of, ops, learned):
        Graph.__init__(self, inputs)
        self.model, self.is_layer, self.layer_of, self.ops = model, is_layer, layer_of, ops
        self.split, self.divided = learned
        self.paths = {id(m): name for name, m in reversed(list(model.named_modules()))}
        self.reserved = {*(name for name, m in model.named_modules() if list(m.parameters())), *dict(model.named_parameters())}
        self.refusals, self.n_refused, self.notes, self.called, self.owners, self.biases = {}, 0, [], set(), {}, set()
        self.tensors = {}
        for name, t in [*model.named_buffers(), *model.named_parameters()]:
            self.tensors[storage(t)] = (name, t, isinstance(t, nn.Parameter))
        self.busy = False

    # ---- tensors of forward, and what they hold

    def wrap(self, x, like=None):
        if not isinstance(x, HELD):
            return x
        made = torch.Tensor._make_subclass(Traced, torch.empty(x.data.shape, dtype=x.data.dtype, device="meta"))
        made.follower, made.held, made.group = self, x, like.group if like is not None else [0]
        made.version = made.group[0]
        return made

    def unwrap(self, x):
        if isinstance(x, Traced):
            need(x.version == x.group[0], "a tensor of which a view was changed in place since; write that without '_' or inplace=True")
            return x.held
        if isinstance(x, torch.Tensor):
            need(x.device.type != "meta", "a tensor that was made of a layer's value where it cannot be followed, such as in a scripted function")
            name, whole, learns = self.tensors.get(storage(x), (None, x, False)) if x.numel() else (None, x, False)
            need(name or not self.is_of_parameters(x), "a tensor that is computed from parameters before; compute it of what forward is given")
            if name and x.dtype == whole.dtype:
                return Weight(x.detach() if not isinstance(x, nn.Parameter) else x, name, whole, learns)
        return x

    def is_of_parameters(self, x):
        """Whether a tensor was computed from the module's parameters."""
        nodes, seen = [x.grad_fn] if x.grad_fn is not None else [], set()
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if storage(getattr(node, "variable", x)) in self.tensors:
                return True
            nodes += [n for n, _ in node.next_functions]
        return False

    # ---- what is refused

    def refuse(self, subject, why):
        at = place()
        found = self.refusals.setdefault((at, why), [subject, 0])
        found[1] += 1
        self.n_refused += 1

    def refused(self):
        lines = []
        for (at, why), (subject, n) in self.refusals.items():
            more = f", and {n - 1} more times" if n > 1 else ""
            lines.append(f"'{subject}' ({at}{more}): {why}")
        return "\n".join(lines)

    def stand_in(self, function, args, kwargs):
        """The result of what is refused, so that the rest is looked at as well."""
        def data_of(a):
            return a.held.data.contiguous() if isinstance(a, Traced) else a
        try:
            with torch.no_grad():
                found = function(*mapped(data_of, args), **mapped(data_of, kwargs))
        except Exception as e:  # forward's own mistake, or a module that has no numbers here
            raise Unsupported(f"{self.refused()}\n({type(e).__name__} behind that: {str(e).splitlines()[0] if str(e) else ''})") from None
        held = lambda y: self.wrap(Run(y, Value("?", y.shape, True))) if isinstance(y, torch.Tensor) else y
        return mapped(held, found)

    def is_broken(self, args):
        held = [a.held if isinstance(a, Traced) else a for a in leaves(args)]
        return any((a.run if isinstance(a, Choice) else a).value.broken for a in held if isinstance(a, (Run, Choice)))

    def check_draws(self, subject):
        if not torch.equal(torch.get_rng_state(), self.drawn):
            self.refuse(subject, DRAWS)

    def event(self, subject, do, function, args, kwargs):
        """A call of forward that becomes layers, or is refused."""
        if self.busy:
            return do()
        self.busy = True
        try:
            self.check_draws(subject)
            need(torch.is_grad_enabled() or self.is_broken([args, kwargs]), "torch.no_grad() in forward: a session trains all that it computes; freeze parameters instead")
            with torch.no_grad():
                return do()
        except (Unsupported, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as e:
            e = e if isinstance(e, Unsupported) else f"arguments that no layer has: {str(e).splitlines()[0] if str(e) else type(e).__name__}"
            if isinstance(e, Missing) or str(e) == BY_VALUE or not self.is_broken([args, kwargs]):
                self.refuse(subject, str(e))
            self.busy = False
            return self.stand_in(function, args, kwargs)
        finally:
            self.drawn, self.busy = torch.get_rng_state(), False

    # ---- functions

    def dispatch(self, function, args, kwargs):
        name = getattr(function, "__name__", str(function))
        if name in ("__get__", "__set__", "__delete__"):
            name = ("" if name == "__get__" else "set_") + getattr(function.__self__, "__name__", "attribute")
        plain_name = name.strip("_")
        if plain_name in METADATA:
            told = function(*mapped(lambda a: a.held.data if isinstance(a, Traced) else a, args), **kwargs)
            if not isinstance(told, torch.Tensor):
                return told
        in_place = name.endswith("_") and not name.endswith("__") or name in ("__iadd__", "__isub__", "__imul__", "__itruediv__") or kwargs.get("inplace") is True

        subject = ".".join([*self.scope[-1:], plain_name]).strip(".")

        def do():
            self.label = subject
            plain = [mapped(self.unwrap, a) for a in (args, kwargs)]
            return self.call(plain_name, function, *plain)

        made = self.event(subject, do, function, args, kwargs)
        return self.wrapped(made, args, in_place)

    def wrapped(self, made, args, in_place):
        source = next((a for a in leaves(args) if isinstance(a, Traced)), None)
        if in_place and isinstance(args[0], Traced) and isinstance(made, HELD):
            args[0].held = made
            args[0].group[0] += 1
            args[0].version = args[0].group[0]
            return args[0]
        shares = lambda y: self.wrap(y, source if isinstance(y, Run) and source is not None and self.is_view(y, source.held) else None)
        return mapped(lambda y: y if isinstance(y, Traced) else shares(y), made)

    def is_view(self, y, x):
        """Whether PyTorch's y has the memory of x."""
        if not isinstance(x, Run):
            return False
        return y is x or storage(y.data) == storage(x.data)

    def call(self, name, function, args, kwargs):
        """A constant is computed; what is made of a layer's value has to be a layer."""
        kwargs = {k: v for k, v in kwargs.items() if k not in ("out", "memory_format") or v is not None and k == "out"}
        given = leaves([args, kwargs])
        for a in given:
            need(not isinstance(a, Absent), getattr(a, "why", ""))
        if any(isinstance(a, States) for a in given):
            return self.of_states(name, args)
        if not any(isinstance(a, (Run, Mask, Choice)) for a in given):
            return self.of_weights(name, function, args, kwargs)
        if any(isinstance(a, Mask) for a in given) and name in MASK_RULES:
            return MASK_RULES[name](function, *args, **kwargs)
        if args and isinstance(args[0], Choice) and name in SHAPING and not any(isinstance(a, Run) for a in given[1:]):
            return shaped_choice(self, name, args, kwargs)
        if any(isinstance(a, Choice) for a in given) and name not in CHOOSING and not getattr(RULES.get(name), "is_refusal", False):
            args, kwargs = mapped(lambda a: ones_where(self, a) if isinstance(a, Choice) else a, [args, kwargs])
        if any(isinstance(a, Spread) for a in given):
            return self.call(name, function, *laid_out(self, name, args, kwargs))
        if any(isinstance(a, Joined) for a in given):
            return in_joined(self, name, function, args, kwargs, order_of, {*FUNCTIONS, *COMPOSED})
        if any(isinstance(a, Lone) for a in given):
            return in_lone(self, name, function, args, kwargs, order_of, {*FUNCTIONS, *COMPOSED})
        if any(isinstance(a, Hidden) for a in given):
            return hidden_scores(self, name, *args, **kwargs)
        if any(isinstance(a, Run) and a.at for a in given):
            return in_second(self, name, function, args, kwargs)
        rule = RULES.get(name)
        need_layer(rule, f"{name} is no layer, nor several")
        return rule(self, *args, **kwargs)

    def of_weights(self, name, function, args, kwargs):
        """A function of parameters and constants alone: a view, or computed where a value meets
        it."""
        plain = lambda a: a.data if isinstance(a, Weight) else a
        data = function(*mapped(plain, args), **mapped(plain, kwargs))
        weights = [a for a in leaves([args, kwargs]) if isinstance(a, Weight)]
        if not weights or not any(w.learns for w in weights):
            return data
        if name == "repeat" and all(n == 1 for n in data.shape[1:] and [d // s for d, s in zip(data.shape[1:], weights[0].shape[1:])]):
            data = weights[0].data.expand(data.shape)
        if name == "getitem" and isinstance(args[0], Weight) and args[0].learns and not args[0].then and args[0].data.dim() == 2 and args[0].name:
            index = args[1].data if isinstance(args[1], Weight) and not args[1].learns else args[1]
            if isinstance(index, torch.Tensor) and index.dtype == torch.int64:
                return rows_of_parameter(self, args[0], index)
        w, lazy = weights[0], ("relu", "sigmoid", "tanh", "softplus", "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "div", "neg", "pow", "sqrt", "exp", "clamp")

        def part(y):
            if not isinstance(y, torch.Tensor):
                return y
            if not w.then and storage(y) == storage(w.whole):
                return Weight(y.detach(), w.name, w.whole, w.learns)
            need(name in lazy, f"{name} of the parameter '{w.name}'; there are views of it, and {', '.join(lazy)}")
            return Weight(y.detach(), w.name, w.whole, w.learns, (name, function, args, kwargs))
        return mapped(part, data)

    def of_states(self, name, args):
        """The last layer's state; for others the module is written as several ops."""
        states = args[0]
        if isinstance(states, States) and name == "getitem" and args[1] in (-1, len(states.data) - 1, (-1,), (len(states.data) - 1,)):
            return states.last
        self.divided.add(next(a for a in leaves(args) if isinstance(a, States)).module)
        raise Again

    def of_latest(self, w):
        """A parameter that forward expands to the records, as a value, made of one that is
        there."""
        if not isinstance(w, Weight) or w.data.dim() < 2 or w.data.shape[0] != Records.n or w.data.stride(0) != 0:
            return w
        return self.weight(w, Run(blank([Records.n, *[1] * (w.data.dim() - 1)]), self.any_run(w.name).value), True)

    def any_run(self, name):
        """A value of floats that is there."""
        made = next((v for _, v, _ in reversed(list(self.values.values())) if v.shape[0] == Records.n), None)
        made = made or next((Value(n, [Records.n, *extents]) for n, dtype, extents in self.inputs if dtype == "f32" and extents), None)
        need(made is not None, f"the parameter '{name}' before any value of records")
        return Run(blank(made.shape), made)

    # ---- modules

    def module(self, original, m, args, kwargs):
        path = self.paths.get(id(m))
        if path is None or self.busy:
            return original(m, *args, **kwargs)
        given = leaves([args, kwargs])
        if not any(isinstance(a, Traced) for a in given):
            if isinstance(m, nn.Embedding) and given and isinstance(given[0], torch.Tensor):
                return self.rows_of(m, path, given[0])
            return original(m, *args, **kwargs)
        if not self.is_leaf(m):
            return self.inside(original, m, path, args, kwargs)
        known, count = {k: list(v) for k, v in self.refusals.items()}, self.n_refused

        def do():
            self.label = path
            return self.call_module(m, path, *(mapped(self.unwrap, a) for a in (args, kwargs)))
        if any(True for _ in m.parameters()) or not type(m).__module__.startswith("torch.nn"):
            return self.wrapped(self.event(path, do, lambda *a, **k: self.numbers(m, *a, **k), args, kwargs), args, getattr(m, "inplace", False) is True)
        try:  # as a module, or by the functions of its forward
            self.check_draws(path)
            trial = self.quietly(do)
            return self.wrapped(trial, args, getattr(m, "inplace", False) is True)
        except Unsupported as e:
            made = self.inside(original, m, path, args, kwargs)
            if self.n_refused != count:
                self.refusals = known
                self.refuse(path, str(e) if type(m).__name__ in str(e) else f"{type(m).__name__} with {e}")
            return made

    def quietly(self, do):
        self.busy = True
        try:
            with torch.no_grad():
                return do()
        finally:
            self.busy, self.drawn = False, torch.get_rng_state()

    def inside(self, original, m, path, args, kwargs):
        self.scope.append(path)
        try:
            return original(m, *args, **kwargs)
        finally:
            self.scope.pop()

    def numbers(self, m, *args, **kwargs):
        """What a module gives of blank records, without a trace and with its counters left
        alone."""
        kept, busy = {k: v.clone() for k, v in m.named_buffers()}, self.busy
        self.busy = True
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                return m(*args, **kwargs)
        finally:
            self.busy = busy
            for k, v in m.named_buffers():
                v.copy_(kept[k])

    # ---- a whole forward

    def run(self, output):
        original = nn.Module.__call__
        follower = self

        def followed(m, *args, **kwargs):
            return follower.module(original, m, args, kwargs)
        given = []
        for name, dtype, extents in self.inputs:
            self.names.add(name)
            given.append(self.wrap(Run(example(dtype, extents), Value(name, [Records.n, *extents]))))
        owners, kept = [m for m in self.model.modules() if not self.is_leaf(m) and "parametrizations" not in self.paths[id(m)].split(".")], []
        self.drawn = torch.get_rng_state()
        try:
            for m in owners:
                for name, p in m._parameters.items():
                    if p is not None:
                        kept.append((m, name, p))
                        m._parameters[name] = self.wrap(self.unwrap(p))
            nn.Module.__call__ = followed
            with torch.enable_grad():
                result = self.model(*given)
        except (Again, Unsupported):
            raise
        except Exception as e:
            where = next((f"{os.path.basename(f.filename)}:{f.lineno}" for f in reversed(traceback.extract_tb(e.__traceback__))
                          if not f.filename.startswith(TORCH) and os.path.realpath(f.filename) not in OWN), "forward")
            text = str(e).splitlines()[0] if str(e) else ""
            raise Unsupported("\n".join([*filter(None, [self.refused()]), f"forward of records of these extents fails ({where}): {type(e).__name__}: {text}"])) from None
        finally:
            nn.Module.__call__ = original
            for m, name, p in kept:
                m._parameters[name] = p
        self.check_draws("forward")
        try:
            self.output(result, output)
        except Unsupported as e:
            if not self.refusals or not self.is_broken([result]):
                self.refusals[("forward", str(e))] = ["output", 1]

    def output(self, result, chosen):
        found = dict(result) if isinstance(result, dict) else result._asdict() if hasattr(result, "_asdict") else dict(enumerate(result)) if isinstance(result, (tuple, list)) else {0: result}
        tensors = {str(k): v for k, v in found.items() if isinstance(v, Traced)}
        if chosen is not None:
            need(chosen in tensors, f"--output {chosen}; the outputs are {', '.join(tensors)}")
            tensors = {chosen: tensors[chosen]}
        need(len(tensors) == 1, f"an output that is not one value but {', '.join(tensors) or 'none'}; choose one with --output")
        (held,), _ = laid_out(self, "", [self.unwrap(next(iter(tensors.values())))], {})
        need(isinstance(held, Run), getattr(held, "why", "an output that is no value of a layer"))
        need(not isinstance(held, Joined), f"an output {HINT}; reshape it back")
        need(not isinstance(held, Lone), "an output that no input reaches")
        need(not held.at, "an output with the records in its second dimension; transpose(0, 1) it")
        self.is_flat = len(held.shape) == 1
        if self.is_flat:
            self.notes.append("the output is [N, 1], a dimension more than forward's: give labels that dimension")
        self.result = held.value


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
    """{name in the session: tensor}. Parameters that nothing reads are left out, with a note."""
    names, wrong = {layer["name"]: layer for layer in t.layers}, []
    found = {key: value for key, value in t.moved.items() if key.rpartition(".")[0] in names or key in names}
    unused, seen = [], {}
    for key, value in model.state_dict(keep_vars=True).items():
        at, _, leaf = key.rpartition(".")
        if key in t.taken or key in found or names.get(at, {}).get("tied") and leaf == "weight":
            continue
        layer = names.get(at) or names.get(key)
        if not layer or isinstance(value, nn.Parameter) and leaf == "bias" and layer.get("bias") is False:
            if isinstance(value, nn.Parameter) and id(value) not in seen and not (layer and f"{at}.bias" in t.taken):
                unused.append(key)
            continue
        wanted = torch.int64 if leaf == "num_batches_tracked" else torch.float32
        if value.dtype != wanted:
            wrong.append(f"'{key}': {value.dtype}, expected {wanted}")
        seen[id(value)] = key
        found[key] = value
    wrong += [f"'{key}': {v.dtype}, expected torch.float32" for key, v in t.moved.items() if key in found and v.dtype != torch.float32]
    if wrong:
        raise Unsupported("\n".join(wrong))
    if unused:
        t.notes.append(f"left out, since the output does not depend on them: {', '.join(unused[:6])}{f' and {len(unused) - 6} more' if len(unused) > 6 else ''}")
    return {name: value.detach().cpu().contiguous().numpy() for name, value in found.items()}


def followed(model, inputs, is_layer, layer_of, ops, output, records, learned):
    """A Follower that has run, with the layers that count."""
    Records.n, most = records, 1 + 2 * len(list(model.modules()))
    for _ in range(most):
        t = Follower(model, inputs, is_layer, layer_of, ops, learned)
        try:
            t.run(output)
        except Again:
            continue
        except Unsupported as e:
            raise Unsupported(str(e)) from None
        if t.refusals:
            raise Unsupported(t.refused())
        t.layers = live(t.layers, t.result.name)
        return t
    raise Unsupported(f"{type(model).__name__}: it shares parameters in ways that do not come to an end")


def traced(model, inputs, is_layer, layer_of, ops=(), output=None):
    """A Follower with layers, arrays, notes and frozen. Its forward is run on two numbers of
    records: nothing of a session depends on that number."""
    if not inputs:
        raise Unsupported(f"{type(model).__name__} is not an nn.Sequential: forward is followed, and needs --input NAME:f32:EXTENTS for each input")
    learned, usual = (set(), set()), Records.n
    try:
        t = followed(model, inputs, is_layer, layer_of, ops, output, usual, learned)
        other = followed(model, inputs, is_layer, layer_of, ops, output, Records.others, learned)
    finally:
        Records.n = usual
    differing = next((a["name"] for a, b in zip(t.layers, other.layers) if a != b), None)
    need(len(t.layers) == len(other.layers) and not differing, f"'{differing}' depends on the number of records in a batch; use a constant instead of x.size(0)")
    need(t.layers, "the model has no layers")
    need(t.layers[-1]["name"] == t.result.name, "an output that is an input")
    read = {name for layer in t.layers for name in layer["from"]}
    for name, _, _ in inputs:
        need(name in read, f"no layer reads the input '{name}'")
    t.arrays, before = arrays_of(model, t), inputs[0][0]
    t.frozen = [name for name in dict.fromkeys(t.frozen) if any(layer["name"] == name for layer in t.layers)]
    for layer in t.layers:
        if layer["from"] == [before]:
            del layer["from"]
        before = layer["name"]
    return t

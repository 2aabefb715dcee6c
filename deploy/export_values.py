# SPDX-License-Identifier: Apache-2.0
"""What goes through a module that export_traced.py follows: values of layers, parameters, and masks
of attention. A mask that is causal, or a comparison with an input of lengths, is a layer's own."""
import torch


class Unsupported(Exception):
    pass


class Missing(Unsupported):
    """There is no layer, whatever it is called with."""


class Again(Exception):
    """The module has to be followed once more, with what was learned of it."""


def need(condition, what):
    if not condition:
        raise Unsupported(what)


def need_layer(condition, what):
    if not condition:
        raise Missing(f"{what}; export_torch.py --list names what there is")


class Records:
    """How many go through the module. Few layers have such an extent. A second number shows what
    depends on it."""
    n = 11
    others = 5


class Value:
    """Output of a layer of the session, or an input of it: its name there, and its shape."""

    def __init__(self, name, shape, broken=False):
        self.name, self.shape, self.broken = name, list(shape), broken


class Column(Value):
    """A column of the last dimension of numbers, which an embedding reads."""

    def __init__(self, name, shape, column):
        super().__init__(name, shape)
        self.column = column


class Run:
    """A tensor on its way, and the value of a session that it is. at: the dimension of the records,
    0 or 1. A value has the records first, and a number of each record is [N, 1]."""

    def __init__(self, data, value, at=0):
        self.data, self.value, self.at = data, value, at

    shape = property(lambda self: self.data.shape)
    dtype = property(lambda self: self.data.dtype)


class Spread(Run):
    """A value that forward has expanded. `small` is the value before, which sums and products take
    as it is beside one of all places."""

    def __init__(self, data, small):
        super().__init__(data, small.value)
        self.small = small


class Ends(Run):
    """An input of lengths, less 1: the last place of each record."""


class Hidden(Run):
    """Scores of attention, of which softmax sees none where `hidden`, a constant, is True."""

    def __init__(self, run, hidden):
        super().__init__(run.data, run.value)
        self.hidden = hidden


class HiddenBy(Hidden):
    """Scores that a comparison of the records' values hides: `fill` where `choice` holds."""

    def __init__(self, run, choice, fill):
        super().__init__(run, None)
        self.choice, self.fill = choice, fill


class Weight:
    """A parameter, or a constant that does not learn: a view of `whole`, which has that name.
    learns: whether it is a parameter. then: (function, arguments) that make it of another
    Weight."""

    def __init__(self, data, name, whole, learns=True, then=None):
        self.data, self.name, self.whole, self.learns, self.then = data, name, whole, learns, then

    shape = property(lambda self: self.data.shape)
    dtype = property(lambda self: self.data.dtype)


class Mask:
    """Which places count, as a comparison of their numbers with an input of lengths has it, and
    what was made of that. true: what True says of a place, "seen" or "hidden"."""

    def __init__(self, data, lengths, true, causal=False):
        self.data, self.lengths, self.true, self.causal = data, lengths, true, causal

    shape = property(lambda self: self.data.shape)
    dtype = property(lambda self: self.data.dtype)


class Choice:
    """A comparison of a value with a number, for each place: the value of `run` is above
    `threshold`, or, unless `above`, is not. A NaN is not above."""

    def __init__(self, data, run, threshold, above=True):
        self.data, self.run, self.threshold, self.above = data, run, threshold, above

    shape = property(lambda self: self.data.shape)
    dtype = property(lambda self: self.data.dtype)


class Ones(Choice):
    """A comparison of whole numbers of a record: `run` itself is 1 where it holds, and 0
    elsewhere."""


class Absent:
    """A tensor that no layer has. why: the refusal of whatever uses it."""

    def __init__(self, data, why):
        self.data, self.why = data, why


class States:
    """Last states of a recurrent module with several layers in one op: it has those of the last."""

    def __init__(self, data, module, last):
        self.data, self.module, self.last = data, module, last


HELD = (Run, Weight, Mask, Choice, Absent, States)


def leaves(x):
    if isinstance(x, dict):
        x = list(x.values())
    if isinstance(x, slice):
        x = [x.start, x.stop, x.step]
    return [leaf for part in x for leaf in leaves(part)] if isinstance(x, (list, tuple)) else [x]


def mapped(f, x):
    """x with f of each of its leaves."""
    if isinstance(x, dict):
        return {k: mapped(f, v) for k, v in x.items()}
    if isinstance(x, slice):
        return slice(*(mapped(f, v) for v in (x.start, x.stop, x.step)))
    if isinstance(x, (list, tuple)) and not isinstance(x, torch.Size):
        made = [mapped(f, v) for v in x]
        return type(x)(*made) if hasattr(x, "_fields") else type(x)(made) if type(x) in (list, tuple) else tuple(made)
    return f(x)


# ---- masks: places that are seen, by their lengths or since they are not behind

LENGTHS = "; what there is: causal ones, and torch.arange(places) < lengths[:, None] of an input lengths:i64"


def is_triangle(seen):
    return seen.dim() == 2 and seen.shape[0] == seen.shape[1] and torch.equal(seen, torch.ones_like(seen).tril())


def constant_seen(what, mask, true_is_seen):
    """[places, keys], True where a key is seen, of a tensor that no input changes."""
    if mask.dtype == torch.bool:
        seen = mask if true_is_seen else ~mask
    else:
        seen = mask == 0
        need(bool((seen | (mask == float("-inf"))).all()), f"{what} with other numbers than 0 and -inf{LENGTHS}")
    while seen.dim() > 2 and seen.shape[0] == 1:
        seen = seen[0]
    return seen


def seen_by(what, mask, places, keys, true_is_seen):
    """(causal, lengths or None) of a mask as a module or a function takes it."""
    if mask is None:
        return False, None
    if isinstance(mask, Weight):
        mask = mask.data
    if isinstance(mask, torch.Tensor):
        seen = constant_seen(what, mask, true_is_seen)
        if bool(seen.all()):
            return False, None
        need(is_triangle(seen) and places == keys == len(seen), f"{what} of its own{LENGTHS}")
        return True, None
    need(isinstance(mask, Mask), f"{what} that is no comparison with lengths{LENGTHS}")
    need(mask.true == ("seen" if true_is_seen else "hidden"), f"{what} the wrong way round: there True is what is {'seen' if true_is_seen else 'hidden'}")
    shape = list(mask.shape)
    wanted = [Records.n, 1, places if mask.causal else 1, keys] if true_is_seen else [Records.n, keys]
    need(shape == wanted, f"{what} of the shape {shape}, where {wanted} is needed{LENGTHS}")
    return mask.causal, mask.lengths


def lengths_under(t, x):
    """The input that a value is, but for extents of 1."""
    _, source = t.maker(x.value, "reshape")
    value = source or x.value
    given = next((i for i in t.inputs if i[0] == value.name), None)
    need(given and given[1] == "i64" and not given[2], f"a comparison of what is no input of lengths (NAME:i64){LENGTHS}")
    return value


def compared(true_left, true_right):
    """A rule for numbers of places OP lengths, and for lengths OP numbers of places."""
    def rule(t, a, b):
        left = isinstance(a, torch.Tensor)
        numbers, x = (a, b) if left else (b, a)
        need(isinstance(numbers, torch.Tensor) and isinstance(x, Run), f"a comparison{LENGTHS}")
        true = true_left if left else true_right
        need(true, f"a comparison that counts one place more or less{LENGTHS}")
        need(numbers.flatten().tolist() == list(range(numbers.shape[-1] if numbers.dim() else -1)),
             f"a comparison with other numbers than 0, 1, 2...{LENGTHS}")
        sides = (numbers, x.data) if left else (x.data, numbers)
        return Mask(torch.lt(*sides), lengths_under(t, x), true)
    return rule


def mask_not(function, mask):
    need(isinstance(mask, Mask), "a mask of another kind")
    return Mask(~mask.data, mask.lengths, "hidden" if mask.true == "seen" else "seen", mask.causal)


def joined(true):
    """Seen by both, or hidden by either."""
    def rule(function, a, b):
        mask, other = (a, b) if isinstance(a, Mask) else (b, a)
        need(isinstance(other, torch.Tensor) and other.dtype == torch.bool, f"two masks of lengths{LENGTHS}")
        need(mask.true == true, f"a mask the wrong way round for this{LENGTHS}")
        seen = constant_seen("a mask", other, true == "seen")
        need(is_triangle(seen), f"a mask of its own{LENGTHS}")
        return Mask(function(mask.data, other), mask.lengths, true, True)
    return rule


def mask_shaped(function, mask, *args, **kwargs):
    data = function(mask.data, *args, **kwargs)
    need(data.dtype == torch.bool, f"a mask of numbers{LENGTHS}")
    return Mask(data, mask.lengths, mask.true, mask.causal)


MASK_RULES = {
    **dict.fromkeys(("invert", "logical_not", "bitwise_not"), mask_not), **dict.fromkeys(("and", "rand", "logical_and", "bitwise_and"), joined("seen")),
    **dict.fromkeys(("or", "ror", "logical_or", "bitwise_or"), joined("hidden")),
    **dict.fromkeys(("unsqueeze", "view", "reshape", "getitem", "expand", "to", "bool", "contiguous", "clone"), mask_shaped),
}

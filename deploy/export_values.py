# SPDX-License-Identifier: Apache-2.0
"""What goes through a module that export_traced.py follows: values of layers, parameters, and masks
of attention. A mask that is causal, or a comparison with an input of lengths, is a layer's own."""
import torch


class Unsupported(Exception):
    pass


def need(condition, what):
    if not condition:
        raise Unsupported(what)


BATCH = 11  # records that go through it; few layers have such an extent


class Value:
    """What a layer of the session makes, or an input of it: its name there, and its shape."""

    def __init__(self, name, shape):
        self.name, self.shape = name, list(shape)


class Run:
    """A tensor on its way, and the value of a session that it is."""

    def __init__(self, data, value):
        self.data, self.value = data, value

    shape = property(lambda self: self.data.shape)
    dtype = property(lambda self: self.data.dtype)
    device = property(lambda self: self.data.device)


class Weight:
    """A parameter, or rows one after another of it: `first` was taken of that dimension."""

    def __init__(self, data, name, whole=None, first=0):
        self.data, self.name, self.whole, self.first = data, name, data if whole is None else whole, first

    shape = property(lambda self: self.data.shape)
    dtype = property(lambda self: self.data.dtype)
    device = property(lambda self: self.data.device)


class RowsOf:
    """Rows of a table by numbers that no input changes."""

    def __init__(self, data, name, module, numbers):
        self.data, self.name, self.module, self.numbers = data, name, module, numbers


class Mask:
    """Which places count, as a comparison of their numbers with an input of lengths has it, and
    what was made of that. true: what True says of a place, "seen" or "hidden"."""

    def __init__(self, data, lengths, true, causal=False):
        self.data, self.lengths, self.true, self.causal = data, lengths, true, causal

    shape = property(lambda self: self.data.shape)
    device = property(lambda self: self.data.device)
    dtype = property(lambda self: self.data.dtype)


def leaves(x):
    if isinstance(x, dict):
        x = list(x.values())
    if isinstance(x, slice):
        x = [x.start, x.stop, x.step]
    return [leaf for part in x for leaf in leaves(part)] if isinstance(x, (list, tuple)) else [x]


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
    if isinstance(mask, torch.Tensor):
        seen = constant_seen(what, mask, true_is_seen)
        if bool(seen.all()):
            return False, None
        need(is_triangle(seen) and places == keys == len(seen), f"{what} of its own{LENGTHS}")
        return True, None
    need(isinstance(mask, Mask), f"{what} that is no comparison with lengths{LENGTHS}")
    need(mask.true == ("seen" if true_is_seen else "hidden"), f"{what} the wrong way round: there True is what is {'seen' if true_is_seen else 'hidden'}")
    shape = list(mask.shape)
    wanted = [BATCH, 1, places if mask.causal else 1, keys] if true_is_seen else [BATCH, keys]
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
    **dict.fromkeys(("invert", "logical_not", "bitwise_not"), mask_not), **dict.fromkeys(("and", "logical_and", "bitwise_and"), joined("seen")),
    **dict.fromkeys(("or", "logical_or", "bitwise_or"), joined("hidden")),
    **dict.fromkeys(("unsqueeze", "view", "reshape", "getitem", "expand", "to", "bool", "contiguous", "clone"), mask_shaped),
    "getattr": lambda function, mask, name: getattr(mask.data, name), "size": lambda function, mask, *dim: mask.data.size(*dim),
}

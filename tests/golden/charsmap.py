# SPDX-License-Identifier: Apache-2.0
"""Writes the table of a Precompiled normalizer: a double-array trie, and the texts it points to."""
import base64
import struct


def _trie(keys):
    """The trie as nested dictionaries {byte: node}; the key -1 has a node's value."""
    root = {}
    for key, value in keys.items():
        node = root
        for byte in key:
            node = node.setdefault(byte, {})
        node[-1] = value
    return root


def _place(units, bases, children):
    """The first base whose units for the children are free and that no other node uses."""
    base = 1
    while base in bases or any(base ^ c in units for c in children):
        base += 1
    bases.add(base)
    return base


def build(rules):
    """`rules`: {text: the text that replaces it}. Returns bytes."""
    texts, values = b"", {}
    for text, by in rules.items():
        values[text.encode()] = len(texts)
        texts += by.encode() + b"\0"
    units, bases, waiting = {0: 0}, {0}, [(0, 0, _trie(values))]
    while waiting:
        at, label, node = waiting.pop()
        children = [0] * (-1 in node) + sorted(c for c in node if c >= 0)
        base = _place(units, bases, children)
        units[at] = label | (-1 in node) << 8 | (at ^ base) << 10
        if -1 in node:
            units[base] = node[-1] | 1 << 31
        for c in children:
            if c:
                units[base ^ c] = 0
                waiting.append((base ^ c, c, node[c]))
    size = (max(units) | 255) + 1  # the library reads all units that a byte can lead to
    array = struct.pack(f"<{size}I", *(units.get(i, 0) for i in range(size)))
    return struct.pack("<I", len(array)) + array + texts


def text(rules):
    """The table in the text form of a tokenizer.json."""
    return base64.b64encode(build(rules)).decode()

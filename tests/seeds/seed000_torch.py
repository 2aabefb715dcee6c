# SPDX-License-Identifier: Apache-2.0
"""Seed 000 in PyTorch: transformers' own model, tokens, optimiser and loop on the same pages;
exchange of files with our sessions; and what a worker can read of the records."""
import json
import math
import os
import shutil

import numpy
import torch
import transformers

NONE = -100
THREADS = 1


# ---- files ---------------------------------------------------------------------------------------
def opened(kind, folder, **more):
    """Opens a model with from_pretrained. No tensor may be left over or missing except the pooler,
    which no head here reads."""
    net, found = kind.from_pretrained(folder, output_loading_info=True, **more)
    wrong = {k: v for k, v in found.items() if v and k != "missing_keys"}
    assert not wrong and not [k for k in found["missing_keys"] if ".pooler." not in k], found
    return net


def save_in_shards(whole, base, vocabulary):
    """Saves our export with save_pretrained, in files of 4 MB with an index."""
    net = opened(transformers.LayoutLMForMaskedLM, whole)
    net.save_pretrained(base, max_shard_size="4MB")
    shutil.copy(vocabulary, base)
    return len([n for n in os.listdir(base) if n.endswith(".safetensors")])


# ---- pages ---------------------------------------------------------------------------------------
def halves(stride, first, last, tokens):
    """Which tokens of a window count: of the tokens in two windows, the first half counts in the
    earlier one and the second half in the later."""
    begin = 0 if first else math.ceil(stride / 2)
    end = tokens if last else tokens - (stride - math.ceil(stride / 2))
    return range(begin, end)


def numbered(vocabulary):
    with open(vocabulary, encoding="utf-8") as f:
        return {line.rstrip("\n"): i for i, line in enumerate(f)}


class Windows:
    """Pages as windows of transformers' fast tokenizer: ids, boxes, mask and labels, [N, S]
    each."""

    def __init__(self, path, vocabulary, documents, classes):
        size, stride = documents["max_tokens"], documents["stride"]
        tokenizer = transformers.BertTokenizerFast(vocab=numbered(vocabulary), do_lower_case=True)
        ids, boxes, masks, labels = [], [], [], []
        for line in open(path, encoding="utf-8"):
            page = json.loads(line)
            cut = tokenizer(page["words"], is_split_into_words=True, truncation=True, max_length=size, stride=stride,
                            return_overflowing_tokens=True, padding="max_length")
            n, seen = len(cut["input_ids"]), set()
            for k in range(n):
                words, mask = cut.word_ids(k), cut["attention_mask"][k]
                inner = sum(mask) - 2
                here = {1 + i for i in halves(stride, k == 0, k == n - 1, inner)}
                row = [NONE] * size
                for i, w in enumerate(words):
                    first = w is not None and w not in seen and (i == 1 or words[i - 1] != w) and i in here
                    if first:
                        seen.add(w)
                        row[i] = classes.index(page["labels"][w])
                ids.append(cut["input_ids"][k])
                masks.append(mask)
                boxes.append([[0] * 4 if w is None else page["boxes"][w] for w in words])
                boxes[-1][inner + 1] = [1000] * 4
                labels.append(row)
        self.inputs = {"input_ids": torch.tensor(ids), "bbox": torch.tensor(boxes), "attention_mask": torch.tensor(masks)}
        self.labels = torch.tensor(labels)

    def __len__(self):
        return len(self.labels)

    def rows(self, which):
        return {k: v[which] for k, v in self.inputs.items()}

    def trimmed(self, which):
        """Without the columns that are padding in all of them, as transformers' collators leave
        them out, and their labels."""
        rows = self.rows(which)
        longest = int(rows["attention_mask"].sum(1).max())
        rows["labels"] = self.labels[which]
        return {k: v[:, :longest].contiguous() for k, v in rows.items()}


class Part:
    """Some of the windows."""

    def __init__(self, windows, which):
        self.inputs, self.labels = windows.rows(which), windows.labels[which]

    __len__, rows = Windows.__len__, Windows.rows


# ---- training ------------------------------------------------------------------------------------
def optimizer_of(net, spec):
    """The optimiser as in Trainer: biases and norms have no weight decay."""
    plain = [p for n, p in net.named_parameters() if p.dim() > 1]
    rest = [p for n, p in net.named_parameters() if p.dim() == 1]
    return torch.optim.AdamW([{"params": plain, "weight_decay": spec["weight_decay"]}, {"params": rest, "weight_decay": 0.0}], lr=spec["lr"])


def trained(base, windows, train, labels, seed):
    torch.manual_seed(seed)
    torch.set_num_threads(THREADS)
    net = transformers.LayoutLMForTokenClassification.from_pretrained(base, num_labels=labels).train()
    steps = train["epochs"] * math.ceil(len(windows) / train["batch"])
    optimizer = optimizer_of(net, train["optimizer"])
    rate = transformers.get_linear_schedule_with_warmup(optimizer, train["schedule"]["warmup_steps"], steps)
    for _ in range(train["epochs"]):
        order = torch.randperm(len(windows))
        for batch in order.split(train["batch"]):
            optimizer.zero_grad()
            net(**windows.trimmed(batch)).loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), train["clip_grad_norm"])
            optimizer.step()
            rate.step()
    return net.eval(), steps


def answers(net, windows):
    """The outputs for all windows, [N, S, classes]."""
    with torch.no_grad():
        return torch.cat([net.eval()(**windows.rows(b)).logits for b in torch.arange(len(windows)).split(16)])


def run(base, sets, train, labels, seed):
    """Of a training run: the scores on pages that it has not seen, and its steps."""
    net, steps = trained(base, sets["train"], train, labels, seed)
    return scores(answers(net, sets["test"]), sets["test"], labels), steps


# ---- how good ------------------------------------------------------------------------------------
def scores(logits, windows, classes):
    """Words, and per cent: micro F1 (of one class per word: the words that are right), macro F1."""
    counted = windows.labels != NONE
    true, found = windows.labels[counted].numpy(), logits.argmax(-1)[counted].numpy()
    each = []
    for k in range(classes):
        hits, all_k = int(((true == k) & (found == k)).sum()), int((true == k).sum() + (found == k).sum())
        each.append(2 * hits / all_k if all_k else 0.0)
    return len(true), 100 * float((true == found).mean()), 100 * float(numpy.mean(each))


def majority(windows):
    counts = torch.bincount(windows.labels[windows.labels != NONE])
    return 100 * float(counts.max() / counts.sum())


# ---- what a worker can read off ------------------------------------------------------------------
def vectors_after(net, block, windows):
    """What is sent for each token when the cut stands behind the block, and the tokens: no padding,
    and nothing of first and last tokens."""
    kept = []
    layers = net.layoutlm.encoder.layer
    hook = layers[block].register_forward_hook(lambda m, i, o: kept.append(o[0] if isinstance(o, tuple) else o))
    with torch.no_grad():
        for b in torch.arange(len(windows)).split(16):
            net.eval()(**windows.rows(b))
    hook.remove()
    real = (windows.inputs["attention_mask"] == 1) & (windows.inputs["input_ids"] > 4)
    return torch.cat(kept)[real], windows.inputs["input_ids"][real]


def tokens_read(known, owns, public, sent, block):
    """Per cent of the tokens of `sent`, behind each front of `owns`, that somebody names who has
    the public weights and pages of his own, but neither the records nor a front as it was trained:
    a linear layer from vectors to tokens, learned on what the public front makes of the public
    pages. And the share of the commonest token."""
    torch.manual_seed(0)
    x, y = vectors_after(known, block, public)
    mean, deviation = x.mean(0), x.std(0) + 1e-6
    probe = torch.nn.Linear(x.shape[1], int(known.config.vocab_size))
    optimizer = torch.optim.Adam(probe.parameters(), lr=3e-3)
    for _ in range(6):
        for b in torch.randperm(len(x)).split(256):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(probe((x[b] - mean) / deviation), y[b]).backward()
            optimizer.step()
    read = []
    for own in owns:
        with torch.no_grad():
            z, t = vectors_after(own, block, sent)
            read.append(100 * float((probe((z - mean) / deviation).argmax(-1) == t).double().mean()))
    return read, 100 * float(torch.bincount(t).max() / len(t))


def tokens_matched(own, windows, block, pages=10):
    """The same by somebody who has no weights at all, but the words of some pages that were sent:
    each vector of the other pages has the token of the nearest one that he knows."""
    known = Part(windows, slice(0, pages))
    x, y = vectors_after(own, block, known)
    z, t = vectors_after(own, block, Part(windows, slice(pages, None)))
    near = torch.nn.functional.normalize(z - x.mean(0), dim=-1) @ torch.nn.functional.normalize(x - x.mean(0), dim=-1).T
    return 100 * float((y[near.argmax(-1)] == t).double().mean())


def labels_read(base, windows, labels, seed=1):
    """Per cent of the labels that a worker names who knows one word of each class and takes the
    nearest direction of the gradient that it is sent: at the first step, with a new classifier."""
    torch.manual_seed(seed)
    net = transformers.LayoutLMForTokenClassification.from_pretrained(base, num_labels=labels).eval()
    kept = []

    def keep(m, i, o):
        out = o[0] if isinstance(o, tuple) else o
        out.retain_grad()
        kept.append(out)

    hook = net.layoutlm.encoder.layer[-1].register_forward_hook(keep)
    net(**windows.inputs, labels=windows.labels).loss.backward()
    hook.remove()
    counted = windows.labels != NONE
    g, y = torch.nn.functional.normalize(kept[0].grad[counted], dim=-1), windows.labels[counted]
    classes = [k for k in range(labels) if (y == k).any()]
    one = torch.stack([g[(y == k).nonzero()[0, 0]] for k in classes])
    found = torch.tensor(classes)[(g @ one.T).argmax(-1)]
    return 100 * float((found == y).double().mean())

# SPDX-License-Identifier: Apache-2.0
"""Tokenizers for `make token-parity`: the small ones of tests/golden/tokens with each step and
option that Cleave does, and texts that are hard to cut."""
import base64
import copy
import functools
import json
import os
import random
import sys
import tempfile
import unicodedata

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../golden"))
import charsmap  # noqa: E402
import make_tokens  # noqa: E402
from make_tokens import METASPACE, replaced, sequence  # noqa: E402

# ---- texts ---------------------------------------------------------------------------------------

PARTS = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\u00a0", "\u3000", "\u2028", "\u200b", "\u200d", "\ufeff", "\u00ad", "\x00", "\x01", "\x7f", "\x85", "\x8f",
         "▁", "▁▁", "<unk>", "<s>", "</s>", "<mask>", "<sep>", "[CLS]", "[SEP]", "[MASK]", "[cls]", "whole", "whole ", " whole", "<0x41>", "<0xE6>",
         "e\u0301", "é", "a\u0308\u0323", "\u0301", "\u0323\u0301", "ﬁ", "½", "²", "Ⅷ", "…", "İ", "ẞ", "ß", "ς", "Σ", "ǅ", "Å", "\u212b", "ẛ\u0323", "ﷺ",
         "\u1100\u1161\u11a8", "가", "각", "漢字", "豈", "\U00020000", "カ\u3099", "ｶﾞ", "か", "क्षि", "ก็", "שָׁ", "مَرْ", "\u0600a", "👨\u200d👩\u200d👧", "👍🏽", "🇩🇪🇫🇷🇮",
         "☃\ufe0f", "\U0001f98a", "'s", "'LL", "'ſ", "don't", "123", "1234567", "3.14", "٣", "``", "''", '"', "--", "...", "_", "a_b", "$x", "x", "the", "The",
         "license", "WARRANTY", "ing", "ab", "aab", "ünal", "ÜNAL", "q\u0307\u0323"]


def known(character):
    """Whether Unicode had it already when the tables of the library were made."""
    return unicodedata.ucd_3_2_0.category(character) != "Cn" and not 0xd800 <= ord(character) < 0xe000


def nasty(count):
    rng = random.Random(7)
    some = [c for c in map(chr, range(0x110000)) if known(c)]
    made = []
    while len(made) < count:
        parts = [rng.choice(PARTS) if rng.random() < 0.8 else rng.choice(some) for _ in range(rng.randrange(1, 24))]
        if rng.random() < 0.1:
            parts += [rng.choice(PARTS) * rng.randrange(2, 130)]
        made.append("".join(parts))
    return made


# ---- tokenizers ----------------------------------------------------------------------------------

@functools.cache
def full_charsmap():
    """The table nmt_nfkc of sentencepiece, which XLM-R and T5 have."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as proto
    with tempfile.TemporaryDirectory() as folder:
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(make_tokens.TEXTS * 20), model_prefix=f"{folder}/m", vocab_size=300,
                                                 hard_vocab_limit=False, minloglevel=2)
        model = proto.ModelProto()
        with open(f"{folder}/m.model", "rb") as f:
            model.ParseFromString(f.read())
    return base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()


def base(name):
    with open(os.path.join(make_tokens.FOLDER, name + ".json"), encoding="utf-8") as f:
        return json.load(f)


def changed(name, /, _model=None, **sections):
    t = copy.deepcopy(base(name))
    t.update(sections)
    t["model"].update(_model or {})
    return t


def normalizers():
    for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"):
        yield kind, {"type": kind}
    for left, right in ((True, True), (True, False), (False, True)):
        yield f"Strip-{left}-{right}", {"type": "Strip", "strip_left": left, "strip_right": right}
    yield "Prepend", {"type": "Prepend", "prepend": "▁x"}
    for kind, pattern, content in (("Regex", " {2,}", "▁"), ("Regex", " +", " "), ("Regex", r"\s+", " "), ("Regex", r"[\n\r\t]", ""), ("Regex", r"\s{2,}|[\n\r\t]", " "), ("String", "''", '"'),
                                   ("String", "a", "bab"), ("String", " ", "")):
        yield f"Replace-{pattern!r}", replaced(kind, pattern, content)
    yield "Precompiled", {"type": "Precompiled", "precompiled_charsmap": charsmap.text(make_tokens.RULES)}
    for clean, cjk, accents, lower in ((1, 1, None, 1), (1, 1, None, 0), (0, 1, True, 0), (1, 0, False, 1), (0, 0, None, 1), (0, 0, False, 0)):
        yield f"BertNormalizer-{clean}{cjk}{accents}{lower}", {"type": "BertNormalizer", "clean_text": bool(clean), "handle_chinese_chars": bool(cjk),
                                                               "strip_accents": accents, "lowercase": bool(lower)}
    yield "lower-nfd-strip", sequence("normalizers", {"type": "NFD"}, {"type": "Lowercase"}, {"type": "StripAccents"}, sequence("normalizers", {"type": "NFKC"}))
    yield "Precompiled-nmt_nfkc", {"type": "Precompiled", "precompiled_charsmap": full_charsmap()}


def pre_tokenizers():
    for kind in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit"):
        yield kind, {"type": kind}
    for scheme in ("always", "never", "first"):
        for split in (True, False):
            yield f"Metaspace-{scheme}-{split}", {**METASPACE, "prepend_scheme": scheme, "split": split}
    yield "Metaspace-old", {"type": "Metaspace", "replacement": "▁", "str_rep": "▁", "add_prefix_space": True}
    yield "Metaspace-underline", {**METASPACE, "replacement": "_"}
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        yield f"Punctuation-{behavior}", {"type": "Punctuation", "behavior": behavior}
        for invert in (False, True):
            yield f"Split-{behavior}-{invert}", {"type": "Split", "pattern": {"String": "▁" if invert else " "}, "behavior": behavior, "invert": invert}
        yield f"Split-gpt2-{behavior}", {"type": "Split", "pattern": {"Regex": make_tokens.GPT2}, "behavior": behavior, "invert": behavior == "Removed"}
    for each in (False, True):
        yield f"Digits-{each}", {"type": "Digits", "individual_digits": each}
    yield "CharDelimiterSplit", {"type": "CharDelimiterSplit", "delimiter": "e"}
    yield "several", sequence("pretokenizers", {"type": "WhitespaceSplit"}, {"type": "Digits", "individual_digits": True},
                              {"type": "Punctuation", "behavior": "Isolated"}, {**METASPACE, "prepend_scheme": "first"})


def kinds():
    """Names and tokenizers, as the contents of a tokenizer.json."""
    for name, step in normalizers():
        yield f"t5 {name}", changed("t5", normalizer=step, pre_tokenizer=None)
    for name, step in pre_tokenizers():
        yield f"llama {name}", changed("llama", normalizer=None, pre_tokenizer=step)
        yield f"bert {name}", changed("bert", normalizer=None, pre_tokenizer=step)
    for name in make_tokens.BRIEF:
        yield name, base(name)
    yield "bert cased", changed("bert", normalizer=dict(base("bert")["normalizer"], lowercase=False))
    yield "bert short words", changed("bert", {"max_input_chars_per_word": 5})
    yield "bert plain pieces", changed("bert", {"continuing_subword_prefix": ""})
    yield "llama no pre_tokenizer", changed("llama", normalizer=None)
    yield "llama no fallback", changed("llama", {"byte_fallback": False})
    yield "llama no fusing", changed("llama", {"byte_fallback": False, "fuse_unk": False})
    yield "llama no unknown", changed("llama", {"byte_fallback": False, "unk_token": None})
    some = changed("llama", pre_tokenizer=METASPACE)
    for byte in ("<0xE6>", "<0xF0>", "<0x0A>", "<0xCC>"):
        some["model"]["vocab"][byte.lower()] = some["model"]["vocab"].pop(byte)
    yield "llama some bytes", some
    yield "gemma", changed("llama", normalizer=replaced("String", " ", "▁"), pre_tokenizer={
        "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False})
    yield "deberta-v2", changed("xlmr", normalizer=sequence("normalizers", replaced("Regex", r"\s{2,}|[\n\r\t]", " "), {"type": "NFC"}, {
        "type": "Strip", "strip_left": False, "strip_right": True}))
    yield "layoutxlm", changed("xlmr", normalizer=sequence("normalizers", {"type": "Strip", "strip_left": False, "strip_right": True}, replaced("Regex", " {2,}", "▁")))
    yield "mistral metaspaces", changed("mistral", pre_tokenizer=METASPACE)
    yield "xlmr never", changed("xlmr", pre_tokenizer={**METASPACE, "prepend_scheme": "never"})
    yield "t5 no fallback", changed("t5", {"byte_fallback": False})
    yield "xlmr whole text", changed("xlmr", pre_tokenizer=None)
    for name in ("gpt2", "roberta", "llama3", "qwen2"):
        yield name, base(name)
    digits = sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True})
    yield "gpt2 digits", changed("gpt2", pre_tokenizer=digits)
    yield "gpt2 no regex", changed("gpt2", pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False})
    for flags in ({"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}, {"single_word": True}, {"single_word": True, "lstrip": True, "rstrip": True}):
        t = base("bert")
        for x in t["added_tokens"]:
            x.update(flags, normalized=x["id"] % 2 == 1)
        yield f"bert added {' '.join(flags)}", t
        t = base("gpt2")
        for x, text in (("▁", "lower"), (" x", "space")):
            t["added_tokens"].append(make_tokens.added(x, max(x["id"] for x in t["added_tokens"]) + 1, special=False, **flags))
        yield f"gpt2 added {' '.join(flags)}", t


# ---- drawn ones ----------------------------------------------------------------------------------

# normalizers
REFUSED = [{"type": "ByteLevel"}, {"type": "Replace", "pattern": {"Regex": "[a-c]+"}, "content": "x"}]
REFUSED_CUTS = [{"type": "UnicodeScripts"}, {"type": "FixedLength", "length": 3}, {"type": "Split", "pattern": {"Regex": r"\w+"}, "behavior": "Isolated", "invert": False}]


def drawn(rng):
    """A tokenizer with sections drawn from all that the library knows, done here or not."""
    t = base(rng.choice(make_tokens.BRIEF[:7] + ("gpt2", "roberta", "llama3", "qwen2")))
    few = lambda steps: [copy.deepcopy(rng.choice(steps)) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    if rng.random() < 0.7:
        steps = few([x for _, x in normalizers()] + REFUSED)
        t["normalizer"] = steps[0] if len(steps) == 1 else sequence("normalizers", *steps) if steps else None
    if rng.random() < 0.7:
        steps = few([x for _, x in pre_tokenizers()] + REFUSED_CUTS + [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}] * 2)
        t["pre_tokenizer"] = steps[0] if len(steps) == 1 else sequence("pretokenizers", *steps) if steps else None
    choices = {"BPE": {"byte_fallback": (True, False), "fuse_unk": (True, False), "ignore_merges": (True, False), "unk_token": ("<unk>", None), "dropout": (None, 0.0, 0.1),
                       "continuing_subword_prefix": (None, "", "##"), "end_of_word_suffix": (None, "", "</w>")},
               "WordPiece": {"unk_token": ("[UNK]", "[PAD]", "no"), "continuing_subword_prefix": ("##", "", "i"), "max_input_chars_per_word": (100, 3, 1)},
               "Unigram": {"byte_fallback": (True, False), "unk_id": (0, 3, None)}}[t["model"]["type"]]
    for key, values in choices.items():
        if rng.random() < 0.3:
            t["model"][key] = rng.choice(values)
    for x in t["added_tokens"]:
        for key in ("single_word", "lstrip", "rstrip", "normalized"):
            if rng.random() < 0.3:
                x[key] = rng.random() < 0.5
    ends = [None, make_tokens.template(("a", 5), ("b", 6)), make_tokens.template(None, ("b", 6)), {"type": "BertProcessing", "sep": ["a", 5], "cls": ["b", 6]},
            {"type": "RobertaProcessing", "sep": ["a", 5], "cls": ["b", 6], "trim_offsets": True, "add_prefix_space": False},
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}]
    t["post_processor"] = rng.choice(ends + [{"type": "Sequence", "processors": [ends[5], rng.choice(ends[1:5])]}, {"type": "Sequence", "processors": ends[2:4]}])
    return t


# ---- all characters ------------------------------------------------------------------------------

def characters():
    """All but surrogates and line ends, which separate the lines."""
    return [chr(c) for c in range(0x110000) if not 0xd800 <= c < 0xe000 and c != 10]


def bytes_of(normalizer, pre_tokenizer):
    """A tokenizer whose tokens are the bytes of what the steps make of a text."""
    t = changed("llama", normalizer=normalizer, pre_tokenizer=pre_tokenizer, added_tokens=[
        make_tokens.added("whole", 257, single_word=True, special=False)], post_processor=None)
    t["model"].update(vocab={"<unk>": 256, **{f"<0x{b:02X}>": b for b in range(256)}}, merges=[])
    return t


def sweeps():
    """Names, tokenizers, and the text around each character."""
    for name, step in normalizers():
        yield f"all {name}", bytes_of(step, None), ("", "")
        yield f"all {name} between", bytes_of(step, None), ("e", "\u0301\u0323x")
    for name, step in pre_tokenizers():
        if not name.startswith(("Split", "Metaspace")) or name == "Split-gpt2-Isolated":
            yield f"all {name}", bytes_of(None, sequence("pretokenizers", step, {**METASPACE, "split": False})), ("a1", "1b")
    yield "all words", bytes_of(None, None), ("whole ", "whole")
    yield "all spaces", bytes_of({"type": "Strip", "strip_left": True, "strip_right": True}, None), ("", "")
    yield "all byte level", dict(base("gpt2")), ("", "")
    yield "all llama3", dict(base("llama3")), ("a ", "1")

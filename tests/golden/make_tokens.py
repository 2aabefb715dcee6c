#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small vocabularies, and the tokens that Hugging Face's tokenizers makes of texts with
them, to tests/golden/tokens.

`make token-golden` runs it, and `make_tokens.py NAME...` makes only the files of these ways. The
library comes from PyPI, into a virtual environment under build/. Each line of cases.txt is a way to
cut text (WAYS), a text in hexadecimal, and its token numbers. Only characters of Unicode
8 occur, because the library knows the punctuation of Unicode 8 and utf8proc that of a newer
version.
"""
import json
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "tokens")
sys.path.insert(0, os.path.join(HERE, "../net/lib"))
sys.path.insert(0, HERE)
import charsmap  # noqa: E402
import pypi  # noqa: E402

ENVIRONMENT = os.path.abspath(os.path.join(HERE, "../../build/tokenizers"))
LICENCES = "/usr/share/common-licenses/"

# way: (file, lower-case, strip accents). Only WordPiece has these options.
WAYS = {
    "pieces": ("pieces.txt", True, None),
    "cased": ("pieces.txt", False, None),
    "lower-accents": ("pieces.txt", True, False),
    "cased-stripped": ("pieces.txt", False, True),
    "gpt2": ("gpt2.json", None, None),
    "roberta": ("roberta.json", None, None),
    "llama3": ("llama3.json", None, None),
    "qwen2": ("qwen2.json", None, None),
    "bert": ("bert.json", None, None),
    "llama": ("llama.json", None, None),
    "mistral": ("mistral.json", None, None),
    "xlmr": ("xlmr.json", None, None),
    "t5": ("t5.json", None, None),
    "fused": ("fused.json", None, None),
    "unfused": ("unfused.json", None, None),
    "rounded": ("rounded.json", None, None),
}
# Ways for which only some of the mixed texts are written.
BRIEF = ("bert", "llama", "mistral", "xlmr", "t5", "fused", "unfused", "rounded")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")

TEXTS = [
    "", " ", "a", "The quick brown fox jumps over the lazy dog.", "Unaffable unwanted running",
    "Déjà vu: naïve café, Ünïcödé, ÀÉÎÕÜ, Ångström, e\u0301le\u0300ve a\u0308\u0323",
    "ΑΒΓ ΣΊΣΥΦΟΣ ὈΔΥΣΣΕΎΣ, Ελληνικά", "Привет, мир! Ёлка и йод", "İstanbul ISPARTA ıI",
    "Straße GROẞ ﬁne ﬂow ǅ ǄǅǆＡＢＣ１２３", "你好，世界！ 漢字カタカナひらがな 㐀𠀀豈", "안녕하세요 각 각",
    "שָׁלוֹם עולם", "مَرْحَبًا بالعالم", "नमस्ते दुनिया क्षि", "สวัสดีชาวโลก", "Tiếng Việt: Nguyễn",
    "😀 👍🏽 👨‍👩‍👧 🇩🇪 ☃️ ♥", "a\u200bb\u200db\u00adc\ufeffd\ufffde", "tab\there\nline\r\nend\r\n\r\n  x",
    "\x00\x01\x02\x7f\x85\x9f\u2028\u2029", "\x0b\x0c\x1c\x1f", "don't I'LL we'Ve she'd it'S 'ſ 'm'RE",
    "1234567890 3.14 1,000,000 ½ ² Ⅷ ٣", "x = y+z; if (a<b && c>d) { return *p++; } // `#$%^&@~|\\_",
    "a" * 100, "a" * 101, "b" * 1000, "\u0301" * 50, "é" * 100, "e\u0301" * 100, "漢" * 120,
    "[CLS] the [MASK] of [SEP] [UNK] [PAD] [cls]", "<s>a</s> <mask> b <mask>c<|endoftext|>",
    "   leading", "trailing   ", "in   between\t\t x", "\u3000wide\u00a0space\u2003em", "\n\n\n", " \n x",
    "…—–“quotes”‘’«»¿¡", "-- --- ----", "https://example.org/a_b?c=d&e=%20", "CamelCaseAndSNAKE_case",
    "\u0390\u1e9b\u0323 \u212b \u2126 \ufb03", "q\u0307\u0323 \u1100\u1161\u11a8 \u0b47\u0b57",
]
MORE_TEXTS = [
    "▁a ▁ b▁▁c", "▁", " ▁ ", "<unk>", "a<unk>b <unk><unk>", "<0x41><0xFF> <0x0a>", "日本<0xE6>", "\U0001f98a\U0001f98b fox", "x \U0001f98a", "İ ẞ ﬁ ﬃx",
    "a\u166db \u1885a \u1886 x\u1734y", "a \t \t\t  b\n \n  \t\n \t", " \t a\t", "\t\t\t", "abab aabb", "the other then. bathe in-ing--inging 12a1b11 1.1..a", "WHOLE Whole wHole WHOLEs", "ééàé ❤a❤❤a❤ \u20ac\u20aca", "whole word wholes awhole whole.whole _whole whole\u0301 (whole) whole", "a <mask>  b<mask>  c  <mask>", "<sep> a <sep>b<sep>", "Ünal ünal u\u0308nal",
    "ﬁ\u0301 e\u0301\u0301 A\u0301", "\r\n\r\n x\r\n", "a" * 300, "\u4e00" * 200, "\u3402" * 40, "  two  spaces   three    ", "q\u030a\u030a",
]
POOL = ("aAbBeE zZ09  \t\n\r'.,-_!#éÉñ\u0301\u0323\u0308ß" "ΣσςИйЁ漢字かな가각\u1100\u1161" "اَ\u05b0ש" "😀\u200d\ufe0f\u00a0\u3000"
         "½²٣Ⅷ\x00\x01\x7f\u200b\u00ad“—€$+<ſＡ")


# Replacements that a table of sentencepiece makes, in the form that tests/golden/charsmap.py reads.
RULES = {"ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "Ａ": "A", "Ｂ": "B", "Ｃ": "C", "１": "1", "２": "2", "½": "1⁄2", "²": "2", "…": "...", "Ⅷ": "VIII",
         "\u00a0": " ", "\u3000": " ", "\u2003": " ", "\t": " ", "\n": " ", "\r": " ", "\u200b": "", "\u00ad": "", "\ufeff": "", "\x00": "", "\x7f": "",
         "e\u0301": "é", "a\u0308": "ä", "n\u0303": "ñ", "\u1100\u1161": "가", "\u212b": "Å", "\r\n": " ", "ẛ\u0323": "ṩ"}


def texts(way):
    rng = random.Random(18)
    mixed = ["".join(rng.choice(POOL) for _ in range(rng.randrange(1, 40))) for _ in range(50 if way in BRIEF else 150)]
    return TEXTS + mixed + (MORE_TEXTS if way in BRIEF else [])


def real_text():
    return [open(LICENCES + n, errors="replace").read() for n in ("GPL-3", "Apache-2.0", "MPL-2.0")]


def load(way):
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers
    name, lower, accents = WAYS[way]
    path = os.path.join(FOLDER, name)
    if lower is None:
        return tokenizers.Tokenizer.from_file(path)
    with open(path, encoding="utf-8") as f:
        vocab = {line.rstrip("\n"): i for i, line in enumerate(f)}
    t = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    t.normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=accents,
                                              lowercase=lower)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"])
    return t


def train_pieces():
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers, trainers
    t = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(strip_accents=False, lowercase=False)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=1600, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    lower = [x.lower() for x in real_text()]
    t.train_from_iterator(real_text() + lower + TEXTS, trainer)
    vocab = t.get_vocab()
    with open(os.path.join(FOLDER, "pieces.txt"), "w", encoding="utf-8") as f:
        f.writelines(token + "\n" for token in sorted(vocab, key=vocab.get))


def train_bytes(name, pre, special, nfc=False, ignore_merges=False):
    import tokenizers
    from tokenizers import AddedToken, models, normalizers, pre_tokenizers, trainers
    t = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    t.pre_tokenizer = pre
    if nfc:
        t.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(vocab_size=640, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator(real_text() + TEXTS, trainer)
    t.add_special_tokens([AddedToken(x, normalized=False, lstrip=x == "<mask>") for x in special])
    t.add_tokens([AddedToken("ünal", normalized=True)])
    t.save(os.path.join(FOLDER, name), pretty=True)


def save(name, value):
    with open(os.path.join(FOLDER, name), "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


def added(content, number, **flags):
    return {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **flags}


def trained(model, trainer, pre_tokenizer, normalizer=None):
    """A trained tokenizer as a tokenizer.json, without added tokens."""
    import tokenizers
    t = tokenizers.Tokenizer(model)
    t.pre_tokenizer = pre_tokenizer
    if normalizer:
        t.normalizer = normalizer
    t.train_from_iterator(real_text() + TEXTS, trainer)
    return {**json.loads(t.to_str()), "added_tokens": []}


def template(before, after):
    """A post-processor that adds tokens. before, after: (token, its number), or None."""
    around = [[{"SpecialToken": {"id": x[0], "type_id": 0}}] if x else [] for x in (before, after)]
    return {"type": "TemplateProcessing", "single": [*around[0], {"Sequence": {"id": "A", "type_id": 0}}, *around[1]],
            "pair": [*around[0], {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}, *around[1]],
            "special_tokens": {x[0]: {"id": x[0], "ids": [x[1]], "tokens": [x[0]]} for x in (before, after) if x}}


def train_bert():
    from tokenizers import models, normalizers, pre_tokenizers, trainers
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t = trained(models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(vocab_size=700, special_tokens=special, show_progress=False),
                pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer())
    t["added_tokens"] = [added(x, i) for i, x in enumerate(special)] + [
        added("whole", len(t["model"]["vocab"]), single_word=True, normalized=True, special=False)]
    t["post_processor"] = template(("[CLS]", 2), ("[SEP]", 3))
    t["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    save("bert.json", t)


def train_characters(name, normalizer, pre_tokenizer, **model):
    """Writes a BPE of characters that falls back to bytes."""
    from tokenizers import models, pre_tokenizers, trainers
    special = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, limit_alphabet=130, show_progress=False)
    t = trained(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True), trainer, pre_tokenizers.Metaspace())
    last = len(t["model"]["vocab"])
    t.update(normalizer=normalizer, pre_tokenizer=pre_tokenizer, post_processor=template(("<s>", 1), None), added_tokens=[
        *(added(x, i) for i, x in enumerate(special[:3])), added("<mask>", last, lstrip=True), added("<sep>", last + 1, rstrip=True),
        added("whole", last + 2, single_word=True, normalized=True, special=False)])
    t["model"].update(model)
    save(name, t)


def train_scores(name, normalizer, pre_tokenizer, byte_fallback=False):
    """Writes a Unigram model."""
    from tokenizers import models, pre_tokenizers, trainers
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=500, special_tokens=special, unk_token="<unk>", show_progress=False)
    t = trained(models.Unigram(), trainer, pre_tokenizers.Metaspace())
    if byte_fallback:
        t["model"]["vocab"] += [[f"<0x{b:02X}>", 0.0] for b in range(256)]
        t["model"]["byte_fallback"] = True
    last = len(t["model"]["vocab"])
    t.update(normalizer=normalizer, pre_tokenizer=pre_tokenizer, post_processor=template(("<s>", 0), ("</s>", 2)), added_tokens=[
        *(added(x, i) for i, x in enumerate(special)), added("<mask>", last, lstrip=True), added("<sep>", last + 1, rstrip=True),
        added("whole", last + 2, single_word=True, normalized=True, special=False)])
    save(name, t)


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def replaced(kind, pattern, content):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def make_few(name, normalizer, pre_tokenizer, **options):
    """Writes a BPE of a few characters, so most of a text is unknown. Every second byte has a
    token."""
    merges = ["t h", "th e", "e r", "i n", "in g", "a b", "<unk> a", ". .", "1 1"]
    vocab = ["<unk>", *"abcdefghinrt.-1é ", *(f"<0x{b:02X}>" for b in range(0, 256, 2)), *(x.replace(" ", "") for x in merges)]
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
             "byte_fallback": True, "ignore_merges": False, **options, "vocab": {x: i for i, x in enumerate(vocab)}, "merges": [x.split() for x in merges]}
    save(name, {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [
        added("WHOLE", len(vocab), normalized=True, single_word=True), added("\t", len(vocab) + 1, rstrip=True)],
                "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": None, "model": model})


ROUNDED = ("-7.1690822152001837", "-7.169082215200183")


def make_rounded():
    """The score of "ab" equals the sum of those of "a" and "b" if its decimal digits are rounded
    once. The library rounds them twice, and its score is one bit lower."""
    vocab = [["<unk>", -30.0], ["a", 0.0], ["b", ROUNDED[1]], ["ab", ROUNDED[0]]]
    text = json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None,
                       "decoder": None, "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": False}})
    with open(os.path.join(FOLDER, "rounded.json"), "w") as f:
        f.write(text.replace('"-', "-").replace('"]', "]") + "\n")


METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def train_split(name):
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
    pattern, nfc, whole = {"llama3": (LLAMA3, False, True), "qwen2": (QWEN2, True, False)}[name]
    pre = Sequence([Split(Regex(pattern), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])
    train_bytes(name + ".json", pre, ["<|endoftext|>", "<|im_start|>"], nfc, whole)


def train(way):
    from tokenizers.pre_tokenizers import ByteLevel
    os.makedirs(FOLDER, exist_ok=True)
    {
        "pieces": train_pieces,
        "gpt2": lambda: train_bytes("gpt2.json", ByteLevel(add_prefix_space=False), ["<|endoftext|>"]),
        "roberta": lambda: train_bytes("roberta.json", ByteLevel(add_prefix_space=True), ["<s>", "<pad>", "</s>", "<mask>"]),
        "llama3": lambda: train_split("llama3"),
        "qwen2": lambda: train_split("qwen2"),
        "bert": train_bert,
        "llama": lambda: train_characters("llama.json", sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, replaced("String", " ", "▁")), None),
        "mistral": lambda: train_characters("mistral.json", None, {**METASPACE, "prepend_scheme": "first", "split": False}, ignore_merges=True),
        "xlmr": lambda: train_scores("xlmr.json", sequence("normalizers", {"type": "Precompiled", "precompiled_charsmap": charsmap.text(RULES)},
                                                           replaced("Regex", " {2,}", " ")), METASPACE),
        "t5": lambda: train_scores("t5.json", sequence("normalizers", {"type": "Nmt"}, {"type": "NFKC"}, {"type": "Lowercase"},
                                                       replaced("String", "``", '"'), {"type": "Strip", "strip_left": False, "strip_right": True}),
                                   sequence("pretokenizers", {"type": "WhitespaceSplit"}, METASPACE), True),
        "fused": lambda: make_few("fused.json", {"type": "Lowercase"}, sequence(
            "pretokenizers", {"type": "Punctuation", "behavior": "MergedWithPrevious"}, {"type": "Digits", "individual_digits": True},
            {"type": "Split", "pattern": {"String": "the"}, "behavior": "MergedWithNext", "invert": False}, {"type": "Whitespace"})),
        "unfused": lambda: make_few("unfused.json", {"type": "Strip", "strip_left": False, "strip_right": True}, sequence(
            "pretokenizers", {"type": "Punctuation", "behavior": "Contiguous"}, {"type": "Digits", "individual_digits": False},
            {"type": "Split", "pattern": {"String": "in"}, "behavior": "MergedWithPrevious", "invert": True},
            {"type": "CharDelimiterSplit", "delimiter": "-"}), fuse_unk=False, byte_fallback=False),
        "rounded": make_rounded,
    }.get(way, lambda: None)()


def main(ways):
    path = os.path.join(FOLDER, "cases.txt")
    lines = []
    if ways and os.path.exists(path):
        with open(path) as f:
            lines = [line for line in f if line.split(" ", 1)[0] not in ways]
    for way in ways or WAYS:
        train(way)
        t = load(way)
        for text in texts(way):
            ids = t.encode(text, add_special_tokens=False).ids
            lines.append(" ".join([way, text.encode().hex() or "-", *map(str, ids)]) + "\n")
    with open(path, "w") as f:
        f.writelines(lines)


def with_the_library(path):
    """Runs the script `path` again in the environment that has the library, unless it is there
    already."""
    try:
        import sentencepiece, tokenizers  # noqa: E401, F401
    except ImportError:
        if not pypi.works(ENVIRONMENT, "tokenizers", "sentencepiece"):
            wrong = pypi.install(ENVIRONMENT, "tokenizers", "sentencepiece", "protobuf")
            if wrong:
                sys.exit(wrong)
        os.execv(pypi.interpreter(ENVIRONMENT), [pypi.interpreter(ENVIRONMENT), path, *sys.argv[1:]])


if __name__ == "__main__":
    with_the_library(os.path.abspath(__file__))
    main(sys.argv[1:])

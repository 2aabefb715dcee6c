#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Small vocabularies, and what Hugging Face's tokenizers makes of texts with them, in
tests/golden/tokens.

`make token-golden` runs it; the library comes from PyPI, into a virtual environment under build/.
Each line of cases.txt is a way to cut text (WAYS), a text in hexadecimal, and its token numbers.
Characters are of Unicode 8 alone: that is what the library knows of punctuation, and utf8proc knows
more of it.
"""
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "tokens")
sys.path.insert(0, os.path.join(HERE, "../net/lib"))
import pypi  # noqa: E402

ENVIRONMENT = os.path.abspath(os.path.join(HERE, "../../build/tokenizers"))
LICENCES = "/usr/share/common-licenses/"

# way: file, lower-case, accents. The options are of WordPiece alone.
WAYS = {
    "pieces": ("pieces.txt", True, None),
    "cased": ("pieces.txt", False, None),
    "lower-accents": ("pieces.txt", True, False),
    "cased-stripped": ("pieces.txt", False, True),
    "gpt2": ("gpt2.json", None, None),
    "roberta": ("roberta.json", None, None),
    "llama3": ("llama3.json", None, None),
    "qwen2": ("qwen2.json", None, None),
}
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
POOL = ("aAbBeE zZ09  \t\n\r'.,-_!#éÉñ\u0301\u0323\u0308ß" "ΣσςИйЁ漢字かな가각\u1100\u1161" "اَ\u05b0ש" "😀\u200d\ufe0f\u00a0\u3000"
         "½²٣Ⅷ\x00\x01\x7f\u200b\u00ad“—€$+<ſＡ")


def texts():
    rng = random.Random(18)
    mixed = ["".join(rng.choice(POOL) for _ in range(rng.randrange(1, 40))) for _ in range(150)]
    return TEXTS + mixed


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


def train():
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
    os.makedirs(FOLDER, exist_ok=True)
    train_pieces()
    train_bytes("gpt2.json", ByteLevel(add_prefix_space=False), ["<|endoftext|>"])
    train_bytes("roberta.json", ByteLevel(add_prefix_space=True), ["<s>", "<pad>", "</s>", "<mask>"])
    for name, pattern, nfc, whole in (("llama3.json", LLAMA3, False, True), ("qwen2.json", QWEN2, True, False)):
        pre = Sequence([Split(Regex(pattern), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])
        train_bytes(name, pre, ["<|endoftext|>", "<|im_start|>"], nfc, whole)


def main():
    train()
    lines = []
    for way in WAYS:
        t = load(way)
        for text in texts():
            ids = t.encode(text, add_special_tokens=False).ids
            lines.append(" ".join([way, text.encode().hex() or "-", *map(str, ids)]))
    with open(os.path.join(FOLDER, "cases.txt"), "w") as f:
        f.writelines(line + "\n" for line in lines)


def with_the_library(path):
    """Goes on in the environment that has it, in which `path` is run again."""
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        if not pypi.works(ENVIRONMENT, "tokenizers"):
            wrong = pypi.install(ENVIRONMENT, "tokenizers")
            if wrong:
                sys.exit(wrong)
        os.execv(pypi.interpreter(ENVIRONMENT), [pypi.interpreter(ENVIRONMENT), path, *sys.argv[1:]])


if __name__ == "__main__":
    with_the_library(os.path.abspath(__file__))
    main()

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of the targets json, pieces, tokenizer, charsmap, text, words, hf, pages and
peft."""
import copy
import json
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden"))
import charsmap  # noqa: E402
from seeds.corpus import ROOT, gzip_of, write  # noqa: E402

TEXT = "Déjà vu: don't I'LL 'ſ 12345  \r\n\n x 漢字 e\u0301\u0323\u0301 가\u1100\u1161 [SEP] <s> a  b\tc ab abc AB\u00a0!? \u0130".encode()
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")


def byte_chars():
    shown = [b for b in range(256) if 32 < b < 127 or (160 < b and b != 173)]
    hidden = iter(range(256, 512))
    return [chr(b) if b in shown else chr(next(hidden)) for b in range(256)]


def peft_seeds():
    whole = {"peft_type": "LORA", "r": 4, "lora_alpha": 16, "lora_dropout": 0.1, "use_rslora": True, "use_dora": False,
             "bias": "none", "lora_bias": None, "rank_pattern": {"a.query": 2, "value": 3}, "task_type": None,
             "alpha_pattern": {"query": 1.5}, "target_modules": ["query"]}
    values = {"whole": whole, "least": {"peft_type": "LORA"}, "no_patterns": dict(whole, rank_pattern=None),
              "many": dict(whole, rank_pattern={f"l.{i}": i + 1 for i in range(40)}), "none": {}, "list": [],
              "type": dict(whole, peft_type="IA3"), "dora": dict(whole, use_dora=True), "bias": dict(whole, bias="all"),
              "regex": dict(whole, rank_pattern={"^a.*": 2}), "empty_name": dict(whole, rank_pattern={"": 2}),
              "rank": dict(whole, r=0), "alpha": dict(whole, lora_alpha=-1), "pattern_alpha": dict(whole, alpha_pattern={"a": 0}),
              "long_name": dict(whole, rank_pattern={"a" * 300: 2}), "pattern_list": dict(whole, rank_pattern=[]),
              "too_many": dict(whole, rank_pattern={f"l{i}": 1 for i in range(4100)})}
    for name, value in values.items():
        write("peft", name, json.dumps(value))
    write("peft", "end", json.dumps(whole) + "x")
    write("peft", "twice", '{"r": 1, "r": 2}')


def json_seeds():
    values = {
        "all": '{"a": [1, -20, 3.5e-2, true, false, null], "c": "x\\n\\u00e9\\ud83d\\ude00\\"", "b": {}}',
        "twice": '{"a": 1, "a": 2}', "deep": "[" * 70, "half": '["\\ud800"]', "escape": '["\\q"]', "open": '["abc',
        "control": '["a\x01"]', "comma": "[1 2]", "colon": '{"a" 1}', "end": "[] x", "number": "[01, 1., 1e, -]",
        "large": "[1e999]", "long": "1" * 80, "word": "[nul]", "whole": "[1.5]", "range": "[99999]", "empty": "", "no": "?",
        "falsehood": "tru", "u": '"\\u12', "pair": '"\\ud83dx"', "byte": b'"\xff"', "inside": '{"a": [tru]}', "mark": "\ufeff[1]", "utf16": '{"a": 1}'.encode("utf-16"), "utf32": "[]".encode("utf-32-le"),
        "real": "1.5", "realneg": "-1e+5"}
    for name, text in values.items():
        write("json", name, text)


def pieces_seeds():
    vocab = "[UNK]\n[CLS]\n[SEP]\na\nb\n##b\n##a\nab\n!\né\n漢\ndeja\n##'\n"
    for i, name in enumerate(("lower", "cased", "keep", "cased_keep", "strip", "cased_strip")):
        write("pieces", name, bytes([i]) + vocab.encode() + b"\0" + TEXT)
    for name, file in {"empty_line": "[UNK]\n\na\n", "twice": "[UNK]\r\na\r\na\r\n", "unknown": "a\nb", "long": "[UNK]\n" + "a" * 1100,
                       "bytes": b"[UNK]\na\xff\n", "nothing": ""}.items():
        write("pieces", name, b"\0" + (file if isinstance(file, bytes) else file.encode()) + b"\0abc")
    write("pieces", "text", b"\4" + TEXT + b" ab abab ## ### a#b " + "\u0301\u0323".encode() * 40)
    write("pieces", "empty_when_cleaned", b"\0\1")
    write("pieces", "not_utf8", b"\0abc\xff")
    write("pieces", "long_word", b"\0" + b"a" * 101 + b" " + b"a" * 100)


def model():
    return {"version": "1.0", "truncation": None, "added_tokens": [
                {"id": 256, "content": "<s>", "single_word": False, "lstrip": True, "rstrip": True, "normalized": False, "special": True},
                {"id": 260, "content": "[SEP]", "single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": True}],
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]},
            "post_processor": None,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {**{c: i for i, c in enumerate(byte_chars())}, "<s>": 256, "ab": 257, "abc": 258, "Ġa": 259},
                      "merges": ["a b", ["ab", "c"], "Ġ a"]}}


def changed(path, value):
    m = copy.deepcopy(model())
    at = m
    for key in path[:-1]:
        at = at[key]
    if value is None and isinstance(at, dict) and path[-1] == "gone":
        return m
    at[path[-1]] = value
    return m


ROBERTA_ENDS = {"type": "RobertaProcessing", "sep": ["</s>", 258], "cls": ["<s>", 256], "trim_offsets": True, "add_prefix_space": True}
TEMPLATE = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}}}
PADDING = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": 257, "pad_type_id": 0, "pad_token": "ab"}


def tokenizer_seeds():
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    split = ("pre_tokenizer", "pretokenizers", 0)
    files = {
        "qwen2": model(), "gpt2": changed(("pre_tokenizer",), byte_level),
        "llama3": changed((*split, "pattern"), {"Regex": QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")}),
        "split_gpt2": changed((*split, "pattern"), {"Regex": GPT2}), "whole": changed(("model", "ignore_merges"), True),
        "no_nfc": changed(("normalizer",), None), "nfkc": changed(("normalizer",), {"type": "NFKC"}),
        "pattern": changed((*split, "pattern"), {"Regex": r"\w+"}), "text_pattern": changed((*split, "pattern"), {"String": " "}),
        "behavior": changed((*split, "behavior"), "Other"), "removed": changed((*split, "behavior"), "Removed"), "invert": changed((*split, "invert"), True),
        "metaspace": changed(("pre_tokenizer",), {"type": "Metaspace"}), "no_pre": changed(("pre_tokenizer",), {}),
        "three": changed(("pre_tokenizer", "pretokenizers"), [byte_level] * 3), "many": changed(("pre_tokenizer", "pretokenizers"), [{"type": "Whitespace"}] * 17),
        "other_pre": changed(("pre_tokenizer",), {"type": "UnicodeScripts"}), "other_normalizer": changed(("normalizer",), {"type": "ByteLevel"}),
        "version": changed(("version",), "2.0"), "two_patterns": changed((*split, "pattern"), {"String": " ", "Regex": GPT2}),
        "type_id": changed(("post_processor",), {**TEMPLATE, "single": [{"Sequence": {"id": "A", "type_id": 1}}]}),
        "text_b": changed(("post_processor",), {**TEMPLATE, "single": [{"Sequence": {"id": "B", "type_id": 0}}]}),
        "added_id": changed(("added_tokens", 1, "id"), 261), "vocab_id": changed(("added_tokens", 0, "id"), 4),
        "added_long": changed(("added_tokens", 0, "content"), "a" * 257), "added_empty": changed(("added_tokens", 0, "content"), ""),
        "lists": changed(("pre_tokenizer", "pretokenizers"), [{"type": "Sequence", "pretokenizers": []}]),
        "wordlevel": changed(("model", "type"), "WordLevel"), "unigram_keys": changed(("model", "type"), "Unigram"), "no_type": changed(("model",), {}), "dropout": changed(("model", "dropout"), 0.1), "no_dropout": changed(("model", "dropout"), 0),
        "prefix": changed(("model", "continuing_subword_prefix"), "##"), "suffix": changed(("model", "end_of_word_suffix"), "</w>"),
        "fallback": changed(("model", "byte_fallback"), True), "no_merge_token": changed(("model", "merges"), ["a z"]),
        "three_tokens": changed(("model", "merges"), ["a b c"]), "long_list": changed(("model", "merges"), [["a", "b", "c"]]),
        "short_list": changed(("model", "merges"), [["a"]]), "same": changed(("model", "merges"), ["a b", "a b"]), "no_part": changed(("model", "merges"), ["a zz"]),
        "number": changed(("model", "vocab", "a"), 1 << 40), "empty_token": changed(("model", "vocab", ""), 300),
        "single_word": changed(("added_tokens", 0, "single_word"), True), "no_id": changed(("added_tokens", 0), {"content": "x"}),
        "added_twice": changed(("added_tokens", 1), model()["added_tokens"][0]), "unknown_key": changed(("model", "more"), [1]),
        "unknown_null": changed(("more",), None), "unknown_flag": changed(("added_tokens", 0, "more"), True),
        "roberta_ends": changed(("post_processor",), ROBERTA_ENDS), "template": changed(("post_processor",), TEMPLATE),
        "byte_level": changed(("post_processor",), byte_level),
        "template_in_list": changed(("post_processor",), {"type": "Sequence", "processors": [byte_level, TEMPLATE]}),
        "two_ends": changed(("post_processor",), {"type": "Sequence", "processors": [ROBERTA_ENDS, TEMPLATE]}),
        "processors_in_list": changed(("post_processor",), {"type": "Sequence", "processors": [{"type": "Sequence", "processors": []}]}),
        "two_before": changed(("post_processor",), {**TEMPLATE, "single": TEMPLATE["single"][:1] + TEMPLATE["single"]}),
        "no_text": changed(("post_processor",), {**TEMPLATE, "single": []}), "no_specials": changed(("post_processor",), {"type": "TemplateProcessing", "single": TEMPLATE["single"]}),
        "other_special": changed(("post_processor",), {**TEMPLATE, "special_tokens": {}}),
        "two_numbers": changed(("post_processor",), {**TEMPLATE, "special_tokens": {"<s>": {"id": "<s>", "ids": [1, 2], "tokens": ["a", "b"]}}}),
        "other_processor": changed(("post_processor",), {"type": "Other"}), "processor_key": changed(("post_processor",), {"type": "ByteLevel", "more": 1}),
        "short_pair": changed(("post_processor",), {**ROBERTA_ENDS, "sep": ["</s>"]}), "end_of_no_token": changed(("post_processor",), {**ROBERTA_ENDS, "sep": ["</s>", 4000000]}),
        "cut": changed(("truncation",), {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}),
        "cut_left": changed(("truncation",), {"direction": "Left", "max_length": 5, "strategy": "LongestFirst", "stride": 0}),
        "filled": changed(("padding",), PADDING), "filled_left": changed(("padding",), {**PADDING, "direction": "Left"})}
    for name, m in files.items():
        write("tokenizer", name, json.dumps(m, ensure_ascii=False).encode() + b"\0" + (TEXT if name in ("qwen2", "gpt2", "whole") else b"abc"))
    few = model()
    del few["model"]["vocab"]["a"]
    few["model"]["merges"] = []
    write("tokenizer", "missing_byte", json.dumps(few, ensure_ascii=False).encode() + b"\0")
    for name, key in (("no_model", "model"), ("no_pre_key", "pre_tokenizer")):
        m = model()
        del m[key]
        write("tokenizer", name, json.dumps(m).encode() + b"\0")
    for key in ("vocab", "merges"):
        m = model()
        del m["model"][key]
        write("tokenizer", "no_" + key, json.dumps(m).encode() + b"\0")
    write("tokenizer", "vocab_twice", json.dumps(model()).replace('"ab": 257', '"ab": 257, "ab": 3').encode() + b"\0")
    write("tokenizer", "text", TEXT)
    write("tokenizer", "long_text", b"ab" * 300 + b"c" * 20 + b"abc" * 30)
    write("tokenizer", "not_utf8", b"ab\xc3")


# ---- other models --------------------------------------------------------------------------------

RULES = {"ﬁ": "fi", "e\u0301": "é", "\u200b": "", "\u3000": " ", "½": "1⁄2", "a\u0308": "ä"}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
NASTY = TEXT + " ▁a▁ ﬁ\u0301 e\u0301x ½\u200b\u3000 <unk> x[SEP]abc é[SEP] [SEP]! \U0001f98a \u3402 [sep]abc ABC <s>  ab,12 a-b".encode()


def added(content, number, **flags):
    return {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **flags}


def whole_file(kind, vocab, normalizer, pre_tokenizer, tokens=(), **options):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(tokens), "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
            "post_processor": None, "decoder": None, "model": {"type": kind, **options, "vocab": vocab}}


def replaced(kind, pattern, content):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def pieces_file(normalizer=None, pre_tokenizer=None, **options):
    vocab = {x: i for i, x in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "##b", "##a", "##c", "ab", "é", "漢", "!", "1", "##2", "fi"])}
    options = {"unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, **options}
    return whole_file("WordPiece", vocab, normalizer or BERT, pre_tokenizer or {"type": "BertPreTokenizer"},
                      [added("[SEP]", 3, single_word=True), added("[Norm]", 16, normalized=True, lstrip=True, rstrip=True)], **options)


def characters_file(normalizer=None, pre_tokenizer=None, **options):
    vocab = {x: i for i, x in enumerate(["<unk>", "<s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "c", "ab", "▁a", "▁ab", "abc"])}
    options = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "merges": [["a", "b"], ["▁", "ab"], ["▁", "a"], ["ab", "c"]], **options}
    return whole_file("BPE", vocab, normalizer, pre_tokenizer, [added("<s>", 1, rstrip=True)], **options)


def scores_file(normalizer=None, pre_tokenizer=None, vocab=None, **options):
    vocab = vocab or [["<unk>", 0.0], ["▁", -2], ["a", -3.1622776601683795], ["b", -3.25e0], ["ab", -4.5], ["▁a", -4.0], ["▁ab", -4.75], ["é", -5],
                      ["abc", -123456789012345678901234567890e-28], ["c", -9.5], ["<0xF0>", 0], ["<0x9F>", 0], ["<0xA6>", 0], ["<0x8A>", 0]]
    return whole_file("Unigram", vocab, normalizer, pre_tokenizer or METASPACE, [added("<s>", len(vocab))], **{"unk_id": 0, "byte_fallback": True, **options})


BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}


def table(rules):
    return {"type": "Precompiled", "precompiled_charsmap": charsmap.text(rules)}


def model_seeds():
    steps = [{"type": x} for x in ("NFD", "NFKC", "NFKD", "StripAccents", "Lowercase", "Nmt", "NFC")]
    long = "a" * 300
    huge = [replaced("String", "a", "a" * 60)] * 3
    files = {
        "pieces": pieces_file(), "pieces_accents": pieces_file(dict(BERT, strip_accents=True, lowercase=False)), "pieces_kept": pieces_file(dict(BERT, strip_accents=False, clean_text=False)),
        "pieces_short": pieces_file(max_input_chars_per_word=2), "pieces_none": pieces_file(max_input_chars_per_word=0), "pieces_unknown": pieces_file(unk_token="[NO]"),
        "pieces_bytes": pieces_file(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}),
        "pieces_prefix": pieces_file(continuing_subword_prefix=""), "pieces_no_unknown": pieces_file(unk_token=None),
        "characters": characters_file(sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, replaced("String", " ", "▁"))),
        "characters_first": characters_file(pre_tokenizer={**METASPACE, "prepend_scheme": "first", "split": False}, ignore_merges=True),
        "characters_first_replace": characters_file(replaced("String", " ", "▁"), {**METASPACE, "prepend_scheme": "first"}),
        "characters_unknown": characters_file(byte_fallback=False, fuse_unk=False), "characters_none": characters_file(byte_fallback=False, unk_token=None),
        "characters_no_unknown": characters_file(unk_token="<no>"), "first_moved": characters_file({"type": "NFKC"}, {**METASPACE, "prepend_scheme": "first"}),
        "scheme": characters_file(pre_tokenizer={**METASPACE, "prepend_scheme": "second"}), "prefix_space": characters_file(pre_tokenizer={"type": "Metaspace", "replacement": "▁", "add_prefix_space": False}),
        "two_characters": characters_file(pre_tokenizer={**METASPACE, "replacement": "▁▁"}), "empty_split": characters_file(pre_tokenizer={"type": "Split", "pattern": {"String": ""}, "behavior": "Removed", "invert": False}),
        "long_step": characters_file({"type": "Prepend", "prepend": long}), "empty_prepend": characters_file({"type": "Prepend", "prepend": ""}),
        "empty_replace": characters_file(replaced("String", "", "x")), "other_replace": characters_file(replaced("Regex", "a|b", "x")), "huge": characters_file(sequence("normalizers", *huge)),
        "huge_added": characters_file(sequence("normalizers", *huge)), "all_normalizers": characters_file(sequence("normalizers", *steps, {"type": "Strip", "strip_left": True, "strip_right": True},
            replaced("Regex", r"\s{2,}|[\n\r\t]", "  "), replaced("Regex", r"[\n\r\t]", " "), replaced("Regex", " {2,}", "▁"), replaced("Regex", r"\s+", " "), replaced("Regex", " +", " "), sequence("normalizers"))),
        "all_pre": characters_file(pre_tokenizer=sequence("pretokenizers", {"type": "WhitespaceSplit"}, {"type": "Whitespace"}, {"type": "BertPreTokenizer"}, {"type": "Digits", "individual_digits": False},
            {"type": "Punctuation", "behavior": "Contiguous"}, {"type": "CharDelimiterSplit", "delimiter": "-"}, {"type": "Split", "pattern": {"String": "b"}, "behavior": "MergedWithPrevious", "invert": True},
            {"type": "Split", "pattern": {"String": "b"}, "behavior": "MergedWithNext", "invert": False}, METASPACE)),
        "scores": scores_file(sequence("normalizers", table(RULES), replaced("Regex", " {2,}", " "))), "scores_unknown": scores_file(byte_fallback=False), "scores_whole": {**scores_file(), "pre_tokenizer": None},
        "scores_no_unknown": scores_file(unk_id=None), "scores_unknown_id": scores_file(unk_id=14), "scores_none": scores_file(vocab=[]), "scores_one": scores_file(vocab=[["<unk>", 0]]),
        "scores_short": scores_file(vocab=[["<unk>"]]), "scores_long": scores_file(vocab=[["<unk>", 0, 1]]), "scores_twice": scores_file(vocab=[["<unk>", 0], ["<unk>", 0]]),
        "scores_empty": scores_file(vocab=[["", 0]]), "scores_tiny": scores_file(vocab=[["<unk>", -1e-320], ["a", -0.0], ["b", 1e308], ["ab", 12345678901234567890123]]),
        "normalised_twice": pieces_file(), "normalised_empty": pieces_file(), "charsmap_64": scores_file({"type": "Precompiled", "precompiled_charsmap": "?"}),
        "charsmap_short": scores_file({"type": "Precompiled", "precompiled_charsmap": "AAAA"})}
    files["huge_added"]["added_tokens"] = [added("aaa", 266, normalized=True)]
    files["scores_none"]["model"]["vocab"] = []
    files["normalised_twice"]["added_tokens"] += [added("[NORM]", 17, normalized=True)]
    files["normalised_empty"]["added_tokens"] += [added("\u0301", 17, normalized=True)]
    for name, m in files.items():
        write("tokenizer", name, json.dumps(m, ensure_ascii=False).encode() + b"\0" + NASTY)


def charsmap_seeds():
    """A seed is a byte with the length of the text to look up, then the text, then the table."""
    text = "ﬁn e\u0301\u200bx½\u3000a\u0308".encode()
    good = charsmap.build(RULES)
    units = struct.unpack_from("<I", good)[0]
    tables = {"good": good, "short": good[:7], "size": struct.pack("<I", len(good)) + good[4:], "odd_size": struct.pack("<I", 6) + good[4:], "nothing": struct.pack("<II", 4, 0),
              "no_texts": good[:4 + units], "open_text": good[:-1], "not_utf8": good[:4 + units] + b"\xff" * (len(good) - 4 - units),
              "long_text": charsmap.build({"a": "b" * 257}), "circle": struct.pack("<I", 1024) + struct.pack("<I", 1 << 10) + b"".join(struct.pack("<I", i ^ 1 | (i ^ 1) << 10) for i in range(1, 256)),
              "outside": struct.pack("<III", 8, 0x60 << 10, 0x61 | 1 << 8 | 0x1000 << 10), "far": struct.pack("<I", 512) + struct.pack("<I", 0) + b"".join(struct.pack("<I", i & 0xff | 1 << 8 | 1 << 9 | 0x3fff << 10) for i in range(1, 128))}
    for name, table_of in tables.items():
        write("charsmap", name, bytes([len(text)]) + text + table_of)


def text_seeds():
    tables = {
        "good.csv": '\ufefftext,label,more\r\nab a,x,1\r\n\r\n"a,""b""\nb",y,\n', "no_label.csv": "label,text\n,a b\n",
        "open.csv": 'text,label\n"a', "after.csv": 'text,label\n"a"b,c\n', "few.csv": "text,label\na\n", "many.csv": "text,label\na,b,c\n",
        "twice.csv": "text,text,label\n", "label_twice.csv": "text,label,label\n", "none.csv": "a,b\n", "no_label_column.csv": "text\n",
        "empty.csv": "", "header.csv": "text,label", "name.csv": "text,label\na,b/c\n", "dot.csv": "text,label\na,.b\n", "control.csv": "text,label\na,b\x01\n",
        "utf8.csv": b"text,label\na\xff,b\n", "columns.csv": "," * 5000,
        "good.jsonl": '{"text": "a b", "label": "x", "z": [1]}\n\n{"label": 3, "text": "b"}', "missing.jsonl": '{"label": "x"}\n',
        "missing_label.jsonl": '{"text": "x"}\n', "kind.jsonl": '{"text": 1}\n', "range.jsonl": '{"label": -1}\n', "end.jsonl": '{"text": "a"} x',
        "words.jsonl": '{"text": ["a", "b"], "label": "x"}', "words_open.jsonl": '{"text": ["a" 1]}', "words_kind.jsonl": '{"text": [1]}',
        "again.jsonl": '{"text": "a", "text": "b"}', "list.jsonl": "[]", "long.jsonl": '{"text": "' + "a b " * 20 + '", "label": "c"}'}
    for name, text in tables.items():
        data = text if isinstance(text, bytes) else text.encode()
        write("text", name, bytes([name.endswith(".csv") | 2]) + data)
        if name.startswith(("good", "no_label", "missing")):
            write("text", "unlabelled_" + name, bytes([name.endswith(".csv")]) + data)
        if name.startswith(("few", "many", "utf8", "missing", "kind")):
            write("text", "broken_" + name, bytes([name.endswith(".csv") | 10]) + data)
    write("text", "broken_one.csv", b"\x0btext,label\na,b\na\na,b,c\n")
    write("text", "broken_one.jsonl", b'\x0a{"text": "a", "label": "x"}\n{"text": 1}\n{"text": ')
    write("text", "utf16.csv", b"\3" + "text,label\na,b\n".encode("utf-16"))
    write("text", "empty_line_between_pieces", b"\3" + gzip_of("text,label,x\na,b,", "c", 65517, "\n\r\na,b,\n"))
    write("text", "rows.csv", b"\3text,label\n" + b"a,b\n" * 200)


def words_seeds():
    page, word = '<page width="200.5" height="100">', '<word xMin="20" yMin="10" xMax="40.9" yMax="50">'
    printed = {
        "good": f'<html><doc>\n{page}\n{word}A&amp;b&lt;&#39;&x</word>{word}b a b a</word></page>{page}</page></doc>', "bytes": (page + word).encode() + b"\xff\x01z</word>",
        "back": page + '<word xMin="90" yMin="nan" xMax="10" yMax="-1e99">ab</word>', "zero": '<page width="0" height="0">' + word + "a</word>",
        "no_size": "<page >", "no_box": page + "<word >", "no_page": word + "a</word>", "open": page + word + "a", "tag": "<page ", "empty": page + word + "</word>",
        "long": page.replace("200.5", "1" * 50), "other": page.replace("200.5", "1x"), "nothing": "", "many": page + (word + "ab</word>") * 300,
        "turned": f"Title: Page 7\nPage    1 rot:   90\nPage    2 rot: 180\nPage 0 rot: 90\nPage 3\n{page}{word}ab</word></page>{page}</page>"}
    for name, text in printed.items():
        write("words", "bbox_" + name, b"\1" + (text if isinstance(text, bytes) else text.encode()))
    head, first = "level\tpage\n", "1\t1\t0\t0\t0\t0\t0\t0\t400\t200\t-1\t\n"
    row = "5\t1\t1\t1\t1\t1\t40\t20\t80\t10\t96.1\t"
    rows = {"good": head + first + row + "Höllo\n\n4\t1\t1\t1\t1\t0\t1\t1\t1\t1\t-1\t\n" + row + " \n", "no_page": head + row + "a\n", "few": head + "5\t1\n",
            "number": head + first.replace("400", "4x"), "long": head + first.replace("400", "1" * 20), "bytes": (head + first + row).encode() + b"\xffa\x01\n",
            "negative": head + first + row.replace("40\t20", "-5\t-5") + "a"}
    for name, text in rows.items():
        write("words", "tsv_" + name, b"\0" + (text if isinstance(text, bytes) else text.encode()))


def hf_seeds():
    golden = os.path.join(ROOT, "tests/golden/hf")
    configs = {}
    for family in sorted(os.listdir(golden)):
        with open(os.path.join(golden, family, "config.json")) as f:
            configs[family] = json.load(f)
        write("hf", family, json.dumps(configs[family]))
    changes = {
        "bert": ({"hidden_act": "mish"}, {"is_decoder": True}, {"position_embedding_type": "relative_key"}, {"pruned_heads": {"1": [0]}},
                 {"pruned_heads": None}, {"quantization_config": {}}, {"quantization_config": None}, {"id2label": {}}, {"id2label": None},
                 {"layer_norm_eps": 0}, {"hidden_size": 18}, {"hidden_size": "16"}, {"hidden_act": 3}, {"model_type": "t5"}, {"position_embedding_type": "absolute"}),
        "roberta": ({"pad_token_id": 19}, {"pad_token_id": -1}, {"classifier_dropout": 0.5}, {"type_vocab_size": 1}, {"pad_token_id": 60}),
        "layoutlm": ({"tie_word_embeddings": True}, {"hidden_dropout_prob": 0}),
        "gpt2": ({"n_inner": 8}, {"scale_attn_weights": False}, {"n_positions": 2}, {"hidden_size": 8}, {"hidden_size": 16}),
        "llama": ({"rope_parameters": None, "rope_theta": 3}, {"rope_scaling": {"type": "linear", "factor": 1}}, {"num_key_value_heads": 3},
                  {"head_dim": 6, "attention_bias": True}, {"head_dim": 5}, {"num_key_value_heads": None}, {"vocab_size": 1 << 24, "hidden_size": 65536},
                  {"num_labels": 4, "id2label": None, "partial_rotary_factor": 1}, {"num_labels": 0}, {"num_labels": None}, {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": "1"},
                  {"rope_parameters": {"full_attention": {"rope_theta": 3}}}, {"rope_scaling": {"type": "linear"}}, {"rope_scaling": {"rope_type": "yarn"}}),
        "qwen2": ({"layer_types": ["sliding_attention"]}, {"layer_types": None}, {"use_sliding_window": True}, {"num_key_value_heads": -1}),
        "distilbert": ({"sinusoidal_pos_embds": True}, {"hidden_size": 16}, {"hidden_size": 8}, {"activation": "relu", "n_heads": 3}),
        "mistral": ({"sliding_window": None}, {"sliding_window": 2}, {"sliding_window": 0}, {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": None}),
        "qwen3": ({"attention_bias": True}, {"head_dim": 5}, {"auto_map": {}}, {"rope_parameters": {"rope_type": "dynamic", "factor": 2}, "max_position_embeddings": 2},
                  {"rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 2}},
                  {"rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}}, {"rope_parameters": {"surprise": 1}}),
        "phi3": ({"num_key_value_heads": None, "resid_pdrop": 0.1}, {"attention_bias": True}),
        "xlm-roberta": ({"pad_token_id": 18}, {"hidden_act": "relu"}),
        "vit": ({"patch_size": 3}, {"qkv_bias": False}, {"image_size": 16384, "patch_size": 1}),
    }
    for family, several in changes.items():
        for i, change in enumerate(several):
            write("hf", f"{family}_{'_'.join(change)}_{i}", json.dumps({**configs[family], **change}))
    few = {k: v for k, v in configs["bert"].items() if k != "vocab_size"}
    write("hf", "no_vocabulary", json.dumps(few))
    write("hf", "no_family", json.dumps({k: v for k, v in few.items() if k != "model_type"}))
    write("hf", "twice", json.dumps(configs["bert"]).replace("}, \"label2id", "}, \"vocab_size\": 1, \"label2id"))
    write("hf", "list", "[1]")
    write("hf", "empty_key", '{"": 1, "model_type": ""}')
    write("hf", "kinds", json.dumps({**configs["bert"], "is_decoder": None}))


def page_seeds():
    words, boxes = '"words": ["ab", "b", "a, b"]', '"boxes": [[0,0,1,1], [2,3,4,5], [0,0,1000,1000]]'
    good = f'{{{words}, {boxes}, "labels": ["x", null, "y"], "label": "k", "page": 1}}'
    many = '{"words": [' + ",".join(['"a"'] * 60) + '], "boxes": [' + ",".join(["[1,2,3,4]"] * 60) + '], "labels": [' + ",".join(['"a"', '"b"', "null"] * 20) + '], "label": 3}'
    for wants in range(3):
        write("pages", f"good_{wants}", bytes([wants]) + f"{good}\n\n{many}\n{good}".encode())
        write("pages", f"missing_{wants}", bytes([wants]) + f"{{{words}}}".encode())
    other = '"id": {"a": [1, "\\u00e9"]}, "probabilities": [1]'
    write("pages", "kept", bytes([3]) + f"{good}\n{{{other}, {words}, {boxes}}}\n{many}".encode())
    lines = {
        "no_labels": f"{{{words}, {boxes}}}", "few_boxes": f'{{{words}, "boxes": [[0,0,1,1]], "labels": []}}', "few_labels": f'{{{words}, {boxes}, "labels": ["x"]}}',
        "large": '{"boxes": [[0,0,1001,1]]}', "negative": '{"boxes": [[-1,0,1,1]]}', "back": '{"boxes": [[5,0,1,1]]}', "three": '{"boxes": [[5,0,6]]}',
        "five": '{"boxes": [[0,0,1,1,1]]}', "flat": '{"boxes": [0,0,1,1]}', "number": '{"words": [1]}', "nul": '{"words": ["a\\u0000b"]}', "twice": f"{{{words}, {words}}}",
        "name": f'{{{words}, {boxes}, "labels": ["a/b", "x", "y"]}}', "empty": '{"words": [], "boxes": [], "labels": []}', "nothing": "", "list": "[]",
        "no_token": '{"words": ["", " "], "boxes": [[0,0,0,0],[0,0,0,0]], "labels": ["x","y"]}', "classes": "\n".join(
            f'{{"words": ["a"], "boxes": [[0,0,0,0]], "labels": ["{i}"]}}' for i in range(40)), "end": "{} x", "utf8": b'{"words": ["\xff"], "boxes": [[0,0,0,0]], "labels": ["x"]}'}
    for name, text in lines.items():
        write("pages", name, b"\1" + (text if isinstance(text, bytes) else text.encode()))
    write("pages", "label_nul", b'\2{"label": "a\\u0000"}')
    write("pages", "label_list", b'\2{"label": []}')


json_seeds()
pieces_seeds()
tokenizer_seeds()
model_seeds()
charsmap_seeds()
text_seeds()
words_seeds()
hf_seeds()
page_seeds()
peft_seeds()

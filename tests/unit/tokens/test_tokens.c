/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests tokenizers: they give the numbers of Hugging Face's library (tests/golden/make_tokens.py),
 * refuse what they do not support by its name and position, and are not slowed down by long words.
 */
#include <stdlib.h>

#include "master/tokens/tokens_int.h"
#include "tests/unit/files.h"
#include "tests/unit/must.h"

/* ---- comparison with the tokenizers library -------------------------------------------------- */

static const struct {
  const char *name, *file_name;
  clv_tokenizer_options options;
} tokenizers[] = {
    {"pieces", "pieces.txt", {0}},
    {"cased", "pieces.txt", {.keeps_case = true}},
    {"lower-accents", "pieces.txt", {.accents = CLV_ACCENTS_KEEP}},
    {"cased-stripped", "pieces.txt", {.keeps_case = true, .accents = CLV_ACCENTS_STRIP}},
    {"gpt2", "gpt2.json", {0}},
    {"roberta", "roberta.json", {0}},
    {"llama3", "llama3.json", {0}},
    {"qwen2", "qwen2.json", {0}},
    {"bert", "bert.json", {0}},
    {"llama", "llama.json", {0}},
    {"mistral", "mistral.json", {0}},
    {"xlmr", "xlmr.json", {0}},
    {"t5", "t5.json", {0}},
    {"fused", "fused.json", {0}},
    {"unfused", "unfused.json", {0}},
    {"rounded", "rounded.json", {0}}};

static void open_all_tokenizers(clv_tokenizer **ret) {
  for (size_t i = 0; i < CLV_COUNT(tokenizers); i++) {
    char path[80];
    clv_err err;
    snprintf(path, sizeof path, "tests/golden/tokens/%s", tokenizers[i].file_name);
    must(clv_tokenizer_open(path, &tokenizers[i].options, &ret[i], &err), &err);
  }
}

static void assert_same_tokens(const clv_tokenizer *t, const char *case_name, char *hex,
                               char *want) {
  CLV_AUTO(clv_ids_done) clv_ids ids = {0};
  uint8_t text[8192];
  clv_err err;
  size_t n = strcmp(hex, "-") == 0 ? 0 : strlen(hex) / 2, i = 0;
  assert_true(n <= sizeof text && clv_hex_parse(n ? hex : "", text, n));
  must(clv_tokenizer_encode(t, (const char *)text, n, &ids, &err), &err);
  for (char *at; (at = strsep(&want, " "));) {
    if (!*at) continue;
    if (i >= ids.n || ids.at[i] != atoi(at))
      fail_msg("%s of %s: token %zu is %d, expected %s", case_name, hex, i,
               i < ids.n ? ids.at[i] : -1, at);
    i++;
  }
  if (i != ids.n) fail_msg("%s of %s: %zu tokens, expected %zu", case_name, hex, ids.n, i);
}

static void token_ids_match_hugging_face_tokenizers(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes cases = {0};
  clv_tokenizer *open_tokenizers[CLV_COUNT(tokenizers)];
  clv_err err;
  size_t n = 0;
  open_all_tokenizers(open_tokenizers);
  must(clv_file_read("tests/golden/tokens/cases.txt", 1 << 22, &cases, &err), &err);
  for (char *rest = cases.data, *line; (line = strsep(&rest, "\n")) && *line; n++) {
    char *case_name = strsep(&line, " "), *hex = strsep(&line, " ");
    size_t i = 0;
    while (i < CLV_COUNT(tokenizers) && strcmp(tokenizers[i].name, case_name) != 0) i++;
    assert_true(i < CLV_COUNT(tokenizers));
    assert_same_tokens(open_tokenizers[i], case_name, hex, line);
  }
  assert_true(n > 1000);
  for (size_t i = 0; i < CLV_COUNT(tokenizers); i++) clv_tokenizer_free(open_tokenizers[i]);
}

static void token_ids_and_vocab_size_are_known(void **state) {
  (void)state;
  clv_tokenizer *all[CLV_COUNT(tokenizers)];
  open_all_tokenizers(all);
  assert_int_equal(clv_tokenizer_token_id(all[0], "[PAD]"), 0);
  assert_int_equal(clv_tokenizer_token_id(all[0], "[SEP]"), 3);
  assert_int_equal(clv_tokenizer_token_id(all[0], "no such token"), -1);
  assert_int_equal(clv_tokenizer_vocab_size(all[0]), 1600);
  assert_int_equal(clv_tokenizer_token_id(all[5], "<mask>"), 643);
  assert_int_equal(clv_tokenizer_vocab_size(all[5]), 645);
  for (size_t i = 0; i < CLV_COUNT(tokenizers); i++) clv_tokenizer_free(all[i]);
}

/* ---- tokenizer files that are refused -------------------------------------------------------- */

static void assert_pieces_refused(const char *file, size_t len, clv_code code, const char *says) {
  clv_tokenizer *t = NULL;
  clv_err err = {0};
  clv_tokenizer_options o = {0};
  expect_error(code, says, clv_wordpiece_parse(file, len, "vocab.txt", &o, &t, &err), &err);
  assert_null(t);
}

static void damaged_vocab_files_are_refused(void **state) {
  (void)state;
  char *long_line = malloc(2000);
  assert_non_null(long_line);
  memset(long_line, 'a', 2000);
  assert_pieces_refused("", 0, CLV_INVALID, "vocab.txt: has no token [UNK] among its 0 lines");
  assert_pieces_refused(
      "#version: 0.2\na b\n", 18, CLV_INVALID,
      "vocab.txt: this is a list of merges (merges.txt), half of a tokenizer: name the "
      "tokenizer.json");
  assert_pieces_refused("[UNK]\n\nb\n", 9, CLV_INVALID, "vocab.txt:2:1: an empty line");
  assert_pieces_refused("[UNK]\nb\nc\nb\n", 12, CLV_INVALID,
                        "vocab.txt:4:1: this token is in line 2");
  assert_pieces_refused("[UNK]\nb\xff\n", 9, CLV_INVALID,
                        "vocab.txt:2: byte 1 of the line is not UTF-8");
  assert_pieces_refused(long_line, 2000, CLV_EXHAUSTED, "vocab.txt:1:1: at most");
  free(long_line);
}

/* Asserts that a file is refused. tests/fuzz/make_token_seeds.py writes these files, each with one
 * error. */
static void assert_json_refused(const char *name, const char *says) {
  CLV_AUTO(clv_bytes_done) clv_bytes file = {0};
  clv_tokenizer *t = NULL;
  clv_err err = {0};
  char path[80];
  snprintf(path, sizeof path, "tests/fuzz/corpus/tokenizer/%s", name);
  must(clv_file_read(path, 1 << 20, &file, &err), &err);
  clv_code code =
      clv_tokenizer_parse_json(file.data, strlen(file.data), "tokenizer.json", &t, &err);
  expect_error(CLV_INVALID, says, code, &err);
  assert_non_null(strstr(err.text, "tokenizer.json:1:"));
  assert_null(t);
}

static const char *const unsupported_files[][2] = {
    {"other_normalizer",
     "the normalizer 'ByteLevel' is not known here, known are BertNormalizer, NFC"},
    {"other_pre",
     "the pre_tokenizer 'UnicodeScripts' is not known here, known are ByteLevel, Split"},
    {"pattern", "only the patterns of GPT-2, Llama 3 and Qwen2 are known: '\\w+'"},
    {"two_patterns", "the pattern of a Split is one String or one Regex"},
    {"behavior", "this behavior is not known: 'Other'"},
    {"metaspace", "Metaspace has no key 'replacement'"},
    {"scheme", "this prepend_scheme is not known: 'second'"},
    {"prefix_space", "add_prefix_space of Metaspace is false, and prepend_scheme is not 'never'"},
    {"first_moved", "prepend_scheme 'first' is known only without a normalizer that changes"},
    {"two_characters", "'▁▁' is not one character"},
    {"empty_split", "a text of a step has 0 bytes, expected 1 to 256"},
    {"long_step", "a text of a step has 300 bytes, and 256 are read"},
    {"empty_prepend", "a Prepend has an empty text"},
    {"empty_replace", "the pattern of a Replace is one String or one Regex, and not empty"},
    {"other_replace", "a Replace knows only the regular expressions"},
    {"charsmap_64", "precompiled_charsmap is not base64"},
    {"charsmap_short", "precompiled_charsmap is too short for a trie"},
    {"no_pre", "pre_tokenizer has no key 'type'"},
    {"three", "ByteLevel is the last step of a pre_tokenizer"},
    {"many", "a pre_tokenizer has more than 16 steps"},
    {"wordlevel", "only models of type BPE, WordPiece and Unigram are read: 'WordLevel'"},
    {"no_type", "model has no key 'type'"},
    {"unigram_keys", "the key 'continuing_subword_prefix' of model is not known here"},
    {"dropout", "dropout of merges is not supported"},
    {"prefix", "continuing_subword_prefix of BPE is not supported: '##'"},
    {"suffix", "end_of_word_suffix of BPE is not supported: '</w>'"},
    {"pieces_none", "max_input_chars_per_word is 0, expected 1 to 1000"},
    {"pieces_unknown", "unk_token '[NO]' is not a token of vocab"},
    {"pieces_no_unknown", "unk_token '' is not a token of vocab"},
    {"pieces_bytes", "the pre_tokenizer ByteLevel is read with models of type BPE, not WordPiece"},
    {"characters_no_unknown", "unk_token '<no>' is not a token of vocab"},
    {"scores_no_unknown", "unk_id is null: Unigram needs a token for what it does not know"},
    {"scores_unknown_id", "unk_id is 14, and vocab has 14 tokens"},
    {"scores_none", "this vocabulary has no tokens"},
    {"scores_short", "a token is a text and its score"},
    {"scores_long", "a token is a text and its score"},
    {"scores_twice", "the token '<unk>' appears twice"},
    {"scores_empty", "a token has 0 bytes, expected 1 to 1024"},
    {"no_merge_token", "a merge needs 'az', which is not a token"},
    {"no_part", "a merge needs 'zz', which is not a token"},
    {"three_tokens", "a merge is two tokens with a space between them: 'a b c'"},
    {"long_list", "a merge is two tokens"},
    {"short_list", "a merge is two tokens"},
    {"same", "of this list are the same"},
    {"number", "is no whole number from 0 to 4194303"},
    {"empty_token", "a token has 0 bytes, expected 1 to 1024"},
    {"no_id", "an added token has no key 'id'"},
    {"added_twice", "the added token '<s>' appears twice"},
    {"added_empty", "an added token has 0 bytes, expected 1 to 256"},
    {"added_long", "an added token has 257 bytes, expected 1 to 256"},
    {"added_id", "the added token '[SEP]' has the id 261, and the library gives it 260"},
    {"vocab_id", "the added token '<s>' has the id 4, and the library gives it 256"},
    {"normalised_twice", "the normalised added token '[norm]' appears twice"},
    {"normalised_empty", "the normalizer makes 0 bytes of the added token"},
    {"vocab_twice", "the token 'ab' appears twice"},
    {"missing_byte", "this vocabulary has no token for the byte 0x61"},
    {"version", "only files of version 1.0 are read: '2.0'"},
    {"unknown_key", "the key 'more' of model is not known here"},
    {"unknown_flag", "the key 'more' of an added token is not known here"},
    {"other_processor", "the post_processor 'Other' is not known: there are ByteLevel"},
    {"processor_key", "the key 'more' of ByteLevel is not known here"},
    {"two_ends", "two processors put tokens around a text"},
    {"two_before", "post_processor puts several tokens before a text"},
    {"no_text", "single has the text 0 times"},
    {"text_b", "single has the text 'B', expected 'A'"},
    {"type_id", "type_id is 1: only type 0 is supported in `single`"},
    {"no_specials", "TemplateProcessing has no key 'special_tokens'"},
    {"other_special", "special_tokens has no '<s>'"},
    {"two_numbers", "a special token of post_processor has one number"},
    {"short_pair", "sep and cls are a token and its number"},
    {"end_of_no_token", "post_processor or padding has a number that no token has"},
    {"cut_left", "truncation.direction is 'Left': texts are cut at their end here"},
    {"filled_left", "padding.direction is 'Left': texts are filled at their end here"},
    {"no_model", "this tokenizer.json has no key 'model'"},
    {"no_pre_key", "this tokenizer.json has no key 'pre_tokenizer'"},
    {"no_vocab", "model has no key 'vocab'"},
    {"no_merges", "model has no key 'merges'"}};

static void unsupported_tokenizer_features_are_named(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(unsupported_files); i++)
    assert_json_refused(unsupported_files[i][0], unsupported_files[i][1]);
}

/* The damaged tables of a Precompiled normalizer are in files that tests/fuzz/make_token_seeds.py
 * writes. */
static void damaged_charsmaps_are_refused(void **state) {
  static const char *const cases[][2] = {{"short", "is too short for a trie"},
                                         {"size", "has a trie of another size than it says"},
                                         {"odd_size", "has a trie of another size than it says"},
                                         {"outside", "has a value outside its trie"},
                                         {"circle", "is no trie: its nodes are in a circle"},
                                         {"no_texts", "has a value that is no text of UTF-8"},
                                         {"not_utf8", "has a value that is no text of UTF-8"},
                                         {"long_text", "has a value that is no text of UTF-8"}};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes file = {0}, table = {0};
    CLV_AUTO(clv_charsmap_done) clv_charsmap m = {0};
    const char *refusal = NULL;
    clv_err err = {0};
    char path[80];
    snprintf(path, sizeof path, "tests/fuzz/corpus/charsmap/%s", cases[i][0]);
    must(clv_file_read(path, 1 << 20, &file, &err), &err);
    size_t begin = 1 + (size_t)(unsigned char)file.data[0];
    clv_bytes_add(&table, file.data + begin, file.len - begin);
    must(clv_charsmap_parse(&table, &m, &refusal, &err), &err);
    if (!refusal || !strstr(refusal, cases[i][1]))
      fail_msg("%s: %s", cases[i][0], refusal ? refusal : "-");
    assert_null(m.units);
  }
}

/* Three steps of a normalizer that each put 250 characters in place of one would fill the
 * memory. */
static void normalizer_that_grows_a_text_without_bound_is_stopped(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes file = {0};
  CLV_AUTO(clv_tokenizer_freep) clv_tokenizer *t = NULL;
  CLV_AUTO(clv_ids_done) clv_ids ids = {0};
  clv_err err = {0};
  must(clv_file_read("tests/fuzz/corpus/tokenizer/huge", 1 << 20, &file, &err), &err);
  must(clv_tokenizer_parse_json(file.data, strlen(file.data), "huge", &t, &err), &err);
  expect_error(CLV_EXHAUSTED, "makes more than 4352 characters of a text",
               clv_tokenizer_encode(t, "aaaa", 4, &ids, &err), &err);
  must(clv_tokenizer_encode(t, "bbbb", 4, &ids, &err), &err);
}

/* Encodes as the tokenizers library does by default, with add_special_tokens. */
static void special_tokens_and_truncation_are_read(void **state) {
  static const struct {
    const char *name;
    clv_tokenizer_end_settings ends;
  } cases[] = {{"qwen2", {-1, -1, -1, 0}},
               {"byte_level", {-1, -1, -1, 0}},
               {"roberta_ends", {256, 258, -1, 0}},
               {"template", {256, -1, -1, 0}},
               {"template_in_list", {256, -1, -1, 0}},
               {"cut", {-1, -1, -1, 5}},
               {"filled", {-1, -1, 257, 0}},
               {"unknown_null", {-1, -1, -1, 0}},
               {"processors_in_list", {-1, -1, -1, 0}}};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes file = {0};
    CLV_AUTO(clv_tokenizer_freep) clv_tokenizer *t = NULL;
    clv_err err = {0};
    char path[80];
    snprintf(path, sizeof path, "tests/fuzz/corpus/tokenizer/%s", cases[i].name);
    must(clv_file_read(path, 1 << 20, &file, &err), &err);
    must(clv_tokenizer_parse_json(file.data, strlen(file.data), "tokenizer.json", &t, &err), &err);
    clv_tokenizer_end_settings got = clv_tokenizer_get_end_settings(t), want = cases[i].ends;
    if (got.before != want.before || got.after != want.after || got.pad_id != want.pad_id ||
        got.max_tokens != want.max_tokens)
      fail_msg("%s: %d %d %d %d", cases[i].name, got.before, got.after, got.pad_id,
               (int)got.max_tokens);
  }
}

/* A byte order mark, which editors on Windows write, is skipped in both kinds of file. */
static void byte_order_mark_is_skipped(void **state) {
  static const char *const paths[] = {"tests/golden/tokens/pieces.txt",
                                      "tests/golden/tokens/gpt2.json"};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(paths); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes file = {0}, marked = {0};
    CLV_AUTO(clv_tokenizer_freep) clv_tokenizer *t = NULL;
    clv_tokenizer_options o = {0};
    clv_err err = {0};
    const char *name = i ? "marked.json" : "marked.txt";
    must(clv_file_read(paths[i], 1 << 22, &file, &err), &err);
    clv_bytes_printf(&marked, "\xef\xbb\xbf%s", file.data);
    write_scratch_file(name, marked.data, marked.len);
    must(clv_tokenizer_open(at(name), &o, &t, &err), &err);
    if (!i) assert_int_equal(clv_tokenizer_token_id(t, "[PAD]"), 0);
  }
}

/* Writes a text in UTF-16, with or without byte order mark. */
static void write_utf16(const char *name, const char *text, bool is_big, bool has_mark) {
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
  if (has_mark) clv_bytes_add(&b, is_big ? "\xfe\xff" : "\xff\xfe", 2);
  for (; *text; text++) clv_bytes_add(&b, is_big ? (char[]){0, *text} : (char[]){*text, 0}, 2);
  write_scratch_file(name, b.data, b.len);
}

static void utf16_tokenizer_files_are_refused(void **state) {
  static const char *const texts[] = {"[UNK]\n[PAD]\na\n", "{\"version\": \"1.0\"}"};
  (void)state;
  for (int i = 0; i < 8; i++) {
    CLV_AUTO(clv_tokenizer_freep) clv_tokenizer *t = NULL;
    clv_tokenizer_options o = {0};
    clv_err err = {0};
    const char *name = i & 1 ? "wide.json" : "wide.txt";
    write_utf16(name, texts[i & 1], i & 2, i & 4);
    expect_error(CLV_INVALID, "its text is UTF-16, and UTF-8 is expected",
                 clv_tokenizer_open(at(name), &o, &t, &err), &err);
  }
}

static void text_that_is_not_utf8_is_refused(void **state) {
  (void)state;
  clv_tokenizer *all[CLV_COUNT(tokenizers)];
  open_all_tokenizers(all);
  for (size_t i = 0; i < CLV_COUNT(tokenizers); i++) {
    CLV_AUTO(clv_ids_done) clv_ids ids = {0};
    clv_err err = {0};
    expect_error(CLV_INVALID, "byte 2 is not UTF-8",
                 clv_tokenizer_encode(all[i], "ab\xc3", 3, &ids, &err), &err);
    clv_tokenizer_free(all[i]);
  }
}

/* A token that is white space may take the white space around it. Then the first of several such
 * tokens takes the text of the others, which are not encoded. */
static void white_space_taken_by_a_token_is_not_encoded(void **state) {
  static const char file[] =
      "{\"version\": \"1.0\", \"normalizer\": null, \"pre_tokenizer\": null, \"added_tokens\": "
      "[{\"id\": 2, \"content\": \"\\t\", \"lstrip\": true, \"rstrip\": true}], \"model\": "
      "{\"type\": "
      "\"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null, "
      "\"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, "
      "\"ignore_merges\": false, \"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": []}}";
  static const char *const texts[] = {"a\t\tb", "a \t \t\tb", "a\tb"};
  CLV_AUTO(clv_tokenizer_freep) clv_tokenizer *t = NULL;
  clv_err err = {0};
  (void)state;
  must(clv_tokenizer_parse_json(file, strlen(file), "f", &t, &err), &err);
  for (size_t i = 0; i < CLV_COUNT(texts); i++) {
    CLV_AUTO(clv_ids_done) clv_ids ids = {0};
    must(clv_tokenizer_encode(t, texts[i], strlen(texts[i]), &ids, &err), &err);
    assert_int_equal(ids.n, 3);
    assert_true(ids.at[0] == 0 && ids.at[1] == 2 && ids.at[2] == 1);
  }
}

/* ---- files beside a tokenizer.json ----------------------------------------------------------- */

static const struct {
  const char *file_name, *text, *message; /* message NULL: the text is accepted */
} settings[] = {
    {"bert.json", "{\"do_lower_case\": true, \"strip_accents\": null, \"tokenizer_class\": \"X\"}",
     NULL},
    {"bert.json", "{\"pad_token\": \"[PAD]\", \"mask_token\": {\"content\": \"[MASK]\"}}", NULL},
    {"bert.json", "{\"additional_special_tokens\": [\"whole\"], \"sep_token\": null}", NULL},
    {"bert.json", "{\"extra_special_tokens\": {\"a_token\": \"whole\"}}", NULL},
    {"gpt2.json",
     "{\"added_tokens_decoder\": {\"640\": {\"content\": \"<|endoftext|>\", \"special\": true}, "
     "\"641\": {\"content\": \"\xc3\xbcnal\", \"normalized\": true, \"lstrip\": false}}}",
     NULL},
    {"bert.json", "{\"added_tokens_decoder\": {}}",
     "added_tokens_decoder lists 0 tokens, and tokenizer.json adds 6"},
    {"bert.json", "{\"do_lower_case\":\n false}",
     "f:1:2: do_lower_case is false: the BertNormalizer"},
    {"bert.json", "{\"strip_accents\": false}", "strip_accents is false: the BertNormalizer"},
    {"bert.json", "{\"tokenize_chinese_chars\": false}", "tokenize_chinese_chars is false"},
    {"bert.json", "{\"cls_token\": \"<s>\"}",
     "f:1:2: cls_token is '<s>', which is no added token of tokenizer.json"},
    {"bert.json", "{\"new_token\": {\"content\": \"the\", \"lstrip\": true}}",
     "new_token is 'the', which is no added token"},
    {"bert.json", "{\"new_token\": {\"content\": \"whole\", \"colour\": 1}}",
     "new_token has a token with a key that is not known"},
    {"bert.json", "{\"additional_special_tokens\": [\"whole\", \"<x>\"]}", "is '<x>', which is no"},
    {"bert.json", "{\"extra_special_tokens\": {\"a\": \"<x>\"}}", "is '<x>', which is no"},
    {"bert.json", "{\"added_tokens_decoder\": {\"7\": {\"content\": \"whole\"}}}",
     "f:1:27: added_tokens_decoder, 'whole': a token is missing, or has another number"},
    {"bert.json",
     "{\"added_tokens_decoder\": {\"700\": {\"content\": \"whole\", \"lstrip\": true}}}",
     "added_tokens_decoder, 'whole': a token is missing, or has another number"},
    {"bert.json", "{\"added_tokens_decoder\": {\"\": {\"content\": \"whole\"}}}", "another number"},
    {"bert.json", "{\"added_tokens_decoder\": {\"9\": {}}}", "is '', which is no added token"},
    {"bert.json", "{\"split_special_tokens\": true}",
     "split_special_tokens is true: special tokens"},
    {"bert.json", "{\"truncation_side\": \"left\"}", "truncation_side is 'left', not right"},
    {"bert.json", "{\"auto_map\": {}}",
     "f:1:2: 'auto_map' is not known, and may change the tokens"},
    {"bert.json",
     "{\"padding_side\": \"left\", \"chat_template\": \"x\", \"truncation_side\": \"right\"}",
     NULL},
    {"gpt2.json", "{\"add_prefix_space\": false, \"add_bos_token\": true}", NULL},
    {"gpt2.json", "{\"add_prefix_space\": true}",
     "add_prefix_space is true: the ByteLevel or Meta"},
    {"gpt2.json", "{\"do_lower_case\": true}", "do_lower_case is true: the BertNormalizer"},
    {"gpt2.json", "{\"do_lower_case\": false}", NULL},
    {"xlmr.json", "{\"add_prefix_space\": false}", "add_prefix_space is false"},
    {"xlmr.json", "{\"add_prefix_space\": null}", "add_prefix_space is null"},
    {"gpt2.json", "{\"add_prefix_space\": null, \"trim_offsets\": true}", NULL},
    {"llama.json", "{\"add_prefix_space\": false}", NULL},
    {"llama.json", "[]", "f:1:1: an object is expected"},
    {"llama.json", "{} 3", "f:1:4"},
};

/* tokenizer_config.json and special_tokens_map.json must agree with tokenizer.json. An unknown key
 * is refused unless it is listed. */
static void settings_that_differ_from_the_tokenizer_are_refused(void **state) {
  static const char *const names[] = {"auto_map"};
  static const clv_tokenizer_options none = {0},
                                     listed = {.ignored_keys = names, .n_ignored_keys = 1};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(settings); i++) {
    CLV_AUTO(clv_tokenizer_freep) clv_tokenizer *t = NULL;
    const char *text = settings[i].text;
    char path[80];
    clv_err err = {0};
    snprintf(path, sizeof path, "tests/golden/tokens/%s", settings[i].file_name);
    must(clv_tokenizer_open(path, &none, &t, &err), &err);
    clv_code code = clv_tokenizer_check_settings(t, text, strlen(text), "f", &none, &err);
    if (settings[i].message)
      expect_error(CLV_INVALID, settings[i].message, code, &err);
    else
      must(code, &err);
    if (strstr(text, "auto_map"))
      must(clv_tokenizer_check_settings(t, text, strlen(text), "f", &listed, &err), &err);
  }
}

/* tokenizer_config.json and special_tokens_map.json are read from the folder of the tokenizer, and
 * only if the file of the tokenizer is named tokenizer.json. */
static void files_beside_a_tokenizer_are_compared_with_it(void **state) {
  static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json"};
  static const char other_token[] = "{\"bos_token\": \"<nobody>\"}";
  static const clv_tokenizer_options none = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_err err = {0};
  (void)state;
  must(clv_file_read("tests/golden/tokens/bert.json", 1 << 20, &text, &err), &err);
  (void)write_scratch_file("tokenizer.json", text.data, text.len);
  (void)write_scratch_file("other.json", text.data, text.len);
  for (size_t i = 0; i < CLV_COUNT(names); i++) {
    CLV_AUTO(clv_tokenizer_freep) clv_tokenizer *t = NULL, *other = NULL, *fails = NULL;
    must(clv_tokenizer_open(at("tokenizer.json"), &none, &t, &err), &err);
    (void)write_scratch_file(names[i], other_token, strlen(other_token));
    expect_error(CLV_INVALID, names[i],
                 clv_tokenizer_open(at("tokenizer.json"), &none, &fails, &err), &err);
    must(clv_tokenizer_open(at("other.json"), &none, &other, &err), &err);
    assert_int_equal(unlink(at(names[i])), 0);
  }
}

/* ---- hostile text ---------------------------------------------------------------------------- */

enum { TEXT_LENGTH = 1 << 17, MAX_SECONDS = 5 };

/* Encodes a long text of one repeated pattern; quadratic work would take an hour. */
static void encode_long_text(const char *unit) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_tokenizer *all[CLV_COUNT(tokenizers)];
  open_all_tokenizers(all);
  while (text.len < TEXT_LENGTH) clv_bytes_puts(&text, unit);
  for (size_t i = 0; i < CLV_COUNT(tokenizers); i++) {
    CLV_AUTO(clv_ids_done) clv_ids ids = {0};
    clv_err err;
    uint64_t began = clv_now_ns();
    must(clv_tokenizer_encode(all[i], text.data, text.len, &ids, &err), &err);
    if (clv_now_ns() - began > (uint64_t)MAX_SECONDS * 1000000000)
      fail_msg("%s takes more than %d s for 128 KiB of '%s'", tokenizers[i].name, MAX_SECONDS,
               unit);
    clv_tokenizer_free(all[i]);
  }
}

static void long_texts_take_no_quadratic_time(void **state) {
  (void)state;
  encode_long_text("a");                     /* one very long word */
  encode_long_text("the");                   /* a text with many merges */
  encode_long_text("\t");                    /* added tokens that strip each other */
  encode_long_text(" \n");                   /* white space, which is searched for line ends */
  encode_long_text("\xcc\x81\xcc\xa3");      /* combining marks in wrong order */
  encode_long_text("<|endoftext|[SEP<mask"); /* texts that nearly equal an added token */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(token_ids_match_hugging_face_tokenizers),
      cmocka_unit_test(token_ids_and_vocab_size_are_known),
      cmocka_unit_test(damaged_vocab_files_are_refused),
      cmocka_unit_test(unsupported_tokenizer_features_are_named),
      cmocka_unit_test(damaged_charsmaps_are_refused),
      cmocka_unit_test(normalizer_that_grows_a_text_without_bound_is_stopped),
      cmocka_unit_test(special_tokens_and_truncation_are_read),
      cmocka_unit_test(byte_order_mark_is_skipped),
      cmocka_unit_test(utf16_tokenizer_files_are_refused),
      cmocka_unit_test(text_that_is_not_utf8_is_refused),
      cmocka_unit_test(white_space_taken_by_a_token_is_not_encoded),
      cmocka_unit_test(settings_that_differ_from_the_tokenizer_are_refused),
      cmocka_unit_test(files_beside_a_tokenizer_are_compared_with_it),
      cmocka_unit_test(long_texts_take_no_quadratic_time),
  };
  return cmocka_run_group_tests_name("tokens", tests, scratch_setup, scratch_teardown);
}

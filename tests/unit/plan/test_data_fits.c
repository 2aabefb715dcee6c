/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests mismatches that are found before a run starts: shapes of training and test records, labels
 * and outputs, and micro-batches that batchnorm cannot train on.
 */
#include "master/plan/plan.h"
#include "tests/unit/files.h"

enum { RECORDS = 17, COLUMNS = 4 };

static void write_npy_file(const char *name, const char *descr, const char *shape,
                           const void *values, size_t bytes) {
  CLV_AUTO(clv_bytes_done) clv_bytes dict = {0}, b = {0};
  clv_bytes_printf(&dict, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, shape);
  uint8_t head[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, 118, 0};
  clv_bytes_add(&b, head, sizeof head);
  clv_bytes_printf(&b, "%-117s\n", dict.data);
  clv_bytes_add(&b, values, bytes);
  assert_false(b.failed);
  write_scratch_file(name, b.data, b.len);
}

/* Writes an array of zeros with shape[0] records. */
static void write_zeros(const char *name, const char *descr, const char *shape, size_t bytes) {
  CLV_AUTO(clv_freep) char *zeros = calloc(1, bytes);
  write_npy_file(name, descr, shape, zeros, bytes);
}

static const char small_session[] =
    "version: 1\nname: small\ndata: {format: npy, train: [x.npy, y.npy], test: [x.npy, y.npy]}\n"
    "stages: [{name: a, at: master, layers: [{op: linear, out: 3}, {op: batchnorm}]}]\n"
    "loss: {kind: cross_entropy}\n"
    "train: {batch: 8, drop_last: true, optimizer: {kind: sgd, lr: 0.1}}\n";

/* Checks the session `text` with these --set options. says: the expected error; "": the session
 * fits its data. */
static void assert_check_result(const char *text, const char *const *sets, size_t n_sets,
                                const char *says) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL;
  CLV_AUTO(clv_blueprint_freep) clv_blueprint *b = NULL;
  clv_run_data d = {0};
  clv_config_overrides over = {.sets = sets, .n_sets = n_sets};
  clv_err err = {0};
  assert_ok(clv_session_config_parse(at("s.yaml"), text, strlen(text), &over, &c, &err), &err);
  assert_ok(clv_run_data_open(c, true, &d, &err), &err);
  clv_code code = clv_blueprint_new_of_data(c, d.train, &b, &err);
  if (code == CLV_OK) code = clv_run_data_check_fit(&d, b, &err);
  assert_int_equal(code, *says ? CLV_INVALID : CLV_OK);
  if (*says) assert_says(&err, says);
  clv_run_data_done(&d);
}

#define EXPECT_FOR(text, says, ...)                                         \
  do {                                                                      \
    const char *const sets_[] = {__VA_ARGS__};                              \
    assert_check_result(text, sets_, sizeof sets_ / sizeof sets_[0], says); \
  } while (0)
#define EXPECT(...) EXPECT_FOR(small_session, __VA_ARGS__)

static void mismatched_sets_and_batches_are_refused(void **state) {
  (void)state;
  write_zeros("x.npy", "<f4", "17, 4", (size_t)RECORDS * COLUMNS * 4);
  write_zeros("wide.npy", "<f4", "17, 5", (size_t)RECORDS * 5 * 4);
  write_zeros("y.npy", "<i8", "17,", (size_t)RECORDS * 8);
  write_zeros("t.npy", "<f4", "17, 2", (size_t)RECORDS * 2 * 4);
  EXPECT("", "train.seed=1");
  EXPECT("wide.npy has records of [5]", "data.test=[wide.npy, y.npy]");
  EXPECT("t.npy has labels of [2], and the last layer ('1') gives [3]", "loss.kind=mse",
         "data.train=[x.npy, t.npy]", "data.test=[x.npy, t.npy]");
  EXPECT("the last batch of an epoch has 1 record, ", "train.drop_last=false");
  /* training ends before the incomplete batch */
  EXPECT("", "train.drop_last=false", "train.max_steps=2");
  EXPECT("a batch has 8 records, and its smallest micro-batch 1 ", "pipeline.micro_batches=8");
}

/* ---- numbers in the records: tokens, boxes, lengths and labels ------------------------------- */

/* Two records of three tokens: token numbers, left and right edges of their boxes, lengths, and one
 * class each. */
static const char token_session[] =
    "version: 1\nname: tokens\n"
    "data: {format: npy, inputs: [ids, boxes, lengths], train: [ids.npy, boxes.npy, n.npy, "
    "y.npy]}\n"
    "stages:\n"
    "  - {name: a, at: master, layers: [{op: embedding, rows: 9, out: 4, from: [ids], name: "
    "words},\n"
    "     {op: embedding, rows: 5, out: 4, column: 1, minus: 0, from: [boxes], name: widths},\n"
    "     {op: add, from: [words, widths], name: x},\n"
    "     {op: attention, heads: 2, from: [x, x, x, lengths]}, {op: linear, out: 3}]}\n"
    "loss: {kind: cross_entropy}\n"
    "train: {batch: 2, optimizer: {kind: sgd, lr: 0.1}}\n";

static void write_numbers(const char *name, const char *shape, const int64_t *numbers, size_t n) {
  write_npy_file(name, "<i8", shape, numbers, n * sizeof *numbers);
}

static void write_tokens(void) {
  write_numbers("ids.npy", "2, 3", (const int64_t[]){0, 8, 1, 2, 3, 4}, 6);
  write_numbers("boxes.npy", "2, 3, 2", (const int64_t[]){7, 7, 90, 94, 1, 2, 3, 4, 5, 6, 7, 8},
                12);
  write_numbers("n.npy", "2,", (const int64_t[]){0, 3}, 2);
  write_numbers("y.npy", "2, 3", (const int64_t[]){0, 2, -100, -100, -100, 1}, 6);
}

static void out_of_range_tokens_boxes_and_lengths_are_refused(void **state) {
  (void)state;
  write_tokens();
  EXPECT_FOR(token_session, "", "train.seed=1");
  write_numbers("ids.npy", "2, 3", (const int64_t[]){0, 1, 2, 3, 9, 4}, 6);
  EXPECT_FOR(token_session,
             "ids.npy: record 1 has the number 9, and the embedding 'words' has rows: 9",
             "train.seed=1");
  write_numbers("ids.npy", "2, 3", (const int64_t[]){0, 1, 2, 3, INT64_MIN, 4}, 6);
  EXPECT_FOR(token_session,
             "ids.npy: record 1 has the number -9223372036854775808, and the embedding",
             "train.seed=1");
  write_tokens();
  write_numbers("boxes.npy", "2, 3, 2", (const int64_t[]){7, 7, 1, 2, 1, 2, 3, 4, 6, 5, 7, 8}, 12);
  EXPECT_FOR(token_session,
             "boxes.npy: record 1 has the number -1 (its column 1 less column 0), and the",
             "train.seed=1");
  write_numbers("boxes.npy", "2, 3, 2",
                (const int64_t[]){7, 7, 1, 2, INT64_MIN, INT64_MAX, 3, 4, 6, 8, 7, 8}, 12);
  EXPECT_FOR(token_session,
             "boxes.npy: record 0 has the number 9223372036854775807 (its column 1 less",
             "train.seed=1");
  write_tokens();
  write_numbers("n.npy", "2,", (const int64_t[]){4, 3}, 2);
  EXPECT_FOR(token_session,
             "n.npy: record 0 has the length 4, and its sequence 3 places: 'lengths' is how",
             "train.seed=1");
  write_numbers("n.npy", "2,", (const int64_t[]){3, -1}, 2);
  EXPECT_FOR(token_session, "n.npy: record 1 has the length -1, and its sequence 3 places",
             "train.seed=1");
}

static void wrong_dtypes_and_class_counts_are_refused(void **state) {
  (void)state;
  write_tokens();
  write_zeros("n.npy", "<f4", "2,", 8);
  EXPECT_FOR(token_session,
             "attention needs i64 lengths as input 3, got f32 (in files whole numbers are <i4",
             "train.seed=1");
  write_tokens();
  /* bytes are fractions of 255, so they are no token numbers */
  write_zeros("ids.npy", "|u1", "2, 3", 6);
  EXPECT_FOR(token_session, "embedding needs i64 row numbers as input 0, got f32", "train.seed=1");
  write_tokens();
  write_numbers("y.npy", "2,", (const int64_t[]){0, 2}, 2);
  EXPECT_FOR(token_session,
             "y.npy has labels of [], one per record, and the last layer ('4') gives [3, 3]: "
             "it must give the classes of each record",
             "train.seed=1");
  write_numbers("y.npy", "2, 3", (const int64_t[]){0, 3, -100, -100, -100, 1}, 6);
  EXPECT_FOR(
      token_session,
      "y.npy: labels go up to 3 (record 0), and the last layer has 3 outputs: it needs 4, one",
      "train.seed=1");
  write_numbers("y.npy", "2, 3", (const int64_t[]){0, INT64_MAX, -100, -100, -100, 1}, 6);
  EXPECT_FOR(token_session,
             "labels go up to 9223372036854775807 (record 0), which is the number of no",
             "train.seed=1");
  write_numbers("y.npy", "2, 3", (const int64_t[]){0, 3, -100, -100, 7, 7}, 6);
  EXPECT_FOR(token_session, "y.npy: labels go up to 7 (record 1), and the last layer has 3 outputs",
             "train.seed=1");
}

/* ---- padding tokens and lengths of the records ----------------------------------------------- */

static const char config_sizes[] =
    "\"vocab_size\": 9, \"hidden_size\": 4, \"num_hidden_layers\": 1, \"num_attention_heads\": 2, "
    "\"intermediate_size\": 4, \"max_position_embeddings\": 12";
static const char model_session[] =
    "version: 1\nname: pads\n"
    "data: {format: npy, inputs: [ids, lengths], train: [ids.npy, n.npy, y.npy]}\n"
    "model: {hf: %s, head: %s, labels: 9}\n"
    "stages: [{name: a, at: master, layers: %s}]\n"
    "loss: {kind: cross_entropy}\ntrain: {batch: 2, optimizer: {kind: sgd, lr: 0.1}}\n";

static void write_model_with_pad(const char *family, int pad) {
  char text[400], path[64];
  snprintf(path, sizeof path, "%s/config.json", family);
  snprintf(text, sizeof text, "{\"model_type\": \"%s\", %s, \"%s\": %d, \"pad_token_id\": %d}",
           family, config_sizes,
           strcmp(family, "llama") ? "type_vocab_size" : "num_key_value_heads",
           strcmp(family, "llama") ? 1 : 2, pad);
  clv_err err;
  assert_ok(clv_mkdirs(at(family), &err), &err);
  write_scratch_file(path, text, strlen(text));
}
static void write_model(const char *family) { write_model_with_pad(family, 1); }

/* Checks a session with a model over two records of four positions. lengths NULL: the session has
 * no lengths. */
static void assert_model_check_result(const char *family, const char *head, const int64_t *ids,
                                      const int64_t *lengths, const char *says) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  bool is_roberta = strcmp(family, "roberta") == 0;
  clv_bytes_printf(&text, model_session, family, head,
                   is_roberta               ? "embeddings..classifier"
                   : strcmp(head, "causal") ? "embed_tokens..score"
                                            : "embed_tokens..lm_head");
  write_numbers("ids.npy", "2, 4", ids, 8);
  if (lengths) write_numbers("n.npy", "2,", lengths, 2);
  if (lengths)
    EXPECT_FOR(text.data, says, "train.seed=1");
  else
    EXPECT_FOR(text.data, says, "data.inputs=[ids]", "data.train=[ids.npy, y.npy]");
}

static void pads_inside_the_length_are_refused(void **state) {
  static const int64_t ids[] = {2, 3, 4, 5, 6, 7, 1, 1},
                       ids_with_inner_pad[] = {2, 3, 4, 5, 6, 1, 7, 1};
  static const int64_t ids_with_late_token[] = {2, 3, 4, 5, 6, 7, 1, 8};
  (void)state;
  write_model("roberta");
  write_model("llama");
  write_numbers("y.npy", "2, 4", (const int64_t[]){0, 1, 2, 3, 4, 5, -100, -100}, 8);
  assert_model_check_result("roberta", "token", ids, (const int64_t[]){4, 2}, "");
  assert_model_check_result(
      "roberta", "token", ids, NULL,
      "ids.npy: record 1, place 2 is a pad, and the record has the length 4 "
      "(pad_token_id of model.hf is 1): this model numbers places without pads");
  assert_model_check_result("roberta", "token", ids_with_inner_pad, (const int64_t[]){4, 3},
                            "record 1, place 1 is a pad");
  assert_model_check_result("llama", "token", ids_with_inner_pad, (const int64_t[]){4, 3}, "");
  write_numbers("y.npy", "2,", (const int64_t[]){0, 1}, 2);
  assert_model_check_result("llama", "sequence", ids, (const int64_t[]){4, 2}, "");
  assert_model_check_result("llama", "sequence", ids_with_inner_pad, (const int64_t[]){4, 3}, "");
  assert_model_check_result(
      "llama", "sequence", ids, NULL,
      "record 1, place 1 has its last token that is no pad, and the record has the "
      "length 4");
  assert_model_check_result("llama", "sequence", ids, (const int64_t[]){4, 3},
                            "record 1, place 1 has its last token");
  assert_model_check_result("llama", "sequence", ids_with_late_token, (const int64_t[]){4, 2},
                            "record 1, place 3 has its last token that is no pad");
}

/* transformers scores position 0 of a record of padding only, even if attention ignores padding.
 * Cleave has no token to score there, so it refuses the record. */
static void records_of_padding_alone_are_refused(void **state) {
  static const int64_t ids[] = {2, 3, 4, 5, 1, 1, 1, 1},
                       ids_with_one_token[] = {2, 3, 4, 5, 6, 1, 1, 1};
  (void)state;
  write_model("llama");
  write_numbers("y.npy", "2,", (const int64_t[]){0, 1}, 2);
  assert_model_check_result(
      "llama", "sequence", ids, NULL,
      "record 1, place 0 has its first pad, with no token before or behind it, and the "
      "record has the length 4");
  assert_model_check_result("llama", "sequence", ids, (const int64_t[]){4, 0},
                            "record has the length 0");
  assert_model_check_result("llama", "sequence", ids_with_one_token, (const int64_t[]){4, 0},
                            "record has the length 0");
  assert_model_check_result("llama", "sequence", ids, (const int64_t[]){4, 1}, "");
}

/* No token is -1, so with this pad token transformers scores the last position of each record, also
 * if the record is shorter. */
static void negative_pad_with_short_lengths_is_refused(void **state) {
  static const int64_t ids[] = {2, 3, 4, 5, 6, 7, 0, 0}, full_lengths[] = {4, 4};
  (void)state;
  write_model_with_pad("llama", -1);
  write_numbers("y.npy", "2,", (const int64_t[]){0, 1}, 2);
  assert_model_check_result(
      "llama", "sequence", ids, (const int64_t[]){4, 2},
      "record 1, place 3 has its last number, and the record has the length 2 "
      "(pad_token_id of model.hf is -1): no token is that number");
  assert_model_check_result("llama", "sequence", ids, full_lengths, "");
  assert_model_check_result("llama", "sequence", ids, NULL, "");
}

static void unshifted_causal_labels_are_refused(void **state) {
  static const int64_t ids[] = {2, 3, 4, 5, 6, 7, 1, 1}, n[] = {4, 2};
  (void)state;
  write_model("llama");
  write_numbers("y.npy", "2, 4", ids, 8);
  assert_model_check_result(
      "llama", "causal", ids, n,
      "y.npy: 5 of 5 labels are the token of their own place, not the next: transformers "
      "shifts the labels of head: causal, and here none are");
  write_numbers("y.npy", "2, 4", (const int64_t[]){-100, -100, 4, 5, 6, -100, -100, -100}, 8);
  assert_model_check_result("llama", "causal", ids, n,
                            "2 of 2 labels are the token of their own place");
  assert_model_check_result("llama", "token", ids, n, "");
  write_numbers("y.npy", "2, 4", (const int64_t[]){2, 3, 8, 5, 6, 7, 1, 1}, 8);
  assert_model_check_result("llama", "causal", ids, n,
                            "4 of 5 labels are the token of their own place");
  write_numbers("y.npy", "2, 4", (const int64_t[]){3, 4, 5, -100, 7, -100, -100, -100}, 8);
  assert_model_check_result("llama", "causal", ids, n, "");
  write_numbers("y.npy", "2, 4", (const int64_t[]){3, 3, 3, -100, 3, -100, -100, -100}, 8);
  assert_model_check_result("llama", "causal", (const int64_t[]){3, 3, 3, 3, 3, 3, 3, 3}, n, "");
  /* Labels that equal the tokens at their own positions are refused, because the labels seem not to
   * be shifted. In a text that repeats one token this proves nothing, so the session is
   * accepted. */
  write_numbers("y.npy", "2, 4", (const int64_t[]){3, 3, 3, 3, 3, 3, 3, 3}, 8);
  assert_model_check_result("llama", "causal", (const int64_t[]){3, 3, 3, 3, 3, 3, 3, 3}, n, "");
  /* Half of the labels equal their own tokens, which is too few to refuse the session. */
  write_numbers("y.npy", "2, 4", (const int64_t[]){2, 3, 8, 8, 6, 8, -100, -100}, 8);
  assert_model_check_result("llama", "causal", ids, n, "");
}

/* Asserts the note that `check` prints about labels that equal the tokens of their own position;
 * NULL: no note. */
static void assert_note(const char *head, const int64_t *labels, const char *want) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, notes = {0};
  const char *const sets[] = {"train.seed=1"};
  const clv_config_overrides over = {.sets = sets, .n_sets = 1};
  clv_run_data d = {0};
  uint64_t n_left_out;
  clv_err err = {0};
  write_numbers("y.npy", "2, 4", labels, 8);
  clv_bytes_printf(&text, model_session, "llama", head,
                   strcmp(head, "causal") ? "embed_tokens..score" : "embed_tokens..lm_head");
  assert_ok(clv_session_config_parse(at("s.yaml"), text.data, text.len, &over, &c, &err), &err);
  assert_ok(clv_run_data_open(c, true, &d, &err), &err);
  assert_ok(clv_run_data_scan(c, &d, &(clv_run_scan){0}, &n_left_out, &notes, &err), &err);
  const char *got = notes.data ? strstr(notes.data, "token of their own place") : NULL;
  if (!want != !got || (want && !strstr(notes.data, want)))
    fail_msg("%s", notes.data ? (const char *)notes.data : "");
  clv_run_data_done(&d);
}

/* Only labels at positions whose token differs from the next token count. This data has five such
 * positions. */
static void mostly_unshifted_labels_are_noted(void **state) {
  static const int64_t ids[] = {2, 3, 4, 5, 6, 7, 1, 1}, lengths[] = {4, 2};
  (void)state;
  write_model("llama");
  write_numbers("ids.npy", "2, 4", ids, 8);
  write_numbers("n.npy", "2,", lengths, 2);
  static const int64_t three_of_five[] = {2, 3, 8, 8, 6, 8, -100, -100},
                       two_of_four[] = {2, 8, -100, -100, 6, 8, -100, -100},
                       two_of_five[] = {2, 8, 8, 8, 6, 8, -100, -100},
                       all_own_tokens[] = {2, 3, 4, 5, 6, 7, -100, -100};
  assert_note("causal", three_of_five,
              "data.train: 3 of 5 labels are the token of their own place; head: causal is to say "
              "the next one, and nothing shifts labels here\n");
  /* 2 of 4 labels equal the token of their own position, which is not more than half */
  assert_note("causal", two_of_four, NULL);
  assert_note("causal", two_of_five, NULL);
  /* all labels equal their own tokens: the session is refused, so there is no note */
  assert_note("causal", all_own_tokens, NULL);
  assert_note("token", three_of_five, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(mismatched_sets_and_batches_are_refused),
      cmocka_unit_test(out_of_range_tokens_boxes_and_lengths_are_refused),
      cmocka_unit_test(wrong_dtypes_and_class_counts_are_refused),
      cmocka_unit_test(pads_inside_the_length_are_refused),
      cmocka_unit_test(records_of_padding_alone_are_refused),
      cmocka_unit_test(negative_pad_with_short_lengths_is_refused),
      cmocka_unit_test(unshifted_causal_labels_are_refused),
      cmocka_unit_test(mostly_unshifted_labels_are_noted)};
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

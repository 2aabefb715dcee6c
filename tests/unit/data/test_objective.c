/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests labels of language models: the next token, or tokens that are hidden, as often as BERT
 * hides them, and the same ones for the same seed, epoch and record.
 */
#include "tests/unit/data/data_test.h"
#include "tests/unit/must.h"

enum { MAX_RECORD_LENGTH = 64, RECORDS = 200, TOKENS = 30, MASK_TOKEN = 4, RECORD_LENGTH = 50 };

/* Returns a dataset with the tokens [PAD] [UNK] [CLS] [SEP] [MASK], then one per letter. Every
 * record has LENGTH - 2 letters, except for the last, which has one. */
static clv_dataset *make_dataset(clv_objective objective, bool is_named) {
  static const char *const names[] = {"lengths", "ids"};
  CLV_AUTO(clv_bytes_done) clv_bytes vocabulary = {0}, lines = {0};
  clv_bytes_puts(&vocabulary, "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n");
  for (int i = 5; i < TOKENS; i++) clv_bytes_printf(&vocabulary, "%c\n", 'a' + i - 5);
  for (int r = 0; r < RECORDS; r++) {
    clv_bytes_puts(&lines, "{\"text\": \"");
    for (int i = 0; i < (r + 1 < RECORDS ? RECORD_LENGTH - 2 : 1); i++)
      clv_bytes_printf(&lines, "%c ", 'a' + (7 * r + i) % (TOKENS - 5));
    clv_bytes_puts(&lines, "\"}\n");
  }
  clv_dataset_options o = {
      .format = CLV_FORMAT_TEXT,
      .inputs_path = write_scratch_file("t.jsonl", lines.data, lines.len),
      .holds_tokens = !is_named,
      .n_named_inputs = is_named ? 2 : 0,
      .names = names,
      .objective = objective,
      .text = {.column = "text",
               .label = "label",
               .max_tokens = MAX_RECORD_LENGTH,
               .tokenizer = write_scratch_file("v.txt", vocabulary.data, vocabulary.len)}};
  clv_dataset *ds = NULL;
  clv_err err;
  must(clv_dataset_open(&o, &ds, &err), &err);
  return ds;
}

typedef struct rows {
  int64_t token_ids[RECORDS][MAX_RECORD_LENGTH], y[RECORDS][MAX_RECORD_LENGTH];
} rows;

/* Draws all records as one batch, from a dataset with one input. */
static rows *draw_all_records(const clv_dataset *ds, const clv_draw_seed *draw_seed) {
  uint32_t index[RECORDS];
  clv_tensor *x[2] = {0}, *y = NULL;
  size_t n = clv_dataset_input_count(ds);
  clv_shape y_shape = clv_dataset_y_shape(ds, RECORDS);
  clv_err err;
  rows *ret = malloc(sizeof *ret);
  assert_non_null(ret);
  for (uint32_t i = 0; i < RECORDS; i++) index[i] = i;
  for (size_t k = 0; k < n; k++) {
    clv_data_input in = clv_dataset_input(ds, k, RECORDS);
    must(clv_tensor_new(in.dtype, &in.shape, &x[k], &err), &err);
  }
  assert_true(clv_shape_equal(&y_shape, &CLV_SHAPE(RECORDS, MAX_RECORD_LENGTH)));
  must(clv_tensor_new(CLV_I64, &y_shape, &y, &err), &err);
  must(clv_batch_fill_inputs(ds, draw_seed, index, RECORDS, x, y, &err), &err);
  memcpy(ret->token_ids, x[n - 1]->data, sizeof ret->token_ids);
  memcpy(ret->y, y->data, sizeof ret->y);
  for (size_t k = 0; k < n; k++) clv_tensor_unref(x[k]);
  clv_tensor_unref(y);
  return ret;
}

static void causal_label_is_the_next_token(void **state) {
  (void)state;
  for (int has_named_inputs = 0; has_named_inputs < 2; has_named_inputs++) {
    CLV_AUTO(clv_dataset_freep)
    clv_dataset *ds = make_dataset(CLV_OBJECTIVE_CAUSAL, has_named_inputs);
    CLV_AUTO(clv_freep) rows *r = draw_all_records(ds, &(clv_draw_seed){1, 1});
    for (int k = 0; k < RECORDS; k++) {
      int length = k + 1 < RECORDS ? RECORD_LENGTH : 3;
      for (int i = 0; i < MAX_RECORD_LENGTH; i++)
        assert_int_equal(r->y[k][i], i < length - 1 ? r->token_ids[k][i + 1] : CLV_LABEL_IGNORED);
    }
  }
}

static int64_t get_token(int record, int i) { return 5 + (7 * record + i - 1) % (TOKENS - 5); }

static void masking_rates_match_bert(void **state) {
  (void)state;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = make_dataset(CLV_OBJECTIVE_MASKED, true);
  CLV_AUTO(clv_freep) rows *r = draw_all_records(ds, &(clv_draw_seed){1, 1});
  int n_chosen = 0, n_masked = 0, n_kept = 0, n_letters = (RECORDS - 1) * (RECORD_LENGTH - 2);
  for (int k = 0; k < RECORDS - 1; k++)
    for (int i = 0; i < MAX_RECORD_LENGTH; i++) {
      bool is_text = i && i < RECORD_LENGTH - 1;
      if (r->y[k][i] == CLV_LABEL_IGNORED) {
        if (is_text) assert_int_equal(r->token_ids[k][i], get_token(k, i));
        continue;
      }
      assert_true(is_text);
      assert_int_equal(r->y[k][i], get_token(k, i));
      n_chosen++;
      n_masked += r->token_ids[k][i] == MASK_TOKEN;
      n_kept += r->token_ids[k][i] == get_token(k, i);
    }
  assert_true(n_chosen > 0.13 * n_letters && n_chosen < 0.17 * n_letters);
  assert_true(n_masked > 0.76 * n_chosen && n_masked < 0.85 * n_chosen);
  assert_true(n_kept > 0.07 * n_chosen && n_kept < 0.14 * n_chosen);
  /* the only letter of the last record */
  assert_int_equal(r->y[RECORDS - 1][1], get_token(RECORDS - 1, 1));
}

static bool are_rows_equal(const rows *a, const rows *b) { return memcmp(a, b, sizeof *a) == 0; }

static void same_seed_and_epoch_mask_the_same_tokens(void **state) {
  (void)state;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = make_dataset(CLV_OBJECTIVE_MASKED, false);
  CLV_AUTO(clv_freep) rows *a = draw_all_records(ds, &(clv_draw_seed){7, 1});
  CLV_AUTO(clv_freep) rows *b = draw_all_records(ds, &(clv_draw_seed){7, 1});
  CLV_AUTO(clv_freep) rows *epoch = draw_all_records(ds, &(clv_draw_seed){7, 2});
  CLV_AUTO(clv_freep) rows *seed = draw_all_records(ds, &(clv_draw_seed){8, 1});
  CLV_AUTO(clv_freep) rows *test = draw_all_records(ds, NULL);
  CLV_AUTO(clv_freep) rows *again = draw_all_records(ds, NULL);
  assert_true(are_rows_equal(a, b));
  assert_true(are_rows_equal(test, again));
  assert_false(are_rows_equal(a, epoch));
  assert_false(are_rows_equal(a, seed));
  assert_false(are_rows_equal(a, test));
  assert_memory_not_equal(a->y[0], a->y[1], sizeof a->y[0]);
}

/* The masking of a record does not depend on its position in the batch. */
static void masking_ignores_the_batch_position(void **state) {
  (void)state;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = make_dataset(CLV_OBJECTIVE_MASKED, false);
  CLV_AUTO(clv_freep) rows *n_letters = draw_all_records(ds, &(clv_draw_seed){7, 1});
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL, *y = NULL;
  clv_err err;
  must(clv_tensor_new(CLV_I64, &CLV_SHAPE(2, MAX_RECORD_LENGTH), &x, &err), &err);
  must(clv_tensor_new(CLV_I64, &CLV_SHAPE(2, MAX_RECORD_LENGTH), &y, &err), &err);
  must(clv_batch_fill_inputs(ds, &(clv_draw_seed){7, 1}, (uint32_t[]){9, 3}, 2, &x, y, &err), &err);
  assert_memory_equal((int64_t *)x->data + MAX_RECORD_LENGTH, n_letters->token_ids[3],
                      sizeof n_letters->token_ids[3]);
  assert_memory_equal(y->data, n_letters->y[9], sizeof n_letters->y[9]);
}

static void missing_mask_token_or_ids_is_refused(void **state) {
  (void)state;
  static const char *const names[] = {"lengths"};
  clv_dataset_options o = {
      .format = CLV_FORMAT_TEXT,
      .inputs_path = write_scratch_file("m.jsonl", "{\"text\": \"a\"}", 13),
      .holds_tokens = true,
      .objective = CLV_OBJECTIVE_MASKED,
      .text = {.column = "text",
               .label = "label",
               .max_tokens = 8,
               .tokenizer = write_scratch_file("n.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", 26)}};
  clv_dataset *ds = NULL;
  clv_err err;
  expect_error(CLV_INVALID, "data.tokenizer.mask: ", clv_dataset_open(&o, &ds, &err), &err);
  o.objective = CLV_OBJECTIVE_CAUSAL;
  o.names = names;
  o.n_named_inputs = 1;
  expect_error(CLV_INVALID, "records need the input 'ids'", clv_dataset_open(&o, &ds, &err), &err);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(causal_label_is_the_next_token),
      cmocka_unit_test(masking_rates_match_bert),
      cmocka_unit_test(same_seed_and_epoch_mask_the_same_tokens),
      cmocka_unit_test(masking_ignores_the_batch_position),
      cmocka_unit_test(missing_mask_token_or_ids_is_refused),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

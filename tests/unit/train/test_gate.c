/* SPDX-License-Identifier: Apache-2.0
 *
 * The gate: what fits a row of the table passes, unless the session's privacy does not permit what
 * that row shows, whoever wrote the row.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "master/train/train_int.h"

static clv_remote_spec workers[] = {{.name = "w1"}};
static clv_stage_spec stages[] = {{.name = "front"}, {.name = "rest"}};

static cleave_status admit(clv_session_config *c, clv_findings shows, cleave_error *error) {
  const clv_egress_row *found;
  clv_egress_row row = {
      .kind = CLEAVE_SENDING_VALUE, .dtype = CLV_F32, .shape = CLV_SHAPE(4, 3), .shows = shows};
  clv_blueprint b = {.config = c, .n_stages = 2, .egress = &row, .n_egress = 1, .micro_size = 4};
  cleave_sending s = {.kind = CLEAVE_SENDING_VALUE,
                      .module = "front",
                      .worker = "w1",
                      .dtype = CLEAVE_F32,
                      .rank = 2,
                      .shape = {4, 3},
                      .bytes = 48};
  c->workers = workers;
  c->n_workers = 1;
  c->stages = stages;
  c->n_stages = 2;
  return clv_trainer_admit(&b, &s, &found, error);
}

static void what_a_row_shows_is_permitted_or_stays(void **state) {
  (void)state;
  for (clv_findings shows = 0; shows < 2 * CLV_SHOWS_LABELS; shows++) {
    char words[CLV_FINDINGS_TEXT];
    clv_session_config none = {0}, all = {.privacy = {true, true, true, true, true}};
    cleave_error error = {0};
    assert_int_equal(admit(&all, shows, &error), CLEAVE_OK);
    clv_findings forbidden = shows & ~(clv_findings)CLV_SHOWS_PICTURE;
    if (!forbidden) continue;
    assert_int_equal(admit(&none, shows, &error), CLEAVE_DENIED);
    assert_non_null(strstr(error.text, clv_findings_words(forbidden, words)));
  }
}

/* Rows that are to be kept stand in a row of their own, and so do their numbers. */
static void what_is_kept_is_no_activation(void **state) {
  (void)state;
  const clv_egress_row *found;
  clv_egress_row rows[] = {
      {.kind = CLEAVE_SENDING_VALUE, .dtype = CLV_F32, .shape = CLV_SHAPE(4, 3)},
      {.kind = CLEAVE_SENDING_CACHED, .input = 1, .dtype = CLV_I64, .shape = CLV_SHAPE(4)}};
  clv_session_config c = {.workers = workers, .n_workers = 1, .stages = stages, .n_stages = 2};
  clv_blueprint b = {.config = &c, .n_stages = 2, .egress = rows, .n_egress = 2, .micro_size = 4};
  cleave_sending s = {.kind = CLEAVE_SENDING_CACHED,
                      .module = "front",
                      .worker = "w1",
                      .dtype = CLEAVE_F32,
                      .rank = 2,
                      .shape = {4, 3},
                      .bytes = 48};
  cleave_error error = {0};
  assert_int_equal(clv_trainer_admit(&b, &s, &found, &error), CLEAVE_DENIED);
  assert_non_null(strstr(error.text, "rows to be kept of stage 'front'"));
  s.kind = CLEAVE_SENDING_VALUE;
  assert_int_equal(clv_trainer_admit(&b, &s, &found, &error), CLEAVE_OK);
  s = (cleave_sending){.kind = CLEAVE_SENDING_CACHED,
                       .module = "front",
                       .worker = "w1",
                       .dtype = CLEAVE_I64,
                       .rank = 1,
                       .shape = {4},
                       .bytes = 32};
  assert_int_equal(clv_trainer_admit(&b, &s, &found, &error), CLEAVE_DENIED);
  s.input = 1;
  assert_int_equal(clv_trainer_admit(&b, &s, &found, &error), CLEAVE_OK);
  assert_ptr_equal(found, &rows[1]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(what_a_row_shows_is_permitted_or_stays),
                                     cmocka_unit_test(what_is_kept_is_no_activation)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

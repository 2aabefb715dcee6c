/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests redaction: a failure that a master sends to a worker keeps only its code and the place of
 * the failure (module, layer, phase, step, number), never text or values.
 */
#include "tests/unit/wire/wire_test.h"

static clv_frame make_failure_frame(const char *text, const char *hop) {
  clv_frame f = {.kind = CLV_VALUE, .has_failure = true};
  clv_frame_set_failure(&f, CLV_INVALID, text, hop);
  return f;
}

static void redacted_failure_keeps_only_code_and_place(void **state) {
  (void)state;
  static const struct {
    const char *hop, *place;
    uint64_t step, number;
    const char *text;
  } cases[] = {
      {"module 3, layer 0 (embedding), forward", "module 3, layer 0 (embedding), forward", 17, 2,
       "invalid argument at module 3, layer 0 (embedding), forward, step 17 (failure 2 of the "
       "master)"},
      {"module 3, layer 1 (conv2d), backward_weight: 987654",
       "module 3, layer 1 (conv2d), backward_weight", 0, 0,
       "invalid argument at module 3, layer 1 (conv2d), backward_weight"},
      {"module 4", "module 4", 1, 0, "invalid argument at module 4, step 1"},
      {"module 4, layer 987654", "module 4", 0, 0, "invalid argument at module 4"},
      {"module 987654", "", 0, 0, "invalid argument"},
      {"row 987654", "", 5, 0, "invalid argument, step 5"},
      {"", "", 0, 0, "invalid argument"},
  };
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    clv_frame f = make_failure_frame("row number 987654 of sample 40", cases[i].hop);
    memcpy(f.failure.offending_value, "987654", 7);
    clv_frame_redact_failure(&f, cases[i].step, cases[i].number);
    assert_string_equal(f.failure.text, cases[i].text);
    assert_string_equal(f.failure.detected_at, cases[i].place);
    assert_string_equal(f.failure.offending_value, "");
  }
}

/* The text that only the local user may see is in no field of the message. */
static void failure_element_is_never_on_the_wire(void **state) {
  (void)state;
  clv_frame f = make_failure_frame("row number of sample 40", "module 1"), got;
  clv_payload payload;
  clv_wire_limits limits = clv_wire_limits_default();
  clv_err err;
  memcpy(f.failure.offending_value, "987654", 7);
  f.context = f.message_id = 1;
  memset(&got, '7', sizeof got);
  CLV_AUTO(clv_bytes_done) clv_bytes all = encode_whole(&f, 0);
  for (size_t i = 0; i + 6 <= all.len; i++) assert_memory_not_equal(all.data + i, "987654", 6);
  clv_piece piece = {all.data, all.len};
  assert_int_equal(clv_frame_decode(&piece, 1, &limits, &got, &payload, &err), CLV_OK);
  assert_string_equal(got.failure.text, "row number of sample 40");
  assert_string_equal(got.failure.offending_value, "");
}

static void failure_frames_are_recognized(void **state) {
  (void)state;
  for (int kind = 1; kind < CLV_FRAME_KINDS; kind++) {
    clv_frame f = {.kind = (clv_frame_kind)kind};
    assert_int_equal(clv_frame_is_failure(&f), kind == CLV_ABORT || kind == CLV_ERROR);
    f.has_failure = true;
    assert_true(clv_frame_is_failure(&f));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(redacted_failure_keeps_only_code_and_place),
      cmocka_unit_test(failure_element_is_never_on_the_wire),
      cmocka_unit_test(failure_frames_are_recognized),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The op wait takes a given time for its forward, input gradient and weight gradient, in which it
 * sleeps. Tests of schedules use it in place of real layers, so that a test can have more stages
 * than cores. Its result depends on the order in which gradients are added.
 */
#include <errno.h>
#include <time.h>
#include "kernels/ops/op_int.h"

enum { WAIT_MS_MAX = 10000 };

static int wait_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  (void)s;
  ret[CLV_SLOT_WEIGHT] =
      (clv_slot){.suffix = "weight", .shape = CLV_SHAPE(1), .init = CLV_INIT_ONE};
  return 1;
}

static void sleep_until(uint64_t deadline_ns) {
  struct timespec at = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {
  }
}

static uint64_t ns_after_ms(int64_t ms) { return clv_now_ns() + (uint64_t)ms * 1000000u; }

static clv_code wait_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  uint64_t end_ns = ns_after_ms(k->d.attrs.forward_ms);
  const REAL *x = a->in[0], w = *(const REAL *)a->param[CLV_SLOT_WEIGHT];
  REAL *y = a->out;
  (void)err;
  for (size_t i = 0; i < k->n_in; i++) y[i] = x[i] * w;
  sleep_until(end_ns);
  return CLV_OK;
}

static clv_code wait_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  uint64_t end_ns = ns_after_ms(k->d.attrs.input_ms);
  const REAL *dy = a->dout, w = *(const REAL *)a->param[CLV_SLOT_WEIGHT];
  REAL *dx = a->din[0];
  (void)err;
  for (size_t i = 0; i < k->n_in; i++) dx[i] = dy[i] * w;
  sleep_until(end_ns);
  return CLV_OK;
}

static clv_code wait_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  uint64_t end_ns = ns_after_ms(k->d.attrs.weight_ms);
  const REAL *x = a->in[0], *dy = a->dout;
  REAL *dw = a->dparam[CLV_SLOT_WEIGHT];
  double sum = 0;
  (void)err;
  for (size_t i = 0; i < k->n_in; i++) sum += (double)x[i] * dy[i];
  store_or_add(dw, sum, a->accumulate);
  sleep_until(end_ns);
  return CLV_OK;
}

#define MS_ATTR(attr) \
  { .key = attr, .default_value = 0, .low = 0, .high = WAIT_MS_MAX }

CLV_OP_ROW(wait) = {
    .name = "wait",
    .doc =
        "y = weight x, one number as weight (torch.mul by a parameter); forward, input gradient "
        "and weight gradient take forward_ms, input_ms and weight_ms; for tests",
    .torch_module = "",
    .no_torch_module = "torch has no such module",
    .n_in = 1,
    .attrs = {MS_ATTR(CLV_ATTR_FORWARD_MS), MS_ATTR(CLV_ATTR_INPUT_MS),
              MS_ATTR(CLV_ATTR_WEIGHT_MS)},
    .shape = clv_shape_of_input,
    .slots = wait_slots,
    .max_params = 1,
    .is_test_only = true,
    .forward = wait_forward,
    .backward_input = wait_backward_input,
    .backward_weight = wait_backward_weight,
    .saved_for_dw = CLV_SAVE_IN0,
};

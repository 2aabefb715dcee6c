/* SPDX-License-Identifier: Apache-2.0
 *
 * wait: a layer whose three parts take the time they are told to, without work for a processor. It
 * stands in for compute in tests of schedules, with more modules than there are cores. What it
 * computes is little, but depends on the order in which gradients are added.
 */
#include "common/graph/op_int.h"

enum { WAIT_MS_MAX = 10000 };

static int wait_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  (void)s;
  ret[CLV_SLOT_WEIGHT] =
      (clv_slot){.suffix = "weight", .shape = CLV_SHAPE(1), .init = CLV_INIT_ONE};
  return 1;
}

#define MS_ROW(attr) \
  { .key = attr, .fallback = 0, .low = 0, .high = WAIT_MS_MAX }

static const clv_op_def ops[] = {
    {.op = CLV_OP_WAIT,
     .name = "wait",
     .doc =
         "y = weight x, one number as weight (torch.mul by a parameter); forward, input gradient "
         "and weight gradient take forward_ms, input_ms and weight_ms; for tests",
     .n_in = 1,
     .test_only = true,
     .attrs = {MS_ROW(CLV_ATTR_FORWARD_MS), MS_ROW(CLV_ATTR_INPUT_MS), MS_ROW(CLV_ATTR_WEIGHT_MS)},
     .shape = clv_same_shape,
     .slots = wait_slots},
};

const clv_op_family clv_family_wait = {ops, CLV_COUNT(ops)};

/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of ops, expanded from kernels/ops.def. An op without a row is an error of the linker.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/ops/ops.h"

#define OP(number, NAME, name) \
  extern const clv_op_def clv_op_row_##name##_f32, clv_op_row_##name##_f64;
#include "kernels/ops.def"
#undef OP

/* The numbers in ops.def must ascend, because CLV_OP_COUNT is the last one plus 1. */
#define OP(number, NAME, name) \
  _Static_assert(number < CLV_OP_COUNT, "the numbers of ops.def ascend");
#include "kernels/ops.def"
#undef OP

static const struct {
  const clv_op_def *f32, *f64;
} rows[CLV_OP_COUNT] = {
#define OP(number, NAME, name) [number] = {&clv_op_row_##name##_f32, &clv_op_row_##name##_f64},
#include "kernels/ops.def"
#undef OP
};

const clv_op_def *clv_op_def_of_dtype(clv_op op, clv_dtype dtype) {
  if (op <= CLV_OP_INPUT || op >= CLV_OP_COUNT) return NULL;
  return dtype == CLV_F32 ? rows[op].f32 : dtype == CLV_F64 ? rows[op].f64 : NULL;
}

const clv_op_def *clv_op_def_of(clv_op op) { return clv_op_def_of_dtype(op, CLV_F32); }

const char *clv_op_torch_text(const clv_op_def *def) {
  if (def->torch_module && *def->torch_module) return def->torch_module;
  return def->no_torch_module ? def->no_torch_module : "none";
}

/* Fails with an error that names the unknown op and suggests a similar name, or else the command
 * that lists all ops, because their names would not fit an error. */
static clv_code fail_unknown_op(const char *name, const char *const *names, size_t n,
                                clv_err *err) {
  const char *similar = clv_did_you_mean(name, names, n);
  if (similar)
    return clv_fail(err, CLV_NOT_FOUND, "no op is called '%.64s'; did you mean '%s'?", name,
                    similar);
  return clv_fail(err, CLV_NOT_FOUND, "no op is called '%.64s'; `cleave-master ops` lists them",
                  name);
}

clv_code clv_op_find(const char *name, clv_op *ret, clv_err *err) {
  const char *names[CLV_OP_COUNT];
  size_t n = 0;
  for (int op = 0; op < CLV_OP_COUNT; op++) {
    const clv_op_def *def = rows[op].f32;
    if (!def) continue;
    if (strcmp(def->name, name) == 0) {
      *ret = (clv_op)op;
      return CLV_OK;
    }
    names[n++] = def->name;
  }
  return fail_unknown_op(name, names, n, err);
}

const char *clv_op_name(clv_op op) {
  const clv_op_def *def = clv_op_def_of(op);
  return def ? def->name : op == CLV_OP_INPUT ? "input" : "?";
}

const char *clv_op_doc(clv_op op) {
  const clv_op_def *def = clv_op_def_of(op);
  return def ? def->doc : "";
}

bool clv_op_is_loss(clv_op op) {
  const clv_op_def *def = clv_op_def_of(op);
  return def && def->is_loss;
}

int clv_op_n_inputs(clv_op op) {
  const clv_op_def *def = clv_op_def_of(op);
  return def ? def->n_in : 0;
}

const char *clv_op_int_input_text(const clv_op_def *def, int i) {
  if (def->takes_row_numbers && i == 0) return "i64 row numbers";
  if (def->takes_labels && i == 1) return "i64 class indices";
  return def->takes_lengths && i == def->max_in - 1 ? "i64 lengths" : NULL;
}

int64_t clv_op_fan_in(clv_op op, const clv_op_site *site) {
  const clv_op_def *def = clv_op_def_of(op);
  clv_slot slots[CLV_MAX_PARAMS] = {0};
  int64_t largest = 0;
  if (!def || def->mixing == CLV_MIXES_NOTHING) return 0;
  if (def->count_inputs_per_output) return def->count_inputs_per_output(site);
  for (int i = 0, n = def->slots(site, slots); i < n; i++) {
    const clv_shape *shape = &slots[i].shape;
    int64_t row_size = shape->rank < 2 ? 0 : 1;
    for (int d = 1; d < shape->rank; d++) row_size *= shape->dim[d];
    largest = CLV_MAX(largest, row_size);
  }
  return largest;
}

clv_formula_numbers clv_op_formula_numbers(const clv_node_desc *d) {
  return clv_op_formula_numbers_of_row(clv_op_def_of(d->op), &d->attrs);
}

int clv_op_max_params(clv_op op) {
  const clv_op_def *def = clv_op_def_of(op);
  return def && def->slots ? def->max_params : 0;
}

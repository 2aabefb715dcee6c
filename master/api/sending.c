/* SPDX-License-Identifier: Apache-2.0
 *
 * What may leave this process: every tensor, described in the program's words, is put to its
 * may_send before the link takes it.
 */
#include <stdio.h>
#include <string.h>

#include "master/api/api_int.h"

static clv_code gone(clv_err *err) {
  return clv_fail(err, CLV_CANCELLED, "its context has been closed");
}

/* The input that tensor number `tensor` of a CALL is. */
static uint32_t slot_of(const clv_frame *f, uint32_t tensor) {
  uint32_t seen = 0;
  for (uint32_t i = 0; i < f->call.n_args; i++)
    if (f->call.args[i].here && seen++ == tensor) return i;
  return 0;
}

static const char *module_name(const cleave_runtime *rt, uint32_t index) {
  return index < rt->n_modules ? rt->modules[index]->name : "";
}

/* A value on its way, or the gradient of one. What does not come from here passes through. */
static clv_code describe_value(const cleave_runtime *rt, const clv_frame *f, cleave_sending *ret,
                               clv_err *err) {
  const value *v = id_table_get(&rt->values, f->message);
  if (!v) return gone(err);
  bool gradient = f->kind == CLV_GRADIENT;
  ret->kind = gradient    ? CLEAVE_SENDING_GRADIENT
              : v->module ? CLEAVE_SENDING_VALUE
                          : CLEAVE_SENDING_LEAF;
  ret->module = v->module ? v->module->name : "";
  return CLV_OK;
}

/* What is not known any more is a value that only passes through. */
static void describe_kept(const cleave_runtime *rt, const clv_frame *f, cleave_sending *ret) {
  const kept *k = id_table_get(&rt->kepts, f->reference.ref);
  ret->kind = k && !k->module ? CLEAVE_SENDING_LEAF : CLEAVE_SENDING_VALUE;
  ret->module = k && k->module ? k->module->name : "";
}

static clv_code describe(const cleave_runtime *rt, const clv_packet *p, uint32_t tensor,
                         cleave_sending *ret, clv_err *err) {
  const clv_frame *f = &p->frame;
  const clv_tensor *t = p->tensor[tensor];
  ret->dtype = (cleave_dtype)t->dtype;
  ret->rank = t->shape.rank;
  memcpy(ret->shape, t->shape.dim, sizeof ret->shape);
  ret->bytes = t->bytes;
  ret->relayed = p->from != NULL;
  if (f->kind == CLV_VALUE || f->kind == CLV_GRADIENT) return describe_value(rt, f, ret, err);
  if (f->kind == CLV_REF_VALUE) {
    describe_kept(rt, f, ret);
    return CLV_OK;
  }
  ret->kind = f->kind == CLV_CALL ? CLEAVE_SENDING_LEAF : CLEAVE_SENDING_WEIGHTS;
  if (f->kind == CLV_STATE_PUT) {
    ret->name = f->state.name;
    ret->optimizer = f->state.what == CLV_STATE_OPTIMIZER;
  }
  ret->module = module_name(rt, f->module);
  if (f->kind == CLV_CALL) ret->input = slot_of(f, tensor);
  return CLV_OK;
}

clv_code api_may_send(void *user, clv_link *link, const clv_packet *p, clv_err *err) {
  peer *to = user;
  cleave_runtime *rt = to->runtime;
  (void)link;
  LOCKED(rt);
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) {
    cleave_sending what = {.worker = to->name, .name = ""};
    cleave_error why = {.status = CLEAVE_OK};
    CLV_TRY(describe(rt, p, i, &what, err));
    if (rt->may_send(rt->user, &what, &why) == CLEAVE_OK) continue;
    return clv_fail(err, why.status ? (clv_code)why.status : CLV_DENIED, "%s", why.text);
  }
  return CLV_OK;
}

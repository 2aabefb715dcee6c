/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes oneDNN primitives, and runs a primitive on pointers to the values of its arguments.
 */
#include "kernels/cpu/dnnl_int.h"

#include <pthread.h>
#include <string.h>

clv_code clv_cpu_dnnl_check(dnnl_status_t status, const char *operation, clv_err *err) {
  static const char *const names[] = {
      [dnnl_success] = "success",
      [dnnl_out_of_memory] = "out of memory",
      [dnnl_invalid_arguments] = "invalid arguments",
      [dnnl_unimplemented] = "unimplemented",
      [dnnl_last_impl_reached] = "no such implementation",
      [dnnl_runtime_error] = "runtime error",
      [dnnl_not_required] = "not required",
  };
  if (status == dnnl_success) return CLV_OK;
  const char *name = (size_t)status < CLV_COUNT(names) ? names[status] : "unknown status";
  return clv_fail(err, status == dnnl_out_of_memory ? CLV_EXHAUSTED : CLV_INTERNAL,
                  "oneDNN: %s: %s", operation, name);
}

static struct {
  pthread_once_t once;
  dnnl_engine_t engine;
  dnnl_status_t status;
} cpu_engine = {.once = PTHREAD_ONCE_INIT};

static void create_engine(void) {
  cpu_engine.status = dnnl_engine_create(&cpu_engine.engine, dnnl_cpu, 0);
}

/* Empties oneDNN's cache, which holds the last 1,024 primitives of the process with their generated
 * code. */
void clv_cpu_trim_cache(const clv_backend *b) {
  int capacity = 0;
  (void)b;
  if (dnnl_get_primitive_cache_capacity(&capacity) != dnnl_success) return;
  dnnl_set_primitive_cache_capacity(0);
  dnnl_set_primitive_cache_capacity(capacity);
}

clv_code clv_cpu_get_engine(dnnl_engine_t *ret, clv_err *err) {
  pthread_once(&cpu_engine.once, create_engine);
  CLV_TRY(clv_cpu_dnnl_check(cpu_engine.status, "engine", err));
  *ret = cpu_engine.engine;
  return CLV_OK;
}

clv_code clv_cpu_make_dnnl_attr(dnnl_primitive_attr_t *ret, clv_err *err) {
  dnnl_primitive_attr_t attr;
  CLV_TRY(clv_cpu_dnnl_check(dnnl_primitive_attr_create(&attr), "attributes", err));
  dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
  *ret = attr;
  return CLV_OK;
}

static clv_code add_arg(cpu_primitive *p, int arg, cpu_const_memory_desc md, clv_err *err) {
  dnnl_engine_t engine;
  CLV_TRY(clv_cpu_get_engine(&engine, err));
  CLV_TRY(clv_cpu_dnnl_check(
      dnnl_memory_create(&p->args[p->n_args].memory, md, engine, DNNL_MEMORY_NONE), "memory", err));
  p->args[p->n_args].arg = arg;
  p->n_args++;
  return CLV_OK;
}

clv_code clv_cpu_prim_init(cpu_primitive *p, const_dnnl_primitive_desc_t pd,
                           const cpu_primitive_arg *args, int n, clv_err *err) {
  cpu_const_memory_desc scratchpad = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
  CLV_TRY(clv_cpu_dnnl_check(dnnl_primitive_create(&p->primitive, pd), "primitive", err));
  for (int i = 0; i < n; i++) {
    cpu_const_memory_desc md = dnnl_primitive_desc_query_md(pd, args[i].query, args[i].index);
    CLV_TRY(add_arg(p, args[i].arg, md, err));
  }
  p->scratch_bytes = scratchpad ? dnnl_memory_desc_get_size(scratchpad) : 0;
  if (p->scratch_bytes) CLV_TRY(add_arg(p, DNNL_ARG_SCRATCHPAD, scratchpad, err));
  dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&p->impl);
  return CLV_OK;
}

clv_code clv_cpu_prim_init_reorder(cpu_primitive *p, cpu_const_memory_desc src,
                                   cpu_const_memory_desc dst, clv_err *err) {
  static const cpu_primitive_arg args[] = {
      {.arg = DNNL_ARG_FROM, .query = dnnl_query_src_md},
      {.arg = DNNL_ARG_TO, .query = dnnl_query_dst_md},
  };
  dnnl_engine_t engine;
  dnnl_primitive_attr_t attr;
  dnnl_primitive_desc_t pd;
  CLV_TRY(clv_cpu_get_engine(&engine, err));
  CLV_TRY(clv_cpu_make_dnnl_attr(&attr, err));
  dnnl_status_t status = dnnl_reorder_primitive_desc_create(&pd, src, engine, dst, engine, attr);
  dnnl_primitive_attr_destroy(attr);
  CLV_TRY(clv_cpu_dnnl_check(status, "reorder", err));
  clv_code code = clv_cpu_prim_init(p, pd, args, 2, err);
  dnnl_primitive_desc_destroy(pd);
  return code;
}

/* Runs p. Passes a pointer to oneDNN only if the pointer has changed, because setting a pointer
 * makes oneDNN zero the padding. */
clv_code clv_cpu_prim_run(cpu_primitive *p, dnnl_stream_t stream, const void *const *pointers,
                          clv_err *err) {
  CLV_AUTO(clv_cpu_release_signals) sigset_t previous_mask = clv_cpu_hold_signals();
  for (int i = 0; i < p->n_args; i++) {
    void *at = (void *)(uintptr_t)pointers[i];
    if (p->addresses[i] == at) continue;
    CLV_TRY(clv_cpu_dnnl_check(dnnl_memory_set_data_handle(p->args[i].memory, at), "memory", err));
    p->addresses[i] = at;
  }
  return clv_cpu_dnnl_check(dnnl_primitive_execute(p->primitive, stream, p->n_args, p->args),
                            p->impl, err);
}

void clv_cpu_prim_done(cpu_primitive *p) {
  if (!p) return;
  for (int i = 0; i < p->n_args; i++) dnnl_memory_destroy(p->args[i].memory);
  if (p->primitive) dnnl_primitive_destroy(p->primitive);
  memset(p, 0, sizeof *p);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The two forms of each function (async.c) about gradients, and about modules and workers on their
 * way.
 */
#include <stdio.h>
#include <string.h>

#include "master/api/future_int.h"
#include "master/api/life_int.h"
#include "master/api/rejoin_int.h"

/* ---- gradients ------------------------------------------------------------------------------- */

static cleave_status begin_gradient(cleave_runtime *rt, cleave_context handle, cleave_module *m,
                                    const char *name, uint64_t deadline_ms, api_future **ret,
                                    cleave_error *error) {
  api_future *f;
  PASS(api_async_new(rt, API_FUTURE_GRADIENT, deadline_ms, &f, error));
  return api_async_begun(rt, f, api_gradient_begin(rt, handle, m, name, f, error), ret);
}

cleave_status cleave_gradient(cleave_runtime *runtime, cleave_context context,
                              cleave_module *module, const char *name, uint64_t deadline_ms,
                              cleave_tensor *ret_tensor, cleave_error *error) {
  GIVEN(runtime, module, name, ret_tensor);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  {
    api_future *f;
    LOCKED(runtime);
    PASS(begin_gradient(runtime, context, module, name, deadline_ms, &f, error));
    PASS(api_async_wait(runtime, f, &t, error));
  }
  return api_tensor_out(t, ret_tensor, error);
}

cleave_status cleave_gradient_async(cleave_runtime *runtime, cleave_context context,
                                    cleave_module *module, const char *name, uint64_t deadline_ms,
                                    cleave_future *ret_future, cleave_error *error) {
  GIVEN(runtime, module, name, ret_future);
  api_future *f;
  PASS(api_async_ready(runtime, error));
  LOCKED(runtime);
  PASS(begin_gradient(runtime, context, module, name, deadline_ms, &f, error));
  return api_future_start(runtime, f, ret_future, error);
}

cleave_status cleave_gradient_place(cleave_runtime *runtime, cleave_context context,
                                    cleave_module *module, const char *name, uint64_t deadline_ms,
                                    cleave_place *ret_place, cleave_error *error) {
  GIVEN(runtime, module, name, ret_place);
  api_future *f;
  LOCKED(runtime);
  PASS(begin_gradient(runtime, context, module, name, deadline_ms, &f, error));
  f->waiting++;
  cleave_status status = api_async_wait(runtime, f, NULL, error);
  if (status == CLEAVE_OK) {
    api_module_is_on(module, f->request.device);
    *ret_place = (cleave_place){runtime->peers[module->node].name, module->device};
  }
  api_future_leave(runtime, f);
  return status;
}

static cleave_status begin_gradients(cleave_runtime *rt, cleave_context handle,
                                     uint64_t deadline_ms, api_future **ret, cleave_error *error) {
  api_future *f;
  PASS(api_async_new(rt, API_FUTURE_GRADIENTS, deadline_ms, &f, error));
  return api_async_begun(rt, f, api_gradients_begin(rt, handle, f, error), ret);
}

cleave_status cleave_gradients_read(cleave_runtime *runtime, cleave_context context,
                                    uint64_t deadline_ms, cleave_gradients *ret_gradients,
                                    cleave_error *error) {
  GIVEN(runtime, ret_gradients);
  api_future *f;
  cleave_status status;
  {
    LOCKED(runtime);
    PASS(begin_gradients(runtime, context, deadline_ms, &f, error));
    f->waiting++;
    status = api_async_wait(runtime, f, NULL, error);
  }
  if (status == CLEAVE_OK) status = api_gradients_out(f, ret_gradients, error);
  LOCKED(runtime);
  api_future_leave(runtime, f);
  return status;
}

cleave_status cleave_gradients_read_async(cleave_runtime *runtime, cleave_context context,
                                          uint64_t deadline_ms, cleave_future *ret_future,
                                          cleave_error *error) {
  GIVEN(runtime, ret_future);
  api_future *f;
  PASS(api_async_ready(runtime, error));
  LOCKED(runtime);
  PASS(begin_gradients(runtime, context, deadline_ms, &f, error));
  return api_future_start(runtime, f, ret_future, error);
}

/* NULL for ret_future: it is waited for. */
static cleave_status write_gradient(cleave_runtime *rt, cleave_context context, cleave_module *m,
                                    const char *name, const cleave_tensor *tensor,
                                    uint64_t deadline_ms, cleave_future *ret_future,
                                    cleave_error *error) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  api_future *f;
  if (m->runtime != rt) return api_fail(error, CLV_INVALID, "a module of another runtime");
  PASS(api_tensor_in(rt->pool, tensor, &t, error));
  LOCKED(rt);
  PASS(api_async_new(rt, API_FUTURE_WRITE, deadline_ms, &f, error));
  PASS(api_async_begun(rt, f, api_gradient_write_begin(rt, context, m, name, t, f, error), &f));
  return ret_future ? api_future_start(rt, f, ret_future, error)
                    : api_async_wait(rt, f, NULL, error);
}

cleave_status cleave_gradient_write(cleave_runtime *runtime, cleave_context context,
                                    cleave_module *module, const char *name,
                                    const cleave_tensor *tensor, uint64_t deadline_ms,
                                    cleave_error *error) {
  GIVEN(runtime, module, name, tensor);
  return write_gradient(runtime, context, module, name, tensor, deadline_ms, NULL, error);
}

cleave_status cleave_gradient_write_async(cleave_runtime *runtime, cleave_context context,
                                          cleave_module *module, const char *name,
                                          const cleave_tensor *tensor, uint64_t deadline_ms,
                                          cleave_future *ret_future, cleave_error *error) {
  GIVEN(runtime, module, name, tensor, ret_future);
  PASS(api_async_ready(runtime, error));
  return write_gradient(runtime, context, module, name, tensor, deadline_ms, ret_future, error);
}

/* ---- modules and workers on their way -------------------------------------------------------- */

/* Takes what the errand has. */
static cleave_status send_out(cleave_runtime *rt, const api_errand *errand, const char *of,
                              uint64_t deadline_ms, cleave_future *ret_future,
                              cleave_error *error) {
  api_future *f;
  LOCKED(rt);
  cleave_status status = api_futures_attend(rt, error);
  if (status == CLEAVE_OK)
    status = api_future_new(rt, API_FUTURE_ERRAND, UINT64_MAX, deadline_ms, &f, error);
  if (status != CLEAVE_OK) {
    api_errand_done(errand);
    return status;
  }
  f->errand = *errand;
  f->errand.runtime = rt;
  snprintf(f->of, sizeof f->of, "%s", of);
  return api_future_start(rt, f, ret_future, error);
}

/* Its record stays until the errand is done. */
static cleave_status send_module(cleave_runtime *rt, const api_errand *errand, uint64_t deadline_ms,
                                 cleave_future *ret_future, cleave_error *error) {
  LOCKED(rt);
  api_module_keep(errand->module);
  return send_out(rt, errand, errand->module->name, deadline_ms, ret_future, error);
}

cleave_status cleave_module_place_async(cleave_runtime *runtime, cleave_module *module,
                                        bool input_grads, uint64_t deadline_ms,
                                        cleave_future *ret_future, cleave_error *error) {
  GIVEN(runtime, module, ret_future);
  const api_errand errand = {
      .kind = API_ERRAND_PLACE, .module = module, .input_grads = input_grads};
  return send_module(runtime, &errand, deadline_ms, ret_future, error);
}

cleave_status cleave_module_reload_async(cleave_runtime *runtime, cleave_module *module,
                                         const cleave_state *weights, const cleave_state *optimizer,
                                         uint64_t deadline_ms, cleave_future *ret_future,
                                         cleave_error *error) {
  GIVEN(runtime, module, ret_future);
  api_errand errand = {.kind = API_ERRAND_RELOAD, .module = module};
  PASS(api_reloading_new(runtime, module, weights, optimizer, &errand.reloading, error));
  return send_module(runtime, &errand, deadline_ms, ret_future, error);
}

cleave_status cleave_worker_rejoin_async(cleave_runtime *runtime, const char *worker,
                                         uint64_t deadline_ms, cleave_future *ret_future,
                                         cleave_error *error) {
  GIVEN(runtime, worker, ret_future);
  const api_errand errand = {.kind = API_ERRAND_REJOIN};
  PASS(api_rejoin_check(runtime, worker, error));
  return send_out(runtime, &errand, worker, deadline_ms, ret_future, error);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads a module from an artifact of the worker: trainable parameters are copied into the module,
 * frozen ones are shared with it, and those that its master may not read are withheld.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/service/service_int.h"

/* A module and the artifact that it is loaded from. */
typedef struct artifact_load {
  clv_session *s;
  const clv_wire_load_request *r;
  const clv_cancel_hook *waiter;
  /* backend that has the shared tensors in its memory; NULL: host memory */
  const clv_backend *shared_backend;
  clv_module *module;
  uint32_t n;                       /* number of parameters and buffers of the module */
  clv_weights_want *wanted_tensors; /* [n] these parameters and buffers */
  size_t *found_index;              /* [n] index in the artifact of each tensor in wanted_tensors */
} artifact_load;

enum { MAX_PART_BYTES = CLV_SHARED_TENSOR_CHUNK_BYTES };

static const clv_param *param_of(const artifact_load *f, uint32_t i) {
  return &clv_module_params(f->module)->list[i];
}

static bool is_shared_param(const artifact_load *f, uint32_t i) {
  return param_of(f, i)->is_shared;
}

static void artifact_load_done(artifact_load *f) {
  free(f->wanted_tensors);
  free(f->found_index);
}

static clv_code list_wanted_tensors(artifact_load *f, clv_err *err) {
  const clv_params *params = clv_module_params(f->module);
  f->n = (uint32_t)params->n;
  CLV_TRY(clv_alloc(f->n, sizeof *f->wanted_tensors, &f->wanted_tensors, err));
  CLV_TRY(clv_alloc(f->n, sizeof *f->found_index, &f->found_index, err));
  for (uint32_t i = 0; i < f->n; i++) {
    const clv_param *p = &params->list[i];
    f->wanted_tensors[i] =
        (clv_weights_want){p->name, p->dtype, p->shape, clv_name_is_of_adapter(p->name)};
  }
  return CLV_OK;
}

/* ---- tensors that the module does not share -------------------------------------------------- */

static clv_code copy_tensor(const artifact_load *f, uint32_t i, clv_weights_folder *from, void *buf,
                            clv_err *err) {
  const clv_weights_want *w = &f->wanted_tensors[i];
  size_t size = clv_dtype_size(w->dtype), max_elements = MAX_PART_BYTES / size, n;
  CLV_TRY(clv_shape_numel(&w->shape, &n, err));
  for (size_t first = 0; first < n; first += max_elements) {
    size_t n_elements = CLV_MIN(n - first, max_elements);
    CLV_TRY(clv_cancel_hook_check(f->waiter, err));
    CLV_TRY(clv_weights_folder_read_tensor_range(from, f->found_index[i], w, first, n_elements, buf,
                                                 err));
    CLV_TRY(clv_module_state_set_part(f->module, CLV_STATE_WEIGHTS, w->name, first * size,
                                      n_elements * size, buf, err));
  }
  return CLV_OK;
}

/* Copies the tensors that the module does not share, in parts through one buffer, so that no more
 * than a part of the artifact is in memory. */
static clv_code copy_tensors(const artifact_load *f, clv_weights_folder *from, clv_err *err) {
  CLV_AUTO(clv_freep) void *buf = NULL;
  uint32_t n_missing_counters = 0;
  CLV_TRY(clv_alloc_aligned(MAX_PART_BYTES, &buf, err));
  for (uint32_t i = 0; i < f->n; i++) {
    const clv_weights_want *w = &f->wanted_tensors[i];
    if (is_shared_param(f, i)) continue;
    if (f->found_index[i] != CLV_WEIGHTS_NONE)
      CLV_TRY(copy_tensor(f, i, from, buf, err));
    else /* the tensor keeps its initial value */
      n_missing_counters += clv_weights_is_batch_counter(w->dtype, &w->shape);
  }
  if (n_missing_counters)
    clv_log(
        CLV_LOG_WARN,
        "session %s: artifact '%s' lacks %u count%s of module %u (num_batches_tracked), taken as "
        "0 as in PyTorch",
        f->s->name, f->r->artifact.name, n_missing_counters, CLV_S(n_missing_counters),
        f->r->module_index);
  return CLV_OK;
}

/* ---- tensors that the module shares ---------------------------------------------------------- */

/* Arguments of read_shared_tensor: the artifact and the tensor that it reads. */
typedef struct shared_source {
  const artifact_load *f;
  clv_weights_folder *from;
  uint32_t tensor_index; /* index of the tensor in wanted_tensors */
} shared_source;

static clv_code read_shared_tensor(void *user, size_t first, size_t n, void *to, clv_err *err) {
  const shared_source *l = user;
  const artifact_load *f = l->f;
  return clv_weights_folder_read_tensor_range(l->from, f->found_index[l->tensor_index],
                                              &f->wanted_tensors[l->tensor_index], first, n, to,
                                              err);
}

/* Shares a tensor with the module. Modules of other identities share it too only if
 * `artifacts[].shared` is set. */
static clv_code share_tensor(const artifact_load *f, const clv_artifact_spec *spec,
                             clv_weights_folder *from, uint32_t i, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  shared_source l = {f, from, i};
  const clv_weights_want *w = &f->wanted_tensors[i];
  const clv_shared_tensor_key key = {.owner = spec->shared ? "" : f->s->owner,
                                     .artifact = f->r->artifact.sha256,
                                     .name = w->name,
                                     .dtype = w->dtype,
                                     .shape = w->shape,
                                     .backend = f->shared_backend};
  CLV_TRY(clv_shared_tensors_acquire(f->s->service->shared_tensors, &key, f->waiter,
                                     read_shared_tensor, &l, &t, err));
  return clv_module_set_shared_param(f->module, w->name, t, err);
}

static clv_code share_tensors(const artifact_load *f, const clv_artifact_spec *spec,
                              clv_weights_folder *from, clv_err *err) {
  for (uint32_t i = 0; i < f->n; i++)
    if (is_shared_param(f, i)) CLV_TRY(share_tensor(f, spec, from, i, err));
  return CLV_OK;
}

/* ---- which tensors a master may read --------------------------------------------------------- */

static bool is_param_of_artifact(const artifact_load *f, uint32_t i) {
  return f->found_index[i] != CLV_WEIGHTS_NONE && param_of(f, i)->trainable;
}

/* A master can read trainable parameters. So with `readable: none` no parameter of the artifact may
 * be trainable. */
static clv_code check_not_trainable(const artifact_load *f, const clv_artifact_spec *spec,
                                    clv_err *err) {
  for (uint32_t i = 0; i < f->n && spec->readable == CLV_READ_NONE; i++)
    if (is_param_of_artifact(f, i) && !param_of(f, i)->frozen)
      return clv_fail(
          err, CLV_DENIED,
          "'%s' of artifact '%s' would learn, and could then be read: freeze it, or ask "
          "for artifacts.%s.readable: trained in the worker's worker.yaml",
          f->wanted_tensors[i].name, spec->name, spec->name);
  return CLV_OK;
}

static clv_code withhold_frozen(const artifact_load *f, const clv_artifact_spec *spec,
                                clv_err *err) {
  char why[CLV_ERR_TEXT];
  snprintf(why, sizeof why,
           "it is of the worker's artifact '%s', and artifacts.%s.readable: all in its worker.yaml "
           "would allow that",
           spec->name, spec->name);
  for (uint32_t i = 0; i < f->n && spec->readable != CLV_READ_ALL; i++)
    if (is_param_of_artifact(f, i) && param_of(f, i)->frozen)
      CLV_TRY(clv_module_withhold(f->module, f->wanted_tensors[i].name, why, err));
  return CLV_OK;
}

static clv_code load_into_module(artifact_load *f, clv_err *err) {
  CLV_AUTO(clv_stored_artifact_closep) clv_stored_artifact *a = NULL;
  const clv_wire_load_request *r = f->r;
  CLV_TRY(clv_store_open(f->s->settings->config, r->artifact.name, &r->artifact.sha256, f->waiter,
                         &a, err));
  const clv_artifact_spec *spec = clv_stored_artifact_spec(a);
  clv_weights_folder *from = clv_stored_artifact_weights(a);
  clv_code code = clv_weights_folder_match_tensors(
      from, f->wanted_tensors, f->n, r->new_param_names, r->n_new_params, f->found_index, err);
  /* the artifact has no such tensor */
  if (code == CLV_INVALID && err) return err->code = CLV_NOT_FOUND;
  CLV_TRY(code);
  CLV_TRY(check_not_trainable(f, spec, err));
  CLV_TRY(withhold_frozen(f, spec, err));
  CLV_TRY(clv_pool_charge(f->s->pool, MAX_PART_BYTES, err));
  code = copy_tensors(f, from, err);
  if (code == CLV_OK) code = share_tensors(f, spec, from, err);
  clv_pool_discharge(f->s->pool, MAX_PART_BYTES);
  return code;
}

clv_code clv_session_load_artifact(clv_session *s, const clv_wire_load_request *r,
                                   const clv_backend *backend, const clv_cancel_hook *waiter,
                                   clv_module *module, clv_err *err) {
  CLV_AUTO(artifact_load_done)
  artifact_load f = {.s = s,
                     .r = r,
                     .waiter = waiter,
                     .shared_backend = backend->memory ? backend : NULL,
                     .module = module};
  CLV_TRY(list_wanted_tensors(&f, err));
  return load_into_module(&f, err);
}

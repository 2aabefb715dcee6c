/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads a module from an artifact of the worker. Trainable parameters are copied into the module,
 * and frozen parameters are shared between modules. Parameters that the module's master may not
 * read are withheld.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/service/service_int.h"

/* State of loading a module from an artifact. */
typedef struct artifact_load {
  clv_session *session;
  const clv_wire_load_request *request;
  const clv_cancel_hook *cancel_hook;
  /* backend of the device whose memory holds the shared tensors; NULL: host memory */
  const clv_backend *shared_backend;
  clv_module *module;
  uint32_t n_tensors;               /* number of parameters and buffers of the module */
  clv_weights_want *wanted_tensors; /* parameters and buffers of the module, [n_tensors] */
  /* index in the artifact of each wanted tensor, [n_tensors] */
  size_t *artifact_indices;
} artifact_load;

enum { MAX_PART_BYTES = CLV_SHARED_TENSOR_CHUNK_BYTES };

static const clv_param *get_param(const artifact_load *f, uint32_t i) {
  return &clv_module_params(f->module)->list[i];
}

static bool is_shared_param(const artifact_load *f, uint32_t i) {
  return get_param(f, i)->is_shared;
}

static void artifact_load_done(artifact_load *f) {
  free(f->wanted_tensors);
  free(f->artifact_indices);
}

static clv_code list_wanted_tensors(artifact_load *f, clv_err *err) {
  const clv_params *params = clv_module_params(f->module);
  f->n_tensors = (uint32_t)params->n;
  CLV_TRY(clv_alloc(f->n_tensors, sizeof *f->wanted_tensors, &f->wanted_tensors, err));
  CLV_TRY(clv_alloc(f->n_tensors, sizeof *f->artifact_indices, &f->artifact_indices, err));
  for (uint32_t i = 0; i < f->n_tensors; i++) {
    const clv_param *p = &params->list[i];
    f->wanted_tensors[i] =
        (clv_weights_want){p->name, p->dtype, p->shape, clv_name_is_of_adapter(p->name)};
  }
  return CLV_OK;
}

/* ---- tensors that the module does not share -------------------------------------------------- */

static clv_code copy_tensor(const artifact_load *f, uint32_t i, clv_weights_folder *stored_tensors,
                            void *part, clv_err *err) {
  const clv_weights_want *w = &f->wanted_tensors[i];
  size_t element_bytes = clv_dtype_size(w->dtype), max_elements = MAX_PART_BYTES / element_bytes, n;
  CLV_TRY(clv_shape_numel(&w->shape, &n, err));
  for (size_t first_element = 0; first_element < n; first_element += max_elements) {
    size_t n_elements = CLV_MIN(n - first_element, max_elements);
    CLV_TRY(clv_cancel_hook_check(f->cancel_hook, err));
    CLV_TRY(clv_weights_folder_read_tensor_range(stored_tensors, f->artifact_indices[i], w,
                                                 first_element, n_elements, part, err));
    CLV_TRY(clv_module_state_set_part(f->module, CLV_STATE_WEIGHTS, w->name,
                                      first_element * element_bytes, n_elements * element_bytes,
                                      part, err));
  }
  return CLV_OK;
}

/* Copies the tensors that the module does not share, in parts of at most MAX_PART_BYTES, so that
 * only one part of the artifact is in memory at a time. A tensor that the artifact lacks keeps its
 * initial value. */
static clv_code copy_tensors(const artifact_load *f, clv_weights_folder *stored_tensors,
                             clv_err *err) {
  CLV_AUTO(clv_freep) void *part = NULL;
  uint32_t n_absent_batch_counters = 0;
  CLV_TRY(clv_alloc_aligned(MAX_PART_BYTES, &part, err));
  for (uint32_t i = 0; i < f->n_tensors; i++) {
    const clv_weights_want *w = &f->wanted_tensors[i];
    if (is_shared_param(f, i)) continue;
    if (f->artifact_indices[i] != CLV_WEIGHTS_NONE)
      CLV_TRY(copy_tensor(f, i, stored_tensors, part, err));
    else
      n_absent_batch_counters += clv_weights_is_batch_counter(w->dtype, &w->shape);
  }
  if (n_absent_batch_counters)
    clv_log(
        CLV_LOG_WARN,
        "session %s: artifact '%s' lacks %u count%s of module %u (num_batches_tracked), taken as "
        "0 as in PyTorch",
        f->session->name, f->request->artifact.name, n_absent_batch_counters,
        CLV_S(n_absent_batch_counters), f->request->module_index);
  return CLV_OK;
}

/* ---- tensors that the module shares ---------------------------------------------------------- */

/* Argument `user` of read_shared_tensor: the artifact and which tensor to read. */
typedef struct shared_source {
  const artifact_load *load;
  clv_weights_folder *stored_tensors;
  uint32_t tensor_index; /* index of the tensor in wanted_tensors */
} shared_source;

static clv_code read_shared_tensor(void *user, size_t first_element, size_t n, void *to,
                                   clv_err *err) {
  const shared_source *l = user;
  const artifact_load *f = l->load;
  return clv_weights_folder_read_tensor_range(
      l->stored_tensors, f->artifact_indices[l->tensor_index], &f->wanted_tensors[l->tensor_index],
      first_element, n, to, err);
}

/* Gives the module a tensor that other modules share. Modules of other identities share the tensor
 * only if `artifacts[].shared` is set. */
static clv_code share_tensor(const artifact_load *f, const clv_artifact_spec *spec,
                             clv_weights_folder *stored_tensors, uint32_t i, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  shared_source l = {f, stored_tensors, i};
  const clv_weights_want *w = &f->wanted_tensors[i];
  const clv_shared_tensor_key key = {.owner = spec->shared ? "" : f->session->owner,
                                     .artifact = f->request->artifact.sha256,
                                     .name = w->name,
                                     .dtype = w->dtype,
                                     .shape = w->shape,
                                     .backend = f->shared_backend};
  CLV_TRY(clv_shared_tensors_acquire(f->session->service->shared_tensors, &key, f->cancel_hook,
                                     read_shared_tensor, &l, &t, err));
  return clv_module_set_shared_param(f->module, w->name, t, err);
}

static clv_code share_tensors(const artifact_load *f, const clv_artifact_spec *spec,
                              clv_weights_folder *stored_tensors, clv_err *err) {
  for (uint32_t i = 0; i < f->n_tensors; i++)
    if (is_shared_param(f, i)) CLV_TRY(share_tensor(f, spec, stored_tensors, i, err));
  return CLV_OK;
}

/* ---- parameters that a master may not read --------------------------------------------------- */

static bool is_param_of_artifact(const artifact_load *f, uint32_t i) {
  return f->artifact_indices[i] != CLV_WEIGHTS_NONE && get_param(f, i)->trainable;
}

/* Refuses a module that trains parameters of an artifact with `readable: none`, because a master
 * can read the parameters that it trains. */
static clv_code check_unreadable_params_are_frozen(const artifact_load *f,
                                                   const clv_artifact_spec *spec, clv_err *err) {
  for (uint32_t i = 0; i < f->n_tensors && spec->readable == CLV_READ_NONE; i++)
    if (is_param_of_artifact(f, i) && !get_param(f, i)->frozen)
      return clv_fail(
          err, CLV_DENIED,
          "'%s' of artifact '%s' would learn, and could then be read: freeze it, or ask "
          "for artifacts.%s.readable: trained in the worker's worker.yaml",
          f->wanted_tensors[i].name, spec->name, spec->name);
  return CLV_OK;
}

/* Withholds the frozen parameters of the artifact from the master, unless it has `readable:
 * all`. */
static clv_code withhold_frozen_params(const artifact_load *f, const clv_artifact_spec *spec,
                                       clv_err *err) {
  char why[CLV_ERR_TEXT];
  snprintf(why, sizeof why,
           "it is of the worker's artifact '%s', and artifacts.%s.readable: all in its worker.yaml "
           "would allow that",
           spec->name, spec->name);
  for (uint32_t i = 0; i < f->n_tensors && spec->readable != CLV_READ_ALL; i++)
    if (is_param_of_artifact(f, i) && get_param(f, i)->frozen)
      CLV_TRY(clv_module_withhold(f->module, f->wanted_tensors[i].name, why, err));
  return CLV_OK;
}

static clv_code load_into_module(artifact_load *f, clv_err *err) {
  CLV_AUTO(clv_stored_artifact_closep) clv_stored_artifact *a = NULL;
  const clv_wire_load_request *r = f->request;
  CLV_TRY(clv_store_open(f->session->settings->config, r->artifact.name, &r->artifact.sha256,
                         f->cancel_hook, &a, err));
  const clv_artifact_spec *spec = clv_stored_artifact_spec(a);
  clv_weights_folder *stored_tensors = clv_stored_artifact_weights(a);
  clv_code code = clv_weights_folder_match_tensors(stored_tensors, f->wanted_tensors, f->n_tensors,
                                                   r->new_param_names, r->n_new_params,
                                                   f->artifact_indices, err);
  /* CLV_INVALID: the artifact lacks a wanted tensor */
  if (code == CLV_INVALID && err) return err->code = CLV_NOT_FOUND;
  CLV_TRY(code);
  CLV_TRY(check_unreadable_params_are_frozen(f, spec, err));
  CLV_TRY(withhold_frozen_params(f, spec, err));
  CLV_TRY(clv_pool_charge(f->session->pool, MAX_PART_BYTES, err));
  code = copy_tensors(f, stored_tensors, err);
  if (code == CLV_OK) code = share_tensors(f, spec, stored_tensors, err);
  clv_pool_discharge(f->session->pool, MAX_PART_BYTES);
  return code;
}

clv_code clv_session_load_artifact(clv_session *s, const clv_wire_load_request *r,
                                   const clv_backend *backend, const clv_cancel_hook *cancel_hook,
                                   clv_module *module, clv_err *err) {
  CLV_AUTO(artifact_load_done)
  artifact_load f = {.session = s,
                     .request = r,
                     .cancel_hook = cancel_hook,
                     .shared_backend = backend->memory ? backend : NULL,
                     .module = module};
  CLV_TRY(list_wanted_tensors(&f, err));
  return load_into_module(&f, err);
}

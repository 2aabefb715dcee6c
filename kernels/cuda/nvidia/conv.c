/* SPDX-License-Identifier: Apache-2.0
 *
 * Convolutions by cuDNN. Its heuristic proposes engines, best first, and try_allowed_engines uses
 * the first that fits. Nothing is timed. An engine fits if it gives the same bits every time, needs
 * no compilation at run time, and is as exact as f32 sums. The choice therefore depends only on the
 * description, the device and the library's version.
 *
 * clv_nvidia_conv_new plans a convolution, or reads its plan from the plan store;
 * clv_nvidia_conv runs it.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/nvidia/nvidia_int.h"

/* MAX_ENGINES: engines that the heuristic may propose. ENGINES_VERSION: version of the rules below
 * by which an engine is chosen. A stored plan made under another version is not used. */
enum { MAX_ENGINES = 64, ENGINES_VERSION = 1 };

/* A device of this host, or a device that this host lacks, which is only described. */
typedef struct device_ref {
  int device;
  const char *json; /* description of the device; NULL: device number `device` of this host */
} device_ref;

/* A plan of cuDNN, and cuDNN's descriptor (variant pack) of the pointers of the last call. */
typedef struct conv_variant {
  cudnnBackendDescriptor_t plan;         /* NULL: there is no plan */
  cudnnBackendDescriptor_t variant_pack; /* cuDNN's descriptor of the pointers below */
  void *pointers[3], *workspace;
} conv_variant;

/* cuDNN's graph fixes whether a pass adds to its output or overwrites it, so each case has its own
 * plan. Only gradients of weights in f32 have a plan that adds. */
enum { VARIANT_OVERWRITES, VARIANT_ADDS, N_VARIANTS };

struct clv_cuda_conv {
  const nvidia_cudnn *cudnn;
  conv_variant variants[N_VARIANTS];
};

/* ---- cuDNN's engines ------------------------------------------------------------------------- */

/* An engine that cuDNN's heuristic proposed. */
typedef struct engine_candidate {
  cudnnBackendDescriptor_t config;
  int64_t engine;
  bool is_allowed;
} engine_candidate;

/* Numerical notes that exclude an engine. TENSOR_CORE and DOWN_CONVERT_INPUTS round
 * f32 factors to TF32. */
static const cudnnBackendNumericalNote_t excluded_notes[] = {
    CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
    CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
    CUDNN_NUMERICAL_NOTE_FFT,
    CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4,
    CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6,
    CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13};
static const cudnnBackendNumericalNote_t rounding_notes[] = {
    CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS};

static bool has_note(const cudnnBackendNumericalNote_t *notes, int64_t n,
                     const cudnnBackendNumericalNote_t *listed_notes, size_t n_listed_notes) {
  for (int64_t i = 0; i < n; i++)
    for (size_t j = 0; j < n_listed_notes; j++)
      if (notes[i] == listed_notes[j]) return true;
  return false;
}

static bool is_engine_allowed(const nvidia_cudnn *cudnn, cudnnBackendDescriptor_t engine,
                              bool may_round) {
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  cudnnBackendBehaviorNote_t behaviour_notes[CUDNN_BEHAVIOR_NOTE_TYPE_COUNT];
  int64_t n = 0, m = 0;
  if (cudnn->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                      CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT,
                                      &n, notes) != CUDNN_STATUS_SUCCESS ||
      cudnn->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE,
                                      CUDNN_TYPE_BEHAVIOR_NOTE, CUDNN_BEHAVIOR_NOTE_TYPE_COUNT, &m,
                                      behaviour_notes) != CUDNN_STATUS_SUCCESS)
    return false;
  for (int64_t i = 0; i < m; i++)
    if (behaviour_notes[i] == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) return false;
  return !has_note(notes, n, excluded_notes, CLV_COUNT(excluded_notes)) &&
         (may_round || !has_note(notes, n, rounding_notes, CLV_COUNT(rounding_notes)));
}

static clv_code read_notes(const nvidia_cudnn *cudnn, engine_candidate *c, bool may_round,
                           clv_err *err) {
  cudnnBackendDescriptor_t engine = NULL;
  int64_t n = 0;
  CLV_TRY(clv_nvidia_make_descriptor(cudnn, CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine, err));
  cudnnStatus_t answer = cudnn->cudnnBackendGetAttribute(
      c->config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine);
  if (answer == CUDNN_STATUS_SUCCESS)
    answer = cudnn->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX,
                                             CUDNN_TYPE_INT64, 1, &n, &c->engine);
  c->is_allowed = answer == CUDNN_STATUS_SUCCESS && is_engine_allowed(cudnn, engine, may_round);
  cudnn->cudnnBackendDestroyDescriptor(engine);
  return CLV_OK;
}

/* ---- cuDNN's heuristic ----------------------------------------------------------------------- */

static clv_code make_device_properties(const nvidia_cudnn *cudnn, device_ref ref,
                                       cudnnBackendDescriptor_t *ret, clv_err *err) {
  int32_t id = ref.device;
  CLV_TRY(clv_nvidia_make_descriptor(cudnn, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, ret, err));
  if (ref.json)
    CLV_TRY(clv_nvidia_set_attribute(cudnn, *ret, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                     CUDNN_TYPE_CHAR, (int64_t)strlen(ref.json), ref.json, err));
  else
    CLV_TRY(clv_nvidia_set_attribute(cudnn, *ret, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32,
                                     1, &id, err));
  return clv_nvidia_finish_descriptor(cudnn, *ret, err);
}

/* State of the choice of one engine; make_new_plan destroys its members. */
typedef struct engine_choice {
  const nvidia_cudnn *cudnn;
  bool may_round; /* factors may be rounded to TF32, or are already bf16 */
  cudnnBackendDescriptor_t device, graph, heuristic;
  engine_candidate candidates[MAX_ENGINES];
  int64_t n;
} engine_choice;

static clv_code make_heuristic(engine_choice *c, cudnnBackendHeurMode_t mode, clv_err *err) {
  const cudnnBackendAttributeType_t descriptor_type = CUDNN_TYPE_BACKEND_DESCRIPTOR;
  CLV_TRY(clv_nvidia_make_descriptor(c->cudnn, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &c->heuristic,
                                     err));
  CLV_TRY(clv_nvidia_set_attribute(c->cudnn, c->heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                                   descriptor_type, 1, &c->graph, err));
  CLV_TRY(clv_nvidia_set_attribute(c->cudnn, c->heuristic, CUDNN_ATTR_ENGINEHEUR_MODE,
                                   CUDNN_TYPE_HEUR_MODE, 1, &mode, err));
  CLV_TRY(clv_nvidia_set_attribute(c->cudnn, c->heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
                                   descriptor_type, 1, &c->device, err));
  return clv_nvidia_finish_descriptor(c->cudnn, c->heuristic, err);
}

static void free_candidates(engine_choice *c) {
  for (int i = 0; i < MAX_ENGINES; i++)
    if (c->candidates[i].config) c->cudnn->cudnnBackendDestroyDescriptor(c->candidates[i].config);
  memset(c->candidates, 0, sizeof c->candidates);
  if (c->heuristic) c->cudnn->cudnnBackendDestroyDescriptor(c->heuristic);
  c->heuristic = NULL;
  c->n = 0;
}

static clv_code query_engines(engine_choice *c, cudnnBackendHeurMode_t mode, clv_err *err) {
  cudnnBackendDescriptor_t configs[MAX_ENGINES];
  free_candidates(c);
  CLV_TRY(make_heuristic(c, mode, err));
  for (int i = 0; i < MAX_ENGINES; i++) {
    CLV_TRY(
        clv_nvidia_make_descriptor(c->cudnn, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &configs[i], err));
    c->candidates[i].config = configs[i];
  }
  cudnnStatus_t answer = c->cudnn->cudnnBackendGetAttribute(
      c->heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_ENGINES,
      &c->n, configs);
  if (answer != CUDNN_STATUS_SUCCESS)
    return clv_nvidia_dnn_fail(c->cudnn, "cudnnBackendGetAttribute", answer, err);
  for (int64_t i = 0; i < c->n; i++)
    CLV_TRY(read_notes(c->cudnn, &c->candidates[i], c->may_round, err));
  return CLV_OK;
}

/* ---- making a plan --------------------------------------------------------------------------- */

static clv_code make_plan(const engine_choice *c, cudnnBackendDescriptor_t config,
                          cudnnBackendDescriptor_t *ret, int64_t *ret_workspace, clv_err *err) {
  const nvidia_cudnn *cudnn = c->cudnn;
  const cudnnBackendAttributeType_t descriptor_type = CUDNN_TYPE_BACKEND_DESCRIPTOR;
  int64_t n = 0;
  CLV_TRY(clv_nvidia_make_descriptor(cudnn, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, ret, err));
  CLV_TRY(clv_nvidia_set_attribute(cudnn, *ret, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                   descriptor_type, 1, &config, err));
  CLV_TRY(clv_nvidia_set_attribute(cudnn, *ret, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
                                   descriptor_type, 1, &c->device, err));
  CLV_TRY(clv_nvidia_finish_descriptor(cudnn, *ret, err));
  cudnnStatus_t answer = cudnn->cudnnBackendGetAttribute(
      *ret, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, ret_workspace);
  if (answer == CUDNN_STATUS_SUCCESS) return CLV_OK;
  return clv_nvidia_dnn_fail(cudnn, "cudnnBackendGetAttribute", answer, err);
}

/* Makes the plan of the first engine that is allowed and whose plan can be made; false: there is no
 * such engine. */
static bool try_allowed_engines(const engine_choice *c, cudnnBackendDescriptor_t *ret,
                                clv_nvidia_plan *plan_info) {
  for (int64_t i = 0; i < c->n; i++) {
    clv_err err;
    int64_t workspace = 0;
    if (!c->candidates[i].is_allowed) continue;
    if (make_plan(c, c->candidates[i].config, ret, &workspace, &err) == CLV_OK &&
        workspace <= CLV_CUDA_CONV_MAX_WORKSPACE) {
      *plan_info = (clv_nvidia_plan){c->candidates[i].engine, c->n, (size_t)workspace};
      return true;
    }
    if (*ret) c->cudnn->cudnnBackendDestroyDescriptor(*ret);
    *ret = NULL;
  }
  return false;
}

static clv_code choose_engine(engine_choice *c, device_ref ref, const clv_cuda_conv_desc *d,
                              float beta, cudnnBackendDescriptor_t *ret, clv_nvidia_plan *plan_info,
                              clv_err *err) {
  static const cudnnBackendHeurMode_t heuristic_modes[] = {CUDNN_HEUR_MODE_A,
                                                           CUDNN_HEUR_MODE_FALLBACK};
  CLV_TRY(make_device_properties(c->cudnn, ref, &c->device, err));
  CLV_TRY(clv_nvidia_conv_graph(c->cudnn, d, beta, &c->graph, err));
  for (size_t i = 0; i < CLV_COUNT(heuristic_modes); i++)
    if (query_engines(c, heuristic_modes[i], err) == CLV_OK &&
        try_allowed_engines(c, ret, plan_info))
      return CLV_OK;
  return clv_fail(err, CLV_UNIMPLEMENTED,
                  "cuDNN has no engine for this convolution that is exact and gives the same bits "
                  "every time");
}

static clv_code make_new_plan(const nvidia_cudnn *cudnn, device_ref ref,
                              const clv_cuda_conv_desc *d, float beta,
                              cudnnBackendDescriptor_t *ret, clv_nvidia_plan *plan_info,
                              clv_err *err) {
  CLV_AUTO(clv_freep) engine_choice *c = NULL;
  *ret = NULL;
  CLV_TRY(clv_alloc(1, sizeof *c, &c, err));
  c->cudnn = cudnn;
  c->may_round = d->math != CLV_CUDA_F32;
  clv_code code = choose_engine(c, ref, d, beta, ret, plan_info, err);
  free_candidates(c);
  if (c->graph) cudnn->cudnnBackendDestroyDescriptor(c->graph);
  if (c->device) cudnn->cudnnBackendDestroyDescriptor(c->device);
  return code;
}

/* ---- stored plans ---------------------------------------------------------------------------- */

static const clv_plan_store *plan_store;

void clv_nvidia_set_plan_store(const clv_plan_store *s) { plan_store = s; }

static clv_code print_device_name(device_ref ref, clv_bytes *ret, clv_err *err) {
  clv_cuda_info info;
  if (ref.json) {
    clv_bytes_puts(ret, ref.json);
    return CLV_OK;
  }
  CLV_TRY(clv_nvidia_describe(ref.device, &info, err));
  clv_bytes_printf(ret, "%s, capability %d, %d multiprocessors", info.name, info.capability,
                   info.multiprocessors);
  return CLV_OK;
}

/* Prints the key under which a plan is stored: all that the choice of an engine depends on. */
static clv_code print_plan_key(const nvidia_cudnn *cudnn, device_ref ref,
                               const clv_cuda_conv_desc *d, float beta, clv_bytes *ret,
                               clv_err *err) {
  const clv_window *w = &d->window;
  const int64_t numbers[] = {
      w->n,      w->c,         w->h,         w->w,           w->k,          w->oh,
      w->ow,     w->kernel[0], w->kernel[1], w->stride[0],   w->stride[1],  w->pad[0],
      w->pad[1], d->groups,    beta > 0,     w->dilation[0], w->dilation[1]};
  clv_bytes_printf(ret, "convolution, pass %d, math %d:", (int)d->pass, (int)d->math);
  for (size_t i = 0; i < CLV_COUNT(numbers); i++)
    clv_bytes_printf(ret, " %lld", (long long)numbers[i]);
  clv_bytes_printf(ret, "; engines %d, cuDNN %zu, ", ENGINES_VERSION, cudnn->cudnnGetVersion());
  CLV_TRY(print_device_name(ref, ret, err));
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for the key of a convolution plan")
                     : CLV_OK;
}

static clv_code load_plan(const nvidia_cudnn *cudnn, cudnnBackendDescriptor_t device,
                          const clv_bytes *text, cudnnBackendDescriptor_t plan, int64_t *ret,
                          clv_err *err) {
  const cudnnBackendAttributeType_t descriptor_type = CUDNN_TYPE_BACKEND_DESCRIPTOR;
  int64_t n = 0;
  CLV_TRY(clv_nvidia_set_attribute(cudnn, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
                                   descriptor_type, 1, &device, err));
  CLV_TRY(clv_nvidia_set_attribute(cudnn, plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                                   CUDNN_TYPE_CHAR, (int64_t)text->len, text->data, err));
  CLV_TRY(clv_nvidia_finish_descriptor(cudnn, plan, err));
  cudnnStatus_t answer = cudnn->cudnnBackendGetAttribute(
      plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, ret);
  if (answer == CUDNN_STATUS_SUCCESS && *ret >= 0 && *ret <= CLV_CUDA_CONV_MAX_WORKSPACE)
    return CLV_OK;
  return clv_nvidia_dnn_fail(cudnn, "cudnnBackendGetAttribute", answer, err);
}

/* Makes a plan from its stored text; returns NULL if cuDNN refuses the text. */
static cudnnBackendDescriptor_t make_plan_from_text(const nvidia_cudnn *cudnn, device_ref ref,
                                                    const clv_bytes *text,
                                                    clv_nvidia_plan *plan_info) {
  cudnnBackendDescriptor_t device = NULL, plan = NULL;
  int64_t workspace = 0;
  clv_err err;
  clv_code code = make_device_properties(cudnn, ref, &device, &err);
  if (code == CLV_OK)
    code = clv_nvidia_make_descriptor(cudnn, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan, &err);
  if (code == CLV_OK) code = load_plan(cudnn, device, text, plan, &workspace, &err);
  if (device) cudnn->cudnnBackendDestroyDescriptor(device);
  if (code != CLV_OK && plan) cudnn->cudnnBackendDestroyDescriptor(plan);
  if (code != CLV_OK) return NULL;
  *plan_info = (clv_nvidia_plan){.workspace = (size_t)workspace};
  return plan;
}

/* Stores the plan's text. If cuDNN gives no text, the next process makes the plan from scratch. */
static void store_plan(const nvidia_cudnn *cudnn, cudnnBackendDescriptor_t plan,
                       const char *plan_key) {
  enum { MAX_TEXT_BYTES = 64 << 10 };
  CLV_AUTO(clv_freep) char *text = NULL;
  int64_t n = 0;
  clv_err err;
  if (clv_alloc(1, MAX_TEXT_BYTES, &text, &err) == CLV_OK &&
      cudnn->cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                                      CUDNN_TYPE_CHAR, MAX_TEXT_BYTES, &n,
                                      text) == CUDNN_STATUS_SUCCESS &&
      n > 0 && n < MAX_TEXT_BYTES)
    plan_store->store(plan_key, text, strnlen(text, (size_t)n));
}

static clv_code find_or_make_plan(const nvidia_cudnn *cudnn, device_ref ref,
                                  const clv_cuda_conv_desc *d, float beta,
                                  cudnnBackendDescriptor_t *ret, clv_nvidia_plan *plan_info,
                                  clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes plan_key = {0}, text = {0};
  if (!plan_store) return make_new_plan(cudnn, ref, d, beta, ret, plan_info, err);
  CLV_TRY(print_plan_key(cudnn, ref, d, beta, &plan_key, err));
  *ret = plan_store->find(plan_key.data, &text) ? make_plan_from_text(cudnn, ref, &text, plan_info)
                                                : NULL;
  if (*ret) return CLV_OK;
  CLV_TRY(make_new_plan(cudnn, ref, d, beta, ret, plan_info, err));
  store_plan(cudnn, *ret, plan_key.data);
  return CLV_OK;
}

/* ---- plans without a device, for tests ------------------------------------------------------- */

static clv_code print_device_json(const nvidia_cudnn *cudnn, cudnnBackendDescriptor_t device,
                                  clv_bytes *ret, clv_err *err) {
  char text[4096];
  int64_t n = 0;
  cudnnStatus_t answer =
      cudnn->cudnnBackendGetAttribute(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                      CUDNN_TYPE_CHAR, (int64_t)sizeof text, &n, text);
  if (answer != CUDNN_STATUS_SUCCESS)
    return clv_nvidia_dnn_fail(cudnn, "cudnnBackendGetAttribute", answer, err);
  clv_bytes_add(ret, text, strnlen(text, (size_t)CLV_MIN(n, (int64_t)sizeof text)));
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for a device's description")
                     : CLV_OK;
}

clv_code clv_nvidia_device_json(int device, const char *device_json, clv_bytes *ret, clv_err *err) {
  const nvidia_cudnn *cudnn;
  cudnnBackendDescriptor_t properties = NULL;
  CLV_TRY(clv_nvidia_cudnn(&cudnn, err));
  clv_code code =
      make_device_properties(cudnn, (device_ref){device, device_json}, &properties, err);
  if (code == CLV_OK) code = print_device_json(cudnn, properties, ret, err);
  if (properties) cudnn->cudnnBackendDestroyDescriptor(properties);
  return code;
}

clv_code clv_nvidia_plan_conv(const char *device_json, const clv_cuda_conv_desc *d, float beta,
                              clv_nvidia_plan *ret, clv_err *err) {
  const nvidia_cudnn *cudnn;
  cudnnBackendDescriptor_t plan;
  CLV_TRY(clv_nvidia_cudnn(&cudnn, err));
  CLV_TRY(find_or_make_plan(cudnn, (device_ref){0, device_json}, d, beta, &plan, ret, err));
  cudnn->cudnnBackendDestroyDescriptor(plan);
  return CLV_OK;
}

/* ---- functions of the table clv_vendor ------------------------------------------------------- */

static clv_code make_plans(clv_cuda_conv *c, int device, const clv_cuda_conv_desc *d,
                           size_t *ret_workspace, clv_err *err) {
  bool needs_adding_plan = d->pass == CLV_CUDA_GRAD_WEIGHT && d->math != CLV_CUDA_BF16;
  for (int variant = 0; variant < (needs_adding_plan ? N_VARIANTS : VARIANT_ADDS); variant++) {
    clv_nvidia_plan plan_info;
    CLV_TRY(find_or_make_plan(c->cudnn, (device_ref){device, NULL}, d,
                              variant == VARIANT_ADDS ? 1 : 0, &c->variants[variant].plan,
                              &plan_info, err));
    *ret_workspace = CLV_MAX(*ret_workspace, plan_info.workspace);
  }
  return CLV_OK;
}

clv_code clv_nvidia_conv_new(int device, const clv_cuda_conv_desc *d, clv_cuda_conv **ret,
                             size_t *ret_workspace, clv_err *err) {
  const nvidia_cudnn *cudnn;
  clv_cuda_conv *c;
  clv_err plan_err;
  if (clv_nvidia_cudnn(&cudnn, &plan_err) != CLV_OK)
    return clv_fail(err, CLV_UNIMPLEMENTED, "%s", plan_err.text);
  CLV_TRY(clv_nvidia_set_device(device, err));
  CLV_TRY(clv_alloc(1, sizeof *c, &c, err));
  c->cudnn = cudnn;
  *ret_workspace = 0;
  clv_code code = make_plans(c, device, d, ret_workspace, err);
  if (code != CLV_OK)
    clv_nvidia_conv_free(c);
  else
    *ret = c;
  return code;
}

static void free_variant_pack(const nvidia_cudnn *cudnn, conv_variant *variant) {
  if (variant->variant_pack) cudnn->cudnnBackendDestroyDescriptor(variant->variant_pack);
  variant->variant_pack = NULL;
}

void clv_nvidia_conv_free(clv_cuda_conv *c) {
  if (!c) return;
  for (int i = 0; i < N_VARIANTS; i++) {
    free_variant_pack(c->cudnn, &c->variants[i]);
    if (c->variants[i].plan) c->cudnn->cudnnBackendDestroyDescriptor(c->variants[i].plan);
  }
  free(c);
}

static clv_code make_variant_pack(const nvidia_cudnn *cudnn, conv_variant *variant,
                                  void *const pointers[3], void *workspace, clv_err *err) {
  static const int64_t tensor_ids[3] = {GRAPH_X, GRAPH_W, GRAPH_Y};
  CLV_TRY(clv_nvidia_make_descriptor(cudnn, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
                                     &variant->variant_pack, err));
  CLV_TRY(clv_nvidia_set_attribute(cudnn, variant->variant_pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                                   CUDNN_TYPE_INT64, 3, tensor_ids, err));
  CLV_TRY(clv_nvidia_set_attribute(cudnn, variant->variant_pack,
                                   CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3,
                                   pointers, err));
  CLV_TRY(clv_nvidia_set_attribute(cudnn, variant->variant_pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                   CUDNN_TYPE_VOID_PTR, 1, &workspace, err));
  return clv_nvidia_finish_descriptor(cudnn, variant->variant_pack, err);
}

/* Makes the variant pack of a call's pointers, unless the last call had the same pointers, as is
 * usual. */
static clv_code update_variant_pack(const nvidia_cudnn *cudnn, conv_variant *variant,
                                    void *const pointers[3], void *workspace, clv_err *err) {
  bool has_same_pointers = memcmp(pointers, variant->pointers, sizeof variant->pointers) == 0 &&
                           workspace == variant->workspace;
  if (variant->variant_pack && has_same_pointers) return CLV_OK;
  free_variant_pack(cudnn, variant);
  memcpy(variant->pointers, pointers, sizeof variant->pointers);
  variant->workspace = workspace;
  clv_code code = make_variant_pack(cudnn, variant, pointers, workspace, err);
  if (code != CLV_OK) free_variant_pack(cudnn, variant);
  return code;
}

clv_code clv_nvidia_conv(clv_cuda_stream *s, clv_cuda_conv *c, void *x, void *w, void *y,
                         float beta, void *workspace, clv_err *err) {
  void *const pointers[3] = {x, w, y};
  conv_variant *variant = &c->variants[beta > 0 ? VARIANT_ADDS : VARIANT_OVERWRITES];
  if (!variant->plan)
    return clv_fail(err, CLV_INVALID,
                    "this pass of a convolution was planned without adding to its output");
  if (((uintptr_t)x | (uintptr_t)w | (uintptr_t)y) % CONV_ALIGNMENT)
    return clv_fail(err, CLV_INTERNAL, "a tensor of a convolution is not aligned to %d bytes",
                    CONV_ALIGNMENT);
  CLV_TRY(clv_nvidia_set_stream_device(s, err));
  CLV_TRY(clv_nvidia_cudnn_handle(s, c->cudnn, err));
  CLV_TRY(update_variant_pack(c->cudnn, variant, pointers, workspace, err));
  cudnnStatus_t answer =
      c->cudnn->cudnnBackendExecute(s->cudnn, variant->plan, variant->variant_pack);
  if (answer == CUDNN_STATUS_SUCCESS) return CLV_OK;
  return clv_nvidia_dnn_fail(c->cudnn, "cudnnBackendExecute", answer, err);
}

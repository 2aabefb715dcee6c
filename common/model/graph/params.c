/* SPDX-License-Identifier: Apache-2.0
 *
 * Layout of a module's parameter block (clv_params_make and the functions that change the layout)
 * and default initialisation of its values (clv_params_init).
 */
#include "common/model/graph/graph_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARAM_ALIGN = 64 };

clv_params *clv_params_free(clv_params *p) {
  if (p) free(p->list);
  if (p) free(p->ties);
  free(p);
  return NULL;
}

void clv_params_freep(clv_params **p) { *p = clv_params_free(*p); }

static clv_code describe_param_slot(const clv_node *node, int index, int slot, const clv_slot *s,
                                    clv_param *ret, clv_err *err) {
  *ret = (clv_param){.node = index,
                     .slot = slot,
                     .shape = s->shape,
                     .dtype = s->is_i64 ? CLV_I64 : node->dtype,
                     .trainable = !s->is_buffer};
  snprintf(ret->name, sizeof ret->name, "%s%s%s", node->name, s->is_named_as_node ? "" : ".",
           s->is_named_as_node ? "" : s->suffix);
  CLV_TRY(clv_shape_numel(&s->shape, &ret->n, err));
  return clv_shape_bytes(&s->shape, ret->dtype, &ret->bytes, err);
}

/* Checks that parameter names are unique. They may collide because "a.weight" can be the weight of
 * layer "a", or the only parameter of a layer named "a.weight". */
static clv_code check_names(const clv_params *p, const clv_graph *g, clv_err *err) {
  for (int i = 0; i < p->n; i++) {
    const clv_param *q = &p->list[i];
    if (strcmp(q->name, g->nodes[q->node].name) != 0) continue;
    for (int j = 0; j < p->n; j++)
      if (j != i && strcmp(p->list[j].name, q->name) == 0)
        return clv_fail(err, CLV_INVALID, "two layers have a parameter '%s': rename one of them",
                        q->name);
  }
  return CLV_OK;
}

/* ---- offsets in the parameter block ---------------------------------------------------------- */

/* Assigns offsets from *end on to all trainable parameters or, if trainable is false, to all
 * buffers. */
static clv_code assign_offsets(clv_params *p, bool trainable, size_t *end, clv_err *err) {
  for (int i = 0; i < p->n; i++) {
    clv_param *q = &p->list[i];
    if (q->trainable != trainable) continue;
    q->offset = q->gradient_offset = *end;
    if (!clv_add_size(*end, clv_align_up(q->bytes, PARAM_ALIGN), end) || *end > SIZE_MAX / 4)
      return clv_fail(err, CLV_EXHAUSTED, "the parameters overflow at '%s'", q->name);
    if (trainable) p->n_trainable_values += q->n;
  }
  return CLV_OK;
}

void clv_params_update_ties(clv_params *p) {
  p->gradient_bytes = p->trainable_bytes;
  for (int i = 0; i < p->n_ties; i++) {
    clv_param *q = &p->ties[i].param;
    const clv_param *owner = p->ties[i].owner_index < 0 ? q : &p->list[p->ties[i].owner_index];
    q->frozen = owner->frozen;
    q->is_fixed = owner->is_fixed;
    q->is_shared = owner->is_shared;
    q->list_index = p->ties[i].owner_index;
    if (p->ties[i].owner_index >= 0) q->offset = owner->offset;
    q->gradient_offset = p->gradient_bytes;
    if (!q->is_fixed) p->gradient_bytes += clv_align_up(q->bytes, PARAM_ALIGN);
  }
}

/* ---- parameters of a graph ------------------------------------------------------------------- */

static clv_code add_params_of_node(const clv_graph *g, int node, clv_params *p, clv_err *err) {
  clv_slot slots[CLV_MAX_PARAMS];
  const clv_node *n = &g->nodes[node];
  int n_slots = clv_node_get_slots(g, n, slots);
  for (int s = 0; s < n_slots; s++) {
    bool is_tied = n->tie_owner[0] && s == 0;
    clv_param *to = is_tied ? &p->ties[p->n_ties++].param : &p->list[p->n++];
    CLV_TRY(describe_param_slot(n, node, s, &slots[s], to, err));
    to->list_index = p->n - 1; /* for a tie, find_owners sets the index */
  }
  return CLV_OK;
}

/* Finds the owner of each tie. Runs after describe_node has run for all nodes, because an owner may
 * come behind its ties. */
static clv_code find_owners(const clv_graph *g, clv_params *p, clv_err *err) {
  size_t all_bytes;
  for (int i = 0; i < p->n_ties; i++) {
    clv_tie *t = &p->ties[i];
    const clv_node *n = &g->nodes[t->param.node];
    const clv_param *owner =
        n->tie_owner_is_outside ? NULL : clv_params_first_of_node(g, p, n->tie_owner);
    if (!owner && !n->tie_owner_is_outside)
      return clv_fail(err, CLV_INVALID,
                      "'%s' is tied to '%s', which is no layer with parameters of this module",
                      t->param.name, n->tie_owner);
    t->owner_index = owner ? (int)(owner - p->list) : -1;
    if (owner && !clv_shape_equal(&owner->shape, &t->param.shape))
      return clv_fail(err, CLV_INVALID, "'%s' and '%s' are one parameter of two shapes",
                      t->param.name, owner->name);
  }
  clv_params_update_ties(p);
  return clv_add_size(p->gradient_bytes, p->total_bytes, &all_bytes) && all_bytes <= SIZE_MAX / 4
             ? CLV_OK
             : clv_fail(err, CLV_EXHAUSTED, "the parameters overflow");
}

clv_code clv_params_make(const clv_graph *g, clv_params **ret, clv_err *err) {
  CLV_AUTO(clv_params_freep) clv_params *p = NULL;
  clv_slot slots[CLV_MAX_PARAMS];
  size_t n = 0, n_ties = 0;
  for (int i = 0; i < g->n_nodes; i++) n += (size_t)clv_node_get_slots(g, &g->nodes[i], slots);
  for (int i = 0; i < g->n_nodes; i++) n_ties += g->nodes[i].tie_owner[0] != '\0';
  CLV_TRY(clv_alloc(1, sizeof *p, &p, err));
  CLV_TRY(clv_alloc(n, sizeof *p->list, &p->list, err));
  CLV_TRY(clv_alloc(n_ties, sizeof *p->ties, &p->ties, err));
  for (int i = 0; i < g->n_nodes; i++) CLV_TRY(add_params_of_node(g, i, p, err));
  CLV_TRY(check_names(p, g, err));
  CLV_TRY(assign_offsets(p, true, &p->trainable_bytes, err));
  p->total_bytes = p->buffer_offset = p->trainable_bytes;
  CLV_TRY(assign_offsets(p, false, &p->total_bytes, err));
  CLV_TRY(find_owners(g, p, err));
  *ret = clv_steal(&p);
  return CLV_OK;
}

/* Assigns new offsets from *end on to the parameters with these values of trainable and fixed,
 * except shared ones. assign_offsets has checked that the sizes do not overflow. */
static void reassign_offsets(clv_params *p, bool trainable, bool fixed, size_t *end) {
  for (int i = 0; i < p->n; i++) {
    clv_param *q = &p->list[i];
    if (q->trainable != trainable || q->is_fixed != fixed || q->is_shared) continue;
    q->offset = q->gradient_offset = *end;
    *end += clv_align_up(q->bytes, PARAM_ALIGN);
  }
}

void clv_params_fix_frozen(clv_params *p) {
  size_t at = 0;
  for (int i = 0; i < p->n; i++) {
    clv_param *q = &p->list[i];
    q->is_fixed = q->trainable && q->frozen;
    q->is_shared &= q->is_fixed;
    if (q->is_shared) p->shared_bytes += clv_align_up(q->bytes, PARAM_ALIGN);
  }
  reassign_offsets(p, true, false, &at);
  p->trainable_bytes = at;
  reassign_offsets(p, true, true, &at);
  p->buffer_offset = at;
  reassign_offsets(p, false, false, &at);
  p->total_bytes = at;
  clv_params_update_ties(p);
}

const clv_param *clv_params_first_of_node(const clv_graph *g, const clv_params *p,
                                          const char *node) {
  for (int i = 0; i < p->n; i++)
    if (!p->list[i].slot && strcmp(g->nodes[p->list[i].node].name, node) == 0) return &p->list[i];
  return NULL;
}

static bool has_tie(const clv_params *p, int index) {
  for (int i = 0; i < p->n_ties; i++)
    if (p->ties[i].owner_index == index) return true;
  return false;
}

void clv_params_convert_frozen_to_bf16(const clv_graph *g, clv_params *p) {
  for (int i = 0; i < p->n; i++) {
    clv_param *q = &p->list[i];
    bool is_linear_weight = g->nodes[q->node].op == CLV_OP_LINEAR && q->slot == CLV_SLOT_WEIGHT;
    if (!is_linear_weight || !q->frozen || q->dtype != CLV_F32 || has_tie(p, i)) continue;
    q->dtype = CLV_BF16;
    q->bytes = q->n * clv_dtype_size(CLV_BF16);
  }
}

const clv_param *clv_params_find(const clv_params *p, const char *name) {
  for (int i = 0; i < p->n; i++)
    if (strcmp(p->list[i].name, name) == 0) return &p->list[i];
  return NULL;
}

/* Returns the address at which the f32 random numbers of a parameter are drawn: the parameter's
 * memory or, for f64, its upper half, from which widen_to_f64 converts them. */
static float *draw_address(const clv_param *p, char *dst) {
  return (float *)(void *)(p->dtype == CLV_F64 ? dst + p->n * sizeof(float) : dst);
}

/* Converts the floats in the upper half of an f64 parameter's memory to doubles, from front to
 * back. Never overwrites a float that is still needed, because double i ends before float i + 1
 * begins. */
static void widen_to_f64(const clv_param *p, char *dst) {
  for (size_t i = 0; p->dtype == CLV_F64 && i < p->n; i++) {
    float float_value;
    memcpy(&float_value, dst + (p->n + i) * sizeof float_value, sizeof float_value);
    double double_value = float_value;
    memcpy(dst + i * sizeof double_value, &double_value, sizeof double_value);
  }
}

static void fill_with(const clv_param *p, double value, char *dst) {
  for (size_t i = 0; i < p->n; i++)
    if (p->dtype == CLV_F64)
      memcpy(dst + i * 8, &value, 8);
    else
      memcpy(dst + i * 4, &(float){(float)value}, 4);
}

/* Returns the bound 1 / sqrt(fan_in of the weight), for weights and biases. It equals that of
 * kaiming_uniform_(a=sqrt(5)) and of the biases of nn.Linear and nn.Conv2d. */
static float fan_in_bound(const clv_shape *weight) {
  double fan_in = 1;
  for (int i = 1; i < weight->rank; i++) fan_in *= (double)weight->dim[i];
  return (float)(1 / sqrt(fan_in));
}

/* Returns the standard deviation of kaiming_normal_(mode="fan_out", nonlinearity="relu"). As torch,
 * counts the output channels of all groups. */
static float fan_out_deviation(const clv_shape *weight) {
  double fan_out = (double)weight->dim[0];
  for (int i = 2; i < weight->rank; i++) fan_out *= (double)weight->dim[i];
  return (float)sqrt(2 / fan_out);
}

/* Number of random numbers drawn between two checks for cancellation: about 50 ms of work. */
enum { NUMBERS_PER_CHUNK = 4 << 20 };

typedef struct drawing {
  const clv_cancel_hook *cancel_hook;
  clv_rng_key rng_key;
  bool is_normal;
  /* standard deviation or, for a uniform distribution, its bound on both sides of 0 */
  float deviation_or_bound;
} drawing;

static clv_code draw_values(const drawing *d, float *dst, size_t n, clv_err *err) {
  for (size_t at = 0; at < n; at += NUMBERS_PER_CHUNK) {
    size_t chunk = CLV_MIN(n - at, (size_t)NUMBERS_PER_CHUNK);
    CLV_TRY(clv_cancel_hook_check(d->cancel_hook, err));
    if (d->is_normal)
      clv_rng_normal_from(&d->rng_key, at, 0, d->deviation_or_bound, dst + at, chunk);
    else
      clv_rng_uniform_from(&d->rng_key, at, -d->deviation_or_bound, d->deviation_or_bound, dst + at,
                           chunk);
  }
  return CLV_OK;
}

/* Sets *d to the distribution of a parameter's initial values. Returns false if they are a
 * constant. */
static bool get_distribution(const clv_param *q, const clv_slot *slots, drawing *d) {
  const clv_slot *s = &slots[q->slot];
  d->is_normal = s->init == CLV_INIT_NORMAL || s->init == CLV_INIT_FAN_OUT;
  if (s->init == CLV_INIT_NORMAL) d->deviation_or_bound = s->bound > 0 ? (float)s->bound : 1;
  if (s->init == CLV_INIT_FAN_OUT) d->deviation_or_bound = fan_out_deviation(&q->shape);
  if (s->init == CLV_INIT_UNIFORM) d->deviation_or_bound = (float)s->bound;
  if (s->init == CLV_INIT_FAN_IN)
    d->deviation_or_bound = fan_in_bound(&slots[CLV_SLOT_WEIGHT].shape);
  return s->init != CLV_INIT_ZERO && s->init != CLV_INIT_ONE && s->init != CLV_INIT_NUMBER;
}

/* As draw_values, but rounds the numbers to bf16. */
static clv_code draw_bf16(const drawing *d, uint16_t *dst, size_t n, clv_err *err) {
  float chunk[4096];
  for (size_t at = 0; at < n; at += CLV_COUNT(chunk)) {
    size_t count = CLV_MIN(n - at, CLV_COUNT(chunk));
    if (at % NUMBERS_PER_CHUNK == 0) CLV_TRY(clv_cancel_hook_check(d->cancel_hook, err));
    if (d->is_normal)
      clv_rng_normal_from(&d->rng_key, at, 0, d->deviation_or_bound, chunk, count);
    else
      clv_rng_uniform_from(&d->rng_key, at, -d->deviation_or_bound, d->deviation_or_bound, chunk,
                           count);
    for (size_t i = 0; i < count; i++) dst[at + i] = clv_bf16_of(chunk[i]);
  }
  return CLV_OK;
}

/* Sets the padding row of an embedding table to 0, as torch.nn.Embedding does. */
static void clear_padding_row(const clv_param *q, const clv_slot *s, float *dst) {
  size_t row = s->zero_row ? q->n / (size_t)q->shape.dim[0] : 0;
  if (row) memset(dst + (size_t)(s->zero_row - 1) * row, 0, row * sizeof *dst);
}

static clv_code init_param(const clv_cancel_hook *cancel_hook, const clv_param *q,
                           const clv_slot *slots, clv_rng_key key, char *dst, clv_err *err) {
  drawing d = {.cancel_hook = cancel_hook, .rng_key = key};
  const clv_slot *s = &slots[q->slot];
  if (s->init == CLV_INIT_ONE) fill_with(q, 1, dst);
  if (s->init == CLV_INIT_NUMBER) fill_with(q, s->bound, dst);
  if (!get_distribution(q, slots, &d)) return CLV_OK;
  if (q->dtype == CLV_BF16) return draw_bf16(&d, (uint16_t *)(void *)dst, q->n, err);
  CLV_TRY(draw_values(&d, draw_address(q, dst), q->n, err));
  clear_padding_row(q, s, draw_address(q, dst));
  widen_to_f64(q, dst);
  return CLV_OK;
}

/* Returns the RNG key of a parameter slot. key.layer has RNG_SLOT_BITS bits for the slot number.
 * An lstm has more slots, whose higher bits go to key.micro_batch, which initialisation does not
 * use otherwise. */
static clv_rng_key slot_key(const clv_node *node, uint32_t slot) {
  clv_rng_key key = clv_rng_key_of(&node->key);
  uint32_t slot_mask = (1u << RNG_SLOT_BITS) - 1;
  key.layer = node->layer << RNG_SLOT_BITS | (slot & slot_mask);
  key.micro_batch = slot >> RNG_SLOT_BITS;
  return key;
}

clv_code clv_params_init_cancellable(const clv_cancel_hook *cancel_hook, const clv_graph *g,
                                     const clv_params *p, void *block, clv_err *err) {
  CLV_TRY(clv_zero_cancellable(cancel_hook, block, p->total_bytes, err));
  for (int i = 0; i < p->n; i++) {
    const clv_param *q = &p->list[i];
    const clv_node *node = &g->nodes[q->node];
    clv_slot slots[CLV_MAX_PARAMS];
    if (q->is_shared) continue;
    clv_node_get_slots(g, node, slots);
    CLV_TRY(init_param(cancel_hook, q, slots, slot_key(node, (uint32_t)q->slot),
                       (char *)block + q->offset, err));
  }
  return CLV_OK;
}

void clv_params_init(const clv_graph *g, const clv_params *p, void *block) {
  clv_err unused_err;
  if (clv_params_init_cancellable(NULL, g, p, block, &unused_err) != CLV_OK)
    memset(block, 0, p->total_bytes);
}

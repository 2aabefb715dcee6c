/* SPDX-License-Identifier: Apache-2.0
 *
 * Folders of adapters that stages begin with, as peft writes them. A folder may have adapters of
 * more stages than one; what no stage has is refused.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/plan/plan_int.h"

typedef char prefixed[sizeof CLV_PEFT_PREFIX + sizeof((clv_param *)0)->name];

/* What a stage takes of the folder: its adapters, and what it trains as a whole if that is
 * there. */
static bool is_wanted(const clv_lora_config *l, const clv_param *p, bool *optional) {
  bool adapter = clv_lora_is_adapter(p->name);
  *optional = !adapter;
  return adapter || (p->trainable && !clv_adapters_freeze(l, p->name));
}

static clv_code read_settings(const char *folder, clv_peft *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  clv_bytes_printf(&path, "%s/" CLV_PEFT_CONFIG, folder);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_file_read((const char *)path.data, CLV_PEFT_MAX_CONFIG, &text, err));
  return clv_peft_parse((const char *)path.data, (const char *)text.data, text.len, ret, err);
}

/* Values mean what they meant there only with the scale that they had. */
static clv_code check_scale(const clv_lora_config *l, const clv_peft *p, const char *param,
                            clv_err *err) {
  double own = l->alpha / (l->rslora ? sqrt((double)l->r) : (double)l->r);
  char layer[CLV_NAME_MAX + 24];
  int64_t r;
  snprintf(layer, sizeof layer, "%s", param);
  *strstr(layer, ".lora_") = '\0';
  double scale = clv_peft_scale(p, layer, &r);
  if (r == (int64_t)l->r && fabs(scale - own) <= 1e-9 * own) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "the adapter of '%s' has rank %lld and is scaled by %g there, and has rank %llu "
                  "and %g in the session: set lora.r, alpha and rslora as " CLV_PEFT_CONFIG
                  " has them",
                  layer, (long long)r, scale, (unsigned long long)l->r, own);
}

static clv_code check_scales(const clv_blueprint *b, uint32_t stage, clv_err *err) {
  const clv_lora_config *l = &b->config->stages[stage].lora;
  CLV_AUTO(clv_peft_done) clv_peft p = {0};
  CLV_TRY(read_settings(l->from, &p, err));
  for (int i = 0; i < b->stages[stage].params->n; i++) {
    const char *name = b->stages[stage].params->list[i].name;
    if (clv_lora_is_adapter(name)) CLV_TRY(check_scale(l, &p, name, err));
  }
  return CLV_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static clv_code match(const clv_blueprint *b, uint32_t stage, const clv_weights_file *f,
                      const clv_weights_entry **found, clv_err *err) {
  const clv_params *params = b->stages[stage].params;
  CLV_AUTO(clv_freep) prefixed *names = NULL;
  CLV_AUTO(clv_freep) clv_weights_want *want = NULL;
  CLV_AUTO(clv_freep) const clv_weights_entry **entries = NULL;
  size_t n = 0;
  bool optional;
  CLV_TRY(clv_alloc((size_t)params->n, sizeof *names, &names, err));
  CLV_TRY(clv_alloc((size_t)params->n, sizeof *want, &want, err));
  CLV_TRY(clv_alloc((size_t)params->n, sizeof *entries, &entries, err));
  for (int i = 0; i < params->n; i++) {
    const clv_param *p = &params->list[i];
    if (!is_wanted(&b->config->stages[stage].lora, p, &optional)) continue;
    snprintf(names[n], sizeof names[n], CLV_PEFT_PREFIX "%s", p->name);
    want[n] = (clv_weights_want){names[n], p->dtype, p->shape, optional};
    n++;
  }
  CLV_TRY(clv_weights_match(f, want, n, CLV_WEIGHTS_ALLOW_UNEXPECTED, entries, err));
  for (int i = params->n; i-- > 0;)
    if (is_wanted(&b->config->stages[stage].lora, &params->list[i], &optional))
      found[i] = entries[--n];
  return CLV_OK;
}

static clv_code check_strangers(const clv_blueprint *b, const clv_weights_file *f, clv_err *err) {
  CLV_AUTO(clv_params_freep) clv_params *all = NULL;
  CLV_AUTO(clv_freep) prefixed *names = NULL;
  CLV_AUTO(clv_freep) clv_weights_want *known = NULL;
  CLV_TRY(clv_params_of(b->whole, &all, err));
  CLV_TRY(clv_alloc((size_t)all->n, sizeof *names, &names, err));
  CLV_TRY(clv_alloc((size_t)all->n, sizeof *known, &known, err));
  for (int i = 0; i < all->n; i++) {
    snprintf(names[i], sizeof names[i], CLV_PEFT_PREFIX "%s", all->list[i].name);
    known[i].name = names[i];
  }
  return clv_weights_only(f, known, (size_t)all->n, err);
}

static clv_code open_file(const char *folder, clv_weights_file **ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/" CLV_PEFT_WEIGHTS, folder);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_weights_open((const char *)path.data, 0, ret, err);
}

clv_code clv_stage_adapters_open(const clv_blueprint *b, uint32_t stage, clv_weights_file **ret,
                                 const clv_weights_entry ***ret_found, clv_err *err) {
  const clv_stage_spec *spec = &b->config->stages[stage];
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  CLV_AUTO(clv_freep) const clv_weights_entry **found = NULL;
  clv_err why;
  CLV_TRY(clv_alloc((size_t)b->stages[stage].params->n, sizeof *found, &found, err));
  clv_code code = check_scales(b, stage, &why);
  if (code == CLV_OK) code = open_file(spec->lora.from, &f, &why);
  if (code == CLV_OK) code = check_strangers(b, f, &why);
  if (code == CLV_OK) code = match(b, stage, f, found, &why);
  if (code != CLV_OK) { /* the folder's fault, which the session names */
    clv_session_fail_at(b->config, spec->lora.pos, err, "stage '%s': lora.from: %s", spec->name,
                        why.text);
    if (err) err->code = CLV_DATA_LOSS;
    return CLV_DATA_LOSS;
  }
  *ret = clv_steal(&f);
  *ret_found = clv_steal(&found);
  return CLV_OK;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the normalisation of pictures in a preprocessor_config.json with that of the session
 * (clv_pictures_describe). A model that learnt from normalised pictures gives poor results for
 * pictures that are not normalised in the same way, and no other message warns of that.
 */
#include <math.h>

#include "common/model/hf/hf.h"
#include "master/plan/plan_int.h"

/* True if both lists have the same numbers; a single number counts for all channels. */
static bool has_same_channels(const clv_hf_channels *a, const clv_number_list *b) {
  for (size_t i = 0; b->n && i < CLV_MAX(a->n, b->n); i++) {
    double x = a->at[a->n == 1 ? 0 : i], y = b->items[b->n == 1 ? 0 : i];
    if ((a->n > 1 && i >= a->n) || (b->n > 1 && i >= b->n) || fabs(x - y) > 1e-4) return false;
  }
  return b->n > 0;
}

static void append_channels(const clv_hf_channels *c, clv_bytes *out) {
  for (size_t i = 0; i < c->n; i++) clv_bytes_printf(out, "%s%g", i ? ", " : "[", c->at[i]);
  clv_bytes_puts(out, "]");
}

void clv_pictures_describe(const clv_session_config *c, clv_bytes *out) {
  const clv_json_keys ignored_keys = {(const char *const *)c->model.ignore_keys.items,
                                      c->model.ignore_keys.n};
  clv_hf_pictures p;
  clv_err unused_err;
  if (clv_model_hf_family(c) != CLV_HF_VIT ||
      clv_hf_pictures_read(c->model.hf, &ignored_keys, &p, &unused_err) != CLV_OK ||
      !p.is_normalized)
    return;
  bool is_same_factor = c->data.scale == 0 || fabs(c->data.scale - p.factor) <= 1e-4 * p.factor;
  if (is_same_factor && has_same_channels(&p.mean, &c->data.mean) &&
      has_same_channels(&p.std, &c->data.std))
    return;
  clv_bytes_printf(out, "  preprocessor_config.json normalises pictures, times %g, by mean ",
                   p.factor);
  append_channels(&p.mean, out);
  clv_bytes_puts(out, " and std ");
  append_channels(&p.std, out);
  clv_bytes_printf(out,
                   ", and data.normalize %s: give these there, unless the records are normalised "
                   "already\n",
                   c->data.mean.n ? "has others" : "is not given");
}

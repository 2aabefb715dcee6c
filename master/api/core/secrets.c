/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks that no worker has, as an artifact, a file of weights that the session declares secret.
 */
#include <string.h>

#include "common/model/weights/weights.h"
#include "common/net/wire/wire.h"
#include "master/api/api.h"

/* Returns the path of a stage's weights, a file or a folder; NULL: the stage has no weights. */
static const char *find_weights_path(const clv_stage_spec *s) {
  return s->weights_folder ? s->weights_folder : s->weights_file;
}

/* True if an earlier stage takes its weights from the same path. */
static bool is_path_of_earlier_stage(const clv_session_config *c, size_t stage_index) {
  for (size_t i = 0; i < stage_index; i++) {
    const char *path = find_weights_path(&c->stages[i]);
    if (path && strcmp(path, find_weights_path(&c->stages[stage_index])) == 0) return true;
  }
  return false;
}

static clv_code find_weights_digest(const clv_session_config *c, const clv_stage_spec *s,
                                    clv_sha256 *ret, clv_err *err) {
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_err why;
  if (s->weights_folder && clv_artifact_make(s->weights_folder, &text, ret, &why) == CLV_OK)
    return CLV_OK;
  if (!s->weights_folder && clv_weights_open(s->weights_file, 0, &f, &why) == CLV_OK) {
    *ret = *clv_weights_digest(f);
    return CLV_OK;
  }
  clv_session_fail_at(c, s->weights_pos, err, "stage '%s': %s", s->name, why.text);
  if (err) err->code = CLV_DATA_LOSS;
  return CLV_DATA_LOSS;
}

static clv_code compare_with_artifacts(const clv_session_config *c, const clv_stage_spec *s,
                                       const clv_wire_hello_reply *h, clv_err *err) {
  clv_sha256 digest;
  CLV_TRY(find_weights_digest(c, s, &digest, err));
  for (uint32_t i = 0; i < h->n_artifacts; i++) {
    if (memcmp(&digest, &h->artifacts[i].sha256, sizeof digest) != 0) continue;
    clv_session_fail_at(c, s->weights_pos, err,
                        "stage '%s': worker '%s' has the file as its artifact '%s', so it is not "
                        "secret: take it away there, or leave secret: true out",
                        s->name, h->worker_name, h->artifacts[i].name);
    if (err) err->code = CLV_DATA_LOSS;
    return CLV_DATA_LOSS;
  }
  return CLV_OK;
}

clv_code cleave_secrets_check(const clv_session_config *c, const clv_wire_hello_reply *h,
                              clv_err *err) {
  for (size_t i = 0; h->n_artifacts && i < c->n_stages; i++) {
    const clv_stage_spec *s = &c->stages[i];
    if (s->weights_secret && find_weights_path(s) && !is_path_of_earlier_stage(c, i))
      CLV_TRY(compare_with_artifacts(c, s, h, err));
  }
  return CLV_OK;
}

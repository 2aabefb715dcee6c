/* SPDX-License-Identifier: Apache-2.0
 *
 * models_test: makes sessions whose stages are ranges of a ResNet.
 */
#ifndef CLEAVE_MODELS_TEST_H
#define CLEAVE_MODELS_TEST_H

#include "tests/unit/models/models_check.h"

static const clv_shape image = {4, {2, 3, 224, 224}};

/* Returns a session with one stage for each range "a..b" of layers in the list. */
static clv_session_config *make_session(const char *arch, const char *attrs,
                                        const char *const *ranges, int n) {
  clv_session_config *c = NULL;
  clv_bytes text = {0};
  clv_bytes_printf(&text,
                   "version: 1\nname: t\ndata: {format: npy, root: /data, train: [a, b]}\n"
                   "loss: {kind: cross_entropy}\n"
                   "train: {batch: 8, optimizer: {kind: sgd, lr: 0.1}}\n"
                   "model: {arch: %s%s}\nstages:\n",
                   arch, attrs);
  for (int i = 0; i < n; i++)
    clv_bytes_printf(&text, "  - {name: s%d, at: master, layers: %s}\n", i, ranges[i]);
  assert_ok(clv_session_config_parse("/s.yaml", text.data, text.len, NULL, &c, err));
  clv_bytes_done(&text);
  return c;
}

#endif

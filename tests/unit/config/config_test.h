/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that the config tests share: a small valid session and worker file, and checks of exact
 * messages.
 */
#ifndef CLEAVE_TESTS_CONFIG_TEST_H
#define CLEAVE_TESTS_CONFIG_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/model/config/config.h"

/* A valid session file of 16 lines. Tests append or replace lines, and expect errors with the line
 * and column of the changed text. */
static const char session_text[] =
    "version: 1\n"
    "name: small\n"
    "tls: {ca: ca.pem, cert: m.pem, key: m.key}\n"
    "workers:\n"
    "  gpu1: {address: \"gpu1.example.net:7443\", identity: \"spiffe://acme/worker/gpu1\"}\n"
    "data: {format: idx, train: [a.gz, b.gz]}\n"
    "stages:\n"
    "  - name: front\n"
    "    at: master\n"
    "    layers: [{op: linear, out: 8}, {op: relu}]\n"
    "  - name: back\n"
    "    at: gpu1\n"
    "    layers: [{op: linear, out: 2}]\n"
    "loss: {kind: cross_entropy}\n"
    "train: {batch: 32, optimizer: {kind: sgd, lr: 0.1}}\n";

static const char worker_text[] =
    "tls: {ca: ca.pem, cert: w.pem, key: w.key}\n"
    "allow:\n"
    "  - {identity: \"spiffe://acme/master\", role: master}\n";

/* Returns session_text with the first `from` replaced by `to`. The caller frees it. */
static inline char *replace_in_session_text(const char *text, const char *from, const char *to) {
  clv_bytes out = {0};
  const char *at = strstr(text, from);
  if (!at) fail_msg("the text to replace is missing: %s", from);
  clv_bytes_add(&out, text, at ? (size_t)(at - text) : 0);
  clv_bytes_puts(&out, to);
  clv_bytes_puts(&out, at ? at + strlen(from) : "");
  assert_false(out.failed);
  return out.data;
}

/* Asserts that the text is refused with exactly this message, and that no session is returned. */
static inline void assert_refused(const char *text, const clv_config_overrides *overrides,
                                  const char *message) {
  clv_session_config *config = NULL;
  clv_err err = {0};
  clv_code code =
      clv_session_config_parse("/etc/cleave/s.yaml", text, strlen(text), overrides, &config, &err);
  if (code == CLV_OK) print_error("accepted, but expected: %s\n", message);
  assert_string_equal(err.text, message);
  assert_int_equal(code, CLV_INVALID);
  assert_null(config);
}

static inline void assert_edit_refused(const char *from, const char *to, const char *message) {
  char *text = replace_in_session_text(session_text, from, to);
  assert_refused(text, NULL, message);
  free(text);
}

static inline void assert_set_refused(const char *set, const char *message) {
  assert_refused(session_text, &(clv_config_overrides){.sets = &set, .n_sets = 1}, message);
}

static inline clv_session_config *parse_accepted(const char *text,
                                                 const clv_config_overrides *overrides) {
  clv_session_config *config = NULL;
  clv_err err = {0};
  if (clv_session_config_parse("/etc/cleave/s.yaml", text, strlen(text), overrides, &config, &err))
    fail_msg("refused: %s", err.text);
  return config;
}

static inline clv_session_config *parse_accepted_edit(const char *from, const char *to) {
  char *text = replace_in_session_text(session_text, from, to);
  clv_session_config *config = parse_accepted(text, NULL);
  free(text);
  return config;
}

static inline clv_session_config *parse_accepted_set(const char *set) {
  return parse_accepted(session_text, &(clv_config_overrides){.sets = &set, .n_sets = 1});
}

#endif

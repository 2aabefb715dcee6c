/* SPDX-License-Identifier: Apache-2.0
 *
 * What a tensor shows: its word, and whether a session permits it.
 */
#include "master/plan/plan_int.h"

const char *clv_shows_word(clv_shows shows) {
  static const char *const words[] = {[CLV_SHOWS_MIXED] = "",
                                      [CLV_SHOWS_FRONT_KNOWN] = "FRONT KNOWN",
                                      [CLV_SHOWS_TOKENS] = "TOKENS",
                                      [CLV_SHOWS_RAW_INPUT] = "RAW INPUT",
                                      [CLV_SHOWS_LABELS_READABLE] = "LABELS READABLE",
                                      [CLV_SHOWS_LABELS] = "LABELS"};
  return words[shows];
}

bool clv_privacy_permits(const clv_session_config *c, clv_shows shows) {
  const bool permitted[] = {
      [CLV_SHOWS_MIXED] = true,
      [CLV_SHOWS_FRONT_KNOWN] = c->privacy.front_known || c->privacy.raw_input_leaves,
      [CLV_SHOWS_TOKENS] = c->privacy.tokens_readable || c->privacy.raw_input_leaves,
      [CLV_SHOWS_RAW_INPUT] = c->privacy.raw_input_leaves,
      [CLV_SHOWS_LABELS_READABLE] = c->privacy.labels_readable,
      [CLV_SHOWS_LABELS] = c->privacy.labels_leave};
  return permitted[shows];
}

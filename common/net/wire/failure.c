/* SPDX-License-Identifier: Apache-2.0
 *
 * Failure of a frame: with its text, or reduced to code and place.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/net/wire/frame_int.h"

enum { MAX_LAYER_INDEX = 1 << 20 };

/* Copies at most `limit` bytes of text without splitting a character. */
static void copy_text(char *dst, size_t limit, const char *text) {
  size_t len = 0;
  for (size_t i = 0, left = strlen(text); i < left;) {
    size_t n = clv_text_char_bytes((const uint8_t *)text + i, left - i);
    if (len + CLV_MAX(n, (size_t)1) > limit) break;
    if (n) {
      memcpy(dst + len, text + i, n);
    } else {
      dst[len] = '?';
    }
    n = CLV_MAX(n, (size_t)1);
    len += n;
    i += n;
  }
  dst[len] = '\0';
}

void clv_frame_set_failure(clv_frame *frame, clv_code code, const char *text, const char *hop) {
  /* CLV_BAD_ANSWER, which is above CLV_UNAUTHENTICATED, is never sent */
  frame->failure.code = code > CLV_UNAUTHENTICATED ? CLV_ABORTED : code;
  frame->failure.offending_value[0] = '\0';
  copy_text(frame->failure.text, CLV_WIRE_TEXT, text);
  copy_text(frame->failure.detected_at, CLV_WIRE_NAME, hop);
}

bool clv_frame_is_failure(const clv_frame *f) {
  return f->kind == CLV_ERROR || f->kind == CLV_ABORT || f->has_failure;
}

/* Rebuilds, from a hop, the text that says which op failed (module, layer, op). Reads only numbers
 * and words that this program writes. */
static void rebuild_failed_op(const char *hop, char ret[CLV_WIRE_NAME + 1]) {
  unsigned module, layer;
  char op[32], verb[32];
  int n = sscanf(hop, "module %u, layer %u (%31[a-z0-9_]), %31[a-z_]", &module, &layer, op, verb);
  ret[0] = '\0';
  if (n < 1 || module > CLV_WIRE_MODULES) return;
  if (n == 4 && layer <= MAX_LAYER_INDEX)
    snprintf(ret, CLV_WIRE_NAME + 1, "module %u, layer %u (%s), %s", module, layer, op, verb);
  else
    snprintf(ret, CLV_WIRE_NAME + 1, "module %u", module);
}

void clv_frame_redact_failure(clv_frame *f, uint64_t step, uint64_t number) {
  char failed_op[CLV_WIRE_NAME + 1], step_text[40] = "", number_text[48] = "", text[CLV_ERR_TEXT];
  const char *what = clv_code_name(f->failure.code);
  rebuild_failed_op(f->failure.detected_at, failed_op);
  if (step) snprintf(step_text, sizeof step_text, ", step %" PRIu64, step);
  if (number)
    snprintf(number_text, sizeof number_text, " (failure %" PRIu64 " of the master)", number);
  snprintf(text, sizeof text, "%s%s%s%s%s", what, failed_op[0] ? " at " : "", failed_op, step_text,
           number_text);
  clv_frame_set_failure(f, f->failure.code, text, failed_op);
}

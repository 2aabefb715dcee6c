/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts failures that nodes report to errors with the program's names, and the failure of a
 * value to a frame.
 */
#include <stdio.h>
#include <string.h>

#include "master/api/core/core_int.h"

void api_restore_redacted_error(const cleave_runtime *rt, cleave_error *why) {
  for (uint32_t i = 0; i < API_MAX_REDACTED_ERRORS; i++)
    if (rt->redacted_errors[i].sent_text[0] &&
        strcmp(rt->redacted_errors[i].sent_text, why->text) == 0)
      *why = rt->redacted_errors[i].full_error;
}

static const cleave_module *parse_module(const cleave_runtime *rt, const char *text, int *ret_len) {
  unsigned number;
  if (sscanf(text, "module %u%n", &number, ret_len) != 1 || number >= rt->n_modules) return NULL;
  return rt->modules[number];
}

/* Replaces `module N` in a text from a node by the module's name. */
static void replace_module_numbers(const cleave_runtime *rt, const char *from, char *ret,
                                   size_t size) {
  size_t n = 0;
  while (*from && n + 1 < size) {
    int len = 0;
    const cleave_module *m = parse_module(rt, from, &len);
    if (m) {
      n += (size_t)snprintf(ret + n, size - n, "module '%s'", m->name);
      from += len;
    } else {
      ret[n++] = *from++;
    }
  }
  ret[CLV_MIN(n, size - 1)] = '\0';
}

void api_failure_from_frame(const api_peer *from, const clv_frame *f, cleave_error *ret) {
  *ret = (cleave_error){.status = (cleave_status)(f->failure.code ? f->failure.code : CLV_UNKNOWN)};
  snprintf(ret->node, sizeof ret->node, "%s", from->name);
  unsigned module; /* nodes know modules by number */
  const cleave_runtime *rt = from->runtime;
  bool is_known = sscanf(f->failure.detected_at, "module %u", &module) == 1 &&
                  module < rt->n_modules && rt->modules[module];
  ret->reported = from->index != 0;
  snprintf(ret->place, sizeof ret->place, "%s",
           is_known ? rt->modules[module]->name : f->failure.detected_at);
  const char *text = f->failure.text[0] ? f->failure.text : clv_code_name((clv_code)ret->status);
  const char *element_text = from->index ? "" : f->failure.offending_value;
  snprintf(ret->text, sizeof ret->text, "%s%s%s%s", text, element_text[0] ? " (" : "", element_text,
           element_text[0] ? ")" : "");
  if (from->index) /* the node may have sent back a text that this process has sent before */
    api_restore_redacted_error(rt, ret);
  char received_text[CLEAVE_TEXT];
  memcpy(received_text, ret->text, sizeof received_text);
  replace_module_numbers(rt, received_text, ret->text, sizeof ret->text);
}

clv_code api_get_loss_code(clv_code code) {
  bool is_loss = code == CLV_OK || code == CLV_CANCELLED || code == CLV_DEADLINE ||
                 code == CLV_UNKNOWN || code == CLV_ABORTED || code == CLV_NOT_FOUND ||
                 code == CLV_PRECONDITION;
  return is_loss ? CLV_UNAVAILABLE : code;
}

bool cleave_is_passed_on(const cleave_error *why) {
  return strncmp(why->text, "worker '", 8) == 0 && strstr(why->text, "' reports");
}

/* If the node `e->node` itself reported the failure, begins the text with the name of that node,
 * unless the text names another worker whose failure the node only passes on. */
void api_failure_to_frame(const api_value *v, clv_frame *ret) {
  const cleave_error *e = &v->failure;
  char text[CLEAVE_TEXT + 2 * CLEAVE_NAME + 64];
  snprintf(text, sizeof text, "worker '%s' reports%s%s: %s", e->node, e->place[0] ? " for " : "",
           e->place, e->text);
  bool includes_worker_name = !e->reported || cleave_is_passed_on(e);
  clv_frame_set_failure(ret, (clv_code)e->status, includes_worker_name ? e->text : text, e->place);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts for lost connections. gRPC reports them in words of the system or of its own parts;
 * rpc_translate_end_text replaces those by a text for users.
 */
#include <stdio.h>
#include <string.h>

#include "common/net/rpc/rpc_int.h"

typedef enum end_kind { END_SILENT, END_RESET, END_DAMAGED, END_CLOSED, END_KINDS } end_kind;

/* Beginnings of gRPC's texts for lost connections; the first row that matches counts. gRPC reports
 * "Stream removed" when it closed the connection because it read invalid bytes. */
static const struct {
  const char *text_prefix;
  end_kind kind;
} known_texts[] = {
    {"keepalive watchdog timeout", END_SILENT},
    {"recvmsg:Connection timed out", END_SILENT},
    {"Connection timed out", END_SILENT},
    {"Connection reset", END_RESET},
    {"Broken pipe", END_RESET},
    {"recvmsg:", END_RESET},
    {"sendmsg:", END_RESET},
    {"Socket closed", END_CLOSED},
    {"Stream removed", END_DAMAGED},
};

static end_kind end_kind_of(const char *text) {
  for (size_t i = 0; i < CLV_COUNT(known_texts); i++)
    if (strncmp(text, known_texts[i].text_prefix, strlen(known_texts[i].text_prefix)) == 0)
      return known_texts[i].kind;
  return END_KINDS;
}

bool rpc_translate_end_text(unsigned peer_timeout_ms, char text[RPC_TEXT]) {
  static const char *const new_texts[END_KINDS] = {
      [END_RESET] =
          "the connection was reset: the process of the peer has ended, or a device "
          "between cut the connection",
      [END_DAMAGED] =
          "received data was damaged in transit: a bad TLS record, or bytes that are "
          "not TLS",
      [END_CLOSED] = "the process of the peer closed the connection, or has ended",
  };
  end_kind kind = end_kind_of(text);
  if (kind == END_SILENT)
    snprintf(text, RPC_TEXT, "the peer was silent for %g s", (double)peer_timeout_ms / 1e3);
  else if (kind != END_KINDS)
    snprintf(text, RPC_TEXT, "%s", new_texts[kind]);
  return kind != END_KINDS;
}

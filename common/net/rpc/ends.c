/* SPDX-License-Identifier: Apache-2.0
 *
 * What ended a stream that nobody ended on purpose. gRPC says it in the words of the system or of
 * its own parts; to people it is one of these.
 */
#include <stdio.h>
#include <string.h>

#include "common/net/rpc/rpc_int.h"

typedef enum end_kind { END_SILENT, END_RESET, END_DAMAGED, END_CLOSED, END_KINDS } end_kind;

/* How gRPC's text begins; the first row that fits counts. It has no reason for a stream whose
 * connection it gave up because of what it read there. */
static const struct {
  const char *begin;
  end_kind kind;
} words[] = {
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

static end_kind kind_of(const char *text) {
  for (size_t i = 0; i < CLV_COUNT(words); i++)
    if (strncmp(text, words[i].begin, strlen(words[i].begin)) == 0) return words[i].kind;
  return END_KINDS;
}

bool rpc_translate_end_text(unsigned peer_timeout_ms, char text[RPC_TEXT]) {
  static const char *const said[END_KINDS] = {
      [END_RESET] =
          "the connection was reset: the process there has ended, or something between "
          "cut it",
      [END_DAMAGED] =
          "what came was damaged on its way: a bad TLS record, or nothing that belongs "
          "there",
      [END_CLOSED] = "the process at the other end closed the connection, or has ended",
  };
  end_kind kind = kind_of(text);
  if (kind == END_SILENT)
    snprintf(text, RPC_TEXT, "it was silent for %g s (limits.peer_timeout)",
             (double)peer_timeout_ms / 1e3);
  else if (kind != END_KINDS)
    snprintf(text, RPC_TEXT, "%s", said[kind]);
  return kind != END_KINDS;
}

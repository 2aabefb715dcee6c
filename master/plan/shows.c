/* SPDX-License-Identifier: Apache-2.0
 *
 * Findings: their words, and whether a session permits them.
 */
#include <stdio.h>
#include <string.h>

#include "master/plan/plan_int.h"

typedef struct finding_row {
  clv_shows shows;
  const char *word;
} finding_row;

static const finding_row findings[] = {
    {CLV_SHOWS_LABELS, "LABELS"},           {CLV_SHOWS_LABELS_READABLE, "LABELS READABLE"},
    {CLV_SHOWS_RAW_INPUT, "RAW INPUT"},     {CLV_SHOWS_TOKENS, "TOKENS"},
    {CLV_SHOWS_FRONT_KNOWN, "FRONT KNOWN"}, {CLV_SHOWS_PICTURE, "PICTURE"}};

const char *clv_findings_words(clv_findings f, char buf[CLV_FINDINGS_TEXT]) {
  buf[0] = '\0';
  for (size_t i = 0; i < CLV_COUNT(findings); i++) {
    size_t len = strlen(buf);
    if (f & findings[i].shows)
      snprintf(buf + len, CLV_FINDINGS_TEXT - len, "%s%s", len ? ", " : "", findings[i].word);
  }
  return buf;
}

clv_shows clv_findings_worst(clv_findings f) {
  for (size_t i = 0; i < CLV_COUNT(findings); i++)
    if (f & findings[i].shows) return findings[i].shows;
  return CLV_SHOWS_MIXED;
}

/* Pictures need no word of the session; a policy may forbid them. Whoever lets vectors of tokens
 * leave lets them leave by known layers, too, as `plan` says of TOKENS. */
clv_findings clv_privacy_forbids(const clv_session_config *c, clv_findings f) {
  clv_findings permitted = CLV_SHOWS_PICTURE;
  if (c->privacy.front_known) permitted |= CLV_SHOWS_FRONT_KNOWN;
  if (c->privacy.tokens_readable) permitted |= CLV_SHOWS_TOKENS;
  if (c->privacy.tokens_readable && (f & CLV_SHOWS_TOKENS)) permitted |= CLV_SHOWS_FRONT_KNOWN;
  if (c->privacy.raw_input_leaves)
    permitted |= CLV_SHOWS_RAW_INPUT | CLV_SHOWS_TOKENS | CLV_SHOWS_FRONT_KNOWN;
  if (c->privacy.labels_readable) permitted |= CLV_SHOWS_LABELS_READABLE;
  if (c->privacy.labels_leave) permitted |= CLV_SHOWS_LABELS;
  return f & ~permitted;
}

/* Scripts read one word as `records`, the worst; `findings` has them all. */
void clv_findings_json(bool any, clv_findings shows, clv_bytes *out) {
  static const struct {
    clv_shows shows;
    const char *word;
  } words[] = {{CLV_SHOWS_RAW_INPUT, "raw_input"},
               {CLV_SHOWS_TOKENS, "tokens"},
               {CLV_SHOWS_FRONT_KNOWN, "front_known"},
               {CLV_SHOWS_PICTURE, "picture"}};
  const char *worst = any ? "mixed" : "stay";
  for (size_t i = CLV_COUNT(words); i-- > 0;)
    if (shows & words[i].shows) worst = words[i].word;
  clv_bytes_printf(out, "\"records\":\"%s\",\"findings\":[", worst);
  for (size_t i = 0, n = 0; i < CLV_COUNT(words); i++)
    if (shows & words[i].shows) clv_bytes_printf(out, "%s\"%s\"", n++ ? "," : "", words[i].word);
  clv_bytes_puts(out, "],");
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles findings, the ways in which a tensor shows records or labels: clv_findings_format formats
 * a set, clv_worst_finding picks the worst finding, and clv_privacy_forbidden_findings says which
 * findings the session's `privacy` does not permit. Plan, gate and policy call them.
 */
#include <stdio.h>
#include <string.h>

#include "master/egress/egress.h"

typedef struct finding_row {
  clv_finding finding;
  const char *word;
} finding_row;

static const finding_row findings[] = {
    {CLV_FINDING_LABELS, "LABELS"},           {CLV_FINDING_LABELS_READABLE, "LABELS READABLE"},
    {CLV_FINDING_RAW_INPUT, "RAW INPUT"},     {CLV_FINDING_TOKENS, "TOKENS"},
    {CLV_FINDING_FRONT_KNOWN, "FRONT KNOWN"}, {CLV_FINDING_PICTURE, "PICTURE"}};

const char *clv_findings_format(clv_findings f, char buf[CLV_FINDINGS_TEXT_BYTES]) {
  buf[0] = '\0';
  for (size_t i = 0; i < CLV_COUNT(findings); i++) {
    size_t len = strlen(buf);
    if (f & findings[i].finding)
      snprintf(buf + len, CLV_FINDINGS_TEXT_BYTES - len, "%s%s", len ? ", " : "", findings[i].word);
  }
  return buf;
}

clv_finding clv_worst_finding(clv_findings f) {
  for (size_t i = 0; i < CLV_COUNT(findings); i++)
    if (f & findings[i].finding) return findings[i].finding;
  return CLV_FINDING_MIXED;
}

/* Every session permits PICTURE; only a policy can forbid this finding. A session with
 * privacy.tokens_readable also permits FRONT_KNOWN for a tensor that shows TOKENS, and `plan` says
 * so. */
clv_findings clv_privacy_forbidden_findings(const clv_session_config *c, clv_findings f) {
  clv_findings permitted_findings = CLV_FINDING_PICTURE;
  if (c->privacy.front_known) permitted_findings |= CLV_FINDING_FRONT_KNOWN;
  if (c->privacy.tokens_readable) permitted_findings |= CLV_FINDING_TOKENS;
  if (c->privacy.tokens_readable && (f & CLV_FINDING_TOKENS))
    permitted_findings |= CLV_FINDING_FRONT_KNOWN;
  if (c->privacy.raw_input_leaves)
    permitted_findings |= CLV_FINDING_RAW_INPUT | CLV_FINDING_TOKENS | CLV_FINDING_FRONT_KNOWN;
  if (c->privacy.labels_readable) permitted_findings |= CLV_FINDING_LABELS_READABLE;
  if (c->privacy.labels_leave) permitted_findings |= CLV_FINDING_LABELS;
  return f & ~permitted_findings;
}

clv_findings clv_reach_findings(const clv_reach *r) {
  clv_findings f = 0;
  if (r->has_unmixed_path) f |= CLV_FINDING_RAW_INPUT;
  if (r->has_unmixed_token_path || r->has_narrow_token_element) f |= CLV_FINDING_TOKENS;
  if (r->has_known_mixing) f |= CLV_FINDING_FRONT_KNOWN;
  if (r->has_narrow_element) f |= CLV_FINDING_PICTURE;
  return f;
}

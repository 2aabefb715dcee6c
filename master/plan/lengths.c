/* SPDX-License-Identifier: Apache-2.0
 *
 * What is learned of the lengths of sequences, which nothing hides: they are sent where a layer
 * reads them, and the size of packed ones shows.
 */
#include "master/plan/plan_int.h"

/* Is an input sent that is the lengths of sequences? */
static bool lengths_leave(const clv_blueprint *b) {
  for (uint32_t i = 0; i < b->n_stages; i++)
    for (uint32_t k = 0; b->stages[i].worker >= 0 && k < b->stages[i].n_leaves; k++)
      if (clv_graph_lengths(b->whole, (int)b->stages[i].leaf[k])) return true;
  return false;
}

void clv_lengths_describe(const clv_blueprint *b, bool any, clv_bytes *out) {
  if (lengths_leave(b))
    clv_bytes_puts(out, "lengths: of every record's sequence are sent; nothing hides them\n");
  if (any && b->lengths >= 0)
    clv_bytes_puts(out,
                   "places: sequences are packed (data.packed): the size of all that is sent shows "
                   "how many places a micro-batch has\n");
}

const char *clv_lengths_json(const clv_blueprint *b, bool any) {
  static const char *const facts[] = {"", "\"lengths\":\"leave\",", "\"places\":\"show\",",
                                      "\"lengths\":\"leave\",\"places\":\"show\","};
  return facts[lengths_leave(b) + 2 * (any && b->lengths >= 0)];
}

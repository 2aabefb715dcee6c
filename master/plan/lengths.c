/* SPDX-License-Identifier: Apache-2.0
 *
 * Describes for `plan` what workers get to know of the lengths of sequences. No layer hides
 * lengths: the master sends the lengths to layers that read them, and the size of packed sequences
 * shows the lengths.
 */
#include "master/plan/plan_int.h"

/* True if the master sends the input that has the lengths of sequences to a worker. */
static bool sends_lengths(const clv_blueprint *b) {
  for (uint32_t i = 0; i < b->n_stages; i++)
    for (uint32_t k = 0; b->stages[i].worker >= 0 && k < b->stages[i].n_model_inputs; k++)
      if (clv_graph_length_limit(b->full_graph, (int)b->stages[i].model_inputs[k])) return true;
  return false;
}

void clv_run_data_measure_lengths(const clv_run_data *d, clv_blueprint *b) {
  clv_data_range range;
  size_t n = d->train ? clv_dataset_count(d->train) : 0;
  if (!n || b->lengths_input < 0) return;
  if (clv_dataset_input_range(d->train, (size_t)b->lengths_input, CLV_ALL_COLUMNS, &range))
    b->mean_positions = range.sum / (double)n;
}

/* Returns the mean length of a sequence as a fraction of the full length. Adds half a rounding
 * step, because the rows of a micro-batch are padded to the next of CLV_N_PACKED_SIZES sizes.
 * Returns 1 if the lengths were not counted. */
static double compute_mean_filled_share(const clv_blueprint *b) {
  double filled_share =
      b->mean_positions / (double)CLV_MAX(b->max_positions, 1) + 0.5 / CLV_N_PACKED_SIZES;
  return b->mean_positions > 0 && filled_share < 1 ? filled_share : 1;
}

uint64_t clv_lengths_expected_bytes(const clv_blueprint *b, int64_t n_positions, uint64_t bytes) {
  return n_positions ? (uint64_t)((double)bytes * compute_mean_filled_share(b)) : bytes;
}

void clv_lengths_append_expected(const clv_blueprint *b, int64_t n_positions, uint64_t bytes,
                                 clv_bytes *out) {
  char size_text[24];
  if (n_positions && b->mean_positions > 0)
    clv_bytes_printf(out, ", about %s of data.train",
                     clv_format_size((size_t)clv_lengths_expected_bytes(b, n_positions, bytes),
                                     size_text, sizeof size_text));
}

static void describe_mean_length(const clv_blueprint *b, clv_bytes *out) {
  if (b->lengths_input < 0 || b->mean_positions <= 0) return;
  clv_bytes_printf(out,
                   "sequences: those of data.train have %.1f of %lld places on average; sizes and "
                   "memory are of full ones, for which nodes must have room, and `about` is what "
                   "these have\n",
                   b->mean_positions, (long long)b->max_positions);
}

void clv_lengths_describe(const clv_blueprint *b, bool sends_records, clv_bytes *out) {
  if (sends_lengths(b))
    clv_bytes_puts(out, "lengths: of every record's sequence are sent; nothing hides them\n");
  describe_mean_length(b, out);
  if (sends_records && b->lengths_input >= 0)
    clv_bytes_puts(out,
                   "places: sequences are packed (data.packed): the size of all that is sent shows "
                   "how many places a micro-batch has\n");
}

const char *clv_lengths_describe_json(const clv_blueprint *b, bool sends_records) {
  static const char *const json_members[] = {"", "\"lengths\":\"leave\",", "\"places\":\"show\",",
                                             "\"lengths\":\"leave\",\"places\":\"show\","};
  return json_members[sends_lengths(b) + 2 * (sends_records && b->lengths_input >= 0)];
}

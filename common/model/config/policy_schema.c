/* SPDX-License-Identifier: Apache-2.0
 *
 * Every key of egress.policy.yaml.
 */
#include "common/model/config/schema_int.h"

#define AT(member) offsetof(clv_policy_config, member)

static const char *const kind_names[] = {"activation", "gradient", "weights", "cached", NULL};
static const char *const dtype_names[] = {"f32", "i64", NULL};

/* A key is a row, its fields in reading order. */
/* clang-format off */
static const clv_row rows[] = {
    {.path = "version", .kind = CLV_ROW_INT, .offset = AT(version), .min = 1, .max = 1,
     .required = true, .sample = "1", .doc = "Version of this file format."},
    {.path = "workers", .kind = CLV_ROW_TEXTS, .offset = AT(workers), .pos = AT(workers_pos),
     .format = CLV_FORMAT_URI, .min = 1, .required = true,
     .sample = "[\"spiffe://example.net/worker/worker-1\"]",
     .doc = "Who may receive tensors, by the one URI in the worker's certificate."},
    {.path = "kinds", .kind = CLV_ROW_TEXTS, .offset = AT(kinds), .pos = AT(kinds_pos),
     .names = kind_names, .required = true, .sample = "[activation, gradient]",
     .doc = "What may leave: activations of stages, gradients for stages, and weights, which "
            "are parameters, buffers and the optimiser's state; cached are activations that a worker "
            "keeps on its disk. Records and labels are a matter of `allow` alone."},
    {.path = "largest_shape", .kind = CLV_ROW_NUMBERS, .offset = AT(largest_shape),
     .pos = AT(shape_pos), .min = 1, .max = 8, .low = 1, .high = 1e9, .required = true,
     .sample = "[256, 512, 28, 28]",
     .doc = "The largest tensor, samples first: no tensor has more dimensions, and none of its "
            "dimensions is larger than the one at its place here. Weights are bounded by "
            "bytes_per_epoch alone."},
    {.path = "dtypes", .kind = CLV_ROW_TEXTS, .offset = AT(dtypes), .pos = AT(dtypes_pos),
     .names = dtype_names, .min = 1, .required = true, .sample = "[f32]",
     .doc = "Types of numbers that may leave, of all but weights; labels of classes are i64."},
    {.path = "bytes_per_epoch", .kind = CLV_ROW_SIZE, .offset = AT(bytes_per_epoch),
     .pos = AT(bytes_pos), .min = 1, .max = 1ull << 60, .required = true, .sample = "2GiB",
     .doc = "Bytes of tensors that may leave the master in one epoch, to all workers together. An "
            "`eval` or `predict` counts as one epoch."},

    {.path = "pictures", .kind = CLV_ROW_BOOL, .offset = AT(pictures), .pos = AT(pictures_pos),
     .initial = "true",
     .doc = "Activations may be sent of which some value is made of fewer than half of a record's "
            "places: what `plan` calls PICTURE."},
    {.path = "min_layers_at_home", .kind = CLV_ROW_INT, .offset = AT(min_layers_at_home),
     .pos = AT(min_layers_pos), .min = 0, .max = 1000, .initial = "0",
     .doc = "Layers at the master that hide, at least so many on each path: of a record to what is "
            "sent, and of a gradient that is sent back to the loss."},

    {.path = "max_read", .kind = CLV_ROW_SECTION, .pos = AT(max_read_pos),
     .doc = "What the look at a few records may read of what leaves, at most: 0 is as good as a "
            "guess, 1 is everything. What is limited must have been looked at. 1 is no limit."},
    {.path = "max_read.pixels", .kind = CLV_ROW_NUMBER, .offset = AT(max_read[0]),
     .pos = AT(pixels_pos), .low = 0, .high = 1, .initial = "1",
     .doc = "Correlation of a channel with the records of images and signals."},
    {.path = "max_read.tokens", .kind = CLV_ROW_NUMBER, .offset = AT(max_read[1]),
     .pos = AT(tokens_pos), .low = 0, .high = 1, .initial = "1",
     .doc = "Tokens that the nearest vector names."},
    {.path = "max_read.labels", .kind = CLV_ROW_NUMBER, .offset = AT(max_read[2]),
     .pos = AT(labels_pos), .low = 0, .high = 1, .initial = "1",
     .doc = "Labels that gradients name by sign, length or direction."},
    {.path = "max_read.features", .kind = CLV_ROW_NUMBER, .offset = AT(max_read[3]),
     .pos = AT(features_pos), .low = 0, .high = 1, .initial = "1",
     .doc = "Correlation of what is sent with single features of the records."},
    {.path = "max_read.groups", .kind = CLV_ROW_NUMBER, .offset = AT(max_read[4]),
     .pos = AT(groups_pos), .low = 0, .high = 1, .initial = "1",
     .doc = "Records of which gradients say that they share a label, whatever it is."},

    {.path = "allow", .kind = CLV_ROW_SECTION, .pos = AT(allow.pos),
     .doc = "What a session needs its own word for in `privacy`, and this file's word too."},
    {.path = "allow.labels", .kind = CLV_ROW_BOOL, .offset = AT(allow.labels),
     .pos = AT(allow.labels_pos), .initial = "false", .doc = "Labels may be sent."},
    {.path = "allow.labels_readable", .kind = CLV_ROW_BOOL, .offset = AT(allow.labels_readable),
     .pos = AT(allow.labels_readable_pos), .initial = "false",
     .doc = "A worker may receive gradients from which labels can be read off."},
    {.path = "allow.raw", .kind = CLV_ROW_BOOL, .offset = AT(allow.raw),
     .pos = AT(allow.raw_pos), .initial = "false",
     .doc = "Records may be sent, also in forms from which they can be read off."},
    {.path = "allow.front_known", .kind = CLV_ROW_BOOL, .offset = AT(allow.front_known),
     .pos = AT(allow.front_known_pos), .initial = "false",
     .doc = "Activations may be sent of layers whose weights a worker can know."},
    {.path = "allow.tokens", .kind = CLV_ROW_BOOL, .offset = AT(allow.tokens),
     .pos = AT(allow.tokens_pos), .initial = "false",
     .doc = "Embeddings of tokens may be sent, one vector per token."},
};
/* clang-format on */

const clv_schema *clv_policy_schema(void) {
  static const clv_schema schema = {
      .rows = rows,
      .n_rows = CLV_COUNT(rows),
      .title = "egress.policy.yaml",
      .subject = "what may leave a master",
      .fixed = true,
      .doc =
          "What may leave the private network, by the person who answers for it. Where "
          "/etc/cleave/egress.policy.yaml exists it binds every session on this host, and what "
          "it does not permit is refused. Neither the environment nor --set changes it.",
  };
  return &schema;
}

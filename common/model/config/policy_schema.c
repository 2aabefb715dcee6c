/* SPDX-License-Identifier: Apache-2.0
 *
 * Every key of egress.policy.yaml.
 */
#include "common/model/config/schema_int.h"

#define AT(member) offsetof(clv_policy_config, member)

static const char *const kind_names[] = {"activation", "gradient", "weights", "cached", NULL};
static const char *const dtype_names[] = {"f32", "i64", "bf16", NULL};
static const char *const programs_names[] = {"refuse", "declared", NULL};

/* Each row describes one key. */
/* clang-format off */
static const clv_row rows[] = {
    {.path = "version", .kind = CLV_ROW_INT, .offset = AT(version), .min = 1, .max = 1,
     .required = true, .sample = "1", .doc = "Version of this file format."},
    {.path = "workers", .kind = CLV_ROW_TEXTS, .offset = AT(workers), .pos_offset = AT(workers_pos),
     .format = CLV_FORMAT_URI, .min = 1, .required = true,
     .sample = "[\"spiffe://example.net/worker/worker-1\"]",
     .doc = "URIs of the workers that may receive tensors, each the one URI in the worker's "
            "certificate."},
    {.path = "kinds", .kind = CLV_ROW_TEXTS, .offset = AT(kinds), .pos_offset = AT(kinds_pos),
     .names = kind_names, .required = true, .sample = "[activation, gradient]",
     .doc = "Kinds of tensors that may be sent: activations of stages, gradients for stages, "
            "weights (parameters, buffers and the state of the optimiser), and cached, which "
            "are activations that a worker keeps on its disk. Only `allow` decides on records "
            "and labels."},
    {.path = "largest_shape", .kind = CLV_ROW_NUMBERS, .offset = AT(largest_shape),
     .pos_offset = AT(shape_pos), .min = 1, .max = 8, .low = 1, .high = 1e9, .required = true,
     .sample = "[256, 512, 28, 28]",
     .doc = "Largest extent of each dimension of a tensor, the number of samples first. No "
            "tensor may have more dimensions. For weights only bytes_per_epoch applies."},
    {.path = "dtypes", .kind = CLV_ROW_TEXTS, .offset = AT(dtypes), .pos_offset = AT(dtypes_pos),
     .names = dtype_names, .min = 1, .required = true, .sample = "[f32]",
     .doc = "Types of values that may be sent, except those of weights. Class labels are i64. Only "
            "programs send bf16."},
    {.path = "bytes_per_epoch", .kind = CLV_ROW_SIZE, .offset = AT(bytes_per_epoch),
     .pos_offset = AT(bytes_pos), .min = 1, .max = 1ull << 60, .required = true, .sample = "2GiB",
     .doc = "Bytes of tensors that may leave the master in one epoch, to all workers together. An "
            "`eval` or `predict` counts as one epoch."},

    {.path = "pictures", .kind = CLV_ROW_BOOL, .offset = AT(allows_pictures), .pos_offset = AT(pictures_pos),
     .default_text = "true",
     .doc = "Activations that `plan` classifies as PICTURE may be sent: those with a value that "
            "is made of fewer than half of a record's positions."},
    {.path = "min_layers_at_home", .kind = CLV_ROW_INT, .offset = AT(min_layers_at_home),
     .pos_offset = AT(min_layers_pos), .min = 0, .max = 1000, .default_text = "0",
     .doc = "Least number of layers at the master that hide, on each path from a record to what "
            "is sent, and from a gradient that is sent back to the loss."},

    {.path = "programs", .kind = CLV_ROW_ENUM, .offset = AT(programs), .pos_offset = AT(programs_pos),
     .names = programs_names, .default_text = "refuse",
     .doc = "Programs on libcleave, in C or Python, that connect to workers: refuse, or declared. A "
            "program then declares each tensor before it sends it, and keeps a record. What it "
            "says of a tensor cannot be proved. Nothing is measured of a program, so a policy with "
            "a limit under `max_read` refuses it."},

    {.path = "release", .kind = CLV_ROW_TEXTS, .offset = AT(release), .pos_offset = AT(release_pos),
     .sample = "[\"layer1.*\", fc1]",
     .doc = "Patterns of the names of layers that a run may move from the master to a worker when "
            "it goes on with another cut. The worker can then undo these layers in activations "
            "that it may have recorded. None unless given."},

    {.path = "max_read", .kind = CLV_ROW_SECTION, .pos_offset = AT(max_read_pos),
     .doc = "Most that the measurement `look` may recover from the tensors of a few records: 0 "
            "is as good as a guess, 1 is everything, which is no limit. A value with a limit "
            "must have been measured."},
    {.path = "max_read.pixels", .kind = CLV_ROW_NUMBER, .offset = AT(max_read[0]),
     .pos_offset = AT(pixels_pos), .low = 0, .high = 1, .default_text = "1",
     .doc = "Correlation of a channel with the records of images and signals."},
    {.path = "max_read.tokens", .kind = CLV_ROW_NUMBER, .offset = AT(max_read[1]),
     .pos_offset = AT(tokens_pos), .low = 0, .high = 1, .default_text = "1",
     .doc = "Share of tokens that the nearest vector identifies."},
    {.path = "max_read.labels", .kind = CLV_ROW_NUMBER, .offset = AT(max_read[2]),
     .pos_offset = AT(labels_pos), .low = 0, .high = 1, .default_text = "1",
     .doc = "Share of labels that gradients identify by sign, length or direction."},
    {.path = "max_read.features", .kind = CLV_ROW_NUMBER, .offset = AT(max_read[3]),
     .pos_offset = AT(features_pos), .low = 0, .high = 1, .default_text = "1",
     .doc = "Correlation of what is sent with single features of the records."},
    {.path = "max_read.groups", .kind = CLV_ROW_NUMBER, .offset = AT(max_read[4]),
     .pos_offset = AT(groups_pos), .low = 0, .high = 1, .default_text = "1",
     .doc = "Share of records that gradients group by their label, without identifying the "
            "label."},

    {.path = "allow", .kind = CLV_ROW_SECTION, .pos_offset = AT(allow.pos),
     .doc = "Permissions that a session needs in addition to the same permission in its "
            "`privacy` section."},
    {.path = "allow.labels", .kind = CLV_ROW_BOOL, .offset = AT(allow.labels),
     .pos_offset = AT(allow.labels_pos), .default_text = "false", .doc = "Labels may be sent."},
    {.path = "allow.labels_readable", .kind = CLV_ROW_BOOL, .offset = AT(allow.labels_readable),
     .pos_offset = AT(allow.labels_readable_pos), .default_text = "false",
     .doc = "A worker may receive gradients from which labels can be read off."},
    {.path = "allow.raw", .kind = CLV_ROW_BOOL, .offset = AT(allow.raw),
     .pos_offset = AT(allow.raw_pos), .default_text = "false",
     .doc = "Records may be sent, also in forms from which they can be read off."},
    {.path = "allow.front_known", .kind = CLV_ROW_BOOL, .offset = AT(allow.front_known),
     .pos_offset = AT(allow.front_known_pos), .default_text = "false",
     .doc = "Activations may be sent of layers whose weights a worker can know."},
    {.path = "allow.tokens", .kind = CLV_ROW_BOOL, .offset = AT(allow.tokens),
     .pos_offset = AT(allow.tokens_pos), .default_text = "false",
     .doc = "Embeddings of tokens may be sent, one vector per token."},
};
/* clang-format on */

const clv_schema *clv_policy_schema(void) {
  static const clv_schema schema = {
      .rows = rows,
      .n_rows = CLV_COUNT(rows),
      .title = "egress.policy.yaml",
      .subject = "what may leave a master",
      .ignores_overrides = true,
      .doc =
          "What may leave the private network, by the person who answers for it. Where "
          "/etc/cleave/egress.policy.yaml exists it binds every session on this host, and what "
          "it does not permit is refused. Neither the environment nor --set changes it.",
  };
  return &schema;
}

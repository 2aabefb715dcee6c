/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests what a worker can learn about records and labels from a tensor that is sent, for layers of
 * all kinds at the master, with weights that are secret or not. Also tests what a session is
 * refused for, and the attack from which the rule for labels protects.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "master/plan/plan_int.h"

static const clv_shape image = {4, {1, 1, 6, 6}}, words = {2, {1, 12}}, single_value = {2, {1, 1}};

#define ALL                                                                                   \
  "raw_input_leaves: true, tokens_readable: true, front_known: true, labels_readable: true, " \
  "labels_leave: true"
#define MIDDLE "{op: flatten}, {op: linear, out: 6}"
#define HEAD "  - {name: head, at: master, layers: [{op: linear, out: 3}]}\n"
#define CONV "{op: conv2d, out: 2, kernel: 3}"
#define LAYERS_WITHOUT_MIXING \
  "{op: scale, factor: 2}, {op: relu}, {op: batchnorm}, {op: maxpool, kernel: 2}"

static clv_session_config *parse_session(const char *privacy, const char *train,
                                         const char *stages) {
  clv_session_config *c = NULL;
  clv_err err;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_bytes_printf(
      &text,
      "version: 1\nname: t\ntls: {ca: a, cert: b, key: c}\nworkers:\n"
      "  w1: {address: \"h:1\", identity: \"spiffe://t/w1\"}\n"
      "  w2: {address: \"h:2\", identity: \"spiffe://t/w2\"}\n"
      "data: {format: npy, root: /data, train: [a, b]}\nloss: {kind: cross_entropy}\n"
      "privacy: {%s}\ntrain: {batch: 8, %soptimizer: {kind: sgd, lr: 0.1}}\nstages:\n%s",
      privacy, train, stages);
  if (clv_session_config_parse("/s.yaml", text.data, text.len, NULL, &c, &err) != CLV_OK)
    fail_msg("%s", err.text);
  return c;
}

static clv_blueprint *make_blueprint(const clv_session_config *c, const clv_shape *sample) {
  clv_blueprint *b = NULL;
  clv_err err;
  if (clv_blueprint_new(c, sample, CLV_I64, &b, &err) != CLV_OK) fail_msg("%s", err.text);
  return b;
}

/* ---- findings about records in the front's output -------------------------------------------- */

typedef struct front_case {
  const clv_shape *sample_shape;
  const char *first_layers, *other_layers, *train_keys;
  clv_findings wanted_findings;
  /* fewest positions of a record on which an output depends, for the finding PICTURE; 0: not
   * checked */
  int64_t min_positions;
} front_case;

enum {
  RAW = CLV_FINDING_RAW_INPUT,
  TOKENS = CLV_FINDING_TOKENS,
  KNOWN = CLV_FINDING_FRONT_KNOWN,
  PICTURE = CLV_FINDING_PICTURE
};

static const clv_shape rgb = {4, {1, 3, 6, 6}}, pixel = {4, {1, 1, 1, 1}}, signal = {3, {1, 1, 9}},
                       features = {2, {1, 16}}, steps = {3, {1, 8, 4}}, rows = {4, {1, 6, 6, 3}};

static const clv_shape flat_rgb = {2, {1, 108}}, wide = {2, {1, 60}}, two_halves = {2, {1, 32}};

#define EMBEDDING "{op: embedding, rows: 9, out: 4}"
#define TRANSPOSED_WORDS EMBEDDING ", {op: permute, order: [2, 1]}"
#define COLUMN "{op: reshape, shape: [16, 1], name: x}"
#define CONTEXT "{op: flatten}, {op: linear, out: 64}, {op: layernorm}"
#define ROWS                                                                                      \
  "{op: reshape, shape: [1, 16], name: r}, {op: reshape, shape: [16, 1], from: [input], name: x}" \
  ", {op: scale, factor: 0, name: z}, {op: add, from: [z, r], name: c}"
/* Layers that split x into n groups of positions and apply a secret layer to each group. Their
 * output c has the shape of x and holds, at each position, the output for the position's group. */
#define GROUPS(n)                                                                 \
  COLUMN ", {op: reshape, shape: [" #n                                            \
         ", -1], name: s}, {op: linear, out: 1}, {op: reshape, "                  \
         "shape: [" #n                                                            \
         ", 1], name: g}, {op: scale, factor: 0, from: [s], name: z}, {op: add, " \
         "from: [z, g]}, {op: reshape, shape: [16, 1], name: c}"
#define BLOCK                                                                                   \
  "{op: linear, out: 4, from: [h], name: q}, {op: linear, out: 4, from: [h], name: k}, "        \
  "{op: linear, out: 4, from: [h], name: v}, {op: attention, heads: 2, from: [q, k, v], name: " \
  "a}, "                                                                                        \
  "{op: linear, out: 4, from: [a], name: o}, {op: add, from: [h, o]}"
#define PUBLIC "weights: {file: p}, "
#define SECRET "weights: {file: p, secret: true}, "

static const front_case fronts[] = {
    /* each output depends on only one position of the record: RAW INPUT */
    {&image, "{op: scale, factor: 2}", "", "", RAW, 0},
    {&image, "{op: flatten}, {op: slice, dim: 1, start: 0, stop: 20}", "", "", RAW, 0},
    {&image, LAYERS_WITHOUT_MIXING ", {op: dropout, p: 0.5}", "", "", RAW, 0},
    {&image, "{op: conv2d, out: 4, kernel: 1}", "", "", RAW, 0},
    /* the layer mixes only the channels of a pixel, so it sends an image in grey tones */
    {&rgb, "{op: conv2d, out: 4, kernel: 1}", "", "", RAW, 0},
    {&rgb, "{op: conv2d, out: 6, kernel: 1, groups: 3}", "", "", RAW, 0},
    {&rgb, "{op: permute, order: [2, 3, 1]}, {op: linear, out: 4}", "", "", RAW | PICTURE, 0},
    /* records whose last dimension is the channels */
    {&rows, "{op: linear, out: 4}", "", "", RAW | PICTURE, 0},
    {&rgb, "{op: globalavgpool}, {op: conv2d, out: 4, kernel: 1}", "", "", RAW, 0},
    {&rgb, "{op: mean, dim: 3}, {op: mean, dim: 2}, {op: linear, out: 4}", "", "", RAW, 0},
    {&single_value, "{op: linear, out: 5}, {op: relu}", "", "", RAW, 0},
    {&pixel, "{op: conv2d, out: 4, kernel: 3, pad: 1}", "", "", RAW, 0},
    {&image, "{op: conv2d, out: 4, kernel: 3, dilation: 6, pad: 6}", "", "", RAW, 0},
    {&signal, "{op: conv1d, out: 2, kernel: 2, pad: 1, stride: 18}", "", "", RAW, 0},
    {&signal, "{op: conv1d, out: 2, kernel: 3, stride: 9, dilation: 9, pad: 9}", "", "", RAW, 0},
    {&image, "{op: conv_transpose2d, out: 2, kernel: 2, stride: 2}", "", "", RAW, 0},
    {&image, "{op: conv_transpose2d, out: 2, kernel: 2, stride: 4, dilation: 2}", "", "", RAW, 0},
    {&features,
     "{op: reshape, shape: [16, 1, 1]}, {op: conv2d, out: 16, kernel: 3, pad: 1, "
     "groups: 16}",
     "", "", RAW, 0},
    {&features, "{op: reshape, shape: [4, 4]}, {op: conv1d, out: 4, kernel: 1, groups: 4}", "", "",
     RAW, 0},
    {&features, "{op: reshape, shape: [16, 1]}, {op: linear, out: 5, transposed: true}", "", "",
     RAW, 0},
    /* a layer followed by its own transpose hides nothing: FRONT KNOWN */
    {&features,
     "{op: linear, out: 64, bias: false, name: t}, {op: linear, out: 16, bias: false, "
     "transposed: true, tied: t}",
     "", "", KNOWN, 0},
    /* constants, zeros and copies add no position */
    {&features,
     COLUMN ", {op: scale, factor: 0, name: z}, {op: concat, dim: 2, from: [x, z]}, "
            "{op: linear, out: 2}",
     "", "", RAW, 0},
    {&features, COLUMN ", {op: concat, dim: 2, from: [x, x]}, {op: linear, out: 2}", "", "", RAW,
     0},
    {&features,
     COLUMN ", {op: relu, name: y}, {op: concat, dim: 2, from: [x, y]}, "
            "{op: linear, out: 2}",
     "", "", RAW, 0},
    {&features,
     COLUMN ", {op: softmax, name: o}, {op: concat, dim: 2, from: [x, o]}, "
            "{op: linear, out: 2}",
     "", "", RAW, 0},
    /* layer `o` is a softmax over one number, always 1, so each output depends on one element of x
     */
    {&features,
     "{op: slice, dim: 1, start: 0, stop: 8}, {op: reshape, shape: [8, 1], name: x}, "
     "{op: slice, dim: 1, start: 8, stop: 16, from: [input]}, {op: reshape, shape: [8, 1]}, "
     "{op: softmax, name: o}, {op: concat, dim: 2, from: [x, o]}, {op: linear, out: 2}",
     "", "", RAW, 0},
    {&features,
     COLUMN ", {op: layernorm, name: o}, {op: concat, dim: 2, from: [x, o]}, "
            "{op: linear, out: 2}",
     "", "", RAW, 0},
    {&features,
     COLUMN ", {op: concat, dim: 2, from: [x, x], name: xx}, {op: mul, from: [x, xx]}, "
            "{op: linear, out: 2}",
     "", "", RAW, 0},
    {&features,
     COLUMN ", {op: slice, dim: 1, start: 0, stop: 8, name: a, from: [x]}, {op: slice, "
            "dim: 1, start: 8, stop: 16, name: b, from: [x]}, {op: scale, factor: 0, "
            "from: [b], name: z}, {op: mul, from: [b, z], name: n}, {op: concat, dim: 2, "
            "from: [a, n]}, {op: linear, out: 2}",
     "", "", RAW, 0},
    {&features,
     COLUMN ", {op: slice, dim: 1, start: 0, stop: 8, name: a, from: [x]}, {op: slice, "
            "dim: 1, start: 8, stop: 16, name: b, from: [x]}, {op: scale, factor: -1, "
            "from: [b], name: m}, {op: add, from: [b, m], name: n}, {op: concat, dim: 2, "
            "from: [a, n]}, {op: linear, out: 2}",
     "", "", RAW, 0},
    {&features,
     "{op: reshape, shape: [4, 4], name: x}, {op: permute, order: [2, 1], name: t}, "
     "{op: matmul, from: [x, t]}",
     "", "", RAW, 0},
    {&features, "{op: flatten, name: x}, {op: linear, out: 16, name: y}, {op: add, from: [x, y]}",
     "", "", RAW, 0},
    /* values that are equal at all positions of a layer add no position */
    {&image,
     CONTEXT ", {op: reshape, shape: [64, 1, 1], name: g}, {op: scale, factor: 0, from: [input], "
             "name: z}, {op: add, from: [z, g], name: c}, {op: concat, dim: 1, from: [input, c]}, "
             "{op: conv2d, out: 1, kernel: 1}",
     "", "", RAW, 0},
    {&image,
     CONTEXT ", {op: reshape, shape: [64, 1, 1], name: g}, {op: scale, factor: 0, from: [input], "
             "name: z}, {op: add, from: [z, g], name: c}, {op: concat, dim: 1, from: [input, c]}, "
             "{op: conv2d, out: 1, kernel: 3, pad: 1}",
     "", "", PICTURE, 4},
    {&words,
     EMBEDDING ", {op: scale, factor: 1, name: e}, " CONTEXT
               ", {op: reshape, shape: [1, 64], name: g}, {op: mean, dim: 2, from: [e]}, {op: "
               "reshape, shape: [12, 1]}, {op: scale, factor: 0, name: z}, {op: add, from: [z, "
               "g], name: c}, {op: concat, dim: 2, from: [e, c]}, {op: linear, out: 5}",
     "", "", TOKENS, 0},
    {&features,
     CONTEXT ", {op: reshape, shape: [1, 64], name: g}, {op: reshape, shape: [16, 1], from: "
             "[input], name: x}, {op: scale, factor: 0, name: z}, {op: add, from: [z, g], name: "
             "c}, {op: concat, dim: 2, from: [x, c]}, {op: linear, out: 1}",
     "", "", RAW, 0},
    {&features, ROWS ", {op: concat, dim: 2, from: [x, c]}, {op: linear, out: 1}", "", "", RAW, 0},
    {&features,
     ROWS ", {op: slice, dim: 2, start: 0, stop: 1, name: d}, {op: concat, dim: 2, from: [x, d]}, "
          "{op: reshape, shape: [1, 32]}, {op: conv1d, out: 1, kernel: 2, stride: 2}",
     "", "", RAW, 0},
    /* a value that two windows read at different offsets has two weights, so it still hides */
    {&features,
     COLUMN ", {op: slice, dim: 1, start: 0, stop: 15, name: a, from: [x]}, {op: slice, dim: 1, "
            "start: 1, stop: 16, name: b, from: [x]}, {op: concat, dim: 2, from: [a, b]}, {op: "
            "reshape, shape: [1, 30]}, {op: conv1d, out: 1, kernel: 2, stride: 2}",
     "", "", PICTURE, 2},
    /* secret layers over all positions: each output depends on the whole record, no finding */
    {&features, ROWS ", {op: linear, out: 1}", "", "", 0, 0},
    /* each position is mixed with a value of its group: the output of a secret layer, or the
     * mean */
    {&features, GROUPS(4) ", {op: concat, dim: 2, from: [x, c]}, {op: linear, out: 1}", "", "", RAW,
     0},
    {&features, GROUPS(8) ", {op: concat, dim: 2, from: [x, c]}, {op: linear, out: 1}", "", "", RAW,
     0},
    {&features,
     COLUMN ", {op: reshape, shape: [4, 4]}, {op: mean, dim: 2}, {op: reshape, shape: [4, 1, 1], "
            "name: m}, {op: reshape, shape: [4, 4, 1], from: [x], name: y}, {op: scale, factor: 0, "
            "name: z}, {op: add, from: [z, m], name: c}, {op: concat, dim: 3, from: [y, c]}, "
            "{op: linear, out: 2}",
     "", "", RAW, 0},
    {&image, /* each output depends on the mean of one row */
     "{op: mean, dim: 3}, {op: reshape, shape: [1, 6, 1], name: m}, {op: scale, factor: 0, from: "
     "[input], name: z}, {op: add, from: [z, m], name: c}, {op: concat, dim: 1, from: [input, c]}, "
     "{op: conv2d, out: 2, kernel: 1}",
     "", "", RAW, 0},
    {&two_halves, /* one channel: the second half of the positions is the mean of the first half */
     "{op: slice, dim: 1, start: 0, stop: 16}, {op: reshape, shape: [1, 16], name: x}, {op: mean, "
     "dim: 2}, {op: reshape, shape: [1, 1], name: m}, {op: scale, factor: 0, from: [x], name: z}, "
     "{op: add, from: [z, m], name: c}, {op: concat, dim: 2, from: [x, c]}, {op: conv1d, out: 2, "
     "kernel: 2, dilation: 16}",
     "", "", RAW, 0},
    {&words,
     EMBEDDING ", {op: scale, factor: 1, name: e}, {op: reshape, shape: [3, 16]}, {op: linear, "
               "out: 5}, {op: reshape, shape: [3, 1, 5], name: g}, {op: reshape, shape: [3, 4, 4], "
               "from: [e], name: h}, {op: slice, dim: 3, start: 0, stop: 1}, {op: scale, factor: "
               "0, name: z}, {op: concat, dim: 3, from: [z, z, z, z, z], name: y}, {op: add, from: "
               "[y, g], name: c}, {op: concat, dim: 3, from: [h, c]}, {op: linear, out: 5}",
     "", "", TOKENS, 0},
    {&features,
     GROUPS(4) ", {op: concat, dim: 2, from: [x, c]}, {op: flatten}, {op: linear, out: 9}", "", "",
     0, 0},
    /* dropout often leaves only one of the positions that the next layer would mix */
    {&features, "{op: dropout, p: 0.9}, {op: linear, out: 5}", "", "", RAW, 0},
    {&features, "{op: dropout, p: 0.8}, {op: relu}, {op: linear, out: 5}", "", "", RAW, 0},
    {&features, "{op: dropout, p: 0.6}, {op: dropout, p: 0.6}, {op: linear, out: 5}", "", "", RAW,
     0},
    {&features, "{op: dropout, p: 0.9}, {op: linear, out: 5}", PUBLIC, "", RAW, 0},
    {&features, "{op: linear, out: 16}, {op: relu}, {op: dropout, p: 0.9}, {op: linear, out: 5}",
     "", "", 0, 0}, /* in this row, a layer before the dropout has already hidden the record */
    {&features,
     "{op: linear, out: 16, name: a}, {op: dropout, p: 0.9}, {op: linear, out: 5, name: b}",
     "weights: {folder: p, new: [b]}, ", "", KNOWN, 0},
    {&features,
     "{op: linear, out: 16, name: a}, {op: dropout, p: 0.5}, {op: linear, out: 5, name: b}",
     "weights: {folder: p, new: [b]}, ", "", 0, 0},
    {&features, "{op: dropout, p: 0.5}, {op: linear, out: 5}", "", "", 0, 0},
    {&features, "{op: dropout, p: 0.1}, {op: linear, out: 5}", "", "", 0, 0},
    {&wide, "{op: dropout, p: 0.9}, {op: linear, out: 5}", "", "", 0, 0},
    {&features,
     "{op: reshape, shape: [2, 8]}, {op: mean, dim: 2}, {op: dropout, p: 0.5}, "
     "{op: linear, out: 5}",
     /* in this row, the linear layer mixes only two elements, each the mean of 8 positions */
     "", "", RAW, 0},
    {&image, "{op: dropout, p: 0.9}, " CONV, "", "", RAW, 0},
    {&image, "{op: dropout, p: 0.5}, " CONV, "", "", PICTURE, 9},
    /* each output of the convolution sums 9 pixels of 3 channels */
    {&rgb, "{op: dropout, p: 0.5}, " CONV, "", "", PICTURE, 9},
    {&rgb,
     "{op: dropout, p: 0.9}, {op: slice, dim: 1, start: 0, stop: 1}, {op: flatten}, "
     "{op: linear, out: 5}",
     "", "", RAW, 0},
    {&steps, "{op: dropout, p: 0.97}, {op: lstm, out: 5}, {op: slice, dim: 1, start: 7, stop: 8}",
     "", "", RAW, 0},
    {&words, EMBEDDING ", {op: dropout, p: 0.1}, {op: mean, dim: 1}, {op: linear, out: 5}", "", "",
     0, 0},
    {&words, EMBEDDING ", {op: dropout, p: 0.95}, {op: flatten}, {op: linear, out: 5}", "", "",
     TOKENS, 0},
    {&words,
     EMBEDDING
     ", {op: scale, factor: 1, name: e}, {op: prepend}, {op: slice, dim: 1, start: 0, "
     "stop: 1, name: q}, {op: attention, heads: 2, p: 0.9, from: [q, e, e]}, {op: linear, "
     "out: 5}",
     "", "", TOKENS, 0},
    {&words,
     EMBEDDING
     ", {op: scale, factor: 1, name: e}, {op: prepend}, {op: slice, dim: 1, start: 0, "
     "stop: 1, name: q}, {op: attention, heads: 2, p: 0.1, from: [q, e, e]}, {op: linear, "
     "out: 5}",
     "", "", 0, 0},
    /* a flat record that the graph reshapes to an image */
    {&flat_rgb, "{op: reshape, shape: [3, 6, 6]}, {op: conv2d, out: 4, kernel: 1}", "", "", RAW, 0},
    {&flat_rgb,
     "{op: scale, factor: 2}, {op: batchnorm}, {op: reshape, shape: [3, 6, 6]}, {op: "
     "conv2d, out: 4, kernel: 1}",
     "", "", RAW, 0},
    {&flat_rgb, "{op: reshape, shape: [3, 6, 6]}, " CONV, "", "", PICTURE, 9},
    {&flat_rgb, "{op: reshape, shape: [3, 36]}, {op: conv1d, out: 4, kernel: 1}", "", "", RAW, 0},
    {&flat_rgb, "{op: reshape, shape: [36, 3]}, {op: linear, out: 4}", "", "", RAW, 0},
    {&flat_rgb,
     "{op: reshape, shape: [6, 6, 3]}, {op: permute, order: [3, 1, 2]}, {op: conv2d, out: 4, "
     "kernel: 1}",
     "", "", RAW | PICTURE, 0},
    {&flat_rgb,
     "{op: reshape, shape: [3, 6, 6], name: i}, {op: linear, out: 1, from: [input], name: t}, {op: "
     "reshape, shape: [1, 1, 1]}, {op: scale, factor: 0, name: z}, {op: add, from: [i, z]}, {op: "
     "conv2d, out: 4, kernel: 1}",
     /* in this row, a layer also reads the record before it is reshaped */
     "", "", RAW | PICTURE, 0},
    {&flat_rgb, "{op: reshape, shape: [3, 6, 6]}, {op: flatten}, {op: linear, out: 5}", "", "", 0,
     0},
    {&flat_rgb, "{op: linear, out: 5}", "", "", 0, 0},
    /* at the border, an output depends on one pixel, by the first tap of the kernel: RAW INPUT */
    {&image, "{op: conv2d, out: 2, kernel: 3, pad: 2}", "", "", RAW | PICTURE, 1},
    {&image, "{op: conv_transpose2d, out: 2, kernel: 3, stride: 2}", "", "", RAW | PICTURE, 1},
    {&image, "{op: conv_transpose2d, out: 2, kernel: 3, stride: 4, dilation: 2}", "", "",
     /* in this row, the first and the last tap of the kernel write to the same output */
     RAW | PICTURE, 1},
    {&steps, "{op: lstm, out: 5}", "", "", RAW | PICTURE, 0},
    {&words, EMBEDDING ", {op: lstm, out: 5}", "", "", TOKENS, 0},
    /* each output depends on few positions of the record: PICTURE */
    {&image, CONV, "", "", PICTURE, 9},
    {&image, CONV, "freeze: true, ", "", PICTURE, 9},
    {&image, "{op: conv2d, out: 2, kernel: 3, pad: 1}", "", "", PICTURE, 4},
    {&rgb, "{op: conv2d, out: 3, kernel: 3, groups: 3}", "", "", PICTURE, 3},
    {&rgb, CONV ", {op: conv2d, out: 8, kernel: 1}, {op: relu}", "", "", PICTURE, 9},
    {&image, CONV ", {op: conv2d, out: 2, kernel: 2}", "", "", PICTURE, 16},
    {&rgb,
     "{op: conv2d, out: 4, kernel: 2, stride: 2}, {op: reshape, shape: [4, 9]}, {op: "
     "permute, order: [2, 1]}, {op: prepend}, {op: positions, rows: 10, name: h}, " BLOCK,
     "", "", PICTURE, 4}, /* this row has the first layers of a vision transformer */
    {&image,
     LAYERS_WITHOUT_MIXING ", {op: reshape, shape: [1, 9]}, {op: conv1d, out: 2, kernel: 3}", "",
     "", PICTURE, 12},
    {&signal, "{op: conv1d, out: 2, kernel: 3}", "", "", PICTURE, 3},
    {&steps, "{op: lstm, out: 5}, {op: slice, dim: 1, start: 7, stop: 8}", "", "", 0, 0},
    {&words, TRANSPOSED_WORDS ", {op: conv1d, out: 2, kernel: 3}", "", "", TOKENS, 0},
    /* each output depends on at least half of the positions: no finding */
    {&image, LAYERS_WITHOUT_MIXING ", {op: flatten}, {op: linear, out: 5}", "", "", 0, 0},
    {&image, CONV ", {op: flatten}, {op: linear, out: 5}", "", "", 0, 0},
    {&image, "{op: conv2d, out: 2, kernel: 5}", "", "", 0, 0},
    {&features, "{op: linear, out: 5}", "", "", 0, 0},
    {&words, EMBEDDING ", {op: flatten}, {op: linear, out: 5}", "", "", 0, 0},
    {&words, EMBEDDING ", {op: lstm, out: 5}, {op: slice, dim: 1, start: 11, stop: 12}", "", "", 0,
     0},
    /* layers whose weights others know */
    {&image, CONV, PUBLIC, "", KNOWN | PICTURE, 9},
    {&image, CONV, SECRET, "", PICTURE, 9},
    {&image, CONV, SECRET, "seed: 7, ", PICTURE, 9},
    {&image, CONV, "", "seed: 7, ", KNOWN | PICTURE, 9},
    {&image, "{op: flatten}, {op: linear, out: 5}", PUBLIC, "", KNOWN, 0},
    {&image,
     "{op: flatten}, {op: linear, out: 5, name: a}, {op: relu}, {op: linear, out: 5, name: "
     "b}",
     "weights: {folder: p, new: [b]}, ", "", 0, 0},
    {&image,
     "{op: flatten}, {op: linear, out: 1, name: a}, {op: concat, dim: 1, from: [a, a]}, "
     "{op: linear, out: 5, name: b}",
     "weights: {folder: p, new: [b]}, ", "", KNOWN, 0},
    {&image, "{op: flatten}, {op: linear, out: 5, name: a}",
     PUBLIC "lora: {targets: [a], r: 2, alpha: 2}, ", "", KNOWN, 0},
    /* layers at the master over tokens */
    {&words, EMBEDDING, "", "", TOKENS, 0},
    {&words, EMBEDDING, PUBLIC, "", TOKENS, 0},
    {&words, EMBEDDING ", {op: linear, out: 5}", "", "", TOKENS, 0},
    {&words, EMBEDDING ", {op: positions, rows: 12, name: h}, " BLOCK, "", "", TOKENS, 0},
    {&words, EMBEDDING ", {op: mean, dim: 1}", "", "", TOKENS, 0},
    /* the mean of the words hides their order */
    {&words, EMBEDDING ", {op: mean, dim: 1}, {op: linear, out: 5}", "", "", 0, 0},
    {&words, "{op: embedding, rows: 9, out: 1}, {op: mean, dim: 1}, {op: linear, out: 5}", "", "",
     TOKENS, 0},
    {&words, EMBEDDING ", {op: positions, rows: 12, name: h}, " BLOCK, PUBLIC, "", TOKENS | KNOWN,
     0},
    {&words, EMBEDDING ", {op: positions, rows: 12, name: h}, " BLOCK,
     PUBLIC "lora: {targets: [q, v], r: 2, alpha: 2}, ", "", TOKENS | KNOWN, 0},
    {&words, EMBEDDING ", {op: conv1d, out: 12, kernel: 3, pad: 1, groups: 12}", "", "", TOKENS, 0},
    {&words, TRANSPOSED_WORDS ", {op: conv1d, out: 4, kernel: 1}", "", "", TOKENS, 0},
    {&words, TRANSPOSED_WORDS ", {op: conv_transpose1d, out: 4, kernel: 1}", "", "", TOKENS, 0},
    {&words, TRANSPOSED_WORDS ", {op: conv1d, out: 4, kernel: 3, dilation: 12, pad: 12}", "", "",
     TOKENS, 0},
    {&words, TRANSPOSED_WORDS ", {op: reshape, shape: [4, 12, 1]}, {op: conv2d, out: 4, kernel: 1}",
     "", "", TOKENS, 0},
    {&words,
     "{op: embedding, rows: 9, out: 4, name: e}, {op: scale, factor: 2, name: f}, {op: "
     "add, from: [e, f]}, {op: linear, out: 5}",
     "", "", TOKENS, 0},
    {&words, EMBEDDING ", {op: lstm, out: 5}", PUBLIC, "", TOKENS | KNOWN, 0},
    {&single_value, EMBEDDING ", {op: lstm, out: 5}", "", "", TOKENS, 0},
};

static void front_findings_match_the_table(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(fronts); i++) {
    const front_case *r = &fronts[i];
    CLV_AUTO(clv_bytes_done) clv_bytes stages = {0};
    clv_bytes_printf(&stages,
                     "  - {name: front, at: master, %slayers: [%s]}\n"
                     "  - {name: middle, at: w1, layers: [" MIDDLE "]}\n" HEAD,
                     r->other_layers, r->first_layers);
    CLV_AUTO(clv_session_config_freep)
    clv_session_config *c = parse_session(ALL, r->train_keys, stages.data);
    CLV_AUTO(clv_blueprint_freep) clv_blueprint *b = make_blueprint(c, r->sample_shape);
    char finding_words[CLV_FINDINGS_TEXT_BYTES];
    clv_narrowest_element share = b->stages[0].narrowest_picture_element;
    if (b->stages[0].output_findings != r->wanted_findings ||
        b->egress[0].findings != r->wanted_findings ||
        (r->min_positions && share.n_source_positions != r->min_positions))
      fail_msg("%s %s %s: shows %s, %lld of %lld", r->first_layers, r->other_layers, r->train_keys,
               clv_findings_format(b->stages[0].output_findings, finding_words),
               (long long)share.n_source_positions, (long long)share.n_total_positions);
    /* the worker's layers hide nothing, so RAW and KNOWN stay; PICTURE may end, because each output
     * of the worker may depend on more positions */
    assert_int_equal(b->stages[1].output_findings & (RAW | KNOWN),
                     r->wanted_findings & (RAW | KNOWN));
  }
}

/* The front adds the input to the output of its convolution. Each addend is a path with its own
 * finding, and one addend is the record itself. */
static void each_addend_is_checked_as_its_own_path(void **state) {
  (void)state;
  static const char *const want[] = {"RAW INPUT", "PICTURE"};
  for (int has_skip = 0; has_skip < 2; has_skip++) {
    CLV_AUTO(clv_session_config_freep)
    clv_session_config *c =
        parse_session(ALL, "", "  - {name: front, at: master, layers: [" CONV "]}\n");
    clv_shape in = {4, {8, 1, 6, 6}};
    clv_attrs conv = {.out = 1,
                      .kernel = {3, 3},
                      .stride = {1, 1},
                      .pad = {1, 1},
                      .dilation = {1, 1},
                      .groups = 1};
    clv_blueprint b = {.config = c, .n_stages = 1, .inputs = clv_model_describe_input(c, &image)};
    clv_stage_plan stages[2] = {{.worker = -1}, {.worker = 0}};
    char text[CLV_FINDINGS_TEXT_BYTES];
    clv_findings cuts[2], heads[2];
    int x, y, z;
    clv_err err;
    b.stages = stages;
    assert_int_equal(clv_graph_new(&b.full_graph, &err), CLV_OK);
    assert_int_equal(clv_graph_add_input(b.full_graph, "input", CLV_F32, &in, &x, &err), CLV_OK);
    assert_int_equal(clv_graph_add(b.full_graph, CLV_OP_CONV2D, &conv, "", 0, &x, 1, &y, &err),
                     CLV_OK);
    assert_int_equal(clv_graph_add(b.full_graph, CLV_OP_ADD, &(clv_attrs){0}, "", 1,
                                   (int[]){y, has_skip ? y : x}, 2, &z, &err),
                     CLV_OK);
    stages[0].last_layer = 1;
    stages[0].graph = b.full_graph;
    assert_int_equal(clv_params_make(b.full_graph, &stages[0].params, &err), CLV_OK);
    assert_int_equal(clv_privacy_analyze(&b, &err), CLV_OK);
    assert_string_equal(clv_findings_format(stages[0].output_findings, text), want[has_skip]);
    assert_int_equal(clv_privacy_find_cut_findings(&b, cuts, heads, &err), CLV_OK);
    assert_int_equal(cuts[0],
                     has_skip ? CLV_FINDING_PICTURE : CLV_FINDING_RAW_INPUT | CLV_FINDING_PICTURE);
    clv_params_free(stages[0].params);
    clv_graph_free(b.full_graph);
  }
}

/* Marks node `name` of the model as one whose weights are in the ledger, the list of what workers
 * have received. */
static void mark_layer_known(clv_blueprint *b, const char *name) {
  clv_err err;
  assert_int_equal(
      clv_alloc((size_t)b->full_graph->n_nodes, sizeof *b->known_reasons, &b->known_reasons, &err),
      CLV_OK);
  for (int k = 0; k < b->full_graph->n_nodes; k++)
    if (strcmp(b->full_graph->nodes[k].name, name) == 0)
      assert_int_equal(
          clv_strdup("was at 'spiffe://t/w1' in an earlier session", &b->known_reasons[k], &err),
          CLV_OK);
  assert_int_equal(clv_privacy_analyze(b, &err), CLV_OK);
  assert_int_equal(clv_blueprint_make_egress_table(b, &err), CLV_OK);
}

/* A layer that a worker has received once is not secret, whatever the session file says. */
static void layer_once_sent_to_a_worker_is_no_longer_secret(void **state) {
  (void)state;
  static const char stages[] = "  - {name: front, at: master, layers: [" CONV
                               "]}\n  - {name: middle, at: w1, layers: [" MIDDLE "]}\n" HEAD;
  clv_err err;
  for (int is_permitted = 0; is_permitted < 2; is_permitted++) {
    CLV_AUTO(clv_session_config_freep)
    clv_session_config *c = parse_session(is_permitted ? ALL : "", "", stages);
    CLV_AUTO(clv_blueprint_freep) clv_blueprint *b = make_blueprint(c, &image);
    assert_int_equal(b->egress[0].findings, PICTURE);
    assert_int_equal(b->egress[0].n_hiding_layers, 1);
    mark_layer_known(b, "0");
    clv_code code = clv_blueprint_check_privacy(b, &err);
    assert_int_equal(code, is_permitted ? CLV_OK : CLV_INVALID);
    if (!is_permitted) assert_non_null(strstr(err.text, "0 was at 'spiffe://t/w1' in an earlier"));
    if (!is_permitted) continue;
    assert_int_equal(b->egress[0].findings, KNOWN | PICTURE);
    assert_int_equal(b->egress[0].n_hiding_layers, 0);
  }
}

/* ---- layers that hide labels in gradients ---------------------------------------------------- */

typedef struct head_case {
  const char *first_layers, *other_layers, *train_keys;
  /* number of the head's layers that hide labels; 0: labels are readable */
  uint32_t n_hiding_layers;
} head_case;

static const head_case heads[] = {
    {"{op: relu}", "", "", 0},
    {"{op: layernorm}, {op: dropout, p: 0.5}", "", "", 0},
    {"{op: linear, out: 3}", "", "", 1},
    {"{op: linear, out: 3}, {op: relu}", "", "", 1},
    {"{op: linear, out: 4}, {op: relu}, {op: linear, out: 3}", "", "", 2},
    {"{op: linear, out: 3}", "freeze: true, ", "", 0},
    {"{op: linear, out: 3}", "", "freeze: [\"head.*\"], ", 1},
    {"{op: linear, out: 3, name: head}", "", "freeze: [\"head.weight\"], ", 0},
    {"{op: linear, out: 3}", "weights: {file: p}, ", "", 0},
    {"{op: linear, out: 3}", "weights: {file: p, secret: true}, ", "", 1},
    {"{op: linear, out: 3}", "weights: {file: p, secret: true}, freeze: true, ", "", 0},
    {"{op: linear, out: 3}", "", "seed: 7, ", 0},
    /* the head applies a layer to each output separately */
    {"{op: reshape, shape: [6, 1]}, {op: linear, out: 1}, {op: flatten}", "", "", 0},
    {"{op: reshape, shape: [1, 6]}, {op: conv1d, out: 1, kernel: 1}, {op: flatten}", "", "", 0},
    {"{op: reshape, shape: [6, 1]}, {op: conv1d, out: 6, kernel: 1, groups: 6}, {op: flatten}", "",
     "", 0},
    {"{op: reshape, shape: [1, 6]}, {op: conv1d, out: 1, kernel: 3, dilation: 6, pad: 6}, "
     "{op: flatten}",
     "", "", 0},
    {"{op: reshape, shape: [1, 6]}, {op: conv1d, out: 1, kernel: 3, pad: 1}, {op: flatten}", "", "",
     1},
    {"{op: flatten, name: h}, {op: linear, out: 6, name: y}, {op: add, from: [h, y]}", "", "", 0},
    {"{op: linear, out: 3, name: y}, {op: scale, factor: 0, name: z}, {op: concat, dim: 1, from: "
     "[y, z]}",
     "", "", 1},
    /* dropout may leave the gradient of a single output */
    {"{op: linear, out: 3}, {op: dropout, p: 0.9}", "", "", 0},
    {"{op: dropout, p: 0.9}, {op: linear, out: 3}", "", "", 1},
    /* the sign of the gradient stays readable, which `plan` reports */
    {"{op: linear, out: 1}", "", "", 1},
};

static void check_head(const head_case *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes stages = {0};
  bool is_unused = strstr(r->train_keys, "head.*") != NULL; /* each glob must match something */
  clv_bytes_printf(&stages,
                   "  - {name: front, at: master, layers: [{op: conv2d, out: 2, kernel: 3, "
                   "name: %s}]}\n"
                   "  - {name: middle, at: w1, layers: [" MIDDLE
                   "]}\n"
                   "  - {name: tail, at: master, %slayers: [%s]}\n",
                   is_unused ? "head" : "front", r->other_layers, r->first_layers);
  CLV_AUTO(clv_session_config_freep)
  clv_session_config *c = parse_session(ALL, r->train_keys, stages.data);
  CLV_AUTO(clv_blueprint_freep) clv_blueprint *b = make_blueprint(c, &image);
  clv_finding want = r->n_hiding_layers ? CLV_FINDING_MIXED : CLV_FINDING_LABELS_READABLE;
  if (b->stages[1].n_head_layers != r->n_hiding_layers || b->stages[1].gradient_findings != want)
    fail_msg("%s %s %s: %u layers hide", r->first_layers, r->other_layers, r->train_keys,
             b->stages[1].n_head_layers);
}

static void head_findings_match_the_table(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(heads); i++) check_head(&heads[i]);
}

/* ---- findings about records in gradients ----------------------------------------------------- */

typedef struct gradient_findings_case {
  const clv_shape *sample_shape;
  const char *front_layers,
      *head_layers; /* w1 computes `back` from the front's output, between front and head */
  clv_findings wanted_findings; /* findings about records in the gradient for `back` */
} gradient_findings_case;

#define FLAT "{op: flatten}, {op: linear, out: 16}"
#define IMAGE "{op: flatten}, {op: linear, out: 36}, {op: reshape, shape: [1, 6, 6]}"
#define WORDS EMBEDDING ", {op: flatten}, {op: linear, out: 48}, {op: reshape, shape: [12, 4]}"
#define MADE_LAYER "{op: linear, out: 16, from: [input], name: made}"
#define END ", {op: flatten}, {op: linear, out: 8}, {op: relu}, {op: linear, out: 3}"

static const gradient_findings_case gradient_cases[] = {
    /* the head reads `back` and the value that was sent */
    {&features, FLAT, "{op: relu, from: [back]}" END, 0},
    {&features, FLAT ", {op: relu, name: sent}", "{op: add, from: [back, sent]}, {op: relu}" END,
     0},
    {&features, FLAT ", {op: relu, name: sent}", "{op: mul, from: [back, sent]}" END, 0},
    /* the gradient contains the other factor of the product */
    {&features, FLAT, "{op: mul, from: [back, input]}" END, RAW},
    {&features, FLAT, "{op: mul, from: [input, back]}" END, RAW},
    {&features, FLAT,
     "{op: linear, out: 16, from: [back], name: y}, {op: mul, from: [y, input]}" END, 0},
    {&features, FLAT, "{op: silu, from: [input], name: y}, {op: mul, from: [back, y]}" END, RAW},
    {&features, FLAT, MADE_LAYER ", {op: mul, from: [back, made]}" END, 0},
    {&features, FLAT,
     "{op: reshape, shape: [1, 16], from: [input], name: x}, {op: reshape, shape: [16, 1], from: "
     "[back], name: y}, {op: matmul, from: [x, y]}" END,
     RAW},
    {&image, IMAGE, "{op: mul, from: [back, input]}, {op: globalavgpool}" END, RAW},
    {&image, IMAGE,
     "{op: conv2d, out: 1, kernel: 3, pad: 1, from: [input], name: y}, {op: mul, from: [back, "
     "y]}" END,
     PICTURE},
    {&words, WORDS,
     "{op: embedding, rows: 9, out: 4, from: [input], name: y}, {op: mul, from: [back, y]}" END,
     TOKENS},
    {&steps, "{op: flatten}, {op: linear, out: 32}, {op: reshape, shape: [8, 4]}",
     "{op: attention, heads: 2, from: [input, input, back]}" END, RAW},
    {&steps, "{op: flatten}, {op: linear, out: 32}, {op: reshape, shape: [8, 4]}",
     "{op: attention, heads: 2, from: [back, input, back]}" END, RAW},
    /* derivatives that depend on the value of their input: those of relu, of maxima and of curves
     * */
    {&features, FLAT, "{op: add, from: [back, input]}" END, 0},
    {&features, FLAT, "{op: add, from: [back, input]}, {op: relu}" END, RAW},
    {&features, FLAT, "{op: add, from: [back, input]}, {op: tanh}" END, RAW},
    {&features, FLAT, "{op: add, from: [back, input]}, {op: layernorm}" END, RAW},
    {&features, FLAT, "{op: add, from: [back, input]}, {op: softmax}" END, RAW},
    {&features, FLAT, MADE_LAYER ", {op: add, from: [back, made]}, {op: relu}" END, 0},
    /* softmax reads both halves, so the half that slice drops also gets a gradient, which reads the
     * input */
    {&features, FLAT,
     "{op: linear, out: 16, from: [back], name: u}, {op: add, from: [back, input], name: v}, "
     "{op: concat, dim: 1, from: [u, v]}, {op: softmax}, {op: slice, dim: 1, stop: 16}" END,
     RAW},
    {&image, IMAGE,
     "{op: concat, dim: 1, from: [back, input]}, {op: maxpool, kernel: 2}, {op: flatten}" END, 0},
    {&image, IMAGE, "{op: concat, dim: 3, from: [back, input]}, {op: maxpool, kernel: [1, 12]}" END,
     RAW},
    {&steps, "{op: flatten}, {op: linear, out: 32}, {op: reshape, shape: [8, 4]}",
     "{op: add, from: [back, input]}, {op: lstm, out: 5}" END, 0},
    /* here the loss reads the network's output: the sum with the input, then a layer without it */
    {&features, FLAT, "{op: add, from: [back, input]}", RAW},
    {&features, FLAT, "{op: linear, out: 16, from: [back]}", 0},
};

static void check_gradient_findings(const gradient_findings_case *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes stages = {0};
  clv_bytes_printf(&stages,
                   "  - {name: front, at: master, layers: [%s]}\n"
                   "  - {name: middle, at: w1, layers: [{op: scale, factor: 2, name: back}]}\n"
                   "  - {name: head, at: master, layers: [%s]}\n",
                   r->front_layers, r->head_layers);
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = parse_session(ALL, "", stages.data);
  CLV_AUTO(clv_blueprint_freep) clv_blueprint *b = make_blueprint(c, r->sample_shape);
  clv_findings got = b->stages[1].gradient_findings & ~(clv_findings)CLV_FINDING_LABELS_READABLE;
  char words_got[CLV_FINDINGS_TEXT_BYTES];
  if (got != r->wanted_findings)
    fail_msg("%s: '%s'", r->head_layers, clv_findings_format(got, words_got));
}

static void gradient_findings_match_the_table(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(gradient_cases); i++)
    check_gradient_findings(&gradient_cases[i]);
}

/* ---- sessions that are refused --------------------------------------------------------------- */

static void assert_refused(const clv_shape *sample, const char *privacy, const char *stages,
                           const char *want) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = parse_session(privacy, "", stages);
  clv_blueprint *b = NULL;
  clv_err err = {0};
  if (clv_blueprint_new(c, sample, CLV_I64, &b, &err) == CLV_OK) fail_msg("no: %s", want);
  assert_int_equal(err.code, CLV_INVALID);
  assert_string_equal(err.text, want);
}

static const char old_demo_stages[] = "  - {name: front, at: master, layers: [" CONV
                                      "]}\n"
                                      "  - {name: middle, at: w1, layers: [" MIDDLE
                                      "]}\n"
                                      "  - {name: tail, at: w2, layers: [{op: linear, out: 3}]}\n";

static void refusal_names_the_path_and_both_remedies(void **state) {
  (void)state;
  assert_refused(
      &image, "", old_demo_stages,
      "/s.yaml:14:22: stage 'tail' at 'w2' can read the labels from its gradient: no linear, "
      "conv2d, lstm, conv1d, conv_transpose2d, conv_transpose1d or gru that learns from secret "
      "first "
      "values and sums the gradients of two outputs is on the path to the loss; end "
      "with such a layer at master, or set privacy.labels_readable: true; the path: of no layer "
      "at all");
  assert_refused(
      &image, "",
      "  - {name: front, at: master, layers: [{op: scale, factor: 2}, {op: relu}]}\n"
      "  - {name: middle, at: w1, layers: [" MIDDLE "]}\n" HEAD,
      "/s.yaml:13:24: worker 'w1' is sent the records in all but name by stage 'front': no "
      "linear, conv2d, lstm, conv1d, conv_transpose2d, conv_transpose1d or gru with secret first "
      "values that sums two places is on the path; put one there, at "
      "master, or set privacy.raw_input_leaves: true; the path: 0 (scale) -> 1 (relu)");
  assert_refused(
      &image, "labels_readable: true",
      "  - {name: front, at: master, weights: {file: p}, layers: [" CONV
      "]}\n"
      "  - {name: middle, at: w1, layers: [" MIDDLE "]}\n",
      "/s.yaml:13:24: worker 'w1' is sent records that only known weights have mixed by stage "
      "'front': no linear, conv2d, lstm, conv1d, conv_transpose2d, conv_transpose1d or gru with "
      "secret first values that sums two places is on the path; put one "
      "there, at master, or set privacy.front_known: true; the path: 0 (conv2d); 0 has weights "
      "from a file that is not declared secret: true");
}

static void refusal_names_the_path_of_token_vectors(void **state) {
  (void)state;
  assert_refused(
      &words, "",
      "  - {name: front, at: master, layers: [{op: embedding, rows: 9, out: 4}]}\n"
      "  - {name: middle, at: w1, layers: [" MIDDLE "]}\n" HEAD,
      "/s.yaml:13:24: worker 'w1' is sent one vector per token by stage 'front': no linear, "
      "conv2d, lstm, conv1d, conv_transpose2d, conv_transpose1d or gru with secret first values "
      "that sums "
      "two places is on the path; put one there, at master, or "
      "set privacy.tokens_readable: true; the path: 0 (embedding)");
  assert_refused(
      &words, "",
      "  - {name: front, at: master, layers: [{op: embedding, rows: 9, out: 4}, {op: lstm, "
      "out: 4}, {op: mean, dim: 1}]}\n"
      "  - {name: middle, at: w1, layers: [" MIDDLE "]}\n" HEAD,
      "/s.yaml:13:24: worker 'w1' is sent one vector per text, made of those of its tokens, by "
      "stage 'front': no linear, conv2d, lstm, conv1d, conv_transpose2d, conv_transpose1d or gru "
      "with secret first values that sums two places is on the path; put one there, at master, "
      "or set privacy.tokens_readable: true; the path: 0 (embedding) -> 1 (lstm) -> 2 (mean); "
      "1 sums one place alone in some outputs (a border, a first step, a group)");
}

static void refusal_names_the_layer_whose_derivative_reads_records(void **state) {
  (void)state;
  assert_refused(
      &features, "",
      "  - {name: front, at: master, layers: [" FLAT
      "]}\n"
      "  - {name: middle, at: w1, layers: [{op: scale, factor: 2, name: back}]}\n"
      "  - {name: head, at: master, layers: [{op: mul, from: [back, input], name: gate}" END "]}\n",
      "/s.yaml:13:24: worker 'w1' is sent the records in all but name in the gradient for "
      "stage 'middle': the derivative of gate (mul) reads them; put a linear, conv2d, lstm, "
      "conv1d, conv_transpose2d, conv_transpose1d or gru with secret first values that sums two "
      "places between the records and gate (mul), at master, or set "
      "privacy.raw_input_leaves: true");
}

static void refusals_name_dropout(void **state) {
  (void)state;
  assert_refused(
      &features, "",
      "  - {name: front, at: master, layers: [{op: dropout, p: 0.9}, {op: linear, out: 5}]}\n"
      "  - {name: middle, at: w1, layers: [" MIDDLE "]}\n" HEAD,
      "/s.yaml:13:24: worker 'w1' is sent the records in all but name by stage 'front': no "
      "linear, conv2d, lstm, conv1d, conv_transpose2d, conv_transpose1d or gru with secret first "
      "values that sums two places is on the path; put one there, at master, or set "
      "privacy.raw_input_leaves: true; the path: 0 (dropout) -> 1 (linear); 1 is often left "
      "with one value alone by the dropout in front of it");
}

static void each_privacy_key_permits_only_its_findings(void **state) {
  static const clv_findings all = 2 * CLV_FINDING_LABELS - 1;
  static const clv_findings want[5] = {
      CLV_FINDING_PICTURE, CLV_FINDING_PICTURE | CLV_FINDING_FRONT_KNOWN,
      CLV_FINDING_PICTURE | CLV_FINDING_TOKENS | CLV_FINDING_FRONT_KNOWN,
      CLV_FINDING_PICTURE | CLV_FINDING_FRONT_KNOWN | CLV_FINDING_TOKENS | CLV_FINDING_RAW_INPUT,
      CLV_FINDING_PICTURE | CLV_FINDING_LABELS_READABLE};
  (void)state;
  for (int i = 0; i < 5; i++) {
    clv_session_config c = {.privacy = {.front_known = i == 1,
                                        .tokens_readable = i == 2,
                                        .raw_input_leaves = i == 3,
                                        .labels_readable = i == 4}};
    assert_int_equal(clv_privacy_forbidden_findings(&c, all), all & ~want[i]);
  }
}

/* ---- texts of `plan` ------------------------------------------------------------------------- */

static void assert_plan_text(const char *privacy, const char *train, const char *stages,
                             const char *text, const char *json) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = parse_session(privacy, train, stages);
  CLV_AUTO(clv_blueprint_freep) clv_blueprint *b = make_blueprint(c, &image);
  CLV_AUTO(clv_bytes_done) clv_bytes got = {0}, object = {0};
  clv_privacy_describe(b, false, &got);
  clv_privacy_describe(b, true, &object);
  assert_string_equal(got.data, text);
  assert_string_equal(object.data, json);
}

static void plan_reports_label_and_record_exposure(void **state) {
  (void)state;
  assert_plan_text(
      "", "",
      "  - {name: front, at: master, layers: [" CONV
      "]}\n"
      "  - {name: middle, at: w1, layers: [" MIDDLE "]}\n" HEAD,
      "labels: not sent; they can be inferred: 1 secret layer behind stage 'middle', and "
      "gradients gave 99.98 % of Fashion-MNIST's labels behind one, 91.9 % behind two\n"
      "records: PICTURE: some value that is sent is made of 9 of the 36 places of a record, "
      "so what is sent may look like the record\n",
      "{\"labels\":\"inferable\",\"head_layers\":1,\"single_output\":false,"
      "\"records\":\"picture\",\"findings\":[\"picture\"],"
      "\"picture\":{\"min_places\":9,\"least\":9,\"places\":36},\"seed_guessable\":false}");
  assert_plan_text(
      "labels_readable: true, front_known: true", "seed: 7, ", old_demo_stages,
      "labels: READABLE by w2 from the gradient for stage 'tail' "
      "(privacy.labels_readable)\n"
      "records: FRONT KNOWN: on some path only known weights have mixed what is sent "
      "(privacy.front_known)\n"
      "records: PICTURE: some value that is sent is made of 9 of the 36 places of a record, "
      "so what is sent may look like the record\n"
      "train.seed can be tried out: weights that are drawn from it count as known\n",
      "{\"labels\":\"readable\",\"head_layers\":0,\"single_output\":false,"
      "\"records\":\"front_known\",\"findings\":[\"front_known\",\"picture\"],"
      "\"picture\":{\"min_places\":9,\"least\":9,\"places\":36},\"seed_guessable\":true}");
  assert_plan_text(
      "", "", "  - {name: a, at: master, layers: [{op: flatten}, {op: linear, out: 3}]}\n",
      "labels: stay on the master; no worker is sent a gradient\n"
      "records: stay on the master\n",
      "{\"labels\":\"stay\",\"head_layers\":0,\"single_output\":false,\"records\":\"stay\","
      "\"findings\":[],"
      "\"seed_guessable\":false}");
}

#define TOKENS_TEXT "records: TOKENS: one vector per token is sent (privacy.tokens_readable), by "
#define PUBLISHED "published: 59 % behind two blocks, 35 % behind eight (arXiv 2602.16760)"

static void assert_front(const char *weights, const char *train, const char *layers,
                         const char *text, const char *json) {
  CLV_AUTO(clv_bytes_done) clv_bytes stages = {0}, got = {0}, object = {0};
  clv_bytes_printf(&stages,
                   "  - {name: front, at: master, %slayers: [%s]}\n"
                   "  - {name: middle, at: w1, layers: [" MIDDLE "]}\n" HEAD,
                   weights, layers);
  CLV_AUTO(clv_session_config_freep)
  clv_session_config *c =
      parse_session("tokens_readable: true, labels_readable: true", train, stages.data);
  CLV_AUTO(clv_blueprint_freep) clv_blueprint *b = make_blueprint(c, &words);
  clv_privacy_describe(b, false, &got);
  clv_privacy_describe(b, true, &object);
  if (!strstr(got.data, text) || !strstr(got.data, PUBLISHED)) fail_msg("%s", got.data);
  if (!strstr(object.data, json)) fail_msg("%s", object.data);
}

/* If others can compute the front, all tokens are readable. */
static void plan_reports_token_exposure_by_front_secrecy(void **state) {
  (void)state;
  static const char embedding_only[] = "{op: embedding, rows: 9, out: 4}",
                    embedding_and_linear[] =
                        "{op: embedding, rows: 9, out: 4}, {op: linear, out: 5}";
  static const char text_of_known_layers[] =
      TOKENS_TEXT "layers whose weights are known: with these, 92 %",
                    text_of_secret_layers[] =
                        TOKENS_TEXT "layers with secret weights: with the words of ten pages, 54 %";
  static const char json_of_known_layers[] =
      "\"records\":\"tokens\",\"findings\":[\"tokens\"],\"front\":\"known\",",
                    json_of_secret_layers[] =
                        "\"records\":\"tokens\",\"findings\":[\"tokens\"],\"front\":\"secret\",";
  assert_front("", "", embedding_only, text_of_secret_layers, json_of_secret_layers);
  assert_front("weights: {file: p}, ", "", embedding_only, text_of_known_layers,
               json_of_known_layers);
  assert_front("", "", "{op: embedding, rows: 9, out: 4}, {op: mean, dim: 1}",
               "records: TOKENS: one vector per text is sent, made of those of its tokens "
               "(privacy.tokens_readable), by layers with secret weights: with the words of ten "
               "pages, 54 % of tokens were read off behind the first block of a LayoutLM that "
               "sends one per token",
               json_of_secret_layers);
  assert_front("weights: {file: p, secret: true}, ", "", embedding_and_linear,
               text_of_secret_layers, json_of_secret_layers);
  assert_front("", "seed: 7, ", embedding_and_linear, text_of_known_layers, json_of_known_layers);
  assert_front("weights: {folder: p, new: [\"1\"]}, ", "", embedding_and_linear,
               text_of_secret_layers, json_of_secret_layers);
}

/* ---- an attack that infers labels from gradients --------------------------------------------- */

enum { SAMPLES = 600, CLASSES = 10, HEADS = 16 };

typedef struct attacked_step {
  float h[SAMPLES][CLASSES], label_gradients[SAMPLES][CLASSES];
  int64_t labels[SAMPLES];
} attacked_step;

static uint32_t next_random(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 8;
}

static void draw_weights(clv_graph *g, const clv_params *p, uint64_t seed, void *values) {
  clv_err err;
  for (int i = 0; i < g->n_nodes; i++)
    assert_int_equal(clv_key_derive("layer", &(clv_key){{0}}, (uint64_t[]){seed, (uint64_t)i},
                                    2 * sizeof(uint64_t), &g->nodes[i].key, &err),
                     CLV_OK);
  clv_params_init(g, p, values);
}

/* Computes the gradient for a worker's output, with n_head_layers linear layers at the master. */
static void train_step(int n_head_layers, uint64_t seed, attacked_step *v) {
  static float values[16384], grads[16384];
  clv_graph *g;
  clv_params *p;
  clv_plan *plan;
  clv_call *call;
  clv_err err;
  float loss, loss_gradient = 1;
  int x, y, z;
  clv_attrs linear = {.out = CLASSES, .bias = true};
  assert_int_equal(clv_graph_new(&g, &err), CLV_OK);
  assert_int_equal(
      clv_graph_add_input(g, "h", CLV_F32, &(clv_shape){2, {SAMPLES, CLASSES}}, &x, &err), CLV_OK);
  assert_int_equal(clv_graph_add_input(g, "labels", CLV_I64, &(clv_shape){1, {SAMPLES}}, &y, &err),
                   CLV_OK);
  for (int i = 0; i < n_head_layers; i++)
    assert_int_equal(clv_graph_add(g, CLV_OP_LINEAR, &linear, "", (uint32_t)i, &x, 1, &x, &err),
                     CLV_OK);
  assert_int_equal(clv_graph_add(g, CLV_OP_CROSS_ENTROPY, &(clv_attrs){.ignore_index = -100}, "", 9,
                                 (int[]){x, y}, 2, &z, &err),
                   CLV_OK);
  assert_int_equal(clv_params_make(g, &p, &err), CLV_OK);
  assert_true(p->total_bytes <= sizeof values);
  draw_weights(g, p, seed, values);
  clv_plan_options o = {.backend = clv_backend_cpu(),
                        .dtype = CLV_F32,
                        .batch = SAMPLES,
                        .training = true,
                        .needs_input_grad = {true},
                        .threads = 1};
  assert_int_equal(clv_plan_new(g, p, &o, &plan, &err), CLV_OK);
  assert_int_equal(clv_plan_call_get(plan, &call, &err), CLV_OK);
  assert_int_equal(clv_plan_forward(plan, call, values, 1, (const void *[]){v->h, v->labels}, true,
                                    &loss, &(clv_rng_key){0}, &err),
                   CLV_OK);
  assert_int_equal(
      clv_plan_backward_input(plan, call, values, &loss_gradient,
                              (void *[]){v->label_gradients, NULL}, grads, false, &err),
      CLV_OK);
  clv_plan_call_put(plan, call);
  clv_plan_free(plan);
  clv_params_free(p);
  clv_graph_free(g);
}

/* Returns the share of labels that the sign of the gradient reveals: softmax minus one-hot is
 * negative only at the label. */
static double measure_reading_by_sign(const attacked_step *v) {
  int n_right = 0;
  for (int i = 0; i < SAMPLES; i++) {
    int lowest_class = 0;
    for (int k = 1; k < CLASSES; k++)
      if (v->label_gradients[i][k] < v->label_gradients[i][lowest_class]) lowest_class = k;
    n_right += lowest_class == v->labels[i];
  }
  return (double)n_right / SAMPLES;
}

static double compute_cosine(const float *a, const float *b) {
  double ab = 0, aa = 0, bb = 0;
  for (int k = 0; k < CLASSES; k++) {
    ab += (double)a[k] * b[k];
    aa += (double)a[k] * a[k];
    bb += (double)b[k] * b[k];
  }
  return ab / sqrt(aa * bb);
}

/* Returns the share of labels that an attacker infers who knows one label per class, those of the
 * first ten rows: each other row gets the label of the known row whose gradient has the nearest
 * direction. */
static double measure_inference_by_direction(const attacked_step *v) {
  int n_right = 0;
  for (int i = CLASSES; i < SAMPLES; i++) {
    int nearest = 0;
    for (int k = 1; k < CLASSES; k++)
      if (compute_cosine(v->label_gradients[i], v->label_gradients[k]) >
          compute_cosine(v->label_gradients[i], v->label_gradients[nearest]))
        nearest = k;
    n_right += v->labels[nearest] == v->labels[i];
  }
  return (double)n_right / (SAMPLES - CLASSES);
}

static void u_shape_stops_reading_but_not_inferring_labels(void **state) {
  static attacked_step v;
  uint32_t rng_state = 1;
  (void)state;
  for (int i = 0; i < SAMPLES; i++) {
    v.labels[i] = i < CLASSES ? i : (int64_t)(next_random(&rng_state) % CLASSES);
    for (int k = 0; k < CLASSES; k++) v.h[i][k] = (float)next_random(&rng_state) / (1 << 23) - 1;
  }
  train_step(0, 1, &v);
  assert_true(measure_reading_by_sign(&v) == 1);
  double read_share = 0, inferred_share = 1;
  for (uint64_t seed = 1; seed <= HEADS; seed++) {
    train_step(1, seed, &v);
    read_share += measure_reading_by_sign(&v) / HEADS;
    inferred_share = fmin(inferred_share, measure_inference_by_direction(&v));
  }
  print_message("U shape: %.1f %% by sign, %.1f %% by direction with one known label a class\n",
                100 * read_share, 100 * inferred_share);
  assert_true(read_share < 0.2); /* guessing one of ten classes is right in a tenth of the cases */
  /* labels can be inferred, so no text may promise that they are safe */
  assert_true(inferred_share > 0.9);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(front_findings_match_the_table),
      cmocka_unit_test(each_addend_is_checked_as_its_own_path),
      cmocka_unit_test(layer_once_sent_to_a_worker_is_no_longer_secret),
      cmocka_unit_test(head_findings_match_the_table),
      cmocka_unit_test(gradient_findings_match_the_table),
      cmocka_unit_test(refusal_names_the_path_and_both_remedies),
      cmocka_unit_test(refusal_names_the_path_of_token_vectors),
      cmocka_unit_test(refusal_names_the_layer_whose_derivative_reads_records),
      cmocka_unit_test(refusals_name_dropout),
      cmocka_unit_test(each_privacy_key_permits_only_its_findings),
      cmocka_unit_test(plan_reports_label_and_record_exposure),
      cmocka_unit_test(plan_reports_token_exposure_by_front_secrecy),
      cmocka_unit_test(u_shape_stops_reading_but_not_inferring_labels),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

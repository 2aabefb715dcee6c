/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes what `status` shows of the answers of workers. The input has two answers of each worker,
 * one after the other, each after its length in two bytes. An answer that cannot be decoded is
 * shown as an error's text. The answers may be followed by an empty piece and a piece about the
 * sealed copy of a checkpoint: whether the copy exists, its step, and an error text. The shown text
 * must be printable ASCII in lines of the width. The JSON must have no control characters and one
 * line per worker.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/watch/status_int.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char session_text[] =
    "version: 1\nname: films\ntls: {ca: a, cert: b, key: c}\n"
    "workers:\n"
    "  w1: {address: 'h:1', identity: 'spiffe://c/w1'}\n"
    "  w2: {address: 'h:2', identity: 'spiffe://c/w2'}\n"
    "  w3: {address: 'h:3', identity: 'spiffe://c/w3'}\n"
    "data: {format: idx, train: [a, b]}\n"
    "stages:\n"
    "- {name: front, at: master, layers: [{op: relu}]}\n"
    "- {name: middle, at: w1, layers: [{op: relu}]}\n"
    "- {name: back, at: w2, layers: [{op: linear, out: 2}]}\n"
    "loss: {kind: cross_entropy}\n"
    "train: {batch: 1, optimizer: {kind: sgd, lr: 0.1}}\n";
enum { WORKERS = 3 };
static clv_session_config *config;

static void free_config(void) { clv_session_config_free(config); }

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  NEVER(clv_session_config_parse("/s.yaml", session_text, sizeof session_text - 1, NULL, &config,
                                 NULL) != CLV_OK);
  return atexit(free_config);
}

static void check_text(const clv_bytes *text, unsigned width) {
  unsigned column = 0;
  for (size_t i = 0; i < text->len; i++) {
    unsigned char c = (unsigned char)text->data[i];
    column = c == '\n' ? 0 : column + 1;
    NEVER(column > width || (c != '\n' && (c < 0x20 || c >= 0x7f)));
  }
}

static void check_json(const clv_bytes *json, uint32_t lines) {
  for (size_t i = 0; i < json->len; i++) {
    unsigned char c = (unsigned char)json->data[i];
    lines -= c == '\n';
    NEVER(c != '\n' && c < 0x20);
  }
  NEVER(lines);
}

static void print_view(clv_status_view *view, unsigned width) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, brief = {0}, json = {0};
  clv_status_text(view, width, &text);
  clv_status_brief_text(view, width, &brief);
  clv_status_json(view, &json);
  if (text.failed || brief.failed || json.failed) return;
  check_text(&text, width);
  check_text(&brief, width);
  check_json(&json, view->n_workers);
}

typedef struct answers {
  clv_wire_status_reply previous_reply, present_reply;
  clv_status_buffers buffers;
  char error_text[CLV_ERR_TEXT];
} answers;

static clv_piece take_next_piece(clv_piece *rest) {
  const uint8_t *at = rest->data;
  size_t n = rest->len < 2 ? 0 : CLV_MIN(at[0] | (size_t)at[1] << 8, rest->len - 2);
  clv_piece piece = {at + CLV_MIN(rest->len, (size_t)2), n};
  rest->data = at + CLV_MIN(rest->len, 2 + n);
  rest->len -= CLV_MIN(rest->len, 2 + n);
  return piece;
}

static void fill_worker(uint32_t worker, clv_piece *rest, answers *a, clv_status_worker *w) {
  clv_err err;
  clv_piece previous_piece = take_next_piece(rest), present_piece = take_next_piece(rest);
  *w = (clv_status_worker){.name = config->workers[worker].name, .address = "h:1"};
  if (!present_piece.len) return;
  bool has_previous =
      clv_wire_status_reply_decode(&previous_piece, 1, &a->previous_reply, &err) == CLV_OK;
  if (clv_wire_status_reply_decode(&present_piece, 1, &a->present_reply, &err) == CLV_OK &&
      clv_status_compare(config, worker, has_previous ? &a->previous_reply : NULL,
                         &a->present_reply, &a->buffers, w, &err) == CLV_OK)
    return;
  w->has_outcome = true;
  snprintf(a->error_text, sizeof a->error_text, "%.*s", (int)present_piece.len,
           (const char *)present_piece.data);
  w->error = w->fix = a->error_text;
}

/* Returns false if the input says nothing of sealed copies. */
static bool read_escrow(clv_piece *rest, char error_text[CLV_ERR_TEXT], clv_status_escrow *ret) {
  take_next_piece(rest);
  clv_piece piece = take_next_piece(rest);
  const uint8_t *bytes = piece.data;
  if (!piece.len) return false;
  *ret = (clv_status_escrow){.has_copy = bytes[0] & 1, .age_s = bytes[0] / 2};
  if (piece.len > 1) ret->step = ret->bytes = bytes[1];
  if (piece.len < 3) return true;
  snprintf(error_text, CLV_ERR_TEXT, "%.*s", (int)piece.len - 2, (const char *)bytes + 2);
  ret->last_error = (clv_status_last_error){.text = error_text, .age_s = 1};
  return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  answers a[WORKERS] = {0};
  clv_status_worker w[WORKERS];
  clv_piece rest = {data, size};
  clv_status_view view = {
      .title = "films", .clock = "19:42:07", .n_workers = WORKERS, .workers = w};
  clv_status_escrow escrow;
  char error_text[CLV_ERR_TEXT];
  for (uint32_t i = 0; i < WORKERS; i++) fill_worker(i, &rest, &a[i], &w[i]);
  if (read_escrow(&rest, error_text, &escrow)) view.escrow = &escrow;
  print_view(&view, 20 + (unsigned)(size * 7 % 150));
  for (uint32_t i = 0; i < WORKERS; i++) {
    clv_status_buffers_done(&a[i].buffers);
    clv_wire_message_clear(&a[i].previous_reply);
    clv_wire_message_clear(&a[i].present_reply);
  }
  return 0;
}

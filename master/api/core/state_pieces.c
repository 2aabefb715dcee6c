/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies state between a module's node and a file of the caller in pieces, with a few of them in
 * flight, so that this process never holds the complete state.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/core/state_requests_int.h"
#include "master/api/core/module_int.h"
#include "master/api/core/incarnations_int.h"

/* A piece has MAX_PIECE_BYTES. Near the end of an item pieces have a half or a quarter of that, and
 * the last piece may be smaller than MIN_HALVED_PIECE_BYTES. So the pool keeps tensors of few
 * sizes. */
enum { MAX_PIECE_BYTES = 256 << 10, MIN_HALVED_PIECE_BYTES = 64 << 10, MAX_PIECES_IN_FLIGHT = 64 };
/* Limits of the window, the number of bytes that may be in flight. The window is 1 / WINDOW_DIVISOR
 * of all bytes, but at least MIN_WINDOW_BYTES and at most MAX_WINDOW_BYTES. */
enum { MIN_WINDOW_BYTES = 2 << 20, MAX_WINDOW_BYTES = 16 << 20, WINDOW_DIVISOR = 32 };

/* A piece in flight: bytes offset..offset + length - 1 of items[item_index]. */
typedef struct piece {
  size_t item_index;
  uint64_t offset;
  size_t length;
  api_state_request request;
  /* bytes of the piece that the node has sent; used by cleave_state_take */
  api_state_item received_item;
} piece;

/* A call of cleave_state_take or cleave_state_give. */
typedef struct transfer {
  cleave_runtime *rt;
  cleave_module *m;
  cleave_state_kind kind;
  const clv_weights_want *items; /* [n] items to move */
  size_t n, item_bytes;          /* n: number of items; item_bytes: size of items[item_index] */
  /* most bytes that may be in flight, and the bytes in flight */
  size_t max_bytes_in_flight, bytes_in_flight;
  size_t item_index;                  /* index of the item that the next piece belongs to */
  uint64_t offset;                    /* byte of the item at which the next piece begins */
  piece pieces[MAX_PIECES_IN_FLIGHT]; /* circular list of the pieces in flight */
  /* index of the oldest piece in flight; number of pieces in flight */
  size_t first_piece, n_pieces_in_flight;
} transfer;

/* ---- dividing items into pieces -------------------------------------------------------------- */

static clv_code compute_item_bytes(const clv_weights_want *w, size_t *ret, clv_err *err) {
  return clv_shape_bytes(&w->shape, w->dtype, ret, err);
}

static size_t next_piece_bytes(const transfer *p) {
  size_t remaining_bytes = p->item_bytes - (size_t)p->offset, length = MAX_PIECE_BYTES;
  while (length > remaining_bytes && length > MIN_HALVED_PIECE_BYTES) length /= 2;
  return CLV_MIN(remaining_bytes, length);
}

/* Continues the transfer with the first item at or after index `item_index` that has bytes. */
static cleave_status skip_to_item(transfer *p, size_t item_index, cleave_error *error) {
  p->item_index = item_index;
  p->offset = 0;
  for (p->item_bytes = 0; p->item_index < p->n; p->item_index++) {
    TRY(compute_item_bytes(&p->items[p->item_index], &p->item_bytes, &err));
    if (p->item_bytes) break;
  }
  return CLEAVE_OK;
}

/* Returns the next piece, in the circular list behind the pieces in flight. The caller counts it as
 * in flight with advance_transfer. NULL: no piece is left, or the window is full. */
static piece *next_piece(transfer *p) {
  size_t length = p->item_index < p->n ? next_piece_bytes(p) : 0;
  if (!length || p->n_pieces_in_flight == MAX_PIECES_IN_FLIGHT ||
      (p->n_pieces_in_flight && p->bytes_in_flight + length > p->max_bytes_in_flight))
    return NULL;
  piece *x = &p->pieces[(p->first_piece + p->n_pieces_in_flight) % MAX_PIECES_IN_FLIGHT];
  *x = (piece){.item_index = p->item_index, .offset = p->offset, .length = length};
  return x;
}

static cleave_status advance_transfer(transfer *p, const piece *x, cleave_error *error) {
  p->n_pieces_in_flight++;
  p->bytes_in_flight += x->length;
  p->offset += x->length;
  return p->offset == p->item_bytes ? skip_to_item(p, p->item_index + 1, error) : CLEAVE_OK;
}

/* Waits for the answer to the oldest request. */
static cleave_status await_first_request(transfer *p, cleave_error *error) {
  piece *x = &p->pieces[p->first_piece];
  return api_state_await(p->m, &x->request, p->items[x->item_index].name, api_deadline_ns(p->rt, 0),
                         error);
}

static void end_first_request(transfer *p) {
  piece *x = &p->pieces[p->first_piece];
  api_state_request_free(p->rt, &x->request);
  clv_tensor_unref(x->received_item.tensor);
  p->first_piece = (p->first_piece + 1) % MAX_PIECES_IN_FLIGHT;
  p->n_pieces_in_flight--;
  p->bytes_in_flight -= x->length;
}

static size_t choose_max_bytes_in_flight(const clv_weights_want *items, size_t n) {
  size_t total_bytes = 0, bytes;
  for (size_t i = 0; i < n; i++)
    if (compute_item_bytes(&items[i], &bytes, NULL) != CLV_OK ||
        !clv_add_size(total_bytes, bytes, &total_bytes))
      return MAX_WINDOW_BYTES;
  return CLV_MIN(CLV_MAX(total_bytes / WINDOW_DIVISOR, (size_t)MIN_WINDOW_BYTES),
                 (size_t)MAX_WINDOW_BYTES);
}

static cleave_status begin_transfer(transfer *p, cleave_error *error) {
  cleave_runtime *rt = p->rt;
  p->max_bytes_in_flight = choose_max_bytes_in_flight(p->items, p->n);
  TRY_API(skip_to_item(p, 0, error));
  TRY_API(api_module_place(p->m, false, 0, error));
  TRY_API(api_check_no_pending_backward(rt, error));
  TRY_API(api_await_step_decision(rt, api_deadline_ns(rt, 0), error));
  api_module_add_kept_ref(p->m);
  return CLEAVE_OK;
}

/* Ends a transfer: withdraws its requests, and frees unused blocks of the pool, because training
 * does not use blocks of these sizes. */
static void end_transfer(transfer *p) {
  LOCKED(p->rt);
  while (p->n_pieces_in_flight) end_first_request(p);
  api_module_remove_kept_ref(p->m);
  clv_pool_free_unused_tensors(p->rt->pool);
}

/* Lists a request and sends its packet. Also returns CLEAVE_OK if the link has ended and on_closed
 * was not called yet, because the wait for the answer then returns the reason. */
static cleave_status send_request(transfer *p, piece *x, clv_packet *packet, cleave_error *error) {
  x->request.next = p->rt->state_requests;
  p->rt->state_requests = &x->request;
  cleave_status status = api_send(p->rt, p->m->node, packet, error);
  bool is_ending = status == CLEAVE_UNAVAILABLE && !api_is_peer_lost(&p->rt->peers[p->m->node]);
  return is_ending ? CLEAVE_OK : status;
}

/* ---- reading pieces from the node ------------------------------------------------------------ */

static cleave_status request_piece(transfer *p, piece *x, cleave_error *error) {
  clv_packet *packet;
  x->request = (api_state_request){.items = &x->received_item, .n_items_expected = 1};
  x->request.id = ++p->rt->next_id;
  x->request.node = p->m->node;
  TRY_API(api_packet_new(p->rt, CLV_STATE_GET, 0, x->request.id, &packet, error));
  api_set_frame_module(packet, p->m);
  packet->frame.state.part = (clv_state_kind)p->kind;
  packet->frame.state.piece_offset = x->offset;
  packet->frame.state.piece_length = x->length;
  snprintf(packet->frame.state.item_or_file_name, sizeof packet->frame.state.item_or_file_name,
           "%s", p->items[x->item_index].name);
  return send_request(p, x, packet, error);
}

static cleave_status check_piece(const transfer *p, const piece *x, cleave_error *error) {
  const clv_tensor *t = x->received_item.tensor;
  const char *node = p->rt->peers[p->m->node].name;
  if (t && t->dtype == CLV_U8 && t->bytes == x->length &&
      strcmp(x->received_item.name, p->items[x->item_index].name) == 0)
    return CLEAVE_OK;
  api_fail(error, CLV_BAD_ANSWER,
           "'%s' sent another piece of '%s' of module '%s' than was asked for", node,
           p->items[x->item_index].name, p->m->name);
  api_set_error_node(error, node, p->m->name);
  return CLEAVE_PROTOCOL_VIOLATION;
}

/* Requests as many pieces as the window permits, then waits for the oldest. *ret_tensor: the bytes
 * of that piece, with a reference for the caller. */
static cleave_status receive_piece(transfer *p, piece *ret, clv_tensor **ret_tensor,
                                   cleave_error *error) {
  LOCKED(p->rt);
  for (piece *x; (x = next_piece(p)) != NULL;) {
    cleave_status status = request_piece(p, x, error);
    TRY_API(advance_transfer(p, x, error));
    TRY_API(status);
  }
  TRY_API(await_first_request(p, error));
  *ret = p->pieces[p->first_piece];
  TRY_API(check_piece(p, ret, error));
  *ret_tensor = clv_tensor_ref(ret->received_item.tensor);
  end_first_request(p);
  return CLEAVE_OK;
}

static cleave_status take_piece(transfer *p, cleave_piece_move *take, void *user,
                                cleave_error *error) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  piece x;
  clv_err why;
  TRY_API(receive_piece(p, &x, &t, error));
  if (take(user, x.item_index, x.offset, t->data, x.length, &why) == CLV_OK) return CLEAVE_OK;
  return api_convert_error(error, &why);
}

static cleave_status take_all_items(transfer *p, cleave_piece_move *take, void *user,
                                    cleave_error *error) {
  {
    LOCKED(p->rt);
    TRY_API(begin_transfer(p, error));
  }
  cleave_status status = CLEAVE_OK;
  while (status == CLEAVE_OK && (p->n_pieces_in_flight || p->item_index < p->n))
    status = take_piece(p, take, user, error);
  end_transfer(p);
  if (status != CLEAVE_OK) return status;
  LOCKED(p->rt);
  return api_take_deferred_error(
      p->rt, error); /* returns the failure of an earlier step, which is known by now */
}

/* Reads all items at once, from a worker that does not support pieces, and passes them to
 * `take`. */
static cleave_status take_complete_items(const transfer *p, cleave_piece_move *take, void *user,
                                         cleave_error *error) {
  cleave_state all = {0};
  TRY_API(cleave_state_read(p->rt, p->m, p->kind, 0, &all, error));
  clv_code code = CLV_OK;
  clv_err why;
  for (size_t i = 0; i < p->n && code == CLV_OK; i++)
    for (size_t k = 0; k < all.n && code == CLV_OK; k++) {
      const cleave_tensor *t = &all.items[k].tensor;
      size_t bytes;
      if (strcmp(all.items[k].name, p->items[i].name) != 0) continue;
      code = compute_item_bytes(&p->items[i], &bytes, &why);
      if (code == CLV_OK) code = take(user, i, 0, t->data, bytes, &why);
    }
  cleave_state_free(&all);
  return code == CLV_OK ? CLEAVE_OK : api_convert_error(error, &why);
}

/* ---- writing pieces to the node -------------------------------------------------------------- */

static cleave_status put_piece(transfer *p, piece *x, clv_tensor *t, cleave_error *error) {
  clv_packet *packet;
  x->request = (api_state_request){.id = ++p->rt->next_id, .node = p->m->node};
  TRY_API(api_packet_new(p->rt, CLV_STATE_PUT, 0, x->request.id, &packet, error));
  api_set_frame_module(packet, p->m);
  packet->frame.state.part = (clv_state_kind)p->kind;
  packet->frame.state.n_items = 1;
  packet->frame.state.piece_offset = x->offset;
  packet->frame.state.piece_length = x->length;
  snprintf(packet->frame.state.item_or_file_name, sizeof packet->frame.state.item_or_file_name,
           "%s", p->items[x->item_index].name);
  clv_packet_add_tensor(packet, t);
  p->m->weights_version += p->kind == CLEAVE_STATE_WEIGHTS;
  return send_request(p, x, packet, error);
}

/* Waits until the window has room, and returns the next piece and a tensor for it. *ret NULL: all
 * pieces were sent. */
static cleave_status wait_for_window_space(transfer *p, piece **ret, clv_tensor **ret_tensor,
                                           cleave_error *error) {
  LOCKED(p->rt);
  while (!(*ret = next_piece(p)) && p->n_pieces_in_flight) {
    TRY_API(await_first_request(p, error));
    end_first_request(p);
  }
  if (!*ret) return CLEAVE_OK;
  clv_shape shape = CLV_SHAPE((int64_t)(*ret)->length);
  TRY(clv_pool_alloc_tensor(p->rt->pool, CLV_U8, &shape, ret_tensor, &err));
  return CLEAVE_OK;
}

static cleave_status send_next_piece(transfer *p, cleave_piece_move *give, void *user,
                                     bool *ret_has_more, cleave_error *error) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  piece *x;
  clv_err why;
  TRY_API(wait_for_window_space(p, &x, &t, error));
  *ret_has_more = x;
  if (!x) return CLEAVE_OK;
  if (give(user, x->item_index, x->offset, t->data, x->length, &why) != CLV_OK)
    return api_convert_error(error, &why);
  LOCKED(p->rt);
  cleave_status status = put_piece(p, x, t, error);
  TRY_API(advance_transfer(p, x, error));
  return status;
}

static cleave_status give_all_items(transfer *p, cleave_piece_move *give, void *user,
                                    cleave_error *error) {
  {
    LOCKED(p->rt);
    TRY_API(begin_transfer(p, error));
  }
  cleave_status status = CLEAVE_OK;
  for (bool has_more = true; has_more && status == CLEAVE_OK;)
    status = send_next_piece(p, give, user, &has_more, error);
  end_transfer(p);
  return status;
}

static cleave_status give_item(const transfer *p, const clv_weights_want *w, const void *data,
                               cleave_error *error) {
  cleave_named_tensor item = {
      w->name,
      {.dtype = (cleave_dtype)w->dtype, .rank = w->shape.rank, .data = (void *)(uintptr_t)data}};
  memcpy(item.tensor.shape, w->shape.dim, sizeof item.tensor.shape);
  return cleave_state_write(p->rt, p->m, p->kind, &item, 1, 0, error);
}

/* Sends complete items one by one, to a worker that does not support pieces. */
static cleave_status give_complete_items(const transfer *p, cleave_piece_move *give, void *user,
                                         cleave_error *error) {
  for (size_t i = 0; i < p->n; i++) {
    CLV_AUTO(clv_freep) void *data = NULL;
    size_t bytes;
    TRY(compute_item_bytes(&p->items[i], &bytes, &err));
    TRY(clv_alloc_aligned(bytes, &data, &err));
    if (bytes) TRY(give(user, i, 0, data, bytes, &err));
    TRY_API(give_item(p, &p->items[i], data, error));
  }
  return CLEAVE_OK;
}

/* ---- cleave_state_take and cleave_state_give ------------------------------------------------- */

static cleave_status check_items(const transfer *p, cleave_error *error) {
  if (p->m->runtime != p->rt) return api_fail(error, CLV_INVALID, "a module of another runtime");
  for (size_t i = 0; i < p->n; i++) {
    const clv_weights_want *w = &p->items[i];
    if (!api_has_state_item(p->m, p->kind, w->name, w->dtype, &w->shape))
      return api_fail(error, CLV_INVALID, "module '%s' has no such state '%s'", p->m->name,
                      w->name);
  }
  return CLEAVE_OK;
}

static bool supports_pieces(const transfer *p) {
  return !p->m->node || p->rt->peers[p->m->node].supports_state_pieces;
}

/* Checks the items and loads the module at its node. */
static cleave_status place_module(transfer *p, cleave_error *error) {
  LOCKED(p->rt);
  TRY_API(check_items(p, error));
  return api_module_place(p->m, false, 0, error);
}

cleave_status cleave_state_take(cleave_runtime *runtime, cleave_module *module,
                                cleave_state_kind kind, const clv_weights_want *items, size_t n,
                                cleave_piece_move *take, void *user, cleave_error *error) {
  CLV_AUTO(clv_freep) transfer *p = NULL;
  TRY(clv_alloc(1, sizeof *p, &p, &err));
  *p = (transfer){.rt = runtime, .m = module, .kind = kind, .items = items, .n = n};
  TRY_API(place_module(p, error));
  return supports_pieces(p) ? take_all_items(p, take, user, error)
                            : take_complete_items(p, take, user, error);
}

cleave_status cleave_state_give(cleave_runtime *runtime, cleave_module *module,
                                cleave_state_kind kind, const clv_weights_want *items, size_t n,
                                cleave_piece_move *give, void *user, cleave_error *error) {
  CLV_AUTO(clv_freep) transfer *p = NULL;
  TRY(clv_alloc(1, sizeof *p, &p, &err));
  *p = (transfer){.rt = runtime, .m = module, .kind = kind, .items = items, .n = n};
  TRY_API(place_module(p, error));
  return supports_pieces(p) ? give_all_items(p, give, user, error)
                            : give_complete_items(p, give, user, error);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Pieces of received messages, and texts from or to a peer.
 */
#include <grpc/slice_buffer.h>
#include <string.h>

#include "common/net/rpc/rpc_int.h"

size_t clv_iov_bytes(const clv_iov *iov, size_t n) {
  size_t sum = 0;
  for (size_t i = 0; i < n; i++) sum += iov[i].len;
  return sum;
}

bool clv_iov_copy(const clv_iov *iov, size_t n, size_t offset, void *dst, size_t len) {
  unsigned char *out = dst;
  for (size_t i = 0; i < n && len > 0; i++) {
    if (offset >= iov[i].len) {
      offset -= iov[i].len;
      continue;
    }
    size_t part = CLV_MIN(len, iov[i].len - offset);
    memcpy(out, (const unsigned char *)iov[i].data + offset, part);
    out += part;
    len -= part;
    offset = 0;
  }
  return len == 0;
}

clv_code rpc_buffer_list_pieces(grpc_byte_buffer *buffer, clv_iov fixed[RPC_MAX_PIECES],
                                const clv_iov **ret_pieces, size_t *ret_n, void **ret_heap,
                                clv_err *err) {
  /* Refuse compression, because a peer could make a small message expand to a large one. */
  if (buffer->type != GRPC_BB_RAW || buffer->data.raw.compression != GRPC_COMPRESS_NONE)
    return clv_fail(err, CLV_UNIMPLEMENTED, "compressed messages are not accepted");
  const grpc_slice_buffer *slices = &buffer->data.raw.slice_buffer;
  clv_iov *pieces = fixed;
  void *heap = NULL;
  if (slices->count > RPC_MAX_PIECES) {
    CLV_TRY(clv_alloc(slices->count, sizeof(*pieces), &heap, err));
    pieces = heap;
  }
  for (size_t i = 0; i < slices->count; i++)
    pieces[i] =
        (clv_iov){GRPC_SLICE_START_PTR(slices->slices[i]), GRPC_SLICE_LENGTH(slices->slices[i])};
  *ret_pieces = pieces;
  *ret_n = slices->count;
  *ret_heap = heap;
  return CLV_OK;
}

void rpc_copy_printable(char dst[RPC_TEXT], const void *src, size_t len) {
  const unsigned char *text = src;
  size_t n = CLV_MIN(len, (size_t)RPC_TEXT - 1);
  for (size_t i = 0; i < n; i++) dst[i] = text[i] >= 0x20 && text[i] < 0x7f ? (char)text[i] : '?';
  dst[n] = '\0';
}

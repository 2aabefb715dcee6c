/* SPDX-License-Identifier: Apache-2.0
 *
 * Chains of element-wise ops. No value inside a chain is saved: backward recomputes the values it
 * needs from the chain's input, and draws a dropout's numbers again. If backward needs only the
 * chain's output, as for a sum followed by a relu, the kernel saves the output instead.
 */
#include <stdlib.h>

#include "kernels/cuda/pointwise_int.h"

/* Which value an op's backward reads: the op's input, its output, or neither. */
typedef enum value_kind { READS_NOTHING, READS_INPUT, READS_OUTPUT } value_kind;

static const struct {
  clv_op op;
  value_kind value_backward_reads;
} chainable_ops[] = {
    {CLV_OP_RELU, READS_OUTPUT},   {CLV_OP_SIGMOID, READS_OUTPUT},  {CLV_OP_TANH, READS_OUTPUT},
    {CLV_OP_GELU, READS_INPUT},    {CLV_OP_GELU_TANH, READS_INPUT}, {CLV_OP_SILU, READS_INPUT},
    {CLV_OP_SCALE, READS_NOTHING}, {CLV_OP_ADD, READS_NOTHING},     {CLV_OP_DROPOUT, READS_NOTHING},
};

static int find_chainable_op(clv_op op) {
  for (int i = 0; i < (int)CLV_COUNT(chainable_ops); i++)
    if (chainable_ops[i].op == op) return i;
  return -1;
}

/* Returns the index of the last op whose backward reads a value; -1 if there is no such op. *ret_n:
 * number of such ops. */
static int find_last_reader(const clv_chain_link *links, int n, int *ret_n) {
  int last_reader = -1;
  *ret_n = 0;
  for (int i = 0; i < n; i++)
    if (chainable_ops[find_chainable_op(links[i].op)].value_backward_reads != READS_NOTHING) {
      last_reader = i;
      ++*ret_n;
    }
  return last_reader;
}

/* Returns CLV_SAVE_OUT or CLV_SAVE_IN0 if the chain's backward reads its output or input, else
 * 0. */
static unsigned get_saved_flags(const clv_chain_link *links, int n) {
  int n_readers, last_reader = find_last_reader(links, n, &n_readers);
  if (last_reader < 0) return 0;
  bool reads_output =
      n_readers == 1 && last_reader == n - 1 &&
      chainable_ops[find_chainable_op(links[last_reader].op)].value_backward_reads == READS_OUTPUT;
  return reads_output ? CLV_SAVE_OUT : CLV_SAVE_IN0;
}

static int count_ops(const clv_chain_link *links, int n, clv_op op) {
  int k = 0;
  for (int i = 0; i < n; i++) k += links[i].op == op;
  return k;
}

/* Returns true if a kernel can compute the chain. This is false if backward reads a value that
 * depends on the chain's add, unless that value is the chain's output and backward reads no other.
 * To recompute such a value, backward would need both inputs of the add, while separate kernels
 * save one value. */
bool clv_gpu_has_chain(const clv_chain_link *links, int n) {
  int n_readers, add_index = n;
  for (int i = 0; i < n; i++) {
    if (find_chainable_op(links[i].op) < 0) return false;
    if (links[i].op == CLV_OP_ADD) add_index = i;
  }
  if (count_ops(links, n, CLV_OP_ADD) > 1 || count_ops(links, n, CLV_OP_DROPOUT) > 1) return false;
  return find_last_reader(links, n, &n_readers) < add_index ||
         get_saved_flags(links, n) == CLV_SAVE_OUT;
}

static cuda_chain describe_chain(const cuda_kernel *k, const clv_kernel_args *a) {
  const clv_node_desc *d = &k->r.d;
  clv_rng_key key = a->key;
  if (a->rng_position) key.step = key.micro_batch = 0;
  cuda_chain c = {
      .n = d->n_links, .stream = clv_rng_stream_of(&key), .rng_position = a->rng_position};
  for (int i = 0; i < d->n_links; i++) {
    bool is_dropout = d->link[i].op == CLV_OP_DROPOUT;
    c.op[i] = (int)d->link[i].op;
    c.factor[i] =
        is_dropout ? clv_gpu_dropout_factor(d->link[i].op_argument) : (float)d->link[i].op_argument;
    if (!is_dropout) continue;
    c.has_dropout = true;
    c.dropout_threshold = clv_gpu_dropout_threshold(d->link[i].op_argument);
  }
  return c;
}

static clv_code chain_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_chain c = describe_chain(k, a);
  return clv_gpu_chain(k->gpu, &c, a->in[0], a->in[1], a->out, k->r.n_in, err);
}

static clv_code chain_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  unsigned saved_flags = k->r.base.saved_flags;
  cuda_chain c = describe_chain(k, a);
  cuda_chain_back v = {.x = saved_flags & CLV_SAVE_IN0 ? a->in[0] : NULL,
                       .y = saved_flags & CLV_SAVE_OUT ? a->out : NULL,
                       .dy = a->dout,
                       .dx = a->din[0],
                       .dz = a->din[1]};
  return clv_gpu_chain_back(k->gpu, &c, &v, k->r.n_in, err);
}

static void chain_free(clv_kernel *base) { free(gpu_kernel_of(base)); }

/* Returns true if a kernel can compute the chain of node d, which has n values. The values must be
 * row-major, because a dropout draws its numbers by index. In bf16 each op on images rounds its
 * output, so such ops are not chained. */
static bool can_chain_node(const clv_node_desc *d, size_t n) {
  if (d->bf16 && d->out.rank == 4) return false;
  for (int i = 0; i < d->n_in; i++)
    if (d->offered_block[i] != 1 || !clv_shape_equal(&d->in[i], &d->out)) return false;
  return d->dtype == CLV_F32 && n / 4 <= UINT32_MAX && clv_gpu_has_chain(d->link, d->n_links);
}

clv_code clv_gpu_prepare_chain(const clv_backend *b, const clv_node_desc *d, clv_kernel **ret,
                               clv_err *err) {
  size_t n = clv_layout_numel(&d->in[0], 1);
  cuda_kernel *k;
  if (!can_chain_node(d, n))
    return clv_fail(err, CLV_UNIMPLEMENTED, "no kernel for this chain from op %d", (int)d->op);
  CLV_TRY(clv_alloc(1, sizeof *k, &k, err));
  *k = (cuda_kernel){.r = {.d = *d, .n_in = n, .n_out = n}, .gpu = b->private_data};
  k->r.has_backward = d->need_dx[0] || d->need_dx[1];
  k->r.base =
      (clv_kernel){.forward = chain_forward,
                   .backward_input = k->r.has_backward ? chain_backward : NULL,
                   .free = chain_free,
                   .out_block = 1,
                   .saved_flags = k->r.has_backward ? get_saved_flags(d->link, d->n_links) : 0,
                   .in_place = true,
                   .din_in_place_mask = (1u << d->n_in) - 1,
                   .reads_rng_position = count_ops(d->link, d->n_links, CLV_OP_DROPOUT) > 0,
                   .impl = "cuda"};
  for (int i = 0; i < CLV_MAX_IN; i++) k->r.base.in_block[i] = 1;
  *ret = &k->r.base;
  return CLV_OK;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests LoadModule, the largest of the unary messages. Every field makes a round trip, messages are
 * cut into pieces, and each rule is broken once. Also tests hostile bytes for all unary messages:
 * what a peer sends costs at most twice its bytes and 1 MiB, and a refused message nearly nothing.
 */
#include "tests/unit/wire/wire_test.h"

#include "cleave/v1/cleave.pb-c.h"

/* ---- messages of LoadModule ------------------------------------------------------------------ */

static int64_t stride[] = {2, -3};
static clv_wire_attr attrs[] = {{.key = 4, .n_ints = 2, .ints = stride}, {.key = 9, .scalar = 0.5}};
static uint32_t two_inputs[] = {0, 1};
static uint32_t outputs[] = {2, 1};
static const clv_key keys[3] = {
    {{0}}, {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}}, {{3}}};
static clv_wire_node nodes[] = {
    {.op = 1, .uncut_index = 3, .name = "input"},
    {.op = 2,
     .uncut_index = 4,
     .name = "conv1",
     .n_attrs = 2,
     .attrs = attrs,
     .recompute_block = 7},
    {.op = 60000, .uncut_index = 5, .name = "add", .n_inputs = 2, .input_nodes = two_inputs},
};
static const char *frozen[] = {"conv1.weight", "conv1.bias"};
static const char *peers[] = {"worker-2", "worker-3"};
static clv_wire_tie ties[] = {{1, 0, "input"}, {2, 255, "words"}};
static clv_wire_spec inputs[] = {{CLV_F32, {4, {64, 8, 14, 14}}}, {CLV_I64, {1, {64}}}};

static clv_wire_load_request make_load_request(void) {
  return (clv_wire_load_request){
      .session_id = make_id(1),
      .attempt_number = 3,
      .module_index = 1,
      .n_threads = 2,
      .n_frozen = 2,
      .n_inputs = 2,
      .graph = {.n_nodes = 3, .n_outputs = 2, .nodes = nodes, .output_nodes = outputs},
      .node_keys = keys,
      .n_peers = 2,
      .peer_names = peers,
      .optimizer = {.kind = CLV_WIRE_OPT_OF(CLV_OPTIM_ADAMW),
                    .nesterov = true,
                    .lr = 0.1,
                    .momentum = 0.2,
                    .weight_decay = 0.3,
                    .beta1 = 0.4,
                    .beta2 = 0.5,
                    .eps = 0.6,
                    .alpha = 0.7,
                    .lr_decay = 0.8,
                    .initial_accumulator_value = 0.9,
                    .centered = true,
                    .ema = 0.95,
                    .ema_warmup = true},
      .device_name = "cuda:1",
      .module_name = "enc\303\266der",
      .init_source = CLV_WIRE_INIT_ARTIFACT,
      .artifact = {"tail.safetensors", make_digest(3)},
      .frozen_names = frozen,
      .input_specs = inputs,
      .ties = ties,
      .n_ties = 2};
}

static void assert_graph(const clv_wire_graph *g) {
  assert_int_equal(g->n_nodes, 3);
  assert_int_equal(g->n_outputs, 2);
  assert_int_equal(g->output_nodes[0], 2);
  assert_int_equal(g->output_nodes[1], 1);
  assert_string_equal(g->nodes[0].name, "input");
  assert_int_equal(g->nodes[0].n_inputs, 0);
  assert_int_equal(g->nodes[1].op, 2);
  assert_int_equal(g->nodes[1].uncut_index, 4);
  assert_int_equal(g->nodes[1].n_attrs, 2);
  assert_int_equal(g->nodes[0].recompute_block, 0);
  assert_int_equal(g->nodes[1].recompute_block, 7);
  assert_int_equal(g->nodes[1].attrs[0].key, 4);
  assert_int_equal(g->nodes[1].attrs[0].n_ints, 2);
  assert_int_equal(g->nodes[1].attrs[0].ints[1], -3);
  assert_true(g->nodes[1].attrs[1].scalar == 0.5);
  assert_int_equal(g->nodes[2].op, 60000);
  assert_int_equal(g->nodes[2].n_inputs, 2);
  assert_int_equal(g->nodes[2].input_nodes[1], 1);
}

static void load_request_round_trips(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  clv_wire_load_request m = make_load_request();
  CLV_AUTO(clv_wire_message_clear) clv_wire_load_request got = {0};
  assert_ok(clv_wire_load_request_encode(&m, &bytes, &err));
  assert_ok(clv_wire_load_request_decode(cut_in_half(&bytes).pieces, 2, &got, &err));
  memset(bytes.data, 0xff, bytes.len);
  assert_memory_equal(&got.session_id, &m.session_id, sizeof m.session_id);
  assert_int_equal(got.attempt_number, 3);
  assert_int_equal(got.module_index, 1);
  assert_int_equal(got.n_threads, 2);
  assert_graph(&got.graph);
  assert_memory_equal(got.node_keys, keys, sizeof keys);
  assert_int_equal(got.n_peers, 2);
  assert_string_equal(got.peer_names[0], "worker-2");
  assert_string_equal(got.peer_names[1], "worker-3");
  assert_int_equal(got.optimizer.kind, CLV_WIRE_OPT_OF(CLV_OPTIM_ADAMW));
  assert_true(got.optimizer.nesterov && !got.optimizer.steps_are_final);
  assert_true(got.optimizer.lr == 0.1 && got.optimizer.momentum == 0.2);
  assert_true(got.optimizer.weight_decay == 0.3 && got.optimizer.beta1 == 0.4);
  assert_true(got.optimizer.beta2 == 0.5 && got.optimizer.eps == 0.6);
  assert_true(got.optimizer.alpha == 0.7 && got.optimizer.lr_decay == 0.8);
  assert_true(got.optimizer.initial_accumulator_value == 0.9 && got.optimizer.centered);
  assert_true(got.optimizer.ema == 0.95 && got.optimizer.ema_warmup);
  assert_string_equal(got.device_name, "cuda:1");
  assert_string_equal(got.module_name, "enc\303\266der");
  assert_int_equal(got.init_source, CLV_WIRE_INIT_ARTIFACT);
  assert_string_equal(got.artifact.name, "tail.safetensors");
  assert_memory_equal(&got.artifact.sha256, &m.artifact.sha256, sizeof(clv_sha256));
  assert_int_equal(got.n_frozen, 2);
  assert_string_equal(got.frozen_names[1], "conv1.bias");
  assert_int_equal(got.n_inputs, 2);
  assert_true(clv_shape_equal(&got.input_specs[0].shape, &inputs[0].shape));
  assert_int_equal(got.input_specs[1].dtype, CLV_I64);
  assert_int_equal(got.n_ties, 2);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(got.ties[i].node_index, ties[i].node_index);
    assert_int_equal(got.ties[i].owner_module, ties[i].owner_module);
    assert_string_equal(got.ties[i].owner_node_name, ties[i].owner_node_name);
  }
}

static void invalid_ties_are_refused(void **state) {
  (void)state;
  static const struct {
    clv_wire_tie tie;
    const char *says;
  } bad[] = {{{3, 0, "input"}, "tie 0 is of node 3 of 3"},
             {{1, 256, "input"}, "to module 256 - 1"},
             {{1, 1, ""}, "owner of a tie"}};
  for (size_t i = 0; i < CLV_COUNT(bad); i++) {
    clv_err err = {0};
    CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
    clv_wire_load_request m = make_load_request();
    clv_wire_tie tie = bad[i].tie;
    m.ties = &tie;
    m.n_ties = 1;
    assert_int_equal(clv_wire_load_request_encode(&m, &bytes, &err), CLV_INVALID);
    assert_non_null(strstr(err.text, bad[i].says));
  }
}

/* A module of an older master has no name. */
static void missing_module_name_reads_as_empty(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  clv_wire_load_request m = make_load_request();
  m.module_name = NULL;
  CLV_AUTO(clv_wire_message_clear) clv_wire_load_request got = {0};
  assert_ok(clv_wire_load_request_encode(&m, &bytes, &err));
  assert_ok(clv_wire_load_request_decode(cut_in_half(&bytes).pieces, 2, &got, &err));
  assert_string_equal(got.module_name, "");
}

static void final_optimizer_round_trips(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  clv_wire_load_request m = make_load_request();
  m.optimizer.nesterov = false;
  m.optimizer.steps_are_final = true;
  CLV_AUTO(clv_wire_message_clear) clv_wire_load_request got = {0};
  assert_ok(clv_wire_load_request_encode(&m, &bytes, &err));
  assert_ok(clv_wire_load_request_decode(cut_in_half(&bytes).pieces, 2, &got, &err));
  assert_true(got.optimizer.steps_are_final && !got.optimizer.nesterov);
}

static const char *names_with_decay[] = {"conv1.weight", "conv2.weight"};
static const char *names_with_low_rate[] = {"conv2.bias"};

static clv_wire_group make_group(const char **names, uint32_t n, double lr) {
  return (clv_wire_group){
      .optimizer = {.kind = CLV_WIRE_OPT_OF(CLV_OPTIM_ADAMW), .lr = lr, .beta2 = 0.7},
      .n_params = n,
      .param_names = names};
}

static void parameter_groups_round_trip(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  clv_wire_load_request m = make_load_request();
  m.groups = (clv_wire_group[]){make_group(names_with_decay, 2, 0.25),
                                make_group(names_with_low_rate, 1, 0.125), make_group(NULL, 0, 1)};
  m.groups[1].optimizer.nesterov = true;
  m.n_groups = 3;
  m.freezes_rest = true;
  CLV_AUTO(clv_wire_message_clear) clv_wire_load_request got = {0};
  assert_ok(clv_wire_load_request_encode(&m, &bytes, &err));
  assert_ok(clv_wire_load_request_decode(cut_in_half(&bytes).pieces, 2, &got, &err));
  memset(bytes.data, 0xff, bytes.len);
  assert_true(got.freezes_rest);
  assert_true(got.optimizer.lr == 0.1);
  assert_int_equal(got.n_groups, 3);
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(got.groups[i].optimizer.kind, CLV_WIRE_OPT_OF(CLV_OPTIM_ADAMW));
    assert_true(got.groups[i].optimizer.lr == m.groups[i].optimizer.lr);
    assert_true(got.groups[i].optimizer.beta2 == 0.7 && got.groups[i].optimizer.eps == 0);
    assert_int_equal(got.groups[i].optimizer.nesterov, i == 1);
    assert_int_equal(got.groups[i].n_params, m.groups[i].n_params);
  }
  assert_string_equal(got.groups[0].param_names[1], "conv2.weight");
  assert_string_equal(got.groups[1].param_names[0], "conv2.bias");
}

/* The memory budget allows 4096 names in all groups together. */
static void too_many_names_in_groups_are_refused(void **state) {
  (void)state;
  static const char *many_names[CLV_WIRE_PARAMS];
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  clv_wire_load_request m = make_load_request();
  for (size_t i = 0; i < CLV_WIRE_PARAMS; i++) many_names[i] = "transformer.block12.attention.bias";
  m.groups =
      (clv_wire_group[]){make_group(many_names, CLV_WIRE_PARAMS - 2, 1),
                         make_group(names_with_decay, 2, 1), make_group(names_with_low_rate, 1, 1)};
  m.n_groups = 2;
  assert_ok(clv_wire_load_request_encode(&m, &bytes, &err));
  m.n_groups = 3;
  assert_fails(clv_wire_load_request_encode(&m, &bytes, &err), CLV_EXHAUSTED,
               "4097 names in groups of parameters");
}

static void too_many_calls_in_flight_are_refused(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  clv_wire_load_request m = make_load_request();
  m.max_calls_in_flight = 4096;
  m.input_needs_grad = true;
  m.computes_in_bf16 = m.allows_tf32 = m.frozen_has_no_grads_or_moments = m.stores_frozen_as_bf16 =
      true;
  CLV_AUTO(clv_wire_message_clear) clv_wire_load_request got = {0};
  assert_ok(clv_wire_load_request_encode(&m, &bytes, &err));
  assert_ok(clv_wire_load_request_decode(cut_in_half(&bytes).pieces, 2, &got, &err));
  assert_int_equal(got.max_calls_in_flight, 4096);
  assert_true(got.input_needs_grad);
  assert_true(got.computes_in_bf16);
  assert_true(got.allows_tf32);
  assert_true(got.frozen_has_no_grads_or_moments);
  assert_true(got.stores_frozen_as_bf16);
  m.max_calls_in_flight++;
  assert_fails(clv_wire_load_request_encode(&m, &bytes, &err), CLV_EXHAUSTED,
               "4097 calls in flight");
}

static void load_reply_round_trips(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  clv_wire_param params[] = {{"conv1.weight", {CLV_F32, {4, {8, 1, 3, 3}}}, make_digest(1)},
                             {"scale", {CLV_F64, {0, {0}}}, make_digest(2)}};
  clv_wire_load_reply m = {.n_params = 2,
                           .params = params,
                           .n_outputs = 2,
                           .output_specs = inputs,
                           .memory_bytes = 12345,
                           .device_name = "cuda:1"};
  CLV_AUTO(clv_wire_message_clear) clv_wire_load_reply got = {0};
  assert_ok(clv_wire_load_reply_encode(&m, &bytes, &err));
  assert_ok(clv_wire_load_reply_decode(cut_in_half(&bytes).pieces, 2, &got, &err));
  assert_int_equal(got.memory_bytes, 12345);
  assert_string_equal(got.device_name, "cuda:1");
  assert_int_equal(got.n_params, 2);
  assert_string_equal(got.params[0].name, "conv1.weight");
  assert_true(clv_shape_equal(&got.params[0].tensor_spec.shape, &params[0].tensor_spec.shape));
  assert_int_equal(got.params[1].tensor_spec.dtype, CLV_F64);
  assert_int_equal(got.params[1].tensor_spec.shape.rank, 0);
  assert_memory_equal(&got.params[1].digest, &params[1].digest, sizeof(clv_sha256));
  assert_int_equal(got.n_outputs, 2);
  assert_true(clv_shape_equal(&got.output_specs[0].shape, &inputs[0].shape));
}

/* ---- rules of LoadModule, each broken once ------------------------------------------------------
 */

typedef struct bad_load {
  void (*damage)(clv_wire_load_request *m);
  const char *error_part;
} bad_load;

static clv_wire_node one_node;
static clv_wire_attr one_attr;
static clv_wire_spec one_spec;
static uint32_t one_index;
static char long_name[CLV_WIRE_NAME + 2];
static int64_t many_ints[CLV_WIRE_ATTR_INTS + 1];
static float many_floats[CLV_WIRE_ATTR_NUMBERS + 1];
static const char *many_names[CLV_WIRE_PEERS + 1];

static void make_one_node_graph(clv_wire_load_request *m) {
  one_node = (clv_wire_node){.op = 1, .name = "n"};
  m->graph = (clv_wire_graph){.n_nodes = 1, .nodes = &one_node};
}
static void make_one_attr_graph(clv_wire_load_request *m, clv_wire_attr attr) {
  make_one_node_graph(m);
  one_attr = attr;
  one_node.n_attrs = 1;
  one_node.attrs = &one_attr;
}
static void set_one_input(clv_wire_load_request *m, clv_wire_spec spec) {
  one_spec = spec;
  m->n_inputs = 1;
  m->input_specs = &one_spec;
}

/* Groups of one parameter each, in addition to the group of the module. */
static clv_wire_group many_groups[CLV_WIRE_GROUPS + 1];
static const char *one_name[1];
static clv_wire_group *set_one_group(clv_wire_load_request *m, const char *name) {
  one_name[0] = name;
  many_groups[0] = make_group(one_name, 1, 1);
  m->groups = many_groups;
  m->n_groups = 1;
  return many_groups;
}

#define DAMAGE(name, statement) \
  static void name(clv_wire_load_request *m) { statement; }
DAMAGE(many_group, set_one_group(m, "w"); m->n_groups = CLV_WIRE_GROUPS + 1)
DAMAGE(other_kind, set_one_group(m, "w")->optimizer.kind = CLV_WIRE_OPT_OF(CLV_OPTIM_SGD))
DAMAGE(no_kind, set_one_group(m, "w")->optimizer.kind = m->optimizer.kind = CLV_WIRE_OPT_NONE)
DAMAGE(other_final, set_one_group(m, "w")->optimizer.steps_are_final = true)
DAMAGE(group_nan, set_one_group(m, "w")->optimizer.weight_decay = 0.0 / 0.0)
DAMAGE(group_nameless, set_one_group(m, ""))
DAMAGE(group_long_name, set_one_group(m, long_name))
DAMAGE(group_newline, set_one_group(m, "a\nb"))
DAMAGE(no_graph, m->graph = (clv_wire_graph){0})
DAMAGE(input_of_itself, make_one_node_graph(m); one_index = 0; one_node.n_inputs = 1;
       one_node.input_nodes = &one_index)
DAMAGE(output_outside, make_one_node_graph(m); one_index = 1; m->graph.n_outputs = 1;
       m->graph.output_nodes = &one_index)
DAMAGE(op_too_high, make_one_node_graph(m); one_node.op = 65536)
DAMAGE(layer_too_high, make_one_node_graph(m); one_node.uncut_index = UINT32_MAX)
DAMAGE(long_node_name, make_one_node_graph(m); one_node.name = long_name)
DAMAGE(infinite_attr, make_one_attr_graph(m, (clv_wire_attr){.key = 1, .scalar = 1.0 / 0.0}))
DAMAGE(long_attr,
       make_one_attr_graph(m, (clv_wire_attr){
                                  .key = 1, .n_ints = CLV_WIRE_ATTR_INTS + 1, .ints = many_ints}))
DAMAGE(infinite_number, many_floats[1] = 1.0f / 0.0f;
       make_one_attr_graph(m, (clv_wire_attr){.key = 1, .n_floats = 2, .floats = many_floats}))
DAMAGE(many_numbers, make_one_attr_graph(m, (clv_wire_attr){.key = 1,
                                                            .n_floats = CLV_WIRE_ATTR_NUMBERS + 1,
                                                            .floats = many_floats}))
DAMAGE(module_outside, m->module_index = 255)
DAMAGE(long_module_name, m->module_name = long_name)
DAMAGE(module_escape, m->module_name = "a\033[31mb")
DAMAGE(module_c1, m->module_name =
                      "\302\233"
                      "31m")
DAMAGE(many_peers, m->n_peers = CLV_WIRE_PEERS + 1; m->peer_names = many_names)
DAMAGE(nan_lr, m->optimizer.lr = 0.0 / 0.0)
DAMAGE(odd_optimizer, m->optimizer.kind = (clv_wire_opt_kind)7)
DAMAGE(odd_init, m->init_source = (clv_wire_init)3)
DAMAGE(odd_artifact, m->artifact.name = "../x")
DAMAGE(dims_overflow, set_one_input(m, (clv_wire_spec){CLV_F32, CLV_SHAPE(1ll << 40, 1ll << 40)}))
DAMAGE(dim_negative, set_one_input(m, (clv_wire_spec){CLV_F32, CLV_SHAPE(-1)}))
DAMAGE(too_large, set_one_input(m, (clv_wire_spec){CLV_F32, CLV_SHAPE(1ll << 49)}))
DAMAGE(odd_dtype, set_one_input(m, (clv_wire_spec){(clv_dtype)0, CLV_SHAPE(1)}))

static const bad_load bad_loads[] = {
    {many_group, "16 groups of parameters"},
    {other_kind, "group 1: optimizer kind 1, final 0; that of the module is 3, 0"},
    {no_kind, "group 1: optimizer kind 0"},
    {other_final, "group 1: optimizer kind 3, final 1"},
    {group_nan, "group 1: a number of the optimizer of "},
    {group_nameless, "group 1: parameter name of 0 bytes"},
    {group_long_name, "group 1: parameter name of 129 bytes"},
    {group_newline, "of params"},
    {no_graph, "no nodes"},
    {input_of_itself, "node 0: input 0 is node 0"},
    {output_outside, "output 0 is node 1 of 1"},
    {op_too_high, "node 0: 65536 is an op number"},
    {layer_too_high, "is a layer index"},
    {long_node_name, "129 bytes of node name"},
    {infinite_attr, "not finite"},
    {long_attr, "17 numbers in an attribute"},
    {infinite_number, "not finite"},
    {many_numbers, "129 numbers in an attribute"},
    {module_outside, "module 255; a session has at most 255"},
    {long_module_name, "129 bytes of module name"},
    {module_escape, "byte 1 (0x1b) of name is a control character"},
    {module_c1, "byte 0 (0xc2) of name is a control character"},
    {many_peers, "65 peers"},
    {nan_lr, "not finite"},
    {odd_optimizer, "unknown optimizer 7"},
    {odd_init, "unknown source of initial weights 3"},
    {odd_artifact, "artifact name"},
    {dims_overflow, "overflow"},
    {dim_negative, "dimension 0 of inputs is 18446744073709551615"},
    {too_large, "over the limit"},
    {odd_dtype, "unknown dtype 0"},
};

static void invalid_load_requests_are_refused(void **state) {
  (void)state;
  memset(long_name, 'n', CLV_WIRE_NAME + 1);
  for (size_t i = 0; i < CLV_COUNT(many_names); i++) many_names[i] = "w";
  for (size_t i = 0; i < CLV_COUNT(bad_loads); i++) {
    clv_err err = {0};
    CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
    clv_wire_load_request m = make_load_request();
    bad_loads[i].damage(&m);
    clv_code code = clv_wire_load_request_encode(&m, &bytes, &err);
    if ((code != CLV_INVALID && code != CLV_EXHAUSTED) ||
        !strstr(err.text, bad_loads[i].error_part))
      fail_msg("case %zu: %d \"%s\", not \"%s\"", i, (int)code, err.text, bad_loads[i].error_part);
  }
}

static void large_graph_fits_the_memory_budget(void **state) {
  (void)state;
  enum { N = 600 };
  static clv_wire_node many_nodes[N];
  static char names[N][40];
  static uint32_t previous_nodes[N];
  static int64_t ones[] = {1, 1};
  static clv_wire_attr conv_attrs[] = {{.key = 1, .n_ints = 2, .ints = ones},
                                       {.key = 2, .n_ints = 2, .ints = ones},
                                       {.key = 3, .n_ints = 1, .ints = ones},
                                       {.key = 4, .n_ints = 1, .ints = ones}};
  for (uint32_t i = 0; i < N; i++) {
    snprintf(names[i], sizeof names[i], "layer%u.block%u.conv2", i / 20, i);
    previous_nodes[i] = i ? i - 1 : 0;
    many_nodes[i] = (clv_wire_node){.op = 2,
                                    .uncut_index = i,
                                    .n_inputs = i ? 1 : 0,
                                    .n_attrs = 4,
                                    .name = names[i],
                                    .input_nodes = &previous_nodes[i],
                                    .attrs = conv_attrs};
  }
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  clv_wire_load_request m = make_load_request();
  clv_key *many_keys = calloc(N, sizeof *many_keys);
  m.graph = (clv_wire_graph){.n_nodes = N, .nodes = many_nodes};
  m.node_keys = many_keys;
  assert_ok(clv_wire_load_request_encode(&m, &bytes, &err));
  free(many_keys);
}

/* ---- hostile bytes of LoadModule ------------------------------------------------------------- */

static clv_code decode_load(const clv_bytes *bytes, clv_err *err) {
  CLV_AUTO(clv_wire_message_clear) clv_wire_load_request got = {0};
  return clv_wire_load_request_decode(&(clv_piece){bytes->data, bytes->len}, 1, &got, err);
}

/* Wraps the bytes in a length-delimited field. */
static void wrap_in_field(clv_bytes *b, unsigned number) {
  clv_bytes out = {0};
  uint8_t head[12];
  size_t n = 0;
  head[n++] = (uint8_t)(number << 3 | 2);
  for (size_t len = b->len;; len >>= 7) {
    head[n++] = (uint8_t)(len >= 0x80 ? (len | 0x80) : len);
    if (len < 0x80) break;
  }
  clv_bytes_add(&out, head, n);
  clv_bytes_add(&out, b->data, b->len);
  clv_bytes_done(b);
  *b = out;
}

/* Repeats the bytes `unit` inside a Graph inside a LoadModuleRequest. */
static clv_bytes make_repeated_graph(const char *unit, size_t unit_len, size_t total_bytes) {
  clv_bytes b = {0};
  while (b.len < total_bytes) clv_bytes_add(&b, unit, unit_len);
  wrap_in_field(&b, 5);
  return b;
}

/* Asserts that the message is refused without an allocation, and that the peak memory of the
 * process, which includes that of libraries, grows by at most twice the bytes and 1 MiB. */
static void assert_bounded(const clv_bytes *bytes, const char *what) {
  clv_err err = {0};
  /* loads the libraries that the decoder uses, so that the measured call does not */
  (void)!decode_load(bytes, &err);
  uint64_t allocations = clv_alloc_count();
  bool is_measured = !CLV_SANITIZED && reset_memory_peak();
  size_t bytes_before = read_status_bytes("VmRSS:");
  clv_code code = decode_load(bytes, &err);
  size_t peak_bytes = is_measured ? read_status_bytes("VmHWM:") : bytes_before;
  size_t used_bytes = peak_bytes > bytes_before ? peak_bytes - bytes_before : 0;
  print_message("%s: %zu bytes cost %zu%s, %s\n", what, bytes->len, used_bytes,
                is_measured ? "" : " (not measured: sanitized, or no /proc/self/clear_refs)",
                err.text);
  assert_int_not_equal(code, CLV_OK);
  assert_int_equal(clv_alloc_count(), allocations);
  assert_true(used_bytes <= 2 * bytes->len + (1 << 20));
}

/* Each node of a module's graph needs a key of 16 bytes. */
static void wrong_number_of_keys_is_refused(void **state) {
  (void)state;
  static const size_t lengths[] = {0, 16, 47, 49, 64};
  clv_err err = {0};
  for (size_t i = 0; i < CLV_COUNT(lengths); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
    clv_wire_load_request m = make_load_request();
    assert_ok(clv_wire_load_request_encode(&m, &bytes, &err));
    /* adds field 20 a second time */
    uint8_t second_field[3 + 64] = {0xa2, 0x01, (uint8_t)lengths[i]};
    clv_bytes_add(&bytes, second_field, 3 + lengths[i]);
    assert_int_equal(decode_load(&bytes, &err), CLV_INVALID);
    assert_non_null(strstr(err.text, "bytes of keys for 3 nodes; each has 16"));
  }
}

/* Returns how many nodes with these attributes and names fit in a LoadModule. */
static uint32_t find_n_nodes_that_fit(uint32_t n_attrs, size_t name_len) {
  static clv_wire_node list[CLV_WIRE_NODES];
  static clv_key node_keys[CLV_WIRE_NODES];
  static int64_t threes[] = {3, 3};
  static clv_wire_attr four_attrs[] = {{.key = 1, .n_ints = 1, .ints = threes},
                                       {.key = 2, .n_ints = 2, .ints = threes},
                                       {.key = 3, .n_ints = 2, .ints = threes},
                                       {.key = 4, .n_ints = 2, .ints = threes}};
  static uint32_t previous_nodes[CLV_WIRE_NODES];
  char name[CLV_WIRE_NAME + 1] = "";
  uint32_t n_fitting = 0, n_too_many = CLV_WIRE_NODES + 1;
  memset(name, 'n', name_len);
  for (uint32_t i = 0; i < CLV_WIRE_NODES; i++) {
    previous_nodes[i] = i ? i - 1 : 0;
    list[i] =
        (clv_wire_node){2, i, i ? 1 : 0, n_attrs, name, &previous_nodes[i], four_attrs, 1 << 20};
  }
  while (n_too_many - n_fitting > 1) {
    uint32_t n = (n_fitting + n_too_many) / 2;
    CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
    clv_wire_load_request m = make_load_request();
    clv_err err = {0};
    m.graph = (clv_wire_graph){.n_nodes = n, .nodes = list};
    m.node_keys = node_keys;
    clv_code code =
        /* the encoder refuses a request that exceeds the limits */
        clv_wire_load_request_encode(&m, &bytes, &err);
    assert_true(code == CLV_OK || code == CLV_EXHAUSTED);
    *(code == CLV_OK ? &n_fitting : &n_too_many) = n;
  }
  return n_fitting;
}

static void node_limit_follows_names_and_attributes(void **state) {
  (void)state;
  assert_int_equal(find_n_nodes_that_fit(0, 1), CLV_WIRE_NODES);
  /* the limit on a message's size decides how many nodes fit */
  assert_in_range(find_n_nodes_that_fit(0, CLV_WIRE_NAME), 1600, 1700);
  /* the memory budget decides how many nodes fit */
  assert_in_range(find_n_nodes_that_fit(2, 24), 950, 1050);
  assert_in_range(find_n_nodes_that_fit(4, 24), 600, 700);
}

/* Decoding an accepted message takes at most twice its bytes and 1 MiB of memory, too. This message
 * has as many nodes as are allowed. */
static void accepted_message_stays_within_the_memory_bound(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes whole = {0};
  clv_wire_load_request m = make_load_request();
  clv_wire_node node = {.op = 1, .name = "n"};
  enum { N = CLV_WIRE_NODES };
  clv_wire_node *many = calloc(N, sizeof *many);
  for (size_t i = 0; i < N; i++) many[i] = node;
  clv_key *many_keys = calloc(N, sizeof *many_keys);
  m.graph = (clv_wire_graph){.n_nodes = N, .nodes = many};
  m.node_keys = many_keys;
  assert_ok(clv_wire_load_request_encode(&m, &whole, &err));
  CLV_AUTO(clv_wire_message_clear) clv_wire_load_request got = {0};
  bool is_measured = !CLV_SANITIZED && reset_memory_peak();
  size_t bytes_before = read_status_bytes("VmRSS:");
  assert_ok(clv_wire_load_request_decode(&(clv_piece){whole.data, whole.len}, 1, &got, &err));
  size_t peak_bytes = is_measured ? read_status_bytes("VmHWM:") : bytes_before;
  print_message("%zu bytes of %d nodes cost %zu\n", whole.len, N, peak_bytes - bytes_before);
  assert_true(peak_bytes <= bytes_before + 2 * whole.len + (1 << 20));
  free(many);
  free(many_keys);
}

static void amplification_is_refused(void **state) {
  (void)state;
  static const struct {
    const char *unit;
    size_t len, total;
    const char *what;
  } cases[] = {
      {"\x0a\0", 2, 8 << 20, "8 MiB of empty nodes"},
      {"\x0a\0", 2, 250 << 10, "250 KiB of empty nodes"},
      {"\x0a\x02\x2a\0", 4, 250 << 10, "nodes with an empty attribute"},
      {"\x0a\x04\x12\0\x12\0", 6, 250 << 10, "empty names, again and again"},
      {"\x58\x01", 2, 250 << 10, "unknown fields"},
      {"\x5a\0", 2, 250 << 10, "empty unknown fields"},
      {"\x10\x01", 2, 250 << 10, "outputs, not packed"},
  };
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(clv_bytes_done)
    clv_bytes b = make_repeated_graph(cases[i].unit, cases[i].len, cases[i].total);
    assert_bounded(&b, cases[i].what);
  }
  CLV_AUTO(clv_bytes_done) clv_bytes packed = {0};
  while (packed.len < 200 << 10) clv_bytes_add(&packed, "\x01", 1);
  wrap_in_field(&packed, 2); /* the numbers of one attribute, 8 bytes of memory each */
  wrap_in_field(&packed, 5);
  wrap_in_field(&packed, 1);
  wrap_in_field(&packed, 5);
  assert_bounded(&packed, "packed numbers");
}

static void deep_nesting_is_refused(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
  for (int i = 0; i < 3000; i++) wrap_in_field(&b, 5); /* an unknown field, nested 3,000 deep */
  assert_int_not_equal(decode_load(&b, &err), CLV_OK);
  clv_bytes_done(&b);
  for (int i = 0; i < 200; i++) {
    clv_bytes_add(&b, "\x12\0", 2);
    wrap_in_field(&b, 5);
  }
  assert_int_not_equal(decode_load(&b, &err), CLV_OK);
}

static void malformed_bytes_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *bytes;
    size_t len;
    const char *error_part;
  } cases[] = {
#define CASE(text, part) {text, sizeof(text) - 1, part}
      CASE("\x0a", "runs past the end"),
      CASE("\x0a\x05"
           "abc",
           "3 are left"),
      CASE("\x2a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "9223372036854775807"),
      CASE("\x2a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "18446744073709551615"),
      CASE("\x10\x80", "runs past the end"),
      CASE("\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "more than 64 bits"),
      CASE("\x08\x01", "session has wire type 0"),
      CASE("\x12\x01\x01", "epoch has wire type 2"),
      CASE("\x2b", "wire type 3"),
      CASE("\x00\x00", "field number 0"),
      CASE("\x2a\x00\x2a\x00", "LoadModuleRequest.graph occurs twice"),
      CASE("\x4a\x01\n", "of device is a control character"),
      CASE("\x4a\x03"
           "a\0b",
           "byte 1 (0x00) of device"),
      CASE("\x4a\x02\xc3\x28", "not UTF-8"),
      CASE("\x2a\x02\x12\x05", "0 are left"),
      CASE("\x2a\x05\x12\x03\x80\x80\x80", "runs past the end"),
      CASE("\x7a\x0a\x12\x08\xff\xff\xff\xff\xff\xff\xff\xff", "runs past the end"),
      CASE("\x3a\x02\x15\x00", "lr has wire type 5"),
      CASE("", "session id"),
#undef CASE
  };
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    clv_err err = {0};
    clv_bytes b = {(char *)(uintptr_t)cases[i].bytes, cases[i].len, 0, false};
    clv_code code = decode_load(&b, &err);
    if (code != CLV_INVALID || !strstr(err.text, cases[i].error_part))
      fail_msg("case %zu: %d \"%s\", not \"%s\"", i, (int)code, err.text, cases[i].error_part);
  }
}

static void truncated_or_flipped_bytes_never_crash_the_decoder(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes whole = {0};
  clv_wire_load_request m = make_load_request();
  assert_ok(clv_wire_load_request_encode(&m, &whole, &err));
  for (size_t len = 0; len < whole.len; len++) {
    char *copy = malloc(len + 1);
    memcpy(copy, whole.data, len);
    (void)!decode_load(&(clv_bytes){copy, len, 0, false}, &err);
    free(copy);
  }
  for (size_t bit = 0; bit < whole.len * 8; bit++) {
    whole.data[bit / 8] = (char)(whole.data[bit / 8] ^ (1 << (bit % 8)));
    (void)!decode_load(&whole, &err);
    whole.data[bit / 8] = (char)(whole.data[bit / 8] ^ (1 << (bit % 8)));
  }
  assert_ok(decode_load(&whole, &err));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(load_request_round_trips),
      cmocka_unit_test(missing_module_name_reads_as_empty),
      cmocka_unit_test(final_optimizer_round_trips),
      cmocka_unit_test(invalid_ties_are_refused),
      cmocka_unit_test(parameter_groups_round_trip),
      cmocka_unit_test(too_many_names_in_groups_are_refused),
      cmocka_unit_test(too_many_calls_in_flight_are_refused),
      cmocka_unit_test(load_reply_round_trips),
      cmocka_unit_test(invalid_load_requests_are_refused),
      cmocka_unit_test(large_graph_fits_the_memory_budget),
      cmocka_unit_test(amplification_is_refused),
      cmocka_unit_test(wrong_number_of_keys_is_refused),
      cmocka_unit_test(node_limit_follows_names_and_attributes),
      cmocka_unit_test(accepted_message_stays_within_the_memory_bound),
      cmocka_unit_test(deep_nesting_is_refused),
      cmocka_unit_test(malformed_bytes_are_refused),
      cmocka_unit_test(truncated_or_flipped_bytes_never_crash_the_decoder),
  };
  return cmocka_run_group_tests_name("unary", tests, NULL, NULL);
}

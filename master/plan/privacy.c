/* SPDX-License-Identifier: Apache-2.0
 *
 * What a worker can read of records and labels. Every path counts for itself, each addend of a sum
 * too. From the records forwards: on each path to a tensor that leaves, a layer at home has to mix
 * by weights whose first values no worker can know, or the tensor shows what it is made of. From
 * the loss backwards: on each path of a gradient to a worker such a layer has to learn as well.
 *
 * First values are secret when they are drawn from a seed that cannot be tried out, or come from a
 * file that the session declares secret. A worker knows its own layers, and workers may talk to
 * each other: a layer at any of them hides nothing.
 */
#include <stdio.h>
#include <string.h>

#include "master/plan/plan_int.h"

#define NO_WAY UINT32_MAX
enum { SHOWN_NODES = 6, SHOWN_NAME = 24 };

typedef struct layer_facts {
  uint32_t stage;
  uint32_t weights_at; /* the stage whose weights it has */
  int64_t fan_in;      /* the most inputs that one output is a sum of */
  bool frozen, weighs; /* weighs: it has weights of rank 2 or more */
  bool drawn;          /* each of its weights is, though others of the stage are not */
} layer_facts;

/* The whole model; arrays by node. */
typedef struct view {
  const clv_blueprint *b;
  const clv_graph *g;
  bool all_home;  /* as if the master had every layer */
  bool one_value; /* a record is one number or token */
  layer_facts of[CLV_MAX_NODES];
  clv_findings shows[CLV_MAX_NODES];
  uint32_t front[CLV_MAX_NODES]; /* layers that hide on the shortest way from the records */
  uint32_t head[CLV_MAX_NODES];  /* secret layers that learn on the shortest way to the loss */
  uint32_t until[CLV_MAX_NODES]; /* the last layer that reads the value */
} view;

/* ---- layers ---------------------------------------------------------------------------------- */

static bool is_input(const view *v, int k) { return v->g->nodes[k].op == CLV_OP_INPUT; }

static const clv_op_def *def_of(const view *v, int k) { return clv_op_def_of(v->g->nodes[k].op); }

static bool at_home(const view *v, int k) {
  return v->all_home || v->b->stages[v->of[k].stage].worker < 0;
}

/* Does it mix, with weights known or not? */
static bool mixes(const view *v, int k) {
  return !is_input(v, k) && def_of(v, k)->mixes != CLV_MIXES_NOTHING && v->of[k].fan_in > 1 &&
         at_home(v, k);
}

/* Why a layer that mixes hides nothing; NULL: it does hide. */
static const char *excuse(const view *v, int k, bool labels) {
  const clv_stage_spec *s = &v->b->config->stages[v->of[k].weights_at];
  const clv_node *n = &v->g->nodes[k];
  bool adapter = clv_lora_is_adapter(n->name), fresh = v->of[k].drawn && !adapter;
  bool drawn = adapter ? !s->lora.from : !clv_stage_pushes(s) || fresh;
  if (drawn && n->op == CLV_OP_LINEAR && n->attrs.init_zero) return "begins with 0";
  if (adapter && s->lora.from) return "has adapters from a file";
  if (s->weights_artifact && !fresh) return "has weights from a worker";
  if (!adapter && v->b->stages[v->of[k].weights_at].has_modules)
    return "has weights from a folder of adapters";
  if (clv_stage_pushes(s) && !fresh && !s->weights_secret)
    return "has weights from a file that is not declared secret: true";
  if (drawn && v->b->config->train.seed.guessable)
    return "has weights from a train.seed that can be tried out (leave it out)";
  if (v->b->known && v->b->known[k]) return v->b->known[k];
  if (labels && v->of[k].frozen) return "is frozen";
  return NULL;
}

static bool hides(const view *v, int k, bool labels) {
#ifdef CLV_MUTATE_KNOWN
  (void)labels;
  return mixes(v, k);
#else
  return mixes(v, k) && !excuse(v, k, labels);
#endif
}

/* ---- the view -------------------------------------------------------------------------------- */

/* Where the nodes of a stage are in the whole model, in which they come in the same order. */
static void find_nodes(const view *v, const clv_graph *stage, int *node_of) {
  int k = 0;
  for (int i = 0; i < stage->n_nodes; i++) {
    if (stage->nodes[i].op == CLV_OP_INPUT) continue;
    while (k + 1 < v->g->n_nodes && strcmp(v->g->nodes[k].name, stage->nodes[i].name) != 0) k++;
    node_of[i] = k;
  }
}

static void take_params(view *v, const clv_stage_plan *s, const clv_stage_spec *spec) {
  int node_of[CLV_MAX_NODES] = {0};
  find_nodes(v, s->graph, node_of);
  for (int i = 0; i < s->params->n; i++) {
    const clv_param *p = &s->params->list[i];
    layer_facts *f = &v->of[node_of[p->node]];
    if (p->shape.rank < 2) continue;
    f->weighs = true;
    f->frozen |= p->frozen;
    f->drawn &= clv_weights_is_fresh(p->name, (const char *const *)spec->weights_new.items,
                                     spec->weights_new.n);
  }
}

/* What a layer has of another one is as that, wherever it is. */
static void take_tie(view *v, int k, int owner) {
  const layer_facts own = v->of[k], *of = &v->of[owner];
  v->of[k] =
      (layer_facts){own.stage, of->weights_at, own.fan_in, of->frozen, of->weighs, of->drawn};
}

static uint32_t stage_of(const clv_blueprint *b, uint32_t layer) {
  uint32_t stage = 0;
  while (stage + 1 < b->n_stages && layer > b->stages[stage].last_layer) stage++;
  return stage;
}

static void take_layers(view *v) {
  for (int k = 0; k < v->g->n_nodes; k++) {
    uint32_t layer = v->g->nodes[k].layer;
    if (is_input(v, k)) continue;
    v->of[k] = (layer_facts){.stage = stage_of(v->b, layer),
                             .weights_at = stage_of(v->b, layer),
                             .fan_in = clv_node_mixed(v->g, &v->g->nodes[k]),
                             .drawn = true};
  }
  for (uint32_t s = 0; s < v->b->n_stages; s++)
    take_params(v, &v->b->stages[s], &v->b->config->stages[s]);
  for (int k = 0; k < v->g->n_nodes; k++)
    for (int i = 0; v->g->nodes[k].tied[0] && i < v->g->n_nodes; i++)
      if (strcmp(v->g->nodes[i].name, v->g->nodes[k].tied) == 0) take_tie(v, k, i);
}

static void take_uses(view *v) {
  for (int k = 0; k < v->g->n_nodes; k++) v->until[k] = 0;
  for (int k = 0; k < v->g->n_nodes; k++)
    for (int i = 0; i < v->g->nodes[k].n_in; i++) {
      uint32_t *until = &v->until[v->g->nodes[k].in[i]];
      *until = CLV_MAX(*until, v->g->nodes[k].layer);
    }
  v->until[v->g->output] = NO_WAY;
}

/* ---- from the records ------------------------------------------------------------------------ */

/* The input of a node that shows most. */
static int worst_input(const view *v, int k) {
  const clv_node *n = &v->g->nodes[k];
  int worst = n->in[0];
#ifndef CLV_MUTATE_ADDENDS
  for (int i = 1; i < n->n_in; i++)
    if (v->shows[n->in[i]] > v->shows[worst]) worst = n->in[i];
#endif
  return worst;
}

static clv_findings shows_after(const view *v, int k) {
  int from = worst_input(v, k);
  clv_findings in = v->shows[from];
  if (at_home(v, k) && def_of(v, k)->rows) return CLV_MIN(in, CLV_SHOWS_TOKENS);
  if (!mixes(v, k)) return in;
  bool each = def_of(v, k)->mixes == CLV_MIXES_LAST && v->g->nodes[from].shape.rank > 2;
  if (in == CLV_SHOWS_TOKENS && (each || v->one_value)) return in;
  return hides(v, k, false) ? CLV_SHOWS_MIXED : CLV_MIN(in, CLV_SHOWS_FRONT_KNOWN);
}

/* How long a sequence is counts as no record; `plan` says that it is sent. */
static clv_findings shows_of_input(const clv_graph *g, int k) {
  return clv_graph_lengths(g, k) ? CLV_SHOWS_MIXED : CLV_SHOWS_RAW_INPUT;
}

static uint32_t front_after(const view *v, int k) {
  uint32_t least = NO_WAY;
  for (int i = 0; i < v->g->nodes[k].n_in; i++)
    least = CLV_MIN(least, v->front[v->g->nodes[k].in[i]]);
  return least == NO_WAY ? NO_WAY : least + hides(v, k, false);
}

static void go_forward(view *v) {
  for (int k = 0; k < v->g->n_nodes; k++) {
    v->shows[k] = is_input(v, k) ? shows_of_input(v->g, k) : shows_after(v, k);
    v->front[k] = !is_input(v, k) ? front_after(v, k) : v->shows[k] ? 0 : NO_WAY;
  }
}

/* ---- from the loss --------------------------------------------------------------------------- */

static uint32_t head_through(const view *v, int k) {
  return v->head[k] == NO_WAY ? NO_WAY : v->head[k] + hides(v, k, true);
}

static void go_back(view *v) {
  for (int k = 0; k < v->g->n_nodes; k++) v->head[k] = NO_WAY;
  v->head[v->g->output] = 0;
  for (int k = v->g->n_nodes - 1; k >= 0; k--)
    for (int i = 0; i < v->g->nodes[k].n_in; i++) {
      uint32_t *head = &v->head[v->g->nodes[k].in[i]];
      *head = CLV_MIN(*head, head_through(v, k));
    }
}

/* ---- cuts ------------------------------------------------------------------------------------ */

static void look(const clv_blueprint *b, bool all_home, view *v) {
  *v = (view){.b = b, .g = b->whole, .all_home = all_home, .one_value = true};
  for (size_t k = 0; k < b->inputs.n; k++)
    for (int i = 1; i < b->inputs.list[k].shape.rank; i++)
      v->one_value &= b->inputs.list[k].shape.dim[i] == 1;
  take_layers(v);
  take_uses(v);
  go_forward(v);
  go_back(v);
}

/* Is the value made before a cut and read behind it? Inputs cross none: they go to the stages that
 * read them. What would show if all behind a cut were away counts them. */
static bool crosses(const view *v, int k, uint32_t last) {
  bool before = is_input(v, k) ? v->all_home && v->shows[k] == CLV_SHOWS_RAW_INPUT
                               : v->g->nodes[k].layer <= last;
  return before && v->until[k] > last;
}

/* The value behind layer `last` that shows most. */
static int shown_at(const view *v, uint32_t last) {
  int worst = -1;
  for (int k = 0; k < v->g->n_nodes; k++)
    if (crosses(v, k, last) && (worst < 0 || v->shows[k] > v->shows[worst])) worst = k;
  return worst;
}

static uint32_t front_at(const view *v, uint32_t last) {
  uint32_t least = NO_WAY;
  for (int k = 0; k < v->g->n_nodes; k++)
    if (crosses(v, k, last)) least = CLV_MIN(least, v->front[k]);
  return least;
}

static uint32_t head_at(const view *v, uint32_t last) {
  uint32_t least = NO_WAY;
  for (int k = 0; k < v->g->n_nodes; k++)
    if (crosses(v, k, last)) least = CLV_MIN(least, v->head[k]);
  return least;
}

static clv_findings shows_of_head(uint32_t layers) {
  return layers ? CLV_SHOWS_MIXED : CLV_SHOWS_LABELS_READABLE;
}

clv_findings clv_privacy_of_cut(const clv_blueprint *b, uint32_t last) {
  view v;
  look(b, true, &v);
  return v.shows[shown_at(&v, last)];
}

clv_findings clv_privacy_of_head(const clv_blueprint *b, uint32_t last) {
  view v;
  look(b, true, &v);
  return shows_of_head(head_at(&v, last));
}

void clv_privacy_find(clv_blueprint *b) {
  view v;
  bool home = b->stages[b->n_stages].worker < 0;
  look(b, false, &v);
  for (uint32_t i = 0; i < b->n_stages; i++) {
    clv_stage_plan *s = &b->stages[i];
    s->shows = v.shows[shown_at(&v, s->last_layer)];
    s->front_layers = front_at(&v, s->last_layer);
    s->head_layers = head_at(&v, s->last_layer);
    s->gradient_shows = home ? shows_of_head(s->head_layers) : CLV_SHOWS_MIXED;
  }
}

/* Inputs come first in a graph, in their order. */
clv_findings clv_shown_by_leaf(const clv_blueprint *b, uint32_t stage, uint32_t input) {
  return shows_of_input(b->whole, (int)b->stages[stage].leaf[input - (stage > 0)]);
}

/* The most that inputs of stage i show to its worker; false: it is at home, or reads none. */
static bool leaves_shown(const clv_blueprint *b, uint32_t i, clv_findings *ret) {
  const clv_stage_plan *s = &b->stages[i];
  if (s->worker < 0 || !s->n_leaves) return false;
  *ret = 0;
  for (uint32_t k = 0; k < s->n_leaves; k++) *ret |= clv_shown_by_leaf(b, i, k + (i > 0));
  return true;
}

/* ---- refusals -------------------------------------------------------------------------------- */

typedef struct layer_way {
  int n, node[CLV_MAX_NODES]; /* in the order of the model */
} layer_way;

static void way_from_records(const view *v, int k, layer_way *w) {
  int n = 0;
  for (int i = k; !is_input(v, i); i = worst_input(v, i)) n++;
  w->n = n;
  for (int i = k; !is_input(v, i); i = worst_input(v, i)) w->node[--n] = i;
}

/* The reader of k on the way to the loss with the fewest layers that hide. */
static int best_reader(const view *v, int k) {
  for (int m = k + 1; m < v->g->n_nodes; m++)
    for (int i = 0; i < v->g->nodes[m].n_in; i++)
      if (v->g->nodes[m].in[i] == k && head_through(v, m) == v->head[k]) return m;
  return -1;
}

static void way_to_loss(const view *v, uint32_t last, layer_way *w) {
  int k = 0;
  while (k < v->g->n_nodes && !(crosses(v, k, last) && v->head[k] == 0)) k++;
  for (w->n = 0; k >= 0 && k < v->g->n_nodes && k != v->g->output; w->n++)
    if ((k = best_reader(v, k)) >= 0) w->node[w->n] = k;
}

/* The end of a long name says which layer it is, and messages have an end as well. */
static const char *short_name(const clv_node *n) {
  const char *name = n->name, *dot;
  while (strlen(name) > SHOWN_NAME && (dot = strchr(name, '.'))) name = dot + 1;
  return name;
}

/* "3 (flatten) -> fc (linear)", of a long way its ends. */
static void put_way(const view *v, const layer_way *w, clv_bytes *out) {
  for (int i = 0; i < w->n; i++) {
    bool gap = w->n > SHOWN_NODES && i == SHOWN_NODES / 2;
    const clv_node *n = &v->g->nodes[w->node[i]];
    if (i) clv_bytes_puts(out, " -> ");
    if (gap) i = w->n - SHOWN_NODES / 2 - 1;
    if (gap)
      clv_bytes_puts(out, "...");
    else
      clv_bytes_printf(out, "%.24s (%s)", short_name(n), clv_op_name(n->op));
  }
  if (!w->n) clv_bytes_puts(out, "of no layer at all");
}

/* What a reader may wonder about: the layer on the way that mixes and does not count. */
static void put_excuse(const view *v, const layer_way *w, bool labels, clv_bytes *out) {
  for (int i = 0; i < w->n; i++) {
    if (!mixes(v, w->node[i])) continue;
    const char *why = excuse(v, w->node[i], labels);
    clv_bytes_printf(out, "; %.24s %s", short_name(&v->g->nodes[w->node[i]]),
                     why ? why : "works on each token alone");
    return;
  }
}

/* "linear, conv2d or lstm" */
static void put_mixing_ops(clv_bytes *out) {
  const char *last = NULL;
  for (int op = 0, n = 0; op < CLV_OP_COUNT; op++) {
    const clv_op_def *def = clv_op_def_of((clv_op)op);
    if (!def || def->mixes == CLV_MIXES_NOTHING) continue;
    if (last) clv_bytes_printf(out, "%s%s", n++ ? ", " : "", last);
    last = def->name;
  }
  clv_bytes_printf(out, " or %s", last);
}

static const char *place_name(const clv_blueprint *b, uint32_t stage) {
  return b->config->workers[b->stages[stage].worker].name;
}

/* What a worker is sent, and the key of `privacy` that permits it. */
typedef struct records_refusal {
  clv_shows shows;
  const char *what, *key;
} records_refusal;

static const records_refusal refusals[] = {
    {CLV_SHOWS_RAW_INPUT, "is sent the records in all but name", "raw_input_leaves"},
    {CLV_SHOWS_TOKENS, "is sent one vector per token", "tokens_readable"},
    {CLV_SHOWS_FRONT_KNOWN, "is sent records that only known weights have mixed", "front_known"}};

/* The worst finding that the session does not permit. */
static const records_refusal *refusal_of(const clv_blueprint *b, clv_findings shows) {
  clv_shows worst = clv_findings_worst(clv_privacy_forbids(b->config, shows));
  for (size_t i = 0; i < CLV_COUNT(refusals); i++)
    if (refusals[i].shows == worst) return &refusals[i];
  return &refusals[0];
}

static clv_code refuse_records(const clv_blueprint *b, uint32_t i, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, ops = {0};
  const records_refusal *r = refusal_of(b, b->stages[i].shows);
  view v;
  layer_way w;
  look(b, false, &v);
  way_from_records(&v, shown_at(&v, b->stages[i].last_layer), &w);
  put_way(&v, &w, &path);
  put_excuse(&v, &w, false, &path);
  put_mixing_ops(&ops);
  clv_config_pos pos =
      i + 1 < b->n_stages ? b->config->stages[i + 1].at_pos : b->config->loss.at_pos;
  return clv_session_fail_at(
      b->config, pos, err,
      "worker '%s' %s by stage '%s': no %s with secret first values is on the path; put one "
      "there, at master, or set privacy.%s: true; the path: %s",
      place_name(b, i + 1), r->what, b->config->stages[i].name, ops.data, r->key, path.data);
}

/* The first stage at a worker is refused with the file, before there is a model. */
static clv_code check_leaves(const clv_blueprint *b, uint32_t i, clv_err *err) {
  const clv_stage_plan *s = &b->stages[i];
  clv_findings shows;
  if (!i || !leaves_shown(b, i, &shows) || !clv_privacy_forbids(b->config, shows)) return CLV_OK;
  uint32_t k = 0;
  while (clv_shown_by_leaf(b, i, k + 1) != shows) k++;
  return clv_session_fail_at(b->config, b->config->stages[i].at_pos, err,
                             "worker '%s' is sent the records: layers of stage '%s' read '%s'; "
                             "read it at master, or set privacy.raw_input_leaves: true",
                             place_name(b, i), b->config->stages[i].name,
                             b->inputs.list[s->leaf[k]].name);
}

static clv_code refuse_labels(const clv_blueprint *b, uint32_t i, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, ops = {0};
  view v;
  layer_way w;
  look(b, false, &v);
  way_to_loss(&v, b->stages[i].last_layer, &w);
  put_way(&v, &w, &path);
  put_excuse(&v, &w, true, &path);
  put_mixing_ops(&ops);
  return clv_session_fail_at(
      b->config, b->config->stages[i].at_pos, err,
      "stage '%s' at '%s' can read the labels from its gradient: no %s that learns from secret "
      "first values is on the path to the loss; end with such a layer at master, or set "
      "privacy.labels_readable: true; the path: %s",
      b->config->stages[i].name, place_name(b, i), ops.data, path.data);
}

/* Is a gradient sent to the worker of stage i? */
static bool has_gradient(const clv_blueprint *b, uint32_t i) {
  return b->stages[i].worker >= 0 && b->stages[i + 1].input_needs_grad;
}

/* Of several stages with readable gradients the one next to the loss is named. */
clv_code clv_privacy_check(const clv_blueprint *b, clv_err *err) {
#ifndef CLV_MUTATE_PRIVACY
  for (uint32_t i = 0; i < b->n_stages; i++)
    if (b->stages[i].worker < 0 && b->stages[i + 1].worker >= 0 &&
        clv_privacy_forbids(b->config, b->stages[i].shows))
      return refuse_records(b, i, err);
  for (uint32_t i = 0; i < b->n_stages; i++) CLV_TRY(check_leaves(b, i, err));
  for (uint32_t i = b->n_stages; i-- > 0;)
    if (has_gradient(b, i) && clv_privacy_forbids(b->config, b->stages[i].gradient_shows))
      return refuse_labels(b, i, err);
#endif
  return CLV_OK;
}

/* ---- for `plan` ------------------------------------------------------------------------------ */

/* The most that leaves of the records; false: nothing does. */
static bool records_shown(const clv_blueprint *b, clv_findings *ret) {
  clv_findings leaves;
  bool any = false;
  *ret = 0;
  for (uint32_t i = 0; i < b->n_stages; i++) {
    if (leaves_shown(b, i, &leaves)) any = true, *ret |= leaves;
    if (b->stages[i].worker >= 0 || b->stages[i + 1].worker < 0) continue;
    any = true;
    *ret |= b->stages[i].shows;
  }
  return any;
}

/* The stage with a gradient that has the thinnest head behind it, n_stages: none has. */
static uint32_t thinnest(const clv_blueprint *b) {
  uint32_t found = b->n_stages;
  for (uint32_t i = 0; i < b->n_stages; i++) {
    if (!has_gradient(b, i)) continue;
    if (found == b->n_stages || b->stages[i].head_layers <= b->stages[found].head_layers) found = i;
  }
  return found;
}

static bool single_output(const clv_blueprint *b) {
  const clv_shape *out = &b->whole->nodes[b->whole->output].shape;
  int64_t n = 1;
  for (int i = 1; i < out->rank; i++) n *= out->dim[i];
  return n == 1;
}

static const char *labels_case(const clv_blueprint *b, uint32_t at) {
  if (b->stages[b->n_stages].worker >= 0) return "leave";
  if (at == b->n_stages) return "stay";
  return b->stages[at].gradient_shows == CLV_SHOWS_MIXED ? "inferable" : "readable";
}

static void text_labels(const clv_blueprint *b, uint32_t at, clv_bytes *out) {
  const char *which = labels_case(b, at);
  clv_bytes_puts(out, "labels: ");
  if (strcmp(which, "leave") == 0)
    clv_bytes_printf(out, "LEAVE, to %s (privacy.labels_leave)\n", place_name(b, b->n_stages));
  else if (strcmp(which, "stay") == 0)
    clv_bytes_puts(out, "stay on the master; no worker is sent a gradient\n");
  else if (strcmp(which, "readable") == 0)
    clv_bytes_printf(out,
                     "READABLE by %s from the gradient for stage '%s' "
                     "(privacy.labels_readable)\n",
                     place_name(b, at), b->config->stages[at].name);
  else
    clv_bytes_printf(
        out,
        "not sent; they can be inferred: %u secret layer%s behind stage '%s', and gradients gave "
        "99.98 %% of Fashion-MNIST's labels behind one, 91.9 %% behind two%s\n",
        b->stages[at].head_layers, CLV_S(b->stages[at].head_layers), b->config->stages[at].name,
        single_output(b) ? "; the one output shows its sign" : "");
}

/* Can somebody compute the vectors of tokens that he tries? An adapter begins with nothing. */
static bool knows_front(const clv_blueprint *b, uint32_t stage) {
  view v;
  look(b, false, &v);
  for (int k = 0; k < v.g->n_nodes; k++) {
    const clv_node *n = &v.g->nodes[k];
    if (is_input(&v, k) || n->layer > b->stages[stage].last_layer || !at_home(&v, k)) continue;
    if (v.of[k].weighs && !clv_lora_is_adapter(n->name) && !excuse(&v, k, false)) return false;
  }
  return true;
}

static bool token_front_known(const clv_blueprint *b) {
  for (uint32_t i = 0; i < b->n_stages; i++)
    if (b->stages[i].worker < 0 && b->stages[i + 1].worker >= 0 &&
        (b->stages[i].shows & CLV_SHOWS_TOKENS) && knows_front(b, i))
      return true;
  return false;
}

/* tests/seeds/seed000.py measures the first figure of each, at the first step, where most is read;
 * those of others are published. */
static void text_tokens(const clv_blueprint *b, clv_bytes *out) {
  clv_bytes_printf(
      out,
      "records: TOKENS: one vector per token is sent (privacy.tokens_readable), %s of tokens were "
      "read off behind the first block of a LayoutLM; published: 59 %% behind two blocks, 35 %% "
      "behind eight (arXiv 2602.16760)\n",
      token_front_known(b) ? "by layers whose weights are known: with these, 92 %"
                           : "by layers with secret weights: with the words of ten pages, 54 %");
}

static void text_mixed(bool any, clv_bytes *out) {
  clv_bytes_printf(
      out, "records: %s\n",
      any ? "not sent; what is sent was mixed by layers with secret first values, and tells of them"
          : "stay on the master");
}

static void json_privacy(const clv_blueprint *b, uint32_t at, bool any, clv_findings shows,
                         clv_bytes *out) {
  const char *which = labels_case(b, at);
  bool head = strcmp(which, "inferable") == 0;
  clv_bytes_printf(out, "{\"labels\":\"%s\",\"head_layers\":%u,\"single_output\":%s,", which,
                   head ? b->stages[at].head_layers : 0, single_output(b) ? "true" : "false");
  clv_findings_json(any, shows, out);
  if (shows & CLV_SHOWS_TOKENS)
    clv_bytes_printf(out, "\"front\":\"%s\",", token_front_known(b) ? "known" : "secret");
  clv_bytes_printf(out, "%s\"seed_guessable\":%s}", clv_lengths_json(b, any),
                   b->config->train.seed.guessable ? "true" : "false");
}

void clv_privacy_describe(const clv_blueprint *b, bool json, clv_bytes *out) {
  clv_findings shows;
  bool any = records_shown(b, &shows);
  uint32_t at = thinnest(b);
  if (json) {
    json_privacy(b, at, any, shows, out);
    return;
  }
  text_labels(b, at, out);
  clv_findings_describe(shows & CLV_SHOWS_RAW_INPUT, out);
  if (shows & CLV_SHOWS_TOKENS) text_tokens(b, out);
  clv_findings_describe(shows & ~(clv_findings)CLV_SHOWS_RAW_INPUT, out);
  if (!shows) text_mixed(any, out);
  clv_lengths_describe(b, any, out);
  if (any && b->config->train.seed.guessable)
    clv_bytes_puts(out,
                   "train.seed can be tried out: weights that are drawn from it count as known\n");
}

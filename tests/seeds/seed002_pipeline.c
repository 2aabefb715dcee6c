/* SPDX-License-Identifier: Apache-2.0
 *
 * Seed 002, pipeline: trains two stages with queues between them. Each stage takes forward and
 * backward slots by itself, so stage 0 has moved on when a batch's gradients come back. The
 * notebook's loop interleaves the slots in a fixed order, and so does this program.
 *
 * A batch is one context. Its backward runs through both stages when stage 1's slot comes; the
 * gradients stay in the context, and each stage takes its own step when the notebook lets it. While
 * stage 1 works for one batch, stage 0 computes the next ones.
 *
 * With WAIT_MS in its environment, a forward takes so many milliseconds longer, and so does stage
 * 1's backward (by the op `wait`, whose weight is frozen at 1, so the numbers do not change), and
 * the program runs fewer batches. The nodes' own events must then show that stage 0 computed while
 * stage 1 computed.
 */
#include "seed002.h"

enum { QUEUE = 8, WAITED_BATCHES = 16, MAX_EVENTS = 4096 };

typedef struct batch {
  size_t number;
  cleave_context context;
  cleave_reference hidden, target, loss;
} batch;

typedef struct queue {
  batch items[QUEUE];
  size_t first, n;
} queue;

static void add_to_queue(queue *q, batch item) {
  if (q->n == QUEUE) seed_fail("more than %d batches wait for a stage", QUEUE);
  q->items[(q->first + q->n++) % QUEUE] = item;
}

static batch take_from_queue(queue *q) {
  batch item = q->items[q->first];
  q->first = (q->first + 1) % QUEUE;
  q->n--;
  return item;
}

static cleave_module *stages[2], *bce;
static cleave_optimizer *optimizers[2];
static unsigned wait_ms; /* time in ms that the program waits in each stage; 0: it does not wait */
static cleave_event events[MAX_EVENTS];
static size_t n_events;
static cleave_tensor losses;
static double first_loss = NAN, last_loss = NAN;

/* Records an event. Called with the runtime's lock, so never by two threads at once. */
static void record_event(void *user, cleave_context context, const cleave_event *event) {
  (void)user, (void)context;
  if (n_events < MAX_EVENTS) events[n_events++] = *event;
}

static void load_stage(int s, const char *layers, const cleave_input *input) {
  static const char *const names[] = {"stage 0", "stage 1"}, *const nodes[] = {"w1", "w2"};
  const char *const frozen[] = {"wait.*"};
  cleave_module_options at = {.size = sizeof at,
                              .name = names[s],
                              .at = nodes[s],
                              .frozen = frozen,
                              .n_frozen = wait_ms ? 1 : 0};
  char wait[80] = "", text[160];
  if (wait_ms)
    snprintf(wait, sizeof wait, "{op: wait, name: wait, forward_ms: %u, input_ms: %u}, ", wait_ms,
             wait_ms);
  snprintf(text, sizeof text, "[%s%s]", wait, layers);
  MUST(cleave_load_layers(seed.rt, &at, text, input, &stages[s], &seed.e));
}

static void load_stages(void) {
  static const char *const layers[] = {"{op: linear, name: w1, out: 8}, {op: relu}",
                                       "{op: linear, name: w2, out: 1}, {op: sigmoid}"};
  static const char *const names[][2] = {{"w1.weight", "w1.bias"}, {"w2.weight", "w2.bias"}};
  cleave_input input[] = {CLEAVE_INPUT(CLEAVE_F32, SEED002_BATCH, SEED002_WIDTH),
                          CLEAVE_INPUT(CLEAVE_F32, SEED002_BATCH, 8)};
  cleave_input guesses = CLEAVE_INPUT(CLEAVE_F32, SEED002_BATCH, 1);
  cleave_module_options n_overlapping = {.size = sizeof n_overlapping, .name = "loss", .at = "w2"};
  for (int s = 0; s < 2; s++) {
    load_stage(s, layers[s], &input[s]);
    cleave_group group = {.modules = &stages[s], .n_modules = 1, .kind = CLEAVE_SGD, .lr = 0.5};
    MUST(cleave_optimizer_new(seed.rt, &group, 1, 0, &optimizers[s], &seed.e));
    for (int k = 0; k < 2; k++) seed002_set_weight(stages[s], names[s][k], names[s][k]);
  }
  MUST(cleave_load_loss(seed.rt, &n_overlapping, "bce", &guesses, &bce, &seed.e));
}

/* Runs the forward of stage 0 for the next batch. If the batch's end would wrap to row 0, the batch
 * ends before the last row instead. */
static batch run_stage_0_forward(size_t number) {
  batch b = {.number = number};
  cleave_tensor batch_x, batch_target;
  cleave_reference x;
  seed002_restart_from_golden(stages[0], number);
  size_t start = (seed.first_iteration + number) * SEED002_BATCH % SEED002_ROWS;
  size_t end = (start + SEED002_BATCH) % SEED002_ROWS;
  if (!seed002_get_data_rows(start, end ? end : SEED002_ROWS - 1, &batch_x, &batch_target))
    seed_fail("batch %zu is empty", number);
  cleave_context_options o = {.size = sizeof o, .events = wait_ms > 0};
  MUST(cleave_context_open(seed.rt, &o, &b.context, &seed.e));
  MUST(cleave_leaf(seed.rt, b.context, &batch_x, false, &x, &seed.e));
  MUST(cleave_leaf(seed.rt, b.context, &batch_target, false, &b.target, &seed.e));
  MUST(cleave_call(seed.rt, b.context, stages[0], &x, 1, &b.hidden, &seed.e));
  return b;
}

/* Runs the forward of stage 1 and the loss. */
static batch run_stage_1_forward(batch b) {
  cleave_reference both[] = {{0}, b.target};
  seed002_restart_from_golden(stages[1], b.number);
  MUST(cleave_call(seed.rt, b.context, stages[1], &b.hidden, 1, &both[0], &seed.e));
  MUST(cleave_call(seed.rt, b.context, bce, both, 2, &b.loss, &seed.e));
  return b;
}

/* Runs the backward of the loss and of stage 1, and steps stage 1. */
static batch run_stage_1_backward(batch b) {
  cleave_tensor value = {0};
  MUST(cleave_backward(seed.rt, b.context, &b.loss, 1, false, 0, &seed.e));
  MUST(cleave_step(seed.rt, optimizers[1], b.context, 0, NULL, &seed.e));
  MUST(cleave_to_here(seed.rt, b.loss, 0, &value, &seed.e));
  last_loss = seed_get_value(&value, 0);
  if (b.number == 0) first_loss = last_loss;
  seed002_compare_loss(b.number, last_loss, seed_get_value(&losses, b.number));
  cleave_tensor_free(&value);
  return b;
}

/* Steps stage 0, whose backward has run, and closes the context. */
static void run_stage_0_backward(batch b) {
  MUST(cleave_step(seed.rt, optimizers[0], b.context, 0, NULL, &seed.e));
  MUST(cleave_context_close(seed.rt, b.context, 0, &seed.e));
}

/* ---- overlap of the stages ------------------------------------------------------------------- */

static bool is_compute_event(const cleave_event *e, int stage) {
  return e->module == stages[stage] && e->kind <= CLEAVE_EVENT_BACKWARD_WEIGHT;
}

/* True if stage 1 computed at some time during this event. Both workers are on this machine and use
 * one clock. */
static bool overlaps_stage_1(const cleave_event *e) {
  for (size_t i = 0; i < n_events; i++)
    if (is_compute_event(&events[i], 1) && events[i].begin_ns < e->end_ns &&
        e->begin_ns < events[i].end_ns)
      return true;
  return false;
}

/* Asserts that at least half of stage 0's forwards overlap with work of stage 1. On a busy machine
 * some forwards may not. */
static void check_overlap(void) {
  unsigned n = 0, n_overlapping = 0;
  for (size_t i = 0; i < n_events; i++) {
    if (!is_compute_event(&events[i], 0) || events[i].kind != CLEAVE_EVENT_FORWARD) continue;
    n++;
    n_overlapping += overlaps_stage_1(&events[i]);
  }
  printf("stage 0 computed %u of %u batches while stage 1 computed others\n", n_overlapping, n);
  if (n < WAITED_BATCHES / 2 || 2 * n_overlapping < n) seed_fail("the stages take turns");
}

/* ---- the notebook's loop --------------------------------------------------------------------- */

static void print_progress(size_t number) {
  if (number < 2) printf("Filling pipeline to start, batch %zu\n", number);
  if (number % 1000 == 3) printf("loss at iteration %zu: %.3f\n", number, last_loss);
}

static void run_pipeline(size_t n) {
  queue stage_1_forward = {0}, stage_1_backward = {0}, stage_0_backward = {0};
  bool forward[] = {true, false};
  for (size_t number = 0; number < n; forward[1] = !forward[1]) {
    if (forward[0]) {
      add_to_queue(&stage_1_forward, run_stage_0_forward(number));
      print_progress(number++);
    } else if (stage_0_backward.n) {
      run_stage_0_backward(take_from_queue(&stage_0_backward));
    }
    if (forward[1])
      add_to_queue(&stage_1_backward, run_stage_1_forward(take_from_queue(&stage_1_forward)));
    else if (stage_1_backward.n)
      add_to_queue(&stage_0_backward, run_stage_1_backward(take_from_queue(&stage_1_backward)));
    if (number > 2) forward[0] = !forward[0];
  }
  queue *const unfinished_queues[] = {&stage_1_forward, &stage_1_backward, &stage_0_backward};
  for (size_t q = 0; q < 3; q++)
    while (unfinished_queues[q]->n)
      MUST(
          cleave_context_close(seed.rt, take_from_queue(unfinished_queues[q]).context, 0, &seed.e));
}

int main(int argc, char **argv) {
  const char *ms = getenv("WAIT_MS");
  const cleave_options options = {.size = sizeof options, .on_event = record_event};
  wait_ms = ms ? (unsigned)strtoul(ms, NULL, 10) : 0;
  if (wait_ms) seed.runtime_options = &options;
  seed_open_session("seed002_pipeline", argc, argv);
  losses = seed_get_golden("losses");
  /* the losses of the last two batches are not returned */
  size_t n = cleave_tensor_count(&losses) + 2;
  if (wait_ms) n = WAITED_BATCHES;
  load_stages();
  run_pipeline(n);
  if (wait_ms) check_overlap();
  return seed002_print_verdict(n, first_loss, last_loss);
}

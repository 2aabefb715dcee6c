/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the state tables of peers, modules and contexts: each cell (an event in a state) that must
 * exist does exist, and no other cell does.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "master/api/core/core.h"

typedef struct wanted_cell {
  int state, event, action, next_state;
} wanted_cell;

/* Defines a function, for each of the three state machines, that applies an event to a state: it
 * stores the next state in *state and returns the action. */
#define DEFINE_APPLY_EVENT(name, type)                                        \
  static api_action name(int *state, int event) {                             \
    api_##type##_state s = (api_##type##_state) * state;                      \
    api_action action = api_##type##_on_event(&s, (api_##type##_event)event); \
    *state = (int)s;                                                          \
    return action;                                                            \
  }
DEFINE_APPLY_EVENT(apply_peer_event, peer)
DEFINE_APPLY_EVENT(apply_module_event, module)
DEFINE_APPLY_EVENT(apply_context_event, context)

static void check_table(api_action (*apply_event)(int *state, int event), int n_states,
                        int n_events, const wanted_cell *cells, size_t n) {
  size_t n_found = 0;
  for (int s = 0; s < n_states; s++)
    for (int f = 0; f < n_events; f++) {
      int next_state = s, action = (int)apply_event(&next_state, f);
      const wanted_cell *e = cells;
      while (e < cells + n && (e->state != s || e->event != f)) e++;
      n_found += e < cells + n;
      assert_int_equal(action, e < cells + n ? e->action : API_ACTION_NEVER);
      assert_int_equal(next_state, e < cells + n ? e->next_state : s);
    }
  assert_int_equal(n_found, n);
}

static void a_lost_peer_is_present_only_after_a_rejoin(void **state) {
  static const wanted_cell cells[] = {
      {PEER_PRESENT, PEER_LINK_ENDS, API_ACTION_BEGIN, PEER_LOST},
      {PEER_PRESENT, PEER_REJOIN_BEGINS, API_ACTION_REFUSE, PEER_PRESENT},
      {PEER_PRESENT, PEER_CLOSES, API_ACTION_END, PEER_CLOSED},
      {PEER_LOST, PEER_LINK_ENDS, API_ACTION_IGNORE, PEER_LOST},
      {PEER_LOST, PEER_REJOIN_BEGINS, API_ACTION_BEGIN, PEER_REJOINING},
      {PEER_LOST, PEER_CLOSES, API_ACTION_IGNORE, PEER_CLOSED},
      {PEER_REJOINING, PEER_LINK_ENDS, API_ACTION_RECORD, PEER_LOST_DURING_REJOIN},
      {PEER_REJOINING, PEER_REJOIN_BEGINS, API_ACTION_REFUSE, PEER_REJOINING},
      {PEER_REJOINING, PEER_REJOINS, API_ACTION_SETTLE, PEER_PRESENT},
      {PEER_REJOINING, PEER_REJOIN_FAILS, API_ACTION_END, PEER_LOST},
      {PEER_REJOINING, PEER_CLOSES, API_ACTION_IGNORE, PEER_CLOSED},
      {PEER_LOST_DURING_REJOIN, PEER_LINK_ENDS, API_ACTION_IGNORE, PEER_LOST_DURING_REJOIN},
      {PEER_LOST_DURING_REJOIN, PEER_REJOIN_BEGINS, API_ACTION_REFUSE, PEER_LOST_DURING_REJOIN},
      {PEER_LOST_DURING_REJOIN, PEER_REJOINS, API_ACTION_REFUSE, PEER_LOST_DURING_REJOIN},
      {PEER_LOST_DURING_REJOIN, PEER_REJOIN_FAILS, API_ACTION_END, PEER_LOST},
      {PEER_LOST_DURING_REJOIN, PEER_CLOSES, API_ACTION_IGNORE, PEER_CLOSED},
      {PEER_CLOSED, PEER_LINK_ENDS, API_ACTION_IGNORE, PEER_CLOSED},
      {PEER_CLOSED, PEER_REJOIN_BEGINS, API_ACTION_REFUSE, PEER_CLOSED},
      {PEER_CLOSED, PEER_CLOSES, API_ACTION_IGNORE, PEER_CLOSED},
  };
  (void)state;
  check_table(apply_peer_event, N_PEER_STATES, N_PEER_EVENTS, cells, CLV_COUNT(cells));
}

static void a_module_keeps_its_index_until_its_node_has_answered(void **state) {
  static const wanted_cell cells[] = {
      {MODULE_NEW, MODULE_TRANSFER_BEGINS, API_ACTION_BEGIN, MODULE_PLACING},
      {MODULE_NEW, MODULE_OUTDATED, API_ACTION_IGNORE, MODULE_NEW},
      {MODULE_NEW, MODULE_UNLOADS, API_ACTION_BEGIN, MODULE_UNLOADING},
      {MODULE_NEW, MODULE_DROPPED, API_ACTION_END, MODULE_GONE},
      {MODULE_PLACING, MODULE_AT_NODE, API_ACTION_SETTLE, MODULE_PLACED},
      {MODULE_PLACING, MODULE_NOT_AT_NODE, API_ACTION_SETTLE, MODULE_NEW},
      {MODULE_PLACING, MODULE_OUTDATED, API_ACTION_IGNORE, MODULE_PLACING},
      {MODULE_PLACING, MODULE_UNLOADED, API_ACTION_SETTLE, MODULE_PLACING},
      {MODULE_PLACED, MODULE_TRANSFER_BEGINS, API_ACTION_BEGIN, MODULE_PLACING},
      {MODULE_PLACED, MODULE_OUTDATED, API_ACTION_RECORD, MODULE_PLACED},
      {MODULE_PLACED, MODULE_UNLOADS, API_ACTION_BEGIN, MODULE_UNLOADING},
      {MODULE_PLACED, MODULE_DROPPED, API_ACTION_END, MODULE_GONE},
      {MODULE_UNLOADING, MODULE_OUTDATED, API_ACTION_IGNORE, MODULE_UNLOADING},
      {MODULE_UNLOADING, MODULE_UNLOADED, API_ACTION_END, MODULE_GONE},
      {MODULE_UNLOADING, MODULE_DROPPED, API_ACTION_END, MODULE_GONE},
      {MODULE_GONE, MODULE_OUTDATED, API_ACTION_IGNORE, MODULE_GONE},
  };
  (void)state;
  check_table(apply_module_event, N_MODULE_STATES, N_MODULE_EVENTS, cells, CLV_COUNT(cells));
}

static void an_end_is_pending_until_the_owners_have_answered(void **state) {
  static const wanted_cell cells[] = {
      {API_CONTEXT_OPEN, API_CONTEXT_CLOSES, API_ACTION_BEGIN, API_CONTEXT_CLOSING},
      {API_CONTEXT_OPEN, API_CONTEXT_ENDS, API_ACTION_BEGIN, API_CONTEXT_ENDING},
      {API_CONTEXT_OPEN, API_CONTEXT_OWNERS_ANSWERED, API_ACTION_IGNORE, API_CONTEXT_OPEN},
      {API_CONTEXT_CLOSING, API_CONTEXT_OWNERS_LATE, API_ACTION_RECORD, API_CONTEXT_END_PENDING},
      {API_CONTEXT_CLOSING, API_CONTEXT_OWNERS_ANSWERED, API_ACTION_IGNORE, API_CONTEXT_CLOSING},
      {API_CONTEXT_CLOSING, API_CONTEXT_ONLY_KEPT_LEFT, API_ACTION_SETTLE, API_CONTEXT_ENDING_KEPT},
      {API_CONTEXT_ENDING, API_CONTEXT_OWNERS_LATE, API_ACTION_RECORD, API_CONTEXT_END_PENDING},
      {API_CONTEXT_ENDING, API_CONTEXT_OWNERS_ANSWERED, API_ACTION_IGNORE, API_CONTEXT_ENDING},
      {API_CONTEXT_ENDING, API_CONTEXT_ONLY_KEPT_LEFT, API_ACTION_SETTLE, API_CONTEXT_ENDING_KEPT},
      {API_CONTEXT_END_PENDING, API_CONTEXT_OWNERS_ANSWERED, API_ACTION_SETTLE,
       API_CONTEXT_ENDING_KEPT},
      {API_CONTEXT_ENDING_KEPT, API_CONTEXT_OWNERS_ANSWERED, API_ACTION_IGNORE,
       API_CONTEXT_ENDING_KEPT},
  };
  (void)state;
  check_table(apply_context_event, API_N_CONTEXT_STATES, API_N_CONTEXT_EVENTS, cells,
              CLV_COUNT(cells));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_lost_peer_is_present_only_after_a_rejoin),
      cmocka_unit_test(a_module_keeps_its_index_until_its_node_has_answered),
      cmocka_unit_test(an_end_is_pending_until_the_owners_have_answered),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

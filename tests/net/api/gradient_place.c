/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints where a module and the gradient of one of its parameters are, and how many gradients its
 * context has.
 *   gradient_place SESSION.yaml WORKER
 */
#include "api_int.h"

static bool reports_place_of_module(const char *at) {
  cleave_module *m, *loss;
  cleave_context c;
  cleave_reference x, t, y, l;
  cleave_place place;
  float in[12] = {1}, target[8] = {1};
  DO(load_module("m", at, "[{op: linear, out: 2}]", 3, &m));
  DO(load_loss("loss", "master", 2, &loss));
  DO(open_context(&c));
  DO(make_leaf(c, in, 4, 3, false, &x));
  DO(make_leaf(c, target, 4, 2, false, &t));
  MUST(cleave_call(rt, c, m, &x, 1, &y, e));
  MUST(cleave_call(rt, c, loss, (cleave_reference[]){y, t}, 2, &l, e));
  printf("module %s %s\n", cleave_module_node(m), cleave_module_device(m));
  DO(backward(c, l, false));
  MUST(cleave_gradient_place(rt, c, m, "0.weight", 0, &place, e));
  printf("gradient %s %s\n", place.node, place.device);
  cleave_gradients list;
  MUST(cleave_gradients_read(rt, c, 0, &list, e));
  printf("list %zu\n", list.n);
  cleave_gradients_free(&list);
  return close_context(c);
}

int main(int argc, char **argv) {
  cleave_error e = {0};
  if (argc != 3) return 2;
  if (cleave_open(argv[1], NULL, &rt, &e) != CLEAVE_OK) {
    fprintf(stderr, "%s\n", e.text);
    return 1;
  }
  bool ok = reports_place_of_module(argv[2]);
  if (!ok) fprintf(stderr, "%s\n", why);
  (void)!cleave_close(rt, 0, NULL, NULL);
  return ok ? 0 : 1;
}

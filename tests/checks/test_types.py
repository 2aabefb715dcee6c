# SPDX-License-Identifier: Apache-2.0
"""tests/check-types on a header whose type names show their folder, and on each kind that does
not."""
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import planted

GOOD = """typedef struct clv_a { int x; struct { int y; } in[2]; } clv_a;
typedef void link_fn(int x);
typedef clv_a *(*cleave_pointer)(void *user);
typedef float api_eight __attribute__((vector_size(32)));
"""
HEADER = "common/net/link/link.h"
PLANTED = {"bare": "typedef struct bare { int x; } bare;", "of_rpc": "typedef int rpc_code;", "function": "typedef void each_fn(int clv_x);",
           "pointer": "typedef void (*each_p)(int clv_x);", "array": "typedef int pair[2];", "vector": "typedef float v8 __attribute__((aligned(4)));"}
NAMES = {"bare": "bare", "of_rpc": "rpc_code", "function": "each_fn", "pointer": "each_p", "array": "pair", "vector": "v8"}
CASES = {"types with their prefix": ([], ["tests/check-types"], 0, "4 types of 1 headers")}
CASES.update((what, ([(HEADER, text + "\n")], ["tests/check-types"], 1, f"{HEADER}: the type {NAMES[what]} begins"))
             for what, text in PLANTED.items())
sys.exit(planted.judge({HEADER: GOOD, "tests/x": ""}, ("check-types", "callbacks.py", "tree.py"), CASES))

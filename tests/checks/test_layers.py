# SPDX-License-Identifier: Apache-2.0
"""tests/check-layers on a small tree: an include of a higher storey, a storey that uses one it must
not use, and a named folder that does not exist fail, and the message names them."""
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import planted

ROWS = """STOREY base
STOREY model
STOREY net model
STOREY engine
IN common/base base
USES common/base
SEES common/base
IN common/model/graph model
USES common/model/graph common/base
SEES common/model/graph
IN common/net/link net
USES common/net/link common/base
SEES common/net/link grpc
IN common/engine engine
USES common/engine common/base common/model/graph common/net/link
SEES common/engine
"""
MAKEFILE = "CFLAGS_common/net/link := -O2\nprint-layers:\n\t@cat rows\n"
FILES = {
    "rows": ROWS,
    "tests/circles": "",
    "Makefile": MAKEFILE,
    "common/base/base.h": "int base(void);\n",
    "common/model/graph/graph.h": '#include "common/base/base.h"\n',
    "common/net/link/link.h": '#include "common/base/base.h"\n#include <grpc/grpc.h>\n',
    "common/engine/engine.h": '#include "common/model/graph/graph.h"\n#include "common/net/link/link.h"\n',
}
FAULTS = {
    "an include that no row has": (
        [("common/model/graph/graph.h", '#include "common/net/link/link.h"\n')],
        "common/model/graph/graph.h:2: common/model/graph may not include common/net/link"),
    "a row that points up": (
        [("=rows", ROWS.replace("USES common/model/graph common/base", "USES common/model/graph common/base common/engine"))],
        "common/model/graph points up, from the storey model to common/engine in engine"),
    "a storey that another may not know": (
        [("=rows", ROWS.replace("USES common/net/link common/base", "USES common/net/link common/base common/model/graph"))],
        "common/net/link uses common/model/graph, and the storey net knows nothing of model"),
    "a folder in the storey of another": (
        [("=rows", ROWS.replace("IN common/net/link net", "IN common/net/link engine"))],
        "common/net/link is in the storey engine"),
    "a rule for a folder that is gone": (
        [("=Makefile", MAKEFILE.replace("common/net/link", "common/link"))], "Makefile:1: there is no common/link"),
    "a folder without a row": ([("common/other/other.h", "int other(void);\n")], "common/other: no row in common/layers.mk"),
    "a header of others that no row has": (
        [("common/model/graph/graph.h", "#include <grpc/grpc.h>\n")], "common/model/graph may not see grpc"),
    "an inner header from outside": (
        [("common/net/link/link_int.h", "int inner(void);\n"),
         ("common/engine/engine.h", '#include "common/net/link/link_int.h"\n')],
        "common/net/link/link_int.h is not the outward header of common/net/link"),
}
CHECK = ["tests/check-layers"]
CASES = {what: (changes, CHECK, 1, says) for what, (changes, says) in FAULTS.items()}
CASES["the tree as it is"] = ([], CHECK, 0, "layers hold over 4 folders")
sys.exit(planted.judge(FILES, ("check-layers", "tree.py"), CASES))

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/fuzz/corpus/query: valid and invalid queries of tests/golden/table/tables.db."""
from seeds.corpus import write

END = " ORDER BY record"
QUERIES = {
    "plain": "SELECT * FROM train" + END, "names": 'select "age", [dose], `site` from train order by 1; -- all',
    "parts": "WITH q AS (SELECT * FROM test) /* both */ SELECT age, upper(site), x'00' FROM q UNION ALL SELECT 1, NULL, 'it''s' ORDER BY 1",
    "window": "SELECT row_number() OVER (ORDER BY cost) AS n, 1e999, 0.1, -7 FROM train" + END,
    "no_order": "SELECT * FROM (SELECT * FROM train ORDER BY 1)", "two": "SELECT 1 ORDER BY 1; SELECT 2",
    "open": "SELECT 'x ORDER BY 1", "comment": "SELECT 1 /* ORDER BY 1", "recursive": "WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n) SELECT * FROM n ORDER BY i",
    "pragma": "SELECT * FROM pragma_table_info('train') ORDER BY 1", "delete": "DELETE FROM train ORDER BY 1 LIMIT 1",
    "attach": "ATTACH 'x' AS y ORDER BY", "load": "SELECT load_extension('x') ORDER BY 1", "explain": "EXPLAIN SELECT 1 ORDER BY 1",
    "parameter": "SELECT ?1, :a ORDER BY 1", "unknown": "SELECT * FROM nobody ORDER BY 1", "many": "SELECT a.age FROM train a, train b, train c" + " ORDER BY 1",
    "blob": "SELECT x'00ff' AS b, NULL ORDER BY 1", "empty": "",
}

for name, text in QUERIES.items():
    write("query", name, text)

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/fuzz/corpus/table: tables and files of what was learnt, right and wrong. The first
byte of each has the options of fuzz_table.c."""
import json, os

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus/table")
LEARNT, TSV, NUMBERS, UNLABELLED, SKIPS, GROUPS, OTHERS, COMMA = (1 << k for k in range(8))
HEADER = "a,b,c,d,e,f,t,id\n"
LINE = "1,2,3,x,y,yes,u,p1\n"
TABS = HEADER.replace(",", "\t")

TABLES = {
    "plain": (0, HEADER + LINE + ",,,,,,v,p2\n3,1e-3,0.5,z,y,no,u,p3\n4,2,1,x,w,1,v,p4\n"),
    "numbers": (NUMBERS, HEADER + "1,2,3,x,y,yes,1.5,p1\n2,2,3,x,y,f,-2,p1\n"),
    "tabs": (TSV, TABS + "1\t2\t3\tx\ty\t0\tu\tp\n5\t2\t3\tx\ty\tTRUE\tu\tp\n"),
    "quotes": (0, '\ufeff"a","b",c,d,e,f,t,id\r\n"1",2,3,"x, ""1""\n",y,yes,u,p\r\n2,3,4,x,y,no,v,q'),
    "broken": (SKIPS, HEADER + LINE + "x,2,3,x,y,yes,u,p\n1,2,-1,x,y,yes,u,p\n1,2,3,x,y,maybe,u,p\n1,2,3\n"
               "1,2,3,x,y,yes,u,p,q\n1,2,3,\udce4,y,yes,u,p\n1,2,3,x,y,yes,u/,p\n"),
    "others": (OTHERS, "z," + HEADER + "9," + LINE + "9,2,2,3,x,y,yes,v,p1\n"),
    "unknown": (0, "z," + HEADER), "twice": (0, "a," + HEADER), "absent": (0, "a,b\n1,2\n"), "empty": (0, ""),
    "one_field": (0, "a;b;c\n"), "no_records": (0, HEADER),
    "comma": (TSV | COMMA, TABS + "1,5\t2\t3\tx\ty\t0\tu\tp\n1.5\t2\t3\tx\ty\t0\tu\tp\n"),
    "groups": (GROUPS, HEADER + LINE + "2,2,3,x,y,f,v,p1\n"),
    "unlabelled": (UNLABELLED, "a,b,c,d,e,f,id\n1,2,3,x,y,yes,p1\n"),
    "nul": (0, HEADER + "1,2,3,x\0,y,yes,u,p1\n"), "all_missing": (0, HEADER + ",,,,,,u,p\n"),
}
NUMBER = {"name": "a", "as": "number", "scale": "quantile", "missing": "mean", "indicator": True, "fill": 1.5,
          "offset": 0, "divisor": 1, "quantiles": [1, 2, 2.5], "fill_value": 0, "values": []}
WORDS = {**NUMBER, "name": "d", "as": "category", "scale": "standard", "quantiles": [], "fill_value": 1, "values": ["x", "y"]}
GOOD = {"version": 1, "classes": ["u", "v"], "columns": [NUMBER, WORDS]}
FILES = {
    "learnt": GOOD, "bad_key": {**GOOD, "x": 1}, "bad_version": {**GOOD, "version": 2}, "no_columns": {**GOOD, "columns": []},
    "unsorted": {**GOOD, "classes": ["v", "u"]}, "nul_class": {**GOOD, "classes": ["\0"]},
    **{f"bad_{key}": {**GOOD, "columns": [{**NUMBER, **change}]} for key, change in {
        "divisor": {"divisor": 0}, "word": {"as": "x"}, "use": {"as": "id"}, "quantiles": {"quantiles": [2, 1]},
        "column_key": {"x": 1}}.items()},
}

os.makedirs(FOLDER, exist_ok=True)
for name, (options, text) in TABLES.items():
    with open(os.path.join(FOLDER, name), "wb") as f:
        f.write(bytes([options]) + text.encode(errors="surrogateescape"))
for name, value in FILES.items():
    with open(os.path.join(FOLDER, name + ".json"), "wb") as f:
        f.write(bytes([LEARNT]) + json.dumps(value).encode())
with open(os.path.join(FOLDER, "twice.json"), "wb") as f:
    f.write(bytes([LEARNT]) + json.dumps(GOOD)[:-1].encode() + b',"version":1}')

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/fuzz/corpus/table: valid and invalid tables, and files of values learnt from tables.
The first three bytes of each are the options of fuzz_table.c."""
import json

from seeds.corpus import gzip_of, write

LEARNT, TSV, NUMBERS, UNLABELLED, SKIPS, GROUPS, OTHERS, COMMA = (1 << k for k in range(8))
JSON, TIMES, SETS, TARGETS, FILES, MARKS, FORMAT, DATE = 1 << 8, 1 << 9, 2 << 9, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15
MASKED, TEXTS, HALF = 1 << 16, 1 << 17, 1 << 18
HEADER = "a,b,c,d,e,f,g,t,id\n"
LINE = "1,2,3,x,y,yes,2024-01-31,u,p1\n"
TABS = HEADER.replace(",", "\t")
GOOD_RECORD = '"a":1,"b":1,"c":1,"d":"x","e":"y","f":1,"g":null,"t":"u"'


def wider(header, *cells):
    """The table with further columns, and a line for each list of their cells. The targets and ids
    differ."""
    lines = (LINE.replace("u,p1", f"{'uv'[i % 2]},p{i + 1}").replace("\n", f",{more}\n") for i, more in enumerate(cells))
    return HEADER.replace("\n", f",{header}\n") + "".join(lines)


TABLES = {
    "plain": (0, HEADER + LINE + ",,,,,,,v,p2\n3,1e-3,0.5,z,y,no,1969-12-31T23:59:59.5+02:00,u,p3\n4,2,1,x,w,1,,v,p4\n"),
    "numbers": (NUMBERS, HEADER + "1,2,3,x,y,yes,,1.5,p1\n2,2,3,x,y,f,,-2,p1\n"),
    "tabs": (TSV, TABS + "1\t2\t3\tx\ty\t0\t\tu\tp\n5\t2\t3\tx\ty\tTRUE\t\tu\tp\n"),
    "quotes": (0, '\ufeff"a","b",c,d,e,f,g,t,id\r\n"1",2,3,"x, ""1""\n",y,yes,,u,p\r\n2,3,4,x,y,no,,v,q'),
    "broken": (SKIPS, HEADER + LINE + "x,2,3,x,y,yes,,u,p\n1,2,-1,x,y,yes,,u,p\n1,2,3,x,y,maybe,,u,p\n1,2,3\n"
               "1,2,3,x,y,yes,,u,p,q\n1,2,3,\udce4,y,yes,,u,p\n1,2,3,x,y,yes,,u/,p\n1,2,3,x,y,yes,1.2.2024,u,p\n"),
    "open_quotes": (SKIPS, HEADER + LINE + '1,2,3,"x,y,yes,,u,p\n' + LINE),
    "others": (OTHERS, "z," + HEADER + "9," + LINE + "9,2,2,3,x,y,yes,,v,p1\n"),
    "unknown": (0, "z," + HEADER), "twice": (0, "a," + HEADER), "absent": (0, "a,b\n1,2\n"), "empty": (0, ""),
    "one_field": (0, "a;b;c\n"), "no_records": (0, HEADER), "is_json": (0, '{"a":1}\n'),
    "latin_header": (0, "a,b\udce4\n"), "excel": (0, "sep=;\na;b\n"), "nameless": (0, "a,\n"),
    "comma": (TSV | COMMA, TABS + "1,5\t2\t3\tx\ty\t0\t\tu\tp\n1.5\t2\t3\tx\ty\t0\t\tu\tp\n"),
    "groups": (GROUPS, HEADER + LINE + "2,2,3,x,y,f,,v,p1\n"),
    "times": (GROUPS | TIMES | SKIPS, HEADER + LINE.replace("p1", "2024-01-01") + LINE.replace("p1", "-1e3") + LINE + LINE.replace("p1", "")),
    "sets": (GROUPS | SETS | SKIPS, HEADER + LINE + LINE.replace("p1", " p2 ") + LINE.replace("p1", "p9")),
    "unlabelled": (UNLABELLED, "a,b,c,d,e,f,g,id\n1,2,3,x,y,yes,,p1\n"),
    "nul": (0, HEADER + "1,2,3,x\0,y,yes,,u,p1\n"), "all_missing": (0, HEADER + ",,,,,,,u,p\n"),
    "json": (JSON, '{"a":1,"b":"2","c":3e0,"d":"x","e":true,"f":false,"g":"2024-01-31","t":"u","id":7}\n'
             ' {"id":"q","t":1,"f":"yes","e":null,"g":null}\n\r\n\ufeff{"t":"v","id":"r"}'),
    "json_wrong": (JSON | SKIPS, '{"a":[1],"t":"u","id":"p"}\n{"a":{"x":[{}]},"t":"u","id":"p"}\n{"a":1,"a":2}\n{"a":NaN}\n[1]\n{"a":1} x\n'
                   '{"t":null,"id":"p"}\n{"id":"p"}\n{"t":"u"}\n{"t":"u","id":null}\n{"\\u0000":1}\n{"t":"u","id":"p"}\n{"a":\n'),
    "json_unknown": (JSON | SKIPS, '{"t":"u","id":"p"}\n{"zz":1}\n'), "json_absent": (JSON, '{"t":"u","id":"p"}\n'),
    "json_groups": (JSON | GROUPS | SKIPS | OTHERS, '{"a":1,"b":1,"c":1,"d":"x","e":"y","f":1,"g":null,"t":"u","id":"p"}\n{"t":"u"}\n{"t":"u","id":[1]}\n{"z":{},"id":1}\n'),
    "json_comma": (JSON | COMMA | NUMBERS, '{"a":1.5,"b":"1,5","c":1,"d":"x","e":"y","f":1,"t":2.5,"id":"p"}\n'),
    "targets": (TARGETS, wider("u", "yes", "no", "1", "0")), "targets_broken": (TARGETS | SKIPS, wider("u", "yes", "2", "", "no")),
    "targets_masked": (TARGETS | MASKED, wider("u", "no", "", "NA", "0") + ",,,,,,,,p9,yes\n"), "targets_all_missing": (TARGETS | MASKED, wider("u", "", "")),
    "targets_masked_absent": (TARGETS | MASKED | JSON, '{"a":1,"b":2,"c":3,"d":"x","e":"y","f":true,"g":null,"id":"p1","u":false}\n{"a":1,"b":2,"c":3,"d":"x","e":"y","f":true,"g":null,"t":"v","id":"p2"}\n'),
    "targets_alone": (TARGETS, HEADER + LINE), "targets_json": (TARGETS | JSON, f'{{{GOOD_RECORD},"u":true,"id":1}}\n{{{GOOD_RECORD},"u":0,"id":2}}\n'),
    "files": (FILES, wider("p,w", "rgb.png,1", " grey.png ,0.5", "text.png,0", "rgb.jpg,1e9")),
    "files_broken": (FILES | SKIPS, wider("p,w", "rgb.png,1", "../image/rgb.png,1", "/etc/passwd,1", "none.png,1", ",1", "rgb\0.png,1",
                                          "\udce4,1", "rgb.png,-1", "rgb.png,", "rgb.png,x", "a/./b,1")),
    "files_json": (FILES | JSON | SKIPS, f'{{{GOOD_RECORD},"id":1,"p":"rgb.png","w":2}}\n{{{GOOD_RECORD},"id":2,"w":2}}\n'
                   f'{{{GOOD_RECORD},"id":3,"p":null,"w":1}}\n{{{GOOD_RECORD},"id":4,"p":"rgb.png"}}\n{{{GOOD_RECORD},"id":5,"p":7,"w":"1"}}\n'),
    "files_and_targets": (FILES | TARGETS, wider("p,w,u", "rgb.png,1,yes", "rgb.jpg,2,no")),
    "marks": (MARKS, HEADER + LINE + "-9,-9,-9,unknown,unknown,-9,-9,v,p2\n,2,3,x,y,yes,,v,p3\n"),
    "format": (FORMAT, HEADER + LINE.replace("2024-01-31", "31.01.2024") + LINE.replace("2024-01-31", "")),
    "format_other": (FORMAT | SKIPS, HEADER + LINE.replace("2024-01-31", "31.01.2024") + LINE),
    "quantiles": (0, HEADER + "".join(LINE.replace("1,2,", f"1,{b},") for b in (1, 2, 2, 3, 4, 0, 2, 2.5, 3.5, 9))),
    "of_another_kind": (OTHERS, "PAR1," + HEADER + "0," + LINE), "all_broken": (SKIPS, HEADER + "x" + LINE[1:] + "1,2\n"),
    "texts": (TEXTS, HEADER.replace("id", "id,x") + LINE.replace("p1", "p1,ab b") + LINE.replace("p1", 'p2,"a, b\na b b b"')
              + LINE.replace("p1", "p3,") + LINE.replace("p1", "p4, ab b ")),
    "half_of_texts": (TEXTS | HALF, "x," + HEADER + "ab," + LINE + "b," + LINE + "a b b," + LINE + "b b b b b b b," + LINE),
    "texts_broken": (TEXTS | SKIPS, "x," + HEADER + "ab," + LINE + "b," + LINE.replace("u", "u/") + "a\udce4," + LINE + "a\0," + LINE + "NA," + LINE),
    "json_texts": (JSON | TEXTS | SKIPS, '{"x":"ab","a":1,"t":"u","id":"p"}\n{"a":1,"b":1,"c":1,"t":"u","id":"q","e":"y","f":1}\n{"x":[1],"t":"u","id":"r"}\n'
                   '{"x":12,"t":"u","id":"p"}\n{"x":null,"t":"u","id":"p","e":"z"}\n'),
    "date_iso": (DATE, "\n2024-02-29T23:59:59.999-11:30"), "date_iso_day": (DATE, "\n0001-01-01"),
    "date_zone": (DATE, "\n9999-12-31T23:00-0600"), "date_form": (DATE, "%d.%m.%Y %H:%M:%S,%f%z\n31.12.1999 1:2:3,456Z"),
    "date_names": (DATE, "%d %b %Y\n1 sep 2024"), "date_name": (DATE, "%B%%%Y\nMay%2024"), "date_short": (DATE, "%d.%m.%y\n1.2.24"),
    "date_unknown": (DATE, "%Y %Q\n"), "date_no_year": (DATE, "%d\n1"), "date_no_leap": (DATE, "\n1900-02-29"), "date_end": (DATE, "%Y%\n1"),
}
NUMBER = {"name": "a", "as": "number", "scale": "quantile", "missing": "mean", "indicator": True, "fill": 1.5,
          "offset": 0, "divisor": 1, "quantiles": [1, 2, 2.5], "fill_value": 0, "values": []}
WORDS = {**NUMBER, "name": "d", "as": "category", "scale": "standard", "quantiles": [], "fill_value": 1, "values": ["x", "y"]}
TEXT = {**NUMBER, "name": "x", "as": "text", "scale": "standard", "missing": "value", "quantiles": [], "values": ["a"]}
DAYS = {**NUMBER, "name": "g", "as": "date", "scale": "standard", "quantiles": [], "parts": 7}
GOOD = {"version": 1, "classes": ["u", "v"], "columns": [NUMBER, WORDS, DAYS]}
FILES = {
    "learnt": GOOD, "bad_key": {**GOOD, "x": 1}, "bad_version": {**GOOD, "version": 2}, "no_columns": {**GOOD, "columns": []},
    "text": {**GOOD, "columns": [TEXT]}, "no_text": {**GOOD, "columns": [{**TEXT, "values": []}]},
    "bad_day": {**GOOD, "columns": [{**DAYS, "fill": 1e300}]}, "bad_parts": {**GOOD, "columns": [{**DAYS, "parts": 8}]},
    "unsorted": {**GOOD, "classes": ["v", "u"]}, "nul_class": {**GOOD, "classes": ["\0"]},
    **{f"bad_{key}": {**GOOD, "columns": [{**NUMBER, **change}]} for key, change in {
        "divisor": {"divisor": 0}, "word": {"as": "x"}, "use": {"as": "id"}, "quantiles": {"quantiles": [2, 1]},
        "column_key": {"x": 1}}.items()},
}



def put(name, options, text):
    write("table", name, options.to_bytes(3, "little") + text.encode(errors="surrogateescape"))


for name, (options, text) in TABLES.items():
    put(name, options, text)
write("table", "gzip", bytes(3) + gzip_of(HEADER + LINE))
for name, value in FILES.items():
    put(name + ".json", LEARNT, json.dumps(value))
put("twice.json", LEARNT, json.dumps(GOOD)[:-1] + ',"version":1}')

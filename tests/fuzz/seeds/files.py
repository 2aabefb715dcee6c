# SPDX-License-Identifier: Apache-2.0
"""Seeds of whole files, composed of seeds of their parts: files of earlier runs (corpus/history)
and checkpoint folders (corpus/checkpoint). Also weights (corpus/safetensors), digests of a run's
data (corpus/run_folder) and heads of caches (corpus/cache)."""
import hashlib
import json
import re
import struct

from seeds.base import F32, crc32c, read, write

RUNNING = read("run_record", "running")
LINES = b"".join(b'{"step":%d,"loss":%g,"accuracy":0.5}\n' % (i, 2 / (i + 1)) for i in range(40))
PRINTED = b"step 1\xc2\x9b31m \x1b[2J\ttab \x7f\xc2\xa0\x9b caf\xc3\xa9\n"
HISTORIES = {
    "finished": (read("run_record", "whole"), LINES, PRINTED), "died": (RUNNING, LINES, PRINTED),
    "died_early": (RUNNING, b'{"step":3,"loss":null}\n{"step"', b""), "one_line": (RUNNING, LINES[:40], b"x\xc2"),
    "no_number": (RUNNING, b'{"step":,"loss":x}\n', b""), "long_line": (RUNNING, b"\n" + b"y" * 5000 + b"\n", b""),
    "no_end": (RUNNING, b'{"step":50', b""), "damaged": (b"{", LINES, b"\0 \0"),
    "old": (b"", LINES, b""), "number": (b"", b'{"step":1e300}\n', b""),
    "durations": (re.sub(rb'"began_ms": \d+, "ended_ms": \d+', b'"began_ms": 1, "ended_ms": 4000', RUNNING),
                  LINES, b""),
    "hours": (re.sub(rb'"ended_ms": \d+', b'"ended_ms": 1700009017194', read("run_record", "whole")), LINES, b""),
    "days": (re.sub(rb'"ended_ms": \d+', b'"ended_ms": 1790009017194', read("run_record", "whole")), LINES, b""),
    "odd_times": (re.sub(rb'"began_ms": \d+', b'"began_ms": 9223372036854775807', RUNNING), LINES, b""),
    "failed": (re.sub(rb'"finished"', b'"failed"', read("run_record", "whole")), LINES, b""),
    "minutes": (re.sub(rb'"ended_ms": \d+', b'"ended_ms": 1700000417194', read("run_record", "whole")), LINES, b""),
}
for name, parts in HISTORIES.items():
    write("history", name, b"\0".join(parts))

# ---- weights -------------------------------------------------------------------------------------


def weights(tensors, data=bytes(range(24)), metadata=None):
    """A file of tensors {name: (dtype, shape, begin, end)}."""
    head = {"__metadata__": metadata} if metadata is not None else {}
    head.update((name, {"dtype": d, "shape": s, "data_offsets": [a, b]}) for name, (d, s, a, b) in tensors.items())
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


AVERAGES = weights({"a.weight": ("F32", [2], 0, 8), "a.weight.ema": ("F32", [2], 8, 16), "b": ("F32", [1], 16, 20), "b.ema": ("F32", [1, 1], 20, 24)})
WEIGHTS = {"averages": AVERAGES, "dtype_unknown": weights({"a": ("F128", [6], 0, 24)}), "dtype_of_bits": weights({"a": ("F4", [48], 0, 24)}),
           "shape_overflows": weights({"a": ("F32", [1 << 40, 1 << 40], 0, 24)}), "metadata_list": weights({"a": ("F32", [6], 0, 24)}, metadata=[]),
           "metadata_number": weights({"a": ("F32", [6], 0, 24)}, metadata={"a": 1}), "metadata": weights({"a": ("BF16", [12], 0, 24)}, metadata={"format": "pt"})}
for name, data in WEIGHTS.items():
    write("safetensors", name, data)

FAULTS = 9  # number of faults in fuzz_checkpoint.c
STATE, MODEL = read("state", "whole"), read("safetensors", "small")
GOOD = [STATE, MODEL, MODEL, b"{}"]
CHECKPOINTS = {f"fault{fault}_{which}": (fault, which, GOOD) for fault in range(FAULTS) for which in (0, 1)}
CHECKPOINTS["bad_state"] = (0, 0, [b"{}", MODEL, MODEL, b"{}"])
CHECKPOINTS["bad_model"] = (0, 0, [STATE, MODEL[:9], MODEL, b"{}"])
CHECKPOINTS["bad_optimizer"] = (0, 0, [STATE, MODEL, b"", b"{}"])
CHECKPOINTS["averages"] = (0, 0, [STATE, weights({"a.weight": ("F32", [2], 0, 8), "b": ("F32", [1], 8, 12)}, bytes(12)), AVERAGES, b"{}"])
CHECKPOINTS["raw_manifest"] = (FAULTS - 1, 0, [read("manifest", "whole"), MODEL, MODEL, b"{}"])
for name, (fault, which, parts) in CHECKPOINTS.items():
    write("checkpoint", name, bytes([fault + FAULTS * which])
          + b"".join(struct.pack("<H", len(part)) + part for part in parts))

# ---- digests of a run's data, of which one is of the config.json of fuzz_run_folder.c ------------

DIGEST = hashlib.sha256(b"{}\n").hexdigest()
DIGESTS = {"config": f"model.config 1 {DIGEST}\n", "config_other": f"model.config 1 {'ab' * 32}\n",
           "config_and_rows": f"train.rows 9 {'cd' * 32}\nmodel.config 1 {DIGEST}\n", "no_config": f"train.rows 9 {'cd' * 32}\n"}
for name, text in DIGESTS.items():
    write("run_folder", name, text)

# ---- heads of caches -----------------------------------------------------------------------------


def cache_head(records=9, dtype=F32, dims=(4, 3), magic=b"clvcache", version=1, keep_s=60):
    out = magic + struct.pack("<II", version, dtype) + bytes(range(64))
    out += struct.pack("<QQQ8q", records, keep_s, len(dims), *dims, *[0] * (8 - len(dims)))
    return out + struct.pack("<II", crc32c(out), 0)


CACHES = {"whole": cache_head(), "scalar": cache_head(dims=()), "no_records": cache_head(records=0),
          "no_bytes": cache_head(dims=(0,)), "huge": cache_head(dims=(1 << 40, 1 << 40)),
          "large": cache_head(records=1 << 32, dims=(1 << 20,)), "many": cache_head(records=1 << 33),
          "dtype": cache_head(dtype=99), "rank": cache_head(dims=(1,) * 8), "magic": cache_head(magic=b"clvcachf"),
          "version": cache_head(version=2), "sum": cache_head()[:-8] + bytes(8), "negative": cache_head(dims=(-1, 3))}
for name, head in CACHES.items():
    write("cache", name, head)

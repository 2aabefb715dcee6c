"""Reads TensorBoard's event files with the standard library alone: framing, checksums and the
fields we write. An unknown field or a wrong checksum is an error."""
import glob, json, os, struct

TABLE = []
for n in range(256):
    for _ in range(8):
        n = n >> 1 ^ (0x82f63b78 if n & 1 else 0)
    TABLE.append(n)


def masked_crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    crc ^= 0xffffffff
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def records(path):
    with open(path, "rb") as f:
        data = f.read()
    at = 0
    while at < len(data):
        length, crc = struct.unpack_from("<QI", data, at)
        assert crc == masked_crc32c(data[at:at + 8]), f"{path}: checksum of the length at {at}"
        record = data[at + 12:at + 12 + length]
        assert len(record) == length, f"{path}: cut off at {at}"
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked_crc32c(record), f"{path}: checksum at {at}"
        yield record
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def fields(data, names):
    """(name, value) of each field of a message."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        name, kind = names[key >> 3], key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif kind == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        else:
            assert kind == 2, kind
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
            assert len(value) == length
        yield name, value


def values(summary):
    """(tag, value) of each value: a number or a text."""
    for _, message in fields(summary, {1: "value"}):
        found = dict(fields(message, {1: "tag", 2: "number", 8: "tensor", 9: "metadata"}))
        if "tensor" in found:
            tensor = dict(fields(found["tensor"], {1: "dtype", 8: "string"}))
            plugin = dict(fields(dict(fields(found["metadata"], {1: "plugin"}))["plugin"], {1: "name"}))
            assert tensor["dtype"] == 7 and plugin["name"] == b"text"
            yield found["tag"].decode(), tensor["string"].decode()
        else:
            yield found["tag"].decode(), found["number"]


def events(path):
    """(step, "start" or None, values) of each event after the first, which has the version."""
    names = {1: "wall_time", 2: "step", 3: "version", 5: "summary", 7: "session_log"}
    for i, record in enumerate(records(path)):
        event = dict(fields(record, names))
        assert event["wall_time"] > 1.6e9
        if i == 0:
            assert event["version"] == b"brain.Event:2", event
            continue
        start = "session_log" in event
        assert not start or dict(fields(event["session_log"], {1: "status"})) == {"status": 1}
        yield event.get("step", 0), start, list(values(event["summary"])) if "summary" in event else []


def read(folder):
    """{tag: {step: value}} of a folder's files, in the order of their names, by TensorBoard's rule:
    a START voids what earlier files have of its step and later ones."""
    found = {}
    for path in sorted(glob.glob(os.path.join(folder, "events.out.tfevents.*"))):
        for step, start, pairs in events(path):
            if start:
                found = {tag: {k: v for k, v in steps.items() if k < step} for tag, steps in found.items()}
            for tag, value in pairs:
                found.setdefault(tag, {})[step] = value
    return {tag: steps for tag, steps in found.items() if steps}


# file of a run folder: (first part of the tag, None: what the line evaluates; {key: second part})
FILES = {"metrics.jsonl": ("train", {"loss": "loss", "grad_norm": "gradient_norm", "lr": "learning_rate",
                                     "accuracy": "accuracy"}),
         "pace.jsonl": ("pace", {"samples_per_s": "samples_per_second", "wait": "wait_share",
                                 "bytes_up": "bytes_up", "bytes_down": "bytes_down"}),
         "evaluations.jsonl": (None, {"loss": "loss", "accuracy": "accuracy"})}


def scores(line):
    """The scores of an evaluation that are single numbers and defined."""
    told = line.get("scores", {})
    pairs = [(f"f1_{k}", v) for k, v in told.get("f1", {}).items()] + [(k, told.get(k)) for k in ("auc", "perplexity")]
    return [(k, v) for k, v in pairs if v is not None]


def expected(run_dir):
    """The wanted events from the lines of a run folder: {tag: {step: value}}. None: a number that
    is not finite."""
    found = {}
    for file, (prefix, tags) in FILES.items():
        with open(os.path.join(run_dir, file)) as f:
            for line in map(json.loads, f):
                for key in tags.keys() & line.keys():
                    steps = found.setdefault(f"{prefix or line['event']}/{tags[key]}", {})
                    assert line["step"] not in steps, f"{file}: step {line['step']} twice"
                    steps[line["step"]] = line[key]
                for key, value in scores(line):
                    found.setdefault(f"{line['event']}/{key}", {})[line["step"]] = value
    return found

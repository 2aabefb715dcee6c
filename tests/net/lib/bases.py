# SPDX-License-Identifier: Apache-2.0
"""An artifact of two layers, sessions that begin with it and keep its first layer frozen, and
requests to them."""
import contextlib, hashlib
from tenants import *

ROWS = 4
FROZEN, NAMES = ["base.weight", "base.bias"], ["base.weight", "base.bias", "head.weight", "head.bias"]
DENIED, EXHAUSTED = 7, 8
digests = {}


def of_width(n):
    """Sets the width of the frozen layer and its number of bytes."""
    global WIDE, BASE
    WIDE, BASE = n, 4 * n * (n + 1)


of_width(2048)


def artifact(folder):
    """Writes the file with both layers; all numbers differ."""
    r = random.Random(3)
    some = f32([r.uniform(-0.05, 0.05) for _ in range(4099)])
    header, data = {}, b""
    for name, shape in (("base.weight", [WIDE, WIDE]), ("base.bias", [WIDE]), ("head.weight", [D, WIDE]), ("head.bias", [D])):
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += (some * (size // len(some) + 1))[:size]
    text = json.dumps(header).encode()
    path = os.path.join(folder, "base.safetensors")
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    with open(path, "rb") as f:
        return path, hashlib.sha256(f.read()).hexdigest(), data[:4 * WIDE * WIDE]


@contextlib.contextmanager
def offering(more="", light="24MiB", env=None):
    """A worker with the artifact under four names, which differ in who may share and read it."""
    with tempfile.TemporaryDirectory() as folder:
        file, hexes, digests["numbers"] = artifact(folder)
        offers = "artifacts:\n"
        for name, keys in {"own": "", "open": ", shared: true", "public": ", readable: all", "closed": ", readable: none"}.items():
            digests[name] = bytes.fromhex(hexes)
            offers += f"  {name}: {{file: {file}, sha256: {hexes}{keys}}}\n"
        offers += f"state_dir: {folder}/state\n{more}"
        os.mkdir(folder + "/state")
        with tenants(heavy={"state_bytes": "64MiB"}, light={"bytes": light}, more=offers, env=env) as the.cluster:
            yield


def network():
    return pb.Graph(nodes=[node(INPUT, name="x"), node(LINEAR, [0], 0, "base", out=WIDE), node(LINEAR, [1], 1, "head", out=D)], outputs=[2])


def begin(tenant, name="own", **changed):
    """A session that begins with the artifact and keeps its first layer frozen."""
    fields = dict(init=pb.INIT_ARTIFACT, artifact=pb.Artifact(name=name, sha256=digests[name]), frozen=FROZEN, fixed=True)
    fields.update(changed)
    return tenant.open(network(), (ROWS, WIDE), **fields)


def charged(tenant):
    return tenant.caller.stub.Status(pb.StatusRequest(), timeout=20 * SLOW).memory_bytes


def answer(s, context=1):
    x = f32([(i * 7 % 23) / 23 - 0.5 for i in range(ROWS * WIDE)])
    s.send(call(context, 100, 0, [(0, False, x, [ROWS, WIDE])], training=False))
    s.send(deliver(context, 100))
    y = s.recv(pb.VALUE, message=100)
    assert not y.HasField("failure") and len(y.payload) == 4 * ROWS * D, y
    end(s, context)
    return y.payload


def refused(s, f):
    """(code, text) of the ERROR that answers a frame."""
    s.send(f)
    got = s.lane.recv()
    assert got.kind in (pb.ERROR, pb.STATE_DONE), got
    return (got.failure.code, got.failure.text) if got.kind == pb.ERROR else (0, got)


def whole(s, what=None, context=0):
    """{name: bytes} of all items of a kind of state that the worker sends, large ones too."""
    s.send(pb.Frame(kind=pb.STATE_GET, message=900, module=0, context=context, state=pb.State(what=what or pb.STATE_WEIGHTS)))
    items, heads, parts, done = {}, {}, {}, None
    while done is None or done != len(items) or any(len(parts[t]) < n for t, n in heads.values()):
        f = s.lane.recv()
        assert f.kind in (pb.STATE_ITEM, pb.STATE_DONE, pb.CHUNK), f.kind
        if f.kind == pb.CHUNK:
            parts.setdefault(f.chunk.transfer, bytearray()).extend(f.payload)
            s.send(pb.Frame(kind=pb.CREDIT, credit=pb.Credit(bytes=len(f.payload))))
        elif f.kind == pb.STATE_DONE:
            done = f.state.count
        else:
            items[f.state.name] = f.payload
            if f.tensors[0].transfer:
                heads[f.state.name] = f.tensors[0].transfer, f.tensors[0].bytes
                parts.setdefault(f.tensors[0].transfer, bytearray())
    return {name: bytes(parts[heads[name][0]]) if name in heads else raw for name, raw in items.items()}


def pieces(name, length=4096):
    return pb.Frame(kind=pb.STATE_GET, message=4, module=0, state=pb.State(what=pb.STATE_WEIGHTS, name=name, offset=0, length=length))


def put(name, dims, offset=None):
    """A frame that writes zeros to a parameter, or with an offset to a piece of it."""
    raw = bytes(4 * dims[0])
    if offset is None:
        return pb.Frame(kind=pb.STATE_PUT, message=5, module=0, payload=raw, tensors=[tensor_head(raw, dims)],
                        state=pb.State(what=pb.STATE_WEIGHTS, name=name, count=1))
    return pb.Frame(kind=pb.STATE_PUT, message=5, module=0, payload=raw, tensors=[tensor_head(raw, [len(raw)], 5)],
                    state=pb.State(what=pb.STATE_WEIGHTS, name=name, count=1, offset=offset, length=len(raw)))

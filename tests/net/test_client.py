"""A foreign client (python3-grpcio, stock generator) speaks the protocol and gets the right numbers."""
import os, random
from cluster import *
import pyclient
from pyclient import *

suite = Suite()
cluster = None
N, IN, HIDDEN, OUT = 6, 7, 5, 3
LR, MOMENTUM = 0.05, 0.9

# ---- the network in lists of Python floats (doubles): y = relu(x W1' + b1) W2' + b2 ------------


def matmul(a, b):
    columns = list(zip(*b))
    return [[sum(p * q for p, q in zip(row, col)) for col in columns] for row in a]


def transpose(a):
    return [list(r) for r in zip(*a)]


def forward(w, x):
    pre = [[v + b for v, b in zip(r, w["0.bias"][0])] for r in matmul(x, transpose(w["0.weight"]))]
    hidden = [[max(v, 0.0) for v in r] for r in pre]
    y = [[v + b for v, b in zip(r, w["2.bias"][0])] for r in matmul(hidden, transpose(w["2.weight"]))]
    return y, (x, pre, hidden)


def backward(w, saved, dy):
    x, pre, hidden = saved
    dh = [[g if p > 0 else 0.0 for g, p in zip(r, q)] for r, q in zip(matmul(dy, w["2.weight"]), pre)]
    grads = {"2.weight": matmul(transpose(dy), hidden), "2.bias": [[sum(c) for c in zip(*dy)]],
             "0.weight": matmul(transpose(dh), x), "0.bias": [[sum(c) for c in zip(*dh)]]}
    return matmul(dh, w["0.weight"]), grads


def flat(m):
    return [v for r in m for v in r]


def close(got, want, tolerance=1e-5):
    """Relative error in the norm."""
    got, want = list(got), flat(want) if want and isinstance(want[0], list) else list(want)
    assert len(got) == len(want), (len(got), len(want))
    error = sum((a - b) ** 2 for a, b in zip(got, want)) ** 0.5
    size = sum(b * b for b in want) ** 0.5
    assert error <= tolerance * max(size, 1e-30), (error, size, got[:4], want[:4])


def randoms(r, rows, columns):
    """Values that are exact in f32."""
    return [[struct.unpack("<f", struct.pack("<f", r.uniform(-1, 1)))[0] for _ in range(columns)]
            for _ in range(rows)]


ORDER = ["0.weight", "0.bias", "2.weight", "2.bias"]
DIMS = {"0.weight": [HIDDEN, IN], "0.bias": [HIDDEN], "2.weight": [OUT, HIDDEN], "2.bias": [OUT]}


def push(lane, weights, stage=1):
    for i, name in enumerate(ORDER):
        lane.send(frame(pb.STATE_PUT, f32(flat(weights[name])), DIMS[name], message=100 + i, stage=stage,
                        state=pb.State(what=pb.STATE_WEIGHTS, name=name, index=i, count=len(ORDER))))
    done = lane.recv()
    assert done.kind == pb.STATE_DONE and done.reply_to == 103, done


def fetch(lane, what, stage=1):
    lane.send(pb.Frame(kind=pb.STATE_GET, message=900, stage=stage, state=pb.State(what=what)))
    items = {}
    while True:
        f = lane.recv()
        if f.kind == pb.STATE_DONE:
            assert f.state.count == len(items) and f.reply_to == 900
            return items
        assert f.kind == pb.STATE_ITEM and f.state.index == len(items) and f.reply_to == 900, f
        head = f.tensors[0]
        assert head.bytes == len(f.payload) and head.crc32c == crc32c(f.payload)
        items[f.state.name] = (head.dtype, list(head.dims), f.payload)


def tensor_of(f, dims, dtype=F32):
    head = f.tensors[0]
    assert len(f.tensors) == 1 and head.dtype == dtype and list(head.dims) == list(dims), f
    assert head.transfer == 0 and head.bytes == len(f.payload) and head.crc32c == crc32c(f.payload)
    return floats(f.payload, "d" if dtype == F64 else "f")


# ---- tests -------------------------------------------------------------------------------------

@suite.test
def crc32c_as_in_rfc_3720():
    assert crc32c(bytes(32)) == 0x8A9136AA  # appendix B.4
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


@suite.test
def hello_says_who_and_what():
    with Caller(cluster.ports[0], cluster.certs) as c:
        h = c.hello()
        assert h.about.protocol == 1 and len(h.incarnation) == 16 and h.worker == "w1"
        assert h.cores >= 1 and "cpu" in h.devices and h.about.limits.credit_bytes >= 64 << 10
        try:
            c.hello(protocol=2)
            raise AssertionError("protocol 2 was accepted")
        except grpc.RpcError as e:
            assert e.code() == grpc.StatusCode.UNIMPLEMENTED and "1" in e.details() and "2" in e.details()


def one_step(lane, w, velocity, step, r, first_message, commit):
    """Two micro-batches forward and backward, a vote; the numbers of each are compared."""
    total, outs = {}, []
    for k in range(2):
        x = randoms(r, N, IN)
        f = training(pb.FORWARD, first_message + k, step, k, 2, f32(flat(x)), [N, IN])
        if commit and k == 0:
            f.commit.CopyFrom(commit)
        lane.send(f)
        y = lane.recv()
        want, saved = forward(w, x)
        assert (y.kind, y.stage, y.step, y.micro_batch, y.context) == (pb.FORWARD, 2, step, k, step), y
        assert list(y.upstream) == [first_message + k]
        close(tensor_of(y, [N, OUT]), want)
        outs.append((y.message, saved))
    for k in range(2):
        dy = randoms(r, N, OUT)
        lane.send(training(pb.BACKWARD, first_message + 10 + k, step, k, 2, f32(flat(dy)), [N, OUT],
                           reply_to=outs[k][0], flags=pb.FLAG_TRAINING | (pb.FLAG_PREPARE if k else 0)))
        g = lane.recv()
        dx, grads = backward(w, outs[k][1], dy)
        assert (g.kind, g.stage, g.micro_batch, g.reply_to) == (pb.BACKWARD, 0, k, first_message + k), g
        close(tensor_of(g, [N, IN]), dx)
        for name in ORDER:
            total[name] = [[a + b for a, b in zip(p, q)] for p, q in zip(total.get(name, [[0.0] * 99] * 99), grads[name])]
    vote = lane.recv()
    assert vote.kind == pb.VOTE and vote.stage == 1 and vote.step == step and vote.vote.finite, vote
    squares = [sum(v * v for v in flat(total[name])) for name in ORDER]
    close(tensor_of(vote, [4], F64), squares)
    close([vote.vote.grad_sq], [sum(squares)])
    return total


def updated(w, velocity, grads, lr, scale):
    """torch.optim.SGD with momentum: v = momentum v + g (v = g at first), w = w - lr v."""
    for name in ORDER:
        g = [[scale * v for v in row] for row in grads[name]]
        v = velocity.get(name)
        v = g if v is None else [[MOMENTUM * a + b for a, b in zip(p, q)] for p, q in zip(v, g)]
        velocity[name] = v
        w[name] = [[a - lr * b for a, b in zip(p, q)] for p, q in zip(w[name], v)]


@suite.test
def trains_with_the_right_numbers():
    r = random.Random(3)
    with Caller(cluster.ports[0], cluster.certs) as c:
        s = c.open(name="numbers")
        reply = s.load(mlp(HIDDEN, OUT), [N, IN], init=pb.INIT_PUSHED, micro=2,
                       optimizer=pb.Optimizer(kind=pb.OPTIMIZER_SGD, lr=LR, momentum=MOMENTUM))
        assert [p.name for p in reply.params] == ORDER
        assert {p.name: list(p.spec.dims) for p in reply.params} == DIMS
        assert [list(o.dims) for o in reply.outputs] == [[N, OUT]]
        lane = s.attach()
        w = {name: randoms(r, DIMS[name][0] if len(DIMS[name]) == 2 else 1, DIMS[name][-1]) for name in ORDER}
        push(lane, w)
        for name, (dtype, dims, raw) in fetch(lane, pb.STATE_WEIGHTS).items():
            assert (dtype, dims) == (F32, DIMS[name]) and raw == f32(flat(w[name])), name
        velocity = {}

        # the first commit rides on the second step's first FORWARD, the second is a frame of its own
        grads = one_step(lane, w, velocity, 1, r, 1000, None)
        updated(w, velocity, grads, LR, 0.5)
        grads = one_step(lane, w, velocity, 2, r, 2000, pb.Commit(step=1, scale=0.5, lr=LR, apply=True))
        lane.send(pb.Frame(kind=pb.COMMIT, message=3000,
                           commit=pb.Commit(step=2, scale=1.0, lr=2 * LR, apply=True)))
        done = lane.recv()
        assert done.kind == pb.COMMITTED and done.reply_to == 3000, done
        updated(w, velocity, grads, 2 * LR, 1.0)
        for name, (_, _, raw) in fetch(lane, pb.STATE_WEIGHTS).items():
            close(floats(raw), w[name])
        moments = fetch(lane, pb.STATE_OPTIMIZER)
        assert struct.unpack("<q", moments.pop("step")[2])[0] == 2
        assert sorted(moments) == sorted(n + ".momentum_buffer" for n in ORDER), sorted(moments)
        for name in ORDER:
            close(floats(moments[name + ".momentum_buffer"][2]), velocity[name])

        # a dropped step changes nothing
        one_step(lane, w, velocity, 3, r, 4000, None)
        before = fetch(lane, pb.STATE_WEIGHTS)
        lane.send(pb.Frame(kind=pb.COMMIT, message=5000, commit=pb.Commit(step=3, lr=LR, apply=False)))
        assert lane.recv().kind == pb.COMMITTED
        assert fetch(lane, pb.STATE_WEIGHTS) == before

        # an evaluation keeps nothing and waits for nothing but its step
        x = randoms(r, 3, IN)
        lane.send(frame(pb.FORWARD, f32(flat(x)), [3, IN], context=1 << 47, message=6000, step=3,
                        n_micro_batches=1, stage=1))
        y = lane.recv()
        assert y.kind == pb.FORWARD and not y.flags & pb.FLAG_TRAINING
        close(tensor_of(y, [3, OUT]), forward(w, x)[0])
        status = c.stub.Status(pb.StatusRequest(session=s.id))
        stage = status.sessions[0].stages[0]
        assert (stage.stage, stage.committed_step, stage.forwards, stage.backwards, stage.parked) == (1, 3, 6, 6, 0)
        closed = s.close()
        assert (closed.forwards, closed.backwards) == (6, 6) and closed.bytes_in > 0 and closed.bytes_out > 0


def large(lanes):
    """384 KiB in, 128 KiB out: chunks before and after their head, on `lanes` bulk lanes or on lane 0."""
    r = random.Random(7)
    rows, wide, out = 1024, 96, 32
    graph = pb.Graph(nodes=[node(INPUT, name="x"), node(LINEAR, [0], 0, out=out)], outputs=[1])
    with Caller(cluster.ports[0], cluster.certs) as c:
        s = c.open(lanes=lanes, name=f"large-{lanes}")
        s.load(graph, [rows, wide], micro=1)
        all_lanes = [s.attach(k) for k in range(lanes + 1)]
        control, bulk = all_lanes[0], all_lanes[-1]
        # the weights as the seed made them: the numbers are fetched, the product is ours
        items = {}
        control.send(pb.Frame(kind=pb.STATE_GET, message=900, stage=1, state=pb.State(what=pb.STATE_WEIGHTS)))
        while (f := control.recv()).kind != pb.STATE_DONE:
            items[f.state.name] = floats(f.payload)
        x = randoms(r, rows, wide)
        raw = f32(flat(x))
        head = training(pb.FORWARD, 1000, 1, 0, 1, None, [])
        head.tensors.append(tensor_head(raw, [rows, wide], transfer=77))
        pieces = list(chunks(raw, 77, 100_000))  # not the usual size
        for f in reversed(pieces[1:]):
            bulk.send(f)
        control.send(head)
        bulk.send(pieces[0])
        y, data = None, {}
        while y is None or len(data.get(y.tensors[0].transfer, b"")) < y.tensors[0].bytes:
            for lane in all_lanes:
                while (f := lane.poll()) is not None:
                    if f.kind == pb.CHUNK:
                        assert f.chunk.offset == len(data.setdefault(f.chunk.transfer, bytearray()))
                        data[f.chunk.transfer] += f.payload
                    else:
                        assert f.kind == pb.FORWARD, f
                        y = f
            time.sleep(0.01)
        head = y.tensors[0]
        assert list(head.dims) == [rows, out] and not y.payload and head.transfer
        got = bytes(data[head.transfer])
        assert crc32c(got) == head.crc32c
        got = floats(got)
        w = [items["0.weight"][i * wide:(i + 1) * wide] for i in range(out)]
        for i in (0, 1, rows // 2, rows - 1):
            want = [sum(a * b for a, b in zip(x[i], row)) + bias for row, bias in zip(w, items["0.bias"])]
            close(got[i * out:(i + 1) * out], want)
        s.close()


@suite.test
def large_tensor_on_a_bulk_lane():
    large(1)


@suite.test
def large_tensor_on_lane_0():
    large(0)


@suite.test
def state_may_overtake_itself():
    """A large item comes in chunks on another lane, after the small last one: STATE_DONE waits for it."""
    r, wide, out = random.Random(5), 300, 100  # 120,000 bytes of weights
    graph = pb.Graph(nodes=[node(INPUT, name="x"), node(LINEAR, [0], 0, out=out)], outputs=[1])
    with Caller(cluster.ports[0], cluster.certs) as c:
        s = c.open(lanes=1, name="overtaken")
        s.load(graph, [2, wide], micro=1, init=pb.INIT_PUSHED)
        lane, bulk = s.attach(0), s.attach(1)
        raw, bias = f32(flat(randoms(r, out, wide))), f32(flat(randoms(r, 1, out)))
        put = lambda i, name: dict(message=50 + i, stage=1, state=pb.State(what=pb.STATE_WEIGHTS, name=name, index=i, count=2))
        head = pb.Frame(kind=pb.STATE_PUT, **put(0, "0.weight"))
        head.tensors.append(tensor_head(raw, [out, wide], transfer=9))
        lane.send(head)
        lane.send(frame(pb.STATE_PUT, bias, [out], **put(1, "0.bias")))
        time.sleep(0.2)
        assert lane.poll() is None, "STATE_DONE before all of the state"
        for piece in reversed(list(chunks(raw, 9, 50_000))):
            bulk.send(piece)
        assert lane.recv().kind == pb.STATE_DONE
        x = randoms(r, 2, wide)
        lane.send(frame(pb.FORWARD, f32(flat(x)), [2, wide], context=1 << 47, message=60, step=0, n_micro_batches=1, stage=1))
        w = floats(raw)
        want = [[sum(a * b for a, b in zip(row, w[k * wide:(k + 1) * wide])) + floats(bias)[k] for k in range(out)] for row in x]
        close(tensor_of(lane.recv(), [2, out]), want)
        s.close()


@suite.test
def ping_and_status():
    with Caller(cluster.ports[0], cluster.certs) as c:
        s = c.open(name="ping")
        lane = s.attach()
        for k in range(3):
            lane.send(pb.Frame(kind=pb.PING, message=50 + k))
            pong = lane.recv()
            assert pong.kind == pb.PONG and pong.reply_to == 50 + k, pong
        status = c.stub.Status(pb.StatusRequest())
        assert [x.name for x in status.sessions] == ["ping"] and status.rss_bytes > 1 << 20
        assert status.incarnation == c.about.incarnation and not status.draining
        s.close()
        assert not c.stub.Status(pb.StatusRequest()).sessions


@suite.test
def health_and_reflection():
    with Caller(cluster.ports[0], cluster.certs) as c:
        check = c.channel.unary_unary("/grpc.health.v1.Health/Check", lambda b: b, lambda b: b)
        assert check(b"", timeout=20) == b"\x08\x01"  # HealthCheckResponse {status: SERVING}
        assert check(b"\x0a\x10cleave.v1.Worker", timeout=20) == b"\x08\x01"
        try:
            check(b"\x0a\x05other", timeout=20)
            raise AssertionError("an unknown service is healthy")
        except grpc.RpcError as e:
            assert e.code() == grpc.StatusCode.NOT_FOUND
        ask = c.channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", lambda b: b, lambda b: b)
        requests = [b"\x3a\x01*", b"\x22\x10cleave.v1.Worker"]  # list_services, file_containing_symbol
        listed, described = list(ask(iter(requests), timeout=20))
        assert b"cleave.v1.Worker" in listed and b"grpc.health.v1.Health" in listed
        from google.protobuf import descriptor_pb2
        at = described.index(b"cleave/v1/cleave.proto")
        shipped = pb.DESCRIPTOR.serialized_pb
        assert len(described) >= len(shipped) - 200 and b"LoadShardRequest" in described, (at, len(described))
        assert descriptor_pb2.FileDescriptorProto.FromString(shipped).service[0].name == "Worker"


if pyclient.MISSING:
    print("skip client:", pyclient.MISSING)
else:
    with Cluster(1) as cluster:
        suite.main()

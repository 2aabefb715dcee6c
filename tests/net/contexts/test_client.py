"""A client without code of Cleave (python3-grpcio, messages of protoc) uses the protocol, and gets
the right numbers."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from contexts import *

suite = Suite()
ROWS, IN, HIDDEN, OUT = 6, 7, 5, 3
LR, MOMENTUM = 0.05, 0.9
LEAF = 10  # the id of a call's input is the call's own id minus LEAF

# ---- the network in lists of Python floats (doubles): y = relu(x W1' + b1) W2' + b2 ------------


def forward(w, x):
    pre = [[v + b for v, b in zip(r, w["0.bias"][0])] for r in matmul(x, transpose(w["0.weight"]))]
    hidden = [[max(v, 0.0) for v in r] for r in pre]
    y = [[v + b for v, b in zip(r, w["2.bias"][0])]
         for r in matmul(hidden, transpose(w["2.weight"]))]
    return y, (x, pre, hidden)


def backward(w, saved, dy):
    x, pre, hidden = saved
    dh = [[g if p > 0 else 0.0 for g, p in zip(r, q)]
          for r, q in zip(matmul(dy, w["2.weight"]), pre)]
    grads = {"2.weight": matmul(transpose(dy), hidden), "2.bias": [[sum(c) for c in zip(*dy)]],
             "0.weight": matmul(transpose(dh), x), "0.bias": [[sum(c) for c in zip(*dh)]]}
    return matmul(dh, w["0.weight"]), grads


ORDER = ["0.weight", "0.bias", "2.weight", "2.bias"]
DIMS = {"0.weight": [HIDDEN, IN], "0.bias": [HIDDEN], "2.weight": [OUT, HIDDEN], "2.bias": [OUT]}


def push(w, weights):
    for i, name in enumerate(ORDER):
        w.send(frame(pb.STATE_PUT, raw(weights[name]), DIMS[name], message=100 + i, module=0,
                     state=pb.State(what=pb.STATE_WEIGHTS, name=name, index=i, count=len(ORDER))))
    w.recv(pb.STATE_DONE, reply_to=103)


def fetch(w, what, context=0):
    w.send(pb.Frame(kind=pb.STATE_GET, message=900, module=0, context=context,
                    state=pb.State(what=what)))
    items = {}
    while (f := w.lane.recv()).kind != pb.STATE_DONE:
        assert f.kind == pb.STATE_ITEM and f.state.index == len(items) and f.reply_to == 900, f
        head = f.tensors[0]
        assert head.bytes == len(f.payload) and head.crc32c == crc32c(f.payload)
        items[f.state.name] = (head.dtype, list(head.dims), f.payload)
    assert f.state.count == len(items) and f.reply_to == 900
    return items


def tensor_of(f, dims, dtype=F32):
    head = f.tensors[0]
    assert len(f.tensors) == 1 and head.dtype == dtype and list(head.dims) == list(dims), f
    assert head.transfer == 0 and head.bytes == len(f.payload) and head.crc32c == crc32c(f.payload)
    return floats(f.payload, "d" if dtype == F64 else "f")


# ---- tests -------------------------------------------------------------------------------------

@suite.test
def crc32c_matches_the_vectors_of_rfc_3720():
    assert crc32c(bytes(32)) == 0x8A9136AA  # test vectors of RFC 3720, appendix B.4
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


@suite.test
def hello_reports_the_worker_and_refuses_other_protocols():
    with Caller(the.cluster.ports[0], the.cluster.certs) as c:
        h = c.hello()
        assert h.about.protocol == 9 and len(h.incarnation) == 16 and h.worker == "w1"
        assert h.cores >= 1 and "cpu" in h.devices and h.about.limits.credit_bytes >= 64 << 10
        for other in (1, 7, 10):
            try:
                c.hello(protocol=other)
                raise AssertionError(f"protocol {other} was accepted")
            except grpc.RpcError as e:
                assert e.code() == grpc.StatusCode.UNIMPLEMENTED, e
                assert str(other) in e.details() and "9" in e.details(), e.details()


@suite.test
def client_of_protocol_8_meets_a_worker_of_protocol_8():
    """The worker sends it no ACK and accepts none, and its session ends with its connection."""
    with remote(protocol=8, lanes=1) as w:
        assert w.caller.about.about.protocol == 8
        w.load(0, mlp(HIDDEN, OUT), [ROWS, IN])
        w.attach()
        r = random.Random(4)
        for context in range(1, 2 * 32):
            w.send(call(context, 10, 0, [(1, True, raw(randoms(r, ROWS, IN)), [ROWS, IN])], training=False))
            w.send(deliver(context, 10))
            w.recv(pb.VALUE, context=context)
            end(w, context)
        w.session.lanes[1].call.cancel()
        try:
            w.lane.recv()
            raise AssertionError("the session went on without a lane")
        except Ended as e:
            assert e.code != grpc.StatusCode.OK, e
        w.session.close = lambda: None
    with remote(protocol=8) as w:
        w.attach()
        w.send(pb.Frame(kind=pb.ACK, ack=pb.Ack(received=[0])))
        try:
            w.lane.recv()
            raise AssertionError("an ACK of protocol 8 was taken")
        except Ended as e:
            assert e.code == grpc.StatusCode.INVALID_ARGUMENT and "protocol 8" in e.text, e
        w.session.close = lambda: None


@suite.test
def status_reply_has_the_protocol_that_the_caller_reads():
    with Caller(the.cluster.ports[0], the.cluster.certs) as c:
        says = lambda **kw: c.stub.Status(pb.StatusRequest(**kw), timeout=20 * SLOW).about.protocol
        assert (says(), says(protocol=8), says(protocol=9), says(protocol=10)) == (8, 8, 9, 9)


def two_calls(w, weights, step, r):
    """Forward of two micro-batches, whose numbers are checked. Returns the inputs of their
    backward."""
    saved = {}
    for k in range(2):
        x, value = randoms(r, ROWS, IN), 100 * step + k
        w.send(call(step, value, 0, [(value - LEAF, True, raw(x), [ROWS, IN])], micro=k))
        w.send(deliver(step, value))
        y = w.recv(pb.VALUE, context=step, message=value, to="")
        want, saved[value] = forward(weights, x)
        close(tensor_of(y, [ROWS, OUT]), flat(want))
    return saved


def one_step(w, weights, step, r):
    """Two calls, a backward pass over both, a vote. Returns the gradients for the optimiser."""
    saved, total = two_calls(w, weights, step, r), {}
    order = sorted(saved, reverse=True)
    w.send(prepare(step, 1, [(v, 1, False, [(0, v - LEAF, 0, 7)]) for v in order], vote=True))
    for v in order:
        dy = randoms(r, ROWS, OUT)
        w.send(gradient(step, 1, v, raw(dy), [ROWS, OUT]))
        dx, grads = backward(weights, saved[v], dy)
        g = w.recv(pb.GRADIENT, context=step, message=v - LEAF, phase=1, order=7)
        close(tensor_of(g, [ROWS, IN]), flat(dx))
        for name in ORDER:
            total[name] = plus(total[name], grads[name]) if name in total else grads[name]
    squares = [sum(v * v for v in flat(total[name])) for name in ORDER]
    done = w.recv(pb.FINISHED, context=step, phase=1)
    assert done.vote.finite, done
    close(tensor_of(done, [4], F64), squares)
    got = fetch(w, GRADIENTS, step)
    assert list(got) == ORDER, list(got)
    for name, (_, dims, data) in got.items():
        assert dims == DIMS[name]
        close(floats(data), flat(total[name]))
    return total


def updated(w, velocity, grads, lr, scale):
    """torch.optim.SGD with momentum: v = momentum v + g (v = g at first), w = w - lr v."""
    for name in ORDER:
        g = [[scale * v for v in row] for row in grads[name]]
        v = velocity.get(name)
        v = g if v is None else [[MOMENTUM * a + b for a, b in zip(p, q)] for p, q in zip(v, g)]
        velocity[name] = v
        w[name] = [[a - lr * b for a, b in zip(p, q)] for p, q in zip(w[name], v)]


def applied(w, context, lr, scale, does=True):
    apply(w, context, lr=lr, scale=scale, does=does)
    w.recv(pb.APPLIED, context=context, reply_to=77)


@suite.test
def remote_training_matches_local_numbers():
    r = random.Random(3)
    with remote() as w:
        reply = w.load(0, mlp(HIDDEN, OUT), [ROWS, IN], init=pb.INIT_PUSHED,
                       optimizer=pb.Optimizer(kind=pb.OPTIMIZER_SGD, lr=LR, momentum=MOMENTUM))
        assert [p.name for p in reply.params] == ORDER
        assert {p.name: list(p.spec.dims) for p in reply.params} == DIMS
        assert [list(o.dims) for o in reply.outputs] == [[ROWS, OUT]]
        w.attach()
        weights = {n: randoms(r, ([1] + DIMS[n])[-2], DIMS[n][-1]) for n in ORDER}
        push(w, weights)
        assert fetch(w, pb.STATE_WEIGHTS) == {n: (F32, DIMS[n], raw(weights[n])) for n in ORDER}
        velocity = {}
        for step, lr, scale in ((1, LR, 0.5), (2, 2 * LR, 1.0)):
            grads = one_step(w, weights, step, r)
            applied(w, step, lr, scale)
            updated(weights, velocity, grads, lr, scale)
        got = fetch(w, pb.STATE_WEIGHTS)
        for name in ORDER:
            close(floats(got[name][2]), flat(weights[name]))
        moments = fetch(w, pb.STATE_OPTIMIZER)
        assert struct.unpack("<q", moments.pop("step")[2])[0] == 2
        assert sorted(moments) == sorted(n + ".momentum_buffer" for n in ORDER), sorted(moments)
        for name in ORDER:
            close(floats(moments[name + ".momentum_buffer"][2]), flat(velocity[name]))

        # a dropped step changes nothing
        one_step(w, weights, 3, r)
        before = fetch(w, pb.STATE_WEIGHTS), fetch(w, pb.STATE_OPTIMIZER)
        applied(w, 3, LR, 1.0, does=False)
        assert (fetch(w, pb.STATE_WEIGHTS), fetch(w, pb.STATE_OPTIMIZER)) == before
        assert fetch(w, GRADIENTS, 3) == {}

        # an evaluation keeps nothing, whatever its batch
        x = randoms(r, 3, IN)
        w.send(call(4, 40, 0, [(0, False, raw(x), [3, IN])], training=False))
        w.send(deliver(4, 40))
        close(tensor_of(w.recv(pb.VALUE, message=40), [3, OUT]), flat(forward(weights, x)[0]))
        module = w.status().modules[0]
        assert (module.module, module.steps) == (0, 2), module
        assert (module.forwards, module.backwards) == (6, 6), module
        for context in (1, 2, 3, 4):
            end(w, context)
        assert (w.status().contexts, w.status().values, w.status().calls_waiting) == (0, 0, 0)
        closed = w.session.close()
        assert (closed.forwards, closed.backwards) == (6, 6), closed
        assert closed.bytes_in > 0 and closed.bytes_out > 0, closed
        w.session.close = lambda: None  # the session is closed already


def in_chunks(f, transfer, size):
    """Removes the tensor of `f`, and returns CHUNK frames that transfer it."""
    data, f.payload, f.tensors[0].transfer = f.payload, b"", transfer
    return list(chunks(data, transfer, size))


def chunked_value(w):
    """Receives a VALUE whose tensor comes in chunks, on any lane. Returns its bytes in order."""
    y, data = None, {}
    deadline = time.monotonic() + 20 * SLOW
    while y is None or len(data.get(y.tensors[0].transfer, b"")) < y.tensors[0].bytes:
        assert time.monotonic() < deadline, (y, {k: len(v) for k, v in data.items()})
        for lane in w.session.lanes:
            while (f := lane.poll()) is not None:
                if f.kind == pb.CHUNK:
                    assert f.chunk.offset == len(data.setdefault(f.chunk.transfer, bytearray()))
                    data[f.chunk.transfer] += f.payload
                else:
                    assert f.kind == pb.VALUE and not f.HasField("failure"), f
                    y = f
        time.sleep(0.01)
    return y, bytes(data[y.tensors[0].transfer])


def large(lanes):
    """384 KiB in, 128 KiB out: chunks before and after their head, on a bulk lane or on lane 0."""
    r = random.Random(7)
    n, wide, out = 1024, 96, 32
    with remote(lanes=lanes) as w:
        w.load(0, linear_graph(out), [n, wide])
        w.attach()
        # fetches the weights that the worker drew from the seed, and computes the product here
        items = {k: floats(v) for k, v in state(w, pb.STATE_WEIGHTS, 0).items()}
        x, bulk = randoms(r, n, wide), w.session.lanes[-1]
        head = call(1, 100, 0, [(0, False, raw(x), [n, wide])])
        pieces = in_chunks(head, 77, 100_000)  # other than the usual chunk size
        for f in reversed(pieces[1:]):
            bulk.send(f)
        w.send(head)
        w.send(deliver(1, 100))
        bulk.send(pieces[0])
        y, data = chunked_value(w)
        head = y.tensors[0]
        assert list(head.dims) == [n, out] and not y.payload and head.transfer
        assert crc32c(data) == head.crc32c
        got, weights = floats(data), rows(items["0.weight"], wide)
        for i in (0, 1, n // 2, n - 1):
            want = [v + b for v, b in zip(matmul([x[i]], transpose(weights))[0], items["0.bias"])]
            close(got[i * out:(i + 1) * out], want)


@suite.test
def large_tensor_on_a_bulk_lane_is_reassembled():
    large(1)


@suite.test
def large_tensor_on_lane_0_is_reassembled():
    large(0)


@suite.test
def state_done_waits_for_a_chunked_item():
    """A large item comes in chunks on another lane, after the small last one: STATE_DONE waits."""
    r, wide, out = random.Random(5), 300, 100  # 120,000 bytes of weights
    with remote(lanes=1) as w:
        w.load(0, linear_graph(out), [2, wide], init=pb.INIT_PUSHED)
        w.attach()
        weights, bias = randoms(r, out, wide), randoms(r, 1, out)

        def put(i, name, data, dims):
            return frame(pb.STATE_PUT, data, dims, message=50 + i, module=0,
                         state=pb.State(what=pb.STATE_WEIGHTS, name=name, index=i, count=2))

        head = put(0, "0.weight", raw(weights), [out, wide])
        pieces = in_chunks(head, 9, 50_000)
        w.send(head)
        w.send(put(1, "0.bias", raw(bias), [out]))
        time.sleep(0.2)
        assert w.lane.poll() is None, "STATE_DONE before all of the state"
        for piece in reversed(pieces):
            w.session.lanes[1].send(piece)
        w.recv(pb.STATE_DONE)
        x = randoms(r, 2, wide)
        w.send(call(1, 60, 0, [(0, False, raw(x), [2, wide])], training=False))
        w.send(deliver(1, 60))
        want = [[v + b for v, b in zip(row, bias[0])] for row in matmul(x, transpose(weights))]
        close(tensor_of(w.recv(pb.VALUE), [2, out]), flat(want))


@suite.test
def invalid_or_duplicate_input_names_are_refused():
    """An INPUT has a name of at most 63 characters, which no other node has."""
    with Caller(the.cluster.ports[0], the.cluster.certs) as c:
        s = c.open(name="names")
        for name, code in (("", grpc.StatusCode.INVALID_ARGUMENT), ("n" * 64, grpc.StatusCode.INVALID_ARGUMENT),
                           ("a b", grpc.StatusCode.INVALID_ARGUMENT), ("0", grpc.StatusCode.ALREADY_EXISTS)):
            graph = mlp(3, 2)
            graph.nodes[0].name = name
            try:
                s.load(graph, [2, 4])
                raise AssertionError(name)
            except grpc.RpcError as e:
                assert e.code() == code, (name, e.code(), e.details())
        graph.nodes[0].name = "n" * 63
        assert [p.name for p in s.load(graph, [2, 4]).params][:2] == ["0.weight", "0.bias"]
        s.close()


@suite.test
def an_unknown_op_is_refused_by_its_layer():
    """As when a newer master uses an op that the worker does not know."""
    with Caller(the.cluster.ports[0], the.cluster.certs) as c:
        s = c.open(name="ops")
        try:
            s.load(pb.Graph(nodes=[node(INPUT, name="x"), node(4000, [0], 1, "act")], outputs=[1]), [2, 4])
            raise AssertionError("an op that the worker does not know")
        except grpc.RpcError as e:
            assert "layer 'act' has op number 4000, which this worker does not know" in e.details(), e.details()
        s.close()


@suite.test
def ping_and_status_are_answered():
    with Caller(the.cluster.ports[0], the.cluster.certs) as c:
        s = c.open(name="ping", lanes=1)
        lane, bulk = s.attach(), s.attach(1)
        bulk.send(pb.Frame(kind=pb.PING, message=40))  # between chunks
        pong = lane.recv()
        assert pong.kind == pb.PONG and pong.reply_to == 40, pong
        for k in range(3):
            lane.send(pb.Frame(kind=pb.PING, message=50 + k))
            pong = lane.recv()
            assert pong.kind == pb.PONG and pong.reply_to == 50 + k, pong
        pings = [pb.Frame(kind=pb.PING, message=60 + k) for k in range(16)]
        for message in (pb.Frame(kind=pb.PING, message=76, before=pings[1:]), pb.Frame(before=pings[1:])):
            lane.send(message)
            for f in frames_of([pb.Frame.FromString(message.SerializeToString())]):
                assert lane.recv().reply_to == f.message
        status = c.stub.Status(pb.StatusRequest())
        assert [x.name for x in status.sessions] == ["ping"] and not status.rss_bytes
        assert status.incarnation == c.about.incarnation and not status.draining
        s.close()
        assert not c.stub.Status(pb.StatusRequest()).sessions


@suite.test
def health_and_reflection_services_answer():
    with Caller(the.cluster.ports[0], the.cluster.certs) as c:
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
        # list_services, file_containing_symbol
        requests = [b"\x3a\x01*", b"\x22\x10cleave.v1.Worker"]
        listed, described = list(ask(iter(requests), timeout=20))
        assert b"cleave.v1.Worker" in listed and b"grpc.health.v1.Health" in listed
        from google.protobuf import descriptor_pb2
        at = described.index(b"cleave/v1/cleave.proto")
        shipped = pb.DESCRIPTOR.serialized_pb
        assert len(described) >= len(shipped) - 200 and b"LoadModuleRequest" in described, (at, len(described))
        assert descriptor_pb2.FileDescriptorProto.FromString(shipped).service[0].name == "Worker"


run_suite(suite, "client", workers=1)

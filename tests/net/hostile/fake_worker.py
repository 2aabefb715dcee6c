"""A worker that shares no code with Cleave: it holds modules of one linear layer, computes them in
NumPy, and speaks the frames of contexts (section 6 of proto/PROTOCOL.md). It is honest, except in
what a test replaces."""
import concurrent.futures, itertools, queue, threading, time
import pyclient
from pyclient import *

try:
    import numpy
except ImportError as e:
    pyclient.MISSING = pyclient.MISSING or f"python3-numpy is needed ({e})"

MIB = 1 << 20
SIZES = {F32: 4, F64: 8, I64: 8}


class Linear:
    """y = x W' + b under plain SGD."""

    def __init__(self, request):
        layer = next(n for n in request.graph.nodes if n.op == LINEAR)
        out = next(a.ints[0] for a in layer.attrs if a.key == 1)
        name = layer.name or str(layer.layer)
        self.index = request.module
        shapes = {f"{name}.weight": (out, request.inputs[0].dims[1]), f"{name}.bias": (out,)}
        self.params = {name: numpy.zeros(shape, numpy.float32) for name, shape in shapes.items()}
        self.output, self.steps = [request.inputs[0].dims[0], out], 0

    def forward(self, x):
        weight, bias = self.params.values()
        return x @ weight.T + bias

    def backward(self, x, dy):
        """The gradients of the input and of the parameters."""
        weight = next(iter(self.params.values()))
        return dy @ weight, [dy.T @ x, dy.sum(0)]

    def step(self, gradients, commit):
        for p, g in zip(self.params.values(), gradients):
            p -= numpy.float32(commit.lr) * (numpy.float32(commit.scale) * g)
        self.steps += 1

    def state(self, what):
        """(name, dims, dtype, bytes) of each item."""
        if what == pb.STATE_OPTIMIZER:
            return [("step", [], I64, struct.pack("<q", self.steps))]
        return [(name, p.shape, F32, p.tobytes()) for name, p in self.params.items()]


class Context:
    """What a worker keeps of one: values by id, the CALLs by the id of their value, DELIVERs that
    wait, the calls of the backward pass, and gradients, of values by their order, of modules."""

    def __init__(self):
        self.values, self.calls, self.deliveries = {}, {}, []
        self.needed, self.prepare, self.gradients, self.learned = [], None, {}, {}


def tensor_of(f):
    """The f32 tensor that the frame carries, None without one."""
    if not f.tensors:
        return None
    head = f.tensors[0]
    assert head.dtype == F32 and head.transfer == 0 and head.crc32c == crc32c(f.payload), f
    return numpy.frombuffer(f.payload, numpy.float32).reshape(list(head.dims)).copy()


class Modules:
    """Answers to the frames of a master: on_KIND(frame) yields them."""

    def __init__(self):
        self.modules, self.contexts, self.message = {}, {}, 0
        self.device = "cpu"

    def answers(self, f):
        handler = getattr(self, "on_" + pb.FrameKind.Name(f.kind).lower(), None)
        return handler(f) if handler else ()

    def reply(self, kind, f, **fields):
        self.message += 1
        return pb.Frame(kind=kind, context=f.context, message=(7 << 48) + self.message,
                        reply_to=f.message, **fields)

    def of(self, f):
        return self.contexts.setdefault(f.context, Context())

    # ---- forward

    def on_call(self, f):
        c = self.of(f)
        at = 0
        for arg, head in zip((a for a in f.call.args if a.here), f.tensors):
            part = pb.Frame(tensors=[head], payload=f.payload[at:at + head.bytes])
            c.values[arg.value] = tensor_of(part)
            at += head.bytes
        c.calls[f.message] = f
        if f.flags & pb.FLAG_DELIVER:
            c.deliveries.append(f)
        return self.go_on(f.context, c)

    def on_value(self, f):
        failed = f.failure if f.HasField("failure") else None
        self.of(f).values[f.message] = failed or tensor_of(f)
        return self.go_on(f.context, self.of(f))

    def on_deliver(self, f):
        self.of(f).deliveries.append(f)
        return self.go_on(f.context, self.of(f))

    def go_on(self, context, c):
        """Whatever can be done with what is there now."""
        for value, f in c.calls.items():
            if value not in c.values and all(a.value in c.values for a in f.call.args):
                x = c.values[f.call.args[0].value]
                c.values[value] = x if isinstance(x, pb.Failure) else self.modules[f.module].forward(x)
        for d in [d for d in c.deliveries if d.message in c.values]:
            c.deliveries.remove(d)
            v = c.values[d.message]
            if isinstance(v, pb.Failure):
                yield pb.Frame(kind=pb.VALUE, failure=v, context=context, message=d.message, to=d.to)
                continue
            yield frame(pb.VALUE, v.tobytes(), v.shape, context=context, message=d.message, to=d.to)
        yield from self.backward(context, c)

    # ---- backward

    def on_prepare(self, f):
        c = self.of(f)
        c.needed += f.backward.calls
        c.prepare = None if f.backward.more else f
        return self.go_on(f.context, c)

    def on_gradient(self, f):
        c = self.of(f)
        c.gradients.setdefault(f.message, {})[f.order] = tensor_of(f)
        return self.go_on(f.context, c)

    def backward(self, context, c):
        if not c.prepare:
            return
        while c.needed and len(c.gradients.get(c.needed[0].call, ())) == c.needed[0].contributions:
            yield from self.backward_of(context, c, c.needed.pop(0))
        if not c.needed:
            yield self.finished(context, c)
            c.prepare = None

    def backward_of(self, context, c, needed):
        call = c.calls[needed.call]
        x = c.values[call.call.args[0].value]
        dy = sum(c.gradients[needed.call][order] for order in sorted(c.gradients[needed.call]))
        dx, learned = self.modules[call.module].backward(x, dy)
        for t in needed.targets:
            to = c.prepare.backward.peers[t.to - 1] if t.to else ""
            yield frame(pb.GRADIENT, dx.tobytes(), dx.shape, context=context, phase=c.prepare.phase,
                        message=t.value, order=t.order, to=to)
        before = c.learned.get(call.module)
        c.learned[call.module] = [a + b for a, b in zip(before, learned)] if before else learned

    def finished(self, context, c):
        f = pb.Frame(kind=pb.FINISHED, context=context, phase=c.prepare.phase)
        if c.prepare.backward.vote:
            gradients = [g for module in sorted(c.learned) for g in c.learned[module]]
            sums = numpy.array([numpy.square(g.astype(float)).sum() for g in gradients])
            f.vote.finite = True
            f.tensors.append(tensor_head(sums.tobytes(), sums.shape, F64))
            f.payload = sums.tobytes()
        return f

    # ---- the rest

    def on_end_context(self, f):
        """The step of a context comes with its end."""
        learned = self.contexts.pop(f.context, Context()).learned
        for module in learned if f.commit.apply else ():
            self.modules[module].step(learned[module], f.commit)
        yield self.reply(pb.ENDED, f)

    def on_ping(self, f):
        yield self.reply(pb.PONG, f)

    def on_state_get(self, f):
        what, items = f.state.what, self.modules[f.module].state(f.state.what)
        if what == pb.STATE_GRADIENTS:
            names = self.modules[f.module].params
            items = [(name, g.shape, F32, numpy.float32(g).tobytes())
                     for name, g in zip(names, self.of(f).learned[f.module])]
        for i, (name, dims, dtype, raw) in enumerate(items):
            yield self.reply(pb.STATE_ITEM, f, module=f.module, payload=raw,
                             tensors=[tensor_head(raw, dims, dtype)],
                             state=pb.State(what=what, name=name, index=i, count=len(items),
                                            device=self.device))
        yield self.state_done(f, len(items))

    def on_state_put(self, f):
        self.modules[f.module].params[f.state.name][...] = tensor_of(f)
        if f.state.index == f.state.count - 1:
            yield self.state_done(f, f.state.count)

    def state_done(self, f, count):
        return self.reply(pb.STATE_DONE, f, module=f.module,
                          state=pb.State(what=f.state.what, count=count))


class FakeWorker:
    """Serves Modules as the worker "w1". Whatever a test passes in replaces one part of it: unary
    methods by name (bytes -> bytes), `attached` (the first frames of a lane), `lane0` (all that
    follow on the control lane), or `twist` (each frame that would be sent -> the list of what is
    sent instead; chunks among it go over a bulk lane)."""

    def __init__(self, certs, credit, twist=None, lane0=None, attached=None, **methods):
        self.twist, self.lane0, self.attached = twist or (lambda f: [f]), lane0, attached
        self.methods, self.credit, self.held = methods, credit, 0
        self.modules, self.log = Modules(), []
        self.heard = []  # (method or "Session", bytes) of all that came
        self.over, self.bulk = threading.Event(), queue.Queue()
        key, chain, ca = [read(os.path.join(certs, n)) for n in ("w1.key", "w1.pem", "ca.pem")]
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(12),
                                  options=[("grpc.so_reuseport", 0)])
        self.server.add_generic_rpc_handlers([self])
        self.port = self.server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(
            [(key, chain)], ca, require_client_auth=True))
        self.server.start()

    def service(self, details):
        name = details.method.rsplit("/", 1)[-1]
        if name == "Session":
            return grpc.stream_stream_rpc_method_handler(
                self.session, lambda raw: pb.Frame.FromString(self.hear(name, raw)), self.bytes_of)
        answer = self.methods.get(name, getattr(self, name, None))
        return answer and grpc.unary_unary_rpc_method_handler(lambda r, c: self.bytes_of(answer(self.hear(name, r))))

    def hear(self, name, raw):
        self.heard.append((name, raw))
        return raw

    @staticmethod
    def bytes_of(message):
        return message if isinstance(message, bytes) else message.SerializeToString()

    # ---- unary

    def Hello(self, request):
        return hello_reply(self.credit)

    def OpenSession(self, request):
        return pb.OpenSessionReply(incarnation=bytes(16), granted=limits_of(self.credit))

    def CloseSession(self, request):
        for _ in range(16):  # no lane waits for chunks any more
            self.bulk.put(None)
        return pb.CloseSessionReply()

    def LoadModule(self, request):
        request = pb.LoadModuleRequest.FromString(request)
        self.modules.modules[request.module] = Linear(request)
        return loaded(self.modules.modules[request.module])

    # ---- the lanes

    def session(self, frames, context):
        frames = frames_of(frames)
        first = next(frames)
        if self.attached:
            yield from self.attached(first, self)
        else:
            yield pb.Frame(kind=pb.ATTACHED, attached=pb.Attached(credit_bytes=self.credit))
        if first.attach.lane:
            context.add_callback(lambda: self.bulk.put(None))
            yield from iter(self.bulk.get, None)
        elif self.lane0:
            yield from self.lane0(frames, self)
        else:
            yield from self.play(frames)

    def play(self, frames):
        """The control lane: answers to each frame, and its credit given back."""
        for f in frames:
            self.log.append(f)
            for reply in [*self.modules.answers(f), *self.credit_for(f)]:
                yield from self.on_lane_0(self.twist(reply))

    def credit_for(self, f):
        self.held += sum(head.bytes for head in f.tensors)
        if 2 * self.held >= self.credit:
            yield pb.Frame(kind=pb.CREDIT, credit=pb.Credit(bytes=self.held))
            self.held = 0

    def on_lane_0(self, frames):
        for f in frames:
            if not isinstance(f, bytes) and f.kind == pb.CHUNK:
                self.bulk.put(f)
            else:
                yield f

    def got(self, kind):
        return [f for f in self.log if f.kind == kind]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over.set()
        self.server.stop(0)


def limits_of(credit):
    return pb.Limits(sessions=8, tensors=4096, session_bytes=1 << 30, message_bytes=64 << 20,
                     chunk_bytes=1 << 20, credit_bytes=credit, concurrent_calls=8)


def hello_reply(credit, devices=("cpu",), **changed):
    about = dict(protocol=8, limits=limits_of(credit), software="fake", isa="x",
                 unix_ms=int(time.time() * 1000))
    about.update(changed)
    return pb.HelloReply(about=pb.About(**about), incarnation=bytes(16), worker="w1", cores=1,
                         threads=1, devices=devices)


def loaded(module):
    params = [pb.ParamSpec(name=name, spec=pb.TensorSpec(dtype=F32, dims=p.shape), digest=bytes(32))
              for name, p in module.params.items()]
    return pb.LoadModuleReply(params=params, memory_bytes=1,
                             outputs=[pb.TensorSpec(dtype=F32, dims=module.output)])


# ---- twists ------------------------------------------------------------------------------------

if pyclient.MISSING is None:
    V, G, F = pb.VALUE, pb.GRADIENT, pb.FINISHED


def on(kind, then, when=lambda f: True):
    """A twist: what is sent instead of one kind of frame."""
    return lambda f: then(f) if f.kind == kind and when(f) else [f]


def change(kind, **fields):
    def then(f):
        for k, v in fields.items():
            setattr(f, k, v)
        return [f]
    return on(kind, then)


def changes(kind, *each):
    return {str(fields): change(kind, **fields) for fields in each}


def with_tensor(f, raw, dims, dtype=F32):
    """The frame with another tensor."""
    small = len(raw) <= 64 << 10
    del f.tensors[:]
    f.tensors.append(tensor_head(raw, dims, dtype, 0 if small else 9))
    f.payload = raw if small else b""
    return [f] if small else [*chunks(raw, 9), f]


def shaped(kind, dims, dtype=F32, when=lambda f: True):
    size = SIZES[dtype] * int(numpy.prod(dims, dtype=numpy.int64))
    return on(kind, lambda f: with_tensor(f, bytes(size), dims, dtype), when)


def shapes(kind, *each):
    return {str(what): shaped(kind, *what) for what in each}


def bare(f):
    """The frame without tensor and vote."""
    del f.tensors[:]
    f.payload = b""
    f.ClearField("vote")
    return f


def copy(f, **fields):
    other = pb.Frame()
    other.CopyFrom(f)
    for k, v in fields.items():
        setattr(other, k, v)
    return other


def failing(kind, code, text, hop="", **fields):
    return pb.Frame(kind=kind, failure=pb.Failure(code=code, text=text, hop=hop), **fields)


def nothing(f):
    return []


def twice(f):
    return [f, f]


def starts(then):
    """A control lane that is honest until the first CALL has come; `then` makes what follows."""
    def lane0(frames, w):
        yield from w.play(itertools.takewhile(lambda f: f.kind != pb.CALL, frames))
        yield from then(frames, w)
    return lane0


def chunk(transfer, offset, total, size=1000):
    return pb.Frame(kind=pb.CHUNK, payload=bytes(size),
                    chunk=pb.Chunk(transfer=transfer, offset=offset, total=total))

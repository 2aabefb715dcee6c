"""A client of the worker protocol that shares no code with Cleave: Debian's python3-grpcio, and
messages that the stock generator makes from the shipped .proto file when the first test of a suite
starts."""
import array, atexit, fcntl, functools, importlib.util, os, queue, shutil, socket, struct, sys, tempfile, threading, time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
SLOW = float(os.environ.get("CLV_TEST_SLOW", "1"))
MISSING = None
try:
    import grpc
    if importlib.util.find_spec("grpc_tools") is None:
        raise ImportError("there is no grpc_tools")
except ImportError as e:
    MISSING = f"python3-grpcio and python3-grpc-tools are needed ({e})"


def generate(out):
    from grpc_tools import protoc
    proto = os.path.join(ROOT, "proto")
    args = ["protoc", f"-I{proto}", f"--python_out={out}", f"--grpc_python_out={out}",
            os.path.join(proto, "cleave/v1/cleave.proto")]
    assert protoc.main(args) == 0, "the stock generator refuses cleave.proto"


def messages():
    """The module cleave_pb2, made from proto/ in the folder CLV_TEST_ONCE, or in a folder that is
    removed with the process."""
    out = os.environ.get("CLV_TEST_ONCE") or tempfile.mkdtemp(prefix="cleave-proto-")
    if "CLV_TEST_ONCE" not in os.environ:
        atexit.register(shutil.rmtree, out, True)
    with open(os.path.join(out, "proto.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(os.path.join(out, "cleave")):
            generate(out)
    sys.path.insert(0, out)
    return importlib.import_module("cleave.v1.cleave_pb2"), importlib.import_module("cleave.v1.cleave_pb2_grpc")


if MISSING is None:
    pb, pb_grpc = messages()

F32, F64, I64 = 1, 2, 3
INPUT, LINEAR, CONV, RELU, ADD, BATCHNORM, CROSS_ENTROPY, EMBEDDING, WAIT = 0, 1, 2, 6, 12, 16, 17, 22, 29
ALL = 255  # as module of an APPLY: every module

# ---- CRC32C (Castagnoli, reflected 0x1EDC6F41), RFC 3720 --------------------------------------


def _crc_table():
    table = []
    for i in range(256):
        c = i
        for _ in range(8):
            c = (c >> 1) ^ 0x82F63B78 if c & 1 else c >> 1
        table.append(c)
    return table


CRC = _crc_table()


@functools.lru_cache(256)  # slow in Python, and tests often send the same bytes
def crc32c(data, crc=0):
    c = crc ^ 0xFFFFFFFF
    for b in data:
        c = CRC[(c ^ b) & 255] ^ (c >> 8)
    return c ^ 0xFFFFFFFF


def f32(values):
    return struct.pack(f"<{len(values)}f", *values)


def floats(raw, kind="f"):
    a = array.array(kind)
    a.frombytes(raw)
    return list(a)


# ---- connections -------------------------------------------------------------------------------

def read(path):
    with open(path, "rb") as f:
        return f.read()


class Caller:
    """A connection of one identity to one worker."""

    def __init__(self, port, certs, name="master", ca="ca.pem", options=(), host="127.0.0.1"):
        self.port, self.certs, self.name, self.ca, self.options = port, certs, name, ca, list(options)
        self.host = host
        self.channels, self.lanes = [], []
        self.channel = self.dial()
        self.stub = pb_grpc.WorkerStub(self.channel)

    def dial(self):
        creds = grpc.ssl_channel_credentials(
            read(os.path.join(self.certs, self.ca)),
            *((read(os.path.join(self.certs, self.name + ".key")),
               read(os.path.join(self.certs, self.name + ".pem"))) if self.name else (None, None)))
        # a local subchannel pool, so that each lane gets its own connection
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1),
                   ("grpc.max_receive_message_length", -1), ("grpc.enable_retries", 0)] + self.options
        channel = grpc.secure_channel(f"{self.host}:{self.port}", creds, options)
        self.channels.append(channel)
        return channel

    def close(self):
        """Ends the streams, so that a worker frees their sessions at once and not only when the
        lease ends."""
        for lane in self.lanes:
            lane.finish()
        end = time.monotonic() + 2 * SLOW
        while any(lane.call.is_active() for lane in self.lanes) and time.monotonic() < end:
            time.sleep(0.002)
        for c in self.channels:
            c.close()
        self.channels, self.lanes = [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def hello(self, credit=64 << 20, protocol=9):
        limits = pb.Limits(sessions=8, tensors=4096, session_bytes=1 << 30, message_bytes=64 << 20,
                           chunk_bytes=1 << 20, credit_bytes=credit, concurrent_calls=8)
        self.about = self.stub.Hello(pb.HelloRequest(about=pb.About(
            protocol=protocol, limits=limits, software="pyclient")), timeout=20 * SLOW)
        return self.about

    def open(self, session=None, epoch=1, lanes=0, name="py", config_digest=bytes(32)):
        self.hello()
        s = SessionOf(self, session or os.urandom(16), epoch, lanes)
        s.granted = self.stub.OpenSession(pb.OpenSessionRequest(
            session=s.id, epoch=epoch, name=name, lanes=lanes, config_digest=config_digest),
            timeout=20 * SLOW)
        return s

    def raw(self, method, data, timeout=20):
        """Sends any bytes as the request of a unary method. Returns (code, text)."""
        call = self.channel.unary_unary(f"/cleave.v1.Worker/{method}", lambda b: b, lambda b: b)
        try:
            call(data, timeout=timeout * SLOW)
            return grpc.StatusCode.OK, ""
        except grpc.RpcError as e:
            return e.code(), e.details()


def keys_of(graph):
    """Keys of a graph: a different one for each layer."""
    return b"".join(bytes([n.layer % 256, 1]) + bytes(14) for n in graph.nodes)


def node(op, inputs=(), layer=0, name="", **attrs):
    keys = {"out": 1, "kernel": 2, "stride": 3, "pad": 4, "groups": 5, "bias": 6, "shape": 10, "rows": 11,
            "forward_ms": 17}
    return pb.Node(op=op, inputs=inputs, layer=layer, name=name, attrs=[
        pb.Attr(key=keys[k], ints=v if isinstance(v, (list, tuple)) else [v]) for k, v in attrs.items()])


def mlp(hidden, out):
    """INPUT, linear, relu, linear; parameters 0.weight, 0.bias, 2.weight, 2.bias."""
    return pb.Graph(nodes=[node(INPUT, name="x"), node(LINEAR, [0], 0, out=hidden), node(RELU, [1], 1),
                           node(LINEAR, [2], 2, out=out)], outputs=[3])


def load_request(session, graph, inputs, module=0, **fields):
    """LoadModule of `module`; `fields` add to it or change it."""
    request = dict(session=session.id, epoch=session.epoch, module=module,
                   graph=graph, inputs=inputs, threads=1, device="cpu",
                   optimizer=pb.Optimizer(kind=pb.OPTIMIZER_SGD, lr=0.1, momentum=0.9))
    request.update(fields)
    request.setdefault("keys", keys_of(request["graph"]))
    return pb.LoadModuleRequest(**request)


class SessionOf:
    def __init__(self, caller, session, epoch, lanes):
        self.caller, self.id, self.epoch, self.n_lanes = caller, session, epoch, lanes
        self.lanes, self.granted = [], None

    def load(self, graph, dims, inputs=None, **fields):
        """Loads a module with one input of `dims` in f32, or with these inputs."""
        inputs = inputs or [pb.TensorSpec(dtype=F32, dims=dims)]
        return self.caller.stub.LoadModule(load_request(self, graph, inputs, **fields), timeout=60 * SLOW)

    def attach(self, lane=0, **changed):
        s = Lane(self.caller.dial() if lane else self.caller.channel, session=self)
        self.caller.lanes.append(s)
        fields = dict(session=self.id, epoch=self.epoch, incarnation=self.caller.about.incarnation,
                      lane=lane, lanes=self.n_lanes, role=pb.ROLE_MASTER)
        fields.update(changed)
        s.send(pb.Frame(kind=pb.ATTACH, attach=pb.Attach(**fields)))
        reply = s.recv()
        assert reply.kind == pb.ATTACHED, reply
        s.credit = reply.attached.credit_bytes
        self.lanes.append(s)
        s.control = self.lanes[0]
        return s

    def close(self):
        return self.caller.stub.CloseSession(
            pb.CloseSessionRequest(session=self.id, epoch=self.epoch), timeout=30 * SLOW)


class Ended(Exception):
    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


def frames_of(messages):
    """The frames in these messages, in order (PROTOCOL.md 4)."""
    for message in messages:
        for f in message.before:
            yield pb.Frame.FromString(f.SerializeToString())
        message.ClearField("before")
        if message.kind:
            yield message


class Lane:
    """One Session stream; frames in and out, as messages or as raw bytes."""

    def __init__(self, channel, deaf=False, session=None):
        self.out, self.inbox, self.control = queue.Queue(), queue.Queue(), self
        self.session, self.received = session, 0
        call = channel.stream_stream("/cleave.v1.Worker/Session",
                                     (lambda b: b), pb.Frame.FromString)
        self.call = call(iter(self.out.get, None))
        if not deaf:
            self.listen()

    def listen(self):
        threading.Thread(target=self._read, daemon=True).start()

    def messages(self):
        """The messages of the stream. Each is acknowledged at once, if the protocol has ACKs."""
        for message in self.call:
            yield message
            self.received += message.kind not in (pb.ATTACH, pb.ATTACHED)
            lanes = self.session.lanes if self.session and self.has_acks() else []
            if self in lanes and len(lanes) == 1 + self.session.n_lanes:
                self.control.send(pb.Frame(kind=pb.ACK, ack=pb.Ack(received=[lane.received for lane in lanes])))

    def has_acks(self):
        return not self.session or self.session.caller.about.about.protocol >= 9

    def _read(self):
        try:
            for frame in frames_of(self.messages()):
                if frame.kind == pb.ACK and self.has_acks():
                    continue
                if frame.kind == pb.PING:  # a worker sends PINGs to measure, or after chunks
                    self.control.send(pb.Frame(kind=pb.PONG, reply_to=frame.message))
                else:
                    self.inbox.put(frame)
            self.inbox.put(Ended(grpc.StatusCode.OK, ""))
        except grpc.RpcError as e:
            self.inbox.put(Ended(e.code(), e.details()))

    def send(self, frame):
        self.out.put(frame if isinstance(frame, bytes) else frame.SerializeToString())

    def recv(self, timeout=20):
        """The next frame that is not CREDIT."""
        while True:
            got = self.inbox.get(timeout=timeout * SLOW)
            if isinstance(got, Ended):
                self.inbox.put(got)
                raise got
            if got.kind != pb.CREDIT:
                return got

    def poll(self):
        """The next frame if it is here already, else None."""
        while not self.inbox.empty():
            got = self.inbox.get()
            if isinstance(got, Ended):
                self.inbox.put(got)
                raise got
            if got.kind != pb.CREDIT:
                return got
        return None

    def finish(self):
        self.out.put(None)


# ---- frames ------------------------------------------------------------------------------------

def tensor_head(raw, dims, dtype=F32, transfer=0):
    return pb.TensorHead(dtype=dtype, dims=dims, bytes=len(raw), crc32c=crc32c(raw), transfer=transfer)


def frame(kind, raw=None, dims=(), dtype=F32, **fields):
    """A frame with at most one tensor in its payload."""
    f = pb.Frame(kind=kind, **fields)
    if raw is not None:
        f.tensors.append(tensor_head(raw, dims, dtype))
        f.payload = raw
    return f


def chunks(raw, transfer, size=256 << 10):
    for at in range(0, len(raw), size):
        yield pb.Frame(kind=pb.CHUNK, payload=raw[at:at + size],
                       chunk=pb.Chunk(transfer=transfer, offset=at, total=len(raw)))

# SPDX-License-Identifier: Apache-2.0
"""Messages of unary calls, valid and invalid (corpus/wire), LoadModule as far as a stage (load),
and answers to Status, two of each worker (status)."""
import struct

from seeds.base import F32, I64, ID, PROTOCOL, changed, pb, write

LIMITS = pb.Limits(sessions=8, tensors=4096, session_bytes=1 << 36, message_bytes=64 << 20,
                   chunk_bytes=1 << 20, credit_bytes=64 << 20, concurrent_calls=64)
ABOUT = pb.About(protocol=PROTOCOL, capabilities=["codec.bf16", "x"], limits=LIMITS, software="cleave 0.1.0",
                 isa="avx512_core", libraries=[pb.Library(name="oneDNN", version="2.7.3")], unix_ms=1 << 40)
ARTIFACT = pb.Artifact(name="resnet50", sha256=bytes(32))


HELLO = pb.HelloReply(about=ABOUT, incarnation=ID, worker="worker-1", cores=16, threads=16,
                      devices=["cpu", "cuda:0"], artifacts=[ARTIFACT])
OPEN = pb.OpenSessionRequest(session=ID, epoch=2, name="films", peer_identities=["spiffe://c/w2"],
                             lanes=2, config_digest=bytes(32))


def node(op, inputs=(), name="", layer=0, **attrs):
    """A node. Attributes are written as out_1=(8,) or p_7=0.5: a name for the reader and the key of
    PROTOCOL.md."""
    n = pb.Node(op=op, name=name, layer=layer, inputs=inputs)
    for key, value in attrs.items():
        number = int(key.rsplit("_", 1)[1])
        if isinstance(value, float):
            n.attrs.add(key=number, number=value)
        else:
            n.attrs.add(key=number, ints=value)
    return n


def spec(*dims, dtype=F32):
    return pb.TensorSpec(dtype=dtype, dims=dims)


def load(nodes, inputs=(spec(4, 3),), outputs=None, **fields):
    return pb.LoadModuleRequest(**dict(dict(
        session=ID, epoch=1, module=1, threads=1, device="cpu", name="encoder", in_flight=2, inputs=inputs,
        keys=bytes(range(16)) * len(nodes), graph=pb.Graph(nodes=nodes, outputs=[len(nodes) - 1] if outputs is None else outputs),
        route=pb.Route(input_needs_grad=True, peers=["w2"]),
        optimizer=pb.Optimizer(kind=pb.OPTIMIZER_SGD, lr=0.1, momentum=0.9, nesterov=True)), **fields))


X = node(0, name="x")
LINEAR = load([X, node(1, [0], "fc", 1, out_1=(5,)), node(6, [1], "act", 2)])
ADAM = pb.Optimizer(kind=pb.OPTIMIZER_ADAMW, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.1)
IMAGES = [spec(2, 3, 8, 8)]
LOADS = {
    "linear": LINEAR,
    "rmsprop": changed(LINEAR, optimizer=pb.Optimizer(kind=pb.OPTIMIZER_RMSPROP, lr=1e-3, alpha=0.99, eps=1e-8, centered=True)),
    "adagrad": changed(LINEAR, optimizer=pb.Optimizer(kind=pb.OPTIMIZER_ADAGRAD, lr=1e-2, lr_decay=0.1, eps=1e-10,
                                                      initial_accumulator_value=0.1)),
    "averages": changed(LINEAR, optimizer=pb.Optimizer(kind=pb.OPTIMIZER_SGD, lr=0.1, ema=0.9, ema_warmup=True)),
    "averages_of_1": changed(LINEAR, optimizer=pb.Optimizer(kind=pb.OPTIMIZER_SGD, lr=0.1, ema=1)),
    "groups": changed(LINEAR, optimizer=ADAM, hold_rest=True, frozen=["fc.bias"], groups=[
        pb.ParamGroup(optimizer=ADAM, params=["fc.weight"])]),
    "group_unknown": changed(LINEAR, groups=[pb.ParamGroup(optimizer=LINEAR.optimizer, params=["none"])]),
    "group_frozen": changed(LINEAR, frozen=["fc.bias"], groups=[
        pb.ParamGroup(optimizer=LINEAR.optimizer, params=["fc.bias"])]),
    "group_twice": changed(LINEAR, groups=[pb.ParamGroup(optimizer=LINEAR.optimizer, params=["fc.bias"])] * 2),
    "fixed": changed(LINEAR, optimizer=ADAM, frozen=["fc.weight"], fixed=True),
    "frozen_bf16": changed(LINEAR, optimizer=ADAM, frozen=["fc.weight"], fixed=True, frozen_bf16=True),
    "frozen_unknown": changed(LINEAR, frozen=["fc.none"]),
    "inference": changed(LINEAR, optimizer=pb.Optimizer(), route=pb.Route()),
    "convnet": load([X, node(2, [0], "c", 1, out_1=(4,), kernel_2=(3, 3), pad_4=(1,), stride_3=(1, 1)),
                     node(16, [1], "bn", 2), node(6, [2], "r", 3), node(3, [3], "p", 4, kernel_2=(2,)),
                     node(4, [4], "a", 5, kernel_2=(2,), stride_3=(2,)), node(5, [5], "g", 6),
                     node(13, [6], "f", 7), node(1, [7], "fc", 8, out_1=(2,), bias_6=(0,))], IMAGES),
    "grouped_conv": load([X, node(2, [0], "c", 1, out_1=(6,), kernel_2=(3,), groups_5=(3,), bias_6=(0,),
                                  kaiming_20=(1,))], IMAGES),
    "residual": load([X, node(1, [0], "a", 1, out_1=(3,)), node(12, [0, 1], "s", 2), node(9, [2], "g", 3),
                      node(15, [3], "d", 4, p_7=0.5), node(28, [4], "ln", 5, shape_10=(3,)),
                      node(10, [5], "sm", 6)]),
    "sequence": load([X, node(22, [0], "e", 1, out_1=(4,), rows_11=(9,)),
                      node(23, [1], "l", 2, out_1=(3,), layers_12=(2,)),
                      node(27, [2], "s", 3, dim_13=(1,), start_14=(-1,)), node(24, [3], "m", 4, dim_13=(1,)),
                      node(25, [4], "k", 5, factor_16=0.5)], [spec(2, 6, dtype=I64)]),
    "adapter": load([X, node(1, [0], "q", 1, out_1=(5,)), node(1, [0], "q.lora_A", 1, out_1=(2,), bias_6=(0,)),
                     node(1, [2], "q.lora_B", 1, out_1=(5,), bias_6=(0,), zero_37=(1,)), node(12, [1, 3], "q.lora_sum", 1)]),
    "loss": load([X, node(0, name="y"), node(17, [0, 1], "loss", 1)], [spec(4, 3), spec(4, dtype=I64)]),
    "bce": load([X, node(0, name="y"), node(7, [0], "s", 1), node(20, [2, 1], "loss", 2)],
                [spec(4, 3), spec(4, 3)]),
    "logits": load([X, node(0, name="y"), node(21, [0, 1], "loss", 2)], [spec(4, 3), spec(4, 3)]),
    "mse": load([X, node(0, name="y"), node(8, [0], "t", 1), node(19, [2, 1], "loss", 2)],
                [spec(4, 3), spec(4, 3)]),
    "nll": load([X, node(0, name="y"), node(11, [0], "s", 1), node(18, [2, 1], "loss", 2)],
                [spec(4, 3), spec(4, dtype=I64)]),
    "concat": load([X, node(0, name="y"), node(26, [0, 1], "c", 1, dim_13=(1,)),
                    node(14, [2], "r", 2, shape_10=(2, 3))], [spec(4, 3), spec(4, 3)]),
    "wait": load([X, node(29, [0], "w", 1, forward_17=(1,))]),
    "bf16": changed(LINEAR, bf16=True),
    "tf32": changed(LINEAR, tf32=True),
    "threads": changed(LINEAR, threads=100000),
    "device": changed(LINEAR, device="cuda:7"),
    "artifact": changed(LINEAR, init=pb.INIT_ARTIFACT, artifact=ARTIFACT),
    "pushed": changed(LINEAR, init=pb.INIT_PUSHED),
    # Refused requests.
    "no_spec": load([X, node(0, name="y"), node(12, [0, 1], "s", 1)]),
    "no_input": load([node(6, [], "r", 1)], []),
    "two_outputs": load([X, node(6, [0], "r", 1)], outputs=[0, 1]),
    "op_unknown": load([X, node(77, [0], "r", 1)]),
    "many_inputs": load([X, node(26, [0] * 9, "c", 1, dim_13=(1,))]),
    "many_ints": load([X, node(14, [0], "r", 1, shape_10=(1,) * 12)]),
    "key_unknown": load([X, node(6, [0], "r", 1, out_1=(3,))]),
    "attr_missing": load([X, node(1, [0], "r", 1)]),
    "attr_range": load([X, node(15, [0], "d", 1, p_7=1.5)]),
    "attr_kind": load([X, node(1, [0], "d", 1, out_1=3.5)]),
    "attr_arity": load([X, node(2, [0], "c", 1, out_1=(3,), kernel_2=(1, 2, 3))], IMAGES),
    "name_twice": load([X, node(6, [0], "r", 1), node(6, [1], "r", 2)]),
    "name_bad": load([X, node(6, [0], "a/b", 1)]),
    "shapes_differ": load([X, node(1, [0], "a", 1, out_1=(7,)), node(12, [0, 1], "s", 2)]),
    "huge": load([X, node(1, [0], "a", 1, out_1=(1 << 30,))]),
    "huge_batch": load([X, node(6, [0], "a", 1)], [spec(1 << 40, 3)]),
    "huge_flight": changed(LINEAR, in_flight=4096),
    "many_params": load([X] + [node(23, [max(i - 1, 0)], f"l{i}", i, out_1=(1,)) for i in range(1, 140)],
                        [spec(2, 2, 1)]),
    "rank": load([X, node(2, [0], "c", 1, out_1=(3,), kernel_2=(3,))]),
    "too_small": load([X, node(2, [0], "c", 1, out_1=(3,), kernel_2=(31,))], IMAGES),
    "reshape": load([X, node(14, [0], "r", 1, shape_10=(5,))]),
    "slice_range": load([X, node(27, [0], "s", 1, dim_13=(1,), start_14=(7,), stop_15=(9,))]),
    "concat_batch": load([X, node(26, [0, 0], "c", 1, dim_13=(0,))]),
    "tokens": load([X, node(22, [0], "e", 1, out_1=(4,), rows_11=(9,))]),
}

SESSION = pb.SessionStatus(
    session=ID, epoch=2, name="films", bytes_in=1 << 30, bytes_out=300 << 20, memory_bytes=1 << 20, contexts=2,
    modules=[pb.ModuleStatus(module=i, steps=120, forwards=480, backwards=480, evals=i, compute_ns=10**9, name="" if i == 2 else "caf\u00e9")
            for i in (1, 2)], values=14, calls_waiting=3, late_frames=1, identity="spiffe://c/master",
    age_ms=754000, attached=True, memory_limit=1 << 34, busy_ns=10**10, idle_ns=9 * 10**10, turn_ns=10**9,
    references_owned=3, references_used=2, references_pending=1, links=[
        pb.LinkStatus(bytes_in=1 << 30, bytes_out=300 << 20, round_trip_us=82400, frames_in=3, frames_out=1,
                      tensors_in=1, tensors_out=2, missing_bytes_in=2200000, missing_bytes_out=131072,
                      received_bytes=1 << 30, receiving_ns=6 * 10**10, sent_bytes=300 << 20,
                      sending_ns=5 * 10**9, measured_ns=10**12, awaits=4000, awaited_ns=8 * 10**10,
                      outages=3, last_outage_age_ms=720000, last_outage_ms=4200, outage_ms=8000),
        pb.LinkStatus(peer="worker-2", bytes_in=12, bytes_out=5000, missing_bytes_out=131072,
                      awaited_ns=10**9)],
    last_error=pb.Trouble(text="module 1: caf\u00e9 \u202e is nowhere", age_ms=5000))
STATUS = pb.StatusReply(
    incarnation=ID, uptime_ms=800000, draining=True, rss_bytes=1 << 30, sessions=[SESSION], about=ABOUT,
    worker="w1", device="cpu", cores=16, memory_bytes=1 << 20, memory_limit=1 << 34, open_sessions=3,
    connections=4, max_connections=256, handshake_failures=2, certificate_ends=1 << 31, sees_all=True,
    left_out=1, last_error=pb.Trouble(text="what went wrong", age_ms=90000), devices=[
        pb.DeviceStatus(name="cuda:0", kind="NVIDIA H200", isa="sm_90", memory_bytes=1 << 30, memory_limit=1 << 36, total_bytes=1 << 37),
        pb.DeviceStatus(name="cuda:1", memory_bytes=3)])


def unary(decoder, messages):
    for name, message in messages.items():
        for suffix, step in (("", 0), ("_pieces", 3)) if "bad" not in name else (("", 0),):
            write("wire", name + suffix, bytes([decoder, step]) + message.SerializeToString())


def many(message, n):
    return [message] * n


unary(1, {"hello_request": pb.HelloRequest(about=ABOUT),
          "hello_bad_missing": pb.HelloRequest(),
          "hello_bad_version": pb.HelloRequest(about=changed(ABOUT, protocol=PROTOCOL + 1)),
          "hello_bad_limits": pb.HelloRequest(about=changed(ABOUT, limits=changed(LIMITS, session_bytes=1 << 60))),
          "hello_bad_no_limits": pb.HelloRequest(about=changed(ABOUT, limits=None)),
          "hello_bad_libraries": pb.HelloRequest(about=changed(ABOUT, libraries=many(pb.Library(), 65))),
          "hello_bad_capabilities": pb.HelloRequest(about=changed(ABOUT, capabilities=["c"] * 65))})
unary(2, {"hello_reply": HELLO,
          "hello_reply_bad_name": changed(HELLO, worker=""),
          "hello_reply_bad_long": changed(HELLO, worker="w" * 129),
          "hello_reply_bad_id": changed(HELLO, incarnation=b"short"),
          "hello_reply_bad_about": changed(HELLO, about=None),
          "hello_reply_cpu": changed(HELLO, devices=["cpu"]),
          "hello_reply_small": changed(HELLO, about=changed(ABOUT, limits=changed(LIMITS, message_bytes=1))),
          "hello_reply_kinds": changed(HELLO, kinds=many(pb.DeviceKind(kind="cpu"), 2)),
          "hello_reply_bad_kinds": changed(HELLO, kinds=[pb.DeviceKind(kind="cpu")]),
          "hello_reply_bad_devices": changed(HELLO, devices=["cpu"] * 65),
          "hello_reply_bad_device": changed(HELLO, devices=["cpu", ""]),
          "hello_reply_bad_artifacts": changed(HELLO, artifacts=many(ARTIFACT, 65)),
          "hello_reply_bad_digest": changed(HELLO, artifacts=[pb.Artifact(name="a", sha256=b"1")]),
          "hello_reply_bad_artifact": changed(HELLO, artifacts=[pb.Artifact(sha256=bytes(32))])})
unary(3, {"open_request": OPEN, "open_request_lease": changed(OPEN, reference_lease_ms=5000),
          "open_bad_lease": changed(OPEN, reference_lease_ms=1),
          "open_bad_lanes": changed(OPEN, lanes=99),
          "open_bad_peers": changed(OPEN, peer_identities=["spiffe://c/w"] * 65),
          "open_bad_name": changed(OPEN, name="a\nb"),
          "open_bad_epoch": changed(OPEN, epoch=0)})
unary(4, {"open_reply": pb.OpenSessionReply(incarnation=ID, granted=LIMITS)})
unary(5, {"close_request": pb.CloseSessionRequest(session=ID, epoch=3)})
unary(6, {"close_reply": pb.CloseSessionReply(bytes_in=1, bytes_out=2, forwards=3, backwards=4)})
unary(7, {"load_request": LOADS["groups"], "load_request_artifact": LOADS["artifact"],
          "load_bad_name": changed(LINEAR, name="n" * 129), "load_bad_module": changed(LINEAR, module=255),
          "load_bad_graph": changed(LINEAR, graph=None),
          "load_bad_route": changed(LINEAR, route=None),
          "load_bad_optimizer": changed(LINEAR, optimizer=None),
          "load_bad_artifact": changed(LINEAR, init=pb.INIT_ARTIFACT),
          "load_bad_peers": changed(LINEAR, route=pb.Route(peers=["w"] * 65)),
          "load_bad_flight": changed(LINEAR, in_flight=5000),
          "load_bad_frozen": changed(LINEAR, frozen=["f"] * 4097),
          "load_bad_inputs": changed(LINEAR, inputs=many(spec(1), 9)),
          "load_bad_dtype": changed(LINEAR, inputs=[spec(1, dtype=99)]),
          "load_bad_rank": changed(LINEAR, inputs=[spec(*([1] * 9))]),
          "load_bad_dim": changed(LINEAR, inputs=[spec(1 << 63)]),
          "load_tied": changed(LINEAR, ties=[pb.Tie(node=2, owner="fc", module=3)]),
          "load_bad_tie": changed(LINEAR, ties=[pb.Tie(node=9, owner="fc")]),
          "load_bad_tie_module": changed(LINEAR, ties=[pb.Tie(node=1, owner="fc", module=300)]),
          "load_bad_tie_owner": changed(LINEAR, ties=[pb.Tie(node=1)]),
          "load_bad_fresh": changed(LINEAR, fresh=["fc.bias"]),
          "load_bad_numbers": load([X, pb.Node(op=17, inputs=[0], attrs=[pb.Attr(key=34, numbers=[float("nan")])])]),
          "load_bad_groups": changed(LINEAR, groups=many(pb.ParamGroup(optimizer=LINEAR.optimizer), 16)),
          "load_bad_group": changed(LINEAR, groups=[pb.ParamGroup(params=["fc.bias"])]),
          "load_bad_group_kind": changed(LINEAR, groups=[pb.ParamGroup(optimizer=ADAM, params=["fc.bias"])]),
          "load_bad_group_names": changed(LINEAR, groups=[
              pb.ParamGroup(optimizer=LINEAR.optimizer, params=["p"] * 4097)]),
          "load_bad_lr": changed(LINEAR, optimizer=pb.Optimizer(kind=1, lr=float("nan"))),
          "load_bad_kind": changed(LINEAR, optimizer=pb.Optimizer(kind=9)),
          "load_bad_init": changed(LINEAR, init=9),
          "load_bad_forward": load([X, node(6, [1], "r", 1)]),
          "load_bad_output": load([X], outputs=[7]),
          "load_bad_node_inputs": load([X, node(26, [0] * 17, "c", 1)]),
          "load_bad_attrs": load([X, pb.Node(op=6, inputs=[0], attrs=many(pb.Attr(key=1), 17))]),
          "load_bad_ints": load([X, node(14, [0], "r", 1, shape_10=(1,) * 17)]),
          "load_bad_number": load([X, node(15, [0], "r", 1, p_7=float("inf"))]),
          "load_bad_op": load([X, node(70000, [0], "r", 1)]),
          "load_bad_key": load([X, node(6, [0], "r", 1, x_70000=(1,))]),
          "load_bad_layer": load([X, node(6, [0], "r", 1 << 21)]),
          "load_bad_nodes": load(many(X, 2049)),
          "load_bad_keys": load([X], keys=bytes(15)),
          "load_bad_outputs": load([X], outputs=[0] * 17)})
unary(8, {"load_reply": pb.LoadModuleReply(params=[pb.ParamSpec(name="fc.weight", spec=spec(5, 3),
                                                               digest=bytes(32))],
                                          memory_bytes=4096, outputs=[spec(4, 5)]),
          "load_reply_bad_spec": pb.LoadModuleReply(params=[pb.ParamSpec(name="w")]),
          "load_reply_bad_digest": pb.LoadModuleReply(params=[pb.ParamSpec(name="w", spec=spec(1))]),
          "load_reply_bad_outputs": pb.LoadModuleReply(outputs=many(spec(1), 17)),
          "load_reply_bad_bytes": pb.LoadModuleReply(memory_bytes=1 << 60)})
unary(9, {"status_request": pb.StatusRequest(session=ID), "status_request_all": pb.StatusRequest(),
          "status_request_bad": pb.StatusRequest(session=b"short")})
unary(10, {"status_reply": STATUS, "status_reply_old": pb.StatusReply(incarnation=ID, uptime_ms=5),
           "status_reply_bad_links": changed(STATUS, sessions=[changed(SESSION, links=many(pb.LinkStatus(), 34))]),
           "status_reply_bad_peer": changed(STATUS, sessions=[
               changed(SESSION, links=[pb.LinkStatus(peer="p" * 129)])]),
           "status_reply_bad_module_name": changed(STATUS, sessions=[
               changed(SESSION, modules=[pb.ModuleStatus(name="n" * 129)])]),
           "status_reply_bad_modules": changed(STATUS, sessions=[
               changed(SESSION, modules=many(pb.ModuleStatus(), 256))]),
           "status_reply_bad_sessions": changed(STATUS, sessions=many(pb.SessionStatus(session=ID), 257)),
           "status_reply_bad_text": changed(STATUS, last_error=pb.Trouble(text="\u001b[2J")),
           "status_reply_bad_id": changed(STATUS, sessions=[changed(SESSION, session=b"x")]),
           "status_reply_bad_about": changed(STATUS, about=changed(ABOUT, protocol=99))})
CACHE = pb.CacheStatus(key=bytes(32), records=9, rows=7, row_bytes=64, disk_bytes=8192, unused_s=5, expires_s=55)
unary(13, {"kept_request": pb.KeptRequest(verb=pb.KEPT_REMOVE, sort=pb.KEPT_CACHES, key=bytes(range(32))),
           "kept_request_all": pb.KeptRequest(), "kept_request_bad_key": pb.KeptRequest(sort=pb.KEPT_CACHES, key=b"short"),
           "kept_request_list": pb.KeptRequest(sort=pb.KEPT_FILES, name="a.w", digest=True),
           "kept_request_after": pb.KeptRequest(sort=pb.KEPT_FILES, after="a.w"),
           "kept_request_read": pb.KeptRequest(verb=pb.KEPT_READ, sort=pb.KEPT_FILES, name="a.w", offset=5, length=9,
                                               version=7),
           "kept_request_bad_range": pb.KeptRequest(verb=pb.KEPT_READ, sort=pb.KEPT_FILES, name="a.w"),
           "kept_request_bad_offset": pb.KeptRequest(verb=pb.KEPT_READ, sort=pb.KEPT_FILES, name="a.w", length=1,
                                                     offset=1 << 60),
           "kept_request_bad_verb": pb.KeptRequest(verb=9), "kept_request_bad_sort": pb.KeptRequest(verb=pb.KEPT_READ),
           "kept_request_bad_name": pb.KeptRequest(name="../x"),
           "kept_request_bad_caches": pb.KeptRequest(sort=pb.KEPT_CACHES, name="x"),
           "kept_request_bad_after": pb.KeptRequest(verb=pb.KEPT_REMOVE, sort=pb.KEPT_FILES, name="x", after="y"),
           "kept_request_bad_digest": pb.KeptRequest(digest=True), "kept_request_bad_list": pb.KeptRequest(length=5),
           "kept_request_bad_remove": pb.KeptRequest(verb=pb.KEPT_REMOVE, sort=pb.KEPT_FILES),
           "kept_request_bad_both": pb.KeptRequest(key=bytes(32))})
KEPT = pb.KeptFile(name="a.w", bytes=640, sha256=bytes(32), age_s=5, version=7)
unary(14, {"kept_reply": pb.KeptReply(caches=[CACHE], files=[KEPT, pb.KeptFile(name="b", version=1)], more=True,
                                      data=b"bytes", used_bytes=1, quota_bytes=2),
           "kept_reply_bad_rows": pb.KeptReply(caches=[changed(CACHE, rows=10)]),
           "kept_reply_bad_key": pb.KeptReply(caches=[changed(CACHE, key=b"x")]),
           "kept_reply_bad_many": pb.KeptReply(caches=many(CACHE, 65)),
           "kept_reply_bad_name": pb.KeptReply(files=[changed(KEPT, name=".x")]),
           "kept_reply_bad_version": pb.KeptReply(files=[changed(KEPT, version=0)]),
           "kept_reply_bad_digest": pb.KeptReply(files=[changed(KEPT, sha256=b"x")]),
           "kept_reply_bad_files": pb.KeptReply(files=many(KEPT, 513))})
write("wire", "health", b"\x0b\x00\x0a\x10cleave.v1.Worker")
write("wire", "health_bad_name", b"\x0b\x00\x0a\x02a\x01")
write("wire", "health_reply", b"\x0b\x00\x08\x01")
write("wire", "health_reply_bad", b"\x0b\x00\x08\x09")
for name, message in LOADS.items():
    write("load", name, message.SerializeToString())

# ---- answers to Status, two of each worker -------------------------------------------------------


def later(module=1, peer=None, **fields):
    """The answer ten seconds later. fields: the growth of each counter, on the first link only;
    times are in seconds."""
    s = changed(SESSION, age_ms=764000, modules=[changed(SESSION.modules[0], module=module)])
    for key in ("busy_ns", "idle_ns", "turn_ns"):
        setattr(s, key, getattr(s, key) + 10**9 * fields.pop(key, 0))
    s.modules[0].forwards += fields.pop("forwards", 40)
    link = s.links[0]
    link.peer = peer or ""
    if peer:
        del s.links[1]
    link.measured_ns += 10**10
    link.received_bytes += 10**6
    link.sent_bytes += 10**6
    for key, value in fields.items():
        setattr(link, key, (0 if key == "round_trip_us" else getattr(link, key)) + value)
    return changed(STATUS, uptime_ms=810000, sessions=[s], draining=False)


def before(module=1, peer=None):
    s = changed(SESSION, modules=[changed(SESSION.modules[0], module=module)])
    s.links[0].peer = peer or ""
    if peer:
        del s.links[1]
    return changed(STATUS, sessions=[s])


def one(now, module=1, peer=None):
    return [before(module, peer), now]


NEVER = [None, None]
WAITS = dict(idle_ns=9, awaited_ns=9 * 10**9, awaits=40)
LOOKS = {
    "escrow": [None, STATUS] + NEVER + NEVER + [None, b"\1\7copy is old"], "no_escrow": NEVER + NEVER + NEVER + [None, b"\0"],
    "first": [None, STATUS], "busy": one(later(busy_ns=10)), "cores": one(later(turn_ns=10)),
    "idle": one(later(idle_ns=10, forwards=0)), "all_waits": one(later(idle_ns=5, turn_ns=4, busy_ns=1)),
    "slow_in": one(later(receiving_ns=9 * 10**9, bytes_in=10**6, **WAITS)),
    "slow_out": one(later(sending_ns=9 * 10**9, bytes_out=10**6, **WAITS)),
    "slow_both": one(later(receiving_ns=5 * 10**9, sending_ns=5 * 10**9, **WAITS)),
    "far": one(later(idle_ns=9, awaited_ns=9 * 10**9, awaits=90, round_trip_us=100000)),
    "who_knows": one(later(bytes_in=10**8, **WAITS)),
    "nobody_knows": one(later(idle_ns=9)),
    "back": [later(), STATUS], "restarted": [before(), changed(later(), incarnation=bytes(16))],
    "old": [None, pb.StatusReply(incarnation=ID, uptime_ms=5)],
    "nobody": [None, changed(STATUS, sessions=[], open_sessions=0, left_out=0, memory_limit=0)],
    "others": [None, changed(STATUS, sessions=[], open_sessions=3, left_out=0)],
    "expired": [None, changed(STATUS, certificate_ends=5, worker="other")],
    "no_certificate": [None, changed(STATUS, certificate_ends=0)], "tenant": [None, changed(STATUS, sees_all=False)],
    "modules": [None, changed(STATUS, sessions=[
        changed(SESSION, modules=[pb.ModuleStatus(module=i) for i in range(9)])])],
    "detached": [None, changed(STATUS, sessions=[
        changed(SESSION, attached=False, modules=[], links=[], last_error=None, references_pending=0)])],
    "error": [None, b"no \x1b[2J connection \xff"], "asking": NEVER,
    "busy_elsewhere": one(later(**WAITS)) + one(later(2, busy_ns=10), 2),
    "cores_elsewhere": one(later(**WAITS)) + one(later(2, turn_ns=10), 2),
    "waits_for_a_part": one(later(1, "w2", **WAITS), 1, "w2") + one(later(2, busy_ns=1, idle_ns=9), 2),
    "waits_behind": NEVER + one(later(2, "w1", **WAITS), 2, "w1") + one(later(idle_ns=9, busy_ns=1)),
    "part_without_answer": one(later(1, "w2", **WAITS), 1, "w2") + [None, b"gone"],
    "loss_elsewhere": one(later(3, **WAITS), 3) + one(later(2, busy_ns=10), 2),
}
for name, answers in LOOKS.items():
    out = b""
    for answer in answers:
        data = answer if isinstance(answer, bytes) else answer.SerializeToString() if answer else b""
        out += struct.pack("<H", len(data)) + data
    write("status", name, out)

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make python-test`: Remote and Optimizer against torch in one process, over two real workers."""
import copy, gc, json, os, pickle, signal, subprocess, sys, threading, time
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../net/lib")]
from cluster import BIN, SLOW, Cluster, Suite
sys.path.insert(0, os.path.abspath(os.path.join(BIN, "python")))
import torch
from torch import nn
from torch.nn import functional as F
import cleave

suite = Suite()
# a shell starts background jobs with it ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
GRADIENT, LOSS = 1e-5, 1e-6  # largest differences from torch: of a gradient, of a loss


def raised(kind, function, *args, **options):
    """The exception of that kind that the call raises."""
    try:
        function(*args, **options)
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__}")


def parts():
    """A model of three parts, and a batch."""
    torch.manual_seed(7)
    front = nn.Sequential(nn.Linear(16, 32), nn.Tanh())
    middle = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 24))
    return front, middle, nn.Linear(24, 4)


def batch(k=0, n=32):
    draw = torch.Generator().manual_seed(100 + k)
    return torch.randn(n, 16, generator=draw), torch.randint(0, 4, (n,), generator=draw)


def far(rt, module, at="w1", features=32, **options):
    return cleave.Remote(module, at=at, example=torch.zeros(32, features), runtime=rt, **options)


def apart(ours, theirs):
    return max(float((ours[k] - theirs[k]).abs().max()) for k in theirs)


def trained(model, plain, ours, theirs, steps, each=None):
    """Trains both models in turn; each loss has to agree."""
    for k in range(steps):
        losses = []
        for net, optimizer in ((model, ours), (plain, theirs)):
            x, y = batch(k)
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            losses.append(loss.item())
            if each:
                each(k, net)
        assert abs(losses[0] - losses[1]) < LOSS, (k, losses)
        ours.step()
        theirs.step()


@suite.test
def hundred_steps_are_those_of_torch():
    for at in ("w1", "master"):
        front, middle, head = parts()
        plain = copy.deepcopy(nn.Sequential(front, middle, head))
        with cleave.open(session) as rt:
            remote = far(rt, middle, at)
            model = nn.Sequential(front, remote, head)
            seen = {}

            def compare(k, net):
                if net is model:
                    seen.update(remote.gradients())
                else:
                    assert apart(seen, {n: p.grad for n, p in plain[1].named_parameters()}) < GRADIENT, k
                    assert apart({n: p.grad for n, p in head.named_parameters()}, {n: p.grad for n, p in plain[2].named_parameters()}) < GRADIENT
            ours, theirs = (cleave.Optimizer(torch.optim.AdamW, model, lr=1e-3), torch.optim.AdamW(plain.parameters(), lr=1e-3))
            trained(model, plain, ours, theirs, 100, compare)
            assert apart(model.state_dict(), plain.state_dict()) < 1e-5
            assert ours.last.applied and ours.last.number == 100
        assert not rt.leaks, rt.leaks


@suite.test
def optimizers_of_torch_are_followed():
    for kind, more in ((torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}), (torch.optim.Adam, {"lr": 1e-3}),
                       (torch.optim.Adagrad, {"lr": 0.01}), (torch.optim.RMSprop, {"lr": 1e-3, "momentum": 0.5}), (torch.optim.Adamax, {"lr": 1e-3})):
        front, middle, head = parts()
        plain = copy.deepcopy(nn.Sequential(front, middle, head))
        with cleave.open(session) as rt:
            model = nn.Sequential(front, far(rt, middle), head)
            trained(model, plain, cleave.Optimizer(kind, model, **more), kind(plain.parameters(), **more), 8)
            assert apart(model.state_dict(), plain.state_dict()) < 1e-5, kind


@suite.test
def chain_over_two_workers_with_micro_batches_and_a_scheduler():
    front, middle, head = parts()
    second = nn.Sequential(nn.Linear(24, 24), nn.GELU())
    plain = copy.deepcopy(nn.Sequential(front, nn.Sequential(middle, second), head))
    with cleave.open(session) as rt:
        remote = cleave.Remote([middle, second], at=["w1", "w2"], example=torch.zeros(32, 32))
        model = nn.Sequential(front, remote, head)
        assert remote.placement == "w1, w2" and [n for n, _ in model.named_parameters()] == [n for n, _ in plain.named_parameters()]
        pairs = [(model, cleave.Optimizer(torch.optim.AdamW, model, lr=1e-3)), (plain, torch.optim.AdamW(plain.parameters(), lr=1e-3))]
        rates = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 10) for _, o in pairs]
        for k in range(10):
            for (net, optimizer), rate in zip(pairs, rates):
                optimizer.zero_grad()
                for part in (0, 1):
                    x, y = batch(2 * k + part)
                    (F.cross_entropy(net(x), y) / 2).backward()
                optimizer.step()
                rate.step()
        assert apart(model.state_dict(), plain.state_dict()) < 1e-5
        assert pairs[0][1].param_groups[0]["lr"] == pairs[1][1].param_groups[0]["lr"] < 1e-5


@suite.test
def two_remotes_and_groups_of_their_own_rates():
    front, middle, head = parts()
    plain = copy.deepcopy(nn.Sequential(front, middle, head))
    with cleave.open(session) as rt:
        model = nn.Sequential(far(rt, front, "w2", 16), far(rt, middle), head)
        groups = [[{"params": [p for n, p in net.named_parameters() if n.endswith("weight")], "weight_decay": 0.1},
                   {"params": [p for n, p in net.named_parameters() if n.endswith("bias")], "weight_decay": 0.0, "lr": 1e-2}] for net in (model, plain)]
        trained(model, plain, cleave.Optimizer(torch.optim.AdamW, groups[0], lr=1e-3), torch.optim.AdamW(groups[1], lr=1e-3), 10)
        assert apart(model.state_dict(), plain.state_dict()) < 1e-5


@suite.test
def optimizers_of_their_own_share_a_context():
    """Two parts with an optimizer each, as in GANs: both backwards, then each step, in both
    orders."""
    front, middle, head = parts()
    plain = copy.deepcopy(nn.Sequential(front, middle, head))
    with cleave.open(session) as rt:
        ours = [far(rt, front, "w1", 16), nn.Sequential(far(rt, middle, "w2"), head)]
        sides = [(ours, [cleave.Optimizer(torch.optim.Adam, m, lr=1e-2) for m in ours])]
        theirs = [plain[0], nn.Sequential(plain[1], plain[2])]
        sides.append((theirs, [torch.optim.Adam(m.parameters(), lr=1e-2) for m in theirs]))
        for k in range(6):
            losses, (x, y) = [], batch(k)
            for (first, second), (a, b) in sides:
                a.zero_grad(), b.zero_grad()
                F.cross_entropy(second(first(x).detach()), y).backward()
                b.step()
                b.zero_grad()
                loss = F.cross_entropy(second(first(x)), y)
                loss.backward()
                losses.append(loss.item())
                if k % 2:
                    b.zero_grad()
                    a.step()
                else:
                    a.step()
                    b.step()
            assert abs(losses[0] - losses[1]) < LOSS, (k, losses)
        assert apart(ours[1].state_dict(), theirs[1].state_dict()) < 1e-5
        e = raised(cleave.PreconditionError, ours[1](ours[0](x)).sum().backward)
        assert "without zero_grad() since its step" in str(e), e
        for o in sides[0][1]:
            o.zero_grad()
        ours[1](ours[0](x)).sum().backward()
        sides[0][1][0].step()
        assert "neither stepped nor zeroed" in str(raised(cleave.PreconditionError, ours[0], x))
        sides[0][1][1].zero_grad()
        ours[0](x)


@suite.test
def batches_of_their_own_outlive_the_steps_of_others():
    """Backwards in another order than forwards, each with a step, as in torch with retained values:
    the first layer's gradient needs only its input."""
    plain = nn.Linear(16, 8)
    with cleave.open(session) as rt:
        remote = far(rt, copy.deepcopy(plain), features=16)
        pairs = [(remote, cleave.Optimizer(torch.optim.SGD, remote, lr=0.1)), (plain, torch.optim.SGD(plain.parameters(), lr=0.1))]
        batches = [cleave.Batch() for _ in range(4)]
        outputs = []
        for k, b in enumerate(batches):
            with b:
                outputs.append([net(batch(k)[0]) for net, _ in pairs])
        remote(batch(5)[0])  # between them, of no batch
        for k in (2, 0, 1):
            with batches[k]:
                for (net, optimizer), y in zip(pairs, outputs[k]):
                    net.zero_grad()
                    y.square().mean().backward()
                    optimizer.step()
        assert apart(remote.state_dict(), plain.state_dict()) < 1e-6
        assert "was closed" in str(raised(cleave.PreconditionError, outputs[3][0].sum().backward))
        with batches[0]:
            raised(cleave.PreconditionError, batches[1].__enter__)
        del batches, b, outputs, y
    assert not rt.leaks, rt.leaks


@suite.test
def state_goes_both_ways():
    """From torch to the workers, ten steps, and back: parameters and moments."""
    front, middle, head = parts()
    plain = copy.deepcopy(nn.Sequential(front, middle, head))
    theirs = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    with cleave.open(session) as rt:
        model = nn.Sequential(front, far(rt, middle), head)
        ours = cleave.Optimizer(torch.optim.AdamW, model, lr=1e-3)
        trained(model, plain, ours, theirs, 3)
        for _ in range(2):
            model.load_state_dict(plain.state_dict())
            ours.load_state_dict(theirs.state_dict())
            trained(model, plain, ours, theirs, 3)
        plain.load_state_dict(model.state_dict())
        theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
        trained(model, plain, ours, theirs, 3)
        assert apart(model.state_dict(), plain.state_dict()) < 1e-6
        state = {k: v for k, v in model.state_dict().items() if k != "1.0.bias"}
        assert "1.0.bias" in str(raised(RuntimeError, model.load_state_dict, state))
        state["1.0.bias"] = torch.zeros(3)
        assert "size mismatch for 1.0.bias" in str(raised(RuntimeError, model.load_state_dict, state))


@suite.test
def gradient_that_is_not_finite_moves_nobody():
    front, middle, head = parts()
    with cleave.open(session) as rt:
        model = nn.Sequential(front, far(rt, middle), head)
        ours = cleave.Optimizer(torch.optim.AdamW, model, lr=1e-3)
        for poison in ("home", "worker", "none"):
            before = {k: v.clone() for k, v in model.state_dict().items()}
            ours.zero_grad()
            x, y = batch()
            loss = F.cross_entropy(model(x), y)
            (loss * float("nan") if poison == "worker" else loss).backward()
            if poison == "home":
                head.weight.grad[0, 0] = float("inf")
            if poison == "worker":
                for p in (*front.parameters(), *head.parameters()):
                    p.grad.zero_()
            ours.step()
            assert ours.last.applied == (poison == "none"), (poison, ours.last)
            assert (apart(model.state_dict(), before) > 0) == (poison == "none"), poison


@suite.test
def norm_is_clipped_over_this_process_and_workers():
    front, middle, head = parts()
    plain = copy.deepcopy(nn.Sequential(front, middle, head))
    with cleave.open(session) as rt:
        model = nn.Sequential(front, far(rt, middle), head)
        ours, theirs = cleave.Optimizer(torch.optim.SGD, model, clip_grad_norm=0.1, lr=0.5), torch.optim.SGD(plain.parameters(), lr=0.5)
        for k in range(10):
            x, y = batch(k)
            for net, optimizer in ((model, ours), (plain, theirs)):
                optimizer.zero_grad()
                F.cross_entropy(net(x), y).backward()
            norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
            ours.step(), theirs.step()
            assert abs(ours.last.norm - norm.item()) < 1e-6, (ours.last, norm)
        assert apart(model.state_dict(), plain.state_dict()) < 1e-6


@suite.test
def frozen_parameters_and_adapters():
    front, middle, head = parts()
    middle[0].weight.requires_grad_(False)
    plain = copy.deepcopy(nn.Sequential(front, middle, head))
    with cleave.open(session) as rt:
        remote = far(rt, middle, freeze=["0.bias"])
        plain[1][0].bias.requires_grad_(False)
        model = nn.Sequential(front, remote, head)
        assert sorted(remote.remote_parameters()) == ["2.bias", "2.weight", "3.bias", "3.weight"]
        ours = cleave.Optimizer(torch.optim.SGD, model, lr=0.1)
        trained(model, plain, ours, torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=0.1), 3)
        assert "a second time" in str(raised(cleave.PreconditionError, ours.step))
        model.zero_grad()
        assert apart(model.state_dict(), plain.state_dict()) < 1e-6
        for net in (model, plain):
            dict(net.named_parameters())["1.2.weight"].requires_grad_(False)
        F.cross_entropy(model(batch()[0]), batch()[1]).backward()
        assert sorted(remote.gradients()) == ["2.bias", "3.bias", "3.weight"]


class Adapted(nn.Module):
    """A linear layer with a low-rank adapter, as peft computes it."""

    def __init__(self, base, a, b, scale):
        super().__init__()
        self.base, self.a, self.b, self.scale = base, nn.Parameter(a.clone()), nn.Parameter(b.clone()), scale

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.a), self.b)


@suite.test
def adapters_learn_as_those_of_peft():
    front, middle, head = parts()
    plain = copy.deepcopy(nn.Sequential(front, middle, head))
    with cleave.open(session) as rt:
        remote = far(rt, middle, lora={"targets": ["0", "3"], "r": 4, "alpha": 8})
        model, start = nn.Sequential(front, remote, head), remote.state_dict()
        assert sorted(remote.remote_parameters()) == [f"{k}.lora_{ab}.weight" for k in (0, 3) for ab in "AB"]
        for p in plain[1].parameters():
            p.requires_grad_(False)
        for k in (0, 3):
            plain[1][k] = Adapted(plain[1][k], start[f"{k}.lora_A.weight"], start[f"{k}.lora_B.weight"], 2.0)
        trained(model, plain, cleave.Optimizer(torch.optim.AdamW, model, lr=1e-2), torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], lr=1e-2), 20)
        now = remote.state_dict()
        assert now["3.lora_B.weight"].abs().max().item() > 0 and (now["3.lora_B.weight"] - plain[1][3].b).abs().max().item() < 1e-5
        assert torch.equal(now["0.weight"], start["0.weight"])
        assert "no linear layer" in str(raised(LookupError, far, rt, middle, lora={"targets": ["9"], "r": 1}))


@suite.test
def futures_and_await_train_adapters_that_peft_opens():
    import asyncio
    front, middle, head = parts()
    plain = copy.deepcopy(nn.Sequential(front, middle, head))
    with cleave.open(session) as rt:
        model = nn.Sequential(front, far(rt, middle, lora={"targets": ["0", "3"], "r": 4, "alpha": 8}), head)
        for p in (*front.parameters(), *head.parameters()):
            p.requires_grad_(False)
        with cleave.Training(model, optimizer={"kind": "adamw", "lr": 1e-2}) as c:
            calls = [(c.forward_backward(*batch()), c.optim_step()) for _ in range(10)]
            losses = [f.result(60).loss for f, _ in calls]
            assert losses[-1] < losses[0] and calls[-1][1].result().number == 10, losses

            async def step():
                f, s = c.forward_backward(*batch()), c.optim_step()
                return (await f).loss, (await s).applied
            loss, applied = asyncio.run(step())
            assert loss < losses[0] and applied
            raised(RuntimeError, c.forward_backward(torch.zeros(4, 15), batch(0, 4)[1]).result)
            out = c.forward(batch()[0]).result()
            folder = os.path.join(cluster.dir, "adapters")
            c.save_adapters(folder)
    try:
        import peft
    except ImportError:
        return
    opened = peft.PeftModel.from_pretrained(plain, folder).eval()
    assert (opened(batch()[0]) - out).abs().max().item() < 1e-5


class Crossed(nn.Module):
    """Two inputs, a residual and a projection of several parts: it has to be traced."""

    def __init__(self):
        super().__init__()
        self.table, self.attend, self.out = nn.Embedding(20, 16), nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 4)

    def forward(self, x, tokens):
        y = x + self.table(tokens)
        return self.out((y + self.attend(y, y, y, need_weights=False)[0]).mean(1))


@suite.test
def traced_module_of_two_inputs():
    torch.manual_seed(3)
    net = Crossed()
    plain = copy.deepcopy(net)
    x, tokens, y = torch.randn(8, 5, 16), torch.randint(0, 20, (8, 5)), torch.randint(0, 4, (8,))
    with cleave.open(session) as rt:
        remote = cleave.Remote(net, at="w2", example=(x, tokens))
        assert [(n, tuple(p.shape)) for n, p in remote.named_parameters()] == [(n, tuple(p.shape)) for n, p in plain.named_parameters()]
        ours, theirs = cleave.Optimizer(torch.optim.SGD, remote, lr=1e-1), torch.optim.SGD(plain.parameters(), lr=1e-1)
        for _ in range(5):
            inputs = [x.clone().requires_grad_() for _ in range(2)]
            losses = [F.cross_entropy(m(i, tokens), y) for m, i in zip((remote, plain), inputs)]
            for loss, optimizer in zip(losses, (ours, theirs)):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            assert abs(losses[0].item() - losses[1].item()) < 1e-5, losses
            assert float((inputs[0].grad - inputs[1].grad).abs().max()) < GRADIENT
        assert apart(remote.state_dict(), plain.state_dict()) < 1e-4
        plain.load_state_dict(remote.state_dict())
        assert remote.load_state_dict(plain.state_dict()).missing_keys == []


@suite.test
def images_statistics_and_eval_mode():
    torch.manual_seed(5)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.5), nn.Linear(128, 4))
    plain = copy.deepcopy(net)
    x = torch.randn(8, 3, 8, 8)
    with cleave.open(session) as rt:
        remote = cleave.Remote(net, at="w1", example=x)
        for m in (remote, plain):
            m.train()
            with torch.no_grad():
                m(x)
        assert rt._training is None
        state = remote.state_dict()
        assert int(state["1.num_batches_tracked"]) == 1 and apart(state, plain.state_dict()) < 1e-6
        remote.eval(), plain.eval()
        with torch.no_grad():
            assert float((remote(x) - plain(x)).abs().max()) < 1e-5
            assert remote(x[:3]).shape == (3, 4)
        e = raised(NotImplementedError, remote(x).sum().backward)
        assert "eval mode" in str(e) and "model.train()" in str(e)


class Two(nn.Module):
    """Returns a tuple: features [N, 4, 6], and scores [N, 3] of them."""

    def __init__(self):
        super().__init__()
        self.trunk, self.head = nn.Linear(32, 24), nn.Linear(24, 3)

    def forward(self, x):
        h = torch.tanh(self.trunk(x))
        return h.reshape(-1, 4, 6), self.head(h)


@suite.test
def module_that_returns_a_tuple_is_that_of_torch():
    torch.manual_seed(3)
    two, reader = Two(), nn.Linear(3, 2)
    plain, plain_reader = copy.deepcopy(two), copy.deepcopy(reader)
    with cleave.open(session) as rt:
        remote = cleave.Remote(two, at="w1", example=torch.zeros(8, 32), runtime=rt)
        other = cleave.Remote(reader, at="w2", example=torch.zeros(8, 3), runtime=rt)
        ours = cleave.Optimizer(torch.optim.SGD, nn.ModuleList([remote, other]), lr=0.01)
        theirs = torch.optim.SGD([*plain.parameters(), *plain_reader.parameters()], lr=0.01)
        for k in range(4):
            x = torch.randn(8, 32, generator=torch.Generator().manual_seed(k))
            inputs, losses = [x.clone().requires_grad_() for _ in range(2)], []
            ours.zero_grad()
            theirs.zero_grad()
            for net, second, given in ((remote, other, inputs[0]), (plain, plain_reader, inputs[1])):
                features, scores = net(given)
                assert features.shape == (8, 4, 6)
                # 1: both outputs, one through another worker; 2: one; 3: the other
                loss = (features ** 2).sum() if k == 2 else second(scores).pow(3).sum() + (0 if k == 3 else features.sin().sum())
                twice = k == 1 and hasattr(torch._C._autograd, "_get_current_graph_task_keep_graph")
                loss.backward(retain_graph=twice)
                if twice:
                    loss.backward()
                losses.append(loss.item())
            assert abs(losses[0] - losses[1]) < 1e-5 * max(1, abs(losses[1])), (k, losses)
            assert float((inputs[0].grad - inputs[1].grad).abs().max()) < GRADIENT * max(1.0, float(inputs[1].grad.abs().max())), k
            found = remote.gradients()
            for name, p in plain.named_parameters():
                want = torch.zeros_like(p) if p.grad is None else p.grad
                assert float((found[name] - want).abs().max()) < GRADIENT * max(1.0, float(want.abs().max())), (k, name)
            ours.step()
            theirs.step()
        assert apart(remote.state_dict(), plain.state_dict()) < 1e-5
        remote.eval()
        with torch.no_grad():
            assert float((remote(x)[1] - plain(x)[1]).abs().max()) < 1e-5
        for _ in range(3):
            remote.train()(x)  # forwards without a backward are freed
        gc.collect()
        rows = {(row.what, row.module, row.name): row.shape[1:] for row in rt.egress() if row.what == "gradient" and row.bytes}
        assert rows[("gradient", "remote", "")] == (4, 6) and rows[("gradient", "remote", "output 1")] == (3,), rows
    assert not rt.leaks, rt.leaks


@suite.test
def tuples_that_cannot_be_outputs_are_refused_in_words():
    class Odd(nn.Module):
        def __init__(self, what):
            super().__init__()
            self.layer, self.what = nn.Linear(4, 4), what

        def forward(self, x):
            y = self.layer(x)
            return y, {"scalar": y.mean, "flat": lambda: y.sum(1), "words": lambda: "no tensor"}[self.what]()
    with cleave.open(session) as rt:
        for what, words in (("scalar", "output 1 of Odd is torch.float32 []"), ("flat", "output 1 of Odd is torch.float32 [2]"), ("words", "output 1 of Odd is str")):
            assert words in str(raised(NotImplementedError, cleave.Remote, Odd(what), at="w1", example=torch.zeros(4, 4), runtime=rt))
        assert "one output" in str(raised(NotImplementedError, cleave.export(Two(), torch.zeros(4, 32)).yaml))


@suite.test
def bfloat16_of_autocast_is_sent_as_it_is():
    front, middle, head = parts()
    plain = copy.deepcopy(nn.Sequential(front, middle, head))
    x, y = batch()
    with cleave.open(session, run=os.path.join(cluster.dir, "bf16")) as rt:
        remote = far(rt, middle)
        model = nn.Sequential(front, remote, head)
        optimizer = cleave.Optimizer(torch.optim.SGD, model, lr=0.1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = front(x)
            got = remote(h)
            F.cross_entropy(head(got), y).backward()
            with torch.no_grad():
                assert remote.eval()(h).dtype == torch.bfloat16
        remote.train()
        assert h.dtype == got.dtype == torch.bfloat16
        want = plain[1](h.detach().float()).detach()
        assert float((got.detach().float() - want).abs().max()) <= float(want.abs().max()) / 128
        want_inner = h.detach().float().requires_grad_()
        inner = h.detach().requires_grad_()
        g = torch.randn(32, 24)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            remote(inner).backward(g.bfloat16())
        plain[1](want_inner).backward(g.bfloat16().float())
        assert inner.grad.dtype == torch.bfloat16
        assert float((inner.grad.float() - want_inner.grad).abs().max()) <= float(want_inner.grad.abs().max()) / 128
        rows = {(row.what, row.dtype): row for row in rt.egress() if row.tensors and row.what != "weights"}
        assert set(rows) == {("input", "bf16"), ("gradient", "bf16")}, rows
        assert rows["input", "bf16"].bytes == 3 * 32 * 32 * 2 and rows["gradient", "bf16"].bytes == 2 * 32 * 24 * 2, rows
        optimizer.zero_grad()
    assert not rt.leaks, rt.leaks


@suite.test
def calls_that_are_not_exact_are_refused_in_words():
    front, middle, head = parts()
    with cleave.open(session) as rt:
        remote = far(rt, middle)
        x = torch.randn(4, 32)
        for wrong, hint in ((x.double(), ".float()"), (x.bfloat16(), "torch.autocast"), (x.int(), ".long()")):
            e = raised(ValueError, remote, wrong)
            assert str(wrong.dtype) in str(e) and hint in e.hint, e
        assert "its example was f32" in str(raised(ValueError, remote, torch.zeros(4, 32, dtype=torch.int64)))
        assert "takes 1 inputs" in str(raised(ValueError, remote, x, x))
        assert isinstance(raised(ValueError, remote, torch.randn(4, 31)), cleave.Error)
        assert "cleave.Optimizer" in str(raised(NotImplementedError, torch.optim.AdamW, remote.parameters()))
        y = remote(x.requires_grad_())
        assert "double backward" in str(raised(NotImplementedError, torch.autograd.grad, y.sum(), x, create_graph=True))
        y = remote(x)
        y.sum().backward()
        raised(RuntimeError, y.sum().backward)
        assert "clip_grad_norm" in str(raised(NotImplementedError, nn.utils.clip_grad_norm_, remote.parameters(), 1.0))
        remote.zero_grad()
        assert remote.gradients() == {}
        for function in (pickle.dumps, copy.deepcopy):
            assert "cannot pickle or copy a Remote" in str(raised(TypeError, function, remote))
        assert remote.to("cpu") is remote and "float32" in str(raised(NotImplementedError, remote.half))
        assert "Bilinear" in str(raised(NotImplementedError, cleave.Remote, nn.Bilinear(3, 3, 3), at="w1", example=torch.zeros(2, 3)))
        raised(LookupError, lambda: far(rt, middle, "w9").place())
        raised(NotImplementedError, cleave.Optimizer, torch.optim.LBFGS, remote)
        raised(NotImplementedError, cleave.Optimizer, torch.optim.AdamW, remote, amsgrad=True)


@suite.test
def kept_graph_is_exact_or_refused():
    front, middle, head = parts()
    with cleave.open(session) as rt:
        remote, x = far(rt, middle), torch.randn(4, 32, requires_grad=True)
        plain = copy.deepcopy(middle)
        y, z = remote(x), plain(x)
        first = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
        try:
            second = torch.autograd.grad((2 * y).sum(), x)[0]
        except RuntimeError as e:  # this torch does not say that a graph is kept
            assert "had its backward" in str(e) and "newer torch" in str(e), e
            return
        theirs = torch.autograd.grad(z.sum(), x, retain_graph=True)[0], torch.autograd.grad((2 * z).sum(), x)[0]
        assert float((first - theirs[0]).abs().max()) < GRADIENT and float((second - theirs[1]).abs().max()) < GRADIENT


@suite.test
def forwards_without_backward_leave_no_memory():
    """Also after a backward, when the context cannot be ended."""
    front, middle, head = parts()
    wide = nn.Sequential(nn.Linear(32, 4096), nn.ReLU(), nn.Linear(4096, 8))
    with cleave.open(session) as rt:
        remote, x = far(rt, wide), torch.randn(64, 32)
        for _ in range(20):
            remote(x)
        remote(x).sum().backward()
        for _ in range(100):
            remote(x)
        before = cluster.workers[0].rss()
        for _ in range(1000):
            remote(x)
        grown = (cluster.workers[0].rss() - before) / 1048576
        print(f"    1,000 forwards without backward: {grown:.1f} MiB more at the worker")
        assert grown < 20, grown


def interrupted(function, what=""):
    """Seconds from Ctrl-C to the KeyboardInterrupt of a call that blocks."""
    sent = []

    def press():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.4, press)
    timer.start()
    try:
        raised(KeyboardInterrupt, function)
    except AssertionError as e:
        timer.cancel()
        raise AssertionError(f"{what}: {e}") from None
    return time.monotonic() - sent[0]


@suite.test
def interrupt_ends_forward_backward_and_step():
    front, middle, head = parts()
    for what in ("forward", "backward", "step", "state"):
        rt = cleave.open(session, deadline=8)
        remote = far(rt, middle)
        ours = cleave.Optimizer(torch.optim.SGD, remote, lr=0.1)
        y = remote(torch.randn(4, 32))
        if what == "step":
            y.sum().backward()
        cluster.workers[0].kill(signal.SIGSTOP)
        call = {"forward": lambda: remote(torch.randn(4, 32)), "backward": y.sum().backward, "step": ours.step, "state": remote.state_dict}[what]
        try:
            took = interrupted(call, what)
        finally:
            cluster.workers[0].kill(signal.SIGCONT)
        assert took < 0.1 * max(1, SLOW), (what, took)
        rt.close()


@suite.test
def lost_worker_is_an_error_and_comes_back():
    """A link looks for its peer for 0.5 s while the host refuses connections."""
    front, middle, head = parts()
    with cleave.open(session) as rt:
        remote, x = far(rt, middle, "w2"), torch.randn(4, 32)
        before, state = remote(x).detach(), remote.state_dict()
        cluster.workers[1].kill()
        begin = time.monotonic()
        e = raised(ConnectionError, remote, x)
        took = time.monotonic() - begin
        cluster.restart(1)
        assert took < max(1, SLOW) and e.node == "w2" and "rejoin" in e.hint, (took, e)
        assert isinstance(raised(cleave.Error, remote, x), ConnectionError)
        rt.rejoin("w2")
        remote.load_state_dict(state)
        assert torch.equal(remote(x), before)


def record_of(folder):
    """Bytes and names of a record, by kind."""
    found, allowed = {}, {}
    with open(os.path.join(folder, "egress.jsonl")) as f:
        for line in map(json.loads, f):
            if line["event"] == "allow":
                allowed[line["id"]] = line
            elif line["event"] == "settle":
                kind, name = (allowed[line["id"]][k] for k in ("kind", "name"))
                found[kind, name] = found.get((kind, name), 0) + line["bytes"]
    return found


@suite.test
def record_has_what_a_program_declares_and_sends():
    """A chain whose values this process relays, moments, freezing: all of it has rows."""
    folder = os.path.join(cluster.dir, "recorded")
    front, middle, head = parts()
    relayed = cluster.session("relayed", "transfer: via_master\n")
    with cleave.open(relayed, run=folder) as rt:
        remote = cleave.Remote([middle, nn.Linear(24, 24)], at=["w1", "w2"], example=torch.zeros(32, 32),
                               sends={"inputs": "mixed", "gradient": "labels readable"})
        model = nn.Sequential(front, remote, head)
        optimizer = cleave.Optimizer(torch.optim.Adam, model, lr=0.01)
        for k in range(3):
            x, y = batch(k)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        model.load_state_dict(model.state_dict())
        remote.requires_grad_(False)
        model(batch(3)[0])
        optimizer.zero_grad()
        assert "declared by the program: MIXED" in repr(rt.egress())
    recorded = record_of(folder)
    assert recorded["activation", "input 0, declared by the program: MIXED"] == 4 * 32 * 32 * 4, recorded
    assert recorded["gradient", "declared by the program: LABELS READABLE"] > 3 * 32 * 24 * 4, recorded
    assert {kind for kind, _ in recorded} == {"activation", "gradient", "weights", "state"}, recorded
    assert sum(recorded.values()) == sum(row.bytes for row in rt.egress()), (recorded, rt.egress())


class Opaque(nn.Module):
    """First layers that cannot be exported."""

    def forward(self, x):
        return torch.special.erfcx(x)


@suite.test
def rules_of_plan_judge_an_exported_front():
    front = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.Flatten())
    middle, head, images = nn.Linear(72, 8), nn.Linear(8, 10), torch.randn(32, 2, 6, 6)

    def shown(before, **more):
        with cleave.open(session) as rt:
            cleave.Remote(middle, at="w1", example=torch.zeros(32, 72), runtime=rt, sends={"front": (before, images), **more})
            return [row.shows.rpartition(": ")[2] for row in rt.egress() if row.what == "input"][0]

    assert shown(front, secret=True) == "PICTURE"
    assert shown(front) == "FRONT KNOWN, PICTURE"
    assert shown(nn.Flatten(), secret=True) == "RAW INPUT"
    assert shown(nn.Sequential(Opaque(), nn.Flatten()), secret=True) == "RAW INPUT"
    assert shown(front, secret=True, inputs="picture, tokens", gradient="labels readable", hiding_layers=1) == "TOKENS, PICTURE"
    for less in ({"inputs": "mixed"}, {"gradient": "mixed"}, {"hiding_layers": 2}, {"head": nn.ReLU(), "gradient": "mixed"}):
        e = raised(cleave.InvalidError, lambda: shown(front, secret=True, **less))
        assert "rules of plan" in str(e) or "have weights" in str(e), e
    assert shown(front, secret=True, head=head, gradient="mixed") == "PICTURE"
    raised(cleave.InvalidError, lambda: shown(images))


@suite.test
def front_that_a_worker_had_is_refused_with_zero_bytes():
    """The first runtime sends a layer to w1; in the next one it is in front, with a factor."""
    layer, front, records = nn.Linear(16, 32), nn.Linear(16, 32), torch.randn(32, 16)
    with cleave.open(session) as rt:
        far(rt, layer, features=16).place()
    with torch.no_grad():
        front.weight.copy_(3 * layer.weight)
    sends = {"front": (nn.Sequential(front, nn.Tanh()), records), "secret": True}
    with cleave.open(session) as rt:
        e = raised(cleave.DeniedError, far, rt, nn.Linear(32, 24), sends=sends)
        assert "at 'spiffe://test/w1' in an earlier session" in str(e) and "front known" in e.hint, (str(e), e.hint)
        assert not len(rt.egress()), rt.egress()
        far(rt, nn.Linear(32, 24), sends={**sends, "inputs": "front known"})
        assert rt.egress()[0].shows.endswith("FRONT KNOWN"), rt.egress()


@suite.test
def part_of_a_chain_at_the_master_is_judged():
    """Its row says MIXED: true of values that no one else has, and refused of others."""
    folder = os.path.join(cluster.dir, "runs", "chain")
    with cleave.open(session, run=folder) as rt:
        for secret in (True, False):
            chain = cleave.Remote([nn.Linear(16, 32), nn.Linear(32, 24)], at=["master", "w1"], example=torch.zeros(32, 16), runtime=rt,
                                  sends={"inputs": "mixed", "gradient": "labels readable", "secret": secret})
            if secret:
                chain(torch.randn(32, 16))
            else:
                e = raised(cleave.DeniedError, chain, torch.randn(32, 16))
                assert "FRONT KNOWN" in str(e) and "not declare secret" in str(e), e


@suite.test
def functions_of_torch_on_remote_parameters_are_refused():
    """Parameters and gradients there have a form alone: what would change or read values, without a
    word or with one about the meta device, says where they are."""
    with cleave.open(session) as rt:
        remote = far(rt, nn.Linear(32, 24))
        model, p = nn.Sequential(nn.Linear(16, 32), remote), remote.remote_parameters()["weight"]
        optimizer = cleave.Optimizer(torch.optim.SGD, model, lr=0.1)

        def assign():
            p.data = torch.zeros(24, 32)

        for change in (lambda: nn.init.xavier_uniform_(p), lambda: p.data.normal_(0, 0.02), lambda: p.detach().copy_(torch.zeros(24, 32)), assign,
                       lambda: nn.init.zeros_(p)):
            with torch.no_grad():
                e = raised(cleave.UnimplementedError, change)
            assert "a parameter of a cleave.Remote at w1" in str(e) and "load_state_dict" in e.hint, (str(e), e.hint)
        for read in (lambda: p.norm().item(), lambda: p.cpu(), lambda: p.data.numpy(), lambda: torch.zeros(24, 32).lerp_(p, 0.5), lambda: sum(q.pow(2).sum() for q in model.parameters())):
            with torch.no_grad():
                e = raised(cleave.UnimplementedError, read)
            assert "not in this process" in str(e) and "state_dict" in e.hint, (str(e), e.hint)
        model(torch.randn(32, 16)).sum().backward()
        assert "clip_grad_norm=" in raised(cleave.UnimplementedError, lambda: p.grad.data.clamp_(-1, 1)).hint
        assert "gradients()" in raised(cleave.UnimplementedError, lambda: p.grad.norm()).hint
        assert (p.numel(), p.dim(), tuple(p.shape), p.dtype, p.requires_grad, torch.zeros_like(p).device.type) == (768, 2, (24, 32), torch.float32, True, "meta")
        assert "w1" in repr(p) and "w1" in repr(p.grad) and "w1" in repr(p.data)
        optimizer.zero_grad(set_to_none=False)
        assert p.grad is None


@suite.test
def layer_of_torch_that_has_others_is_exported():
    """As it is, without a Sequential around it; one that is called with something else says so."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    x = torch.randn(4, 5, 16)
    with cleave.open(session) as rt:
        remote = cleave.Remote(layer, at="w1", example=x, runtime=rt)
        assert float((remote(x) - layer(x)).detach().abs().max()) < 1e-5 and set(remote.state_dict()) == set(layer.state_dict())
        e = raised(cleave.InvalidError, cleave.Remote, nn.MultiheadAttention(16, 2), at="w1", example=x, runtime=rt)
        assert "'key' and 'value'" in str(e), e


@suite.test
def loader_processes_and_garbage_in_any_order():
    front, middle, head = parts()
    rt = cleave.open(session)
    remote = far(rt, middle)
    ours = cleave.Optimizer(torch.optim.SGD, remote, lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(32, 32))
    for (x,) in torch.utils.data.DataLoader(data, batch_size=8, num_workers=2):
        ours.zero_grad()
        remote(x).sum().backward()
        ours.step()
    kept = [remote(x) for _ in range(3)]
    del ours, remote
    gc.collect()
    other = far(rt, middle)
    other(x)
    kept.append(other)
    rt.close()
    raised(cleave.PreconditionError, other, x)
    del kept, other
    gc.collect()


ENDS = {
    "everything is open": "y = far(x); b = cleave.Batch(); b.__enter__(); z = far(x); c = cleave.Batch()",
    "a backward has not been stepped": "far(x).sum().backward()",
    "a Training works": "c = cleave.Training(far, optimizer={'kind': 'sgd', 'lr': 0.1}); [c.forward_backward(x, x.argmax(1)) for _ in range(50)]",
    "names go in the wrong order": "y = far(x); del rt; gc.collect(); del far; gc.collect()",
    "a Batch lives longer than its runtime": "b = cleave.Batch()\nwith b: y = far(x)\nrt.close(); del rt; gc.collect(); del b; gc.collect()",
    "the collector runs all the time": "gc.collect(); gc.freeze(); gc.set_threshold(1); o = cleave.Optimizer(torch.optim.SGD, far, lr=0.1)\n"
                                       "for _ in range(5): o.zero_grad(); far(x).sum().backward(); far(x); o.step()",
    "an exception leaves the block": "with rt: far(x); sys.exit(0)",
    "a child uses it": "pid = os.fork()\nif not pid:\n  try: far(x)\n  except cleave.PreconditionError: sys.exit(7)\nassert os.waitpid(pid, 0)[1] == 7 << 8; far(x)",
    "threads call it": "ts = [threading.Thread(target=lambda: [far(x).sum().backward() for _ in range(20)]) for _ in range(4)]\n"
                       "[t.start() for t in ts]; [t.join() for t in ts]",
    # a backward in a daemon thread at the end aborts in torch alone
    "a daemon thread evaluates at the end": "def go():\n  with torch.no_grad():\n    while True: far(x)\nthreading.Thread(target=go, daemon=True).start(); time.sleep(0.05)",
    "children are forked while a thread trains": "t = threading.Thread(target=lambda: [far(x).sum().backward() for _ in range(100)]); t.start(); pids = []\n"
                                                 "for k in range(2):\n  pid = os.fork()\n  if not pid: del far, rt; gc.collect(); sys.exit(k)\n  pids.append(pid)\n"
                                                 "t.join(); assert [os.waitpid(p, 0)[1] >> 8 for p in pids] == [0, 1]; far(x)",
    "handlers at exit use it": "atexit.register(lambda: far(x)); y = far(x)",
    "the last names go in threads": "y = far(x); names = [y, far, rt]; del y, far, rt\n"
                                    "ts = [threading.Thread(target=lambda: (names.pop(), gc.collect())) for _ in range(3)]; [t.start() for t in ts]; [t.join() for t in ts]",
}


ENDING = """
import atexit, faulthandler, gc, json, os, sys, threading, time
faulthandler.enable()
import cleave, torch
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # which imports a lot
pids, ended = {}, {}
for what, end in json.loads(sys.argv[2]).items():
    if len(pids) - len(ended) == 6:  # a worker has room for 8 sessions
        pid, status = os.wait()
        ended[pids[pid]] = status
    pid = os.fork()
    if not pid:
        break
    pids[pid] = what
else:
    ended.update({pids[pid]: status for pid, status in (os.wait() for _ in range(len(pids) - len(ended)))})
    print(json.dumps(ended), flush=True)
    os._exit(0)
with open(what, "w") as f:
    os.dup2(f.fileno(), 1), os.dup2(f.fileno(), 2)
rt = cleave.open(sys.argv[1]); far = cleave.Remote(torch.nn.Linear(8, 8), at='w1', example=torch.zeros(4, 8)); x = torch.randn(4, 8)
exec(end)
"""


@suite.test
def processes_end_well_whatever_is_open():
    """One process imports torch, and a child of it for each end opens a runtime, six at a time: as
    many imports at once took longer than the deadline on a busy machine."""
    env = {**os.environ, "PYTHONPATH": os.path.abspath(os.path.join(BIN, "python"))}
    process = subprocess.Popen([sys.executable, "-c", ENDING, session, json.dumps(ENDS)], stdout=subprocess.PIPE, text=True, env=env, cwd=cluster.dir,
                               start_new_session=True)
    try:
        ended = json.loads(process.communicate(timeout=180 * SLOW)[0])
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    for what in ENDS:
        with open(os.path.join(cluster.dir, what)) as f:
            assert ended[what] == 0, (what, ended[what], f.read()[-2000:])


@suite.test
def memory_of_a_large_value_is_not_copied_twice():
    """16 MiB there and back through a module without weights."""
    with cleave.open(session) as rt:
        remote, x = cleave.Remote(nn.ReLU(), at="master", example=torch.zeros(1, 4096)), torch.randn(1024, 4096)
        with torch.no_grad():
            y = remote(x)
            times = []
            for _ in range(9):
                begin = time.perf_counter()
                y = remote(x)
                times.append(time.perf_counter() - begin)
        assert torch.equal(y, x.relu()) and y.data_ptr() % 16 == 0
        print(f"    16 MiB there and back at the master: {1000 * sorted(times)[4]:.1f} ms")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with Cluster(2, "limits: {sessions: 16}\n") as cluster:
        session = cluster.session("python", "")
        suite.main()

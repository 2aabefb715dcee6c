#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make python-test`: the time of a step of Remote and Optimizer compared with the same calls of
cleave.h, interleaved, for 32 samples of 32 features; how often a step releases Python's lock;
copies of tensors."""
import contextlib, functools, os, statistics, sys, time
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../net/lib")]
from cluster import BIN, Cluster, Suite, measured
sys.path.insert(0, os.path.abspath(os.path.join(BIN, "python")))
import torch
from torch import nn
import cleave
from cleave._lib import ffi, lib
from cleave._modules import fill_tensor

suite = Suite()
STEPS, TIMES, MORE_S = 1000, 1.1, 0.3e-3
# The calls of such a step on an idle machine. Beside other work everything is slower in proportion,
# so MORE_S is as many times larger as the calls take longer than that.
IDLE_S = 0.3e-3


class Raw:
    """A step as in a C program: calls each function of cleave.h once."""

    def __init__(self, rt, remote, optimizer, x, dy):
        self.rt, self.module, self.optimizer, self.e = rt._handle, remote._modules_at[0].handle, optimizer._handle, ffi.new("cleave_error *")
        self.x, self.dy, self.options = ffi.new("cleave_tensor *"), ffi.new("cleave_tensor *"), ffi.new("cleave_backward_options *")
        self.kept = fill_tensor(self.x, x), fill_tensor(self.dy, dy)
        self.options.size, self.options.gradients = ffi.sizeof("cleave_backward_options"), self.dy
        self.context, self.leaf, self.y = ffi.new("cleave_context *"), ffi.new("cleave_reference *"), ffi.new("cleave_reference *")
        self.value, self.gradient = ffi.new("cleave_tensor *"), ffi.new("cleave_tensor *")
        self.call = ffi.new("cleave_call_options *", {"size": ffi.sizeof("cleave_call_options"), "to_program": True})

    def must(self, status):
        assert status == 0, ffi.string(self.e.text)

    def step(self):
        rt, e = self.rt, self.e
        self.must(lib.cleave_context_open(rt, ffi.NULL, self.context, e))
        self.must(lib.cleave_leaf(rt, self.context[0], self.x, True, self.leaf, e))
        self.must(lib.cleave_call_with(rt, self.context[0], self.module, self.leaf, 1, self.call, self.y, e))
        self.must(lib.cleave_to_here(rt, self.y[0], 0, self.value, e))
        self.must(lib.cleave_backward_with(rt, self.context[0], self.y, 1, self.options, e))
        self.must(lib.cleave_leaf_gradient(rt, self.leaf[0], self.gradient, e))
        self.must(lib.cleave_step(rt, self.optimizer, self.context[0], 0, ffi.NULL, e))
        self.must(lib.cleave_context_close(rt, self.context[0], 0, e))


@suite.test
@measured
def step_costs_little_more_than_that_of_a_c_program():
    with cleave.open(session) as rt:
        remote = cleave.Remote(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)), at="w1", example=torch.zeros(32, 32))
        optimizer, x, dy = cleave.Optimizer(torch.optim.AdamW, remote, lr=1e-3), torch.randn(32, 32, requires_grad=True), torch.randn(32, 32)
        remote(x)
        raw = Raw(rt, remote, optimizer, x, dy)

        def step():
            optimizer.zero_grad()
            x.grad = None  # as a C program, which reads the gradient and adds it to nothing
            remote(x).backward(dy)
            optimizer.step()

        times = {step: ([], []), raw.step: ([], [])}
        for _ in range(STEPS):
            for one, (clock, thread) in times.items():
                begin, of_thread = time.perf_counter(), time.thread_time()
                one()
                thread.append(time.thread_time() - of_thread)
                clock.append(time.perf_counter() - begin)
    (ours, our_thread), (theirs, their_thread) = ([statistics.median(of) for of in both] for both in times.values())
    most = TIMES * theirs + MORE_S * max(1, theirs / IDLE_S)
    print(f"    a step: {1000 * ours:.3f} ms, at most {1000 * most:.3f}; by functions of cleave.h {1000 * theirs:.3f}; "
          f"this thread computes {1000 * our_thread:.3f} and {1000 * their_thread:.3f}")
    assert ours <= most, (ours, theirs)


class Counting:
    """The functions of libcleave, with a count of their calls. Each call releases Python's lock."""

    def __init__(self):
        self.calls, self.tensors = [], []

    def __getattr__(self, name):
        found = getattr(lib, name)
        return functools.partial(self.call, name, found) if callable(found) else found

    def call(self, name, function, *args):
        self.calls.append(name)
        if name == "shim_forward_run":
            self.tensors.append(args[1].input_at[0])
        status = function(*args)
        if name == "shim_forward_run":
            self.tensors.append(int(ffi.cast("uintptr_t", args[1].result.data)))
        return status


@contextlib.contextmanager
def counting():
    counter, modules = Counting(), [sys.modules["cleave." + m] for m in ("_modules", "_optimizer", "_remote", "_runtime")]
    for m in modules:
        m.lib = counter
    try:
        yield counter
    finally:
        for m in modules:
            m.lib = lib


@suite.test
@measured
def step_hands_the_lock_back_twice():
    """Forward and backward; a step of more than 1 ms does so as well, and a busy machine has
    some."""
    with cleave.open(session) as rt:
        remote = cleave.Remote(nn.Linear(32, 32), at="w1", example=torch.zeros(32, 32))
        model = nn.Sequential(nn.Linear(32, 32), remote, nn.Linear(32, 1))
        optimizer, counts = cleave.Optimizer(torch.optim.AdamW, model, lr=1e-3), []
        for k in range(100):
            with counting() as c:
                optimizer.zero_grad()
                model(torch.zeros(32, 32)).mean().backward()
                optimizer.step()
            counts.append(len(c.calls))
        assert rt.egress() and sorted(counts)[50] == 2, (counts, c.calls)


@suite.test
def large_tensors_are_not_copied_in_python():
    """libcleave reads 16 MiB from torch's memory, its one copy, and torch uses libcleave's
    result."""
    with cleave.open(session):
        remote, x = cleave.Remote(nn.ReLU(), at="w1", example=torch.zeros(1, 4096)), torch.randn(1024, 4096, requires_grad=True)
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                remote(x)
                with counting() as c:
                    y = remote(x)
            assert set(c.tensors[::2]) == {x.data_ptr()} and c.tensors[-1] == y.data_ptr(), (grad, c.tensors)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with Cluster(1) as cluster:
        session = cluster.session("python", "")
        suite.main()

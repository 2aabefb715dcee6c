#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Frozen parameters of an artifact on simulated devices. Each device has them once in its memory,
by its own count, for all sessions of an identity, or of all identities if the operator shares the
artifact. They are charged to each session, freed with the last one, never written, and never sent
out."""
import concurrent.futures, os, re, sys, urllib.request
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import bases, cluster
from bases import *

cluster.WORKER = os.path.join(BIN, "gpu/cleave-worker")
bases.of_width(512)
BASE, WIDE = bases.BASE, bases.WIDE
FIRST, SECOND = "cuda:0", "cuda:1"
ALONE = 256 << 10  # maximum bytes that a session takes of a device beside its base
suite = Suite()
port = free_port()


def of_device(name, device):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as page:
        found = re.search(r'^cleave_worker_device_memory_%s{device="%s"} (\S+)$' % (name, device), page.read().decode(), re.M)
    return int(float(found[1]))


def left(device=FIRST):
    """The free bytes of a device, by its own count."""
    return of_device("free_bytes", device)


def there(tenant, name="own", device=FIRST, **changed):
    return begin(tenant, name, device=device, **changed)


def takes(f, device=FIRST):
    """(result of f, bytes of the device that f took)"""
    before = left(device)
    made = f()
    return made, before - left(device)


def is_shared(taken):
    return 0 <= taken < ALONE


def is_new(taken, base=BASE):
    return base <= taken < base + ALONE


@suite.test
def sessions_of_an_identity_share_one_base_per_device():
    empty = left(), left(SECOND)
    with Tenant("heavy") as heavy, Tenant("light") as light:
        first, by = takes(lambda: there(heavy))
        assert is_new(by), by
        alone = charged(heavy)
        second, more = takes(lambda: there(heavy))
        assert is_shared(more), more
        assert charged(heavy) == 2 * alone, (charged(heavy), alone)
        assert of_device("bytes", FIRST) >= 2 * BASE, of_device("bytes", FIRST)
        beside, elsewhere = takes(lambda: there(heavy, device=SECOND), SECOND)
        assert is_new(elsewhere), elsewhere
        other, own = takes(lambda: there(light))
        assert is_new(own) and charged(light) == alone, (own, charged(light), alone)
        assert answer(first) == answer(second) == answer(beside) == answer(other) and any(answer(first, 2))
        print(f"  a base of {BASE >> 10} KiB: first session {by >> 10} KiB, second {more >> 10}, another identity's {own >> 10}")
        heavy.close(first)
        assert answer(second, 3) == answer(other, 3) and is_new(empty[0] - left() - own)
        heavy.close(second)
        assert answer(beside, 4) == answer(other, 4) and is_new(empty[0] - left())
    until(lambda: (left(), left(SECOND)) == empty)


@suite.test
def base_marked_open_is_shared_by_all_identities():
    with Tenant("heavy") as heavy, Tenant("light") as light:
        first, by = takes(lambda: there(heavy, "open"))
        other, more = takes(lambda: there(light, "open"))
        assert is_new(by) and is_shared(more), (by, more)
        assert charged(light) == charged(heavy) > BASE and answer(first) == answer(other)
        heavy.close()
        assert answer(other, 2)


@suite.test
def bf16_base_takes_half_the_memory():
    """Results are close to those in f32; a bf16 session computes with the base itself, without a
    copy."""
    with Tenant("heavy") as heavy:
        wide = there(heavy)
        first, by = takes(lambda: there(heavy, frozen_bf16=True, bf16=True))
        assert is_new(by, BASE // 2), by
        second, more = takes(lambda: there(heavy, frozen_bf16=True, bf16=True))
        assert is_shared(more), more
        third, scratch = takes(lambda: there(heavy, frozen_bf16=True))
        assert is_new(scratch), scratch  # memory for the weight in f32
        assert answer(first) == answer(second) != answer(third) != answer(wide)
        exact = floats(answer(wide, 2))
        for s in (first, third):
            close(floats(answer(s, 2)), exact, 0.01)
        code, text = refused(first, pieces("base.weight"))
        assert code == DENIED, (code, text)


@suite.test
def concurrent_loads_read_the_base_once():
    with Tenant("heavy") as heavy:
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            made, by = takes(lambda: list(pool.map(lambda _: there(heavy), range(3))))
        assert BASE <= by < BASE + 3 * ALONE, by
        assert len({answer(s) for s in made}) == 1


@suite.test
def frozen_base_cannot_be_read_back():
    with Tenant("heavy") as heavy:
        s = there(heavy)
        for name in FROZEN:
            code, text = refused(s, pieces(name))
            assert code == DENIED, (name, code, text)
            names(text, name, "artifact 'own'", "artifacts.own.readable: all")
        assert set(whole(s)) == {"head.weight", "head.bias"}
        items = whole(there(heavy, "public"))
        assert set(items) == set(NAMES) and items["base.weight"] == digests["numbers"]


@suite.test
def write_to_a_shared_base_is_refused():
    with Tenant("heavy") as heavy:
        s, other = there(heavy), there(heavy)
        before = answer(s)
        for f in (put("base.bias", [WIDE]), put("base.weight", [WIDE], 0)):
            code, text = refused(s, f)
            assert code == DENIED and "is read-only" in text, (code, text)
        assert answer(s, 2) == answer(other) == before
        s.send(put("head.bias", [D]))
        s.recv(pb.STATE_DONE)
        assert answer(s, 3) != before == answer(other, 2)


@suite.test
def trainable_base_is_a_private_copy():
    with Tenant("heavy") as heavy:
        there(heavy)
        _, by = takes(lambda: there(heavy, fixed=False))
        assert by > BASE, by


@suite.test
def worker_exit_leaves_no_device_memory():
    """Also with open sessions. It would report memory that is left, and exit with another code."""
    with Tenant("heavy") as heavy:
        there(heavy), there(heavy)
        worker = the.cluster.workers[0]
        assert worker.stop() == 0, worker.text()[-4000:]
        heavy.sessions.clear()


if bases.pyclient.MISSING:
    print("skip device bases:", bases.pyclient.MISSING)
else:
    with offering(f"device: cuda\ndrain_timeout: 1s\nmetrics: {{listen: \"127.0.0.1:{port}\"}}\n", light="64MiB", env={"CLV_SIM_DEVICES": "2", "CLV_SIM_SEED": "1"}):
        suite.main()

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Frozen parameters of an artifact: once in the worker's memory for all sessions of an identity, or
of all identities if the operator shares it; charged to each session; never sent out, by any
request."""
import concurrent.futures, os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from bases import *

suite = Suite()
# A sanitizer's own memory is anonymous too, so such a test runs to its end and counts as skipped.
UNJUDGED = "it ran, and a sanitizer's memory is not the program's: sizes were not judged" if SANITIZED else None


def held():
    with open(f"/proc/{the.cluster.workers[0].process.pid}/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("RssAnon:"))


def grows(f):
    """(result of f, growth of the worker's anonymous memory meanwhile)"""
    before = held()
    made = f()
    return made, held() - before


@suite.test
def sessions_of_an_identity_share_one_base():
    with Tenant("heavy") as heavy, Tenant("light") as light:
        begin(heavy)  # loads the memory that only a first session needs
        heavy.close()
        first, by = grows(lambda: begin(heavy))
        assert SANITIZED or 0.9 * BASE < by, by
        alone = charged(heavy)
        second, more = grows(lambda: begin(heavy))
        assert SANITIZED or more < BASE / 10, more
        assert charged(heavy) == 2 * alone and alone > BASE, (charged(heavy), alone)
        other, own = grows(lambda: begin(light))
        assert SANITIZED or own > 0.9 * BASE, own
        assert charged(light) == alone, (charged(light), alone)
        assert answer(first) == answer(second) == answer(other) and any(answer(first, 2))
        print(f"  a base of {BASE >> 10} KiB: first session +{by >> 10} KiB, second +{more >> 10}, another identity's +{own >> 10}")
        heavy.close(first)
        assert answer(second, 3) == answer(other, 3) and alone <= charged(heavy) < 1.1 * alone
        full = held()
        heavy.close(second)
        until(lambda: SANITIZED or held() < full - 0.9 * BASE)
    return UNJUDGED


@suite.test
def base_marked_open_is_shared_by_all_identities():
    with Tenant("heavy") as heavy, Tenant("light") as light:
        first, by = grows(lambda: begin(heavy, "open"))
        other, more = grows(lambda: begin(light, "open"))
        assert SANITIZED or 0.8 * BASE < by and more < BASE / 10, (by, more)
        assert charged(light) == charged(heavy) > BASE and answer(first) == answer(other)
        heavy.close()
        assert answer(other, 2)
    return UNJUDGED


@suite.test
def shared_base_is_charged_in_full_to_each_session():
    with Tenant("light") as light:
        begin(light)
        code, text = refusal(lambda: begin(light))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED, (code, text)
        names(text, "all sessions of this identity", "allow[].bytes")


@suite.test
def bf16_base_takes_half_the_memory():
    """It is rounded once, when it is read; results are close to those of f32, but differ."""
    with Tenant("heavy") as heavy:
        f32_base = begin(heavy)
        first, by = grows(lambda: begin(heavy, frozen_bf16=True))
        # less if pages that were freed after loading are used again
        assert SANITIZED or by < 0.6 * BASE, by
        both = charged(heavy)
        second, more = grows(lambda: begin(heavy, frozen_bf16=True))
        assert SANITIZED or more < BASE / 10, more
        assert BASE / 2 < charged(heavy) - both < 0.7 * BASE, charged(heavy) - both
        wide, narrow = answer(f32_base), answer(first)
        assert narrow == answer(second) != wide
        close(floats(narrow), floats(wide), 0.01)
        code, text = refused(first, pieces("base.weight"))
        assert code == DENIED, (code, text)
    return UNJUDGED


@suite.test
def concurrent_loads_read_the_base_once():
    with Tenant("heavy") as heavy:
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            made, by = grows(lambda: list(pool.map(lambda _: begin(heavy), range(3))))
        assert SANITIZED or by < 1.5 * BASE, by
        assert len({answer(s) for s in made}) == 1
    return UNJUDGED


@suite.test
def trainable_weights_are_private_to_each_session():
    """And parameters that the session copies because they do not stay frozen."""
    with Tenant("heavy") as heavy:
        a, b = begin(heavy), begin(heavy)
        kept = answer(a)
        a.send(put("head.bias", [D]))
        a.recv(pb.STATE_DONE)
        assert answer(a, 2) != kept == answer(b)
        _, by = grows(lambda: begin(heavy, fixed=False))
        assert SANITIZED or by > 0.9 * BASE, by
    return UNJUDGED


@suite.test
def r6_35_frozen_base_cannot_be_read_back():
    with Tenant("heavy") as heavy:
        for changed in ({}, {"fixed": False}):
            s = begin(heavy, **changed)
            for name in FROZEN:
                for length in (1, 4096):
                    code, text = refused(s, pieces(name, length))
                    assert code == DENIED, (name, code, text)
                    names(text, name, "artifact 'own'", "artifacts.own.readable: all")
            assert set(whole(s)) == {"head.weight", "head.bias"}
            assert not any("base" in name and any(raw) for name, raw in whole(s, pb.STATE_OPTIMIZER).items())
            assert not any("base" in name for name in whole(s, GRADIENTS, 77))
            s.send(pb.Frame(kind=pb.STATE_SAVE, message=6, module=0, state=pb.State(what=pb.STATE_WEIGHTS, name="stolen")))
            assert s.recv(pb.STATE_FILE).state.bytes < 4 * (D * WIDE + D) + 4096
            # and from that file into a module that may be read
            thief = heavy.open(network(), (ROWS, WIDE))
            code, text = refused(thief, pb.Frame(kind=pb.STATE_LOAD, message=7, module=0, state=pb.State(what=pb.STATE_WEIGHTS, name="stolen")))
            assert code != 0 and "base.weight" in text, (code, text)
            heavy.close()


@suite.test
def r6_36_write_to_a_shared_base_is_refused():
    """A written piece does not make the rest readable either."""
    with Tenant("heavy") as heavy:
        s, private = begin(heavy), begin(heavy, fixed=False)
        before = answer(s)
        all_of_it, part = lambda: put("base.bias", [WIDE]), lambda: put("base.weight", [WIDE], 0)
        for f in (all_of_it(), part()):
            code, text = refused(s, f)
            assert code == DENIED and "is read-only" in text, (code, text)
        assert answer(s, 2) == before
        assert refused(private, part())[0] == 0
        assert refused(private, pieces("base.weight"))[0] == DENIED
        assert refused(private, all_of_it())[0] == 0 and "base.bias" in whole(private)
        assert answer(begin(heavy)) == before


@suite.test
def weights_drawn_from_a_key_are_private_to_the_session():
    """Frozen or not, because the artifact has no such weights."""
    with Tenant("heavy") as heavy:
        one, other = (whole(begin(heavy, frozen=NAMES, fresh=["head"], keys=bytes([k]) * 48)) for k in (1, 2))
        assert one.keys() == other.keys() and one["head.weight"] != other["head.weight"]


@suite.test
def r3_17_training_a_closed_artifact_is_refused():
    with Tenant("heavy") as heavy:
        s = begin(heavy, "public")
        items = whole(s)
        assert set(items) == set(NAMES) and items["base.weight"] == digests["numbers"]
        # the master may fetch weights that train, except below:
        s = begin(heavy, frozen=[], fixed=False)
        assert set(whole(s)) == set(NAMES)
        for frozen in ([], FROZEN):
            code, text = refusal(lambda: begin(heavy, "closed", frozen=frozen))
            assert code == grpc.StatusCode.PERMISSION_DENIED, (code, text)
            names(text, "artifact 'closed'", "would learn", "artifacts.closed.readable: trained")
        s = begin(heavy, "closed", frozen=NAMES)
        assert whole(s) == {} and refused(s, pieces("head.bias", 4))[0] == DENIED
        assert set(whole(begin(heavy, frozen=NAMES, fresh=["head"]))) == {"head.weight", "head.bias"}
        s = begin(heavy, "closed", fresh=["head"])
        assert set(whole(s)) == {"head.weight", "head.bias"}


if pyclient.MISSING:
    print("skip shared bases:", pyclient.MISSING)
else:
    with offering():
        suite.main()

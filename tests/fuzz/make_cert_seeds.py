#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes corpus/cert/identity_*: a CA's certificate, ours and our key, separated by NUL bytes, both
good ones and ones with each fault that the checks distinguish. The keys are made here and used
nowhere else. Valid for a hundred years.

Needs openssl.
"""
import os
import subprocess
import tempfile

CORPUS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus/cert")
URI, BOTH = "URI:spiffe://cleave/w1", "clientAuth,serverAuth"
CONF = """[ca]
default_ca = d
[d]
database = index
new_certs_dir = .
default_md = sha256
policy = p
rand_serial = yes
unique_subject = no
[p]
commonName = supplied
[req]
distinguished_name = n
[n]
"""


def openssl(*args):
    subprocess.run(["openssl", *args], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def read(name):
    with open(name, "rb") as f:
        return f.read()


def key(name, *how):
    openssl("genpkey", *(how or ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")), "-out", name + ".key")
    return name


def ca(name, subject="/CN=ca", *how):
    key(name, *how)
    openssl("req", "-x509", "-config", "conf", "-key", name + ".key", "-subj", subject, "-days", "36500",
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=keyCertSign", "-out", name + ".pem")
    return name


def leaf(name, by, *how, san=URI, eku=BOTH, start="20200101000000Z", end="21200101000000Z"):
    key(name, *how)
    with open("ext", "w") as f:
        f.write("basicConstraints=critical,CA:FALSE\n" + (f"extendedKeyUsage={eku}\n" if eku else "")
                + (f"subjectAltName={san}\n" if san else ""))
    openssl("req", "-new", "-config", "conf", "-key", name + ".key", "-subj", "/CN=" + name, "-out", "csr")
    openssl("ca", "-batch", "-notext", "-config", "conf", "-cert", by + ".pem", "-keyfile", by + ".key", "-in", "csr",
            "-extfile", "ext", "-startdate", start, "-enddate", end, "-out", name + ".pem")
    return name


def seed(name, roots, certs, own):
    with open(os.path.join(CORPUS, "identity_" + name), "wb") as f:
        f.write(b"\0".join([roots, certs, own]))


def lists(cert):
    """Writes list_*: lists of revoked certificates."""
    def write(name, text):
        with open(os.path.join(CORPUS, "list_" + name), "wb") as f:
            f.write(text)

    def made(name, *options):
        openssl("ca", "-config", "conf", "-gencrl", "-cert", "ca.pem", "-keyfile", "ca.key", "-crldays", "36500",
                "-out", name, *options)
        return read(name)
    empty = made("empty.crl")
    openssl("ca", "-config", "conf", "-revoke", cert, "-cert", "ca.pem", "-keyfile", "ca.key")
    one = made("one.crl")
    write("empty", empty)
    write("one", one)
    write("twice", one + empty)
    write("cut", one[:len(one) // 2])
    write("ended", made("ended.crl", "-crl_lastupdate", "20200101000000Z", "-crl_nextupdate", "20210101000000Z"))
    write("future", made("future.crl", "-crl_lastupdate", "21000101000000Z", "-crl_nextupdate", "21010101000000Z"))


def files(name):
    return read(name + ".pem"), read(name + ".key")


def main():
    with open("conf", "w") as f:
        f.write(CONF)
    open("index", "w").close()
    root = read(ca("ca") + ".pem")
    good, own = files(leaf("good", "ca"))
    seed("good", root, good, own)
    kinds = {"rsa": ["RSA", "rsa_keygen_bits:2048"], "rsa_weak": ["RSA", "rsa_keygen_bits:1024"],
             "curve": ["EC", "ec_paramgen_curve:secp256k1"], "weak_curve": ["EC", "ec_paramgen_curve:secp224r1"]}
    for name, (kind, option) in kinds.items():
        seed(name, root, *files(leaf(name, "ca", "-algorithm", kind, "-pkeyopt", option)))
    seed("ed25519", root, *files(leaf("ed25519", "ca", "-algorithm", "ED25519")))
    leaves = {"expired": dict(end="20210101000000Z"), "not_yet": dict(start="21000101000000Z"), "no_eku": dict(eku=""),
              "code_signing": dict(eku="codeSigning,1.2.3.4"), "client": dict(eku="clientAuth"), "no_san": dict(san=""),
              "two_uris": dict(san=URI + ",URI:spiffe://cleave/w2"), "names": dict(
                  san=URI + ",DNS:h.example,IP:127.0.0.1,IP:::1,email:a@b"), "no_uri": dict(san="DNS:h.example")}
    for name, how in leaves.items():
        seed(name, root, *files(leaf(name, "ca", **how)))
    other = leaf("other", ca("other_ca", "/CN=other"))
    seed("other_ca", root, *files(other))
    seed("ca_made_anew", read(ca("anew") + ".pem"), good, own)
    seed("weak_ca", read(ca("weak", "/CN=weak", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:1024") + ".pem"),
         *files(leaf("of_weak", "weak")))
    seed("leaf_as_ca", good, good, own)
    seed("self_signed", root, root, read("ca.key"))
    seed("other_key", root, good, read("other.key"))
    seed("leaf_last", root, root + good, own)
    seed("chain", root, good + root, own)
    openssl("pkey", "-in", "good.key", "-aes128", "-passout", "pass:x", "-out", "locked.key")
    seed("locked", root, good, read("locked.key"))
    seed("key_cut", root, good, own[:60])
    seed("key_none", root, good, good)
    seed("key_nul", root, good, own + b"\0")
    seed("second_cut", root, good + root[:90], own)
    seed("no_certificate", root, own, own)
    lists("good.pem")


with tempfile.TemporaryDirectory() as scratch:
    os.chdir(scratch)
    main()

# SPDX-License-Identifier: Apache-2.0
"""Certificates that `cleave-master certs issue` would not make, by openssl(1)."""
import os, subprocess


def openssl(*args):
    done = subprocess.run(["openssl", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


def forge(certs, name, san, begin="20200101000000Z", end="20490101000000Z", cn="forged",
          use="serverAuth, clientAuth"):
    """Makes a certificate of the CA in the folder `certs`, with any alternative names and any
    dates. Without `use` it has no extended key usage."""
    path = lambda suffix: os.path.join(certs, name + suffix)
    with open(path(".cnf"), "w") as f:
        f.write(f"[ca]\ndefault_ca = d\n[d]\ndatabase = {path('.index')}\nnew_certs_dir = {certs}\nserial = {path('.serial')}\n"
                f"default_md = sha256\npolicy = p\ncertificate = {certs}/ca.pem\nprivate_key = {certs}/ca.key\n"
                "unique_subject = no\n[p]\ncommonName = supplied\n[req]\ndistinguished_name = dn\n[dn]\n[e]\n"
                "basicConstraints = CA:FALSE\nkeyUsage = critical, digitalSignature\n"
                + (f"extendedKeyUsage = {use}\n" if use else "")
                + ("subjectAltName = @san\n[san]\n" + "\n".join(f"{k}.{i} = {v}" for i, (k, v) in enumerate(san)) if san else ""))
    open(path(".index"), "w").close()
    with open(path(".serial"), "w") as f:
        f.write(os.urandom(8).hex().replace("8", "7") + "\n")
    openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path(".key"))
    os.chmod(path(".key"), 0o600)
    openssl("req", "-new", "-key", path(".key"), "-subj", "/CN=" + cn.replace("/", "\\/"), "-config", path(".cnf"), "-out", path(".csr"))
    openssl("ca", "-batch", "-notext", "-config", path(".cnf"), "-extensions", "e", "-startdate", begin,
            "-enddate", end, "-in", path(".csr"), "-out", path(".pem"))

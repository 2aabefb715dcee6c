# SPDX-License-Identifier: Apache-2.0
# The programs of the tests, and the suite.

# ---- unit tests: tests/unit/<folder>/test_<module>.c, one program each ---------------------------
UNIT_SRCS := $(wildcard tests/unit/*/test_*.c) $(wildcard tests/ops/test_*.c)
unit_name = $(patsubst %.c,$(OUT)/%,$(1))
folder_of_unit = $(or $(filter %/$(1),$(FOLDERS)),$(filter $(1),$(FOLDERS)))
UNIT_LDFLAGS_test_accept_guard := $(EXPORT_GUARDS)
UNIT_LDFLAGS_test_egress_record := -Wl,--wrap=fdatasync,--wrap=clv_now_ns
UNIT_LDFLAGS_test_signals := -Wl,--wrap=dnnl_sgemm,--wrap=dnnl_primitive_execute
UNIT_LDFLAGS_test_choice_table := -Wl,--wrap=clv_cpu_choose
UNIT_LDFLAGS_test_pair := -Wl,--wrap=clv_cpu_choose
UNIT_LDFLAGS_test_packed := -Wl,--wrap=clv_cpu_choose
UNIT_LDFLAGS_test_widths := -Wl,--wrap=clv_cpu_vector_width
UNIT_LDFLAGS_test_unsent_unload := -Wl,--wrap=api_load_module,--wrap=api_send
UNIT_OBJS_test_accept_guard := $(OUT)/worker/accept_guard.o
UNIT_LDFLAGS_test_read_guard := $(EXPORT_GUARDS)
UNIT_OBJS_test_read_guard := $(OUT)/worker/accept_guard.o $(OUT)/worker/read_guard.o

# `make t T=program:test`: what picks one test of a cmocka program
ONE := $(OUT)/tests/unit/one.o

define unit_rule
$(OUT)/tests/$(1)/$(2): $(OUT)/tests/$(1)/$(2).o $(ONE) $(UNIT_OBJS_$(2)) $(call libs_for,$(3)) $(if $(filter rpc,$(notdir $(1))),$(call lib_of,common/net/tls))
	$$(call link,$$(LDFLAGS_ONCE) $$(UNIT_LDFLAGS_$(2)),$$(filter %.o,$$^),$(3),$(if $(filter rpc,$(notdir $(1))),$(call lib_of,common/net/tls) $(call lib_of,common/base) -lssl -lcrypto) -lcmocka)
UNIT_PROGRAMS += $(OUT)/tests/$(1)/$(2)
UNIT_OF_$(notdir $(1)) += $(OUT)/tests/$(1)/$(2)
endef
$(foreach s,$(wildcard tests/unit/*/test_*.c),$(eval $(call unit_rule,unit/$(notdir $(patsubst %/,%,$(dir $(s)))),$(basename $(notdir $(s))),$(call folder_of_unit,$(notdir $(patsubst %/,%,$(dir $(s))))))))
$(foreach s,$(wildcard tests/ops/test_*.c),$(eval $(call unit_rule,ops,$(basename $(notdir $(s))),common/model/models)))

# The cases of the ops as JSON, and the numbers of PyTorch for those that have none yet.
$(OUT)/ops/print_cases: $(OUT)/tests/ops/print_cases.o $(call libs_for,common/model/models)
	@mkdir -p $(@D)
	$(call link,,$(filter %.o,$^),common/model/models)
units: $(OUT)/ops/print_cases
##+ golden           numbers of PyTorch for new cases of ops (installs python3-torch)
golden: deps-parity $(OUT)/ops/print_cases $(BINARIES)
	$(Q)$(PYTHON) tests/golden/make_golden.py $(OUT)/ops/print_cases
	$(Q)for t in $$(grep -l '^import golden$$' tests/net/*/test_*.py); do $(PYTHON) $$t --golden || exit 1; done

.SECONDEXPANSION:
## unit-FOLDER      the unit tests of one folder (unit-base, unit-graph, ...)
unit-%: $$(UNIT_OF_$$*)
	$(Q)tests/run-tests --out $(OUT) $(UNIT_OF_$*)

# Tests over both sides in one process: linked with everything.
ALL_LIBS = $(foreach f,$(HIGHEST_FIRST),$(call lib_of,$(f)))
ALL_LDLIBS = $(sort $(foreach f,$(FOLDERS),$(LIBS_$(f)))) -lm
$(OUT)/e2e/test_hot_path: E2E_LDFLAGS := -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc
# A row for each function of the headers that lets go of something, and for each argument of the
# public one that may not be NULL.
$(GEN)/closers.inc $(GEN)/nulls.inc: $(GEN)/%.inc: FORCE
	@mkdir -p $(@D); tests/$*.py > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(OUT)/tests/e2e/test_closers.o: $(GEN)/closers.inc $(GEN_HEADERS)
$(OUT)/tests/e2e/test_nulls.o: $(GEN)/nulls.inc $(GEN_HEADERS)
E2E := $(patsubst tests/e2e/%.c,$(OUT)/e2e/%,$(wildcard tests/e2e/test_*.c))
$(OUT)/e2e/%: $(OUT)/tests/e2e/%.o $(ONE) $$(ALL_LIBS)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $(LDFLAGS_ONCE) $(E2E_LDFLAGS) -o $@ $< $(ONE) -Wl,--start-group $(ALL_LIBS) -Wl,--end-group $(ALL_LDLIBS) -lcmocka
UNIT_PROGRAMS += $(E2E)

# The same binaries and library with tests/faults/faults.c between their messages and the network.
FAULTS := $(OUT)/faults/cleave-master $(OUT)/faults/cleave-worker $(OUT)/faults/libcleave.so.0
FAULTS_OBJ := $(OUT)/tests/faults/faults.o
FAULTS_LDFLAGS := -Wl,--wrap=clv_link_send
$(OUT)/faults/cleave-master: $(call obj_of,master) $(FAULTS_OBJ) $(call libs_for,master)
	@mkdir -p $(@D)
	$(call link,$(FAULTS_LDFLAGS),$(call obj_of,master) $(FAULTS_OBJ),master)
$(OUT)/faults/cleave-worker: $(call obj_of,worker) $(FAULTS_OBJ) $(call libs_for,worker)
	@mkdir -p $(@D)
	$(call link,$(EXPORT_GUARDS) $(FAULTS_LDFLAGS),$(call obj_of,worker) $(FAULTS_OBJ),worker)
$(OUT)/faults/libcleave.so.0: $(FAULTS_OBJ) $(API_LIBS)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $(FAULTS_LDFLAGS) -shared -Wl,-soname,libcleave.so.0 -o $@ $(FAULTS_OBJ) $(api_members) -Wl,--as-needed $(call ldlibs_for,master/api)

# The same programs with failpoints (tests/failpoints): the files that have points are compiled once
# more, and the linker takes these before the members of the archives.
FAILPOINT_SRCS := $(shell grep -rlw --include='*.c' CLV_FAILPOINT common master worker)
FAILPOINT_OBJ := $(OUT)/tests/failpoints/failpoint.o
FAILPOINT_LDFLAGS := $(foreach f,write pwrite fsync fdatasync rename mkdir,-Wl,--wrap=$(f))
failpoint_objs = $(FAILPOINT_OBJ) $(foreach s,$(FAILPOINT_SRCS),$(if $(filter $(patsubst %/,%,$(dir $(s))),$(call closure,$(1))),$(s:%.c=$(OUT)/failpoints/%.o)))
FAILPOINTS := $(OUT)/failpoints/cleave-master $(OUT)/failpoints/cleave-worker
$(OUT)/failpoints/%.o: %.c $(OUT)/flags
	@mkdir -p $(@D)
	$(Q)$(call compile,$<) -DCLV_FAILPOINTS -MMD -MP -o $@
$(OUT)/failpoints/cleave-master: $(call obj_of,master) $(call failpoint_objs,master) $(call libs_for,master)
	$(call link,$(FAILPOINT_LDFLAGS),$(call obj_of,master) $(call failpoint_objs,master),master)
$(OUT)/failpoints/cleave-worker: $(call obj_of,worker) $(call failpoint_objs,worker) $(call libs_for,worker)
	$(call link,$(EXPORT_GUARDS) $(FAILPOINT_LDFLAGS),$(call obj_of,worker) $(call failpoint_objs,worker),worker)

# The protocol of references on its own, over a network that loses, doubles and reorders.
$(OUT)/faults/references: $(OUT)/tests/faults/references.o $$(ALL_LIBS)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< -Wl,--start-group $(ALL_LIBS) -Wl,--end-group $(ALL_LDLIBS)
UNIT_PROGRAMS += $(OUT)/faults/references

# A master and three workers on a simulated network and clock.
SIMULATE_OBJS := $(patsubst %.c,$(OUT)/%.o,$(wildcard tests/simulate/*.c))
$(OUT)/simulate/simulate: $(SIMULATE_OBJS) $$(ALL_LIBS)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(SIMULATE_OBJS) -Wl,--start-group $(ALL_LIBS) -Wl,--end-group $(ALL_LDLIBS)
UNIT_PROGRAMS += $(OUT)/simulate/simulate

# Walks through all states of small models.
MODEL_OBJS := $(patsubst %.c,$(OUT)/%.o,$(wildcard tests/model/*.c))
$(OUT)/model/model: $(MODEL_OBJS)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(MODEL_OBJS)
UNIT_PROGRAMS += $(OUT)/model/model

# The same programs over real daemons; tests/simulate/daemons/test_daemons.py starts these.
DAEMONS := $(OUT)/simulate/daemons
DAEMONS_OBJS := $(OUT)/tests/simulate/daemons/daemons.o \
                $(filter-out %/simulate.o %/network.o %/world.o %/worker.o,$(SIMULATE_OBJS))
$(DAEMONS): $(DAEMONS_OBJS) $$(ALL_LIBS)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(DAEMONS_OBJS) -Wl,--start-group $(ALL_LIBS) -Wl,--end-group $(ALL_LDLIBS)

# Two links on a simulated network and clock.
LINKS_OBJS := $(OUT)/tests/simulate/links/links.o $(OUT)/tests/simulate/network.o
$(OUT)/simulate/links: $(LINKS_OBJS) $$(ALL_LIBS)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(LINKS_OBJS) -Wl,--start-group $(ALL_LIBS) -Wl,--end-group $(ALL_LDLIBS)
UNIT_PROGRAMS += $(OUT)/simulate/links

# A disk that fails, between a program and the C library.
DISK := $(OUT)/disks/disk.so
$(DISK): tests/disks/disk.c $(OUT)/flags
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -fvisibility=default -shared -o $@ $< -ldl

# Programs on the public API, compiled as a user's are: against an installed tree, through
# pkg-config.
TREE := $(abspath $(OUT))/tree
TREE_PKG = PKG_CONFIG_LIBDIR=$(TREE)$(PREFIX)/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$(TREE) pkg-config
$(TREE)/installed: $(BINARIES) $(LIBCLEAVE) master/api/cleave.h $$(PAGES) $$(MANUALS)
	$(Q)$(MAKE) --no-print-directory install DESTDIR=$(TREE) > $(OUT)/install.log
	$(Q)touch $@
PUBLIC_SOURCES := $(wildcard tests/seeds/*.c tests/net/*/*.c)
public_program = $(OUT)/$(word 2,$(subst /, ,$(1)))/$(basename $(notdir $(1)))
PUBLIC_PROGRAMS := $(foreach s,$(PUBLIC_SOURCES),$(call public_program,$(s)))
$(foreach s,$(PUBLIC_SOURCES),$(eval $(call public_program,$(s)): $(s)))
public_compile = $(CC) -std=c17 -D_GNU_SOURCE -pthread $(WARN) $(CFLAGS_$(BUILD)) $(CFLAGS_ONCE)
$(PUBLIC_PROGRAMS): $(TREE)/installed
	$(call say,CC,$@)
	@mkdir -p $(@D)
	$(Q)$(public_compile) -MMD -MP -MF $@.d -o $@ $(filter %.c,$^) \
	  -Wl,-rpath,$(TREE)$(PREFIX)/lib $$($(TREE_PKG) --cflags --libs cleave) $(LDFLAGS) -lm

# Programs of longer proofs are read by the compiler here: one that is behind what it calls is found
# before anybody wants the proof.
LATER := $(wildcard tests/fuzz/*.c tests/bench/*.c tests/parity/*.c)
$(LATER:%.c=$(OUT)/%.read): $(OUT)/%.read: %.c $(OUT)/flags
	@mkdir -p $(@D)
	$(Q)$(call compile,$<) -fsyntax-only -MMD -MP -MF $(@:.read=.d) -MT $@
	@touch $@

units: $$(UNIT_PROGRAMS) $$(PUBLIC_PROGRAMS) $$(PYTHON_PACKAGE) $$(FAULTS) $$(DISK) $$(GPU_WORKER) $$(DAEMONS) $$(OUT)/bench/bench_link $$(GPU_PROGRAMS) $(LATER:%.c=$(OUT)/%.read)

## test             build and run the whole test suite (installs missing Debian packages)
test: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all units
	$(Q)tests/run-tests --suite --out $(OUT) $(UNIT_PROGRAMS)

# T: a program, a script or one test in it, by name; see tests/one-test.
## t T=NAME         any one test, with its output: a program, a script or one test in it
t:
	$(Q)MAKE='$(MAKE)' tests/one-test $(OUT) '$(T)' $(UNIT_PROGRAMS)

# What holds for the tree itself: each executable tests/check-* is one check. `make test` runs all
# but those that say so.
## check            what holds for the tree itself: layers, lint, format, links, lengths, ...
check: deps-test
	$(Q)tests/run-tests --checks --out $(OUT)

# SPDX-License-Identifier: Apache-2.0
# The simulated device, and what a machine with a real one needs of us.

# A worker whose NVIDIA devices are simulated.
GPU_WORKER := $(OUT)/gpu/cleave-worker
comma := ,
GPU_WORKER_LDFLAGS := $(EXPORT_GUARDS) -Wl,--wrap=clv_cuda_load
$(GPU_WORKER): $(call obj_of,worker) $(OUT)/tests/gpu/worker/worker.o $$(SIM_LIB) $(call libs_for,worker) $(call lib_of,kernels/cuda)
	@mkdir -p $(@D)
	$(call link,$(GPU_WORKER_LDFLAGS),$(call obj_of,worker) $(OUT)/tests/gpu/worker/worker.o -Wl$(comma)--start-group $(SIM_LIB) $(call lib_of,kernels/cuda) -Wl$(comma)--end-group,worker,-lstdc++)

# The simulated device: kernels/cuda's kernels, compiled by the host's compiler, and what they run
# on.
CXX_WARN := $(filter-out -Wpedantic -Wstrict-prototypes -Wmissing-prototypes,$(WARN))
CXX_COMPILE = $(CXX) $(CPPFLAGS) -std=c++17 -fvisibility=hidden -fPIC -pthread -ffp-contract=off $(CXX_WARN) $(CFLAGS_$(BUILD))
# Without a sanitizer every load and store of a kernel is checked by tests/gpu/sim/checks.c.
KERNEL_CHECKS := $(if $(filter release debug,$(BUILD)),-fsanitize=kernel-address -fsanitize=alignment --param asan-stack=0 --param asan-globals=0 \
                 --param asan-instrumentation-with-call-threshold=0)
CFLAGS_tests/gpu/libraries := $(if $(findstring clang,$(CC)),,$(KERNEL_CHECKS))
$(OUT)/%.cu.o: %.cu tests/gpu/device.h $(OUT)/flags tests/gpu.mk
	$(call say,CXX,$<)
	@mkdir -p $(@D)
	$(Q)$(CXX_COMPILE) $(KERNEL_CHECKS) -include tests/gpu/device.h -x c++ -c $< -MMD -MP -o $@
SIM_SOURCES := $(filter-out tests/gpu/test_%,$(wildcard tests/gpu/*.c tests/gpu/sim/*.c tests/gpu/libraries/*.c))
SIM_LIB := $(OUT)/lib/tests_gpu.a
$(SIM_LIB): $(SIM_SOURCES:%.c=$(OUT)/%.o) $(patsubst %,$(OUT)/%.o,$(wildcard kernels/cuda/*.cu tests/gpu/*.cu))
	@mkdir -p $(@D)
	$(Q)rm -f $@; ar rcs $@ $^
GPU_TESTS := $(patsubst %.c,$(OUT)/%,$(wildcard tests/gpu/test_*.c))
GPU_LIBS := $(SIM_LIB) $(call lib_of,kernels/cuda) $(call libs_for,common/model/models)
GPU_NODE_LIBS := $(SIM_LIB) $(call lib_of,kernels/cuda) $(call libs_for,common/engine)
$(addprefix $(OUT)/tests/gpu/,test_node test_chunks): %: %.o $(ONE) $(GPU_NODE_LIBS)
	$(Q)$(CC) $(LDFLAGS) $(LDFLAGS_ONCE) -o $@ $< $(ONE) -Wl,--start-group $(GPU_NODE_LIBS) -Wl,--end-group $(call ldlibs_for,common/engine) -lstdc++ -lcmocka
$(filter-out %/test_node %/test_chunks,$(GPU_TESTS)): %: %.o $(ONE) $(GPU_LIBS)
	$(Q)$(CC) $(LDFLAGS) $(LDFLAGS_ONCE) -o $@ $< $(ONE) -Wl,--start-group $(GPU_LIBS) -Wl,--end-group $(call ldlibs_for,common/model/models) -lstdc++ -lcmocka
UNIT_PROGRAMS += $(GPU_TESTS)
# What the device must find; run by its script.
PLANTS := $(OUT)/tests/gpu/plants/plants
$(PLANTS): %: %.o %.cu.o $(GPU_LIBS)
	$(Q)$(CC) $(LDFLAGS) $(LDFLAGS_ONCE) -o $@ $@.o $@.cu.o -Wl,--start-group $(GPU_LIBS) -Wl,--end-group $(call ldlibs_for,common/model/models) -lstdc++
units: $(PLANTS)
# Whole sessions on it, of which each process is built as this one is. With a sanitizer the longer
# ones take many minutes.
GPU_SESSIONS := tests/gpu/test_sim_worker.py $(addprefix tests/net/training/,test_cuda.py test_two_devices.py test_device_memory.py) tests/net/hostile/test_device_bases.py
##+ gpu-tests        the cuda backend on the simulated device
gpu-tests: $(GPU_TESTS) $(PLANTS) $(BINARIES) $(OUT)/libcleave.so.0 $(GPU_WORKER)
	$(Q)tests/run-tests --out $(OUT) $(GPU_TESTS) tests/gpu/plants/test_plants.py $(GPU_SESSIONS)

# The tests of the simulated device on a real one, and what a machine that has one needs of us.
$(OUT)/gpu/on_device: $(patsubst %,$(OUT)/tests/gpu/%.o,test_cuda nvidia/on_device) $(ONE) $(CUDA_OBJS) $(call libs_for,common/model/models)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(cuda_libs) -Wl,--start-group $(call libs_for,common/model/models) -Wl,--end-group \
	  $(call ldlibs_for,common/model/models) -lcmocka
$(ON_DEVICE): $(OUT)/gpu/%: $(OUT)/tests/gpu/%.o $(OUT)/tests/gpu/nvidia/on_device.o $(ONE) $(CUDA_OBJS) $(call libs_for,common/model/models)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(cuda_libs) -Wl,--start-group $(call libs_for,common/model/models) -Wl,--end-group \
	  $(call ldlibs_for,common/model/models) -lcmocka
# Steps of networks, and kernels beside copies, on either.
GPU_SPEED := $(OUT)/tests/gpu/speed/steps $(OUT)/tests/gpu/speed/shares
$(OUT)/gpu/shares $(OUT)/tests/gpu/speed/shares: $(OUT)/tests/gpu/speed/shares_more.o
$(OUT)/gpu/steps $(OUT)/gpu/shares: $(OUT)/gpu/%: $(OUT)/tests/gpu/speed/%.o $(OUT)/tests/gpu/nvidia/on_device.o $(CUDA_OBJS) $(call libs_for,common/model/optim) $(call libs_for,common/model/models)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(cuda_libs) -Wl,--start-group $(call libs_for,common/model/optim) $(call libs_for,common/model/models) -Wl,--end-group \
	  $(call ldlibs_for,common/model/models)
$(GPU_SPEED): %: %.o $(GPU_LIBS) $(call libs_for,common/model/optim)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) -Wl,--start-group $(GPU_LIBS) $(call libs_for,common/model/optim) -Wl,--end-group $(call ldlibs_for,common/model/models) -lstdc++
units: $(GPU_SPEED)
##+ gpu-bundle       what a machine with a GPU needs of us, packed (tests/gpu/BUNDLE.md)
gpu-bundle: all
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) CUDA=1 $(GPU_PROGRAMS) $(GPU_WORKER) $(GPU_TESTS) $(GPU_SPEED)
	$(Q)tests/gpu/bundle $(OUT)

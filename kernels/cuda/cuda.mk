# SPDX-License-Identifier: Apache-2.0
# The library of the GPU backend, where there is a toolkit.

# ---- CUDA=auto builds the GPU's library where there is a toolkit, 1 must, 0 does not -------------
CUDA ?= auto
ifeq ($(origin NVCC),undefined)
NVCC := $(if $(filter 0,$(CUDA)),,$(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc)))
endif
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
# What is missing, by name.
CUDA_MISSES := $(if $(filter 0,$(CUDA)),CUDA,$(if $(NVCC),,nvcc) $(if $(shell command -v g++),,g++) \
               $(foreach h,cuda_runtime_api.h cublasLt.h cudnn_adv.h cudnn_graph.h,$(if $(wildcard $(CUDA_HOME)/include/$(h)),,$(h))))
ifeq ($(strip $(CUDA_MISSES)),)
CUDA_LIBRARY := $(OUT)/libcleave_cuda.so
else ifeq ($(CUDA),1)
$(error CUDA=1, and there is no $(CUDA_MISSES))
endif
# -fmad=false: as -ffp-contract=off above, and the numbers that the CPU has.
NVCC_FLAGS := -std=c++17 -O3 -fmad=false -lineinfo -gencode arch=compute_80,code=sm_80 \
              -gencode arch=compute_90,code=[sm_90,compute_90] -Werror=all-warnings -Wreorder -Wdefault-stream-launch \
              -Xptxas=-v -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra,-Wshadow,-Wconversion,-Wsign-conversion \
              -Xcompiler=-Wdouble-promotion,-Wcast-qual,-Wnull-dereference,-Werror
CFLAGS_kernels/cuda/nvidia := -isystem $(CUDA_HOME)/include -DCUDNN_WARN_DEPRECATED -Wconversion $(if $(findstring clang,$(CC)),,-Werror)

# ---- the library
# The library of the GPU, which no program is linked with: the backend, its kernels, NVIDIA's
# runtime inside it. Kernels that spill registers fail by name.
$(OUT)/nvcc.flags: FORCE
	@mkdir -p $(@D); echo '$(NVCC) $(NVCC_FLAGS) $(CPPFLAGS)' > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(OUT)/nvcc/%.o: %.cu $(OUT)/nvcc.flags kernels/cuda/nvidia/spills
	$(call say,NVCC,$<)
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(NVCC_FLAGS) $(CPPFLAGS) -MMD -MP -MF $(@:.o=.d) -o $@ -c $< > $(@:.o=.ptxas) 2>&1 || \
	  { cat $(@:.o=.ptxas) >&2; rm -f $@; exit 1; }
	$(Q)kernels/cuda/nvidia/spills $(@:.o=.ptxas) || { rm -f $@; exit 1; }
CUDA_OBJS := $(patsubst %.cu,$(OUT)/nvcc/%.o,$(wildcard kernels/cuda/*.cu)) $(call obj_of,kernels/cuda/nvidia)
cuda_libs = -Wl,--start-group $(call libs_for,kernels/cuda) -Wl,--end-group -L$(CUDA_HOME)/lib64 -lcudart_static \
            -Wl,--as-needed $(call ldlibs_for,kernels/cuda) -lstdc++ -ldl -lrt
$(OUT)/libcleave_cuda.so: $(CUDA_OBJS) $(call libs_for,kernels/cuda)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-z,defs,-z,relro,-z,now,--exclude-libs,ALL -o $@ $(CUDA_OBJS) $(cuda_libs)

# What cuDNN would do on a device that is only described; what a device gives.
ON_DEVICE := $(addprefix $(OUT)/gpu/,test_cuda_types test_cuda_bf16 test_together test_recording)
GPU_PROGRAMS := $(if $(CUDA_LIBRARY),$(OUT)/gpu/plan_convs $(OUT)/gpu/rates $(OUT)/gpu/on_device $(OUT)/gpu/steps $(OUT)/gpu/shares $(ON_DEVICE))
CFLAGS_tests/gpu/nvidia := $(CFLAGS_kernels/cuda/nvidia)
$(OUT)/gpu/plan_convs $(OUT)/gpu/rates: $(OUT)/gpu/%: $(OUT)/tests/gpu/nvidia/%.o $(CUDA_OBJS) $(call libs_for,kernels/cuda)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< $(CUDA_OBJS) $(cuda_libs)

# The front door.  CMake does the work; `make help` lists what there is to do.
PREFIX  ?= /usr/local
DESTDIR ?=

# The presets leave these two open.
export CMAKE_GENERATOR ?= $(if $(shell command -v ninja),Ninja,Unix Makefiles)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)

MAKEFLAGS += --no-print-directory

# The CUDA backend is built where there is a GPU, or when asked for: make CUDA=1.
cuda  = $(if $(CUDA),-DEW_CUDA=$(if $(filter 0,$(CUDA)),OFF,ON))
# The tests compile it wherever there is a compiler for it.
nvcc := $(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
test-release: cuda = -DEW_CUDA=$(if $(nvcc),ON,OFF)
test-plain test-asan test-tsan: cuda = -DEW_CUDA=OFF
# Of two release builds the second runs what can end differently there.
tests = ON
test-plain: tests = BACKENDS
# ThreadSanitizer sees threads of the test programs alone: no tool, no shared library.
test-tsan: targets = --target tests

# $(call configure,PRESET,OPTIONS): quiet unless it fails.
configure = @mkdir -p build && cmake --preset $(1) $(cuda) $(2) >build/$(1).log 2>&1 \
            || { cat build/$(1).log; exit 1; }

build: ## (default) build the release tool and library into build/release
	@scripts/setup demo
	$(call configure,release)
	@cmake --build build/release --target tools

demo: build ## see it work: builds, then runs a short demonstration (3 minutes at most)
	@build/release/entwine demo

test: test-release $(if $(nvcc),test-plain) test-asan test-tsan test-torch ## run every test: release with and without CUDA, ASan + UBSan, TSan, PyTorch
	@echo "All tests that were run have passed."

test-release test-plain test-asan test-tsan: test-%:
	@scripts/setup test
	$(call configure,$*,-DEW_TESTS=$(tests) -DEW_WERROR=ON)
	@cmake --build build/$* $(targets)
	@ctest --preset $*

test-torch: ## run the Python tests that need PyTorch (scripts/test-torch says where it comes from)
	@scripts/setup test
	@CMAKE_ARGS="$(cuda)" scripts/test-torch

install: ## install into PREFIX (default /usr/local), staged under DESTDIR if given
	@scripts/setup demo
	$(call configure,release,"-DCMAKE_INSTALL_PREFIX=$(PREFIX)")
	@cmake --build build/release --target tools
	@umask 022; DESTDIR="$(DESTDIR)" cmake --install build/release >build/install.log || { cat build/install.log; exit 1; }
	@cp build/release/install_manifest.txt build/installed.txt
	@[ -n "$(DESTDIR)" ] || scripts/after-install build/installed.txt

# From a list of its own: every cmake --install of the build, of which the tests have some, writes CMake's.
uninstall: ## remove what the last `make install` has installed
	@scripts/uninstall build/installed.txt "$(DESTDIR)" "$(if $(filter-out file,$(origin PREFIX)),$(PREFIX))"

wheel: ## make a Python source distribution and from it a wheel, in build/wheel, and check both
	@scripts/setup wheel
	@CMAKE_ARGS="$(cuda)" scripts/make-wheel

dist: ## make build/entwine-VERSION.tar.gz from the last commit
	@mkdir -p build && git describe --always --abbrev=12 --exclude='*' >build/COMMIT
	@name=entwine-$$(sed -n 's/^#define EW_VERSION_[A-Z]* //p' include/entwine/entwine.h | paste -sd .); \
	  git archive --format=tar --prefix=$$name/ --add-file=build/COMMIT HEAD | gzip -9n >build/$$name.tar.gz && ls build/$$name.tar.gz

fuzz: ## fuzz every parser for 60 s each (FUZZ_SECONDS=N for another time)
	@scripts/setup test
	@FUZZ_SECONDS=$${FUZZ_SECONDS:-60} FUZZ_SEED=$${FUZZ_SEED:-0} tests/fuzz/run.sh build/fuzz

# Both end in bench/results/stress-ARCH.json.
stress: ## count how often the promises are kept, in minutes (docs/PROMISES.md)
soak: ## the same with counts that take hours
stress soak:
	@scripts/setup test
	$(call configure,release,-DEW_TESTS=ON -DEW_WERROR=ON)
	@cmake --build build/release
	@scripts/stress $(if $(filter soak,$@),--soak)

bench-cpu: ## measure the speed targets on this CPU and write bench/results/cpu-*.json (QUICK=1: a quick look)
	@scripts/setup bench
	$(call configure,release)
	@cmake --build build/release --target tools kernel_bench
	@scripts/bench-cpu $(if $(QUICK),--quick)

cpu-eval: ## run the paper's evaluation on this CPU, into bench/results/eval-cpu-*/
	@scripts/setup bench
	$(call configure,release)
	@cmake --build build/release --target tools
	@scripts/evaluate cpu

bench-clients: ## measure PyTorch's and Transformers' use of it and write bench/results/client-*.json (QUICK=1: a quick look; PYTHON=an interpreter that has both)
	@scripts/setup demo
	$(call configure,release)
	@cmake --build build/release --target tools
	@scripts/bench-clients $(if $(QUICK),--quick) $(if $(PYTHON),--python $(PYTHON))

gpu-check: ## check the CUDA backend on this machine's GPU, bit for bit
	@scripts/gpu-check

# The tool with the CUDA backend.
build-gpu:
	@scripts/setup demo
	@mkdir -p build && cmake -S . -B build/gpu -DCMAKE_BUILD_TYPE=Release -DEW_CUDA=ON -DEW_CLI=ON \
	   >build/gpu.log 2>&1 || { cat build/gpu.log; exit 1; }
	@cmake --build build/gpu --target tools

gpu-bench: build-gpu ## measure the speed targets on this GPU and write bench/results/gpu-*.json
	@cmake --build build/gpu --target block_bench
	@scripts/bench-gpu

gpu-eval: build-gpu ## run the paper's evaluation on this GPU, into bench/results/eval-*/
	@scripts/evaluate gpu

gpu-peers: build-gpu ## compare with PyTorch's Async-TP on this GPU (needs torch)
	@scripts/bench-peers

api-docs: ## make docs/API.md from the headers
	@scripts/api-docs

format: ## format all C sources with clang-format
	@find include src cli bench tests examples -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \
	  | xargs clang-format -i

clean: ## remove everything that was built
	rm -rf build

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build demo test test-release test-plain test-asan test-tsan test-torch install uninstall wheel dist api-docs fuzz stress soak bench-cpu bench-clients cpu-eval build-gpu gpu-check gpu-bench gpu-eval gpu-peers format clean help
# The test builds share two cores and time their waits: one after the other, always.
.NOTPARALLEL:

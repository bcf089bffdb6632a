# Two cores of a Neoverse V1 server, fp32: where the CPU figures of this project were measured.
kind = cpu                  # -
nodes = 1                   # ranks share one host
cores = 2                   # of the host, for all ranks together
block_us_128 = 64:28.4 512:212.6   # measured: GEMM of sequential calls in cpu-neoverse-v1-2c.json, 2026-11-15
clock = 1                   # -
bf16_time = 0.31            # measured: bf16 instructions against fp32, the same file
blas_time = 1.14            # measured: OpenBLAS, the same file
mem_gbs = 0                 # two cores do not reach the memory's limit
reducer_gbs = 1:34          # measured: the tail of sequential calls, the same file
reducer_us = 0.2            # estimate, 2026-11
link_gbs = 0                # ranks share memory; --link emulates a link
link_us = 0                 # -
start_us = 20               # estimate: workers wake up, 2026-11
publish_us = 0.2            # estimate: a cache line crosses cores, 2026-11
skew_us = 10                # estimate, 2026-11
jitter = 0                  # not modelled
device = arm-0x41-0xd40      # Neoverse V1, as /proc/cpuinfo numbers it; tunings on two such cores are planned with this profile

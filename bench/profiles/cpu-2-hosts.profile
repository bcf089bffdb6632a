# Two hosts of one Neoverse V1 core each, EMULATED on one machine with two: network namespaces, TCP over
# veth pairs that tc limits (mpi-neoverse-v1-2c.json; scripts/bench-mpi makes it).  Numbers come from 2 of its
# 16 runs, those over a loopback of 20 Gb/s; the others are predicted (docs/SIMULATOR.md).  Assumptions: ranks
# are spread evenly, the first half on the first host; a host has one NIC for all its ranks, with its rate in each
# direction; the thread that calls Entwine serves the network between tiles, and while it waits.
# fitted-to: nic_gbs=2.5 nic_shared=1
kind = cpu                  # -
nodes = 2                   # hosts: two network namespaces
cores = 1                   # of a host: ranks were pinned, one core for each host's
block_us_128 = 64:28.4 512:216.2   # measured: GEMM of sequential, fp32, loopback 20 Gb/s; K = 64 as in the profile cpu, 2026-11-15
clock = 1                   # -
bf16_time = 0.311           # measured: GEMM of sequential, bf16 against fp32, loopback 20 Gb/s, 2026-11-15
blas_time = 1.14            # as in the profile cpu; BLAS stays on one host
mem_gbs = 0                 # two cores do not reach the memory's limit
reducer_gbs = 1:34          # as in the profile cpu: measured there, 2026-11-15
reducer_us = 0.2            # estimate, 2026-11
link_gbs = 0                # ranks of a host share memory
link_us = 0                 # -
nic_gbs = 1                 # 8 Gb/s, as tc limits it in the middle one of three measured rates
nic_us = 30                 # estimate: TCP between namespaces, from a send to its receive, 2026-11
nic_shared = 0              # veth: the rate in each direction; a loopback shares it (1)
nic_cpu_ps_per_byte = 282   # measured: GEMM of entwine less that of sequential less the sums, fp32 and bf16, loopback 20 Gb/s, 2026-11-15
start_us = 20               # estimate: workers wake up, 2026-11
publish_us = 0.2            # estimate: a cache line crosses cores, 2026-11
skew_us = 10                # estimate, 2026-11
jitter = 0                  # not modelled

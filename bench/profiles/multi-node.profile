# Nodes of 8 H200 with a 400 Gb/s NIC for every GPU, up to W = 512.  Assumptions of the two levels:
# ranks 0 to 7 are the first node and so on; a rank's links inside the node and its NIC work at the
# same time, each with one rate in each direction; every NIC reaches every other at full rate (no
# oversubscription, no congestion in the fabric); tiles are pulled flat from every rank, near or
# far, as the GPU engine does it.  levels=2, which no GPU engine runs yet: the reducers that own a tile also
# sum, over NVLink, what their node has for the other nodes' tiles in the same place, and read one sum from
# each other node.  Beyond 16 ranks, 16 of them, spread over all, stand for the rest in forecasts.
kind = gpu                  # -
gpus = 8                    # of a node
nodes = 64                  # 512 GPUs: the most that are looked at
virtual_node = 0            # a GPU for every rank
sms = 132                   # datasheet
arch = 90                   # datasheet
sm_registers = 65536        # CUDA programming guide, compute capability 9.0
sm_shared_bytes = 233472    # CUDA programming guide, compute capability 9.0
sm_threads = 2048           # CUDA programming guide, compute capability 9.0
sm_ctas = 32                # CUDA programming guide, compute capability 9.0
block_us_256 = 512:6.86 1024:11.5 2048:21.7 4096:42.1 8192:84.6 # as on the virtual node: fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
block_us_128 = 512:7.05 1024:11.8 2048:22.4 4096:43.4 8192:87.1 # as on the virtual node: fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
clock = 1                   # block times hold the clock of a power-capped GPU
bf16_time = 0.948           # fitted to a third of gpu-nvidia-h200-fitted.json and older results of the virtual node, 2026-11-15
blas_time = 1.04            # as on the virtual node: fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
half_time = 0.791           # as on the virtual node: fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
split_time = 0.64           # as on the virtual node: fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
crowd_time = 0.253          # as on the virtual node: fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
cta_us = 3.1                # as on the virtual node: fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
add_us = 0.75               # to be fitted
miss_ps_per_byte = 8.99     # as on the virtual node: fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
steal_ps_per_byte = 2.84    # as on the virtual node: fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
mem_gbs = 4.3e+03           # as on the virtual node: fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
reducer_gbs = 128:14 256:28 512:20   # estimate: as on the virtual node less the longer way of remote loads, 2026-11
reducer_us = 1.34           # as on the virtual node: fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
shared_time = 2.02          # as on the virtual node: fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
copy_gbs = 0                # not reached: copies cross the link
command_us = 6.9            # estimate: as launch_us, since no other rank's streams are on the GPU, 2026-11
beside_us = 2.21            # as on the virtual node: fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
link_gbs = 340                # estimate: 75 % of the datasheet's 450 GB/s per direction for loads, 2026-11
link_us = 1.0                 # estimate: a remote read beyond a local one, 2026-11
nic_gbs = 46                 # estimate: 92 % of 400 Gb/s, 2026-11
nic_us = 5                  # estimate: RDMA with a flag behind the data, 2026-11
nccl_gbs = 330                # estimate: inside a node; across nodes the node's 8 NICs together bound it, 2026-11
nccl_us = 25                 # estimate, 2026-11
start_us = 4.2              # estimate: fitted on a virtual node on 2026-11-15, when no gate held its calls
launch_us = 6.9             # estimate: fitted on a virtual node on 2026-11-15, when no gate held its calls
publish_us = 1.3            # measured on an H200: a system-scope release, 2026-11
skew_us = 2               # estimate, 2026-11
jitter = 0                  # not modelled

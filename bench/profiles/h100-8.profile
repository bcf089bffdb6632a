# A node of 8 H100 SXM with NVLink and NVSwitch: an H200 with less memory bandwidth.
kind = gpu                  # -
gpus = 8                    # of a node
nodes = 1                   # -
virtual_node = 0            # a GPU for every rank
sms = 132                   # datasheet
arch = 90                   # datasheet
sm_registers = 65536        # CUDA programming guide, compute capability 9.0
sm_shared_bytes = 233472    # CUDA programming guide, compute capability 9.0
sm_threads = 2048           # CUDA programming guide, compute capability 9.0
sm_ctas = 32                # CUDA programming guide, compute capability 9.0
block_us_256 = 512:6.72 1024:11.2 2048:21.7 4096:41.9 8192:83.9 # as on the virtual node: fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
block_us_128 = 512:8.34 1024:13.9 2048:26.9 4096:52 8192:104 # as on the virtual node: measured: 1.24 of block_us_256, by few-rows-unpaced.json at M = 256 to 2048, 2026-11-16
clock = 1                   # block times hold the clock of a power-capped GPU
bf16_time = 0.948           # fitted to a third of gpu-nvidia-h200-fitted.json and older results of the virtual node, 2026-11-15
blas_time = 1.044           # as on the virtual node: fitted to llama*, qwen72b-46 and main-46 of eval-nvidia-h200, W=8 at 46 GB/s and without a link, 2026-11-18
half_time = 0.784           # as on the virtual node: fitted to llama*, qwen72b-46 and main-46 of eval-nvidia-h200, W=8 at 46 GB/s and without a link, 2026-11-18
split_time = 0.62           # as on the virtual node: fitted to llama*, qwen72b-46 and main-46 of eval-nvidia-h200, W=8 at 46 GB/s and without a link, 2026-11-18
crowd_time = 0.266          # as on the virtual node: fitted to llama*, qwen72b-46 and main-46 of eval-nvidia-h200, W=8 at 46 GB/s and without a link, 2026-11-18
cta_us = 3.36               # as on the virtual node: fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
add_us = 0.79               # as on the virtual node: measured: fused-add less fused-tma-add, for each wave, W=8, no link and 46 GB/s, K to 4096, eval-nvidia-h200/*.json, 2026-11-18
miss_ps_per_byte = 8.87     # as on the virtual node: fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
steal_ps_per_byte = 6.69    # as on the virtual node: fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
mem_gbs = 3001              # the H200's, scaled by the datasheets: 3.35 to 4.8 TB/s
reducer_gbs = 128:14 256:28 512:20   # estimate: as on the virtual node less the longer way of remote loads, 2026-11
reducer_us = 1.58           # as on the virtual node: fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
shared_time = 2.05          # as on the virtual node: fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
copy_gbs = 0                # not reached: copies cross the link
command_us = 6.9            # estimate: as launch_us, since no other rank's streams are on the GPU, 2026-11
beside_us = 1.6             # as on the virtual node: measured: GEMM of wavegroup less that of entwine, for each launch, no link, K to 3696, eval-nvidia-h200/*.json, 2026-11-18
link_gbs = 340                # estimate: 75 % of the datasheet's 450 GB/s per direction for loads, 2026-11
link_us = 1.0                 # estimate: a remote read beyond a local one, 2026-11
nic_gbs = 0                 # one node
nic_us = 0                  # one node
nccl_gbs = 330                # estimate: bus bandwidth of ReduceScatter on such nodes, 2026-11
nccl_us = 15                 # estimate, 2026-11
nccl_sms = 0                 # groups of tiles are reduced by our kernels, as the engine does it
start_us = 4.2              # estimate: fitted on a virtual node on 2026-11-15, when no gate held its calls
launch_us = 6.9             # estimate: fitted on a virtual node on 2026-11-15, when no gate held its calls
publish_us = 1.3            # measured on an H200: a system-scope release, 2026-11
skew_us = 2               # estimate, 2026-11
jitter = 0                  # not modelled
device = NVIDIA H100 80GB HBM3 # as CUDA names it

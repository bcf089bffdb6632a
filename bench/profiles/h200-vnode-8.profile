# One H200 cut into a virtual node of 2 to 8 ranks, as `entwine bench --backend cuda` makes it
# where ranks outnumber GPUs.  Without --link ranks read each other through the memory.
# The next line says which results scripts/validate-sim must not count as predicted.
# fitted-to: op=gemm-rs ranks=8 link_gbs=0,46 dtype=fp16
kind = gpu                  # -
gpus = 1                    # all ranks share one GPU
nodes = 1                   # -
virtual_node = 1            # ranks get equal groups of its SMs
sms = 132                   # datasheet
arch = 90                   # datasheet
sm_registers = 65536        # CUDA programming guide, compute capability 9.0
sm_shared_bytes = 233472    # CUDA programming guide, compute capability 9.0
sm_threads = 2048           # CUDA programming guide, compute capability 9.0
sm_ctas = 32                # CUDA programming guide, compute capability 9.0
block_us_256 = 512:6.72 1024:11.2 2048:21.7 4096:41.9 8192:83.9 # fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
block_us_128 = 512:8.34 1024:13.9 2048:26.9 4096:52 8192:104 # measured: 1.24 of block_us_256, by few-rows-unpaced.json at M = 256 to 2048, 2026-11-16
clock = 1                   # block times hold the clock of a power-capped GPU
bf16_time = 0.948           # fitted to a third of gpu-nvidia-h200-fitted.json and older results, 2026-11-15
blas_time = 1.044           # fitted to llama*, qwen72b-46 and main-46 of eval-nvidia-h200, W=8 at 46 GB/s and without a link, 2026-11-18
half_time = 0.784           # fitted to llama*, qwen72b-46 and main-46 of eval-nvidia-h200, W=8 at 46 GB/s and without a link, 2026-11-18
split_time = 0.62           # fitted to llama*, qwen72b-46 and main-46 of eval-nvidia-h200, W=8 at 46 GB/s and without a link, 2026-11-18
crowd_time = 0.266          # fitted to llama*, qwen72b-46 and main-46 of eval-nvidia-h200, W=8 at 46 GB/s and without a link, 2026-11-18
cta_us = 3.36               # fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
add_us = 0.79               # measured: fused-add less fused-tma-add, for each wave, W=8, no link and 46 GB/s, K to 4096, eval-nvidia-h200/*.json, 2026-11-18
miss_ps_per_byte = 8.87     # fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
steal_ps_per_byte = 6.69    # fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
mem_gbs = 4300              # set by hand: 0.9 of the datasheet's 4.8 TB/s; the fit hardly depends on it
reducer_gbs = 128:17.6 256:35.4 512:24.1 # fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
reducer_us = 1.58           # fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
shared_time = 2.05          # fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
copy_gbs = 336              # fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
command_us = 1.72           # fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
beside_us = 1.6             # measured: GEMM of wavegroup less that of entwine, for each launch, no link, K to 3696, eval-nvidia-h200/*.json, 2026-11-18
link_gbs = 0                # no link; --link emulates one
link_us = 0                 # no link; --link emulates one
nic_gbs = 0                 # one node
nic_us = 0                  # one node
nccl_gbs = 0                # NCCL refuses two ranks on one GPU
nccl_us = 0                 # NCCL refuses two ranks on one GPU
nccl_sms = 0                # NCCL refuses two ranks on one GPU
start_us = 14.2             # fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
launch_us = 3.74            # fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
publish_us = 1.68           # fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
skew_us = 0.427             # fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
jitter = 0                  # not modelled
device = NVIDIA H200         # as CUDA names it; tunings on it are planned with this profile

# An NVL72-class rack: 72 GPUs of 148 SMs in one NVLink domain.  All of it is scaled from an
# H200 by datasheets, and it assumes a producer that uses the tensor cores as well as the sm90
# one does on Hopper: Entwine has none for this GPU yet.
kind = gpu                  # -
gpus = 72                    # of a node
nodes = 1                   # -
virtual_node = 0            # a GPU for every rank
sms = 148                   # datasheet
arch = 90                   # assumption, see above
sm_registers = 65536        # CUDA programming guide, compute capability 9.0
sm_shared_bytes = 233472    # CUDA programming guide, compute capability 9.0
sm_threads = 2048           # CUDA programming guide, compute capability 9.0
sm_ctas = 32                # CUDA programming guide, compute capability 9.0
block_us_256 = 512:2.98 1024:4.98 2048:9.63 4096:18.6 8192:37.2 # the H200's, scaled by the datasheets: 2500 to 989 TFLOP/s, 148 to 132 SMs
block_us_128 = 512:3.7 1024:6.17 2048:11.9 4096:23.1 8192:46.2 # the H200's, scaled by the datasheets: 2500 to 989 TFLOP/s, 148 to 132 SMs
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
mem_gbs = 7167              # the H200's, scaled by the datasheets: 8 to 4.8 TB/s
reducer_gbs = 128:16 256:32 512:23   # estimate, 2026-11
reducer_us = 1.58           # as on the virtual node: fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
shared_time = 2.05          # as on the virtual node: fitted to eval-nvidia-h200/*.json, W=8 at 46 GB/s and without a link, 2026-11-18
copy_gbs = 0                # not reached: copies cross the link
command_us = 6.9            # estimate: as launch_us, since no other rank's streams are on the GPU, 2026-11
beside_us = 1.6             # as on the virtual node: measured: GEMM of wavegroup less that of entwine, for each launch, no link, K to 3696, eval-nvidia-h200/*.json, 2026-11-18
link_gbs = 680                # estimate: 75 % of the datasheet's 900 GB/s per direction, 2026-11
link_us = 1.2                 # estimate: a remote read beyond a local one, 2026-11
nic_gbs = 0                 # one domain
nic_us = 0                  # one domain
nccl_gbs = 650                # estimate, 2026-11
nccl_us = 20                 # estimate, 2026-11
nccl_sms = 0                 # groups of tiles are reduced by our kernels, as the engine does it
start_us = 4.2              # estimate: fitted on a virtual node on 2026-11-15, when no gate held its calls
launch_us = 6.9             # estimate: fitted on a virtual node on 2026-11-15, when no gate held its calls
publish_us = 1.3            # measured on an H200: a system-scope release, 2026-11
skew_us = 2               # estimate, 2026-11
jitter = 0                  # not modelled

# One H200 cut into a virtual node of 2 to 8 ranks, as `entwine bench --backend cuda` makes it
# where ranks outnumber GPUs.  Without --link ranks read each other through the memory.
# "Fitted to" means those files as they were at commit 8846b0a; most were measured again since.
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
block_us_256 = 512:6.53 1024:11.5 2048:22 4096:43.1 8192:86.5 # fitted to a third of gpu-nvidia-h200-fitted.json and eval-nvidia-h200/*.json, 2026-11-15
block_us_128 = 512:8.6 1024:13.9 2048:26.6 4096:52.6 8192:105   # estimate: 0.75 to 0.82 of the rate of 128x256; one CTA per block measured 0.83 to 0.86 in a slice of an H200, 2026-11
clock = 1                   # block times hold the clock of a power-capped GPU
bf16_time = 0.948           # fitted to a third of gpu-nvidia-h200-fitted.json and eval-nvidia-h200/*.json, 2026-11-15
blas_time = 1.048           # fitted to a third of gpu-nvidia-h200-fitted.json and eval-nvidia-h200/*.json, 2026-11-15
half_time = 0.7             # measured: rows of 64 against 128 in a 16-SM slice of an H200, K = 1024 to 3696, 2026-11-15
split_time = 0.7            # to be fitted
crowd_time = 0.465          # fitted to a third of gpu-nvidia-h200-fitted.json and eval-nvidia-h200/*.json, 2026-11-15
cta_us = 4.7                # fitted to a third of gpu-nvidia-h200-fitted.json and eval-nvidia-h200/*.json, 2026-11-15
miss_ps_per_byte = 9.67     # fitted to a third of gpu-nvidia-h200-fitted.json and eval-nvidia-h200/*.json, 2026-11-15
steal_ps_per_byte = 7.35    # fitted to a third of gpu-nvidia-h200-fitted.json and eval-nvidia-h200/*.json, 2026-11-15
mem_gbs = 3800              # fitted to a third of gpu-nvidia-h200-fitted.json and eval-nvidia-h200/*.json, 2026-11-15
reducer_gbs = 128:17 256:34 512:25   # set by hand from the tails of gpu-nvidia-h200-fitted.json, all of them seen, 2026-11-15
reducer_us = 1              # set by hand from the tails of gpu-nvidia-h200-fitted.json, all of them seen, 2026-11-15
shared_time = 2.32          # fitted to a third of gpu-nvidia-h200-fitted.json and eval-nvidia-h200/*.json, 2026-11-15
copy_gbs = 900              # fitted to a third of gpu-nvidia-h200-fitted.json and eval-nvidia-h200/*.json, 2026-11-15
command_us = 1.57             # fitted to a third of gpu-nvidia-h200-fitted.json and eval-nvidia-h200/*.json, 2026-11-15; chunked enqueues 2.0 per call of the driver, but ranks do not take turns evenly
link_gbs = 0                # no link; --link emulates one
link_us = 0                 # no link; --link emulates one
nic_gbs = 0                 # one node
nic_us = 0                  # one node
nccl_gbs = 0                # NCCL refuses two ranks on one GPU
nccl_us = 0                 # NCCL refuses two ranks on one GPU
start_us = 4.2              # fitted to a third of gpu-nvidia-h200-fitted.json and eval-nvidia-h200/*.json, 2026-11-15
launch_us = 6.9             # fitted to a third of gpu-nvidia-h200-fitted.json and eval-nvidia-h200/*.json, 2026-11-15
publish_us = 1.3            # measured on an H200: a system-scope release, 2026-11
skew_us = 0.47              # fitted to a third of gpu-nvidia-h200-fitted.json and eval-nvidia-h200/*.json, 2026-11-15; 2.6 was measured under MPS
jitter = 0                  # not modelled
device = NVIDIA H200         # as CUDA names it; tunings on it are planned with this profile

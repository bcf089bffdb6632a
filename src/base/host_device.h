/* EW_HD marks functions that host code and CUDA kernels share. */
#ifndef EWX_BASE_HOST_DEVICE_H
#define EWX_BASE_HOST_DEVICE_H

#ifdef __CUDACC__
#define EW_HD __host__ __device__
#else
#define EW_HD
#endif

#endif

# gpu_check: the checks of the CUDA backend on a real GPU, for `make gpu-check`.  Included
# where the backend is built; needs neither cmocka nor the command-line tool.
if(TARGET gpu_check)
  return()
endif()
set(tests ${PROJECT_SOURCE_DIR}/tests)
file(GLOB gpu_check_sources CONFIGURE_DEPENDS ${tests}/gpu/*.c)
add_executable(gpu_check EXCLUDE_FROM_ALL ${gpu_check_sources}
  ${tests}/harness.c ${tests}/trial.c ${tests}/layer_trial.c ${tests}/conformance.c ${tests}/error_bound.c)
target_link_libraries(gpu_check PRIVATE entwine_internal ew_cuda ew_warnings m)
target_include_directories(gpu_check PRIVATE ${tests} ${tests}/gpu)
target_compile_definitions(gpu_check PRIVATE _GNU_SOURCE=)
# What nvcc made of the kernels, beside the figures that the simulator has; no GPU.
add_executable(kernel_needs EXCLUDE_FROM_ALL ${tests}/gpu/nvcc/kernel_needs.c)
target_link_libraries(kernel_needs PRIVATE entwine_internal ew_cuda ew_warnings)
if(TARGET entwine_mpi) # for ranks on several hosts
  # The same without a GPU: its own few functions of the runtime come before the real ones.
  add_executable(carrier_check EXCLUDE_FROM_ALL ${tests}/mpi/carrier_check.c)
  target_link_libraries(carrier_check PRIVATE entwine_internal ew_cuda ew_warnings)
  target_link_options(carrier_check PRIVATE -Wl,--allow-multiple-definition)
  target_compile_definitions(carrier_check PRIVATE _GNU_SOURCE=)
  add_dependencies(carrier_check entwine_mpi)
  add_dependencies(gpu_check entwine_mpi)
  target_compile_definitions(gpu_check PRIVATE EW_MPI_MODULE="$<TARGET_FILE:entwine_mpi>")
endif()
if(EW_MUTANT) # planted where the backend runs on the host
  file(GLOB exchange_sources ${PROJECT_SOURCE_DIR}/src/exchange/*.c)
  set_property(SOURCE ${cuda_sources} ${exchange_sources} APPEND PROPERTY COMPILE_DEFINITIONS EW_MUTANT=${EW_MUTANT})
endif()

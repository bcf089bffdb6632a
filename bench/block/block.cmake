# block_bench: whole blocks of a layer on a GPU, for scripts/bench-gpu.  It starts ranks and
# describes the machine as the tool does, and looks inside the library.
set(object ${CMAKE_BINARY_DIR}/cuda/block_kernels.o)
add_custom_command(OUTPUT ${object}
  COMMAND ${EW_NVCC} -O3 -std=c++17 ${portable_targets} -Xcompiler -fPIC,-fno-exceptions,-fno-threadsafe-statics
          -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include
          -MD -MF ${object}.d -c ${PROJECT_SOURCE_DIR}/bench/block/block_kernels.cu -o ${object}
  DEPENDS ${PROJECT_SOURCE_DIR}/bench/block/block_kernels.cu DEPFILE ${object}.d
  COMMENT "Building CUDA object block_kernels" VERBATIM)
file(GLOB block_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/block/*.c)
set(tool_sources ${cli_sources})
list(FILTER tool_sources EXCLUDE REGEX "/main\\.c$")
add_executable(block_bench EXCLUDE_FROM_ALL ${block_sources} ${tool_sources} ${object})
target_include_directories(block_bench PRIVATE ${PROJECT_SOURCE_DIR}/bench/block ${PROJECT_SOURCE_DIR}/cli)
target_link_libraries(block_bench PRIVATE entwine_internal ew_cuda ew_warnings PkgConfig::JANSSON m)
target_compile_definitions(block_bench PRIVATE _GNU_SOURCE= EW_COMMIT="${EW_COMMIT}"
  EW_MODULES_FROM_BIN="." EW_SUITES_FROM_BIN=".")

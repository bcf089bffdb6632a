# The CUDA backend: host code in C, kernels through nvcc, the runtime linked statically so
# that the library also loads where there is no driver.  Sets cuda_sources and cuda_objects
# (empty when it is not built); the target ew_cuda carries what it needs.
add_library(ew_cuda INTERFACE)
set(cuda_sources)
set(cuda_objects)

find_program(EW_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
string(TOUPPER "${EW_CUDA}" build_cuda)
if(build_cuda STREQUAL AUTO)
  set(build_cuda OFF)
  if(EW_NVCC AND EXISTS /dev/nvidiactl)
    set(build_cuda ON)
  endif()
endif()
if(build_cuda AND NOT EW_NVCC)
  message(FATAL_ERROR "the CUDA backend needs nvcc: install the CUDA toolkit, or set CUDA_HOME")
endif()
if(NOT build_cuda)
  message(STATUS "CUDA backend: no (EW_CUDA=${EW_CUDA})")
  return()
endif()

get_filename_component(cuda_bin ${EW_NVCC} REALPATH)
get_filename_component(cuda_bin ${cuda_bin} DIRECTORY)
get_filename_component(cuda_root ${cuda_bin} DIRECTORY)
find_path(EW_CUDA_INCLUDE cuda_runtime_api.h
  HINTS ${cuda_root}/include ${cuda_root}/targets/x86_64-linux/include
        ${cuda_root}/targets/sbsa-linux/include REQUIRED)
find_library(EW_CUDART cudart_static
  HINTS ${cuda_root}/lib64 ${cuda_root}/lib ${cuda_root}/targets/x86_64-linux/lib
        ${cuda_root}/targets/sbsa-linux/lib REQUIRED)
message(STATUS "CUDA backend: ${EW_NVCC}")

set(kernels ${PROJECT_SOURCE_DIR}/src/backend/cuda/kernels)
# wgmma exists on sm_90a alone; the rest runs from Ampere on, on newer chips through PTX.
set(portable_targets -gencode=arch=compute_80,code=[sm_80,compute_80]
                     -gencode=arch=compute_90,code=sm_90)
set(gemm_sm90_targets -gencode=arch=compute_90a,code=sm_90a)
set(gemm_decode_sm90_targets ${gemm_sm90_targets})
set(gemm_sm90_pieces_targets ${gemm_sm90_targets})
set(gemm_sm90_adding_targets ${gemm_sm90_targets})
set(gemm_sm80_targets -gencode=arch=compute_80,code=[sm_80,compute_80])
# A planted bug in the kernels, for gpu-check --mutants.  Objects in which it is not are those of
# EW_SOUND_BUILD, a build without it.
set(mutant)
if(EW_MUTANT)
  set(mutant -DEW_MUTANT=${EW_MUTANT})
  file(GLOB_RECURSE sources ${PROJECT_SOURCE_DIR}/src/*.h ${kernels}/*.cuh ${kernels}/*.cu)
  ew_find_bug(${EW_MUTANT} sources_with_bug ${sources})
endif()

function(ew_has_bug name result)
  file(READ ${EW_SOUND_BUILD}/cuda/${name}.o.d dependencies)
  set(${result} OFF PARENT_SCOPE)
  foreach(source ${sources_with_bug})
    string(FIND "${dependencies}" "${source}" at)
    if(NOT at EQUAL -1)
      set(${result} ON PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

foreach(name gemm_sm90 gemm_sm90_pieces gemm_sm90_adding gemm_decode_sm90 gemm_sm80 reducer allreducer row_allreducer mover epilogue control inputs)
  if(EW_MUTANT AND EW_SOUND_BUILD)
    ew_has_bug(${name} has_bug)
    if(NOT has_bug)
      list(APPEND cuda_objects ${EW_SOUND_BUILD}/cuda/${name}.o)
      continue()
    endif()
  endif()
  set(targets ${portable_targets})
  if(DEFINED ${name}_targets)
    set(targets ${${name}_targets})
  endif()
  set(base ${CMAKE_BINARY_DIR}/cuda/${name})
  set(object ${base}.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/cuda
    COMMAND sh ${PROJECT_SOURCE_DIR}/cmake/nvcc-keep.sh ${object}
            ${EW_NVCC} -O3 -std=c++17 ${mutant} ${targets} -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-threadsafe-statics
            -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include
            -MD -MF ${object}.d -c ${kernels}/${name}.cu -o ${object}
    BYPRODUCTS ${base}.log ${base}.ptx
    DEPENDS ${kernels}/${name}.cu ${PROJECT_SOURCE_DIR}/cmake/nvcc-keep.sh DEPFILE ${object}.d
    COMMENT "Building CUDA object ${name}" VERBATIM)
  list(APPEND cuda_objects ${object})
endforeach()
file(GLOB cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/backend/cuda/*.c
     ${PROJECT_SOURCE_DIR}/src/backend/cuda/ops/*.c)

target_compile_definitions(ew_cuda INTERFACE EW_HAVE_CUDA=1)
target_include_directories(ew_cuda SYSTEM INTERFACE ${EW_CUDA_INCLUDE})
target_link_libraries(ew_cuda INTERFACE ${EW_CUDART} Threads::Threads rt ${CMAKE_DL_LIBS})

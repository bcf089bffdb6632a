# build_id.c: hashes of what the library is compiled from.  Ranks compare that of everything when they
# meet, since two commits may have one version; those of a backend's kernels are part of tuning keys,
# so that what was found for a kernel goes with it.  Equal wherever and for whatever it is compiled.
if(CMAKE_SCRIPT_MODE_FILE) # cmake -DROOT=... -DOUT=... -P build_id.cmake
  function(hash_files out digits) # and patterns, relative to ROOT
    list(TRANSFORM ARGN PREPEND ${ROOT}/)
    file(GLOB_RECURSE files RELATIVE ${ROOT} ${ARGN})
    list(SORT files)
    set(all "")
    foreach(file ${files})
      file(SHA256 ${ROOT}/${file} hash)
      string(APPEND all "${file} ${hash}\n")
    endforeach()
    string(SHA256 id "${all}")
    string(SUBSTRING ${id} 0 ${digits} id)
    set(${out} ${id} PARENT_SCOPE)
  endfunction()
  hash_files(all 13 src/* include/*) # 52 bits: exact as a double
  # Where a tile lies and in which order they are made is part of a kernel, as is what launches it.
  set(geometry src/plan/grid.h src/plan/layout.c src/plan/release.h src/plan/walk.h)
  hash_files(cpu 8 src/backend/cpu/* ${geometry})
  hash_files(cuda 8 src/backend/cuda/* ${geometry})
  file(WRITE ${OUT} "#include \"base/build_id.h\"\n\nconst uint64_t ewx_build_id = 0x${all};\n"
    "const uint32_t ewx_cpu_kernels_id = 0x${cpu};\nconst uint32_t ewx_cuda_kernels_id = 0x${cuda};\n")
  return()
endif()

file(GLOB_RECURSE hashed_files CONFIGURE_DEPENDS src/* include/*)
add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/build_id.c
  COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -DOUT=${PROJECT_BINARY_DIR}/build_id.c
    -P ${PROJECT_SOURCE_DIR}/cmake/build_id.cmake
  DEPENDS ${hashed_files} ${PROJECT_SOURCE_DIR}/cmake/build_id.cmake VERBATIM)
# One target makes it for all flavours of the library.
add_custom_target(ew_build_id DEPENDS ${PROJECT_BINARY_DIR}/build_id.c)

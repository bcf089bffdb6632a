# build_id.c: a hash of everything that the library is compiled from.  Ranks compare it when they
# meet, since two commits may have one version.  Equal wherever and for whatever it is compiled.
if(CMAKE_SCRIPT_MODE_FILE) # cmake -DROOT=... -DOUT=... -P build_id.cmake
  file(GLOB_RECURSE files RELATIVE ${ROOT} ${ROOT}/src/* ${ROOT}/include/*)
  list(SORT files)
  set(all "")
  foreach(file ${files})
    file(SHA256 ${ROOT}/${file} hash)
    string(APPEND all "${file} ${hash}\n")
  endforeach()
  string(SHA256 id "${all}")
  string(SUBSTRING ${id} 0 13 id) # 52 bits: exact as a double
  file(WRITE ${OUT} "#include \"base/build_id.h\"\n\nconst uint64_t ewx_build_id = 0x${id};\n")
  return()
endif()

file(GLOB_RECURSE hashed_files CONFIGURE_DEPENDS src/* include/*)
add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/build_id.c
  COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -DOUT=${PROJECT_BINARY_DIR}/build_id.c
    -P ${PROJECT_SOURCE_DIR}/cmake/build_id.cmake
  DEPENDS ${hashed_files} ${PROJECT_SOURCE_DIR}/cmake/build_id.cmake VERBATIM)
# One target makes it for all flavours of the library.
add_custom_target(ew_build_id DEPENDS ${PROJECT_BINARY_DIR}/build_id.c)

# Programs of earlier releases with this library, and with one whose structs have grown: every
# struct that has a struct_size has a field more there.

set(grown ${CMAKE_CURRENT_BINARY_DIR}/grown/entwine)
file(GLOB public_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/entwine/*.h)
foreach(header ${public_headers})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
  get_filename_component(name ${header} NAME)
  file(READ ${header} text)
  string(REGEX REPLACE
    "\n} (ew_world_options|ew_problem|ew_config|ew_epilogue|ew_bench_options|ew_tune_options|ew_sim_options|ew_fabric);"
    "\n    uint64_t grown[2];\n} \\1;" text "${text}")
  file(CONFIGURE OUTPUT ${grown}/${name} CONTENT "${text}" @ONLY)
endforeach()
ew_static_library(entwine_grown)
target_include_directories(entwine_grown BEFORE PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/grown)
target_compile_options(entwine_grown PRIVATE -Wno-missing-field-initializers)

foreach(release 0.1.0)
  foreach(library entwine entwine_grown)
    set(program abi-${release}-${library})
    add_executable(${program} abi/program.c)
    target_include_directories(${program} BEFORE PRIVATE abi/${release})
    target_link_libraries(${program} PRIVATE ${library} ew_warnings)
    set_target_properties(${program} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
    add_test(NAME ${program} COMMAND ${run_clean} ASAN_OPTIONS=detect_leaks=0
      ENTWINE_TUNING=off $<TARGET_FILE:${program}>)
    set_tests_properties(${program} PROPERTIES TIMEOUT 60)
  endforeach()
endforeach()

# Chaos from outside (chaos/): jobs whose processes are killed, stopped or frozen at random
# times, judged by how every survivor ends.
function(ew_chaos target)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/chaos/*.c)
  add_executable(${target} ${sources} $<TARGET_OBJECTS:test_support> ${ARGN})
  target_link_libraries(${target} PRIVATE entwine_internal ew_warnings PkgConfig::CMOCKA ${CMAKE_DL_LIBS})
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/chaos)
  target_compile_definitions(${target} PRIVATE _GNU_SOURCE=)
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
endfunction()

ew_chaos(chaos)
add_test(NAME chaos COMMAND ${run_clean} $<TARGET_FILE:chaos> --blows 500 --freezes 20
  --ways run,create,cli --cli $<TARGET_FILE:entwine_cli>)
set_tests_properties(chaos PROPERTIES TIMEOUT 900 RUN_SERIAL ON LABELS once)

if(TARGET entwine_mpi)
  add_test(NAME chaos-mpi COMMAND ${run_clean} ${CMAKE_CURRENT_SOURCE_DIR}/chaos/mpi.sh
    $<TARGET_FILE:chaos> --blows 12 --freezes 3 --mpi-module $<TARGET_FILE:entwine_mpi>)
  set_tests_properties(chaos-mpi PROPERTIES TIMEOUT 600 RUN_SERIAL ON SKIP_RETURN_CODE 77 LABELS "once;mpi")
endif()

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
set_tests_properties(chaos PROPERTIES TIMEOUT 900 COST 60)

if(TARGET entwine_mpi)
  add_test(NAME chaos-mpi COMMAND ${run_clean} ${CMAKE_CURRENT_SOURCE_DIR}/chaos/mpi.sh
    $<TARGET_FILE:chaos> --blows 12 --freezes 3 --mpi-module $<TARGET_FILE:entwine_mpi>)
  set_tests_properties(chaos-mpi PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77 LABELS mpi)
endif()

# Planted bugs, as in CMakeLists.txt, that the tests with probes do not see.
foreach(mutant "21:deaf-meeting:--blows 200" "22:own-fault:--blows 1000" "23:wall-clock:--freezes 60")
  string(REPLACE ":" ";" fields ${mutant})
  list(POP_FRONT fields number label tries)
  separate_arguments(tries)
  ew_planted(${number})
  ew_chaos(mutant_${label} $<TARGET_OBJECTS:planted_${number}>)
  add_test(NAME mutant-${label} COMMAND ${run_clean} ${CMAKE_CURRENT_SOURCE_DIR}/must_fail.sh 300
    $<TARGET_FILE:mutant_${label}> ${tries} --ways run,create --until-bad)
  set_tests_properties(mutant-${label} PROPERTIES TIMEOUT 330 LABELS mutant)
endforeach()

# Worlds under mpirun: mpi_check is one rank, mpi/run.sh starts them.  One machine stands for
# several hosts (ENTWINE_HOSTS); with root, network namespaces do (mpi/netns.sh).
function(ew_mpi_check target)
  add_executable(${target} mpi/mpi_check.c mpi/mpi_cases.c mpi/mpi_misfortunes.c
    $<TARGET_OBJECTS:test_support> ${ARGN})
  target_link_libraries(${target} PRIVATE entwine_internal ew_warnings PkgConfig::CMOCKA)
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_compile_definitions(${target} PRIVATE _GNU_SOURCE=)
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
  add_dependencies(${target} entwine_mpi)
endfunction()

set(mpi_run ${CMAKE_CURRENT_SOURCE_DIR}/mpi/run.sh)
ew_mpi_check(mpi_check)
foreach(group conformance protocol slow frozen faults input namespaces)
  add_test(NAME mpi-${group} COMMAND ${run_clean}
    ${mpi_run} $<TARGET_FILE:mpi_check> $<TARGET_FILE:entwine_mpi> ${group})
  set_tests_properties(mpi-${group} PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77 LABELS mpi COST 20)
endforeach()

# The module of another MPI library, where one is installed: MPICH beside Open MPI.
add_test(NAME mpi-mpich COMMAND ${run_clean} CC=${CMAKE_C_COMPILER}
  ${CMAKE_CURRENT_SOURCE_DIR}/mpi/mpich.sh $<TARGET_FILE:mpi_check> $<TARGET_FILE:entwine>)
set_tests_properties(mpi-mpich PROPERTIES TIMEOUT 900 SKIP_RETURN_CODE 77 LABELS mpi COST 80)

# Planted bugs, as in CMakeLists.txt, and the group that must see them: 10, a tile counts as
# arrived before it has; 11, a message is lost; 12, no sign of life; 25, results that never
# come; 33, rows of another owner; 56, a panel is there with its first rows; 57, as many rows
# cross as the receiver has; 69, a rank without memory has one channel fewer; 97, messages that
# need help stay behind; 98, other hosts do not hear of a fault at a collective.
foreach(mutant 10:smoke 11:smoke 12:slow 25:results 33:results 56:rows 57:rows 69:cramped 97:away 98:tardy)
  string(REPLACE ":" ";" fields ${mutant})
  list(POP_FRONT fields number group)
  ew_planted(${number})
  ew_mpi_check(mpi_mutant_${number} $<TARGET_OBJECTS:planted_${number}>)
  add_test(NAME mutant-mpi-${number} COMMAND ${run_clean} ENTWINE_TIMEOUT_MS=2000
    ${CMAKE_CURRENT_SOURCE_DIR}/must_fail.sh 90
    ${mpi_run} $<TARGET_FILE:mpi_mutant_${number}> $<TARGET_FILE:entwine_mpi> ${group})
  set_tests_properties(mutant-mpi-${number} PROPERTIES TIMEOUT 240 LABELS "mutant;mpi")
endforeach()

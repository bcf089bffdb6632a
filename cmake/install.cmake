# make install: library, headers, tool, module, suites, docs, and what lets other builds
# find them (pkg-config and find_package).  Everything is relocatable.
include(CMakePackageConfigHelpers)

install(TARGETS entwine entwine_static EXPORT entwineTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(EW_CLI)
  install(TARGETS entwine_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
if(TARGET entwine_mpi)
  install(TARGETS entwine_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/entwine)
endif()
install(DIRECTORY include/entwine DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(DIRECTORY bench/suites DESTINATION ${CMAKE_INSTALL_DATADIR}/entwine OPTIONAL)
install(DIRECTORY bench/profiles DESTINATION ${CMAKE_INSTALL_DATADIR}/entwine OPTIONAL
        FILES_MATCHING PATTERN "*.profile")

# Documents lie as in the repository, with all that they link to, so that links lead there.
install(FILES README.md CHANGELOG.md CONTRIBUTING.md CITATION.cff LICENSE
        DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL PATTERN __pycache__ EXCLUDE)
install(FILES bench/results/cpu-neoverse-v1-2c.json
              bench/results/cpu-intel-r-xeon-r-processor-2c.json
              bench/results/cpu-intel-r-xeon-r-processor-16c.json
              bench/results/cpu-intel-r-xeon-r-processor-16c-fp16.json bench/results/gpu-nvidia-h200.json
              bench/results/client-neoverse-v1-2c.json
              bench/results/client-intel-r-xeon-r-processor-2c.json
        DESTINATION ${CMAKE_INSTALL_DOCDIR}/bench/results OPTIONAL)
file(RELATIVE_PATH include_from_doc /${CMAKE_INSTALL_DOCDIR} /${CMAKE_INSTALL_INCLUDEDIR})
file(CREATE_LINK ${include_from_doc} ${CMAKE_BINARY_DIR}/include SYMBOLIC)
install(FILES ${CMAKE_BINARY_DIR}/include DESTINATION ${CMAKE_INSTALL_DOCDIR})

list(JOIN static_needs " " LIBS_PRIVATE)
string(REGEX REPLACE "[^/]+" ".." PREFIX_FROM_PC ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
configure_file(cmake/entwine.pc.in entwine.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/entwine.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/entwine)
install(EXPORT entwineTargets NAMESPACE entwine:: DESTINATION ${package_dir})
configure_package_config_file(cmake/entwineConfig.cmake.in entwineConfig.cmake
  INSTALL_DESTINATION ${package_dir})
# Before 1.0 a new minor version may change the interface.
write_basic_package_version_file(entwineConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/entwineConfig.cmake ${CMAKE_BINARY_DIR}/entwineConfigVersion.cmake
  DESTINATION ${package_dir})

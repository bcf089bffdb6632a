# make install: library, headers, tool, module, suites, docs, and what lets other builds
# find them (pkg-config and find_package).  Everything is relocatable.
include(CMakePackageConfigHelpers)

install(TARGETS entwine EXPORT entwineTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
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
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)
install(FILES README.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL PATTERN __pycache__ EXCLUDE)

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

# EW_COMMIT: the short hash that results are stamped with, or "unknown" outside a clone unless
# given; source distributions have it in the file COMMIT.  Git appends to logs/HEAD whenever HEAD moves, which makes CMake look again.
if(DEFINED CACHE{EW_COMMIT})
  return()
endif()
set(EW_COMMIT unknown)
find_program(GIT git)
if(EXISTS ${PROJECT_SOURCE_DIR}/COMMIT)
  file(STRINGS ${PROJECT_SOURCE_DIR}/COMMIT EW_COMMIT LIMIT_COUNT 1)
elseif(GIT AND EXISTS ${PROJECT_SOURCE_DIR}/.git)
  execute_process(COMMAND ${GIT} describe --always --dirty --abbrev=12 --exclude=*
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} ERROR_QUIET
    OUTPUT_VARIABLE EW_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT EW_COMMIT) # no commit yet
    set(EW_COMMIT unknown)
  endif()
  if(EXISTS ${PROJECT_SOURCE_DIR}/.git/logs/HEAD)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
      ${PROJECT_SOURCE_DIR}/.git/logs/HEAD)
  endif()
endif()

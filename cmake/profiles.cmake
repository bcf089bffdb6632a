# bench/profiles/*.profile as C, so that the library knows them by name wherever it lies.
file(GLOB profile_files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/profiles/*.profile)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${profile_files})
set(profile_lines "")
set(profile_entries "")
set(profile_names "")
foreach(profile_file ${profile_files})
  get_filename_component(profile_name ${profile_file} NAME_WE)
  string(MAKE_C_IDENTIFIER ${profile_name} profile_symbol)
  file(READ ${profile_file} text)
  string(REGEX REPLACE "\n+$" "" text "${text}")
  string(REPLACE "\\" "\\\\" text "${text}")
  string(REPLACE "\"" "\\\"" text "${text}")
  string(REPLACE "\n" "\",\n    \"" text "${text}")
  string(APPEND profile_lines
    "static const char *const profile_${profile_symbol}[] = {\n    \"${text}\",\n    NULL};\n\n")
  string(APPEND profile_entries "    {\"${profile_name}\", profile_${profile_symbol}},\n")
  string(APPEND profile_names "    \"${profile_name}\",\n")
endforeach()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/profiles.c @ONLY CONTENT
"/* Made from bench/profiles by cmake/profiles.cmake. */
#include <stddef.h>

#include \"backend/sim/profile.h\"

@profile_lines@const ewx_sim_builtin ewx_sim_builtins[] = {
@profile_entries@    {NULL, NULL}};

const char *const ewx_sim_names[] = {
@profile_names@    NULL};
")

# Compiler flags: warnings as a target to link, sanitizers and path hygiene for everything.

add_library(ew_warnings INTERFACE)
target_compile_options(ew_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes
  $<$<BOOL:${EW_WERROR}>:-Werror>)

# Asserts and debug information name files as the repository does, not as this machine does.
add_compile_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)

if(EW_SANITIZE)
  add_compile_options(-fsanitize=${EW_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${EW_SANITIZE})
else()
  add_link_options(-Wl,--no-undefined) # sanitized objects leave theirs to the runtime
endif()

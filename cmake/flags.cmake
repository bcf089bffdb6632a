# Compiler flags: warnings as a target to link; arithmetic, sanitizers and path hygiene for everything.

add_library(ew_warnings INTERFACE)
target_compile_options(ew_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes
  $<$<BOOL:${EW_WERROR}>:-Werror>)

# Asserts and debug information name files as the repository does, not as this machine does.
add_compile_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)

# The bits of a result are promised, whatever CFLAGS holds: nothing is reordered, and a*b+c is fused
# only where the code says so.  Clang fuses by default, and again after -fno-fast-math.  Linked with
# -ffast-math a library would also flush subnormal numbers in the program that loads it.
add_compile_options(-fno-fast-math -fno-unsafe-math-optimizations -ffp-contract=off)
add_link_options(-fno-fast-math -fno-unsafe-math-optimizations)

if(EW_SANITIZE)
  add_compile_options(-fsanitize=${EW_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${EW_SANITIZE})
else()
  add_link_options(-Wl,--no-undefined) # sanitized objects leave theirs to the runtime
endif()

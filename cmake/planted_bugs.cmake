# Planted bugs, which show that tests can fail, are in the code as EW_MUTANT == number, or != number.

# ew_find_bug(number result source...): those of the sources that have it.
function(ew_find_bug number result)
  set(found "")
  foreach(source ${ARGN})
    file(STRINGS ${source} bug REGEX "EW_MUTANT [!=]= ${number}([^0-9]|$)")
    if(bug)
      list(APPEND found ${source})
    endif()
  endforeach()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

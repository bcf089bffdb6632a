# The man page and what shells complete, printed by the tool itself from its tables.  Left out
# where the tool cannot run at build time: sanitized, or built for another machine.
if(EW_SANITIZE OR CMAKE_CROSSCOMPILING)
  return()
endif()

set(pages_dir ${CMAKE_BINARY_DIR}/pages)
set(page_files)
# ew_page(FILE FOLDER WORD...): FILE is what `entwine help WORD...` prints.
function(ew_page file folder)
  add_custom_command(OUTPUT ${pages_dir}/${file}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${pages_dir}
    COMMAND entwine_cli help ${ARGN} > ${pages_dir}/${file}
    DEPENDS entwine_cli VERBATIM)
  install(FILES ${pages_dir}/${file} DESTINATION ${folder})
  set(page_files ${page_files} ${pages_dir}/${file} PARENT_SCOPE)
endfunction()

ew_page(entwine.1 ${CMAKE_INSTALL_MANDIR}/man1 --man)
ew_page(entwine ${CMAKE_INSTALL_DATADIR}/bash-completion/completions --completion bash)
add_custom_target(pages ALL DEPENDS ${page_files})

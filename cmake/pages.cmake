# The man page and what bash completes, made from what the tool prints.  Left out
# where the tool cannot run at build time: sanitized, or built for another machine.
if(EW_SANITIZE OR CMAKE_CROSSCOMPILING)
  return()
endif()

set(pages_dir ${PROJECT_BINARY_DIR}/pages)
set(page_files)
# ew_page(FILE FOLDER COMMAND...): FILE is what the command prints.
function(ew_page file folder)
  add_custom_command(OUTPUT ${pages_dir}/${file}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${pages_dir}
    COMMAND ${ARGN} > ${pages_dir}/${file}
    DEPENDS entwine_cli ${ARGN} VERBATIM)
  install(FILES ${pages_dir}/${file} DESTINATION ${folder})
  set(page_files ${page_files} ${pages_dir}/${file} PARENT_SCOPE)
endfunction()

ew_page(entwine.1 ${CMAKE_INSTALL_MANDIR}/man1
  ${CMAKE_CURRENT_LIST_DIR}/man_page.sh $<TARGET_FILE:entwine_cli>)
ew_page(entwine ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
  ${CMAKE_CURRENT_LIST_DIR}/completion.sh $<TARGET_FILE:entwine_cli>)
add_custom_target(pages ALL DEPENDS ${page_files})

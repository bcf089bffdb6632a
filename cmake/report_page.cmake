# cli/report/page.html with its script inside as C, so that the tool carries its page wherever it
# lies.  A Content-Security-Policy names script and stylesheet by hash: nothing else runs.
set(page_html ${PROJECT_SOURCE_DIR}/cli/report/page.html)
# The script's parts, in this order; the last one draws the page.
set(page_scripts page_values.js page_charts.js page_figures.js page.js)
list(TRANSFORM page_scripts PREPEND ${PROJECT_SOURCE_DIR}/cli/report/)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page_html} ${page_scripts})

# The hash of a text as a policy writes it: base64, of which three hexadecimal digits make two.
function(ew_policy_hash text result)
  set(letters "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  string(SHA256 digest "${text}")
  set(base64 "")
  foreach(at RANGE 0 60 3)
    string(SUBSTRING ${digest} ${at} 3 digits)
    math(EXPR high "0x${digits} >> 6")
    math(EXPR low "0x${digits} & 63")
    string(SUBSTRING ${letters} ${high} 1 high)
    string(SUBSTRING ${letters} ${low} 1 low)
    string(APPEND base64 ${high}${low})
  endforeach()
  string(SUBSTRING ${digest} 63 1 digit)
  math(EXPR last "0x${digit} << 2")
  string(SUBSTRING ${letters} ${last} 1 last)
  set(${result} "sha256-${base64}${last}=" PARENT_SCOPE)
endfunction()

file(READ ${page_html} page)
set(script "")
foreach(file ${page_scripts})
  file(READ ${file} part)
  string(APPEND script "\n${part}")
endforeach()
string(STRIP "${script}" script)
# What stands between the tags, line ends included.
string(FIND "${page}" "<style>" style_begin)
string(FIND "${page}" "</style>" style_end)
math(EXPR style_begin "${style_begin} + 7")
math(EXPR style_length "${style_end} - ${style_begin}")
string(SUBSTRING "${page}" ${style_begin} ${style_length} style)
ew_policy_hash("${style}" style_hash)
ew_policy_hash("\n${script}\n" script_hash)
string(REPLACE "@STYLE_HASH@" "${style_hash}" page "${page}")
string(REPLACE "@SCRIPT_HASH@" "${script_hash}" page "${page}")
string(REPLACE "@SCRIPT@" "${script}" page "${page}")
string(STRIP "${page}" page)
string(REPLACE "\\" "\\\\" page "${page}")
string(REPLACE "\"" "\\\"" page "${page}")
string(REPLACE "\n" "\",\n    \"" page "${page}")
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/report_page.c @ONLY CONTENT
"/* Made from cli/report/page.html and page*.js by cmake/report_page.cmake. */
#include <stddef.h>

extern const char *const cli_report_page[];
const char *const cli_report_page[] = {
    \"@page@\",
    NULL};
")

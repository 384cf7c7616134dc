# Run at build time: writes OUT with the version, git revision (with dirty flag), compiler and flags,
# and leaves the file alone when nothing changed, so that only version.cpp is ever rebuilt for it.
# What the sources differ in from the revision goes to DIFF, for run records to archive.
cmake_policy(VERSION 3.25)
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --match=none
  OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT revision)
  set(revision "unknown")
endif()
set(sources CMakeLists.txt cmake src)  # what the program is made from
execute_process(COMMAND git -C ${SOURCE} diff HEAD --binary -- ${sources}
  OUTPUT_FILE ${DIFF}.tracked ERROR_QUIET)
file(READ ${DIFF}.tracked diff)
execute_process(COMMAND git -C ${SOURCE} ls-files --others --exclude-standard -- ${sources}
  OUTPUT_VARIABLE others OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
string(REPLACE "\n" ";" others "${others}")
foreach(file ${others})
  execute_process(COMMAND git -C ${SOURCE} diff --no-index --binary -- /dev/null ${file}
    OUTPUT_FILE ${DIFF}.other ERROR_QUIET)
  file(READ ${DIFF}.other more)
  string(APPEND diff "${more}")
endforeach()
file(REMOVE ${DIFF}.tracked ${DIFF}.other)
set(hash "")
if(NOT "${diff}" STREQUAL "")
  file(WRITE ${DIFF} "${diff}")
  file(SHA256 ${DIFF} hash)
endif()
set(text "")
foreach(define "VERSION;${VERSION}" "REVISION;${revision}" "COMPILER;${COMPILER}" "FLAGS;${FLAGS}"
    "DIFF_SHA256;${hash}" "DIFF_PATH;${DIFF}")
  list(GET define 0 name)
  list(GET define 1 value)
  string(APPEND text "#define PENSTOCK_${name} \"${value}\"\n")
endforeach()
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT "${old}" STREQUAL "${text}")
  file(WRITE ${OUT} "${text}")
endif()

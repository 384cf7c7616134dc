# Run at build time: writes OUT with the version, git revision (with dirty flag) and compiler, and
# leaves the file alone when nothing changed, so that only version.cpp is ever rebuilt for it.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --match=none
  OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT revision)
  set(revision "unknown")
endif()
set(text "#define PENSTOCK_VERSION \"${VERSION}\"\n#define PENSTOCK_REVISION \"${revision}\"\n#define PENSTOCK_COMPILER \"${COMPILER}\"\n")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT "${old}" STREQUAL "${text}")
  file(WRITE ${OUT} "${text}")
endif()

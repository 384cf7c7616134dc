# One function per kind of target, so that the rooms' own CMake files stay one line long.

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

add_library(penstock_flags INTERFACE)
target_compile_options(penstock_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align -Wundef
  -Wunused -Wold-style-cast -Werror -fno-strict-aliasing
  # Same bits everywhere: the compiler may not fuse a multiply and an add on its own; kernels say fma.
  -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # GCC 12 warns of overlaps inside its own std::string (GCC bug 105651).
  target_compile_options(penstock_flags INTERFACE -Wno-restrict)
endif()
if(PENSTOCK_SANITIZE)
  # GCC takes two to three times as long over instrumented code at -O2 -g. Line numbers stay, and
  # penstock_test() optimises nothing at all.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1 -DNDEBUG -D_GLIBCXX_ASSERTIONS")
  target_compile_options(penstock_flags INTERFACE
    -fsanitize=${PENSTOCK_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(penstock_flags INTERFACE -fsanitize=${PENSTOCK_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # The checks that a sanitizer inserts mislead this analysis; the release build has it.
    target_compile_options(penstock_flags INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()
if(PENSTOCK_FUZZ)
  target_compile_options(penstock_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# penstock_room(NAME [KERNELS] [DEPS room...] [LIBS external...] [SOURCES file...])
# A library `penstock_NAME` from src/NAME. Headers are included as "NAME/file.h". Each room's
# headers are exposed through a private include root that holds a link to that room's folder alone,
# so a room can include only itself and what it names in DEPS (and what those pass on).
# KERNELS: optimised with sanitizers too, because all tests of models wait for it.
function(penstock_room name)
  cmake_parse_arguments(ARG "KERNELS" "" "DEPS;LIBS;SOURCES" ${ARGN})
  # One place for all build folders, so that ccache recognises a file that another one has compiled.
  set(root ${PROJECT_SOURCE_DIR}/build/rooms/${name})
  file(MAKE_DIRECTORY ${root})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${root}/${name} SYMBOLIC)
  if(NOT ARG_SOURCES)
    file(GLOB ARG_SOURCES CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} *.cpp)
  endif()
  if(ARG_SOURCES)
    add_library(penstock_${name} STATIC ${ARG_SOURCES})
    set(scope PUBLIC)
    target_link_libraries(penstock_${name} PRIVATE penstock_flags)
    if(ARG_KERNELS AND PENSTOCK_SANITIZE)
      target_compile_options(penstock_${name} PRIVATE -O2)
    endif()
  else()
    add_library(penstock_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(penstock_${name} ${scope} ${root})
  foreach(dep ${ARG_DEPS})
    target_link_libraries(penstock_${name} ${scope} penstock_${dep})
  endforeach()
  target_link_libraries(penstock_${name} ${scope} ${ARG_LIBS} Threads::Threads)
endfunction()

# penstock_test(ROOM [DEPS room...] [LIBS ...] [TIMEOUT s]): every *_test.cpp of the current folder
# as one GoogleTest program, each TEST a ctest case.
function(penstock_test room)
  cmake_parse_arguments(ARG "" "TIMEOUT" "DEPS;LIBS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  file(GLOB sources CONFIGURE_DEPENDS *_test.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(${room}_test ${sources})
  target_link_libraries(${room}_test PRIVATE penstock_flags penstock_${room} GTest::gtest GTest::gtest_main)
  foreach(dep ${ARG_DEPS})
    target_link_libraries(${room}_test PRIVATE penstock_${dep})
  endforeach()
  target_link_libraries(${room}_test PRIVATE ${ARG_LIBS})
  target_include_directories(${room}_test PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  # What is to be checked is optimised; the tests themselves take longer to optimise than to run.
  if(PENSTOCK_SANITIZE)
    target_compile_options(${room}_test PRIVATE -O0)
  else()
    target_compile_options(${room}_test PRIVATE -O1)
  endif()
  # PENSTOCK_EMULATED: programs run slowly, so tests repeat less; they skip nothing.
  target_compile_definitions(${room}_test PRIVATE
    PENSTOCK_SOURCE_DIR="${PROJECT_SOURCE_DIR}" PENSTOCK_BINARY_DIR="${CMAKE_BINARY_DIR}"
    $<$<BOOL:${CMAKE_CROSSCOMPILING}>:PENSTOCK_EMULATED>)
  # Discovery at test time: building needs no run of a cross-compiled or sanitized program.
  gtest_discover_tests(${room}_test DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120 TEST_PREFIX "${room}."
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS ${room})
endfunction()

# SPDX-License-Identifier: Apache-2.0
# Finds Oniguruma, which comes without a CMake package everywhere: target Oniguruma::Oniguruma.
find_path(Oniguruma_INCLUDE_DIR oniguruma.h)
find_library(Oniguruma_LIBRARY onig)
if(Oniguruma_INCLUDE_DIR)
  set(Oniguruma_VERSION)
  foreach(part MAJOR MINOR TEENY)
    file(STRINGS ${Oniguruma_INCLUDE_DIR}/oniguruma.h line REGEX "^#define ONIGURUMA_VERSION_${part} ")
    string(REGEX MATCH "[0-9]+$" number "${line}")
    list(APPEND Oniguruma_VERSION ${number})
  endforeach()
  list(JOIN Oniguruma_VERSION . Oniguruma_VERSION)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Oniguruma REQUIRED_VARS Oniguruma_LIBRARY Oniguruma_INCLUDE_DIR
  VERSION_VAR Oniguruma_VERSION)
if(Oniguruma_FOUND AND NOT TARGET Oniguruma::Oniguruma)
  add_library(Oniguruma::Oniguruma UNKNOWN IMPORTED)
  set_target_properties(Oniguruma::Oniguruma PROPERTIES
    IMPORTED_LOCATION ${Oniguruma_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${Oniguruma_INCLUDE_DIR})
endif()
mark_as_advanced(Oniguruma_INCLUDE_DIR Oniguruma_LIBRARY)

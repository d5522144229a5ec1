# find_package(relaxc) with this package's folder in CMAKE_PREFIX_PATH gives the target relaxc::runtime.
get_filename_component(_relaxc_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET relaxc::runtime)
  add_library(relaxc::runtime SHARED IMPORTED)
  set_target_properties(relaxc::runtime PROPERTIES
    IMPORTED_LOCATION "${_relaxc_root}/lib/librelaxc_runtime.so"
    IMPORTED_SONAME "librelaxc_runtime.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_relaxc_root}/include"
    INTERFACE_COMPILE_FEATURES cxx_std_17)
endif()
unset(_relaxc_root)

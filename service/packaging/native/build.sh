#!/bin/sh
# Builds lib/librelaxc_runtime.so and bin/relaxc-run of this package from src/ and example/: ./build.sh [COMPILER [OPTIONS…]]
# Equal sources and compilers give equal bytes. Any C++17 compiler of the artifact's machine does.
set -eu
cd "$(dirname "$0")"
[ $# -gt 0 ] || set -- "${CXX:-g++}"
objects=$(mktemp -d ./.build.XXXXXX)
trap 'rm -rf "$objects"' EXIT
jobs=""
for source in src/*.cc; do
    "$@" -std=c++17 -O2 -pthread -fPIC -fvisibility=hidden -Wall -Wextra -DRELAXC_BUILDING -Iinclude -Isrc -Ithird_party \
        -c "$source" -o "$objects/$(basename "$source").o" &
    jobs="$jobs $!"
    # Two at a time: the headers of TVM take half a gigabyte.
    case $(echo $jobs | wc -w) in 2) for job in $jobs; do wait "$job"; done; jobs="" ;; esac
done
for job in $jobs; do wait "$job"; done
mkdir -p bin
reproducible="-Wl,--build-id=none -Wl,-z,noexecstack"
"$@" -shared -pthread -o lib/librelaxc_runtime.so "$objects"/*.o -Llib -Wl,--no-as-needed -ltvm_runtime -ltvm_ffi -Wl,--as-needed -ldl \
    -Wl,-soname,librelaxc_runtime.so -Wl,--version-script=src/exports.map -Wl,-rpath,'$ORIGIN' -Wl,-z,nodelete -Wl,-s $reproducible
"$@" -std=c++17 -O2 -Wall -Wextra -Iinclude -o bin/relaxc-run example/*.cpp -Llib -lrelaxc_runtime -Wl,-rpath,'$ORIGIN/../lib' \
    -Wl,-rpath-link,lib -Wl,-s $reproducible

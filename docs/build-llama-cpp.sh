#!/bin/sh
# Build the programs of llama.cpp that `holdfast bench cpu --peer llama.cpp` measures against.
#
#     docs/build-llama-cpp.sh CHECKOUT [BUILD_FOLDER]
#     holdfast bench cpu MODEL.gguf --peer llama.cpp --peer-dir BUILD_FOLDER/bin
#
# CHECKOUT is a copy of llama.cpp's source. Needed: cmake, a C and a C++ compiler. The build uses all
# instructions of this CPU (GGML_NATIVE) and nothing from the network.
set -eu
[ $# -ge 1 ] && [ -f "$1/CMakeLists.txt" ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
source=$1
build=${2:-$source/build}
cmake -S "$source" -B "$build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF
cmake --build "$build" --config Release -j "$(getconf _NPROCESSORS_ONLN)" \
    --target llama-batched-bench llama-completion llama-quantize
echo "built: $build/bin"

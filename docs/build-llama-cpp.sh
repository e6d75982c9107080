#!/bin/sh
# Build the programs of llama.cpp that Holdfast is measured beside.
#
#     docs/build-llama-cpp.sh CHECKOUT [BUILD_FOLDER]
#     python benchmarks/cpu_peers.py MODEL.gguf --peer llama.cpp --peer-dir BUILD_FOLDER/bin
#
# CHECKOUT is llama.cpp's source: a git clone, or an unpacked archive. Needed: cmake, a C and a C++
# compiler. The build uses all instructions of this CPU (GGML_NATIVE) and nothing from the network.
# A full build takes minutes; a build folder that exists is continued.
set -eu
usage() {
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
[ $# -ge 1 ] && [ $# -le 2 ] || usage
[ -f "$1/CMakeLists.txt" ] && [ -d "$1/ggml" ] || { echo "$1 is no checkout of llama.cpp" >&2; usage; }
command -v cmake >/dev/null || { echo "cmake is not installed" >&2; exit 1; }
source=$1
build=${2:-$source/build}
cmake -S "$source" -B "$build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF
cmake --build "$build" --config Release -j "$(getconf _NPROCESSORS_ONLN)" \
    --target llama-batched-bench llama-completion llama-perplexity llama-quantize
echo "built: $build/bin"

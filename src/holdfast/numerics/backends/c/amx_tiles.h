/* The tile registers of AMX: whether this process may use them, and their shapes. */
#ifndef HOLDFAST_AMX_TILES_H
#define HOLDFAST_AMX_TILES_H

#include "simd.h"

#if defined(__AMX_TILE__) && !defined(HOLDFAST_PLAIN) && defined(__linux__)
#define HAS_AMX_TILES 1
#include <sys/syscall.h>
#include <unistd.h>

/* The operating system enables the tile registers on request, once per process. */
static int amx_ready(void) {
    static int state = 0; /* 0 unknown, 1 enabled, -1 not available; every thread writes the same value */
    int seen = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    if (seen == 0) {
#ifdef SYS_arch_prctl
        const long ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18;
        seen = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0 ? 1 : -1;
#else
        seen = 1; /* another CPU, which emulates the tiles */
#endif
        __atomic_store_n(&state, seen, __ATOMIC_RELEASE);
    }
    return seen == 1;
}

/* rows and row_bytes: the shapes of the eight tiles. */
static void amx_configure(const uint8_t rows[8], const uint8_t row_bytes[8]) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config __attribute__((aligned(64)));
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int t = 0; t < 8; t++) config.row_bytes[t] = row_bytes[t], config.rows[t] = rows[t];
    __asm__ volatile("" ::"r"(&config) : "memory"); /* the intrinsic declares a read of 8 of these 64 bytes only */
    _tile_loadconfig(&config);
}

/* What was written before is in memory. To be called before tiles are loaded: gcc's intrinsic does not declare
 * that it reads memory, so a store before it may be moved after it. */
INLINE void amx_before_loads(void) { __asm__ volatile("" ::: "memory"); }
#else
#define HAS_AMX_TILES 0
#endif
#endif

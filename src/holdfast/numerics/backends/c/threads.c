/* Which threads of the system compute. */
#include "kernels.h"
#include "simd.h"

#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#define THREAD_ID (int64_t)syscall(SYS_gettid)
#else
#define THREAD_ID 0
#endif

void run_thread_ids(int64_t *ids, int64_t threads) {
#pragma omp parallel num_threads((int)threads)
    ids[omp_get_thread_num()] = THREAD_ID;
}

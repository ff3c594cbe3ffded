/*
 * A wall clock that is wrong, for one process: preload this library, and CLOCK_REALTIME, gettimeofday and time are off by as
 * many microseconds as the file CLOCKSKEW_FILE says, a 64-bit number in the byte order of the machine. The file is mapped:
 * whoever writes another number into it makes the clock of the running process jump. Clocks that measure stay as they are.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t *off;

__attribute__((constructor)) static void map_file(void) {
    const char *path = getenv("CLOCKSKEW_FILE");
    if (!path)
        return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *mapped = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *off, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        abort(); /* a test that believes in a wrong clock must not run with a right one */
    close(fd);
    off = mapped;
}

/* Microseconds since 1970 as this process is told them, and what is below. */
static int64_t told(struct timespec *now) {
    syscall(SYS_clock_gettime, CLOCK_REALTIME, now);
    int64_t micros = (int64_t)now->tv_sec * 1000000 + now->tv_nsec / 1000;
    return off ? micros + __atomic_load_n(off, __ATOMIC_RELAXED) : micros;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)
        return (int)syscall(SYS_clock_gettime, id, now);
    int64_t micros = told(now);
    now->tv_nsec = micros % 1000000 * 1000 + now->tv_nsec % 1000;
    now->tv_sec = micros / 1000000;
    return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
    (void)zone;
    struct timespec precise;
    int64_t micros = told(&precise);
    now->tv_sec = micros / 1000000;
    now->tv_usec = micros % 1000000;
    return 0;
}

time_t time(time_t *kept) {
    struct timespec precise;
    time_t seconds = told(&precise) / 1000000;
    if (kept)
        *kept = seconds;
    return seconds;
}

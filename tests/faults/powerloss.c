/*
 * A power cut for one process: preload this library, and at the trigger every file below POWERLOSS_DIR goes back to what
 * its last fsync made durable; then the process dies. kill -9 alone cannot show a missing fsync, because the page cache
 * outlives the process.
 *
 * Environment
 *   POWERLOSS_DIR      the data directory, absolute; nothing is done without it
 *   POWERLOSS_AT_SYNC  trigger at this fsync (counted from 1 over all files and directories) instead of by signal
 *   POWERLOSS_MOMENT   "before": what that fsync should make durable is lost; "after" (default): it is durable, but the
 *                      caller never hears of it
 *   POWERLOSS_SEED     0 (default): nothing unsynced survives; else each unsynced page survives or not by this seed, as
 *                      a disk that wrote some of them back on its own
 *   POWERLOSS_REPORT   a file outside the directory that gets one line about the syncs and what was lost
 * SIGUSR2 triggers at once.
 *
 * What survives
 *   content, size       as of the file's last fsync/fdatasync; pages beyond or changed since are lost (see the seed)
 *   a new file          only once it or its directory was fsynced; otherwise it vanishes
 *   rename, unlink      at once: the harshest order for a store that renames or deletes before the data is durable.
 *                       That a rename is undone is not played, because some libraries rename past libc.
 * Writes through mmap, io_uring and raw system calls are not seen; the store uses none of them for data.
 *
 * How: before the first change of a page since the last fsync its old content is kept (the undo image); fsync drops the
 * images; the trigger writes them back. After the trigger no tracked call returns, so no answer leaves the process whose
 * data the trigger takes away: an fsync either is counted before it or never returns.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define FDS 65536
#define BUCKETS 1024

struct image {
    off_t page;
    char *bytes; /* NULL: the page was all zero */
    struct image *next;
};

struct file {
    dev_t dev;
    ino_t ino;
    int fd;            /* our own, readable and writable */
    off_t durable_size;
    int created;       /* neither it nor its directory was fsynced since its creation */
    char path[PATH_MAX];
    struct image *images[BUCKETS];
    struct file *next;
};

enum { UNKNOWN = 0, IGNORED, REGULAR, DIRECTORY };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct file *files;
static unsigned char kind_of[FDS];
static char root[PATH_MAX];
static size_t root_length;
static unsigned long syncs, sync_to_die_at, longest_sync_ms;
static int die_before;
static uint64_t seed;
static int wake[2] = {-1, -1};
static volatile int dead;

static int (*real_open)(const char *, int, ...);
static int (*real_openat)(int, const char *, int, ...);
static int (*real_close)(int);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static int (*real_ftruncate)(int, off_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);

static void die(void);

static void *watch(void *unused) {
    char byte;
    (void)unused;
    while (read(wake[0], &byte, 1) != 1) {
    }
    pthread_mutex_lock(&lock);
    die();
    return NULL;
}

static void on_signal(int number) {
    int kept = errno;
    (void)number;
    if (real_write(wake[1], "x", 1) != 1) {
        _exit(99);
    }
    errno = kept;
}

static void resolve(void) {
    real_open = dlsym(RTLD_NEXT, "open64");
    real_openat = dlsym(RTLD_NEXT, "openat64");
    real_close = dlsym(RTLD_NEXT, "close");
    real_write = dlsym(RTLD_NEXT, "write");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_writev = dlsym(RTLD_NEXT, "writev");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate64");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
}

static const char *setting(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}

__attribute__((constructor)) static void begin(void) {
    pthread_t thread;
    struct sigaction action;
    resolve();
    snprintf(root, sizeof root, "%s", setting("POWERLOSS_DIR"));
    root_length = strlen(root);
    if (root_length == 0) {
        return;
    }
    sync_to_die_at = strtoul(setting("POWERLOSS_AT_SYNC"), NULL, 10);
    die_before = strcmp(setting("POWERLOSS_MOMENT"), "before") == 0;
    seed = strtoull(setting("POWERLOSS_SEED"), NULL, 10);
    if (pipe2(wake, O_CLOEXEC) != 0 || pthread_create(&thread, NULL, watch, NULL) != 0) {
        _exit(99);
    }
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR2, &action, NULL);
}

/* After the trigger nothing returns to the program. */
static void enter(void) {
    pthread_mutex_lock(&lock);
    while (dead) {
        pause();
    }
}

static void leave(void) { pthread_mutex_unlock(&lock); }

/* ---- files ---- */

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) {
        return 0;
    }
    path[length] = 0;
    return strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || path[root_length] == 0);
}

static int kind(int fd) {
    char path[PATH_MAX];
    struct stat about;
    if (root_length == 0 || fd < 0 || fd >= FDS) {
        return IGNORED;
    }
    if (kind_of[fd] == UNKNOWN) {
        int found = IGNORED;
        if (fstat(fd, &about) == 0 && path_of(fd, path)) {
            found = S_ISREG(about.st_mode) ? REGULAR : S_ISDIR(about.st_mode) ? DIRECTORY : IGNORED;
        }
        kind_of[fd] = (unsigned char)found;
    }
    return kind_of[fd];
}

static struct file *find(int fd) {
    struct stat about;
    if (fstat(fd, &about) != 0) {
        return NULL;
    }
    for (struct file *file = files; file; file = file->next) {
        if (file->dev == about.st_dev && file->ino == about.st_ino) {
            return file;
        }
    }
    return NULL;
}

/* The record of a file that is about to change; its present content counts as durable if it has none yet. */
static struct file *track(int fd) {
    struct file *file = find(fd);
    struct stat about;
    char link[64];
    if (file || fstat(fd, &about) != 0) {
        return file;
    }
    file = calloc(1, sizeof *file);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    file->fd = real_open(link, O_RDWR | O_CLOEXEC);
    if (file->fd < 0) {
        free(file);
        return NULL;
    }
    kind_of[file->fd] = IGNORED;
    file->dev = about.st_dev;
    file->ino = about.st_ino;
    file->durable_size = about.st_size;
    path_of(fd, file->path);
    file->next = files;
    files = file;
    return file;
}

static void forget_images(struct file *file) {
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        while (file->images[bucket]) {
            struct image *image = file->images[bucket];
            file->images[bucket] = image->next;
            free(image->bytes);
            free(image);
        }
    }
}

static void keep_page(struct file *file, off_t page) {
    struct image **bucket = &file->images[(uint64_t)page % BUCKETS];
    char bytes[PAGE];
    for (struct image *image = *bucket; image; image = image->next) {
        if (image->page == page) {
            return;
        }
    }
    memset(bytes, 0, PAGE);
    ssize_t got = pread(file->fd, bytes, PAGE, page * PAGE);
    int zero = 1;
    for (ssize_t at = 0; at < got && zero; at++) {
        zero = bytes[at] == 0;
    }
    struct image *image = calloc(1, sizeof *image);
    image->page = page;
    if (!zero) {
        image->bytes = malloc(PAGE);
        memcpy(image->bytes, bytes, PAGE);
    }
    image->next = *bucket;
    *bucket = image;
}

/* Keeps the durable content of [from, to). What lies in a hole is zero and comes back by itself. */
static void keep(struct file *file, off_t from, off_t to) {
    if (to > file->durable_size) {
        to = file->durable_size;
    }
    for (off_t page = from / PAGE; from < to && page * PAGE < to; page++) {
        keep_page(file, page);
    }
}

static void keep_data(struct file *file, off_t from) {
    off_t at = from;
    while ((at = lseek(file->fd, at, SEEK_DATA)) >= 0 && at < file->durable_size) {
        off_t end = lseek(file->fd, at, SEEK_HOLE);
        keep(file, at, end);
        at = end;
    }
}

static void before_write(int fd, off_t at, size_t length) {
    struct file *file = track(fd);
    if (file) {
        keep(file, at, at + (off_t)length);
    }
}

static off_t position(int fd) {
    struct stat about;
    int flags = fcntl(fd, F_GETFL);
    if (flags & O_APPEND) {
        return fstat(fd, &about) == 0 ? about.st_size : 0;
    }
    return lseek(fd, 0, SEEK_CUR);
}

static void drop(struct file *file) {
    for (struct file **link = &files; *link; link = &(*link)->next) {
        if (*link == file) {
            *link = file->next;
            break;
        }
    }
    forget_images(file);
    real_close(file->fd);
    free(file);
}

static void made_durable(int fd) {
    char directory[PATH_MAX];
    if (kind(fd) == REGULAR) {
        struct file *file = find(fd);
        if (file) {
            drop(file);
        }
        return;
    }
    if (!path_of(fd, directory)) {
        return;
    }
    for (struct file *file = files; file; file = file->next) {
        char *slash = strrchr(file->path, '/');
        size_t length = slash ? (size_t)(slash - file->path) : 0;
        if (strlen(directory) == length && strncmp(directory, file->path, length) == 0) {
            file->created = 0;
        }
    }
}

/* ---- the end ---- */

static int survives(uint64_t *state) {
    if (seed == 0) {
        return 0;
    }
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (int)(*state >> 33 & 1);
}

struct losses {
    unsigned long files, vanished, pages;
};

static void roll_back(struct file *file, uint64_t *state, struct losses *losses) {
    static const char zeros[PAGE];
    struct stat about;
    if (fstat(file->fd, &about) != 0) {
        return;
    }
    off_t size = about.st_size;
    int keeps_size = size > file->durable_size && survives(state);
    if (!keeps_size && size != file->durable_size) {
        real_ftruncate(file->fd, file->durable_size);
    }
    losses->files++;
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        for (struct image *image = file->images[bucket]; image; image = image->next) {
            off_t left = file->durable_size - image->page * PAGE;
            if (left > 0 && !survives(state)) {
                size_t length = left < PAGE ? (size_t)left : PAGE;
                real_pwrite(file->fd, image->bytes ? image->bytes : zeros, length, image->page * PAGE);
                losses->pages++;
            }
        }
    }
    /* New pages of a file whose new size survived: those that were not written back read as zero. */
    for (off_t page = (file->durable_size + PAGE - 1) / PAGE; keeps_size && page * PAGE < size; page++) {
        if (!survives(state)) {
            off_t left = size - page * PAGE;
            real_pwrite(file->fd, zeros, left < PAGE ? (size_t)left : PAGE, page * PAGE);
            losses->pages++;
        }
    }
    if (!keeps_size && size > file->durable_size) {
        losses->pages += (unsigned long)((size - file->durable_size + PAGE - 1) / PAGE);
    }
}

/* Called with the lock held; does not return. */
static void die(void) {
    struct losses losses = {0, 0, 0};
    uint64_t state = seed * 0x9E3779B97F4A7C15ull | 1;
    char path[PATH_MAX];
    dead = 1;
    for (struct file *file = files; file; file = file->next) {
        int renamed = !path_of(file->fd, path) || strcmp(path, file->path) != 0;
        if (file->created && !renamed && !survives(&state)) {
            unlink(file->path);
            losses.vanished++;
        } else {
            roll_back(file, &state, &losses);
        }
    }
    int report = real_open(setting("POWERLOSS_REPORT"), O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (report >= 0) {
        char line[200];
        int length = snprintf(line, sizeof line, "syncs %lu longest %lu ms files %lu vanished %lu pages %lu\n", syncs,
                              longest_sync_ms, losses.files, losses.vanished, losses.pages);
        if (real_write(report, line, (size_t)length) != length) {
            _exit(99);
        }
    }
    kill(getpid(), SIGKILL);
    for (;;) {
        pause();
    }
}

/* ---- the calls ---- */

static int after_open(int fd, int flags, int existed) {
    if (fd < 0) {
        return fd;
    }
    if (fd < FDS) {
        kind_of[fd] = UNKNOWN;
    }
    if (kind(fd) == REGULAR && (flags & O_CREAT) && !existed) {
        struct file *file = track(fd);
        if (file) {
            file->created = 1;
        }
    }
    return fd;
}

static int open_at(int directory, const char *path, int flags, mode_t mode) {
    struct stat about;
    enter();
    int existed = fstatat(directory, path, &about, 0) == 0;
    if (root_length && existed && (flags & O_TRUNC) && S_ISREG(about.st_mode) && about.st_size > 0) {
        /* Truncate by our own hand, so that the old content is kept first. */
        int first = real_openat(directory, path, O_RDWR | O_CLOEXEC, 0);
        if (first >= 0) {
            kind_of[first] = UNKNOWN;
            if (kind(first) == REGULAR) {
                struct file *file = track(first);
                if (file) {
                    keep_data(file, 0);
                }
            }
            real_close(first);
            kind_of[first] = UNKNOWN;
        }
    }
    int fd = after_open(real_openat(directory, path, flags, mode), flags, existed);
    leave();
    return fd;
}

static mode_t mode_of(int flags, va_list rest) {
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
}

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = mode_of(flags, rest);                                                                            \
        va_end(rest);                                                                                                  \
        return open_at(AT_FDCWD, path, flags, mode);                                                                   \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                                   \
    int name(int directory, const char *path, int flags, ...) {                                                        \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = mode_of(flags, rest);                                                                            \
        va_end(rest);                                                                                                  \
        return open_at(directory, path, flags, mode);                                                                  \
    }
OPENAT(openat)
OPENAT(openat64)

int close(int fd) {
    enter();
    if (fd >= 0 && fd < FDS) {
        kind_of[fd] = UNKNOWN;
    }
    int answer = real_close(fd);
    leave();
    return answer;
}

/* Sockets and the like must not wait for the lock: they are told apart without it once they are known. */
static int is_known_foreign(int fd) { return root_length == 0 || (fd >= 0 && fd < FDS && kind_of[fd] == IGNORED); }

ssize_t write(int fd, const void *bytes, size_t length) {
    if (is_known_foreign(fd)) {
        return real_write(fd, bytes, length);
    }
    enter();
    if (kind(fd) == REGULAR) {
        before_write(fd, position(fd), length);
        ssize_t answer = real_write(fd, bytes, length);
        leave();
        return answer;
    }
    leave();
    return real_write(fd, bytes, length);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (is_known_foreign(fd)) {
        return real_writev(fd, parts, count);
    }
    enter();
    if (kind(fd) == REGULAR) {
        size_t length = 0;
        for (int part = 0; part < count; part++) {
            length += parts[part].iov_len;
        }
        before_write(fd, position(fd), length);
        ssize_t answer = real_writev(fd, parts, count);
        leave();
        return answer;
    }
    leave();
    return real_writev(fd, parts, count);
}

#define PWRITE(name, offset_type)                                                                                      \
    ssize_t name(int fd, const void *bytes, size_t length, offset_type at) {                                           \
        enter();                                                                                                       \
        if (kind(fd) == REGULAR) {                                                                                     \
            before_write(fd, at, length);                                                                              \
        }                                                                                                              \
        ssize_t answer = real_pwrite(fd, bytes, length, at);                                                           \
        leave();                                                                                                       \
        return answer;                                                                                                 \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define FTRUNCATE(name, offset_type)                                                                                   \
    int name(int fd, offset_type length) {                                                                             \
        enter();                                                                                                       \
        if (kind(fd) == REGULAR) {                                                                                     \
            struct file *file = track(fd);                                                                             \
            if (file) {                                                                                                \
                keep_data(file, length / PAGE * PAGE);                                                                 \
            }                                                                                                          \
        }                                                                                                              \
        int answer = real_ftruncate(fd, length);                                                                       \
        leave();                                                                                                       \
        return answer;                                                                                                 \
    }
FTRUNCATE(ftruncate, off_t)
FTRUNCATE(ftruncate64, off64_t)

static unsigned long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long)now.tv_sec * 1000 + (unsigned long)now.tv_nsec / 1000000;
}

static int sync_by(int (*sync)(int), int fd) {
    if (is_known_foreign(fd)) {
        return sync(fd);
    }
    enter();
    if (kind(fd) == IGNORED) {
        leave();
        return sync(fd);
    }
    syncs++;
    int last = sync_to_die_at && syncs == sync_to_die_at;
    if (last && die_before) {
        die();
    }
    unsigned long began = now_ms();
    int answer = sync(fd);
    if (answer == 0) {
        made_durable(fd);
    }
    unsigned long took = now_ms() - began;
    longest_sync_ms = took > longest_sync_ms ? took : longest_sync_ms;
    if (last) {
        die();
    }
    leave();
    return answer;
}

int fsync(int fd) { return sync_by(real_fsync, fd); }
int fdatasync(int fd) { return sync_by(real_fdatasync, fd); }

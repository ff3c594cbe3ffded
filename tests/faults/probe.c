/*
 * Does to files what its arguments say, in the current directory, then waits for its end. For the tests of powerloss.c.
 *
 *   write:NAME:TEXT      appends, creating the file
 *   fill:NAME:LENGTH     appends that many x
 *   patch:NAME:AT:TEXT   overwrites at an offset
 *   sync:NAME            fsync
 *   syncdir              fsync of the directory
 *   cut:NAME:LENGTH      ftruncate
 *   rename:OLD:NEW
 *   blow                 SIGUSR2 to itself
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int opened(const char *name, int flags) {
    int fd = open(name, flags, 0644);
    if (fd < 0) {
        perror(name);
        exit(2);
    }
    return fd;
}

static void check(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(2);
    }
}

int main(int count, char **arguments) {
    for (int at = 1; at < count; at++) {
        char *verb = strtok(arguments[at], ":");
        char *name = strtok(NULL, ":"), *second = strtok(NULL, ":"), *third = strtok(NULL, ":");
        int fd = -1;
        if (strcmp(verb, "write") == 0) {
            fd = opened(name, O_WRONLY | O_CREAT | O_APPEND);
            check(write(fd, second, strlen(second)) == (ssize_t)strlen(second), name);
        } else if (strcmp(verb, "fill") == 0) {
            size_t length = (size_t)atol(second);
            char *bytes = malloc(length);
            memset(bytes, 'x', length);
            fd = opened(name, O_WRONLY | O_CREAT | O_APPEND);
            check(write(fd, bytes, length) == (ssize_t)length, name);
            free(bytes);
        } else if (strcmp(verb, "patch") == 0) {
            fd = opened(name, O_RDWR);
            check(pwrite(fd, third, strlen(third), atol(second)) == (ssize_t)strlen(third), name);
        } else if (strcmp(verb, "sync") == 0) {
            fd = opened(name, O_RDWR);
            check(fsync(fd) == 0, name);
        } else if (strcmp(verb, "syncdir") == 0) {
            fd = opened(".", O_RDONLY);
            check(fsync(fd) == 0, "the directory");
        } else if (strcmp(verb, "cut") == 0) {
            fd = opened(name, O_RDWR);
            check(ftruncate(fd, atol(second)) == 0, name);
        } else if (strcmp(verb, "rename") == 0) {
            check(rename(name, second) == 0, name);
        } else if (strcmp(verb, "blow") == 0) {
            raise(SIGUSR2);
        } else {
            fprintf(stderr, "unknown verb %s\n", verb);
            exit(2);
        }
        if (fd >= 0) {
            close(fd);
        }
    }
    for (;;) {
        pause();
    }
}

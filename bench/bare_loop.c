/*
 * The floor: what starting a function costs without a runner.
 *
 *     bare_loop SECONDS CALLERS INPUT EXECUTABLE
 *
 * Each of CALLERS threads starts EXECUTABLE with posix_spawn, feeds it INPUT, drains its stdout and stderr, waits for
 * it, and begins again until SECONDS have passed. No gRPC, no queue, no limits, no check of the output. Prints one
 * JSON object: calls, failures, latencies, CPU of itself and of the functions, peak memory.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    DEFAULT_PIPE_SIZE = 64 * 1024,
    LARGE_PIPE_SIZE = 1024 * 1024,
    MAX_CALLS = 1000 * 1000,
    MAX_CALLERS = 1024,
    STUCK_MS = 120 * 1000,
};
static const double MAX_SECONDS = 600;

extern char **environ;

static char *executable;
static char *input;
static size_t input_size;
static double end;
static atomic_int calls_started;
static posix_spawnattr_t attributes;

typedef struct {
    pthread_t thread;
    double *latencies;
    size_t calls, room, failures;
    char *buffer;
} Worker;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void read_input(const char *path) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0 || fstat(file, &status) < 0)
        die(path);
    input_size = status.st_size;
    input = malloc(input_size + 1);
    if (input == NULL)
        die("malloc");
    for (size_t done = 0; done < input_size;) {
        ssize_t count = read(file, input + done, input_size - done);
        if (count <= 0)
            die(path);
        done += count;
    }
    close(file);
}

/* A function must find SIGPIPE as it is by default, and a process group of its own, as the runner gives it. */
static void make_attributes(void) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGPIPE);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigdefault(&attributes, &signals);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
}

static pid_t spawn(int stdin_read, int stdout_write, int stderr_write) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, stdin_read, 0);
    posix_spawn_file_actions_adddup2(&actions, stdout_write, 1);
    posix_spawn_file_actions_adddup2(&actions, stderr_write, 2);
    char *argv[] = {executable, NULL};
    pid_t pid;
    errno = posix_spawn(&pid, executable, &actions, &attributes, argv, environ);
    if (errno != 0)
        die(executable);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

static void open_pipe(int ends[2], int ours, bool large) {
    if (pipe2(ends, O_CLOEXEC) < 0)
        die("pipe2");
    if (fcntl(ends[ours], F_SETFL, O_NONBLOCK) < 0)
        die("fcntl");
    if (large) /* past the user's quota the kernel refuses: then it stays small */
        fcntl(ends[ours], F_SETPIPE_SZ, LARGE_PIPE_SIZE);
}

static void close_watched(struct pollfd *watched) {
    close(watched->fd);
    watched->fd = -1;
}

/* Writes what fits; closes stdin when all is written or nobody reads it any more. */
static void feed(struct pollfd *watched, size_t *written) {
    while (*written < input_size) {
        ssize_t count = write(watched->fd, input + *written, input_size - *written);
        if (count < 0 && errno == EAGAIN)
            return;
        if (count < 0)
            break;
        *written += count;
    }
    close_watched(watched);
}

static void drain(struct pollfd *watched, char *buffer) {
    ssize_t count = read(watched->fd, buffer, LARGE_PIPE_SIZE);
    if (count == 0 || (count < 0 && errno != EAGAIN))
        close_watched(watched);
}

/* One execution from its start to its end; true when the function succeeded. */
static bool execute(char *buffer) {
    bool large = input_size > DEFAULT_PIPE_SIZE;
    int in[2], out[2], err[2];
    open_pipe(in, 1, large);
    open_pipe(out, 0, large);
    open_pipe(err, 0, false);
    struct pollfd watched[] = {{in[1], POLLOUT, 0}, {out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
    size_t written = 0;
    feed(&watched[0], &written);
    pid_t pid = spawn(in[0], out[1], err[1]);
    close(in[0]);
    close(out[1]);
    close(err[1]);
    bool stuck = false;
    while (watched[1].fd >= 0 || watched[2].fd >= 0) {
        int ready = poll(watched, 3, STUCK_MS);
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0) {
            stuck = true;
            kill(-pid, SIGKILL);
            break;
        }
        if (watched[0].fd >= 0 && watched[0].revents)
            feed(&watched[0], &written);
        for (int i = 1; i <= 2; i++)
            if (watched[i].fd >= 0 && watched[i].revents)
                drain(&watched[i], buffer);
    }
    for (int i = 0; i <= 2; i++)
        if (watched[i].fd >= 0)
            close_watched(&watched[i]);
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            die("waitpid");
    return !stuck && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void *work(void *argument) {
    Worker *worker = argument;
    worker->buffer = malloc(LARGE_PIPE_SIZE);
    if (worker->buffer == NULL)
        die("malloc");
    double started = now();
    while (started < end && atomic_fetch_add(&calls_started, 1) < MAX_CALLS) {
        if (!execute(worker->buffer))
            worker->failures++;
        double ended = now();
        if (worker->calls == worker->room) {
            worker->room = worker->room ? 2 * worker->room : 1024;
            worker->latencies = realloc(worker->latencies, worker->room * sizeof(double));
            if (worker->latencies == NULL)
                die("realloc");
        }
        worker->latencies[worker->calls++] = ended - started;
        started = ended;
    }
    return NULL;
}

static int by_value(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double cpu_seconds(const struct rusage *usage) {
    return usage->ru_utime.tv_sec + usage->ru_stime.tv_sec + (usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) / 1e6;
}

static void report(Worker *workers, int callers, double seconds) {
    size_t calls = 0, failures = 0;
    for (int i = 0; i < callers; i++) {
        calls += workers[i].calls;
        failures += workers[i].failures;
    }
    double *latencies = malloc((calls + 1) * sizeof(double));
    if (latencies == NULL)
        die("malloc");
    size_t position = 0;
    for (int i = 0; i < callers; i++) {
        if (workers[i].calls)
            memcpy(latencies + position, workers[i].latencies, workers[i].calls * sizeof(double));
        position += workers[i].calls;
    }
    qsort(latencies, calls, sizeof(double), by_value);
    struct rusage self, functions;
    getrusage(RUSAGE_SELF, &self);
    getrusage(RUSAGE_CHILDREN, &functions);
    printf("{\"calls\": %zu, \"failures\": %zu, \"seconds\": %.6f, \"p50_ms\": %.3f, \"p99_ms\": %.3f, "
           "\"cpu_seconds\": %.6f, \"functions_cpu_seconds\": %.6f, "
           "\"max_rss_bytes\": %ld, \"functions_max_rss_bytes\": %ld}\n",
           calls, failures, seconds,
           calls ? latencies[(calls - 1) / 2] * 1e3 : 0, calls ? latencies[(calls - 1) * 99 / 100] * 1e3 : 0,
           cpu_seconds(&self), cpu_seconds(&functions), self.ru_maxrss * 1024, functions.ru_maxrss * 1024);
}

int main(int argc, char **argv) {
    double seconds = argc == 5 ? atof(argv[1]) : 0;
    int callers = argc == 5 ? atoi(argv[2]) : 0;
    if (seconds <= 0 || seconds > MAX_SECONDS || callers < 1 || callers > MAX_CALLERS) {
        fprintf(stderr, "usage: bare_loop SECONDS CALLERS INPUT EXECUTABLE\n");
        return 2;
    }
    read_input(argv[3]);
    executable = argv[4];
    signal(SIGPIPE, SIG_IGN);
    make_attributes();
    Worker *workers = calloc(callers, sizeof(Worker));
    if (workers == NULL)
        die("calloc");
    double started = now();
    end = started + seconds;
    for (int i = 0; i < callers; i++)
        if ((errno = pthread_create(&workers[i].thread, NULL, work, &workers[i])) != 0)
            die("pthread_create");
    for (int i = 0; i < callers; i++)
        pthread_join(workers[i].thread, NULL);
    report(workers, callers, now() - started);
    return 0;
}

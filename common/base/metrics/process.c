/* SPDX-License-Identifier: Apache-2.0
 *
 * Metrics of this process: CPU time, memory, descriptors, start time.
 */
#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "common/base/metrics/metrics.h"

typedef struct process {
  const char *program;
  bool is_readable; /* the numbers of /proc could be read */
  double cpu_s, resident_bytes, virtual_bytes, age_s, start_s, threads, fds, max_fds;
} process;

/* ---- readings of the system ------------------------------------------------------------------ */

/* Returns a time in seconds from a system clock, and not from /proc, which may show no system files
 * (ProcSubset=pid). */
static double read_clock_seconds(clockid_t clock) {
  struct timespec t = {0};
  clock_gettime(clock, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Reads /proc/self/stat. Counts its fields from the end of the program's name, which may contain
 * any character. */
static bool read_stat(process *p) {
  char text[1024];
  unsigned long long user, system, threads, start, size, pages;
  FILE *f = fopen("/proc/self/stat", "re");
  if (!f) return false;
  size_t n = fread(text, 1, sizeof text - 1, f);
  fclose(f);
  text[n] = '\0';
  const char *rest = strrchr(text, ')');
  if (!rest || sscanf(rest + 1,
                      " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d "
                      "%llu %*d %llu %llu %llu",
                      &user, &system, &threads, &start, &size, &pages) != 6)
    return false;
  double ticks_per_s = (double)sysconf(_SC_CLK_TCK);
  p->cpu_s = (double)(user + system) / ticks_per_s;
  p->threads = (double)threads;
  p->age_s = read_clock_seconds(CLOCK_BOOTTIME) - (double)start / ticks_per_s;
  p->virtual_bytes = (double)size;
  p->resident_bytes = (double)pages * (double)sysconf(_SC_PAGESIZE);
  return true;
}

static double count_open_files(void) {
  double n = 0;
  DIR *dir = opendir("/proc/self/fd");
  if (!dir) return 0;
  for (const struct dirent *e; (e = readdir(dir)) != NULL;) n += e->d_name[0] != '.';
  closedir(dir);
  return n - 1; /* minus the descriptor of the folder /proc/self/fd itself */
}

uint64_t clv_metrics_resident(void) {
  process p = {0};
  return read_stat(&p) ? (uint64_t)p.resident_bytes : 0;
}

/* Start time of the process. Computed only once, because the system's clock may be set, and a
 * changed start time would look like a restart. */
static double start_time_s;

static void look_up_start(void) {
  process p = {0};
  if (read_stat(&p)) start_time_s = floor(read_clock_seconds(CLOCK_REALTIME) - p.age_s);
}

static process read_process(const char *program) {
  static pthread_once_t start_once = PTHREAD_ONCE_INIT;
  process p = {.program = program};
  struct rlimit file_limit;
  pthread_once(&start_once, look_up_start);
  p.is_readable = read_stat(&p);
  p.start_s = start_time_s;
  p.fds = count_open_files();
  if (getrlimit(RLIMIT_NOFILE, &file_limit) == 0) p.max_fds = (double)file_limit.rlim_cur;
  return p;
}

/* ---- the rows of this process ---------------------------------------------------------------- */

static void build_info(clv_metrics_out *out, const void *numbers) {
  const process *p = numbers;
  const clv_metric_label labels[] = {{"program", p->program}, {"version", CLV_VERSION}};
  clv_metric_sample(out, 1, labels, CLV_COUNT(labels));
}

#define AT(member) offsetof(process, member)

/* clang-format off */
static const clv_metric about[] = {
    {.name = "cleave_build_info", .kind = CLV_GAUGE, .unit = "",
     .help = "1, with the program and its version as labels.", .write = build_info},
    {.name = "process_open_fds", .kind = CLV_GAUGE, .unit = "",
     .help = "File descriptors that are open.", .at = AT(fds)},
    {.name = "process_max_fds", .kind = CLV_GAUGE, .unit = "",
     .help = "File descriptors that may be open.", .at = AT(max_fds)},
};

static const clv_metric from_stat[] = {
    {.name = "process_cpu_seconds_total", .kind = CLV_COUNTER, .unit = "seconds",
     .help = "Processor time, user and system together.", .at = AT(cpu_s)},
    {.name = "process_resident_memory_bytes", .kind = CLV_GAUGE, .unit = "bytes",
     .help = "Memory that is resident.", .at = AT(resident_bytes)},
    {.name = "process_virtual_memory_bytes", .kind = CLV_GAUGE, .unit = "bytes",
     .help = "Addresses in use.", .at = AT(virtual_bytes)},
    {.name = "process_start_time_seconds", .kind = CLV_GAUGE, .unit = "seconds",
     .help = "When it started, in seconds since 1970.", .at = AT(start_s)},
    {.name = "process_threads", .kind = CLV_GAUGE, .unit = "", .help = "Threads.",
     .at = AT(threads)},
};
/* clang-format on */

void clv_metrics_process(const char *program, clv_bytes *ret) {
  const process p = read_process(program);
  clv_metrics_write(about, CLV_COUNT(about), &p, ret);
  if (p.is_readable) clv_metrics_write(from_stat, CLV_COUNT(from_stat), &p, ret);
}

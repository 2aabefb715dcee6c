/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that this process may use: that of the host, or the smaller limit of a control group.
 */
#include "common/base/base.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LINE_BYTES = 4096 };

static void close_file(FILE **f) {
  if (*f) fclose(*f);
}

/* Reads the number at the beginning of a file. False: no such file, or no number ("max"). */
static bool read_number(const char *path, uint64_t *ret) {
  CLV_AUTO(close_file) FILE *f = fopen(path, "re");
  unsigned long long n;
  if (!f || fscanf(f, "%20llu", &n) != 1) return false;
  *ret = n;
  return true;
}

static uint64_t read_ram_bytes(const char *root) {
  char path[PATH_MAX], line[256];
  unsigned long long kib = 0;
  snprintf(path, sizeof path, "%s/proc/meminfo", root);
  CLV_AUTO(close_file) FILE *f = fopen(path, "re");
  while (f && fgets(line, sizeof line, f))
    if (sscanf(line, "MemTotal: %15llu kB", &kib) == 1) break;
  return (uint64_t)kib << 10;
}

/* Stores the smallest memory limit of a cgroup and its ancestors. Shortens `group` at each step. */
static void find_least_cgroup_limit(const char *root, const char *mount, const char *file,
                                    char *group, clv_host_memory *ret) {
  for (;;) {
    char path[2 * PATH_MAX];
    uint64_t most;
    snprintf(path, sizeof path, "%s/sys/fs/cgroup%s%s/%s", root, mount, group, file);
    if (read_number(path, &most) && (most < ret->bytes || !ret->bytes)) {
      *ret = (clv_host_memory){.bytes = most};
      snprintf(ret->source, sizeof ret->source, "the control group's %s", file);
    }
    char *slash = strrchr(group, '/');
    if (!slash) return;
    *slash = '\0';
  }
}

/* Reads a line of /proc/self/cgroup: number, controllers, group. In version 2 the number is 0 and
 * no controllers are listed. */
static void read_line(const char *root, char *line, clv_host_memory *ret) {
  line[strcspn(line, "\n")] = '\0';
  char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
  if (!group) return;
  *group++ = '\0';
  if (strcmp(group, "/") == 0) *group = '\0';
  if (strcmp(controllers, ":") == 0) find_least_cgroup_limit(root, "", "memory.max", group, ret);
  if (strstr(controllers, "memory"))
    find_least_cgroup_limit(root, "/memory", "memory.limit_in_bytes", group, ret);
}

void clv_host_memory_read(const char *root, clv_host_memory *ret) {
  char path[PATH_MAX], line[MAX_LINE_BYTES];
  *ret = (clv_host_memory){.bytes = read_ram_bytes(root), .source = "this host's memory"};
  snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  CLV_AUTO(close_file) FILE *f = fopen(path, "re");
  while (f && fgets(line, sizeof line, f)) read_line(root, line, ret);
}

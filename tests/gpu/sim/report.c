/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints the faults that the simulation finds, with their stacks, and ends the process.
 */
#include <execinfo.h>
#include <link.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/sim/sim_int.h"

/* ---- call stacks, printed as lines of the source --------------------------------------------- */

void sim_call_stack_capture(sim_call_stack *ret) {
  ret->n = backtrace(ret->at, CLV_COUNT(ret->at));
}

static int find_program_base(struct dl_phdr_info *info, size_t size, void *ret) {
  (void)size;
  *(uintptr_t *)ret = info->dlpi_addr;
  return 1; /* ends the search: the first object is the program */
}

/* Prints the stack as lines of the source; if the program addr2line is missing, as addresses. */
void sim_call_stack_print(const sim_call_stack *stack) {
  char program[32], text[CLV_COUNT(stack->at)][24], *args[8 + CLV_COUNT(stack->at)];
  uintptr_t base = 0;
  int n = 0, status = 1;
  pid_t pid;
  dl_iterate_phdr(find_program_base, &base);
  snprintf(program, sizeof program, "/proc/%d/exe", (int)getpid());
  args[n++] = (char *)"addr2line";
  args[n++] = (char *)"-Cifpe";
  args[n++] = program;
  for (int i = 0; i < stack->n; i++) {
    snprintf(text[i], sizeof text[i], "%#lx", (unsigned long)((uintptr_t)stack->at[i] - base - 1));
    args[n++] = text[i];
  }
  args[n] = NULL;
  if (posix_spawnp(&pid, args[0], NULL, NULL, args, environ) == 0) waitpid(pid, &status, 0);
  if (status) backtrace_symbols_fd(stack->at, stack->n, STDERR_FILENO);
}

/* ---- reporting faults ------------------------------------------------------------------------ */

void sim_report_fault(const char *format, ...) {
  sim_call_stack stack;
  va_list args;
  va_start(args, format);
  fputs("cuda-sim: ", stderr);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  sim_launch_print_thread();
  sim_call_stack_capture(&stack);
  sim_call_stack_print(&stack);
  abort();
}

static struct sigaction previous_handler;

static void handle_memory_signal(int signal, siginfo_t *info, void *context) {
  const sim_block *b = sim_memory_find(info->si_addr);
  if (sim_memory_is_device(info->si_addr)) {
    if (b) {
      fprintf(stderr, "cuda-sim: it lies %zd bytes into %zu of device memory, taken at\n",
              (char *)info->si_addr - b->p, b->bytes);
      sim_call_stack_print(&b->call_stack);
    }
    sim_report_fault(
        "device memory was touched where it may not be: by the host, or outside all of it");
  }
  fprintf(stderr, "cuda-sim: address %p was touched\n", info->si_addr);
  sim_launch_print_thread();
  sigaction(signal, &previous_handler, NULL);
  if (previous_handler.sa_flags & SA_SIGINFO && previous_handler.sa_sigaction)
    previous_handler.sa_sigaction(signal, info, context);
}

void sim_handle_faults(void) {
  static bool is_handled;
  struct sigaction action = {.sa_sigaction = handle_memory_signal,
                             .sa_flags = SA_SIGINFO | SA_NODEFER};
  if (is_handled) return;
  is_handled = true;
  sigaction(SIGSEGV, &action, &previous_handler);
}

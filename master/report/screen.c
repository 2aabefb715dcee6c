/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws texts on the alternate screen of a terminal, as editors do, for `status --watch`. Each text
 * is drawn from the top over the text before, so nothing scrolls or flickers. clv_screen_close
 * leaves the alternate screen.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "master/report/report.h"

#define SCREEN_ENTER "\033[?1049h\033[?25l" /* the alternate screen, without a cursor */
#define SCREEN_LEAVE "\033[?25h\033[?1049l"
/* cuts long lines at the edge, so that they do not scroll the screen */
#define CUT_LONG_LINES "\033[?7l"
#define WRAP_LONG_LINES "\033[?7h"
#define MOVE_CURSOR_HOME "\033[H"
#define ERASE_REST_AND_END_LINE "\033[K\n" /* erases the rest of the old line */
#define ERASE_REST_OF_PAGE "\033[J"

/* FALLBACK_WIDTH, FALLBACK_ROWS: size in characters if there is no terminal. MIN_ROWS: fewest rows
 * that are used. */
enum { FALLBACK_WIDTH = 100, FALLBACK_ROWS = 24, MIN_ROWS = 3 };

struct clv_screen {
  bool is_terminal, redraws_in_place, has_drawn; /* has_drawn: clv_screen_draw was called */
  clv_bytes last_text; /* last text that was drawn; clv_screen_close prints it again */
  clv_bytes page;      /* buffer in which clv_screen_draw makes a page; reused for each page */
};

clv_code clv_screen_open(bool redraws_in_place, clv_screen **ret, clv_err *err) {
  clv_screen *s;
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  const char *term = getenv("TERM");
  s->is_terminal = isatty(STDOUT_FILENO);
  s->redraws_in_place = redraws_in_place && s->is_terminal && !(term && strcmp(term, "dumb") == 0);
  if (s->redraws_in_place) fputs(SCREEN_ENTER CUT_LONG_LINES, stdout);
  *ret = s;
  return CLV_OK;
}

bool clv_screen_is_terminal(const clv_screen *s) { return s->is_terminal; }

/* Returns the size of the terminal; FALLBACK_WIDTH by FALLBACK_ROWS without one. */
static struct winsize terminal_size(const clv_screen *s) {
  struct winsize size = {0};
  if (!s->is_terminal || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) size = (struct winsize){0};
  if (!size.ws_col) size.ws_col = FALLBACK_WIDTH;
  if (!size.ws_row) size.ws_row = FALLBACK_ROWS;
  return size;
}

unsigned clv_screen_width(const clv_screen *s) { return terminal_size(s).ws_col; }

static unsigned count_lines(const clv_bytes *text) {
  unsigned n = 0;
  for (size_t i = 0; i < text->len; i++) n += text->data[i] == '\n';
  return n;
}

/* Fills s->page with the lines of a text. If the lines do not fit in n_rows rows, the last row has
 * the number of lines that were left out. */
static void fill_page(clv_screen *s, const clv_bytes *text, unsigned n_rows) {
  unsigned n_lines = count_lines(text), n_shown = n_lines < n_rows ? n_lines : n_rows - 2;
  const char *at = text->data;
  s->page.len = 0;
  clv_bytes_puts(&s->page, MOVE_CURSOR_HOME);
  for (unsigned i = 0; i < n_shown; i++) {
    const char *end = strchr(at, '\n');
    clv_bytes_add(&s->page, at, (size_t)(end - at));
    clv_bytes_puts(&s->page, ERASE_REST_AND_END_LINE);
    at = end + 1;
  }
  if (n_shown < n_lines)
    clv_bytes_printf(&s->page, "... %u more lines" ERASE_REST_AND_END_LINE, n_lines - n_shown);
  clv_bytes_puts(&s->page, ERASE_REST_OF_PAGE);
}

void clv_screen_draw(clv_screen *s, const clv_bytes *text, const clv_bytes *brief) {
  unsigned n_rows = CLV_MAX((unsigned)terminal_size(s).ws_row, (unsigned)MIN_ROWS);
  if (!text->data || text->failed || !brief->data || brief->failed) return;
  if (s->redraws_in_place) {
    fill_page(s, count_lines(text) < n_rows ? text : brief, n_rows);
    fwrite(s->page.data, 1, s->page.failed ? 0 : s->page.len, stdout);
    s->last_text.len = 0;
    clv_bytes_add(&s->last_text, text->data, text->len);
  } else {
    if (s->has_drawn) putchar('\n');
    fwrite(text->data, 1, text->len, stdout);
  }
  s->has_drawn = true;
  fflush(stdout);
}

void clv_screen_close(clv_screen *s) {
  if (!s) return;
  if (s->redraws_in_place) {
    fputs(WRAP_LONG_LINES SCREEN_LEAVE, stdout);
    if (s->last_text.data && !s->last_text.failed)
      fwrite(s->last_text.data, 1, s->last_text.len, stdout);
    fflush(stdout);
  }
  clv_bytes_done(&s->last_text);
  clv_bytes_done(&s->page);
  free(s);
}

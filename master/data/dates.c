/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads dates of a table as days since 1970-01-01, in the Gregorian calendar: ISO 8601, or a format
 * as C's strptime has it. The time of day is the fraction of a day. Months have English names
 * whatever the locale. A date with a zone counts in UTC.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "master/data/table_int.h"

enum {
  SECONDS_PER_DAY = 86400,
  MAX_YEAR = 9999,
  DAYS_PER_400_YEARS = 146097,
  DAYS_BEFORE_1970 = 719468
};

static const char *const month_names[] = {"January",   "February", "March",    "April",
                                          "May",       "June",     "July",     "August",
                                          "September", "October",  "November", "December"};

/* The text of a date, and the parts that were read from it so far. */
typedef struct date_reader {
  const char *at, *end; /* next character; end of the text */
  int year, month, day, hour, minute;
  double second;
  int zone_minutes; /* minutes by which the zone is east of UTC */
} date_reader;

/* ---- calendar -------------------------------------------------------------------------------- */

static bool is_leap_year(int year) { return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0); }

static int count_days_of_month(int year, int month) {
  static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  return days[month - 1] + (month == 2 && is_leap_year(year));
}

/* Returns the days from 1970-01-01 to a date. Counts years from March, so that a leap day comes
 * last and the days before a month follow from its number alone. */
static int64_t count_days_since_1970(int year, int month, int day) {
  int64_t y = month <= 2 ? year - 1 : year, m = (month + 9) % 12;
  return 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - DAYS_BEFORE_1970;
}

/* Finds the date that is `days` days after 1970-01-01. Inverse of count_days_since_1970 for the
 * years 1 to 9999. */
static void split_into_date(int64_t days, int *ret_year, int *ret_month, int *ret_day) {
  int year = (int)((days + DAYS_BEFORE_1970) * 400 / DAYS_PER_400_YEARS) + 1, month = 12;
  while (year > 1 && count_days_since_1970(year, 1, 1) > days) year--;
  while (month > 1 && count_days_since_1970(year, month, 1) > days) month--;
  *ret_year = year;
  *ret_month = month;
  *ret_day = (int)(days - count_days_since_1970(year, month, 1)) + 1;
}

/* ---- reading a date -------------------------------------------------------------------------- */

/* Reads a number of min_digits to max_digits digits that is from low to high. */
static bool read_digits(date_reader *r, int min_digits, int max_digits, int low, int high,
                        int *ret) {
  int n = 0, value = 0;
  for (; n < max_digits && r->at < r->end && *r->at >= '0' && *r->at <= '9'; n++)
    value = 10 * value + (*r->at++ - '0');
  if (n < min_digits || value < low || value > high) return false;
  *ret = value;
  return true;
}

static bool read_literal(date_reader *r, char c) {
  if (r->at == r->end || *r->at != c) return false;
  r->at++;
  return true;
}

static bool read_year(date_reader *r) { return read_digits(r, 4, 4, 1, MAX_YEAR, &r->year); }
static bool read_month(date_reader *r) { return read_digits(r, 1, 2, 1, 12, &r->month); }
static bool read_day(date_reader *r) { return read_digits(r, 1, 2, 1, 31, &r->day); }
static bool read_hour(date_reader *r) { return read_digits(r, 1, 2, 0, 23, &r->hour); }
static bool read_minute(date_reader *r) { return read_digits(r, 1, 2, 0, 59, &r->minute); }

static bool read_second(date_reader *r) {
  int second;
  if (!read_digits(r, 1, 2, 0, 59, &second)) return false;
  r->second = second;
  return true;
}

static bool read_fraction(date_reader *r) {
  double digit_value = 1;
  const char *from = r->at;
  for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++)
    r->second += (*r->at - '0') * (digit_value /= 10);
  return r->at > from && r->at - from <= 9;
}

/* Reads the name of a month, or its first three letters. */
static bool read_month_name(date_reader *r) {
  for (int i = 0; i < (int)CLV_COUNT(month_names); i++)
    for (size_t n = strlen(month_names[i]);; n = 3) {
      if ((size_t)(r->end - r->at) >= n && strncasecmp(r->at, month_names[i], n) == 0) {
        r->at += n;
        r->month = i + 1;
        return true;
      }
      if (n == 3) break;
    }
  return false;
}

/* Reads Z, or hours and minutes from UTC: +02, +0200, +02:00. */
static bool read_time_zone(date_reader *r) {
  int hours, minutes = 0;
  if (read_literal(r, 'Z')) return true;
  bool is_west = r->at < r->end && *r->at == '-';
  if (!is_west && !(r->at < r->end && *r->at == '+')) return false;
  r->at++;
  if (!read_digits(r, 2, 2, 0, 23, &hours)) return false;
  bool has_colon = read_literal(r, ':');
  bool has_minutes = r->at < r->end && *r->at >= '0' && *r->at <= '9';
  if ((has_colon || has_minutes) && !read_digits(r, 2, 2, 0, 59, &minutes)) return false;
  r->zone_minutes = (is_west ? -1 : 1) * (60 * hours + minutes);
  return true;
}

/* Directives of a format, such as %Y, and how each is read. */
static const struct {
  char letter;
  bool (*read)(date_reader *r);
} directives[] = {{'Y', read_year},     {'m', read_month},      {'d', read_day},
                  {'H', read_hour},     {'M', read_minute},     {'S', read_second},
                  {'f', read_fraction}, {'b', read_month_name}, {'B', read_month_name},
                  {'z', read_time_zone}};

static bool read_directive(date_reader *r, char letter) {
  if (letter == '%') return read_literal(r, '%');
  for (size_t i = 0; i < CLV_COUNT(directives); i++)
    if (directives[i].letter == letter) return directives[i].read(r);
  return false;
}

static bool read_date_by_format(date_reader *r, const char *format) {
  for (; *format; format++)
    if (*format == '%' ? !read_directive(r, *++format) : !read_literal(r, *format)) return false;
  return true;
}

/* Reads 2024-01-31, with a time behind a T or a space, and a zone behind the time. */
static bool read_iso_date(date_reader *r) {
  if (!read_date_by_format(r, "%Y-%m-%d")) return false;
  if (r->at == r->end) return true;
  if (!read_literal(r, 'T') && !read_literal(r, ' ')) return false;
  if (!read_date_by_format(r, "%H:%M")) return false;
  if (read_literal(r, ':') && !read_second(r)) return false;
  if ((read_literal(r, '.') || read_literal(r, ',')) && !read_fraction(r)) return false;
  return r->at == r->end || read_time_zone(r);
}

bool clv_date_read_days(const char *text, size_t len, const char *format, double *ret) {
  date_reader r = {.at = text, .end = text + len, .month = 1, .day = 1};
  bool ok = format ? read_date_by_format(&r, format) : read_iso_date(&r);
  if (!ok || r.at != r.end || r.day > count_days_of_month(r.year, r.month)) return false;
  double seconds = 3600.0 * r.hour + 60.0 * (r.minute - r.zone_minutes) + r.second;
  *ret = (double)count_days_since_1970(r.year, r.month, r.day) + seconds / SECONDS_PER_DAY;
  return true;
}

clv_code clv_date_check_format(const char *format, clv_err *err) {
  bool has_year = false;
  for (const char *c = format; *c; c++) {
    bool is_known_directive = *c != '%' || c[1] == '%';
    if (*c != '%') continue;
    c++;
    for (size_t i = 0; i < CLV_COUNT(directives); i++)
      is_known_directive = is_known_directive || directives[i].letter == *c;
    has_year = has_year || *c == 'Y';
    if (*c == 'y')
      return clv_fail(err, CLV_PRECONDITION,
                      "%%y leaves the century open: write years with four digits, %%Y");
    if (!is_known_directive)
      return clv_fail(err, CLV_PRECONDITION,
                      "%%%.1s is none of %%Y %%m %%d %%H %%M %%S %%f %%b %%B %%z and %%%%", c);
  }
  if (has_year) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION, "it has no %%Y, the year");
}

/* ---- parts of a date ------------------------------------------------------------------------- */

double clv_date_fraction_passed(double days, clv_date_part part) {
  int year, month, day;
  int64_t n_full_days = (int64_t)floor(days);
  split_into_date(n_full_days, &year, &month, &day);
  int64_t day_of_year = n_full_days - count_days_since_1970(year, 1, 1);
  if (part == CLV_DATE_MONTH) return (month - 1) / 12.0;
  if (part == CLV_DATE_WEEKDAY) return (double)(((n_full_days + 3) % 7 + 7) % 7) / 7;
  return (double)day_of_year / (365 + is_leap_year(year));
}

const char *clv_date_text(double days, char buf[CLV_DATE_TEXT_BYTES]) {
  int year, month, day;
  split_into_date((int64_t)floor(days), &year, &month, &day);
  snprintf(buf, CLV_DATE_TEXT_BYTES, "%04d-%02d-%02d", year, month, day);
  return buf;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Defines CLV_THREAD_SANITIZED: 1 if the test is compiled for thread sanitizer. Tests then do less,
 * because thread sanitizer takes up to a hundred times as long: it needs 0.3 ms for each thread of
 * a simulated device. Address sanitizer takes only three times as long.
 *
 * tests/gpu/sim must not include this file, because it is compiled without any sanitizer.
 */
#ifndef CLEAVE_TESTS_SANITIZED_H
#define CLEAVE_TESTS_SANITIZED_H

#ifdef __has_feature /* clang announces sanitizers by __has_feature */
#if __has_feature(thread_sanitizer)
#define CLV_THREAD_SANITIZED 1
#endif
#endif

#ifdef __SANITIZE_THREAD__ /* gcc defines a macro if thread sanitizer is on */
#define CLV_THREAD_SANITIZED 1
#endif

#ifndef CLV_THREAD_SANITIZED
#define CLV_THREAD_SANITIZED 0
#endif

#endif

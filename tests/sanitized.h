/* SPDX-License-Identifier: Apache-2.0
 *
 * sanitized: which sanitizer a test is compiled for. Address sanitizer takes three times as long,
 * thread sanitizer up to a hundred times: to it each thread of a simulated device is one of its
 * own, and to meet one takes it 0.3 ms. So a test does less under it alone.
 *
 * Not for tests/gpu/sim, which is compiled for none of them.
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

/* SPDX-License-Identifier: Apache-2.0
 *
 * Models a run: two masters that may both believe that they own the run, one worker that keeps the
 * files of its stage, and checkpoints whose manifest is written last. Each step of the training is
 * followed by a checkpoint, and one checkpoint is kept. Masters and the worker die at any moment
 * and start again with their disks. A zombie, a master that pauses for long, needs no step of its
 * own, because the walk tries every interleaving.
 *
 * Variant 0: the file system grants the lock of the run folder to both masters. Variant 1: to one;
 * then a finished run leaves no file but the last checkpoint.
 *
 * Each attempt removes the files at the worker that no manifest names. In the programs a command
 * does that, so the model has the removal at the worst moments.
 *
 * The model treats a read of run.json and the file operation after it as one transition.
 */
#include "tests/model/model.h"

#include <string.h>

enum { MASTERS = 2, STEPS = 4 };

/* phases of a master. OUT: the master does not run; READ: it has read run.json; KEPT: the worker
 * has stored the file of the checkpoint; LOST: the master has noticed that its session ended */
enum { OUT, READ, STARTED, CLEANING, TRAINING, BEGUN, WRITTEN, KEPT, COMMITTED, PRUNING, LOST };
/* state of the folder of a checkpoint at the master */
enum { NO_FOLDER, INCOMPLETE, COMPLETE, DAMAGED };

typedef struct master {
  uint8_t phase, epoch, step;
  uint8_t master_number; /* 1: the first master that was started; 2: the second one */
  /* bit per step: files that the master will remove at the worker */
  uint8_t files_to_remove;
} master;

typedef struct state {
  uint8_t folder_state[STEPS + 1], has_manifest[STEPS + 1], is_file_kept[STEPS + 1];
  master m[MASTERS];
  /* content of run.json: epoch and master of the attempt, and whether the run is finished */
  uint8_t run_epoch, run_master, is_finished;
  /* state of the worker: highest epoch that it has seen; epoch and master of its session, 0: no
   * session */
  uint8_t highest_epoch, session_epoch, session_master;
  uint8_t n_starts, n_deaths, n_worker_deaths, n_damages;
  uint8_t newest_committed; /* step of the newest committed checkpoint that can be read */
  uint8_t is_worker_file_changed_by_older, is_run_taken_by_older;
} state;

static struct {
  uint8_t n_steps, n_starts, n_deaths, n_worker_deaths;
  bool has_one_lock;
} size;

static const char *const breaks[] = {
    "manifest_first",         "prune_before_the_manifest", "prune_unverified",
    "removal_without_a_look", "epoch_in_memory",           "session_without_epoch",
    "orphans_are_not_listed", "no_prune_at_the_end",       "commit_without_a_look"};
static const uint8_t break_variants[] = {1, 1, 1, 0, 0, 0, 1, 1, 0};
enum {
  MANIFEST_FIRST,
  PRUNE_BEFORE_MANIFEST,
  PRUNE_UNVERIFIED,
  REMOVAL_UNCHECKED,
  EPOCH_IN_MEMORY,
  SESSION_UNFENCED,
  ORPHANS_STAY,
  NO_PRUNE_AT_END,
  COMMIT_UNCHECKED
};

static void set_initial_state(void *ret) { (void)ret; }

#define FOR_EACH_MASTER(i) for (uint8_t i = 0; i < MASTERS; i++)
#define BIT(k) ((uint8_t)(1u << (k)))

static bool is_usable_checkpoint(const state *s, unsigned k) {
  return s->has_manifest[k] && s->folder_state[k] == COMPLETE && s->is_file_kept[k];
}

static uint8_t find_newest_usable(const state *s) {
  uint8_t k = size.n_steps;
  while (k && !is_usable_checkpoint(s, k)) k--;
  return k;
}

static bool is_named_by_run_record(const state *s, const master *m) {
  return s->run_epoch == m->epoch && s->run_master == m->master_number;
}

static bool has_session(const state *s, const master *m) {
  return s->session_epoch == m->epoch && s->session_master == m->master_number;
}

static void free_master(master *m) { *m = (master){0}; }

/* ---- transitions of masters: start and recovery ---------------------------------------------- */

static void lock_folder(model_walk *w, const void *from) {
  FOR_EACH_MASTER(i) {
    state s = *(const state *)from;
    if (s.m[i].phase != OUT || s.n_starts == size.n_starts || s.is_finished) continue;
    if (size.has_one_lock && s.m[1 - i].phase != OUT) continue;
    s.m[i] = (master){.phase = READ, .epoch = s.run_epoch, .master_number = ++s.n_starts};
    model_add_successor(w, &s, i);
  }
}

static void begin_attempt(model_walk *w, const void *from) {
  FOR_EACH_MASTER(i) {
    state s = *(const state *)from;
    if (s.m[i].phase != READ) continue;
    s.run_epoch = ++s.m[i].epoch;
    s.run_master = s.m[i].master_number;
    s.m[i].phase = STARTED;
    model_add_successor(w, &s, i);
  }
}

/* The worker admits an attempt if its epoch is higher than all earlier epochs, or if it equals the
 * highest and the worker has no session of the run. The master then knows from which checkpoint to
 * resume. */
static void open_session(model_walk *w, const void *from) {
  FOR_EACH_MASTER(i) {
    state s = *(const state *)from;
    master *m = &s.m[i];
    if (m->phase != STARTED) continue;
    bool is_old = m->epoch < s.highest_epoch && !model_has_active_break(SESSION_UNFENCED);
    bool is_replaced = !is_named_by_run_record(&s, m) &&
                       !model_has_active_break(SESSION_UNFENCED) &&
                       !model_has_active_break(EPOCH_IN_MEMORY);
    if (is_old || is_replaced)
      free_master(m);
    else if (m->epoch == s.session_epoch && m->master_number != s.session_master)
      continue; /* a session of this epoch is open: the master tries again */
    else {
      s.is_run_taken_by_older |= m->epoch < s.highest_epoch;
      s.highest_epoch = m->epoch > s.highest_epoch ? m->epoch : s.highest_epoch;
      s.session_epoch = m->epoch;
      s.session_master = m->master_number;
      m->step = find_newest_usable(&s);
      m->phase = CLEANING;
      for (uint8_t k = 1; k <= size.n_steps; k++)
        if (s.is_file_kept[k] && !s.has_manifest[k] && !model_has_active_break(ORPHANS_STAY))
          m->files_to_remove |= BIT(k);
    }
    model_add_successor(w, &s, i);
  }
}

/* The master notices that its session has ended. If run.json still names the master, it begins
 * again with a higher epoch. */
static void raise_epoch(model_walk *w, const void *from) {
  FOR_EACH_MASTER(i) {
    state s = *(const state *)from;
    master *m = &s.m[i];
    if (m->phase != LOST) continue;
    if (model_has_active_break(EPOCH_IN_MEMORY)) {
      if (m->epoch > 6) continue;
      s.is_run_taken_by_older |= !is_named_by_run_record(&s, m);
      m->epoch++;
      m->phase = STARTED;
    } else if (is_named_by_run_record(&s, m)) {
      s.run_epoch = ++m->epoch;
      m->phase = STARTED;
    } else {
      free_master(m);
    }
    m->files_to_remove = m->step = 0;
    model_add_successor(w, &s, i);
  }
}

static void lose_session(model_walk *w, const void *from) {
  FOR_EACH_MASTER(i) {
    state s = *(const state *)from;
    master *m = &s.m[i];
    bool needs_session = m->phase == TRAINING || m->phase == WRITTEN || m->phase == BEGUN;
    if (!needs_session || has_session(&s, m)) continue;
    m->phase = LOST;
    model_add_successor(w, &s, i);
  }
}

/* ---- transitions of masters: files at the worker --------------------------------------------- */

/* Removes a file at the worker after reading run.json again. */
static void remove_kept(model_walk *w, const void *from) {
  FOR_EACH_MASTER(i) for (uint8_t k = 1; k <= size.n_steps; k++) {
    state s = *(const state *)from;
    master *m = &s.m[i];
    if ((m->phase != CLEANING && m->phase != PRUNING) || !(m->files_to_remove & BIT(k))) continue;
    bool is_old = !is_named_by_run_record(&s, m);
    if (is_old && !model_has_active_break(REMOVAL_UNCHECKED)) {
      free_master(m);
    } else {
      s.is_worker_file_changed_by_older |= is_old && s.is_file_kept[k];
      s.is_file_kept[k] = 0;
      m->files_to_remove &= (uint8_t)~BIT(k);
    }
    model_add_successor(w, &s, i);
  }
}

static void keep_file(model_walk *w, const void *from) {
  FOR_EACH_MASTER(i) {
    state s = *(const state *)from;
    master *m = &s.m[i];
    if (m->phase != WRITTEN || !has_session(&s, m)) continue;
    s.is_file_kept[m->step] = 1;
    m->phase = model_has_active_break(MANIFEST_FIRST) ? COMMITTED : KEPT;
    model_add_successor(w, &s, i);
  }
}

/* ---- transitions of masters: training and checkpoints ---------------------------------------- */

static void begin_training(model_walk *w, const void *from) {
  FOR_EACH_MASTER(i) {
    state s = *(const state *)from;
    master *m = &s.m[i];
    if (m->phase != CLEANING || m->files_to_remove) continue;
    m->phase =
        m->step < size.n_steps || model_has_active_break(NO_PRUNE_AT_END) ? TRAINING : COMMITTED;
    model_add_successor(w, &s, i);
  }
}

/* Takes a step and begins its checkpoint. An unfinished checkpoint of the same step is cleared. */
static void begin_checkpoint(model_walk *w, const void *from) {
  FOR_EACH_MASTER(i) {
    state s = *(const state *)from;
    master *m = &s.m[i];
    if (m->phase != TRAINING || m->step == size.n_steps || !has_session(&s, m)) continue;
    m->step++;
    if (!is_named_by_run_record(&s, m)) {
      free_master(m);
    } else if (is_usable_checkpoint(&s, m->step)) {
      m->phase = TRAINING;
    } else {
      s.folder_state[m->step] = INCOMPLETE;
      s.has_manifest[m->step] = 0;
      m->phase = BEGUN;
    }
    model_add_successor(w, &s, i);
  }
}

static void write_parts(model_walk *w, const void *from) {
  FOR_EACH_MASTER(i) {
    state s = *(const state *)from;
    master *m = &s.m[i];
    if (m->phase != BEGUN) continue;
    if (s.folder_state[m->step] == NO_FOLDER)
      free_master(m);
    else {
      s.folder_state[m->step] = COMPLETE;
      m->phase = model_has_active_break(MANIFEST_FIRST) ? KEPT : WRITTEN;
    }
    model_add_successor(w, &s, i);
  }
}

static void remove_older_checkpoints(state *s, uint8_t newest_step) {
  for (uint8_t k = 1; k < newest_step; k++) s->folder_state[k] = s->has_manifest[k] = 0;
}

/* Returns, as bits, the files at the worker that manifests before the newest checkpoint name. */
static uint8_t find_older_files(const state *s, uint8_t newest_step) {
  uint8_t plan = 0;
  for (uint8_t k = 1; k < newest_step; k++)
    if (s->is_file_kept[k] && s->has_manifest[k]) plan |= BIT(k);
  return plan;
}

/* Gives the manifest its final name, unless run.json names a newer attempt. The newer attempt may
 * already have listed this checkpoint's file as one that no manifest names, and would remove it. */
static void commit_manifest(model_walk *w, const void *from) {
  FOR_EACH_MASTER(i) {
    state s = *(const state *)from;
    master *m = &s.m[i];
    if (m->phase != KEPT) continue;
    bool is_replaced = !is_named_by_run_record(&s, m) && !model_has_active_break(COMMIT_UNCHECKED);
    if (model_has_active_break(PRUNE_BEFORE_MANIFEST) && find_older_files(&s, m->step)) {
      remove_older_checkpoints(&s, m->step);
      for (uint8_t k = 1; k < m->step; k++) s.is_file_kept[k] = 0;
    } else if (s.folder_state[m->step] == NO_FOLDER || is_replaced) {
      free_master(m);
    } else {
      s.has_manifest[m->step] = 1;
      bool counts = is_usable_checkpoint(&s, m->step) || model_has_active_break(MANIFEST_FIRST);
      if (counts && m->step > s.newest_committed) s.newest_committed = m->step;
      m->phase = model_has_active_break(MANIFEST_FIRST) ? WRITTEN : COMMITTED;
    }
    model_add_successor(w, &s, i);
  }
}

/* Removes the checkpoints that are older than the newest one that can be read: first the parts at
 * the master, then the files at the worker. */
static void prune_checkpoints(model_walk *w, const void *from) {
  FOR_EACH_MASTER(i) {
    state s = *(const state *)from;
    master *m = &s.m[i];
    if (m->phase != COMMITTED) continue;
    uint8_t newest_step = find_newest_usable(&s);
    if (model_has_active_break(PRUNE_UNVERIFIED))
      for (newest_step = size.n_steps; newest_step && !s.has_manifest[newest_step];) newest_step--;
    m->files_to_remove = find_older_files(&s, newest_step);
    remove_older_checkpoints(&s, newest_step);
    m->phase = PRUNING;
    model_add_successor(w, &s, i);
  }
}

static void end_prune(model_walk *w, const void *from) {
  FOR_EACH_MASTER(i) {
    state s = *(const state *)from;
    if (s.m[i].phase != PRUNING || s.m[i].files_to_remove) continue;
    s.m[i].phase = TRAINING;
    model_add_successor(w, &s, i);
  }
}

static void finish_run(model_walk *w, const void *from) {
  FOR_EACH_MASTER(i) {
    state s = *(const state *)from;
    if (s.m[i].phase != TRAINING || s.m[i].step != size.n_steps) continue;
    s.is_finished |= is_named_by_run_record(&s, &s.m[i]) && find_newest_usable(&s) == size.n_steps;
    free_master(&s.m[i]);
    model_add_successor(w, &s, i);
  }
}

/* ---- transitions of the environment: deaths and damage --------------------------------------- */

static void kill_master(model_walk *w, const void *from) {
  FOR_EACH_MASTER(i) {
    state s = *(const state *)from;
    if (s.m[i].phase == OUT || s.n_deaths == size.n_deaths) continue;
    s.n_deaths++;
    free_master(&s.m[i]);
    model_add_successor(w, &s, i);
  }
}

static void kill_worker(model_walk *w, const void *from) {
  state s = *(const state *)from;
  if (s.n_worker_deaths == size.n_worker_deaths) return;
  s.n_worker_deaths++;
  s.session_epoch = s.session_master = 0;
  model_add_successor(w, &s, 0);
}

/* The worker frees the session of a master that has ended. */
static void free_session(model_walk *w, const void *from) {
  state s = *(const state *)from;
  if (!s.session_epoch) return;
  FOR_EACH_MASTER(i) if (s.m[i].phase != OUT && s.m[i].master_number == s.session_master) return;
  s.session_epoch = s.session_master = 0;
  model_add_successor(w, &s, 0);
}

/* A faulty disk damages a file of a checkpoint that a master has written and not yet committed. */
static void damage_file(model_walk *w, const void *from) {
  FOR_EACH_MASTER(i) {
    state s = *(const state *)from;
    const master *m = &s.m[i];
    if (s.n_damages || m->phase != WRITTEN || s.folder_state[m->step] != COMPLETE ||
        s.has_manifest[m->step])
      continue;
    s.n_damages = 1;
    s.folder_state[m->step] = DAMAGED;
    model_add_successor(w, &s, i);
  }
}

static const model_step steps[] = {
    {"runs.lock_folder", lock_folder},
    {"runs.begin_attempt", begin_attempt},
    {"runs.open_session", open_session},
    {"runs.raise_epoch", raise_epoch},
    {"runs.lose_session", lose_session},
    {"runs.remove_kept", remove_kept},
    {"runs.keep_file", keep_file},
    {"runs.begin_training", begin_training},
    {"runs.begin_checkpoint", begin_checkpoint},
    {"runs.write_parts", write_parts},
    {"runs.commit", commit_manifest},
    {"runs.prune", prune_checkpoints},
    {"runs.end_prune", end_prune},
    {"runs.finish", finish_run},
    {"runs.kill_master", kill_master},
    {"runs.kill_worker", kill_worker},
    {"runs.free_session", free_session},
    {"runs.damage", damage_file},
};

static const char *find_violation(const void *at) {
  const state *s = at;
  if (s->is_worker_file_changed_by_older) return "an older attempt changes files of the worker";
  if (s->is_run_taken_by_older) return "an older attempt takes the place of a newer one";
  if (find_newest_usable(s) < s->newest_committed) return "a committed checkpoint is lost";
  if (!size.has_one_lock || !s->is_finished || s->m[0].phase != OUT || s->m[1].phase != OUT)
    return NULL;
  for (unsigned k = 1; k < size.n_steps; k++) {
    if (s->is_file_kept[k]) return "a finished run leaves a file at the worker";
    if (s->folder_state[k]) return "a finished run leaves an older checkpoint at home";
  }
  return NULL;
}

static bool may_end_here(const void *at) {
  const state *s = at;
  return s->m[0].phase == OUT && s->m[1].phase == OUT;
}

const model *make_runs_model(int scale, int variant) {
  static model m = {.name = "runs",
                    .state_bytes = sizeof(state),
                    .steps = steps,
                    .n_steps = sizeof steps / sizeof *steps,
                    .write_initial_state = set_initial_state,
                    .find_violation = find_violation,
                    .may_end_here = may_end_here,
                    .break_names = breaks,
                    .break_variants = break_variants,
                    .n_breaks = sizeof breaks / sizeof *breaks};
  size.has_one_lock = variant == 1;
  size.n_steps = (uint8_t)(variant ? 2 + 2 * scale : 2 + scale);
  size.n_starts = (uint8_t)(variant ? 3 + 2 * scale : 2 + scale);
  size.n_deaths = (uint8_t)(variant ? 2 + 2 * scale : 1 + scale);
  size.n_worker_deaths = (uint8_t)(variant ? 1 + 2 * scale : 1);
  return &m;
}

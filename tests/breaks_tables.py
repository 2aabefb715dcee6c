# SPDX-License-Identifier: Apache-2.0
"""Deliberate breaks of tables, each with its test; further rows of breaks.BREAKS."""
from breaks import of

of("master/data/table_encoder.c", "tests/unit/data/test_tables",
   std_is_of_a_sample=("static double compute_std(", "sum / (double)n", "sum / (double)(n - 1)"),
   missing_values_do_not_count=("static clv_code learn_numbers(", "rows->n - s.n", "0"),
   equal_values_have_the_last_quantile=("static double interpolate(", "is_mirrored ? x[middle] < v :", ""),
   unseen_classes_are_the_last=("clv_code clv_table_class_labels(", "if ((size_t)labels[i] == l->n_classes)", "if (false)"),
   rules_may_change=("static clv_code find_source_column(", "o->scale == c->scale", "true"))
of("master/data/table.c", "tests/unit/data/test_tables",
   broken_records_leave_their_id=("static clv_code read_record(", "return r->t->count++, CLV_OK;", "return r->t->count += 1 + (r->t->broken.n > 0), CLV_OK;"))
of("master/data/cells_csv.c", "tests/unit/data/test_tables",
   one_field_is_a_header=("static clv_code check_header(", "!strpbrk(", "true || !strpbrk("))
of("master/data/table_facts.c", "tests/unit/data/test_tables",
   words_tell_nothing=("static clv_code find_revealed_target(", "if (!determines_target && ", "if ("))
of("master/plan/run_data.c", "tests/net/training/test_table.py",
   test_records_are_learnt_from=("static clv_code encode_set(", "if (!ds || !clv_dataset_has_table(ds)) return CLV_OK;",
                                 "if (!ds || !clv_dataset_has_table(ds)) return CLV_OK; if (s->skips_labels) { clv_subset all; CLV_TRY(clv_subset_all(ds, &all, err)); CLV_TRY(clv_dataset_learn(ds, &all, &d->learnt, err)); }"))
of("master/run/run_target_predictions.c", "tests/net/training/test_table.py",
   formulas_stay=("void clv_predictions_add_csv_text(", 'strchr("=+-@\\t\\r", *text)', "false"))
TEXTS = "tests/unit/data/test_table_text"
of("master/data/table.c", TEXTS,
   texts_are_trimmed=("static clv_code store_cell(", "store_text(r, c, cell->text, cell->len, false, err)", "store_text(r, c, text, len, false, err)"),
   broken_records_leave_their_text=("static clv_code read_record(", "clv_text_rows_drop(&r->t->texts, n_texts_before, n_truncated_before);", ""),
   absent_texts_have_no_row=("static clv_code set_cell_missing(", "if (c->o.use == CLV_COLUMN_TEXT)", "if (false)"))
of("master/data/token_rows.c", TEXTS,
   texts_of_dropped_records_stay=("void clv_text_rows_keep_only(", "if (!r->n) return;", "return;"),
   cut_texts_of_dropped_records_count=("void clv_text_rows_keep_only(", "r->n_truncated = 0;", ""))
of("master/data/table_text.c", TEXTS,
   texts_beside_numbers_are_lost=("static clv_code check_columns(", "if (!n_others || o->n_named_inputs) return CLV_OK;", "return CLV_OK;"),
   missing_texts_are_counted_as_texts=("clv_code clv_table_add_text(", "is_missing ? CLV_MISSING_CODE :", "false ? CLV_MISSING_CODE :"))
of("master/data/table_text_inputs.c", TEXTS,
   different_texts_count_as_one=("static int compare_rows(", "x->width * sizeof *x->at", "2 * sizeof *x->at"))
of("master/data/table_encoder.c", TEXTS,
   missing_texts_may_become_others=("static bool has_same_text(", "strcmp(o->value ? o->value : \"\", c->values[0]) == 0", "true"))
of("master/data/format_table.c", TEXTS,
   limits_are_lost_when_a_table_is_encoded=("static clv_code set_inputs(", "ds->count = count;", ""))
of("common/model/config/session_table.c", "tests/net/training/test_text.py text_stands_beside_numbers",
   texts_may_be_on_disk=("static clv_code check_text_column(", "d->table.storage == CLV_STORAGE_DISK", "false"))
of("master/data/table_find.c", "tests/net/training/test_text.py session_from_a_table_suggests_texts",
   texts_are_ids=("static clv_column_use choose_column_use(", " && !has_texts", ""))
FILES = "tests/net/training/test_images.py"
of("master/data/image_folder.c", f"{FILES} paths_that_leave_the_folder_are_refused_with_their_place",
   absolute_paths_are_opened=("bool clv_image_is_path_inside(", "if (*path == '/') return false;", ""),
   paths_climb_out=("bool clv_image_is_path_inside(", "(part[2] == '/' || !part[2])", "part[2] == '.'"),
   folders_are_images=("bool clv_image_is_file(", "S_ISREG(st.st_mode)", "st.st_mode"))
of("master/data/table.c", f"{FILES} images_that_a_table_names_train_as_those_of_a_folder",
   images_keep_the_order_of_the_first=("static clv_code store_image_path(", "t->path_offsets[t->count] = t->id_texts.len;", "t->path_offsets[t->count] = t->count ? t->path_offsets[0] : t->id_texts.len;"))
of("master/data/cells_jsonl.c", "tests/unit/data/test_table_forms",
   keys_may_come_twice=("static clv_code find_field(", "if (*last_record == s->n_records)", "if (false)"),
   nested_values_are_texts=("static clv_code read_value(", "[CLV_JSON_LIST] = CLV_CELL_OTHER", "[CLV_JSON_LIST] = CLV_CELL_TEXT"))
of("master/data/cells_csv.c", "tests/unit/data/test_table_forms",
   open_quotes_are_a_broken_record=("static clv_code read_cell(", "s->has_ended_early = s->csv.lacks_quote;", ""))
of("master/data/texts.c", "tests/unit/data/test_texts",
   open_quotes_of_texts_are_a_broken_record=("static clv_code read_csv_record(", "t->lacks_quote = c.lacks_quote;", ""))
of("master/data/cells_sqlite.c", "tests/unit/data/test_table_forms",
   any_action_is_permitted=("static int authorize_action(", "return SQLITE_DENY;", "return SQLITE_OK;"),
   any_function_is_permitted=("static int authorize_action(", "function && clv_query_may_call(function)", "function"),
   logs_beside_a_database_do_not_count=("static clv_code open_database(", "CLV_TRY(check_no_journal_changes(s->path, err));", ""),
   queries_have_no_limit_of_rows=("static clv_code start_next_record(", "s->n_records == q->max_rows", "false"),
   queries_have_no_limit_of_time=("static int stop_at_deadline(", "q->has_timed_out = clv_now_ns() > q->deadline_ns;", ""))
of("master/data/query_text.c", "tests/unit/data/test_table_forms",
   order_within_parentheses_counts=("static void note_query_word(", "!w->depth && ", ""),
   comments_are_words=("static size_t skip_token(", "if (comment_len) return comment_len;", ""))
of("master/data/table.c", "tests/unit/data/test_table_forms",
   unknown_keys_are_broken_records=("static clv_code resolve_fields(", "r->is_fatal = true;", ""),
   sets_may_have_any_name=("static clv_code read_group_set(", "return clv_cells_fail(", "return *ret = 0, CLV_OK; return clv_cells_fail("))
of("master/data/dates.c", "tests/unit/data/test_table_forms",
   years_of_1900_leap=("static bool is_leap_year(", "(year % 100 != 0 || year % 400 == 0)", "true"),
   zones_are_west=("static bool read_time_zone(", "(is_west ? -1 : 1)", "(is_west ? 1 : -1)"))
of("master/data/table_encoder.c", "tests/unit/data/test_tables",
   parts_of_a_missing_date_are_of_1970=("static size_t encode_date_parts(", "days = c->fill_number;", "days = 0;"))
of("master/data/split.c", "tests/unit/data/test_table_forms",
   empty_sets_are_kept=("clv_code clv_dataset_keep_sets(", "if (!kept_records.n)", "if (false)"),
   a_time_is_divided=("static clv_code divide_by_time(", "times[ds->count - n]", "times[ds->count - n] + 1"))
of("master/data/split.c", "tests/unit/data/test_tables",
   classes_of_a_target_do_not_count=("clv_split_kind clv_dataset_split_kind(", "ds->split_target || ", ""),
   any_target_is_split_by=("int64_t clv_dataset_split_class(", "ds->split_target - 1", "0"))
of("master/data/sampling.c", "tests/unit/data/test_tables",
   records_without_a_label_are_never_drawn=("static void average_unlabelled(", "n ? sum / (double)n : 0", "0"))
of("master/data/folds.c", "tests/unit/data/test_split",
   classes_do_not_count=("static clv_code list_fold_items(", "kind == CLV_SPLIT_STRATIFIED ?", "false ?"),
   folds_have_any_size=("static clv_code assign_groups_to_folds(", "sizes[smallest_fold] += groups[i].n;", ""))
of("master/data/duplicates.c", "tests/unit/data/test_table_forms",
   labels_of_equal_records_are_equal=("static void count_duplicates_in_list(", "label_hash != first_label_hash", "false"))
of("master/plan/run_data.c", "tests/net/training/test_table.py",
   untrained_classes_are_not_noted=("static void note_untrained_classes(", "if (!n) return;", "return;"),
   test_records_are_trained_on=("static data_set_files describe_train_files(", "1u << CLV_SET_TRAINING | 1u << CLV_SET_VALIDATION", "7u"))
of("master/plan/run_data.c", "tests/net/operations/test_checks.py",
   sets_may_lose_all_records=("static clv_code check_sets_left(", "if (sets[i].rows->n || !n_rows_before[i]) continue;", "continue;"))
of("master/data/source.c", "tests/unit/data/test_readers",
   converted_elements_are_mapped=("static bool has_same_bytes(", "copies_bytes && ", ""),
   mapped_arrays_are_empty=("static clv_code map_file(", "MAP_PRIVATE | MAP_NORESERVE", "MAP_PRIVATE | MAP_ANONYMOUS"))
of("master/data/table_encoder.c", "tests/unit/data/test_tables",
   missing_values_are_other_values=("static size_t find_element_of_code(", "c->n_values + 1", "c->n_values"))
of("master/data/sampling.c", "tests/unit/data/test_tables",
   all_weights_may_be_0=("static bool accumulate_chances(", "chances[n - 1] > 0 && ", ""))
of("master/data/table.c", "tests/unit/data/test_tables",
   weights_may_be_negative=("static clv_code store_number(", "v < 0", "false"))
of("master/data/sorted_values.c", "tests/unit/data/test_table_cache",
   parts_are_not_merged=("static bool is_before(", "*a->at < *b->at", "*a->at > *b->at"),
   fills_come_last=("static clv_code add_fills_on_disk(", "fill < s->v[i]", "false"))
of("master/data/cell_files.c", "tests/unit/data/test_table_cache",
   codes_of_no_value_are_read=("static bool are_valid_codes(", "codes[i] >= (int64_t)c->names.n", "false"),
   ids_may_be_anywhere=("static bool are_valid_offsets(", "(uint64_t)offsets[i] >= len ||", ""),
   labels_of_yes_or_no_may_be_2=("static bool are_valid_labels(", "c->is_yes_or_no && ", "false && "),
   numbers_of_a_cache_may_be_infinite=("static bool are_valid_numbers(", "fabs(c->numbers[i]) >= limit", "fabs(c->numbers[i]) > limit"),
   paths_leave_the_folder_of_a_cache=("static clv_code map_texts(", "!clv_image_is_path_inside(", "false && !clv_image_is_path_inside("),
   paths_begin_anew_with_each_block=("static clv_code add_offsets(", "offsets[i] += f->n_text_bytes", "offsets[i] += 0"),
   caches_may_be_of_others=("static clv_code check_owner(", " || st.st_mode & 077", ""))
of("master/data/table_cache.c", "tests/unit/data/test_table_cache",
   images_that_are_gone_stay=("static bool has_current_files(", "if (!clv_image_is_file(", "if (false && !clv_image_is_file("),
   images_that_came_are_left_out=("static bool has_current_files(", "return !t->path_offsets || !t->broken.n;", "return true;"),
   tasks_of_targets_do_not_count=("static void append_rules(", "t->targets[i].task", "0"),
   stale_caches_stay=("clv_code clv_table_open_on_disk(", "delete_stale_folders(o->table.cache_folder, &e);", ""),
   changed_tables_keep_their_cache=("static clv_code make_entry(", "CLV_TRY(append_digest(e, &e->file_state, err));", "CLV_TRY(append_digest(e, &path, err));"))
of("master/data/cells_json.c", "tests/unit/data/test_table_cache",
   caches_of_other_tables_are_read=("static clv_code read_key(", "strcmp(text.data, key) == 0", "true"))
of("master/data/table_encoder.c", "tests/unit/data/test_table_cache",
   refused_numbers_may_be_missing=("static clv_code check_no_refused_missing(", "if (isnan(", "if (false && isnan("))
of("master/plan/table_index.c", "tests/net/training/test_table.py",
   embeddings_may_be_small=("clv_code clv_index_check(", "node->attrs.rows >= (int64_t)f.n_rows", "true"))
of("master/data/table_targets.c", "tests/unit/data/test_table_cache",
   rows_of_targets_are_records=("clv_code clv_targets_set_labels(", "c->numbers[clv_table_row(t, i)]", "c->numbers[i]"),
   rows_of_target_classes_are_records=("static clv_code fill_target_classes(", "c->codes[clv_table_row(t, i)]", "c->codes[i]"))

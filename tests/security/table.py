"""The table of attacks: sixty numbered cases, in seven chapters, with the tests that show what comes of each.

A case stays red, by test_table.py, on a store that it counts for and where nobody shows it. See cases.py.
"""

from __future__ import annotations

from security.cases import (
    CLUSTER,
    COMMAND,
    DASHBOARD,
    EVERY,
    FILE,
    MARIADB,
    NETWORK,
    POSTGRESQL,
    REDIS,
    ROWS,
    WAKES,
    ZOOKEEPER,
    Case,
)  # fmt: skip

INPUTS, SECRETS, OWNERSHIP = "security/test_inputs.py", "security/test_secrets.py", "security/test_ownership.py"
PLANTED, DAMAGE, LIMITS = "security/test_planted.py", "security/test_damage.py", "security/test_limits.py"
HOSTILE_ROWS, URLS = "security/test_rows.py", "security/test_urls.py"
HOSTILE_NODES, ACCESS = "security/test_nodes.py", "security/test_access.py"
IN_POSTGRESQL, PG_RACES = "security/test_postgresql.py", "store/postgresql/test_races.py"
VALUES, MESSAGES, REDIS_ACCESS = (f"security/test_{word}.py" for word in ("values", "messages", "redis_access"))
MYSQL, MYSQL_RIGHTS = "security/test_mysql_access.py", "store/mysql/test_rights.py"
BAD_SERVERS, REFUSALS = "store/redis/test_bad_servers.py", "store/redis/test_faults_refusals.py"
PLACE, REPLACED, PRESENCE = (f"store/sqlite/test_{word}.py" for word in ("place", "replaced", "presence"))
SEAM, LOOKING, ASYNCIO, RELEASE = (f"contract/test_{word}.py" for word in ("seam", "looking", "asyncio", "release"))
TEXTS, HOUSE, IMPORTS, FORK = (
    "core/test_texts.py", "architecture/test_house.py", "architecture/test_imports.py", "process/test_fork.py",
)  # fmt: skip

BAD_NAME = (f"{INPUTS}::test_bad_names_are_refused_before_any_io", f"{INPUTS}::test_bad_namespaces_are_refused")
ODD_NAME = (f"{INPUTS}::test_odd_names_are_distinct_locks", f"{INPUTS}::test_odd_names_are_prefixes_too")

NAMES = [
    Case(1, "a name that is empty or blank", "BadName, a ValueError", EVERY, {EVERY: BAD_NAME}),
    Case(2, "a name of 1 MB", "BadName before any I/O", EVERY, {EVERY: BAD_NAME}),
    Case(3, "NUL in a name", "BadName", EVERY, {EVERY: BAD_NAME}),
    Case(4, "line breaks and a command in a name", "BadName", EVERY, {EVERY: BAD_NAME}),
    Case(5, "SQL in a name", "a name like others", EVERY, {EVERY: ODD_NAME}),
    Case(
        6, "paths and reserved words as names, where names are paths", "encoded, under the root", ZOOKEEPER,
        {"zookeeper": (f"{HOSTILE_NODES}::test_names_are_no_paths",
                       f"{HOSTILE_NODES}::test_paths_as_written_are_checked")},
    ),
    Case(7, "hash tags in a name", "all keys of a lock in one slot, which the name does not choose", CLUSTER),
    Case(
        8, "patterns in what is listed", "no meaning but themselves", EVERY,
        {EVERY: (f"{LOOKING}::test_a_prefix_means_itself", ODD_NAME[1])},
    ),
    Case(
        9, "names that differ in case, accents or a space at the end", "different locks, or refused", MARIADB,
        {"mysql": (f"{MYSQL}::test_names_that_differ_in_case_accents_or_a_space_are_different_locks",)},
    ),
    Case(
        10, "names of 65 and 193 characters", "they work", MARIADB, {"mysql": (f"{MYSQL}::test_long_names_work",)},
    ),
    Case(
        11, "two names that collide in a key of 64 bits", "refused or shared, as documented; never held", POSTGRESQL,
        {"postgresql": (f"{PG_RACES}::test_two_names_that_meet_in_one_key_are_two_locks",)},
    ),
    Case(
        12, "a name that looks like a part of another's layout", "distinct locks", EVERY,
        {EVERY: (*ODD_NAME, f"{LOOKING}::test_a_namespace_and_a_name_never_run_into_each_other",
                 f"{TEXTS}::test_namespace_and_name_are_encoded_injectively")},
    ),
    Case(
        13, "surrogates, emoji, right-to-left marks, terminal escapes", "refused, or listed without harm", EVERY,
        {EVERY: (*BAD_NAME, *ODD_NAME, f"{INPUTS}::test_odd_texts_beside_a_claim_are_shown_as_written",
                 f"{TEXTS}::test_foreign_text_cannot_steer_a_terminal",
                 f"{TEXTS}::test_a_label_cannot_steer_a_terminal")},
    ),
    Case(14, "names that mean something to a browser", "inert", DASHBOARD),
]  # fmt: skip

OWNERS = [
    Case(
        15, "a release with a guessed or another's id", "refused, the lock stays", EVERY,
        {EVERY: (f"{OWNERSHIP}::test_a_guessed_id_ends_nothing",
                 f"{SEAM}::test_a_leave_with_another_id_changes_nothing",
                 f"{SEAM}::test_a_renewal_with_another_id_is_refused",
                 f"{SEAM}::test_an_amendment_with_another_id_changes_nothing",
                 f"{SECRETS}::test_tokens_are_no_credentials")},
    ),
    Case(
        16, "the holder's name, host, pid and thread, from elsewhere; a clone of its machine", "not the owner", EVERY,
        {EVERY: (f"{OWNERSHIP}::test_who_looks_like_the_holder_is_not",
                 f"{OWNERSHIP}::test_who_looks_like_the_owner_of_an_rlock_does_not_enter",
                 f"{OWNERSHIP}::test_a_clone_that_no_hook_saw_makes_other_ids")},
    ),
    Case(
        17, "a forked child releases, renews, finalises, exits", "no effect on its parent's hold", EVERY,
        {EVERY: (f"{OWNERSHIP}::test_a_forked_child_has_no_part_in_its_parents_hold",),
         "zookeeper": (f"{FORK}::test_a_child_holds_nothing_and_works",
                       f"{FORK}::test_a_child_goes_out_through_its_parents_with",
                       f"{FORK}::test_finalisers_and_exit_hooks_of_a_child_free_nothing",
                       f"{FORK}::test_a_childs_keeper_does_not_keep_what_its_parent_holds"),
         "redis": (f"{FORK}::test_a_child_holds_nothing_and_works",
                   f"{FORK}::test_a_child_goes_out_through_its_parents_with",
                   f"{FORK}::test_finalisers_and_exit_hooks_of_a_child_free_nothing",
                   f"{FORK}::test_a_childs_keeper_does_not_keep_what_its_parent_holds"),
         "sqlite": (f"{FORK}::test_a_child_holds_nothing_and_works",
                    f"{FORK}::test_a_child_goes_out_through_its_parents_with",
                    f"{FORK}::test_finalisers_and_exit_hooks_of_a_child_free_nothing",
                    f"{FORK}::test_a_childs_keeper_does_not_keep_what_its_parent_holds",
                    f"{PRESENCE}::test_a_forked_child_that_closes_its_copy_frees_nothing")},
    ),
    Case(
        18, "a claim's id in a URL, log, repr, traceback", "absent", EVERY,
        {EVERY: (f"{SECRETS}::test_claim_ids_are_shown_nowhere",
                 f"{OWNERSHIP}::test_ids_are_not_in_what_an_error_tracker_records")},
    ),
    Case(
        19, "the same seed in two processes", "ids differ", EVERY,
        {EVERY: (f"{OWNERSHIP}::test_the_same_seed_gives_other_ids", f"{OWNERSHIP}::test_after_a_fork_ids_are_others",
                 f"{SECRETS}::test_ids_are_random_and_long")},
    ),
    Case(
        20, "an old release, replayed after the same client took the lock again", "no effect", EVERY,
        {EVERY: (f"{OWNERSHIP}::test_a_replayed_leave_spares_the_next_claim",)},
    ),
    Case(
        21, "a task that is cancelled during release", "released or still owned", EVERY,
        {EVERY: (f"{ASYNCIO}::test_cancellation_anywhere_in_release_gives_back",
                 "interrupts/test_cancel.py::test_a_cancelled_task_leaves_nothing_behind")},
    ),
    Case(
        22, "tokens that leak between tasks of one thread", "impossible", EVERY,
        {EVERY: (f"{OWNERSHIP}::test_tasks_of_one_thread_share_nothing",
                 f"{ASYNCIO}::test_another_task_is_another_owner",
                 f"{RELEASE}::test_lock_release_of_another_actor_is_an_error_and_frees_nothing")},
    ),
    Case(
        23, "forged wake-ups, ten thousand a second", "looks at most, and few", WAKES,
        {"sqlite": ("security/test_forgery.py::test_a_flood_of_forged_messages",
                    f"{PRESENCE}::test_garbage_on_the_socket_causes_nothing_but_looks",
                    f"{PRESENCE}::test_a_signal_that_nobody_knows"),
         "redis": tuple(f"{MESSAGES}::test_{test}" for test in (
            "forged_letters_to_a_client_that_waits", "a_letter_for_another_clients_claim",
            "forged_changes_of_a_name", "forged_changes_for_who_follows_a_leader", "forged_changes_of_a_latch")),
         "postgresql": (f"{IN_POSTGRESQL}::test_forged_letters_to_a_client_that_waits",)},
    ),
    Case(
        24, "hostile values where claims are kept", "an error that names the lock; no crash, no grant", ROWS,
        {"sqlite": tuple(f"{HOSTILE_ROWS}::test_{test}" for test in (
            "a_hostile_row_grants_nothing_and_crashes_nobody", "others_are_served_beside_a_hostile_row",
            "a_row_of_the_wrong_types_cannot_be_written", "text_that_is_no_text",
            "a_hostile_store_is_refused_or_used_by_one_at_a_time", "a_row_planted_beside_a_holder",
            "a_row_that_lasts_for_ever_can_be_broken", "a_planted_client_cannot_point_at_files_elsewhere",
            "a_planted_client_is_not_written_to_elsewhere", "a_planted_outsider_costs_nothing",
            "a_crowd_of_planted_clients_is_no_hindrance")),
         "zookeeper": tuple(f"{HOSTILE_NODES}::test_{test}" for test in (
            "hostile_data_in_a_holders_node", "a_hostile_node_in_a_free_directory", "a_hostile_node_beside_a_holder",
            "a_number_that_is_too_high_keeps_nobody_out", "a_hostile_size_of_a_semaphore",
            "a_node_with_the_id_of_a_holder", "a_node_with_the_id_of_a_claim_is_not_taken_over",
            "what_others_write_into_a_holders_node", "a_node_that_lasts_for_ever_can_be_broken",
            "a_crowd_of_planted_nodes")),
         "redis": tuple(f"{VALUES}::test_{test}" for test in (
            "a_hostile_record_of_a_holder", "a_hostile_record_beside_a_holder", "what_is_no_record", "what_is_no_line",
            "a_hostile_line_is_refused_or_used_by_one_at_a_time", "a_circle_of_claims",
            "a_record_that_lasts_for_ever_can_be_broken", "a_crowd_of_planted_claims", "hostile_values_of_cells",
            "a_fence_of_another_type_admits_nobody")),
         "postgresql": tuple(f"{IN_POSTGRESQL}::test_{test}" for test in (
            "a_hostile_row", "a_row_that_cannot_be_written", "a_hostile_row_beside_a_holder",
            "a_row_below_all_that_were_given", "a_row_that_lasts_for_ever_can_be_broken",
            "a_row_whose_end_was_put_off_ends_with_its_lease", "hostile_values_of_cells")),
         "mysql": tuple(f"{MYSQL}::test_{test}" for test in (
            "a_hostile_row_grants_nothing_and_crashes_nobody", "a_row_that_lasts_for_ever_can_be_broken",
            "hostile_values_of_cells"))},
    ),
]  # fmt: skip

CREDENTIALS = [
    Case(
        25, "URLs with secrets, whole and broken", "the secret is shown nowhere", EVERY,
        {EVERY: (f"{URLS}::test_a_secret_is_shown_nowhere",
                 f"{URLS}::test_a_url_that_is_parsed_is_shown_without_its_secret",
                 f"{SECRETS}::test_a_refused_url_does_not_show_its_password",
                 "core/test_url.py::test_a_password_is_never_shown", f"{INPUTS}::test_bad_urls_are_refused")},
    ),
    Case(
        26, "a wrong password", "an error without it", NETWORK,
        {"zookeeper": (f"{ACCESS}::test_a_wrong_password_by_digest_is_another_user",
                       f"{ACCESS}::test_a_wrong_password_by_sasl", f"{ACCESS}::test_the_right_one_gets_in",
                       f"{ACCESS}::test_a_server_that_wants_another_login"),
         "redis": (f"{REDIS_ACCESS}::test_a_wrong_password", f"{REDIS_ACCESS}::test_the_right_one_gets_in",
                   f"{REDIS_ACCESS}::test_no_password_where_one_is_wanted",
                   "store/redis/test_drivers.py::test_a_server_that_repeats_the_password_is_not_quoted"),
         "postgresql": (f"{IN_POSTGRESQL}::test_a_wrong_password", f"{IN_POSTGRESQL}::test_the_right_one_gets_in",
                        f"{IN_POSTGRESQL}::test_no_password_where_one_is_wanted",
                        "store/postgresql/test_address.py::test_a_secret_in_the_wrong_place_is_not_repeated"),
         "mysql": (f"{MYSQL}::test_a_wrong_password", f"{MYSQL}::test_the_right_one_gets_in",
                   f"{MYSQL_RIGHTS}::test_a_wrong_password")},
    ),
    Case(
        27, "a certificate that is self-signed or another host's", "refused by default", NETWORK,
        {"zookeeper": (f"{ACCESS}::test_a_certificate_that_is_not_to_be_trusted",
                       f"{ACCESS}::test_an_authority_that_nobody_named"),
         "redis": (f"{REDIS_ACCESS}::test_a_certificate_that_is_not_to_be_trusted",
                   f"{REDIS_ACCESS}::test_an_authority_that_nobody_named",
                   f"{REDIS_ACCESS}::test_tls_with_the_authority_that_is_named"),
         "postgresql": (f"{IN_POSTGRESQL}::test_an_authority_that_nobody_named",
                        f"{IN_POSTGRESQL}::test_nothing_is_said_to_an_impostor",
                        f"{IN_POSTGRESQL}::test_tls_with_the_authority_that_is_named"),
         "mysql": (f"{MYSQL}::test_a_certificate_that_is_not_to_be_trusted",
                   f"{MYSQL}::test_an_authority_that_nobody_named",
                   f"{MYSQL}::test_tls_with_the_authority_that_is_named")},
    ),
    Case(
        28, "a connection that is downgraded, an address that is foreign", "refused", NETWORK,
        {"zookeeper": (f"{ACCESS}::test_tls_to_a_server_that_speaks_in_clear",
                       f"{ACCESS}::test_nothing_is_said_in_clear_where_tls_was_asked_for",
                       f"{ACCESS}::test_no_tls_to_a_server_that_speaks_nothing_else",
                       f"{ACCESS}::test_a_server_without_sasl"),
         "redis": (f"{REDIS_ACCESS}::test_tls_to_a_server_that_speaks_in_clear",
                   f"{REDIS_ACCESS}::test_nothing_is_said_in_clear_where_tls_was_asked_for",
                   f"{REDIS_ACCESS}::test_no_tls_to_a_server_that_speaks_nothing_else",
                   f"{REDIS_ACCESS}::test_an_address_that_is_foreign"),
         "postgresql": (f"{IN_POSTGRESQL}::test_no_tls_where_it_is_wanted_and_the_other_way_round",
                        f"{IN_POSTGRESQL}::test_nothing_is_said_to_an_impostor"),
         "mysql": (f"{MYSQL}::test_tls_to_a_server_that_speaks_in_clear",
                   f"{MYSQL}::test_no_tls_to_a_server_that_speaks_nothing_else")},
    ),
    Case(
        29, "a user without the rights that are needed", "a clear error, no busy loop", NETWORK,
        {"zookeeper": (f"{ACCESS}::test_a_user_without_the_rights",),
         "redis": (f"{REDIS_ACCESS}::test_a_user_without_the_rights", f"{REFUSALS}::test_without_the_right_to_it"),
         "postgresql": (f"{IN_POSTGRESQL}::test_a_user_without_the_rights",
                        "store/postgresql/test_first_use.py::test_the_least_rights_are_enough"),
         "mysql": (f"{MYSQL_RIGHTS}::test_a_user_without_the_rights",
                   f"{MYSQL_RIGHTS}::test_without_the_right_to_create_one_is_told_what_to_do")},
    ),
    Case(
        30, "a password on the command line", "warned of; from the environment or a file it is not shown", COMMAND,
        {EVERY: (f"{SECRETS}::test_a_url_from_the_environment_does_not_show_its_password",),
         COMMAND: ("cli/test_run_options.py::test_a_password_on_the_command_line_is_warned_of_and_not_repeated",
                   "cli/test_run_options.py::test_a_file_says_which_store")},
    ),
]  # fmt: skip

FILES = [
    Case(
        31, "a symbolic link at the path", "refused, its target unchanged", FILE,
        {"sqlite": (f"{PLANTED}::test_at_the_path_it_is_refused",
                    f"{PLACE}::test_a_symbolic_link_is_refused_and_its_target_left_alone",
                    f"{PLACE}::test_a_link_to_a_good_database_is_refused")},
    ),
    Case(
        32, "a FIFO, device, directory, socket or hard link at the path or beside it", "refused without hanging", FILE,
        {"sqlite": (f"{PLANTED}::test_at_the_path_it_is_refused", f"{PLANTED}::test_beside_the_database_it_is_refused",
                    f"{PLANTED}::test_as_the_private_directory_it_is_refused",
                    f"{PLANTED}::test_as_the_turn_it_is_refused_or_does_no_harm",
                    f"{PLANTED}::test_in_place_of_a_clients_own_files",
                    f"{PLACE}::test_what_belongs_to_somebody_else_is_refused",
                    f"{PRESENCE}::test_another_inode_in_its_place_says_nothing")},
    ),
    Case(
        33, "a directory in which others may rename", "refused", FILE,
        {"sqlite": (f"{PLACE}::test_a_directory_that_everybody_may_write_to",
                    f"{PLANTED}::test_a_shared_directory_of_somebody_else_is_refused")},
    ),
    Case(
        34, "a file that is swapped between look, opening and lock", "noticed; nothing elsewhere is written", FILE,
        {"sqlite": (f"{DAMAGE}::test_a_file_that_is_swapped_all_the_time",
                    f"{DAMAGE}::test_a_file_that_is_swapped_just_before_it_is_opened",
                    f"{REPLACED}::test_every_hold_is_lost_before_a_fresh_grant",
                    f"{REPLACED}::test_a_quiet_holder_finds_out_by_its_renewal")},
    ),
    Case(
        35, "words of SQLite in a path or a name", "not interpreted", FILE,
        {"sqlite": (f"{PLANTED}::test_words_of_sqlite_are_names_like_others", f"{PLACE}::test_names_of_files",
                    f"{PLACE}::test_urls_that_mean_nothing")},
    ),
    Case(
        36, "a corrupt or foreign database, logs planted by others", "an error, nothing overwritten, no grant to two",
        FILE,
        {"sqlite": (f"{DAMAGE}::test_flipped_bits_never_grant_to_two",
                    f"{DAMAGE}::test_one_bit_in_the_name_of_another_claim",
                    f"{PLANTED}::test_beside_the_database_it_is_refused",
                    f"{PLANTED}::test_a_hot_journal_of_somebody_else_is_not_played_back",
                    f"{PLANTED}::test_what_only_pretends_to_be_ours_is_refused",
                    f"{PLACE}::test_a_foreign_database_is_refused_and_left_alone",
                    f"{PLACE}::test_what_is_no_database_is_refused_and_left_alone",
                    f"{PLACE}::test_a_database_damaged_in_use_says_so")},
    ),
    Case(
        37, "a full disk, a mount that can only be read", "an error, not a grant", FILE,
        {"sqlite": ("store/sqlite/test_small_disk.py::test_a_small_disk",)},
    ),
]  # fmt: skip

RUN_OPTIONS, RUN_SIGNALS, RUN_LOST, RUN_PROCESSES = (
    f"cli/test_run_{word}.py" for word in ("options", "signals", "lost", "processes")
)

COMMANDS = [
    Case(
        38, "words for a shell", "passed on as they are, no shell", COMMAND,
        {COMMAND: (f"{RUN_OPTIONS}::test_there_is_no_shell",
                   f"{RUN_OPTIONS}::test_the_words_of_the_command_arrive_verbatim")},
    ),
    Case(
        39, "signals", "forwarded to the child's group, the child awaited, then released; its exit code", COMMAND,
        {COMMAND: (
            f"{RUN_SIGNALS}::test_it_reaches_every_process_of_the_command_whose_own_status_comes_back",
            f"{RUN_SIGNALS}::test_a_command_that_it_ends_gives_its_number",
            f"{RUN_SIGNALS}::test_a_command_that_goes_on_is_waited_for",
            f"{RUN_SIGNALS}::test_a_storm_of_them_leaves_nothing_and_says_nothing",
        )},
    ),
    Case(
        40, "the lock is lost while the child runs", "TERM, grace, KILL, an exit code of its own", COMMAND,
        {COMMAND: (
            f"{RUN_LOST}::test_without_renewal_it_gets_term_at_a_quarter_and_is_killed_at_the_deadline",
            f"{RUN_LOST}::test_a_lock_that_is_taken_away_ends_the_command",
            f"{RUN_LOST}::test_the_whole_group_is_ended",
        )},
    ),
    Case(
        41, "the wrapper is killed", "the child dies too, the lock ends by its lease", COMMAND,
        {COMMAND: (
            f"{RUN_PROCESSES}::test_a_wrapper_that_is_killed_takes_the_whole_command_with_it",
            f"{RUN_PROCESSES}::test_killed_at_any_instant",
            f"{RUN_PROCESSES}::test_without_its_guard_the_command_still_goes_with_the_wrapper",
        )},
    ),
    Case(
        42, "a child that becomes a daemon", "a documented limit", COMMAND,
        {COMMAND: (f"{RUN_PROCESSES}::test_a_daemon_in_its_own_session_keeps_neither_the_lock_nor_us",
                   f"{RUN_PROCESSES}::test_a_command_that_leaves_others_of_its_group_behind_is_told_so")},
    ),
    Case(
        43, "ids and credentials in the child's environment", "absent; the token is there on purpose", COMMAND,
        {COMMAND: (f"{RUN_OPTIONS}::test_what_the_command_sees",
                   f"{RUN_OPTIONS}::test_a_password_in_the_url_is_not_the_commands")},
    ),
    Case(
        44, "names that look like options", "data, behind --", COMMAND,
        {COMMAND: (f"{RUN_OPTIONS}::test_a_name_that_looks_like_an_option",
                   f"{RUN_OPTIONS}::test_options_stand_on_both_sides_of_the_name_and_end_at_the_first_dashes")},
    ),
]  # fmt: skip

PAGES = [
    Case(45, "no token", "401 on every route, compared in constant time", DASHBOARD),
    Case(46, "a request from another site", "403", DASHBOARD),
    Case(47, "another Host", "refused", DASHBOARD),
    Case(48, "markup in names and metadata", "escaped; no inline script", DASHBOARD),
    Case(49, "a frame around it", "refused", DASHBOARD),
    Case(50, "a million locks", "pages; no listing of everything at once", DASHBOARD),
    Case(51, "paths out of its files, slow connections", "refused, timed out", DASHBOARD),
    Case(52, "breaking a live lock", "confirmed, noted, and the fence moves", DASHBOARD),
]

CLOCKS = (
    "lab/test_clock.py::test_a_hold_stays_valid_and_renewed_and_exclusive",
    "lab/test_clock.py::test_a_waiter_whose_clock_jumps_waits_as_long_as_it_said_and_in_its_turn",
)
LIMITED = [
    Case(
        53, "a crowd of waiters on one name", "each served in its turn, nobody woken in vain", EVERY,
        {EVERY: (f"{LIMITS}::test_a_crowd_waits_for_one_name",
                 "contract/test_seam_wake.py::test_leave_wakes_exactly_the_next")},
    ),
    Case(
        54, "waiters that die again and again", "pruned; line and files stay small", EVERY,
        {"memory": (f"{SEAM}::test_renew_of_an_expired_waiter_is_refused_also_behind_others",),
         "sqlite": (f"{LIMITS}::test_waiters_that_die_again_and_again_are_pruned",
                    "process/test_death.py::test_a_line_of_killed_waiters_blocks_nobody"),
         "zookeeper": ("process/test_death.py::test_a_line_of_killed_waiters_blocks_nobody",),
         "redis": ("process/test_death.py::test_a_line_of_killed_waiters_blocks_nobody",
                   f"{VALUES}::test_a_crowd_of_planted_claims"),
         "postgresql": ("process/test_death.py::test_a_line_of_killed_waiters_blocks_nobody",),
         "mysql": ("process/test_death.py::test_a_line_of_killed_waiters_blocks_nobody",)},
    ),
    Case(
        55, "times that are nought, negative, endless, no numbers, 1e9 s", "refused or kept to", EVERY,
        {EVERY: (f"{LIMITS}::test_times_out_of_proportion", f"{LIMITS}::test_a_lease_of_1e9_s_ends_with_its_holder",
                 f"{INPUTS}::test_bad_times_of_a_lock_are_refused",
                 f"{INPUTS}::test_times_that_are_too_short_are_refused",
                 f"{INPUTS}::test_bad_time_outs_of_acquire_are_refused",
                 f"{INPUTS}::test_bad_times_of_a_client_are_refused")},
    ),
    Case(
        56, "an answer of 512 MB, or without an end", "cut off", NETWORK,
        {"zookeeper": ("security/test_answers.py::test_an_answer_without_an_end",
                       "security/test_answers.py::test_a_true_answer_of_a_megabyte"),
         "redis": (f"{BAD_SERVERS}::test_answers_without_an_end", f"{BAD_SERVERS}::test_no_answer",
                   f"{BAD_SERVERS}::test_an_answer_of_another_shape",
                   f"{BAD_SERVERS}::test_answers_to_what_nobody_asked"),
         "postgresql": (f"{IN_POSTGRESQL}::test_what_is_no_server",
                        f"{IN_POSTGRESQL}::test_an_answer_of_another_shape"),
         "mysql": ("store/mysql/test_bad_servers.py::test_no_answer_of_ours",
                   "store/mysql/test_bad_servers.py::test_a_true_answer_of_a_megabyte")},
    ),
    Case(
        57, "errors of a server that is not ready", "asked again or raised, never a grant", REDIS,
        {"redis": (f"{REFUSALS}::test_refused_for_a_while", f"{REFUSALS}::test_a_full_memory_stops_no_renewal",
                   "store/redis/test_faults_server.py::test_its_scripts_are_flushed_under_load")},
    ),
    Case(
        58, "the wall clock steps by an hour", "validity does not change", EVERY,
        {EVERY: (f"{LIMITS}::test_the_wall_clock_of_a_client_decides_nothing",), "sqlite": CLOCKS},
    ),
    Case(
        59, "pickling and copying locks; running foreign text", "refused; it never happens", EVERY,
        {EVERY: (f"{SECRETS}::test_nothing_that_belongs_to_a_process_pickles",
                 f"{HOUSE}::test_nothing_that_runs_foreign_text")},
    ),
    Case(
        60, "a dependency that nobody asked for", "none at run time", EVERY,
        {EVERY: (f"{LIMITS}::test_nothing_is_required_at_run_time",
                 f"{IMPORTS}::test_no_dependency_beyond_the_standard_library")},
    ),
]  # fmt: skip

TABLE = [*NAMES, *OWNERS, *CREDENTIALS, *FILES, *COMMANDS, *PAGES, *LIMITED]

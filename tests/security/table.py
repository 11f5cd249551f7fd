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
)


def of(file: str, *tests: str) -> tuple[str, ...]:
    """These tests of a file; all of them, if none is named."""
    return tuple(f"{file}.py::test_{test}" for test in tests) or (f"{file}.py",)


REFUSED = of("core/test_refused", "bad_input_is_refused_before_any_io")
ODD_NAMES = of("security/test_inputs", "odd_names_are_locks_like_others")
ESCAPES = of("core/test_texts", "foreign_text_cannot_steer_a_terminal", "a_label_cannot_steer_a_terminal")

NAMES = [
    Case(1, "a name that is empty or blank", "BadName, a ValueError", EVERY, {EVERY: REFUSED}),
    Case(2, "a name of 1 MB", "BadName before any I/O", EVERY, {EVERY: REFUSED}),
    Case(3, "NUL in a name", "BadName", EVERY, {EVERY: REFUSED}),
    Case(4, "line breaks and a command in a name", "BadName", EVERY, {EVERY: REFUSED}),
    Case(5, "SQL in a name", "a name like others", EVERY, {EVERY: ODD_NAMES}),
    Case(
        6, "paths and reserved words as names, where names are paths", "encoded, under the root", ZOOKEEPER,
        {"zookeeper": of("security/test_nodes", "names_are_no_paths", "paths_as_written_are_checked")},
    ),
    Case(7, "hash tags in a name", "all keys of a lock in one slot, which the name does not choose", CLUSTER),
    Case(
        8, "patterns in what is listed", "no meaning but themselves", EVERY,
        {EVERY: (*of("contract/test_looking", "a_prefix_means_itself"), *ODD_NAMES)},
    ),
    Case(
        9, "names that differ in case, accents or a space at the end", "different locks, or refused", MARIADB,
        {"mysql": of("security/test_mysql_access",
                     "names_that_differ_in_case_accents_or_a_space_are_different_locks")},
    ),
    Case(
        10, "names of 65 and 193 characters", "they work", MARIADB,
        {"mysql": of("security/test_mysql_access", "long_names_work")},
    ),
    Case(
        11, "two names that collide in a key of 64 bits", "refused or shared, as documented; never held", POSTGRESQL,
        {"postgresql": of("store/postgresql/test_races", "two_names_that_meet_in_one_key_are_two_locks")},
    ),
    Case(
        12, "a name that looks like a part of another's layout", "distinct locks", EVERY,
        {EVERY: (*ODD_NAMES, *of("contract/test_looking", "a_namespace_and_a_name_never_run_into_each_other"),
                 *of("core/test_texts", "namespace_and_name_are_encoded_injectively"))},
    ),
    Case(
        13, "surrogates, emoji, right-to-left marks, terminal escapes", "refused, or listed without harm", EVERY,
        {EVERY: (*REFUSED, *ODD_NAMES, *ESCAPES)},
    ),
    Case(14, "names that mean something to a browser", "inert", DASHBOARD),
]  # fmt: skip

OWNERSHIP, SECRETS = "security/test_ownership", "security/test_secrets"
FORKS = of(
    "process/test_fork", "a_child_holds_nothing_and_works", "a_child_goes_out_through_its_parents_with",
    "finalisers_and_exit_hooks_of_a_child_free_nothing", "a_childs_keeper_does_not_keep_what_its_parent_holds",
)  # fmt: skip

OWNERS = [
    Case(
        15, "a release with a guessed or another's id", "refused, the lock stays", EVERY,
        {EVERY: (*of(OWNERSHIP, "a_guessed_id_ends_nothing"),
                 *of("contract/test_seam", "a_leave_with_another_id_changes_nothing",
                     "a_renewal_with_another_id_is_refused", "an_amendment_with_another_id_changes_nothing"),
                 *of(SECRETS, "tokens_are_no_credentials"))},
    ),
    Case(
        16, "the holder's name, host, pid and thread, from elsewhere; a clone of its machine", "not the owner", EVERY,
        {EVERY: of(OWNERSHIP, "who_looks_like_the_holder_is_not",
                   "who_looks_like_the_owner_of_an_rlock_does_not_enter", "a_clone_that_no_hook_saw_makes_other_ids")},
    ),
    Case(
        17, "a forked child releases, renews, finalises, exits", "no effect on its parent's hold", EVERY,
        {EVERY: of(OWNERSHIP, "a_forked_child_has_no_part_in_its_parents_hold"), "zookeeper": FORKS, "redis": FORKS,
         "sqlite": (*FORKS, *of("store/sqlite/test_presence", "a_forked_child_that_closes_its_copy_frees_nothing"))},
    ),
    Case(
        18, "a claim's id in a URL, log, repr, traceback", "absent", EVERY,
        {EVERY: (*of(SECRETS, "claim_ids_are_shown_nowhere"),
                 *of(OWNERSHIP, "ids_are_not_in_what_an_error_tracker_records"))},
    ),
    Case(
        19, "the same seed in two processes", "ids differ", EVERY,
        {EVERY: (*of(OWNERSHIP, "the_same_seed_gives_other_ids", "after_a_fork_ids_are_others"),
                 *of(SECRETS, "ids_are_random_and_long"))},
    ),
    Case(
        20, "an old release, replayed after the same client took the lock again", "no effect", EVERY,
        {EVERY: of(OWNERSHIP, "a_replayed_leave_spares_the_next_claim")},
    ),
    Case(
        21, "a task that is cancelled during release", "released or still owned", EVERY,
        {EVERY: (*of("contract/test_asyncio", "cancellation_anywhere_in_release_gives_back"),
                 *of("interrupts/test_cancel", "a_cancelled_task_leaves_nothing_behind"))},
    ),
    Case(
        22, "tokens that leak between tasks of one thread", "impossible", EVERY,
        {EVERY: (*of(OWNERSHIP, "tasks_of_one_thread_share_nothing"),
                 *of("contract/test_asyncio", "another_task_is_another_owner"),
                 *of("contract/test_release", "lock_release_of_another_actor_is_an_error_and_frees_nothing"))},
    ),
    Case(
        23, "forged wake-ups, ten thousand a second", "looks at most, and few", WAKES,
        {"sqlite": (*of("security/test_forgery"),
                    *of("store/sqlite/test_presence", "garbage_on_the_socket_causes_nothing_but_looks",
                        "a_signal_that_nobody_knows")),
         "redis": of("security/test_messages"),
         "postgresql": of("security/test_postgresql", "forged_letters_to_a_client_that_waits")},
    ),
    Case(
        24, "hostile values where claims are kept", "an error that names the lock; no crash, no grant", ROWS,
        {"sqlite": of("security/test_rows"), "zookeeper": of("security/test_nodes"),
         "redis": of("security/test_values"),
         "postgresql": of("security/test_postgresql", "a_hostile_row", "a_row_that_cannot_be_written",
                          "a_hostile_row_beside_a_holder", "a_row_below_all_that_were_given",
                          "a_row_that_lasts_for_ever_can_be_broken",
                          "a_row_whose_end_was_put_off_ends_with_its_lease", "hostile_values_of_cells"),
         "mysql": of("security/test_mysql_access", "a_hostile_row_grants_nothing_and_crashes_nobody",
                     "a_row_that_lasts_for_ever_can_be_broken", "hostile_values_of_cells")},
    ),
]  # fmt: skip

ACCESS, REDIS_ACCESS, MYSQL = "security/test_access", "security/test_redis_access", "security/test_mysql_access"
IN_POSTGRESQL, MYSQL_RIGHTS = "security/test_postgresql", "store/mysql/test_rights"
CERTIFICATES = ("an_authority_that_nobody_named", "a_certificate_that_is_not_to_be_trusted")
NAMED = "tls_with_the_authority_that_is_named"
CLEAR = ("tls_to_a_server_that_speaks_in_clear", "no_tls_to_a_server_that_speaks_nothing_else")
NOTHING_IN_CLEAR = "nothing_is_said_in_clear_where_tls_was_asked_for"

CREDENTIALS = [
    Case(
        25, "URLs with secrets, whole and broken", "the secret is shown nowhere", EVERY,
        {EVERY: (*of("security/test_urls"), *of("core/test_url", "a_password_is_never_shown"), *REFUSED)},
    ),
    Case(
        26, "a wrong password", "an error without it", NETWORK,
        {"zookeeper": of(ACCESS, "a_wrong_password_by_digest_is_another_user", "a_wrong_password_by_sasl",
                         "the_right_one_gets_in", "a_server_that_wants_another_login"),
         "redis": (*of(REDIS_ACCESS, "a_wrong_password", "the_right_one_gets_in", "no_password_where_one_is_wanted"),
                   *of("store/redis/test_drivers", "a_server_that_repeats_the_password_is_not_quoted")),
         "postgresql": (*of(IN_POSTGRESQL, "a_wrong_password", "the_right_one_gets_in",
                            "no_password_where_one_is_wanted"),
                        *of("store/postgresql/test_address", "a_secret_in_the_wrong_place_is_not_repeated")),
         "mysql": (*of(MYSQL, "a_wrong_password", "the_right_one_gets_in"), *of(MYSQL_RIGHTS, "a_wrong_password"))},
    ),
    Case(
        27, "a certificate that is self-signed or another host's", "refused by default", NETWORK,
        {"zookeeper": of(ACCESS, *CERTIFICATES), "redis": of(REDIS_ACCESS, *CERTIFICATES, NAMED),
         "postgresql": of(IN_POSTGRESQL, CERTIFICATES[0], "nothing_is_said_to_an_impostor", NAMED),
         "mysql": of(MYSQL, *CERTIFICATES, NAMED)},
    ),
    Case(
        28, "a connection that is downgraded, an address that is foreign", "refused", NETWORK,
        {"zookeeper": of(ACCESS, *CLEAR, NOTHING_IN_CLEAR, "a_server_without_sasl"),
         "redis": of(REDIS_ACCESS, *CLEAR, NOTHING_IN_CLEAR, "an_address_that_is_foreign"),
         "postgresql": of(IN_POSTGRESQL, "no_tls_where_it_is_wanted_and_the_other_way_round",
                          "nothing_is_said_to_an_impostor"),
         "mysql": of(MYSQL, *CLEAR)},
    ),
    Case(
        29, "a user without the rights that are needed", "a clear error, no busy loop", NETWORK,
        {"zookeeper": of(ACCESS, "a_user_without_the_rights"),
         "redis": (*of(REDIS_ACCESS, "a_user_without_the_rights"),
                   *of("store/redis/test_faults_refusals", "without_the_right_to_it")),
         "postgresql": (*of(IN_POSTGRESQL, "a_user_without_the_rights"),
                        *of("store/postgresql/test_first_use", "the_least_rights_are_enough")),
         "mysql": of(MYSQL_RIGHTS, "a_user_without_the_rights",
                     "without_the_right_to_create_one_is_told_what_to_do")},
    ),
    Case(
        30, "a password on the command line", "warned of; from the environment or a file it is not shown", COMMAND,
        {EVERY: of(SECRETS, "a_url_from_the_environment_does_not_show_its_password"),
         COMMAND: of("cli/test_run_options", "a_password_on_the_command_line_is_warned_of_and_not_repeated",
                     "a_file_says_which_store")},
    ),
]  # fmt: skip

PLANTED, DAMAGE = "security/test_planted", "security/test_damage"
PLACE, REPLACED = "store/sqlite/test_place", "store/sqlite/test_replaced"

FILES = [
    Case(
        31, "a symbolic link at the path", "refused, its target unchanged", FILE,
        {"sqlite": (*of(PLANTED, "at_the_path_it_is_refused"),
                    *of(PLACE, "a_symbolic_link_is_refused_and_its_target_left_alone",
                        "a_link_to_a_good_database_is_refused"))},
    ),
    Case(
        32, "a FIFO, device, directory, socket or hard link at the path or beside it", "refused without hanging", FILE,
        {"sqlite": (*of(PLANTED, "at_the_path_it_is_refused", "beside_the_database_it_is_refused",
                        "as_the_private_directory_it_is_refused", "as_the_turn_it_is_refused_or_does_no_harm",
                        "in_place_of_a_clients_own_files"),
                    *of(PLACE, "what_belongs_to_somebody_else_is_refused"),
                    *of("store/sqlite/test_presence", "another_inode_in_its_place_says_nothing"))},
    ),
    Case(
        33, "a directory in which others may rename", "refused", FILE,
        {"sqlite": (*of(PLACE, "a_directory_that_everybody_may_write_to"),
                    *of(PLANTED, "a_shared_directory_of_somebody_else_is_refused"))},
    ),
    Case(
        34, "a file that is swapped between look, opening and lock", "noticed; nothing elsewhere is written", FILE,
        {"sqlite": (*of(DAMAGE, "a_file_that_is_swapped_all_the_time",
                        "a_file_that_is_swapped_just_before_it_is_opened"),
                    *of(REPLACED, "every_hold_is_lost_before_a_fresh_grant",
                        "a_quiet_holder_finds_out_by_its_renewal"))},
    ),
    Case(
        35, "words of SQLite in a path or a name", "not interpreted", FILE,
        {"sqlite": (*of(PLANTED, "words_of_sqlite_are_names_like_others"),
                    *of(PLACE, "names_of_files", "urls_that_mean_nothing"))},
    ),
    Case(
        36, "a corrupt or foreign database, logs planted by others", "an error, nothing overwritten, no grant to two",
        FILE,
        {"sqlite": (*of(DAMAGE, "flipped_bits_never_grant_to_two", "one_bit_in_the_name_of_another_claim"),
                    *of(PLANTED, "beside_the_database_it_is_refused",
                        "a_hot_journal_of_somebody_else_is_not_played_back",
                        "what_only_pretends_to_be_ours_is_refused"),
                    *of(PLACE, "a_foreign_database_is_refused_and_left_alone",
                        "what_is_no_database_is_refused_and_left_alone", "a_database_damaged_in_use_says_so"))},
    ),
    Case(
        37, "a full disk, a mount that can only be read", "an error, not a grant", FILE,
        {"sqlite": of("store/sqlite/test_small_disk", "a_small_disk")},
    ),
]  # fmt: skip

RUN_OPTIONS, RUN_PROCESSES = "cli/test_run_options", "cli/test_run_processes"

COMMANDS = [
    Case(
        38, "words for a shell", "passed on as they are, no shell", COMMAND,
        {COMMAND: of(RUN_OPTIONS, "there_is_no_shell", "the_words_of_the_command_arrive_verbatim")},
    ),
    Case(
        39, "signals", "forwarded to the child's group, the child awaited, then released; its exit code", COMMAND,
        {COMMAND: of("cli/test_run_signals",
                     "it_reaches_every_process_of_the_command_whose_own_status_comes_back",
                     "a_command_that_it_ends_gives_its_number", "a_command_that_goes_on_is_waited_for",
                     "a_storm_of_them_leaves_nothing_and_says_nothing")},
    ),
    Case(
        40, "the lock is lost while the child runs", "TERM, grace, KILL, an exit code of its own", COMMAND,
        {COMMAND: of("cli/test_run_lost",
                     "without_renewal_it_gets_term_at_a_quarter_and_is_killed_at_the_deadline",
                     "a_lock_that_is_taken_away_ends_the_command", "the_whole_group_is_ended")},
    ),
    Case(
        41, "the wrapper is killed", "the child dies too, the lock ends by its lease", COMMAND,
        {COMMAND: of(RUN_PROCESSES, "a_wrapper_that_is_killed_takes_the_whole_command_with_it",
                     "killed_at_any_instant", "without_its_guard_the_command_still_goes_with_the_wrapper")},
    ),
    Case(
        42, "a child that becomes a daemon", "a documented limit", COMMAND,
        {COMMAND: of(RUN_PROCESSES, "a_daemon_in_its_own_session_keeps_neither_the_lock_nor_us",
                     "a_command_that_leaves_others_of_its_group_behind_is_told_so")},
    ),
    Case(
        43, "ids and credentials in the child's environment", "absent; the token is there on purpose", COMMAND,
        {COMMAND: of(RUN_OPTIONS, "what_the_command_sees", "a_password_in_the_url_is_not_the_commands")},
    ),
    Case(
        44, "names that look like options", "data, behind --", COMMAND,
        {COMMAND: of(RUN_OPTIONS, "a_name_that_looks_like_an_option",
                     "options_stand_on_both_sides_of_the_name_and_end_at_the_first_dashes")},
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

LIMITS, BAD_REDIS, BAD_MYSQL = "security/test_limits", "store/redis/test_bad_servers", "store/mysql/test_bad_servers"
KILLED_WAITERS = of("process/test_death", "a_line_of_killed_waiters_blocks_nobody")
CLOCKS = of(
    "lab/test_clock", "a_hold_stays_valid_and_renewed_and_exclusive",
    "a_waiter_whose_clock_jumps_waits_as_long_as_it_said_and_in_its_turn",
)  # fmt: skip
LIMITED = [
    Case(
        53, "a crowd of waiters on one name", "each served in its turn, nobody woken in vain", EVERY,
        {EVERY: (*of(LIMITS, "a_crowd_waits_for_one_name"),
                 *of("contract/test_seam_wake", "leave_wakes_exactly_the_next"))},
    ),
    Case(
        54, "waiters that die again and again", "pruned; line and files stay small", EVERY,
        {"memory": of("contract/test_seam", "renew_of_an_expired_waiter_is_refused_also_behind_others"),
         "sqlite": (*of(LIMITS, "waiters_that_die_again_and_again_are_pruned"), *KILLED_WAITERS),
         "redis": (*of("security/test_values", "a_crowd_of_planted_claims"), *KILLED_WAITERS),
         "zookeeper": KILLED_WAITERS, "postgresql": KILLED_WAITERS, "mysql": KILLED_WAITERS},
    ),
    Case(
        55, "times that are nought, negative, endless, no numbers, 1e9 s", "refused or kept to", EVERY,
        {EVERY: (*of(LIMITS, "times_out_of_proportion", "a_lease_of_1e9_s_can_be_broken"), *REFUSED)},
    ),
    Case(
        56, "an answer of 512 MB, or without an end", "cut off", NETWORK,
        {"zookeeper": of("security/test_answers"),
         "redis": of(BAD_REDIS, "answers_without_an_end", "no_answer", "an_answer_of_another_shape",
                     "answers_to_what_nobody_asked"),
         "postgresql": of(IN_POSTGRESQL, "what_is_no_server", "an_answer_of_another_shape"),
         "mysql": of(BAD_MYSQL, "no_answer_of_ours", "a_true_answer_of_a_megabyte")},
    ),
    Case(
        57, "errors of a server that is not ready", "asked again or raised, never a grant", REDIS,
        {"redis": (*of("store/redis/test_faults_refusals", "refused_for_a_while",
                       "a_full_memory_stops_no_renewal"),
                   *of("store/redis/test_faults_server", "its_scripts_are_flushed_under_load"))},
    ),
    Case(
        58, "the wall clock steps by an hour", "validity does not change", EVERY,
        {EVERY: of(LIMITS, "the_wall_clock_of_a_client_decides_nothing"), "sqlite": CLOCKS},
    ),
    Case(
        59, "pickling and copying locks; running foreign text", "refused; it never happens", EVERY,
        {EVERY: (*of(SECRETS, "nothing_that_belongs_to_a_process_pickles"),
                 *of("architecture/test_house", "nothing_that_runs_foreign_text"))},
    ),
    Case(
        60, "a dependency that nobody asked for", "none at run time", EVERY,
        {EVERY: (*of(LIMITS, "nothing_is_required_at_run_time"),
                 *of("architecture/test_imports", "no_dependency_beyond_the_standard_library"))},
    ),
]  # fmt: skip

TABLE = [*NAMES, *OWNERS, *CREDENTIALS, *FILES, *COMMANDS, *PAGES, *LIMITED]

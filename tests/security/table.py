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
    case,
)

REFUSED, ODD_NAMES = "core/test_refused", "security/test_inputs"
LOGINS = "security/test_server_access wrong_password, security/test_server_access right_one"
DOWNGRADES = "security/test_server_access in_clear, security/test_server_access no_tls"
FORKS, KILLED = "process/test_fork child", "process/test_death killed"

NAMES = [
    case(1, "a name that is empty or blank", "BadName, a ValueError", EVERY, REFUSED),
    case(2, "a name of 1 MB", "BadName before any I/O", EVERY, REFUSED),
    case(3, "NUL in a name", "BadName", EVERY, REFUSED),
    case(4, "line breaks and a command in a name", "BadName", EVERY, REFUSED),
    case(5, "SQL in a name", "a name like others", EVERY, ODD_NAMES),
    case(6, "paths and reserved words as names, where names are paths", "encoded, under the root", ZOOKEEPER,
         zookeeper="security/test_nodes paths"),
    case(7, "hash tags in a name", "all keys of a lock in one slot, which the name does not choose", CLUSTER),
    case(8, "patterns in what is listed", "no meaning but themselves", EVERY,
         f"contract/test_inspect prefix_means_itself, {ODD_NAMES}"),
    case(9, "names that differ in case, accents or a space at the end", "different locks, or refused", MARIADB,
         mysql="security/test_mysql differ_in_case"),
    case(10, "names of 65 and 193 characters", "they work", MARIADB, mysql="security/test_mysql long_names"),
    case(11, "two names that collide in a key of 64 bits", "refused or shared, as documented; never held", POSTGRESQL,
         postgresql="store/postgresql/test_races two_names"),
    case(12, "a name that looks like a part of another's layout", "distinct locks", EVERY,
         f"{ODD_NAMES}, contract/test_inspect never_run_into_each_other, core/test_texts injectively"),
    case(13, "surrogates, emoji, right-to-left marks, terminal escapes", "refused, or listed without harm", EVERY,
         f"{REFUSED}, {ODD_NAMES}, core/test_texts steer_a_terminal"),
    case(14, "names that mean something to a browser", "inert", DASHBOARD,
         dashboard="browser/test_dashboard strangers, observability/test_dashboard_attacks planted"),
]  # fmt: skip

OWNERS = [
    case(15, "a release with a guessed or another's id", "refused, the lock stays", EVERY,
         "security/test_ownership guessed_id, contract/test_queue another_id, security/test_secrets no_credentials"),
    case(16, "the holder's name, host, pid and thread, from elsewhere; a clone of its machine", "not the owner", EVERY,
         "security/test_ownership looks_like_the_holder, security/test_ownership looks_like_the_owner, "
         "security/test_ownership clone"),
    case(17, "a forked child releases, renews, finalises, exits", "no effect on its parent's hold", EVERY,
         "security/test_ownership forked_child", zookeeper=FORKS, redis=FORKS,
         sqlite=f"{FORKS}, store/sqlite/test_presence forked_child"),
    case(18, "a claim's id in a URL, log, repr, traceback", "absent", EVERY,
         "security/test_secrets shown_nowhere, security/test_ownership error_tracker"),
    case(19, "the same seed in two processes", "ids differ", EVERY,
         "security/test_ownership seed, security/test_ownership after_a_fork, security/test_secrets random"),
    case(20, "an old release, replayed after the same client took the lock again", "no effect", EVERY,
         "security/test_ownership replayed"),
    case(21, "a task that is cancelled during release", "released or still owned", EVERY,
         "contract/test_asyncio cancellation_anywhere_in_release, interrupts/test_cancel"),
    case(22, "tokens that leak between tasks of one thread", "impossible", EVERY,
         "security/test_ownership tasks_of_one_thread, contract/test_asyncio another_task, "
         "contract/test_release another_actor"),
    case(23, "forged wake-ups, ten thousand a second", "looks at most, and few", WAKES,
         sqlite="security/test_forgery, store/sqlite/test_presence garbage, store/sqlite/test_presence nobody_knows",
         redis="security/test_messages", postgresql="security/test_postgresql forged"),
    case(24, "hostile values where claims are kept", "an error that names the lock; no crash, no grant", ROWS,
         sqlite="security/test_rows", zookeeper="security/test_nodes", redis="security/test_values",
         postgresql="security/test_postgresql hostile, security/test_postgresql row",
         mysql="security/test_mysql hostile, security/test_mysql row"),
]  # fmt: skip

CREDENTIALS = [
    case(25, "URLs with secrets, whole and broken", "the secret is shown nowhere", EVERY,
         f"security/test_urls, core/test_url never_shown, {REFUSED}"),
    case(26, "a wrong password", "an error without it", NETWORK,
         zookeeper="security/test_access wrong_password, security/test_access right_one",
         redis=f"{LOGINS}, store/redis/test_drivers repeats_the_password",
         postgresql=f"{LOGINS}, store/test_sql_addresses secret", mysql=LOGINS),
    case(27, "a certificate that is self-signed or another host's", "refused by default", NETWORK,
         zookeeper="security/test_access certificate, security/test_access authority",
         redis="security/test_server_access certificate, security/test_server_access authority_that",
         postgresql="security/test_server_access authority_that, security/test_server_access where_tls_was_asked_for",
         mysql="security/test_server_access another_authority, security/test_server_access authority_that"),
    case(28, "a connection that is downgraded, an address that is foreign", "refused", NETWORK,
         zookeeper="security/test_access in_clear, security/test_access no_tls, security/test_access without_sasl",
         redis=f"{DOWNGRADES}, security/test_server_access foreign", postgresql=DOWNGRADES, mysql=DOWNGRADES),
    case(29, "a user without the rights that are needed", "a clear error, no busy loop", NETWORK,
         zookeeper="security/test_access rights", redis="security/test_server_access rights",
         postgresql="store/test_first_use rights", mysql="store/test_first_use rights"),
    case(30, "a password on the command line", "warned of; from the environment or a file it is not shown", COMMAND,
         "security/test_secrets environment",
         command="cli/test_run_options password_on_the_command_line, cli/test_run_options file_says"),
]  # fmt: skip

FILES = [
    case(31, "a symbolic link at the path", "refused, its target unchanged", FILE,
         sqlite="security/test_planted at_the_path, store/sqlite/test_place link"),
    case(32, "a FIFO, device, directory, socket or hard link at the path or beside it", "refused without hanging", FILE,
         sqlite="security/test_planted at_the_path, security/test_planted beside_the_database, "
                "security/test_planted private_directory, security/test_planted as_the_turn, "
                "security/test_planted own_files, store/sqlite/test_place somebody_else"),
    case(33, "a directory in which others may rename", "refused", FILE,
         sqlite="store/sqlite/test_place everybody_may_write, security/test_planted shared_directory"),
    case(34, "a file that is swapped between look, opening and lock", "noticed; nothing elsewhere is written", FILE,
         sqlite="security/test_damage swapped, store/sqlite/test_replaced"),
    case(35, "words of SQLite in a path or a name", "not interpreted", FILE,
         sqlite="security/test_planted words_of_sqlite, store/sqlite/test_place names_of_files"),
    case(36, "a corrupt or foreign database, logs planted by others", "an error, nothing overwritten, no grant to two",
         FILE,
         sqlite="security/test_damage flipped_bits, security/test_damage one_bit, "
                "security/test_planted beside_the_database, security/test_planted hot_journal, "
                "security/test_planted pretends, store/sqlite/test_place database"),
    case(37, "a full disk, a mount that can only be read", "an error, not a grant", FILE,
         sqlite="store/sqlite/test_small_disk"),
]  # fmt: skip

COMMANDS = [
    case(38, "words for a shell", "passed on as they are, no shell", COMMAND,
         command="cli/test_run_options verbatim"),
    case(39, "signals", "forwarded to the child's group, the child awaited, then released; its exit code", COMMAND,
         command="cli/test_run_signals"),
    case(40, "the lock is lost while the child runs", "TERM, grace, KILL, an exit code of its own", COMMAND,
         command="cli/test_run_lost"),
    case(41, "the wrapper is killed", "the child dies too, the lock ends by its lease", COMMAND,
         command="cli/test_run_processes wrapper, cli/test_run_processes killed"),
    case(42, "a child that becomes a daemon", "a documented limit", COMMAND, command="cli/test_run_processes daemon"),
    case(43, "ids and credentials in the child's environment", "absent; the token is there on purpose", COMMAND,
         command="cli/test_run_options command_sees, cli/test_run_options password_in_the_url"),
    case(44, "names that look like options", "data, behind --", COMMAND,
         command="cli/test_run_options looks_like_an_option, cli/test_run_options dashes"),
]  # fmt: skip

PAGES = [
    case(45, "no token", "401 on every route, compared in constant time", DASHBOARD,
         dashboard="observability/test_dashboard_attacks every_route_needs_the_token"),
    case(46, "a request from another site", "403", DASHBOARD,
         dashboard="observability/test_dashboard_attacks from_elsewhere"),
    case(47, "another Host", "refused", DASHBOARD, dashboard="observability/test_dashboard_attacks another_host"),
    case(48, "markup in names and metadata", "escaped; no inline script", DASHBOARD,
         dashboard="observability/test_dashboard_attacks planted, observability/test_dashboard_attacks headers, "
                   "browser/test_dashboard strangers"),
    case(49, "a frame around it", "refused", DASHBOARD, dashboard="observability/test_dashboard_attacks headers"),
    case(50, "a million locks", "pages; no listing of everything at once", DASHBOARD,
         dashboard="browser/test_dashboard ten_thousand, observability/test_sampler"),
    case(51, "paths out of its files, slow connections", "refused, timed out", DASHBOARD,
         dashboard="observability/test_dashboard_attacks no_path, observability/test_dashboard_attacks slow, "
                   "observability/test_dashboard_server cut_off"),
    case(52, "breaking a live lock", "confirmed, noted, and the fence moves", DASHBOARD,
         dashboard="observability/test_dashboard_attacks everything_right, "
                   "observability/test_dashboard_attacks stale_break, browser/test_dashboard break_needs"),
]  # fmt: skip

LIMITED = [
    case(53, "a crowd of waiters on one name", "each served in its turn, nobody woken in vain", EVERY,
         "security/test_limits crowd, contract/test_queue_wakeup exactly_the_next"),
    case(54, "waiters that die again and again", "pruned; line and files stay small", EVERY,
         memory="contract/test_queue expired_waiter", sqlite=f"security/test_limits die_again_and_again, {KILLED}",
         zookeeper=KILLED, redis=KILLED, postgresql=KILLED, mysql=KILLED),
    case(55, "times that are nought, negative, endless, no numbers, 1e9 s", "refused or kept to", EVERY,
         f"security/test_limits times, security/test_limits lease, {REFUSED}"),
    case(56, "an answer of 512 MB, or without an end", "cut off", NETWORK,
         zookeeper="security/test_answers", redis="store/faults/test_bad_servers",
         postgresql="security/test_postgresql no_server, security/test_postgresql another_shape",
         mysql="store/faults/test_bad_servers"),
    case(57, "errors of a server that is not ready", "asked again or raised, never a grant", REDIS,
         redis="store/faults/test_refusals, store/faults/test_server"),
    case(58, "the wall clock steps by an hour", "validity does not change", EVERY,
         "security/test_limits wall_clock", sqlite="lab/test_clock"),
    case(59, "pickling and copying locks; running foreign text", "refused; it never happens", EVERY,
         "security/test_secrets pickles, architecture/test_house foreign_text"),
    case(60, "a dependency that nobody asked for", "none at run time", EVERY,
         "security/test_limits required_at_run_time, architecture/test_imports no_dependency"),
]  # fmt: skip

TABLE = [*NAMES, *OWNERS, *CREDENTIALS, *FILES, *COMMANDS, *PAGES, *LIMITED]

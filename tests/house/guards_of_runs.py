"""The guards of a run's course: what is looked at before it, and what no stage may do to the others or to the run."""

from tests.house.guard import Guard

PAIR_TESTS = "tests/orchestrate/test_interleaved_pair.py::"
TRIALS = "pipeline/orchestrate/trials.py"
TRIALS_TESTS = "tests/orchestrate/test_trials.py::"
OFFSPRING = "pipeline/orchestrate/offspring.py"
RESTING = "pipeline/orchestrate/resting_files.py"
RESTING_TESTS = "tests/orchestrate/test_resting_files.py::"
SHARED = "pipeline/orchestrate/shared_reference.py"
SHARED_TESTS = "tests/orchestrate/test_shared_reference.py::"
USE = "pipeline/orchestrate/processor_use.py"
USE_TESTS = "tests/orchestrate/test_processor_use.py::"
WORKER_END = "tests/worker/test_worker_end.py::"
CONTRACT = "tests/worker/test_contract.py::"

OF_RUNS = [
    Guard(
        "a folder that is no run's, resumed",
        "pipeline/cli/resumed.py",
        "    raise RequestError(f\"resume={earlier}: {wrong or none}{'' if runs else meant(earlier, sweeps)}\")",
        "    return []",
        "tests/cli/test_resumed.py::test_the_run_that_may_be_meant_is_named",
    ),
    Guard(
        "a run resumed while it is under way",
        "pipeline/orchestrate/under_way.py",
        "        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        "        pass",
        "tests/orchestrate/test_under_way.py::test_a_run_that_is_under_way_is_not_resumed",
    ),
    Guard(
        "a net that is refused only once its images are read",
        "pipeline/worker/workload.py",
        "    look(model, job)\n",
        "",
        "tests/worker/test_first_look.py::test_a_net_is_refused_before_its_images_are_read",
    ),
    Guard(
        "a look that leaves its traces in the net",
        "pipeline/worker/first_look.py",
        "net = replace(net, model=copy.deepcopy(model))",
        "pass",
        "tests/worker/test_first_look.py::test_nothing_is_left_in_the_net_nor_drawn_from_chance",
    ),
    Guard(
        "whole numbers in place of weights",
        "models/weights_file.py",
        'if whole and name.endswith("weight"):',
        "if False:",
        "tests/config/test_net_request.py::test_weights_that_a_net_cannot_compute_with_are_told",
    ),
    Guard(
        "what flees from its end",
        OFFSPRING,
        "            pursue(self._is_prey)\n\n    def suspend",
        "            pass\n\n    def suspend",
        "tests/orchestrate/test_pursuit.py::test_whoever_flees_from_its_end_is_ended",
    ),
    Guard(
        "a worker that cannot be stopped",
        "pipeline/orchestrate/interleaved_pair.py",
        "if not self._other.suspend():",
        "if self._other.suspend() is None:",
        f"{PAIR_TESTS}test_a_worker_that_cannot_be_stopped_is_told_so",
    ),
    Guard(
        "a tracer or a limit of the baseline's worker",
        "pipeline/orchestrate/interleaved_pair.py",
        "told = frozenset(told_of(proc / str(process)))",
        "told: frozenset[str] = frozenset()",
        f"{PAIR_TESTS}test_whatever_the_system_tells_of_a_process_is_part_of_its_conditions",
    ),
    Guard(
        "a process that others of its user may write into",
        "pipeline/protocol.py",
        "ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)",
        "pass",
        "tests/test_protocol.py::test_a_process_is_closed_to_others",
    ),
    Guard(
        "a stage that says it is done before it was sampled",
        TRIALS,
        "    if not sampled:\n",
        "    if False:\n",
        f"{TRIALS_TESTS}test_a_stage_that_says_it_is_done_before_it_was_sampled_is_refused",
    ),
    Guard(
        "a stage that widens its own tolerance",
        TRIALS,
        "    record = judged_again(context, spec, record)\n",
        "",
        f"{TRIALS_TESTS}test_the_run_judges_by_its_own_tolerance",
    ),
    Guard(
        "a stage that changes the conditions of the run itself",
        TRIALS,
        "if differences := [*filter(None, map(changed, before, conditions(context)))]:",
        "if differences := []:",
        f"{TRIALS_TESTS}test_a_stage_that_changes_the_run_s_own_conditions_changes_the_baseline_s_too",
    ),
    Guard(
        "a clock that is forged head to head",
        "pipeline/orchestrate/audited_pairs.py",
        "if doubt := audited(other, one, its):",
        "if doubt := None:",
        f"{TRIALS_TESTS}test_stages_are_audited_beside_each_other_too",
    ),
    Guard(
        "weights that are written over",
        "pipeline/orchestrate/run.py",
        "    context.files.check_inputs(context.record)\n",
        "",
        f"{RESTING_TESTS}test_weights_that_a_stage_writes_over_end_the_run",
    ),
    Guard(
        "sources that are written over",
        RESTING,
        "code_digest.__wrapped__() == record.code_sha256",
        "True",
        f"{RESTING_TESTS}test_the_program_s_own_files_are_watched_and_told_once",
    ),
    Guard(
        "what works beside one side alone",
        USE,
        "if abs(others[0] - others[1]) <= ",
        "if True or abs(others[0] - others[1]) <= ",
        f"{USE_TESTS}test_what_works_beside_one_side_alone_is_told",
    ),
    Guard(
        "more processors than the run gives",
        USE,
        "if threads is not None and",
        "if False and",
        f"{USE_TESTS}test_a_side_that_takes_more_processors_than_it_is_given_is_told",
    ),
    Guard(
        "a disk that has become read-only",
        "pipeline/orchestrate/context.py",
        "        with suppress(OSError):  # a disk that has become read-only keeps them\n",
        "        if True:\n",
        "tests/orchestrate/test_lost_and_found.py::test_a_disk_that_takes_nothing_ends_no_run",
    ),
    Guard(
        "another job's reference of a net that was edited since",
        SHARED,
        "if found is None or first_changed(found.modules):",
        "if found is None:",
        f"{SHARED_TESTS}test_another_question_has_a_reference_of_its_own",
    ),
    Guard(
        "another job's reference that was written over",
        SHARED,
        "if file_digest(copied) != digest:",
        "if False:",
        f"{SHARED_TESTS}test_a_spoilt_answer_is_found_out_anew",
    ),
    Guard(
        "a reference of modules that were written over while it was computed",
        SHARED,
        "if any(mark is None or mark[-1] >= began * 1e9 for mark in modules.values()):",
        "if False:",
        f"{SHARED_TESTS}test_nothing_is_kept_that_may_be_of_files_written_meanwhile",
    ),
    Guard(
        "a reference of images that were written over while it was computed",
        "pipeline/orchestrate/run.py",
        "if context.files.at_rest():",
        "if True:",
        f"{SHARED_TESTS}test_nothing_is_kept_that_may_be_of_files_written_meanwhile",
    ),
    Guard(
        "a fork server that was started in other surroundings",
        "pipeline/orchestrate/forking.py",
        "if _Ahead.surroundings != surroundings():",
        "if False:",
        "tests/orchestrate/test_started_ahead.py::test_a_server_of_other_surroundings_is_ended",
    ),
    Guard(
        "a fork server that outlives a run which is killed",
        "pipeline/worker/fork_server.py",
        "    die_with_the_parent()\n",
        "",
        "tests/orchestrate/test_forking.py::test_a_server_dies_with_its_parent_while_it_imports",
    ),
    Guard(
        "a server that was started ahead and works on beside the run",
        "pipeline/orchestrate/run.py",
        "            ahead.stop()  # the others are interpreters of their own",
        "            pass",
        "tests/orchestrate/test_started_ahead.py::test_where_workers_are_interpreters_the_first_alone_is_the_server_s",
    ),
    Guard(
        "a fork server whose parent died before it could ask to die with it",
        "pipeline/worker/fork_server.py",
        "    if abandoned(connection):",
        "    if False:",
        "tests/orchestrate/test_forking.py::test_a_server_whose_parent_died_before_it_could_ask_imports_nothing",
    ),
    Guard(
        "a server that was started ahead and that no run takes",
        "pipeline/orchestrate/run.py",
        "    stop_ahead()\n",
        "",
        "tests/orchestrate/test_started_ahead.py::test_a_server_that_no_run_takes_is_ended",
    ),
    Guard(
        "an interruption before anything could tell of it",
        "pipeline/config/importing.py",
        "        signal.signal(signal.SIGINT, signal.SIG_DFL)",
        "        pass",
        "tests/cli/test_importing.py::test_an_interruption_while_it_imports_is_no_traceback",
    ),
    Guard(
        "output that nobody reads",
        "models/one_line.py",
        "        leave_unread()\n        tell",
        "        tell",
        "tests/cli/test_unread_output.py::test_an_interruption_ends_a_program_whose_output_nobody_reads",
    ),
    Guard(
        "an index that knows no advisories",
        "tests/house/audit.py",
        "    if not found.known:\n",
        "    if False:\n",
        "tests/house/test_audit.py::test_each_end_has_a_line_and_a_code",
    ),
    Guard(
        "what is no file in a log's place",
        TRIALS,
        "if stat.S_ISREG(status.st_mode):",
        "if True:",
        f"{TRIALS_TESTS}test_the_end_of_a_log_is_read_of_files_alone",
    ),
    Guard(
        "a stage that skips itself once it has run",
        "pipeline/worker/__main__.py",
        " and reporter.phase in BUILT",
        "",
        f"{WORKER_END}test_only_a_build_says_that_it_has_no_form_here",
    ),
    Guard(
        "an error that is no Exception",
        "pipeline/worker/__main__.py",
        "except BaseException as error:",
        "except Exception as error:",
        f"{WORKER_END}test_whatever_is_raised_is_told",
    ),
    Guard(
        "files that a stage saves elsewhere",
        "pipeline/worker/contract.py",
        "if not path.is_relative_to(run_folder) or not Path(os.path.realpath(path)).is_relative_to(inside):",
        "if False:",
        f"{CONTRACT}test_what_a_stage_saves_are_files_of_the_run",
    ),
    Guard(
        "pipes that a stage saves",
        "pipeline/worker/contract.py",
        "if not os.path.isfile(path):",
        "if False:",
        f"{CONTRACT}test_what_a_stage_saves_are_files_of_the_run",
    ),
    Guard(
        "a run resumed where a variable of the environment is another",
        "pipeline/orchestrate/resume.py",
        '"environment": _lines(variable_differences(old.environment, told)),',
        '"environment": [],',
        "tests/orchestrate/test_lost_and_found.py::test_another_question_is_not_resumed_unless_told",
    ),
]

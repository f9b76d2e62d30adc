"""Every guard beside the test that must fail without it; `python -m tests.house.guards_needed` tries each."""

from tests.house.guard import Guard
from tests.house.guards_against_code import AGAINST_CODE
from tests.house.guards_of_deploy import OF_DEPLOY
from tests.house.guards_of_files import OF_FILES
from tests.house.guards_of_measuring import OF_MEASURING
from tests.house.guards_of_nets import OF_NETS
from tests.house.guards_of_runs import OF_RUNS

MASKING = "pipeline/records/masking.py"
MASKING_TESTS = "tests/records/test_masking.py::"
SIGNS = "tests/report/test_signs.py::"
GOAL_TESTS = "tests/config/test_goal_request.py::"
CHECKPOINT_TESTS = "tests/models/test_checkpoint.py::"
STRANGERS = "tests/cli/test_strangers.py::"
CODEC = "pipeline/records/codec.py"
CODEC_TESTS = "tests/records/test_codec.py::"

GUARDS = [
    *AGAINST_CODE,
    *OF_FILES,
    *OF_NETS,
    Guard(
        "sweeps of too many jobs",
        "pipeline/cli/sweep_size.py",
        "    if jobs > MOST_JOBS:",
        "    if False:",
        f"{STRANGERS}test_a_sweep_of_no_job_or_of_too_many_is_refused",
    ),
    Guard(
        "sweeps without an end",
        "pipeline/cli/sweep_size.py",
        " or not step:",
        ":",
        f"{STRANGERS}test_a_sweep_of_no_job_or_of_too_many_is_refused",
    ),
    Guard(
        "secrets in records",
        "pipeline/records/codec.py",
        "return masked(to_json(run), values_to_hide(referred_to(run.config)))",
        "return to_json(run)",
        f"{MASKING_TESTS}test_no_record_holds_a_secret",
    ),
    Guard(
        "secrets in the command",
        "pipeline/cli/app.py",
        "words = masked(sys.argv[1:], values_to_hide())",
        "words = sys.argv[1:]",
        f"{MASKING_TESTS}test_the_program_sees_the_variable_in_place_of_its_value",
    ),
    Guard(
        "a secret in two pieces",
        MASKING,
        "cut = max(0, len(whole) - self._kept)",
        "cut = len(whole)",
        f"{MASKING_TESTS}test_pieces_are_masked_as_the_whole_is",
    ),
    Guard(
        "signs that a terminal obeys",
        "pipeline/report/formatting.py",
        'sign if sign.isprintable() else " "',
        "sign",
        f"{SIGNS}test_every_sign_has_its_answer",
    ),
    Guard(
        "signs that turn the text, in a page's paths",
        "pipeline/report/html.py",
        'if context["present"](path) else exactly(path)',
        'if context["present"](path) else escape(path)',
        f"{SIGNS}test_no_path_on_a_page_shows_them",
    ),
    Guard(
        "limits on Dice without labels",
        "pipeline/config/goal_request.py",
        "if limits.need_labels and not labelled:",
        "if False:",
        f"{GOAL_TESTS}test_a_limit_that_nothing_can_decide_is_refused",
    ),
    Guard(
        "limits on masks of random weights",
        "pipeline/config/goal_request.py",
        "if limits.asked and not trained:",
        "if False:",
        f"{GOAL_TESTS}test_a_limit_that_nothing_can_decide_is_refused",
    ),
    Guard(
        "a winner that keeps no bound",
        "pipeline/analysis/objectives.py",
        "and all(check.holds for check in own)",
        "",
        "tests/analysis/test_objectives.py::test_bounds_leave_the_fastest_of_those_that_keep_them",
    ),
    Guard(
        "signs in a bad record's line",
        "pipeline/report/redraw_command.py",
        'tell(f"error: {clean(error)}")',
        'tell(f"error: {error}")',
        f"{SIGNS}test_a_bad_record_is_told_of_without_them",
    ),
    Guard(
        "tags in a page",
        "pipeline/report/html.py",
        "autoescape=True",
        "autoescape=False",
        "tests/report/test_html.py::test_what_a_record_holds_is_shown_and_never_run",
    ),
    Guard(
        "scripts in a page",
        "pipeline/report/templates/parts.j2",
        "script-src '{{ script_hash }}';",
        "",
        "tests/report/test_html.py::test_the_page_lets_nothing_run_but_its_own_script",
    ),
    Guard(
        "formulas in a spreadsheet",
        "pipeline/report/csv_table.py",
        "if text.startswith(FORMULA_SIGNS)",
        "if False",
        "tests/report/test_renderers.py",
    ),
    Guard(
        "code in a checkpoint",
        "models/checkpoint.py",
        "weights_only=True",
        "weights_only=False",
        f"{CHECKPOINT_TESTS}test_a_bad_file_is_one_line_that_names_it",
    ),
    Guard(
        "weights of another net",
        "models/checkpoint.py",
        "if misfit := difference(model.state_dict(), state):",
        "if misfit := None:",
        f"{CHECKPOINT_TESTS}test_a_bad_file_is_one_line_that_names_it",
    ),
    Guard(
        "fields that no record has",
        "pipeline/records/codec.py",
        'if unknown := next(_unknown_fields(value, msgspec.to_builtins(record), "$"), None):',
        "if unknown := None:",
        "tests/records/test_codec.py",
    ),
    Guard(
        "runs compared that had other weights",
        "pipeline/analysis/run_comparison.py",
        '        ("the weights\' SHA-256", run.reference.weights_sha256 if run.reference else None),\n',
        "",
        "tests/report/test_written_files.py",
    ),
    Guard(
        "records that are no regular files",
        CODEC,
        "if path.exists() and not path.is_file():",
        "if False:",
        f"{CODEC_TESTS}test_what_is_no_regular_file_is_never_read",
    ),
    Guard(
        "names of stages that lead elsewhere",
        CODEC,
        "        check_names(run)\n",
        "",
        f"{CODEC_TESTS}test_names_that_no_folder_of_a_stage_has_are_refused",
    ),
    Guard(
        "a key with two values",
        "pipeline/cli/preset.py",
        " or given_twice(arguments):",
        ":",
        "tests/cli/test_typed_words.py::test_a_key_that_is_given_two_values_is_refused",
    ),
    Guard(
        "more threads than processors",
        "pipeline/config/load.py",
        '    check_threads(found["threads"])\n',
        "",
        "tests/config/test_load.py::test_a_wrong_value_outside_the_groups_is_named",
    ),
    Guard(
        "flags that nobody knows",
        "pipeline/cli/preset.py",
        "    parser.error = refuse",
        "    parser.failing = refuse",
        "tests/cli/test_absurd_words.py::test_a_flag_that_hydra_does_not_know_is_one_line",
    ),
    Guard(
        "images that would be mostly mirrored",
        "models/windows.py",
        "if any(MOST_MIRRORED * side < length",
        "if False and any(MOST_MIRRORED * side < length",
        "tests/models/test_windows.py::test_an_image_is_not_made_of_its_mirror_image",
    ),
    Guard(
        "inputs of different numbers of samples",
        "models/tensor_files.py",
        "    if len(set(counts.values())) > 1:",
        "    if False:",
        "tests/models/test_tensor_files.py::test_what_is_no_input_is_one_line",
    ),
    Guard(
        "NaN in a tensor",
        "models/tensor_files.py",
        "            if bool(wrong.any()):",
        "            if False:",
        "tests/models/test_tensor_files.py::test_values_that_are_none_are_named_with_their_sample",
    ),
    Guard(
        "a volume that ends too early",
        "models/nifti.py",
        "    if missing > 0:",
        "    if False:",
        "tests/models/test_volume_files.py::test_a_broken_file_is_named",
    ),
    Guard(
        "limits of another task",
        "pipeline/config/goal_request.py",
        "        if name not in OF_TASK[task]:",
        "        if False:",
        "tests/measure/test_tasks.py::test_a_limit_of_another_task_is_refused",
    ),
    Guard(
        "a sparse product that is wrong",
        "pipeline/lessons/experiments/sparsity.py",
        "if not off < FAR:",
        "if False:",
        "tests/lessons/test_lessons_bits.py::test_a_sparse_product_that_is_wrong_is_not_timed",
    ),
    *OF_DEPLOY,
    *OF_MEASURING,
    *OF_RUNS,
]

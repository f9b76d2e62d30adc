"""Every guard beside the test that must fail without it; `python -m tests.house.guards_needed` tries each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Guard:
    """One guard.

    Attributes:
        what: it keeps out, in a few words.
        file: that holds it.
        code: of the guard, as it stands there once.
        instead: what stands there without it.
        test: that must then fail, as pytest names it.
    """

    what: str
    file: str
    code: str
    instead: str
    test: str


HOSTILE = "tests/compiler/test_hostile_artefacts.py::"
ARCHIVE = "pipeline/compiler/checked_archive.py"
TARGETS, TARGET_TESTS = "models/targets.py", "tests/models/test_targets.py::"
MASKING, MASKING_TESTS = "pipeline/records/masking.py", "tests/records/test_masking.py::"
SIGNS = "tests/report/test_signs.py::"
NAMED_TESTS = "tests/models/test_named_code.py::"
GOAL_TESTS = "tests/config/test_goal_request.py::"
CHECKPOINT_TESTS = "tests/models/test_checkpoint.py::"
PREDICT_TESTS = "tests/deploy/test_predict.py::"
NOTEBOOK_TESTS = "tests/notebook/test_measured_net.py::"
EXPORTING = "tests/deploy/test_exporting.py::"
FORKING = "tests/orchestrate/test_forking.py::"

GUARDS = [
    Guard(
        "copies of a process with further threads",
        "pipeline/worker/fork_server.py",
        'if len(list(Path("/proc/self/task").iterdir())) > 1:',
        "if False:",
        f"{FORKING}test_a_server_that_cannot_fork_starts_no_worker",
    ),
    Guard(
        "forked workers that the run could not wait for",
        "pipeline/orchestrate/forking.py",
        "        except ChildProcessError:\n            with",
        "        except AssertionError:\n            with",
        f"{FORKING}test_what_is_no_child_of_the_run_is_ended",
    ),
    Guard(
        "operations of a saved net beyond the list",
        ARCHIVE,
        'if not is_allowed(node["target"]):',
        "if False:",
        f"{HOSTILE}test_no_graph_may_map_a_file",
    ),
    Guard(
        "operations that write",
        "pipeline/compiler/allowed_operations.py",
        " or found._schema.is_mutable",
        "",
        f"{HOSTILE}test_operations_beyond_the_list_are_refused",
    ),
    Guard(
        "pickled weights in a saved net",
        ARCHIVE,
        'entry.get("use_pickle") is not False or',
        "",
        f"{HOSTILE}test_no_pickle_is_read",
    ),
    Guard("pickled examples of inputs", ARCHIVE, 'data = b""', "pass", f"{HOSTILE}test_no_pickle_is_read"),
    Guard(
        "kinds of values that hold code",
        ARCHIVE,
        'if key.startswith("as_") and key not in VALUES:',
        "if False:",
        f"{HOSTILE}test_a_graph_with_more_in_it_is_refused",
    ),
    Guard(
        "guards and expressions in a saved net",
        ARCHIVE,
        "if key in EMPTY and value:",
        "if False:",
        f"{HOSTILE}test_a_graph_with_more_in_it_is_refused",
    ),
    Guard(
        "names that are code",
        ARCHIVE,
        'if key == "name" and value is not None',
        "if False and value is not None",
        f"{HOSTILE}test_a_graph_with_more_in_it_is_refused",
    ),
    Guard(
        "inputs of a class that torch would import",
        ARCHIVE,
        '(key == "type" and value not in CONTAINERS) or',
        "",
        f"{HOSTILE}test_a_graph_with_more_in_it_is_refused",
    ),
    Guard(
        "members that torch would load as a library",
        ARCHIVE,
        "if not (marked or RAW.fullmatch(name)) or name in found:",
        "if False:",
        f"{HOSTILE}test_members_that_no_net_has_are_refused",
    ),
    Guard(
        "members that inflate",
        ARCHIVE,
        "if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):",
        "if False:",
        f"{HOSTILE}test_archives_that_inflate_are_refused",
    ),
    Guard(
        "members that lie over each other",
        ARCHIVE,
        "sum(entry.file_size for entry in entries) > size",
        "False",
        f"{HOSTILE}test_archives_that_inflate_are_refused",
    ),
    Guard(
        "a saved net that was changed",
        "pipeline/compiler/artifact.py",
        'if about.get("net_sha256") != hashlib.sha256(content).hexdigest():',
        "if False:",
        "tests/compiler/test_artifact.py::test_a_net_that_was_changed_or_torn_is_refused",
    ),
    Guard(
        "targets in Python's own library",
        TARGETS,
        'if top in sys.stdlib_module_names or top in (*sys.builtin_module_names, "__main__"):',
        "if False:",
        f"{TARGET_TESTS}test_what_is_no_net_is_refused_before_it_is_imported",
    ),
    Guard(
        "targets in packages that are none of nets",
        TARGETS,
        "return None if is_of_nets(top) else",
        "return None if True else",
        f"{TARGET_TESTS}test_what_is_no_net_is_refused_before_it_is_imported",
    ),
    Guard(
        "aliases of others' classes",
        "models/named_code.py",
        "if why := borrowed(found):",
        "if why := None:",
        f"{TARGET_TESTS}test_an_alias_is_what_it_stands_for",
    ),
    Guard(
        "functions of packages as nets",
        "models/named_code.py",
        "if inspect.isfunction(found) and not _makes_nets(found):",
        "if False:",
        f"{NAMED_TESTS}test_functions_of_packages_are_no_nets",
    ),
    Guard(
        "classes of an option that are no layers, in the parent",
        "pipeline/config/load.py",
        "if why := refusal_of_class(named):",
        "if why := None:",
        f"{NAMED_TESTS}test_what_is_no_layer_is_no_option_s_value",
    ),
    Guard(
        "classes of an option that are no layers, in the worker",
        "models/named_code.py",
        "if why := refusal_of_class(target):",
        "if why := None:",
        f"{NAMED_TESTS}test_what_is_no_layer_is_no_option_s_value",
    ),
    Guard(
        "nets that a trained model's plans may name",
        "models/nnunet_nets.py",
        "if package != ARCHITECTURES:",
        "if False:",
        "tests/models/test_nnunet_nets.py::test_bad_plans_are_one_line",
    ),
    Guard(
        "a build that is another's function",
        "pipeline/worker/stage_target.py",
        "if why := borrowed(build):",
        "if why := None:",
        f"{TARGET_TESTS}test_a_build_that_is_another_s_function_is_refused",
    ),
    Guard(
        "packages of the user's own with our names",
        "pipeline/own_packages.py",
        "if name not in sys.modules:",
        "if False:",
        "tests/cli/test_own_packages.py::test_packages_of_the_users_own_are_not_taken_for_ours",
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
        "secrets in logs",
        "pipeline/orchestrate/worker_process.py",
        "MaskedBytes(values_to_hide())",
        "MaskedBytes({})",
        f"{MASKING_TESTS}test_no_log_holds_a_secret",
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
        "stages beyond a limit of accuracy",
        "pipeline/worker/run_stage.py",
        "(missed := limits.missed(accuracy))",
        '(missed := "")',
        "tests/worker/test_judged_images.py::test_a_limit_of_accuracy_is_asked_of_stages_and_not_of_the_baseline",
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
        "pipeline/report/__main__.py",
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
        "masks over files of the user's own",
        "pipeline/deploy/mask_files.py",
        "    if not isinstance(stamp, str):\n",
        "    if False:\n",
        f"{PREDICT_TESTS}test_what_is_refused_says_why",
    ),
    Guard(
        "masks of logits that are no numbers",
        "pipeline/deploy/predicting.py",
        "            if right:\n",
        "            if True:\n",
        f"{PREDICT_TESTS}test_an_answer_that_is_no_number_makes_no_mask",
    ),
    Guard(
        "one scale for images of two types",
        "pipeline/deploy/image_cases.py",
        "if contract.scale is not None and kind is not None and image.dtype != kind:",
        "if False:",
        f"{PREDICT_TESTS}test_a_scale_is_for_one_type_of_image",
    ),
    Guard(
        "two processes that write into one folder of masks",
        "pipeline/deploy/predict_command.py",
        "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        f"{PREDICT_TESTS}test_two_at_once_are_refused",
    ),
    Guard(
        "a notebook's net that the workers would make otherwise",
        "pipeline/notebook/measured_net.py",
        "if isinstance(one, Tensor) and not (one - other).norm() <= SAME_ANSWER * other.norm():",
        "if False:",
        f"{NOTEBOOK_TESTS}test_what_no_worker_could_make_again_is_refused",
    ),
    Guard(
        "a notebook's class that no worker can import",
        "pipeline/notebook/measured_net.py",
        'if cls.__module__ == "__main__" or "." in cls.__qualname__:',
        "if False:",
        f"{NOTEBOOK_TESTS}test_what_no_worker_could_make_again_is_refused",
    ),
    Guard(
        "an export of other weights than were measured",
        "pipeline/deploy/recorded_stage.py",
        "if (found := digest(checkpoint)) != measured:",
        "if (found := digest(checkpoint)) is None:",
        f"{EXPORTING}test_other_weights_than_were_measured_are_refused",
    ),
    Guard(
        "an export of a file that changed since the run",
        "pipeline/deploy/recorded_stage.py",
        "if file_digest(path) != artefact.sha256:",
        "if False:",
        f"{EXPORTING}test_a_file_that_changed_since_the_run_is_refused",
    ),
    Guard(
        "artefacts outside the run's folder",
        "pipeline/deploy/recorded_stage.py",
        "if not path.resolve().is_relative_to(self.folder.resolve()):",
        "if False:",
        f"{EXPORTING}test_a_file_that_changed_since_the_run_is_refused",
    ),
    Guard(
        "a bundle that failed its own check",
        "pipeline/deploy/exporting.py",
        'if not found["right"]:',
        "if False:",
        f"{EXPORTING}test_a_bundle_that_answers_otherwise_is_taken_away",
    ),
    Guard(
        "a bundle whose loader needs this project",
        "pipeline/deploy/fresh_process.py",
        'sys.modules |= dict.fromkeys(["pipeline", "models", "conf"])',
        "",
        f"{EXPORTING}test_nothing_of_the_project_can_be_imported_by_a_loader",
    ),
    Guard(
        "files of a bundle that were changed",
        "pipeline/deploy/verification.py",
        "    if changed:",
        "    if False:",
        "tests/deploy/test_verification.py::test_nothing_is_loaded_of_a_bundle_that_was_changed",
    ),
    Guard(
        "pickles in a bundle's program",
        "pipeline/deploy/carried/support_torch.py",
        "if pickled or (",
        "if False and (",
        f"{EXPORTING}test_a_loader_reads_no_pickle",
    ),
]

"""The guards of workers and stages: how they are started, interleaved, audited and held to what they owe."""

from tests.house.guard import Guard

MASKING_TESTS = "tests/records/test_masking.py::"
OPENVINO_TESTS = "tests/stages/test_openvino_compile.py::"
FORKING = "tests/orchestrate/test_forking.py::"
PAIR_TESTS = "tests/orchestrate/test_interleaved_pair.py::"
OUTCOME_TESTS = "tests/stats/test_outcomes.py::"
AUDIT = "pipeline/orchestrate/audit.py"
AUDIT_TESTS = "tests/orchestrate/test_audit.py::"

OF_MEASURING = [
    Guard(
        "copies of a process with further threads",
        "pipeline/worker/fork_server.py",
        'if len(list(Path("/proc/self/task").iterdir())) > 1:',
        "if False:",
        f"{FORKING}test_a_server_that_cannot_fork_starts_no_worker",
    ),
    Guard(
        "copies of a process that has opened a GPU",
        "pipeline/worker/fork_server.py",
        "if requests == 1 and any(file.startswith(GPU) for file in opened()):",
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
        "kernels without tiles that answer wrongly",
        "pipeline/compiler/choose.py",
        "if error > RIGHT:",
        "if False:",
        "tests/compiler/test_autotune_choice.py::test_a_kernel_without_tiles_that_is_wrong_is_found",
    ),
    Guard(
        "tiles that take more shared memory than there is",
        "pipeline/kernels/conv3x3/conv3x3_tiles.py",
        " if shared_by(tile, operands) <= free)",
        ")",
        "tests/kernels/test_shared_memory.py::test_every_candidate_fits_on_hopper",
    ),
    Guard(
        "an earlier build's winner that is wrong now",
        "pipeline/stages/common/agreement.py",
        "if error <= AGREES[precision]:",
        "if True:",
        "tests/stages/test_earlier_build.py::test_a_winner_that_is_wrong_now_is_not_taken",
    ),
    Guard(
        "secrets in logs",
        "pipeline/orchestrate/spawning.py",
        "MaskedBytes(values_to_hide())",
        "MaskedBytes({})",
        f"{MASKING_TESTS}test_no_log_holds_a_secret",
    ),
    Guard(
        "stages beyond a limit of accuracy",
        "pipeline/worker/run_stage.py",
        "missed = bench.job.accuracy.missed(accuracy, bench.workload.words)",
        'missed = ""',
        "tests/worker/test_judged_images.py::test_a_limit_of_accuracy_is_asked_of_stages_and_not_of_the_baseline",
    ),
    Guard(
        "a worker that works while the other side is timed",
        "pipeline/orchestrate/interleaved_pair.py",
        "if not self._other.suspend():",
        "if False:",
        f"{PAIR_TESTS}test_whoever_is_not_timed_is_stopped_with_its_children",
    ),
    Guard(
        "children in sessions of their own that work on",
        "pipeline/orchestrate/offspring.py",
        "return {self.leader} | descendants([self.leader], of) | left",
        "return {self.leader}",
        f"{PAIR_TESTS}test_whoever_is_not_timed_is_stopped_with_its_children",
    ),
    Guard(
        "a worker that was ended while it waited",
        "pipeline/orchestrate/interleaved_pair.py",
        "if not self._worker.alive:",
        "if False:",
        f"{PAIR_TESTS}test_a_worker_that_was_ended_while_it_waited_is_told_so",
    ),
    Guard(
        "a worker that was given other conditions",
        "pipeline/orchestrate/interleaved_pair.py",
        "if first.alive and (difference := ",
        "if False and (difference := ",
        f"{PAIR_TESTS}test_a_worker_that_is_given_other_conditions_counts_no_more",
    ),
    Guard(
        "a clock that was forged in the stage's process",
        AUDIT,
        "if given.seconds <= SLACK * lag * said",
        "if True or given.seconds <= SLACK * lag * said",
        f"{AUDIT_TESTS}test_whoever_takes_longer_than_its_samples_say_is_found_out",
    ),
    Guard(
        "an overloaded machine that accuses",
        AUDIT,
        "if behind <= MOST_LAG and load <= OVERLOAD:",
        "if True:",
        f"{AUDIT_TESTS}test_who_cannot_be_told_from_a_liar_on_a_machine_that_lags_is_accused_of_nothing",
    ),
    Guard(
        "a machine in step with the order of passes",
        "pipeline/measure/memory_of_contents.py",
        "draw.sample([True, False, False], 3)",
        "[True, False, False]",
        "tests/measure/test_memory_of_contents.py::test_no_machine_accuses_an_honest_stage",
    ),
    Guard(
        "memories that new pictures push out",
        "pipeline/measure/memory_of_contents.py",
        "        self._turn(0)  # untimed: what it knows, it knows again\n",
        "",
        "tests/measure/test_memory_of_contents.py::test_who_forgets_the_known_for_new_ones_is_told_as_well",
    ),
    Guard(
        "memories of some pictures alone",
        "pipeline/measure/memory_of_contents.py",
        " + [one for one in pictures if not _honest(one)]",
        "",
        "tests/measure/test_memory_of_contents.py::test_who_remembers_one_picture_of_many_is_told_by_it",
    ),
    Guard(
        "memories that serve some calls alone",
        "pipeline/measure/memory_of_contents.py",
        "min(wanted, (height - 1) // ROUNDS)",
        "1",
        "tests/measure/test_memory_of_contents.py::test_who_serves_some_calls_or_pictures_alone_is_told_as_well",
    ),
    Guard(
        "answers that were not computed",
        AUDIT,
        "if (off := distance(given.answers, right.answers)) > claim.allowed:",
        "if (off := 0.0) > claim.allowed:",
        f"{AUDIT_TESTS}test_answers_that_are_not_the_baseline_s_are_found_out",
    ),
    Guard(
        "hooks of every layer",
        "pipeline/measure/lasting_state.py",
        '        "hooks of every layer": sum(map(len, every_layers_hooks())),\n',
        "",
        "tests/worker/test_judges.py::test_what_all_calls_of_the_process_pass_through_is_named",
    ),
    Guard(
        "fewer bits that lose a rare class",
        "pipeline/stages/common/fewer_bits.py",
        "if not allowed.share(found) <= 1:",
        "if False:",
        "tests/stages/test_int8.py::test_a_stage_that_loses_the_rare_class_silently_does_not_pass",
    ),
    Guard(
        "a net that Inductor runs under OpenVINO's name",
        "pipeline/stages/openvino_compile.py",
        "    if not found:",
        "    if False:",
        f"{OPENVINO_TESTS}test_a_net_that_inductor_runs_is_no_stage_of_openvinos",
    ),
    Guard(
        "a piece of a net that torch runs under OpenVINO's name",
        "pipeline/stages/openvino_compile.py",
        'if any(getattr(part, "perm_fallback", False) for part in parts):',
        "if False:",
        f"{OPENVINO_TESTS}test_a_piece_that_torch_runs_is_none_either",
    ),
    Guard(
        "a layer in bf16 that is called fp8",
        "pipeline/stages/torchao_fp8.py",
        "if not is_quantized(layer)",
        "if False",
        "tests/stages/test_torchao_fp8.py::test_a_layer_that_torchao_leaves_alone_is_not_called_fp8",
    ),
    Guard(
        "a stage of one input on a net of several",
        "pipeline/worker/contract.py",
        "        signature.bind(*names)",
        "        pass",
        "tests/worker/test_several_inputs.py::test_a_stage_for_one_input_is_refused",
    ),
    Guard(
        "a file of torch.export that was not checked",
        "pipeline/worker/net_file.py",
        "    except ArchiveError as error:",
        "    except ZeroDivisionError as error:",
        "tests/worker/test_net_file.py::test_a_file_that_is_none_is_refused_by_name",
    ),
    Guard(
        "ratios of a machine that others use",
        "pipeline/stats/drift.py",
        "    return max((share for share in shares if share >= CROWDED), default=0.0)",
        "    return 0.0",
        f"{OUTCOME_TESTS}test_where_others_take_the_processors_no_winner_is_named",
    ),
    Guard(
        "intervals that are wider than far from one",
        "pipeline/stats/outcomes.py",
        "if not found.bounded or vague(found):",
        "if not found.bounded:",
        f"{OUTCOME_TESTS}test_an_interval_that_is_wider_than_far_from_one_shows_nothing",
    ),
    Guard(
        "changes between runs whose baselines differ from themselves by as much",
        "pipeline/stats/outcomes.py",
        "    reach = one.reach + other.reach",
        "    reach = 0.0",
        f"{OUTCOME_TESTS}test_two_runs_differ_by_no_less_than_their_baselines_differ_from_themselves",
    ),
]

"""The guards against nets that aren't what they seem, and against taking home what isn't what was measured."""

from tests.house.guard import Guard

NET_TESTS = "tests/worker/test_net_contract.py::"
ANSWERS = "pipeline/worker/answer_checks.py"
ANSWER_TESTS = "tests/worker/test_answers_of_nets.py::test_an_answer_that_cannot_be_compared_is_one_line"
AS_MEASURED = "pipeline/deploy/as_measured.py"
MEASURED_TESTS = "tests/deploy/test_as_measured.py::"
CROSS_CHECKS = "tests/records/test_cross_checks.py::"
GRAPH_INPUTS, GRAPH_INPUT_TESTS = "pipeline/stages/common/graph_inputs.py", "tests/stages/test_graph_inputs.py::"

OF_NETS = [
    Guard(
        "a memory's peak that a stage made up",
        "pipeline/measure/own_functions.py",
        '    (resource, ("getrusage",)),\n',
        "",
        "tests/worker/test_judges.py::test_a_function_in_the_place_of_another_is_seen",
    ),
    Guard(
        "a compiler that compiles nothing",
        "pipeline/stages/compile.py",
        "    check_compiled()\n",
        "",
        "tests/stages/test_compile.py::test_a_compiler_that_is_switched_off_is_named",
    ),
    Guard(
        "copies that are another net",
        "pipeline/worker/reference.py",
        "if name not in held or not is_same(fingerprint(part), held[name])",
        "if False",
        "tests/worker/test_made_nets.py::test_a_net_whose_copy_is_another_is_named",
    ),
    Guard(
        "nets that cast by themselves",
        "pipeline/worker/net_contract.py",
        "*of_another_precision(net), ",
        "",
        "tests/worker/test_answers_of_nets.py::test_a_net_that_casts_by_itself_is_told",
    ),
    Guard(
        "answers that are no plain tensors",
        ANSWERS,
        "    check_plain(net, answer)\n",
        "",
        ANSWER_TESTS,
    ),
    Guard(
        "answers in the memory of the last",
        ANSWERS,
        "    if share_memory(again, [logits]):",
        "    if False:",
        ANSWER_TESTS,
    ),
    Guard(
        "answers in the memory of the input",
        "pipeline/worker/net_call.py",
        "    if isinstance(answer, Tensor) and share_memory(answer, given):",
        "    if False:",
        ANSWER_TESTS,
    ),
    Guard(
        "answers that depend on the rest of the batch",
        ANSWERS,
        "    if (off := distance(alone, logits[:1])) > LEAST_LIMIT:",
        "    if (off := distance(alone, logits[:1])) > 9.0:",
        ANSWER_TESTS,
    ),
    Guard(
        "nets that change themselves",
        "pipeline/worker/net_contract.py",
        "    if changed:\n",
        "    if False:\n",
        f"{NET_TESTS}test_a_net_that_changes_itself_is_named",
    ),
    Guard(
        "layers out of sight",
        "pipeline/worker/net_contract.py",
        "    if used:\n",
        "    if False:\n",
        f"{NET_TESTS}test_a_net_that_calls_a_layer_out_of_sight_is_named",
    ),
    Guard(
        "traces of nets that read their images",
        "pipeline/stages/common/data_dependence.py",
        "            if found.values != known.values:\n",
        "            if False:\n",
        "tests/stages/test_data_dependence.py::test_a_net_that_reads_its_images_is_not_traced",
    ),
    Guard(
        "traces of nets that read their images by numpy",
        "pipeline/stages/common/data_dependence.py",
        "        if func in READ_WHOLE:\n",
        "        if False:\n",
        "tests/stages/test_data_dependence.py::test_a_net_that_reads_its_images_is_not_traced",
    ),
    Guard(
        "another net of one class",
        AS_MEASURED,
        "    first = load_first(folder / REFERENCE_FIRST)\n",
        "    first = None\n",
        f"{MEASURED_TESTS}test_a_net_of_one_class_is_known_by_its_values",
    ),
    Guard(
        "figures that contradict each other",
        "pipeline/records/codec.py",
        "            check_figures(run)\n",
        "",
        f"{CROSS_CHECKS}test_a_figure_that_another_contradicts_is_refused",
    ),
    Guard(
        "settings that are not the config's",
        "pipeline/records/codec.py",
        "            check_settings(run)\n",
        "",
        f"{CROSS_CHECKS}test_a_figure_that_another_contradicts_is_refused",
    ),
    Guard(
        "a config that is not the command's",
        "pipeline/records/codec.py",
        "            check_command(run)\n",
        "",
        f"{CROSS_CHECKS}test_settings_and_config_that_were_edited_alike_are_not_what_was_typed",
    ),
    Guard(
        "a batch that no call had",
        "pipeline/records/cross_checks.py",
        "            _check_inputs(run, stage)\n",
        "",
        f"{CROSS_CHECKS}test_a_figure_that_another_contradicts_is_refused",
    ),
    Guard(
        "a copy with the net's own weights",
        "pipeline/worker/reference.py",
        "    if made is model or {*map(id, model.parameters())} & {*map(id, made.parameters())}:\n",
        "    if False:\n",
        "tests/worker/test_made_nets.py::test_a_net_whose_copy_has_its_weights_is_named",
    ),
    Guard(
        "nets whose code has changed since the run",
        AS_MEASURED,
        "    if other:\n",
        "    if False:\n",
        f"{MEASURED_TESTS}test_a_net_whose_code_has_changed_is_neither_predicted_by_nor_exported",
    ),
    Guard(
        "recorded options that no stage takes",
        "pipeline/deploy/recorded_choice.py",
        "    checked_options(stage.options, stage.target, stage.name)\n",
        "    pass\n",
        f"{MEASURED_TESTS}test_an_edited_record_is_refused_in_one_line",
    ),
    Guard(
        "records with figures that no run began with",
        "pipeline/records/codec.py",
        "        check_inputs(run)\n",
        "",
        f"{MEASURED_TESTS}test_an_edited_record_is_refused_in_one_line",
    ),
    Guard(
        "gzip without its checksum",
        "models/nifti.py",
        "        if packed and len(file.read(MOST_BEHIND + 1)) > MOST_BEHIND:\n",
        "        if False:\n",
        "tests/models/test_volume_files.py::test_a_packed_volume_is_read_to_its_end",
    ),
    Guard(
        "images of another range in a bundle",
        "pipeline/deploy/carried/image_shape.py",
        "    check_values(images)\n",
        "",
        "tests/deploy/test_loaders.py::test_a_loader_takes_arrays_and_tensors_and_no_other_range",
    ),
    Guard(
        "inputs that a graph finds otherwise than by their address",
        GRAPH_INPUTS,
        " and _same(answer, wanted) and ",
        " and ",
        f"{GRAPH_INPUT_TESTS}test_an_address_that_only_a_part_of_the_kernels_is_told_is_not_enough",
    ),
    Guard(
        "graphs that write to their input",
        GRAPH_INPUTS,
        " and _same(elsewhere, values)",
        "",
        f"{GRAPH_INPUT_TESTS}test_a_net_that_writes_to_its_input_gets_a_copy",
    ),
    Guard(
        "inputs that lie otherwise than a graph reads them",
        GRAPH_INPUTS,
        "part.stride() == self.fixed.stride() and ",
        "",
        f"{GRAPH_INPUT_TESTS}test_an_input_that_lies_otherwise_is_copied",
    ),
    Guard(
        "answers that a graph is given back",
        GRAPH_INPUTS,
        " and part.untyped_storage().data_ptr() != self._answer",
        "",
        f"{GRAPH_INPUT_TESTS}test_an_answer_that_is_given_back_is_copied_first",
    ),
    Guard(
        "answers that show nothing of an input",
        GRAPH_INPUTS,
        "self.proven = seen and ",
        "self.proven = ",
        f"{GRAPH_INPUT_TESTS}test_an_answer_that_shows_nothing_of_the_input_proves_nothing",
    ),
]

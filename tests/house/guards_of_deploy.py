"""The guards of what leaves a run: bundles, predicted masks, a notebook's nets."""

from tests.house.guard import Guard

PREDICT_TESTS = "tests/deploy/test_predict.py::"
NOTEBOOK_TESTS = "tests/notebook/test_measured_net.py::"
EXPORTING = "tests/deploy/test_exporting.py::"

OF_DEPLOY = [
    Guard(
        "folders left of a refused prediction",
        "pipeline/deploy/predict_command.py",
        "        if not was_there and",
        "        if False and",
        "tests/deploy/test_refused_prediction.py::test_no_folder_is_left_of_a_request_that_is_refused",
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
        "tests/deploy/test_loaders.py::test_a_loader_reads_no_pickle",
    ),
    Guard(
        "masks of a net without",
        "pipeline/deploy/predictor.py",
        "    if not settings.task.has_masks:",
        "    if False:",
        "tests/deploy/test_other_inputs.py::test_predict_makes_masks_of_images_alone",
    ),
    Guard(
        "a volume that the net doesn't take at once",
        "pipeline/deploy/predicting.py",
        "        if case.is_volume and not self.whole and any(map(operator.gt, sides, taken)):",
        "        if False:",
        "tests/deploy/test_predict_volumes.py::test_a_folder_of_volumes_is_predicted_and_resumed",
    ),
    Guard(
        "a file in the place of a volume's mask that is none of ours",
        "pipeline/deploy/volume_masks.py",
        "    return text.removeprefix(STAMP) if text.startswith(STAMP) else None",
        "    return text",
        "tests/deploy/test_predict_volumes.py::test_what_is_no_mask_of_ours_is_never_written_over",
    ),
    Guard(
        "an overlap of windows that no volume is cut into",
        "pipeline/deploy/predict_command.py",
        "    if volumes and asked.overlap is not None:",
        "    if False:",
        "tests/deploy/test_predict_volumes.py::test_a_folder_of_volumes_is_predicted_and_resumed",
    ),
    Guard(
        "a TIFF that announces more than it holds",
        "models/tiff_files.py",
        "    if len(series.keyframe.dataoffsets) < math.prod(series.keyframe.chunked):",
        "    if False:",
        "tests/models/test_volume_files.py::test_a_tiff_that_announces_more_than_it_holds_is_refused",
    ),
    Guard(
        "figures of CT without the others",
        "pipeline/config/data_request.py",
        "        if own and (missing := [key for key in OWN if key not in own]):",
        "        if own and (missing := []):",
        "tests/config/test_ct_figures.py::test_what_cannot_be_is_refused",
    ),
    Guard(
        "figures of CT of a folder that doesn't fit into memory",
        "pipeline/config/ct_figures.py",
        "    if needed > memory:",
        "    if False:",
        "tests/config/test_ct_figures.py::test_what_cannot_be_measured_is_refused",
    ),
    Guard(
        "a ring whose copies overtake the net",
        "pipeline/worker/host_path.py",
        "            if share > MOST_SHARE:",
        "            if False:",
        "tests/worker/test_host_path.py::test_a_ring_whose_lanes_do_not_wait_is_caught",
    ),
]

"""The guards against what files of strangers hold, each beside the test that must fail without it."""

from tests.house.guard import Guard

IMAGES, LABELS, WEIGHTS = "models/image_files.py", "models/label_files.py", "models/checkpoint.py"
TIFFS = "models/tiff_files.py"
MADE_NETS = "tests/worker/test_made_nets.py::"
IMAGE_TESTS = "tests/models/test_image_files.py::"
MISSING_PARTS = "tests/models/test_missing_parts.py::test_a_picture_that_lacks_a_part_is_refused"
LABEL_TESTS = "tests/models/test_label_files.py::"
WEIGHT_TESTS = "tests/models/test_checkpoint.py::"
STRANGERS = "tests/cli/test_strangers.py::"
BUNDLE_TEST = "tests/deploy/test_predict.py::test_no_loader_runs_that_is_not_the_one_that_was_exported"
CONTRACT_TESTS = "tests/worker/test_net_contract.py::"

OF_FILES = [
    Guard(
        "colours of a TIFF that are neither grey nor RGB",
        TIFFS,
        "            if not raw and shown not in (CLASSES if indices else SEEN):",
        "            if False:",
        f"{IMAGE_TESTS}test_a_tiff_of_other_colours_than_grey_and_rgb_is_refused",
    ),
    Guard(
        "numbers below zero that look large",
        TIFFS,
        "    if UNSPECIFIED in tags.get(EXTRA_SAMPLES, ()) or SIGNED in tags.get(SAMPLE_FORMAT, ()):",
        "    if UNSPECIFIED in tags.get(EXTRA_SAMPLES, ()):",
        f"{IMAGE_TESTS}test_numbers_below_zero_are_not_taken_for_large_ones",
    ),
    Guard(
        "channels of a TIFF that are no transparency",
        TIFFS,
        "    if UNSPECIFIED in tags.get(EXTRA_SAMPLES, ()) or SIGNED in",
        "    if SIGNED in",
        MISSING_PARTS,
    ),
    Guard(
        "several series of a TIFF's pages",
        "models/volume_files.py",
        "        if len(file.series) > 1:",
        "        if False:",
        "tests/models/test_volume_files.py::test_several_series_of_pages_are_no_volume",
    ),
    Guard(
        "trainings that can't be done",
        "models/train.py",
        "        check_request(asked)\n",
        "",
        "tests/models/test_training.py::test_what_cannot_be_done_is_refused_before_minutes_are_spent",
    ),
    Guard(
        "planes of a TIFF behind one header",
        TIFFS,
        "    if stored > page:",
        "    if False:",
        MISSING_PARTS,
    ),
    Guard(
        "values of a TIFF in 12 bits",
        TIFFS,
        "    if 8 < bits < 16:",
        "    if False:",
        MISSING_PARTS,
    ),
    Guard(
        "rows of a PNG that aren't there",
        "models/png_files.py",
        "        if found >= wanted:",
        "        if True:",
        MISSING_PARTS,
    ),
    Guard(
        "headers of arrays that are none",
        "models/npy_files.py",
        "    except OF_A_HEADER as error:",
        "    except ZeroDivisionError as error:",
        f"{IMAGE_TESTS}test_an_array_s_header_that_is_none_is_told",
    ),
    Guard(
        "tensors of a net that end its process",
        "models/build.py",
        "    check_layouts(target, model)\n",
        "",
        f"{MADE_NETS}test_a_net_that_cannot_be_made_is_named",
    ),
    Guard(
        "nets that change the process as they are made",
        "pipeline/worker/workload.py",
        "    for name, (was, now) in changes(before, lasting_state()).items():",
        "    for name, (was, now) in changes(before, before).items():",
        f"{MADE_NETS}test_a_net_that_changes_the_process_as_it_is_made_is_named",
    ),
    Guard(
        "nets that end the program",
        "pipeline/worker/net_call.py",
        "    except SystemExit as error:",
        "    except ZeroDivisionError as error:",
        f"{CONTRACT_TESTS}test_what_a_net_lacks_is_one_line",
    ),
    Guard(
        "formats that Pillow gives to others",
        IMAGES,
        "return Image.open(path, formats=FORMATS)",
        "return Image.open(path)",
        f"{IMAGE_TESTS}test_a_file_of_another_format_under_a_read_suffix_is_refused",
    ),
    Guard(
        "pixels that a TIFF announces",
        TIFFS,
        "            check_pixels(path, file)\n",
        "",
        f"{IMAGE_TESTS}test_a_tiff_that_pillow_does_not_open_has_no_more_pixels_than_others",
    ),
    Guard(
        "white for black",
        TIFFS,
        "return as_black_is_zero(path, file, np.asarray(series.asarray()))",
        "return np.asarray(series.asarray())",
        f"{IMAGE_TESTS}test_a_tiff_in_which_0_is_white_is_turned_round",
    ),
    Guard(
        "a mask in the transparency",
        LABELS,
        "    check_transparency(path)\n",
        "",
        f"{LABEL_TESTS}test_a_mask_in_the_transparency_is_refused",
    ),
    Guard(
        "labels that a JPEG has blurred",
        LABELS,
        "    check_lossless(path)\n",
        "",
        f"{LABEL_TESTS}test_labels_in_a_jpeg_are_refused",
    ),
    Guard(
        "labels of few bits that are spread",
        LABELS,
        "            step = spread_by(image)\n",
        "            step = 1\n",
        f"{LABEL_TESTS}test_grey_of_few_bits_is_indices",
    ),
    Guard(
        "labels of other axes",
        LABELS,
        "        if values.shape[2] not in (1, *IN_COLOUR):",
        "        if False:",
        f"{LABEL_TESTS}test_labels_of_other_axes_are_refused",
    ),
    Guard(
        "labels that lie elsewhere than their volume",
        "models/volume_files.py",
        "        each(files, lambda file: check_place(file, label_files[files.index(file)]))\n",
        "",
        "tests/models/test_volume_files.py::test_labels_that_lie_elsewhere_are_refused",
    ),
    Guard(
        "an archive of weights that inflates",
        WEIGHTS,
        "if whole > INFLATES_TO * packed:",
        "if False:",
        f"{WEIGHT_TESTS}test_an_archive_that_inflates_is_refused_before_it_does",
    ),
    Guard(
        "targets that Hydra calls",
        "pipeline/cli/hydra_targets.py",
        "if why := refusal(name):",
        "if why := None:",
        f"{STRANGERS}test_what_hydra_would_call_is_checked_as_a_stage_is",
    ),
    Guard(
        "a pipe in a mask's place",
        "pipeline/report/gallery.py",
        "        if not path.is_file():\n            return None\n",
        "",
        "tests/report/test_gallery.py::test_what_stands_in_a_mask_s_place_holds_up_no_report",
    ),
    Guard(
        "half a character in a record",
        "pipeline/records/atomic_json.py",
        "    if not HALF.search(text):\n        return text\n",
        "    return text\n",
        "tests/records/test_codec.py::test_a_file_s_name_that_is_no_text_is_kept_as_its_escape",
    ),
    Guard(
        "another loader in a bundle",
        "pipeline/deploy/bundle_predictor.py",
        "if changed := changed_files(folder):",
        "if changed := changed_files(folder) and []:",
        BUNDLE_TEST,
    ),
    Guard("code added to a bundle", "pipeline/deploy/bundle_sums.py", "[*changed, *added]", "changed", BUNDLE_TEST),
    Guard(
        "a net that answers the same to everything",
        "pipeline/worker/net_contract.py",
        "*constant(net, logits), ",
        "",
        f"{CONTRACT_TESTS}test_a_net_that_answers_the_same_to_everything_is_in_doubt",
    ),
    Guard(
        "a tolerance that takes zeros",
        "pipeline/config/load.py",
        "if errors[0] >= 1:",
        "if False:",
        "tests/config/test_load.py::test_a_wrong_value_is_named",
    ),
    Guard(
        "bounds that no figure keeps",
        "pipeline/config/goal_request.py",
        "    check_bounds(goal.subject_to)\n",
        "",
        "tests/config/test_goal_request.py::test_bounds_that_no_figure_keeps_are_refused",
    ),
    Guard(
        "a module without a build",
        "pipeline/config/load.py",
        "if lacks(target, BUILD):",
        "if False:",
        "tests/config/test_load.py::test_a_wrong_value_is_named",
    ),
]

"""The guards against code in what is read and named: a saved net, a target, a net's options, a stage's build."""

from tests.house.guard import Guard

HOSTILE = "tests/compiler/test_hostile_artefacts.py::"
ARCHIVE = "pipeline/compiler/checked_archive.py"
TARGETS, TARGET_TESTS = "models/targets.py", "tests/models/test_targets.py::"
NAMED_TESTS = "tests/models/test_named_code.py::"

AGAINST_CODE = [
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
        "operations that go wherever their indices point",
        "pipeline/compiler/allowed_operations.py",
        'if "_backward" in name:',
        "if False:",
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
]

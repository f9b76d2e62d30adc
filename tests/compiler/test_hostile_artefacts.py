"""Artefacts that someone made to do harm: refused in one line, and nothing of them is run."""

import hashlib
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from pipeline.compiler.allowed_operations import is_allowed
from pipeline.compiler.artifact import ABOUT, FORMAT, NET, ArtefactError, load, save
from pipeline.compiler.checked_archive import CONFIGS, GRAPH, INPUTS, MOST_DEPTH, ArchiveError, checked_archive

Members = dict[str, bytes]
Document = dict[str, Any]
CODE = "print('description')"


class Small(nn.Module):
    """A weight, an operation with a number, and one that takes a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        return torch.cat([nn.functional.leaky_relu(self.layer(image), 0.25)], 1)


class Bomb:
    """What a hostile pickle would hold: a call that leaves a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.canary,)


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Members:
    """What an honest artefact consists of, by the names below its folder."""
    folder = tmp_path_factory.mktemp("honest")
    save(fx.symbolic_trace(Small().eval()), torch.zeros(1, 3, 4, 4), folder)
    with zipfile.ZipFile(folder / NET) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def packed(members: Members, compression: int = zipfile.ZIP_STORED) -> bytes:
    """An archive of these members."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(f"net/{name}", data)
    return out.getvalue()


def artefact(content: bytes, folder: Path) -> Path:
    """A folder with an archive and its right digest, as whoever made it would give it."""
    (folder / NET).write_bytes(content)
    about = {"format": FORMAT, "net_sha256": hashlib.sha256(content).hexdigest(), "batch": [1, 3, 4, 4]}
    (folder / ABOUT).write_text(json.dumps(about))
    return folder


def edited(members: Members, change: Callable[[Document], None], name: str = GRAPH) -> Members:
    """The members with one document changed."""
    document = json.loads(members[name])
    change(document)
    return {**members, name: json.dumps(document).encode()}


def first_node(document: Document) -> Document:
    node: Document = document["graph_module"]["graph"]["nodes"][0]
    return node


def refused(content: bytes, folder: Path) -> str:
    """Why an artefact is refused; one line."""
    with pytest.raises(ArtefactError) as caught:
        load(artefact(content, folder))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_honest_archive_is_loaded_and_answers(members: Members, tmp_path: Path) -> None:
    net = load(artefact(packed(members), tmp_path))
    assert net(torch.ones(1, 3, 4, 4)).shape == (1, 2, 4, 4)


def test_no_graph_may_map_a_file(members: Members, tmp_path: Path) -> None:
    """`aten.from_file` creates a file and maps it for writing."""
    canary = tmp_path / "canary"

    def fault(document: Document) -> None:
        named = [("filename", "as_string", str(canary)), ("shared", "as_bool", True), ("size", "as_int", 64)]
        inputs = [{"name": name, "arg": {kind: value}, "kind": 1} for name, kind, value in named]
        first_node(document).update(target="torch.ops.aten.from_file.default", inputs=inputs)

    assert "aten.from_file.default" in refused(packed(edited(members, fault)), tmp_path)
    assert not canary.exists()


def test_no_pickle_is_read(members: Members, tmp_path: Path) -> None:
    """Neither as an example of the inputs, which torch unpickles, nor as a weight."""
    canary = tmp_path / "canary"
    bomb = pickle.dumps(Bomb(canary), protocol=2)
    load(artefact(packed({**members, INPUTS: bomb}), tmp_path))

    def as_pickle(document: Document) -> None:
        next(iter(document["config"].values()))["use_pickle"] = True

    hostile = edited({**members, "data/weights/weight_0": bomb}, as_pickle, CONFIGS[0])
    assert "is pickled" in refused(packed(hostile), tmp_path)
    assert not canary.exists()


@pytest.mark.parametrize(
    "target",
    [
        "torch.load",
        "torch.hub.load",
        "torch.ops.load_library",
        "torch.ops.aten.from_file",
        "torch.ops.aten.set_.source_Storage",
        "torch.ops.aten.relu_.default",
        "torch.ops.aten.relu.__class__",
        "torch.ops.aten.__class__.mro",
        "torch.ops.unet_ladder.register.default",
        "torch.ops.higher_order.cond",
        "torch.ops.prims.device_put.default",
        "torch.os.system",
        "torch.ops.aten.concat.out",
        # These three read or write beyond their tensors where indices or offsets point there (torch 2.12, on a CPU).
        "torch.ops.aten._embedding_bag_forward_only.default",
        "torch.ops.aten.embedding_dense_backward.default",
        "torch.ops.aten.max_pool2d_with_indices_backward.default",
        "_operator.call",
        "_operator.attrgetter",
        "math.sqrt",
        "#torch.call",
        "os.system",
        "",
        None,
        ["torch.ops.aten.relu.default"],
    ],
)
def test_operations_beyond_the_list_are_refused(target: object) -> None:
    assert not is_allowed(target)


@pytest.mark.parametrize(
    "target",
    ["torch.ops.aten.relu.default", "torch.ops.aten.copy_.default", "torch.ops.unet_ladder.conv3x3.default",
     "torch.ops.aten.conv2d.padding", "torch.ops.aten._to_copy.default", "_operator.getitem",
     "torch.ops.aten.cudnn_convolution_relu.default", "torch.ops.aten.cudnn_convolution_add_relu.default",
     "torch.ops.aten.concat.default", "torch.ops.aten.conv1d.default"],
)  # fmt: skip
def test_operations_that_compute_are_allowed(target: str) -> None:
    assert is_allowed(target)


def graph(document: Document) -> Document:
    found: Document = document["graph_module"]["graph"]
    return found


def argument(value: Document) -> Callable[[Document], None]:
    return lambda document: first_node(document)["inputs"][0].update(arg=value)


def spec(text: str) -> Callable[[Document], None]:
    return lambda document: document["graph_module"]["module_call_graph"][0]["signature"].update(in_spec=text)


def nested(depth: int) -> Document:
    value: Document = {}
    for _ in range(depth):
        value = {"a": value}
    return value


FAULTS: dict[str, tuple[Callable[[Document], None], str]] = {
    "an operation by name": (argument({"as_operator": "torch.load"}), "as_operator"),
    "a graph within": (argument({"as_graph": {"name": "g", "graph": {}}}), "as_graph"),
    "an object": (argument({"as_custom_obj": {"name": "o", "class_fqn": "c"}}), "as_custom_obj"),
    "an expression": (argument({"as_sym_int": {"as_name": "s"}}), "as_sym_int"),
    "an expression of a size": (lambda d: graph(d).update(sym_int_values={"s": {"as_expr": {}}}), "sym_int_values"),
    "a range": (lambda d: d.update(range_constraints={CODE: {}}), "range_constraints"),
    "a guard": (lambda d: d.update(guards_code=[CODE]), "guards_code"),
    "a name that is code": (lambda d: first_node(d).update(name=CODE), "is no name"),
    "a name of something within": (lambda d: first_node(d).update(name="self.layer"), "is no name"),
    "an input that is code": (lambda d: graph(d)["inputs"][-1]["as_tensor"].update(name=CODE), "is no name"),
    "an argument's name that is code": (
        lambda d: d["graph_module"]["module_call_graph"][0]["signature"].update(forward_arg_names=[CODE]),
        "is no name",
    ),
    "a value's name that is code": (lambda d: graph(d)["tensor_values"].update({CODE: {}}), "is no name"),
    "inputs of a class": (spec('[1, {"type": "os.system", "context": "null", "children_spec": []}]'), "os.system"),
    "inputs of an imported kind": (
        spec('[1, {"type": "builtins.dict", "context": "[{\\"__enum__\\": true}]", "children_spec": []}]'),
        "__enum__",
    ),
    "inputs that are no JSON": (spec("("), "no graph"),
    "no graph": (lambda d: d.pop("graph_module"), "no graph"),
    "a graph that is a list": (lambda d: d.update(graph_module=[]), "no graph"),
    "deep nesting": (lambda d: d.update(extra=nested(MOST_DEPTH + 1)), "deep"),
    "another schema": (lambda d: d.update(schema_version={"major": 999, "minor": 0}), "isn't a net that torch loads"),
    "an operation without its inputs": (lambda d: first_node(d).update(inputs=[]), "isn't a net that torch loads"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_graph_with_more_in_it_is_refused(
    fault: str, members: Members, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And what is injected isn't run."""
    change, said = FAULTS[fault]
    assert said in refused(packed(edited(members, change)), tmp_path)
    assert "description" not in capfd.readouterr().out


def test_a_torn_graph_is_refused(members: Members) -> None:
    for text in (b"", b"[]", b"[" * 100_000, b"{", b"\xff\xfe"):
        with pytest.raises(ArchiveError, match=r"no JSON|no mapping"):
            checked_archive(packed({**members, GRAPH: text}))


STRANGERS = ["data/aotinductor/model/code.so", "extra/notes", "data/constants/custom_obj_0", "../escape", "/root", ""]


@pytest.mark.parametrize("name", STRANGERS)
def test_members_that_no_net_has_are_refused(name: str, members: Members) -> None:
    """A library that torch would load among them."""
    with pytest.raises(ArchiveError, match="which no rewritten net has"):
        checked_archive(packed({**members, name: b"x"}))


def test_archives_that_inflate_are_refused(members: Members) -> None:
    """A thousand times, or by many members over the same bytes."""
    with pytest.raises(ArchiveError, match="compressed"):
        checked_archive(packed({**members, "data/weights/weight_9": bytes(10**7)}, zipfile.ZIP_DEFLATED))
    whole = bytearray(packed(members))
    central = whole.rindex(b"PK\x01\x02")
    whole[central + 20 : central + 28] = (2**31).to_bytes(4, "little") * 2
    with pytest.raises(ArchiveError, match="more than the file's"):
        checked_archive(bytes(whole))


@pytest.mark.parametrize("content", [b"", b"PK", b"no archive", b"PK\x05\x06" + bytes(18), bytes(10_000)])
def test_what_is_no_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    assert "is refused" in refused(content, tmp_path)


def test_every_cut_is_refused(members: Members) -> None:
    """The archive torn at any of a hundred places."""
    whole = packed(members)
    for at in range(0, len(whole), max(1, len(whole) // 100)):
        with pytest.raises(ArchiveError):
            checked_archive(whole[:at])


def test_a_missing_member_is_named(members: Members) -> None:
    for name in (GRAPH, *CONFIGS, "archive_format"):
        with pytest.raises(ArchiveError, match="no member"):
            checked_archive(packed({key: data for key, data in members.items() if key != name}))


def test_weights_that_the_file_does_not_hold_are_refused(members: Members, tmp_path: Path) -> None:
    """Sizes beyond the bytes that are there, or a file of another folder."""

    def larger(document: Document) -> None:
        next(iter(document["config"].values()))["tensor_meta"]["sizes"] = [{"as_int": 10**6}] * 4

    def elsewhere(document: Document) -> None:
        next(iter(document["config"].values()))["path_name"] = "../../../etc/passwd"

    assert "isn't a net that torch loads" in refused(packed(edited(members, larger, CONFIGS[0])), tmp_path)
    assert "is no name" in refused(packed(edited(members, elsewhere, CONFIGS[0])), tmp_path)


def test_a_net_that_could_not_be_loaded_is_not_kept(tmp_path: Path) -> None:
    """Saving says so at once, of an operation that torch makes of no other."""

    class Sampling(nn.Module):
        def forward(self, image: Tensor) -> Tensor:
            return torch.poisson(image)

    with pytest.raises(ArtefactError, match=r"aten\.poisson"):
        save(fx.symbolic_trace(Sampling()), torch.zeros(1, 3, 4, 4), tmp_path)
    assert not list(tmp_path.iterdir())

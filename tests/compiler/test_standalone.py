"""A network of own kernels alone is read without Dynamo, with the programs that were compiled for it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
from triton.runtime.cache import get_cache_manager

from models.build import build_model
from pipeline.compiler import artifact, standalone
from tests.compiler.rewriting import lowered, rewritten_from

ALONE = """
import sys
from pathlib import Path
import torch
from pipeline.compiler.standalone import load
folder = Path(sys.argv[1])
batch = torch.linspace(-1, 1, 384).reshape(2, 3, 8, 8)
with torch.inference_mode():
    torch.save(load(folder, batch)(batch), folder / "answer")
assert not {"torch._dynamo", "torch._inductor", "sympy"} & sys.modules.keys()
"""


def test_own_kernels_alone_need_no_dynamo(tmp_path: Path) -> None:
    batch = torch.linspace(-1, 1, 384).reshape(2, 3, 8, 8)
    net = build_model("models.unet.UNet", {"base": 16, "depth": 1}, None, 1)
    artifact.save(lowered(rewritten_from(net, batch)), batch, tmp_path)
    read = artifact.load(tmp_path)
    assert standalone.write(read, tmp_path)
    subprocess.run([sys.executable, "-c", ALONE, str(tmp_path)], check=True)
    with torch.inference_mode():
        torch.testing.assert_close(torch.load(tmp_path / "answer"), read(batch), rtol=0, atol=0)


def test_a_network_that_launches_more_stays_an_archive(tmp_path: Path) -> None:
    batch = torch.rand(2, 3, 8, 8)
    artifact.save(torch.nn.Softplus(), batch, tmp_path)
    assert not standalone.write(artifact.load(tmp_path), tmp_path)
    torch.testing.assert_close(standalone.load(tmp_path, batch)(batch), torch.nn.Softplus()(batch))


def test_carried_programs_come_before_the_cache_which_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "first" / "triton"))
    for key in ("aa", "bb"):
        cache = get_cache_manager(key)
        group = {f"k.{kind}": cache.put(b"{}", f"k.{kind}") for kind in ("json", "cubin", "ttir")}
        cache.put_group("k.json", group)
    standalone.carry_compiled(tmp_path / "first", tmp_path / "net")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "second"))
    monkeypatch.setattr(standalone.Carried, "folders", [])
    monkeypatch.setitem(vars(triton.knobs.cache), "manager_class", standalone.Carried)
    standalone.Carried.take(tmp_path / "net" / standalone.PROGRAMS)
    found = get_cache_manager("aa").get_group("k.json")
    assert found is not None
    assert sorted(found) == ["k.cubin", "k.json"]
    assert not (tmp_path / "second").exists()
    other = get_cache_manager("cc")
    assert other.get_group("k.json") is None
    assert Path(other.put(b"a file", "other.so")).parent.parent == tmp_path / "second"

"""The parts of load.py: forms of a network, torch's switches and normalisation."""

import runpy
import sys
import warnings
import zipfile
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent
SHAPES = runpy.run_path(str(HERE / "image_shape.py"))
CONTRACT, RULES, classes = (SHAPES[name] for name in ("CONTRACT", "RULES", "classes"))
DEVICE = CONTRACT["measured"]["device"]


def fitting(images: Any) -> Tensor:
    """Return the images [n, height, width, channels] as a tensor; ValueError for other types."""
    if not isinstance(images, Tensor):
        if not hasattr(images, "__array__"):
            raise ValueError(f"images are a {type(images).__name__}; a tensor or an array of numpy's is taken")
        images = torch.from_numpy(images.__array__().copy())  # torch has no negative strides
    fit: Tensor = SHAPES["fitting"](images)
    return fit


def opened(artefact: Path) -> Callable[..., Tensor]:
    """Load the network, with TF32, cuDNN's search and the number of threads as in the run."""
    loader, threads = CONTRACT["loader"], CONTRACT["measured"]["threads"]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = loader["tf32"] == "1"
    torch.backends.cudnn.benchmark = loader["cudnn_benchmark"] == "1"
    if threads:
        torch.set_num_threads(threads)
    net: Callable[..., Tensor] = torch.inference_mode()(BY_KIND[CONTRACT["kind"]](artefact))
    return net


def exported(path: Path) -> Callable[[Tensor], Tensor]:
    """Load a program of torch.export; ValueError if its archive holds a pickle."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            pickled = name.endswith(".pt") and archive.read(name)
            if pickled or (name.endswith("_config.json") and b'"use_pickle": true' in archive.read(name)):
                raise ValueError(f"{path.name}: {name} is a pickle, which could run code")
    with warnings.catch_warnings():
        # torch warns of the bytes that it reads; the weights are not written to
        warnings.filterwarnings("ignore", message="The given buffer is not writable", category=UserWarning)
        return torch.export.load(path).module()


class FromSource(SourceFileLoader):
    """A loader of modules that reads and writes no bytecode: that in a bundle isn't what was exported."""

    def path_stats(self, path: Any) -> Any:
        """Refuse to tell the age of a file, by which Python takes bytecode."""
        raise OSError(path)


def own_kernels(folder: Path) -> Callable[[Tensor], Tensor]:
    """Load a network that calls the kernels in the folder unet_kernels beside it; a CUDA graph on a GPU."""
    for home in (HERE, *HERE.glob("unet_kernels/**/")):
        sys.path_importer_cache[str(home)] = FileFinder(str(home), (FromSource, [".py"]))
    sys.path.insert(0, str(HERE))
    example = [torch.zeros(rule["shape"], dtype=getattr(torch, rule["dtype"]), device=DEVICE) for rule in RULES]
    call: Callable[[Tensor], Tensor] = import_module("unet_kernels.standalone").load(folder, *example)
    return call


def packaged(path: Path) -> Callable[[Tensor], Tensor]:
    """Load a package of AOTInductor with aot_loading.py, which is faster than torch alone.

    A package doesn't check its inputs: other forms are refused here.
    """
    loaded = runpy.run_path(str(HERE / "aot_loading.py"))["load_package"](path)
    place = torch.empty(0, device=DEVICE).device
    forms = [(torch.Size(rule["shape"]), getattr(torch, rule["dtype"]), place) for rule in RULES]
    call: Callable[..., Tensor] = runpy.run_path(str(HERE / "input_forms.py"))["for_these_alone"](loaded, forms)
    return call


def scripted(path: Path) -> Callable[[Tensor], Tensor]:
    """Load a program of TorchScript, optimised for inference unless that broke it in the run."""
    program = torch.jit.load(path, map_location=DEVICE)
    loaded: Callable[[Tensor], Tensor] = program
    return loaded if CONTRACT["loader"].get("optimised") == "0" else torch.jit.optimize_for_inference(program)


BY_KIND: dict[str, Callable[[Path], Callable[[Tensor], Tensor]]] = {
    "exported": exported,
    "own_kernels": own_kernels,
    "aot_inductor": packaged,
    "torchscript": scripted,
}


def prepare(images: Tensor) -> Tensor:
    """Return images [n, height, width, channels], uint8, uint16 or fp32, normalised, on the device.

    Volumes have a depth before the height.
    """
    if CONTRACT.get("images_in"):
        return images.to(DEVICE)
    space, ones = tuple(range(2, images.dim())), [1] * (images.dim() - 2)
    rule = CONTRACT["normalisation"]
    scale = rule["scale"] or (1.0 if images.is_floating_point() else float(torch.iinfo(images.dtype).max))
    planes = images.to(torch.float32).movedim(-1, 1) / scale
    planes = planes.flip(1) if rule.get("channel_order") == "bgr" else planes
    figures = (rule.get(key, []) for key in ("low", "high", "mean", "std"))
    tensors = (torch.tensor(part, dtype=torch.float32, device=planes.device) for part in figures)
    low, high, mean, std = (part.reshape(-1, *ones) for part in tensors)
    planes = planes.clamp(low, high) if rule["normalize"] == "ct" else planes
    if rule["normalize"] == "zscore":
        mean, std = planes.mean(space, keepdim=True), planes.std(space, correction=0, keepdim=True)
        std = torch.where(planes.amax(space, keepdim=True) == planes.amin(space, keepdim=True), 1.0, std)
    return ((planes - mean) / std).contiguous().to(DEVICE)


def array(content: bytes, dtype: str, shape: list[int]) -> Tensor:
    """Return a tensor of any shape from its bytes, on the device, in aligned memory."""
    values = torch.frombuffer(bytearray(content), dtype=getattr(torch, dtype))
    return values.reshape(shape).to(DEVICE, copy=True)


def exact(values: Tensor) -> Tensor:
    """Return a contiguous copy of the values, of any shape, in fp64 on the CPU."""
    return values.to("cpu", torch.float64, copy=True).contiguous()


def on_the_host(values: Tensor) -> Tensor:
    """Return the values, of any shape, in host memory."""
    return values.cpu()


def wait() -> None:
    """Wait until the device is done."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def reserved_bytes() -> int | None:
    """Return the GPU memory that torch has reserved at most."""
    return torch.cuda.max_memory_reserved() if DEVICE == "cuda" else None

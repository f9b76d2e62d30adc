"""The machine and the software that give the numbers, as a worker sees them."""

import os
import platform
import subprocess
from hashlib import sha256
from pathlib import Path

import torch

from pipeline.devices.host import cpu_name, driver_version, installed, others_on, that_matter
from pipeline.measure.torch_device import gpu_behind
from pipeline.records.run_record import Environment

COMMIT = "UNET_LADDER_COMMIT"  # variable: of sources that were copied to a machine without their own checkout
# Of every run; a stage's YAML names those of its own runtime.
PACKAGES = (
    "torch", "torchvision", "triton", "numpy", "hydra-core", "segmentation-models-pytorch", "monai",
    "nvidia-cudnn-cu13", "nvidia-cudnn-cu12",
)  # fmt: skip


def describe(
    device: torch.device, launcher: str = "basic", packages: tuple[str, ...] = (), variables: tuple[str, ...] = ()
) -> Environment:
    """Describe the environment of a worker."""
    properties = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    cudnn = torch.backends.cudnn.version() if properties else None
    gpu = gpu_behind(device)
    commit, dirty = git_state(Path(__file__).parent)
    return Environment(
        device=device.type,
        device_name=properties.name if properties else cpu_name(),
        driver=driver_version() if properties else None,
        cuda=torch.version.cuda if properties else None,
        cudnn=str(cudnn) if cudnn else None,
        capability=f"{properties.major}.{properties.minor}" if properties else None,
        multiprocessors=properties.multi_processor_count if properties else None,
        device_memory_bytes=properties.total_memory if properties else None,
        l2_bytes=properties.L2_cache_size if properties else None,
        cpu_name=cpu_name(),
        cpu_threads=torch.get_num_threads(),
        python=platform.python_version(),
        platform=platform.platform(),
        packages=installed((*PACKAGES, *packages)),
        commit=commit,
        dirty=dirty,
        launcher=launcher,
        others_on_device=others_on(gpu) if gpu else [],
        variables=that_matter(variables),
        uuid_sha256=sha256(gpu.uuid().encode()).hexdigest() if gpu else None,
        power_limit_watts=gpu.limit_watts() if gpu else None,
        celsius=gpu.celsius() if gpu else None,
    )


def git_state(folder: Path) -> tuple[str | None, bool | None]:
    """Return the commit of the code, and whether files differ from it; None: unknown, as without a checkout."""
    if given := os.environ.get(COMMIT):
        return given, None
    command = ["git", "-C", str(folder), "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None, None
    return said.removesuffix("-dirty"), said.endswith("-dirty")

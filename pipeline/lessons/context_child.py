"""A fresh process that says what its CUDA context takes of the device, as JSON on stdout."""

import json
import sys

import torch

from pipeline.devices.nvml import Gpu, gpu_of


def steps(gpu: Gpu) -> dict[str, float]:
    """Return the bytes of the device, beyond torch's own pool, after each step."""
    before = used(gpu)

    def held() -> float:
        torch.cuda.synchronize(device)
        return used(gpu) - before - torch.cuda.memory_reserved(device)

    uuids = [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]
    device = torch.device("cuda", uuids.index(gpu.uuid().removeprefix("GPU-")))
    torch.ones(1, device=device)
    held_after = {"the context": held()}
    square = torch.randn(256, 256, device=device, dtype=torch.float16)
    square @ square
    held_after["and a matmul"] = held()
    image = torch.randn(1, 64, 64, 64, device=device, dtype=torch.float16)
    torch.nn.functional.conv2d(image, torch.randn(64, 64, 3, 3, device=device, dtype=torch.float16))
    held_after["and a convolution"] = held()
    return held_after


def used(gpu: Gpu) -> int:
    """Return the bytes in use on the device."""
    found = gpu.used_bytes()
    if found is None:
        raise RuntimeError("NVML doesn't say how much of the device's memory is in use")
    return found


if __name__ == "__main__":
    asked = gpu_of(sys.argv[1])
    if asked is None:
        sys.exit(f"NVML knows no device {sys.argv[1]}, as with MIG slices")
    sys.stdout.write(json.dumps(steps(asked)))

"""Real SGLang on a plain CPU, through its entry point `sglang.srt.platforms`: no sgl_kernel, no GPU, no compiler.

Choose it with SGLANG_PLATFORM=fleet_cpu. It proves flags, life cycle, HTTP and metrics; it proves neither kernels nor
speed. Hybrid (GDN) models and MTP use Triton kernels, which run in Triton's interpreter: set TRITON_INTERPRET=1.
"""

import contextlib
import multiprocessing
import os


def activate() -> str:
    """Fill the gaps of CPU-only torch that SGLang stumbles over, and name the platform class."""
    import torch

    # SGLang spawns its processes, and each imports everything anew, which takes most of a start without a GPU. Only a
    # GPU's driver forbids that they be copies of the first.
    choose = multiprocessing.set_start_method
    multiprocessing.set_start_method = lambda method, force=False: choose("fork", force=force)
    if not hasattr(torch.cpu, "device"):
        torch.cpu.device = lambda index=None: contextlib.nullcontext()
    if not torch.accelerator.is_available():
        torch.Tensor.pin_memory = lambda tensor, *args, **kwargs: tensor
    if os.environ.get("TRITON_INTERPRET") == "1":
        from . import interpreter

        interpreter.prepare()
    return "fleet_cpu_platform.platform.FleetCpuPlatform"

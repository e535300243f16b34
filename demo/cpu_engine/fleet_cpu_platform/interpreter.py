"""Triton's interpreter, made to run SGLang's kernels: for hybrid models and MTP on a CPU."""

import functools
import types

ALIASED_BUILTINS = ("exp", "exp2", "log", "log2", "gather", "make_tensor_descriptor")


def prepare() -> None:
    """Take the first autotuning choice unmeasured, and let builtins that kernels hold under another name run."""
    import torch
    import triton.language as tl
    from triton.runtime.autotuner import Autotuner

    Autotuner._bench = lambda self, *args, config=None, **kwargs: [1.0, 1.0, 1.0]
    for module in (tl, tl.math):
        for name in ALIASED_BUILTINS:
            if hasattr(module, name):
                setattr(module, name, _interpreted(getattr(module, name)))
    torch.cuda.get_device_properties = lambda device=None: types.SimpleNamespace(
        name="cpu", major=0, minor=0, multi_processor_count=1, total_memory=0, warp_size=32
    )


def _interpreted(builtin):
    """The builtin with the interpreter's semantic where the caller gives none (the alias escaped Triton's patching)."""
    from triton.runtime.interpreter import interpreter_semantic

    @functools.wraps(builtin)
    def call(*args, **kwargs):
        if kwargs.get("_semantic") is None:
            kwargs["_semantic"] = interpreter_semantic
        return builtin(*args, **kwargs)

    return call

"""The platform class: what this "device" can do, in SGLang's own terms."""

import inspect

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

from . import host_tier


class FleetCpuPlatform(CpuDeviceMixin, SRTPlatform):
    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()
    supported_quantization = ()

    def get_device(self, device_id=0):
        return "cpu"

    def get_default_attention_backend(self):
        return "torch_native"

    def get_default_speculative_draft_attention_backend(self, algorithm):
        return "torch_native"

    def supports_speculative_algorithm(self, algorithm):
        return True

    def supports_speculative_draft_attention_backend(self, algorithm, backend):
        return True

    def support_mamba_cache_extra_buffer(self):
        return True

    def is_pin_memory_available(self, device=None):
        return False

    def get_compile_backend(self, mode=None):
        return "eager"

    def get_dispatch_key_name(self):
        return "native"

    def init_backend(self):
        _use_triton_for_speculation()
        _let_state_scatter_take_cpu_tensors()
        host_tier.install()


def _use_triton_for_speculation():
    """Draft tree and greedy verification have a Triton version, which SGLang keeps for XPU."""
    from sglang.kernels.ops.speculative import spec_tree

    spec_tree._is_xpu = True


def _let_state_scatter_take_cpu_tensors():
    """The state scatter kernels run in the interpreter; only a check of the device type refuses CPU tensors."""
    from sglang.kernels.ops.mamba import mamba_state_scatter_triton as scatter

    for name in ("fused_mamba_state_scatter_with_mask", "fused_conv_window_scatter_with_mask"):
        source = inspect.getsource(getattr(scatter, name))
        exec(source.replace("(dst.is_cuda or dst.is_xpu)", "True"), scatter.__dict__)

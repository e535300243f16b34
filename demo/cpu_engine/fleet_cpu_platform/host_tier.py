"""The hierarchical cache's copies between "device" and host pools, in plain torch.

Stands in for sgl_kernel's transfers of `--hicache-io-backend direct`, for the layouts layer_first ("lf": one tensor
per layer) and page_first_direct ("pf": one tensor, indexed by page, layer, token in page).
"""

import torch


def transfer(src_layers, dst_layers, src_indices, dst_indices, page_size=1):
    """Layer-first to layer-first, token by token."""
    for src, dst in zip(src_layers, dst_layers, strict=True):
        dst[_on(dst, dst_indices)] = src[_on(src, src_indices)].to(dst.dtype)


def load_layer(src_ptrs, dst_ptrs, src_indices, dst_indices, layer_id, page_size):
    """One layer from a page-first host pool into layer-first device pools."""
    for src, dst in zip(src_ptrs, dst_ptrs, strict=True):
        tokens = _on(src, src_indices)
        dst[_on(dst, dst_indices)] = src[tokens // page_size, layer_id, tokens % page_size].to(dst.dtype)


def back_up_layers(src_ptrs, dst_ptrs, src_indices, dst_indices, page_size):
    """All layers from layer-first device pools into page-first host pools; layers are grouped by target."""
    layers = len(src_ptrs) // len(dst_ptrs)
    for number, dst in enumerate(dst_ptrs):
        tokens = _on(dst, dst_indices)
        for layer, src in enumerate(src_ptrs[number * layers : (number + 1) * layers]):
            dst[tokens // page_size, layer, tokens % page_size] = src[_on(src, src_indices)].to(dst.dtype)


def install() -> None:
    """Put the three copies, and unpinned allocation, where SGLang looks for them."""
    from sglang.srt.mem_cache.pool_host import common, mamba, mha

    for pool in (mha, mamba):
        pool.transfer_kv_direct = transfer
        pool.transfer_kv_per_layer_direct_pf_lf = load_layer
        pool.transfer_kv_all_layer_direct_lf_pf = back_up_layers
    common.ALLOC_MEMORY_FUNCS["cpu"] = _allocate


def _allocate(dims, dtype, device, pin_memory, allocator, registration_granularity_bytes=None):
    return torch.empty(dims, dtype=dtype, device=device)


def _on(tensor, indices):
    return indices.to(tensor.device).long()

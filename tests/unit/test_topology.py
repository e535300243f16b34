"""GPUs become instances with ports that never collide."""

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.topology import Gpu, place
from hypothesis import given
from hypothesis import strategies as st

indices = st.sets(st.integers(0, 99), min_size=1, max_size=16)


@given(indices, st.integers(1, 65535 - 199))
def test_every_port_is_its_own(gpus, base_port):
    ports = [port for placement in place(gpus, base_port=base_port) for port in placement.ports]
    assert len(set(ports)) == 2 * len(gpus)


@given(indices)
def test_a_gpu_keeps_its_port_whatever_the_others_are(gpus):
    assert {placement.name: placement.port for placement in place(gpus)} == {
        str(index): 30000 + index for index in gpus
    }


def test_tensor_parallel_ranks_share_a_unit():
    names = [(placement.unit, placement.port) for placement in place([3, 0, 1, 2], tensor_parallel=2)]
    assert names == [("sglang@0-1.service", 30000), ("sglang@2-3.service", 30002)]


def test_facts_of_a_gpu_are_kept_and_unknown_ones_left_out():
    facts = {"index": 2, "uuid": "GPU-2", "numa_node": 1, "cpus": "8-15", "processes": [], "name": None}
    assert Gpu.from_value(facts) == Gpu(2, "GPU-2", numa_node=1, cpus="8-15")


@pytest.mark.parametrize(
    ("gpus", "options", "message"),
    [
        ([], {}, "at least one GPU"),
        ([0, 1, 0], {}, "index once; found 0 twice"),
        ([{"index": 0, "uuid": "GPU-a"}, {"index": 1, "uuid": "GPU-a"}], {}, "uuid once; found GPU-a twice"),
        ([0, 1, 2], {"tensor_parallel": 2}, "3 GPUs"),
        ([0, "one"], {}, "found 'one'"),
        ([-1], {}, "found -1"),
        ([100], {}, "found 100"),
        ([True], {}, "found True"),
        ([0, 1], {"other_ports": {"the router": 30001}}, "port 30001 for sglang@1.service and the router"),
        ([0, 1], {"other_ports": {"the router": 30100}}, "port 30100 for sglang@0.service and the router"),
        ([0, 50], {"base_port": 65500}, "port 65600"),
    ],
)
def test_what_cannot_be_is_refused(gpus, options, message):
    with pytest.raises(FleetError, match=message):
        place(gpus, **options)

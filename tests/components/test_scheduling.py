"""What an author's functions return is what a job's inputs take."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from kfp_pytorch import components
from kfp_pytorch.components import (
    coscheduling,
    cpu_pinning,
    gpus,
    host_ipc,
    kai,
    kueue,
    mig,
    pack,
    placement,
    priority,
    rdma,
    same,
    same_nvlink_domain,
    same_rack,
    same_zone,
    spread,
    tolerate,
    volcano,
    yunikorn,
)
from kfp_pytorch.components import scheduling as helpers
from kfp_pytorch.launcher.inputs.scheduling import place, scheduler
from kfp_pytorch.launcher.inputs.scheduling.place import Domain, Placement, Rdma
from kfp_pytorch.launcher.inputs.scheduling.scheduler import Scheduling


@pytest.mark.parametrize(
    ("returned", "read"),
    [
        (
            kueue("q", priority="high", priority_class="p", topology_aware=True),
            Scheduling("kueue", "q", "p", "high", topology_aware=True),
        ),
        (
            volcano("q", min_member=2, scheduler_name="volcano-2"),
            Scheduling("volcano", "q", min_member=2, scheduler_name="volcano-2"),
        ),
        (volcano(gang=False), Scheduling("volcano", gang=False)),
        (coscheduling(schedule_timeout=9), Scheduling("coscheduling", schedule_timeout=9)),
        (kai("q", topology="t"), Scheduling("kai", "q", topology="t")),
        (
            yunikorn("root.q", gang_style="Soft", schedule_timeout=9),
            Scheduling("yunikorn", "root.q", gang_style="Soft", schedule_timeout=9),
        ),
        (priority("high"), Scheduling(priority_class="high")),
    ],
)
def test_each_scheduler_reads_what_its_function_returns(
    returned: dict[str, Any], read: Scheduling
) -> None:
    assert scheduler.read("scheduling", returned) == read


@pytest.mark.parametrize(
    ("returned", "read"),
    [
        (gpus(8, product=["A"], resource="a.b/c"), Placement(8, "a.b/c", gpu_products=("A",))),
        (mig("3g.20gb"), Placement(mig="3g.20gb")),
        (same_zone(), Placement(same=Domain("topology.kubernetes.io/zone"))),
        (same_rack("a.b/rack", required=False), Placement(same=Domain("a.b/rack", False))),
        (same_nvlink_domain(), Placement(same=Domain("nvidia.com/gpu.clique"))),
        (same("region"), Placement(same=Domain("topology.kubernetes.io/region"))),
        (spread(), Placement(spread=Domain("kubernetes.io/hostname", False))),
        (pack(), Placement(pack=True)),
        (rdma(), Placement(rdma=Rdma("rdma/rdma_shared_device_a"))),
        (
            rdma("a.b/c", 2, hca="mlx5", interface="eth0", ipc_lock=False),
            Placement(rdma=Rdma("a.b/c", 2, "mlx5", "eth0", False)),
        ),
        (
            tolerate("spot", "yes", effect="NoSchedule"),
            Placement(
                tolerations=(
                    {"key": "spot", "operator": "Equal", "value": "yes", "effect": "NoSchedule"},
                )
            ),
        ),
        (host_ipc(), Placement(host_ipc=True)),
        (cpu_pinning(), Placement(cpu_pinning=True)),
    ],
)
def test_each_part_of_a_placement_is_read_as_it_is_meant(
    returned: dict[str, Any], read: Placement
) -> None:
    assert place.read("placement", returned) == read


def test_parts_make_one_placement() -> None:
    whole = placement(gpus(8), same_rack(), rdma(), tolerate("a"), tolerate("b"), gpus(8))
    read = place.read("placement", whole)
    assert (read.gpus, read.same, read.rdma) == (
        8,
        Domain("topology.kubernetes.io/rack"),
        Rdma("rdma/rdma_shared_device_a"),
    )
    assert [each["key"] for each in read.tolerations] == ["a", "b"]
    assert placement() == {}


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((gpus(8), gpus(4)), "gpus is both 8 and 4"),
        ((gpus(8), mig("3g.20gb")), "one or the other"),
        ((same_zone(), same_rack()), "same is both"),
    ],
)
def test_parts_that_contradict_each_other_are_refused_where_they_are_written(
    parts: Any, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        placement(*parts)


def test_a_mig_device_has_a_profile() -> None:
    with pytest.raises(ValueError, match=r"profile is empty; give one, such as 3g\.20gb"):
        mig("")


@pytest.mark.parametrize("part", [None, "gpus"])
def test_what_is_no_part_of_a_placement_is_named(part: Any) -> None:
    with pytest.raises(TypeError, match=f"{part!r} is no part of one; give"):
        placement(gpus(8), part)


def test_every_function_is_exported() -> None:
    own = {
        name
        for name, item in vars(helpers).items()
        if inspect.isfunction(item) and not name.startswith("_")
    }
    assert own <= {*components.__all__}
    assert {name for name in own if getattr(components, name) is getattr(helpers, name)} == own

"""Assumptions say what they assume, and look like the links whose names they bear."""

import pytest

from autotune.models.assumed_links import (
    ASSUMED_LINKS,
    assumed_calibration,
    assumption_text,
    usual_link,
)
from autotune.models.calibration import Calibration
from autotune.models.links import bus_bytes_per_s, link_class


@pytest.mark.parametrize("world_size", [2, 8])
@pytest.mark.parametrize("link", ASSUMED_LINKS)
def test_a_ring_moves_what_is_assumed(link: str, world_size: int) -> None:
    found = assumed_calibration(link, device="gpu", world_size=world_size)
    assert bus_bytes_per_s(found) == pytest.approx(ASSUMED_LINKS[link].bus_bytes_per_s)
    assert Calibration.from_dict(found.to_dict(), "assumed") == found


@pytest.mark.parametrize(
    ("link", "num_nodes", "name"),
    [
        ("nvlink", 1, "NVLink"),
        ("pcie", 1, "PCIe"),
        ("infiniband_400g", 2, "InfiniBand 400G and up"),
        ("infiniband_200g", 2, "InfiniBand 200G"),
        ("ethernet", 2, "Ethernet"),
    ],
)
def test_a_calibration_as_assumed_would_be_called_by_the_same_name(
    link: str, num_nodes: int, name: str
) -> None:
    found = assumed_calibration(link, device="gpu", world_size=8)
    kind = link_class(found, num_nodes=num_nodes, device="gpu")
    assert kind is not None and kind.name == name


def test_without_a_name_the_usual_link_of_the_placement_is_taken() -> None:
    assert usual_link(device="gpu", num_nodes=1) == "nvlink"
    assert usual_link(device="gpu", num_nodes=4) == "infiniband_200g"
    assert usual_link(device="cpu", num_nodes=4) == "gloo"


def test_the_text_has_every_figure_that_counts() -> None:
    text = assumption_text("nvlink", device="gpu")
    assert "NVLink: 200 GB/s" in text and "30 us" in text and "250 TFLOP/s in bfloat16" in text
    assert "600 TFLOP/s" in assumption_text("nvlink", device="gpu", flops_per_s=6e14)


def test_a_given_speed_replaces_the_assumed_one() -> None:
    found = assumed_calibration("pcie", device="gpu", world_size=2, flops_per_s=6e14)
    assert set(found.flops_per_s.values()) == {6e14}

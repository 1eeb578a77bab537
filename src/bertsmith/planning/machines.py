"""Machines by name, with what was measured there: the one place to correct when kernels get faster.

`python -m benchmarks.planning` there compares plans with runs, and tells which `passes` and `shares` would have been right.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

import torch

GIB = 1 << 30
CPU_ALLOCATOR_OVERHEAD = 2.0  # 1.5 to 2.7 in runs of several shapes: glibc keeps what is freed, in pieces


@dataclass(frozen=True)
class Machine:
    """Speeds are what real shapes reach, not what a data sheet says; none are given where a machine is measured instead."""

    name: str
    memory: int  # bytes that a run may have
    is_gpu: bool
    flops_per_second: dict[str, float] = field(default_factory=dict)  # flop/s, by precision
    memory_bandwidth: float = 0.0  # bytes/s, read and written
    kernel_launch_seconds: float = 0.0  # seconds a kernel takes at least
    disk_bandwidth: float = 0.0  # bytes/s of a checkpoint, checksums and all
    activation_passes: tuple[float, float] = (0.0, 0.0)  # times each byte of activations travels; then where compiled
    activation_fractions: tuple[float, float] = (
        1.0,
        1.0,
    )  # of a CPU's activations, in half precision, that are kept; then compiled
    logits_fraction: float = 1.0  # of a CPU's memory for logits, in half precision
    startup_seconds: tuple[float, float] = (0.0, 0.0)  # seconds to the first step; then where compiled
    allocator_overhead: float = 1.05  # times the bytes of tensors that an allocator holds

    def memory_fractions(self, is_compiled: bool, half_precision: bool) -> tuple[float, float]:
        """Shares of activations and of logits; in full precision all is as on a CPU."""
        return (self.activation_fractions[is_compiled], self.logits_fraction) if half_precision else (1.0, 1.0)


# One NVIDIA H200, torch 2.11. Measured: products of 768-wide shapes, the copy, and passes, so that bert-base, bf16, 65,536
# tokens of length 128, comes to 832,000 tokens/s with our kernels (passes of a compiled model: as when that came to 495,000).
# Reckoned from what the kernels keep: shares and logits; the peak of that run was as told, 21.1 GB.
MACHINES = {
    "h200": Machine(
        name="h200",
        memory=139 * GIB,
        is_gpu=True,
        flops_per_second={"bf16": 720e12, "fp16": 720e12, "fp32": 45e12},
        memory_bandwidth=4.2e12,
        kernel_launch_seconds=6e-6,
        disk_bandwidth=0.8e9,
        activation_passes=(5.35, 15.0),
        activation_fractions=(0.8, 0.75),
        logits_fraction=0.25,
        startup_seconds=(10.0, 40.0),
    ),
}


def this_machine(device: torch.device) -> Machine:
    """The one this runs on, whose speed is to be measured."""
    if device.type == "cuda":
        return Machine(
            torch.cuda.get_device_name(device),
            torch.cuda.mem_get_info(device)[0],
            True,
            activation_fractions=MACHINES["h200"].activation_fractions,
        )
    return Machine("this machine", _free_memory(), False, allocator_overhead=CPU_ALLOCATOR_OVERHEAD)


def _free_memory() -> int:
    """Bytes of memory that nobody uses, or that a container leaves."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    told = Path("/proc/meminfo")
    if told.exists():
        rows = dict(line.split(":", 1) for line in told.read_text().splitlines())
        free = int(rows.get("MemAvailable", rows["MemTotal"]).split()[0]) * 1024
    limit = Path("/sys/fs/cgroup/memory.max")
    said = limit.read_text().strip() if limit.exists() else "max"
    return min(free, int(said)) if said.isdecimal() else free

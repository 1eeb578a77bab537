"""Machines by name, with their measured speeds: the one place to correct when kernels get faster.

`python -m benchmarks.planning` on such a machine compares plans with runs, and prints which `activation_passes` and
`activation_fractions` would have been right.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

import torch

GIB = 1 << 30
CPU_ALLOCATOR_OVERHEAD = 2.0  # 1.5 to 2.7 in runs of several shapes: glibc does not return freed memory (fragmentation)


@dataclass(frozen=True)
class Machine:
    """A machine's memory and the speeds that real shapes reach there; speeds stay 0 where the machine is measured instead."""

    name: str
    memory: int  # bytes that a run may use
    is_gpu: bool
    flops_per_second: dict[str, float] = field(default_factory=dict)  # flop/s, by precision
    memory_bandwidth: float = 0.0  # bytes/s, read and written
    kernel_launch_seconds: float = 0.0  # minimum time of a kernel
    disk_bandwidth: float = 0.0  # bytes/s of writing a checkpoint with its checksums
    # pairs are (eager, compiled); fractions are relative to the traced CPU kernels, in half precision
    activation_passes: tuple[float, float] = (0.0, 0.0)  # how often each byte of activations is read or written
    activation_fractions: tuple[float, float] = (1.0, 1.0)  # of the activations that are kept for backward
    logits_fraction: float = 1.0  # of the memory for logits
    startup_seconds: tuple[float, float] = (0.0, 0.0)  # until the first step
    allocator_overhead: float = 1.05  # bytes held by the allocator per byte of tensors

    def memory_fractions(self, is_compiled: bool, half_precision: bool) -> tuple[float, float]:
        """Fractions of the traced activations and logits that are kept; (1, 1) in full precision."""
        return (self.activation_fractions[is_compiled], self.logits_fraction) if half_precision else (1.0, 1.0)


# One NVIDIA H200, torch 2.11. Measured: matmuls with hidden size 768, copy bandwidth, and activation_passes, so that bert-base
# (bf16, 65,536 tokens of length 128) comes to 832,000 tokens/s with our kernels (compiled: from when it was 495,000).
# Computed from what the kernels keep: activation_fractions and logits_fraction; the peak of that run was as predicted, 21.1 GB.
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
    """The machine this runs on; its speed is to be measured."""
    if device.type == "cuda":
        return Machine(
            torch.cuda.get_device_name(device),
            torch.cuda.mem_get_info(device)[0],
            True,
            activation_fractions=MACHINES["h200"].activation_fractions,
        )
    return Machine("this machine", _free_memory(), False, allocator_overhead=CPU_ALLOCATOR_OVERHEAD)


def _free_memory() -> int:
    """Available bytes of main memory, or the container's (cgroup) limit if that is lower."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        rows = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free = int(rows.get("MemAvailable", rows["MemTotal"]).split()[0]) * 1024
    limit = Path("/sys/fs/cgroup/memory.max")
    limit_text = limit.read_text().strip() if limit.exists() else "max"
    return min(free, int(limit_text)) if limit_text.isdecimal() else free

"""The processor, and the cores that this process may use."""

from __future__ import annotations

import os
import platform
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
CPU_INFO = Path("/proc/cpuinfo")


def usable_cores(cgroup: Path | None = None) -> int:
    """Return the cores the process may use: the affinity mask cut down to the cgroup's quota.

    Args:
        cgroup: its folder; by default the process's own, whose quota was read at the import, as a
            caller may be a task on an event loop, where files must not be read.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        cores = os.cpu_count() or 1
    quota = _QUOTA if cgroup is None else cgroup_quota(cgroup)
    return max(1, min(cores, int(quota)) if quota is not None else cores)


def cgroup_quota(cgroup: Path = CGROUP) -> float | None:
    """Return the cores the cgroup (v2, else v1) allows, or ``None`` without a limit."""
    try:
        limit, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return _quota_v1(cgroup)
    return None if limit == "max" else int(limit) / int(period)


def cpu_model(info: Path = CPU_INFO) -> str:
    """Return the processor's name, or its architecture where the system does not tell."""
    return _told(info, "model name") or platform.processor() or platform.machine()


def has_feature(name: str, info: Path = CPU_INFO) -> bool:
    """Tell whether the processor has a feature, such as ``amx_bf16``, where Linux says so."""
    return name in _told(info, "flags").split()


def _told(info: Path, key: str) -> str:
    """Return the first value of a key; "" where there is none."""
    try:
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def _quota_v1(cgroup: Path) -> float | None:
    try:
        limit = int((cgroup / "cpu/cpu.cfs_quota_us").read_text())
        period = int((cgroup / "cpu/cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return limit / period if limit > 0 and period > 0 else None


_QUOTA = cgroup_quota()

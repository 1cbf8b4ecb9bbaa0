"""How much memory a process could still take on this machine."""

from pathlib import Path, PurePath

VERSION_1 = ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
VERSION_2 = ("/sys/fs/cgroup", "memory.max")
"""Where control groups keep their limit, in either version of their interface."""


def available_bytes() -> int | None:
    """Memory that a process could still take: what the system says is available, or its group's limit if smaller.

    None where neither can be learned.
    """
    system = _meminfo()
    return min(_group_limits() + ([] if system is None else [system]), default=None)


def _meminfo() -> int | None:
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _group_limits() -> list[int]:
    """Limits of the control groups this process is in, their parents included, in either version of the interface."""
    limits = []
    for line in _text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root, name = VERSION_1 if controllers else VERSION_2
        for folder in (PurePath(path), *PurePath(path).parents):
            value = _text(f"{root}/{folder.as_posix().lstrip('/')}/{name}").strip()
            if value.isdigit():
                limits.append(int(value))
    return limits


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""

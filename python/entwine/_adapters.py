"""What the adapters to models of others share: whether Entwine can run a layer, and how the log
names layers."""
from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence

import torch

from ._torch_registration import _NAMES


def why_not(weight: torch.Tensor, device: str | None = None) -> str | None:
    """Why Entwine cannot run product and AllReduce of a layer with that weight; None if it can.
    `device`: the type of the one where the weight will be."""
    device = device or weight.device.type
    if device != "cpu":
        return f"is on {device}; adapters replace layers on CPUs"
    if weight.dtype not in _NAMES:
        return f"has element type {weight.dtype}"
    return None


def counted(names: Iterable[str]) -> str:
    """Layers by the last part of their names."""
    counts = collections.Counter(name.rpartition(".")[2] for name in names)
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def with_reasons(left: Mapping[str, Sequence[str]]) -> str:
    """Layers that were left alone, by the reason."""
    return "; ".join(f"{counted(names)} ({why})" for why, names in left.items()) or "none"

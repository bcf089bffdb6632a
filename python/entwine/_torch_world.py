"""The worlds of torch.distributed groups."""
from __future__ import annotations

import torch.distributed as dist

from ._world import World, check_world

_by_group: dict[dist.ProcessGroup | None, World] = {}


def world_of(group: dist.ProcessGroup | None = None) -> World:
    """The world of a torch.distributed group (default: all processes), made when first asked
    for.  Collective then."""
    group = group if group is not None else dist.group.WORLD
    world = _by_group.get(group)
    if world is None or world._handle is None:
        world = _by_group[group] = World.from_torch(group)
    return world


def chosen_world(world: World | None, group: dist.ProcessGroup | None) -> World:
    """The world that was given, or else that of the group."""
    return check_world(world if world is not None else world_of(group))

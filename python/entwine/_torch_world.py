"""The worlds of torch.distributed groups."""
from __future__ import annotations

import gc

import torch.distributed as dist

from ._world import World, check_world

_by_group: dict[dist.ProcessGroup | None, World] = {}


def _is_gone(group):
    """Whether the group was destroyed."""
    try:
        dist.get_rank(group)
    except ValueError:
        return True
    return False


def _forget_gone():
    """Lets go of the worlds of groups that were destroyed: one that nobody else has is closed."""
    gone = [group for group in _by_group if _is_gone(group)]
    for group in gone:
        del _by_group[group]
    if gone:
        gc.collect()  # a world and its plans hold each other


def world_of(group: dist.ProcessGroup | None = None) -> World:
    """The world of a torch.distributed group (default: all processes), made when first asked
    for, and again after it was closed.  Collective then.

    A world that has failed stays that of its group until all ranks close it: they need not find out
    at the same time."""
    group = group if group is not None else dist.group.WORLD
    world = _by_group.get(group)
    if world is None or world._handle is None:
        _forget_gone()
        world = _by_group[group] = World.from_torch(group)
    return world


def chosen_world(world: World | None, group: dist.ProcessGroup | None) -> World:
    """The world that was given, or else that of the group."""
    return check_world(world if world is not None else world_of(group))

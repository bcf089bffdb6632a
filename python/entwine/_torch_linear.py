"""What the linear layers that are split over ranks share."""
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ._errors import ArgumentTypeError
from ._torch_again import forget_tensor
from ._world import World

if TYPE_CHECKING:
    from typing_extensions import Self

Device = torch.device | str | int | None

_DRAWN_TOGETHER = 1 << 20  # elements


# ---- Layers that all ranks hold --------------------------------------------------------------

def why_not_plain(module: torch.nn.Module, kind: type[torch.nn.Module] = torch.nn.Linear
                  ) -> str | None:
    """Why a layer does not compute what `kind` does, so that a part of its parameters would not
    stand for a part of it; None if it does."""
    if not isinstance(module, kind):
        return f"is a {type(module).__name__}, not a torch.nn.{kind.__name__}"
    if type(module).forward is not kind.forward:
        return (f"is a {type(module).__name__}, whose forward is not that of "
                f"torch.nn.{kind.__name__}")
    if "forward" in module.__dict__:
        return f"has a forward that was put in the place of torch.nn.{kind.__name__}'s"
    return None


def check_plain(linear: Any, name: str = "linear") -> torch.nn.Linear:
    """The layer, if it is a torch.nn.Linear in all that it does."""
    why = why_not_plain(linear)
    if why is not None:
        raise ArgumentTypeError(f"{name} {why}; expected a plain torch.nn.Linear\n"
                                f"  fix: merge what it adds into a plain one first, or leave this "
                                f"layer whole")
    assert isinstance(linear, torch.nn.Linear)
    return linear


# ---- The layers ------------------------------------------------------------------------------

class ParallelLinear(torch.nn.Module):
    world: World
    in_features: int
    out_features: int
    weight: torch.nn.Parameter
    bias: torch.nn.Parameter | None
    frozen: bool

    def _mine(self) -> tuple[slice, slice]:
        """This rank's rows and columns of the whole weight."""
        raise NotImplementedError

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """This rank's part of what torch.nn.Linear of the whole size draws: every rank draws all of
        it, so that the parts of one seed are parts of one weight, and not equal.  A bias may have
        to be equal on all ranks, whatever their seeds, so it starts at zero."""
        weight, (rows, columns) = self.weight, self._mine()
        n, k = self.out_features, self.in_features
        # On a CPU the numbers do not depend on how many are drawn together.
        step = max(1, _DRAWN_TOGETHER // max(1, k) if weight.is_cpu else n)
        for first in range(0, n, step):
            drawn = weight.new_empty(min(step, n - first), k)
            torch.nn.init.kaiming_uniform_(drawn, a=math.sqrt(5))
            begin, end = max(first, rows.start), min(first + len(drawn), rows.stop)
            if begin < end:
                weight[begin - rows.start:end - rows.start] = drawn[begin - first:end - first,
                                                                    columns]
        if self.bias is not None:
            # torch draws one, and the layers made next shall be those of torch, too.
            self.bias.new_empty(n).uniform_()
            torch.nn.init.zeros_(self.bias)

    def _take(self, linear: torch.nn.Linear) -> None:
        """Has this layer, made on the meta device, be a part of one that all ranks hold."""
        rows, columns = self._mine()
        self.to_empty(device=linear.weight.device)
        with torch.no_grad():
            self.weight.copy_(linear.weight[rows, columns])
            if self.bias is not None:
                self.bias.copy_(linear.bias[rows])
        self.weight.requires_grad_(linear.weight.requires_grad)
        if self.bias is not None:
            self.bias.requires_grad_(linear.bias.requires_grad)
        self.train(linear.training)

    def _let_go(self) -> None:
        """torch may exchange the weight for another (set_swap_module_params_on_conversion)."""
        forget_tensor(self._parameters.get("weight"), self.world)

    def _apply(self, *arguments: Any, **options: Any) -> Self:
        self._let_go()
        return super()._apply(*arguments, **options)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self._let_go()
        super()._load_from_state_dict(*arguments)

    def freeze(self) -> Self:
        """Promises that the weight will change only by writes that its version shows, such as
        load_state_dict, so that calls need not look at its values.  Gradients end."""
        self.frozen = True
        self.requires_grad_(False)
        return self

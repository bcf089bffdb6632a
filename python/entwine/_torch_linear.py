"""What the linear layers that are split over ranks share."""
from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from typing_extensions import Self

Device = torch.device | str | int | None


class ParallelLinear(torch.nn.Module):
    in_features: int
    weight: torch.nn.Parameter
    bias: torch.nn.Parameter | None
    frozen: bool

    def reset_parameters(self) -> None:
        """As torch.nn.Linear of the whole size; a bias may have to be equal on all ranks, so it
        starts at zero."""
        bound = 1 / math.sqrt(self.in_features)
        torch.nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def freeze(self) -> Self:
        """Promises that the weight will change only by writes that its version shows, such as
        load_state_dict, so that calls need not look at its values.  Gradients end."""
        self.frozen = True
        self.requires_grad_(False)
        return self

"""Several weights on one gather: their arguments, checked, as the C library's."""
from ._buffers import describe
from ._errors import ArgumentError, ShapeError
from ._library import Product
from ._streams import allocate_for
from ._weight import Weight

ACTIVATIONS = {"none": 0, "silu": 1, "gelu-tanh": 2}


def activation_code(activation):
    if activation not in ACTIVATIONS:
        raise ArgumentError(f"activation is {activation!r}; expected 'silu', 'gelu-tanh' or 'none'")
    return ACTIVATIONS[activation]


class Products:
    """The weights of a call, each an array [n, k] or a ``Weight``, and the places of their
    products: None for a new one, or one for each, of which some may be None."""

    def __init__(self, plan, weights, outs, stream):
        self.plan = plan
        self.stream = stream  # as it was given, or None
        self.buffers = []  # what was lent must live until the call has ended
        self.weights = [self._take(weight, stream) for weight in weights]
        self.outs = list(outs) if outs is not None else [None] * len(self.weights)
        if len(self.outs) != len(self.weights):
            raise ArgumentError(f"{len(self.outs)} outputs are given for {len(self.weights)} "
                                f"weights; expected one for each")

    def _take(self, weight, stream):
        taken = weight if isinstance(weight, Weight) else describe(weight, "a weight", stream)
        if taken.shape[1] != self.plan._k:
            raise ShapeError(f"a weight has shape {taken.shape}; expected depth {self.plan._k}, "
                             f"the plan's\n  fix: weights on one gather have the same k")
        if taken is not weight:
            self.plan._check_weight(taken, taken.shape[0])
            self.plan._has_room = True
        return taken

    def widths(self):
        return [weight.shape[0] for weight in self.weights]

    def allocate(self, a, m):
        """Places for all products that have none."""
        for at, n in enumerate(self.widths()):
            if self.outs[at] is None:
                self.outs[at], buffer = allocate_for(self.stream, a, (m, n))
                self.buffers.append(buffer)

    def build(self, m):
        """For a call with m rows: the C array."""
        return (Product * len(self.weights))(*(
            self._product(weight, out, m) for weight, out in zip(self.weights, self.outs)))

    def _product(self, weight, out, m):
        n = weight.shape[0]
        handle = weight._check_open() if isinstance(weight, Weight) else None
        c = None
        if out is not None:
            buffer = self.plan._matrix(out, "an output", m, True, n)
            self.buffers.append(buffer)
            c = buffer.pointer or None
        return Product(n, None if handle else weight.pointer, handle, c)


def packed_products(weights):
    """The C array of products that are not stored, of weights that are all packed; else None."""
    if not all(isinstance(weight, Weight) for weight in weights):
        return None
    return (Product * len(weights))(*(Product(weight.shape[0], None, weight._check_open(), None)
                                      for weight in weights))

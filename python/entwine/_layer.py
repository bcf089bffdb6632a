"""What follows the sum in a transformer layer: its arguments, checked, as the C library's."""
import ctypes
import math

from ._buffers import allocate_like, refuse_overlap
from ._errors import ArgumentError, ArgumentTypeError
from ._library import Epilogue


_EPILOGUE_BYTES = ctypes.sizeof(Epilogue)


class Layer:
    """The arguments of gemm_rs_layer.  ``resolve`` checks them against a plan and says what C
    gets; ``result`` is then what the call returns."""

    __slots__ = ("bias", "residual", "norm_weight", "eps", "out", "normed", "result", "buffers")

    def __init__(self, bias, residual, norm_weight, eps, out, normed):
        self.bias, self.norm_weight = bias, norm_weight
        self.residual, self.out, self.normed = residual, out, normed
        self.eps = _small_number(eps, "eps")
        if normed is not None and norm_weight is None:
            raise ArgumentError("normed is given, but norm_weight is None\n"
                                "  fix: pass both, or neither")

    def resolve(self, plan, rows, operands):
        """(the epilogue, the address of c or None) for a call whose rank owns `rows` rows."""
        read, written = dict(operands), {}
        for name in ("bias", "norm_weight"):
            vector = getattr(self, name)
            if vector is not None:
                read[name] = plan._vector(vector, name)
        for name in ("out", "residual", "normed"):
            matrix = getattr(self, name)
            if matrix is not None:
                written[name] = plan._matrix(matrix, name, rows)
        if written:
            refuse_overlap(written, read)
        last = ("normed" if self.norm_weight is not None else
                "residual" if self.residual is not None else "out")
        self.result = getattr(self, last)
        if self.result is None:
            self.result, written[last] = allocate_like(read["A"], (rows, plan._n), last)
        self.buffers = {**read, **written}  # what was lent must live until the call has ended
        return (Epilogue(_EPILOGUE_BYTES, self.eps, self._address("bias"),
                         self._address("residual"), self._address("norm_weight"),
                         self._address("normed")), self._address("out"))

    def _address(self, name):
        buffer = self.buffers.get(name)
        return None if buffer is None else buffer.pointer or None


def _small_number(value, name):
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"{name} is {value!r}; expected a number") from None
    if not 0 <= number <= 1 or math.isnan(number):
        raise ArgumentError(f"{name} is {value!r}; expected a small number, 0 to 1")
    return number

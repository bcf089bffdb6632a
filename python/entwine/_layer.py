"""What follows the sum in a transformer layer: its arguments, checked, as the C library's."""
import ctypes
import math

from ._buffers import refuse_overlap
from ._errors import ArgumentError, ArgumentTypeError
from ._library import Epilogue
from ._streams import allocate_for


_EPILOGUE_BYTES = ctypes.sizeof(Epilogue)
_RESIDUAL_ROWS = {"owned": 0, "all": 1}


class Layer:
    """The arguments of gemm_rs_layer and gemm_ar_layer.  ``resolve`` checks them against a plan
    and says what C gets; ``result`` is then what the call returns."""

    __slots__ = ("bias", "residual", "norm_weight", "eps", "out", "normed", "residual_rows",
                 "result", "buffers")

    def __init__(self, bias, residual, norm_weight, eps, out, normed, residual_rows="owned"):
        self.bias, self.norm_weight = bias, norm_weight
        self.residual, self.out, self.normed = residual, out, normed
        self.eps = _small_number(eps, "eps")
        if normed is not None and norm_weight is None:
            raise ArgumentError("normed is given, but norm_weight is None\n"
                                "  fix: pass both, or neither")
        if residual_rows not in _RESIDUAL_ROWS:
            raise ArgumentError(f"residual_rows is {residual_rows!r}; expected 'owned' or 'all'")
        self.residual_rows = residual_rows

    def resolve(self, plan, m, operands, stream):
        """(the epilogue, the address of c or None) for a call with m rows, on the stream of that
        handle; None: torch's current one."""
        whole = plan._gives_all_rows
        if whole and self.residual is not None and self.residual_rows == "owned":
            self._check_owned()
        read, written = dict(operands), {}
        for name in ("bias", "norm_weight"):
            vector = getattr(self, name)
            if vector is not None:
                read[name] = plan._vector(vector, name)
        for name in ("out", "residual", "normed"):
            matrix = getattr(self, name)
            if matrix is not None:
                written[name] = plan._matrix(
                    matrix, name, m, self.residual_rows == "all" if name == "residual" else whole)
        if written:
            refuse_overlap(written, read)
        last = ("normed" if self.norm_weight is not None else
                "residual" if self.residual is not None else "out")
        self.result = getattr(self, last)
        if self.result is None:
            self.result, written[last] = allocate_for(stream, read["A"], plan._shape_of_c(m), last)
        self.buffers = {**read, **written}  # what was lent must live until the call has ended
        return (Epilogue(_EPILOGUE_BYTES, self.eps, self._address("bias"),
                         self._address("residual"), self._address("norm_weight"),
                         self._address("normed"), _RESIDUAL_ROWS[self.residual_rows]),
                self._address("out"))

    def _check_owned(self):
        """Of an AllReduce: the norm of its rows is all that a rank sends to the others."""
        if self.norm_weight is None:
            wrong, fix = "has no norm to return", "pass norm_weight"
        elif self.out is not None:
            wrong, fix = "does not return c", "leave out= away"
        else:
            return
        raise ArgumentError(f"gemm_ar_layer with a residual of this rank's own rows {wrong}\n"
                            f"  fix: {fix}, or pass the whole residual and residual_rows='all'")

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

"""What an array argument is: where it lies, its shape, strides and element type.

NumPy arrays, torch tensors, and whatever offers __cuda_array_interface__ or DLPack become
one Buffer.  Nothing is copied, and torch is never imported here: a tensor comes from a
program that has done so.
"""
import math
import operator
import sys
from ctypes import addressof, c_char

import numpy as np

from . import _dlpack
from ._errors import ArgumentError, ArgumentTypeError, ShapeError

FP32, BF16, FP16 = 1, 2, 3
ITEM_BYTES = {FP32: 4, BF16: 2, FP16: 2}
DTYPE_NAMES = {FP32: "float32", BF16: "bfloat16", FP16: "float16"}
_CODES = {"float32": FP32, "fp32": FP32, "bfloat16": BF16, "bf16": BF16, "float16": FP16,
          "fp16": FP16}
_WANTED = "float32, float16 or bfloat16"
CPU = -1  # as a device; GPUs count from 0

_NUMPY_CODES = {np.dtype(np.float32): FP32, np.dtype(np.float16): FP16}


class Buffer:
    """Memory of an argument; strides count elements."""

    __slots__ = ("pointer", "shape", "strides", "dtype", "device", "writable", "stream", "kind",
                 "owner")

    def __init__(self, pointer, shape, strides, dtype, device, writable, stream, kind, owner):
        self.pointer = pointer
        self.shape = shape
        self.strides = strides  # None: row-major
        self.dtype = dtype
        self.device = device
        self.writable = writable
        self.stream = stream
        self.kind = kind
        self.owner = owner  # keeps the memory alive

    def is_row_major(self):
        return self.strides is None or _follows(self.shape, self.strides)

    def is_transposed(self):
        strides = self.strides or (self.shape[1], 1)
        return _follows(self.shape[::-1], strides[::-1])

    def end(self):
        """Behind its last byte, where it has no gaps."""
        return self.pointer + math.prod(self.shape) * ITEM_BYTES[self.dtype]


def _follows(shape, strides):
    """Row-major without gaps; the stride of an extent of 1 does not matter."""
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent == 0:
            return True
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


# ---- Element types ---------------------------------------------------------------------------

def _numpy_code(dtype):
    code = _NUMPY_CODES.get(dtype)
    if code is None and dtype.name == "bfloat16":  # ml_dtypes
        code = _NUMPY_CODES[dtype] = BF16
    return code


def dtype_code(dtype, name="dtype"):
    """The C library's number of an element type, given as text, NumPy's or torch's."""
    torch = sys.modules.get("torch")
    if isinstance(dtype, str):
        code = _CODES.get(dtype)
    elif torch is not None and isinstance(dtype, torch.dtype):
        code = _CODES.get(str(dtype)[len("torch."):])
    else:
        try:
            code = _numpy_code(np.dtype(dtype)) if dtype is not None else None
        except TypeError:
            code = None
    if code is None:
        raise ArgumentTypeError(f"{name} is {dtype!r}; expected {_WANTED}")
    return code


def _fail_dtype(name, dtype):
    raise ArgumentTypeError(f"{name} has element type {dtype}; expected {_WANTED}\n"
                            f"  fix: convert it first")


# ---- One function per kind of array ----------------------------------------------------------

def _address(array):
    try:
        return addressof(c_char.from_buffer(array))  # a third of the time
    except (TypeError, ValueError, BufferError):  # read-only, empty, with gaps, or bfloat16
        return array.__array_interface__["data"][0]


def _of_numpy(array, name):
    code = _NUMPY_CODES.get(array.dtype) or _numpy_code(array.dtype)
    if code is None:
        _fail_dtype(name, array.dtype if array.dtype.isnative
                    else f"{array.dtype.name} in foreign byte order")
    flags = array.flags
    if flags.c_contiguous:
        strides = None
    else:
        item = array.itemsize
        if any(stride % item for stride in array.strides):
            raise ArgumentError(f"{name} has strides of {array.strides} bytes, which are no "
                                f"multiples of its {item}-byte elements\n"
                                f"  fix: pass numpy.ascontiguousarray({name})")
        strides = tuple(stride // item for stride in array.strides)
    if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):
        raise ArgumentTypeError(f"{name} is a masked array; expected a plain one\n"
                                f"  fix: pass {name}.filled(0)")
    return Buffer(_address(array), array.shape, strides, code, CPU, flags.writeable, None, "numpy",
                  array)


_torch_codes = {}
_Tensor = _strided = _increment_version = None  # torch's, once a tensor has come by


def _meet_torch(torch):
    global _Tensor, _strided, _increment_version
    _Tensor, _strided = torch.Tensor, torch.strided
    _increment_version = torch.autograd.graph.increment_version
    _torch_codes.update({torch.float32: FP32, torch.bfloat16: BF16, torch.float16: FP16})


def _of_torch(tensor, name, torch):
    if not _torch_codes:
        _meet_torch(torch)
    if tensor.is_cpu:
        device = CPU
    elif tensor.is_cuda:
        device = tensor.get_device()
    else:
        raise ArgumentError(f"{name} is on device {tensor.device}; expected cpu or cuda")
    if tensor.layout is not torch.strided:
        raise ArgumentTypeError(f"{name} has layout {tensor.layout}; expected a dense tensor\n"
                                f"  fix: pass {name}.to_dense()")
    code = _torch_codes.get(tensor.dtype)
    if code is None:
        _fail_dtype(name, tensor.dtype)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ArgumentError(f"{name} requires grad, which this call would ignore\n"
                            f"  fix: use entwine.torch (its gemm_rs and RowParallelLinear have "
                            f"gradients), or pass {name}.detach()")
    try:
        pointer = tensor.data_ptr()
    except RuntimeError:
        pointer = 0
    if (pointer == 0 and tensor.numel() > 0) or tensor.is_neg():
        raise ArgumentTypeError(f"{name} is a {type(tensor).__name__} without plain memory\n"
                                f"  fix: pass an ordinary tensor")
    return Buffer(pointer, tuple(tensor.shape), None if tensor.is_contiguous() else tensor.stride(),
                  code, device, True, None, "torch", tensor)


_CUDA_TYPES = {"<f4": FP32, "<f2": FP16}


def _of_cuda_interface(array, name):
    try:
        interface = array.__cuda_array_interface__
        pointer, read_only = interface["data"]
        shape = tuple(operator.index(extent) for extent in interface["shape"])
        typestr, strides = interface["typestr"], interface.get("strides")
        pointer = operator.index(pointer)
    except Exception as error:
        raise ArgumentTypeError(f"{name} has a broken __cuda_array_interface__: {error}") from error
    code = _CUDA_TYPES.get(typestr)
    if code is None:
        _fail_dtype(name, typestr)
    if interface.get("mask") is not None:
        raise ArgumentTypeError(f"{name} is masked; expected a plain array")
    if strides is not None:
        item = ITEM_BYTES[code]
        if len(strides) != len(shape) or any(stride % item for stride in strides):
            raise ArgumentError(f"{name} has shape {shape} and strides of {strides} bytes; "
                                f"expected one for each extent, multiples of {item}")
        strides = tuple(stride // item for stride in strides)
    device = getattr(getattr(array, "device", None), "id", 0)
    return Buffer(pointer, shape, strides, code, device if isinstance(device, int) else 0,
                  not read_only, interface.get("stream"), "cuda", array)


def _of_dlpack(array, name, stream):
    try:
        device_type, device_id = array.__dlpack_device__()
        on_gpu = int(device_type) in (_dlpack.CUDA, _dlpack.CUDA_MANAGED)
        if not on_gpu and int(device_type) not in (_dlpack.CPU, _dlpack.CUDA_HOST):
            raise ArgumentError(f"{name} is on DLPack device type {int(device_type)}; expected "
                                f"memory of the CPU or of a CUDA GPU")
        capsule = array.__dlpack__(stream=stream or 1) if on_gpu else array.__dlpack__()
        loan = _dlpack.Loan(capsule)
    except ArgumentError:
        raise
    except Exception as error:
        raise ArgumentTypeError(f"{name} ({type(array).__name__}) cannot be had through DLPack: "
                                f"{error}") from error
    code = _CODES.get(loan.dtype)
    if code is None:
        _fail_dtype(name, loan.dtype)
    return Buffer(loan.pointer, loan.shape, loan.strides, code,
                  int(device_id) if on_gpu else CPU, True, None, "dlpack", loan)


def describe(array, name, stream=None, dimensions=2):
    """The Buffer of argument `name`, whatever kind of array it is."""
    if isinstance(array, np.ndarray):
        buffer = _of_numpy(array, name)
    else:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(array, torch.Tensor):
            buffer = _of_torch(array, name, torch)
        elif hasattr(array, "__cuda_array_interface__"):
            buffer = _of_cuda_interface(array, name)
        elif hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
            buffer = _of_dlpack(array, name, stream)
        else:
            raise ArgumentTypeError(
                f"{name} is a {type(array).__name__}; expected a NumPy array, a torch tensor, or "
                f"an object with DLPack or __cuda_array_interface__")
    if len(buffer.shape) != dimensions:
        raise ShapeError(f"{name} has shape {buffer.shape}; expected "
                         f"{('one dimension', 'two dimensions')[dimensions - 1]}")
    if buffer.pointer % ITEM_BYTES[buffer.dtype]:
        raise ArgumentError(f"{name} starts at an address that is no multiple of its "
                            f"{ITEM_BYTES[buffer.dtype]}-byte elements\n  fix: pass a copy")
    return buffer


def plain_address(array, dtype, device):
    """The address of an ordinary array: NumPy's or torch's own, row-major, writable, not empty,
    of that element type and place.  0 for all others: describe() says what they are.  Saves
    the usual call most of the time that describe() takes."""
    kind = type(array)
    address = 0
    try:
        if kind is np.ndarray:
            if device == CPU and _NUMPY_CODES.get(array.dtype) == dtype:
                address = addressof(c_char.from_buffer(array))  # refuses gaps and read-only
        elif (kind is _Tensor and _torch_codes.get(array.dtype) == dtype
              and (array.is_cpu if device == CPU else
                   array.is_cuda and array.get_device() == device)
              and array.layout is _strided and array.is_contiguous()
              and not array.requires_grad and not array.is_neg()):
            address = array.data_ptr()
    except (TypeError, ValueError, BufferError, RuntimeError):
        return 0
    return 0 if address % ITEM_BYTES[dtype] else address


def refuse_overlap(written, read):
    """Raises if a buffer of `written` shares memory with another one.  Both map names to buffers
    of one device without gaps."""
    seen = [(name, buffer.pointer, buffer.end()) for name, buffer in read.items()]
    for name, buffer in written.items():
        start, end = buffer.pointer, buffer.end()
        for other, its_start, its_end in seen:
            if start < its_end and its_start < end:
                raise ArgumentError(f"{name} shares memory with {other}; expected memory of its "
                                    f"own")
        seen.append((name, start, end))


def note_written(*arrays):
    """Has torch know which of the caller's tensors a call has written: autograd refuses to go back
    through what it has saved of them."""
    for array in arrays:
        if array is None or type(array) is np.ndarray or _Tensor is None:
            continue
        if isinstance(array, _Tensor) and not array.is_inference():
            _increment_version(array)


def empty_like(array, shape):
    """A new array of the kind, element type and place of an ordinary one, and its address."""
    if type(array) is np.ndarray:
        new = np.empty(shape, array.dtype)
        return new, _address(new)
    new = array.new_empty(*shape)  # a tuple would cost a third more
    return new, new.data_ptr()


def allocate_like(buffer, shape, name="out"):
    """A new array of the buffer's kind, element type and device: (object, Buffer)."""
    if buffer.kind == "torch":
        array, pointer = empty_like(buffer.owner, shape)
        return array, Buffer(pointer, shape, None, buffer.dtype, buffer.device, True, None, "torch",
                             array)
    if buffer.device != CPU:
        raise ArgumentError(f"{name} is missing: for this kind of GPU array there is nobody to "
                            f"make one\n  fix: pass {name}=")
    if buffer.dtype == BF16 and buffer.kind != "numpy":
        raise ArgumentError(f"{name} is missing: NumPy alone has no bfloat16\n"
                            f"  fix: pass {name}=")
    dtype = buffer.owner.dtype if buffer.kind == "numpy" else DTYPE_NAMES[buffer.dtype]
    array = np.empty(shape, dtype)
    return array, Buffer(_address(array), shape, None, buffer.dtype, CPU, True, None, "numpy",
                         array)


def count(value, name, least, most=1 << 40):
    """A whole number within bounds, such that C sees what the caller wrote."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"{name} is {value!r}; expected a whole number") from None
    if not least <= number <= most:
        raise ArgumentError(f"{name} is {number}; expected {least} to {most}")
    return number

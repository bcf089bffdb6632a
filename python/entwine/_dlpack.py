"""Reads a DLPack capsule: the memory that an object of another library lends."""
import ctypes
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_uint8,
                    c_uint16, c_uint64, c_void_p, py_object)

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13


class _Tensor(Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32),
                ("ndim", c_int32), ("type_code", c_uint8), ("type_bits", c_uint8),
                ("type_lanes", c_uint16), ("shape", POINTER(c_int64)),
                ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


class _Managed(Structure):
    pass


_Managed._fields_ = [("tensor", _Tensor), ("context", c_void_p),
                     ("deleter", CFUNCTYPE(None, POINTER(_Managed)))]

_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = c_int, [py_object, c_char_p]
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = c_void_p, [py_object, c_char_p]
_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.restype, _set_name.argtypes = c_int, [py_object, c_char_p]

_FRESH = c_char_p(b"dltensor")
_USED = c_char_p(b"used_dltensor")  # the capsule keeps the address, so it must stay

_DTYPES = {(2, 32): "float32", (2, 16): "float16", (4, 16): "bfloat16"}
_CODES = {0: "int", 1: "uint", 2: "float", 3: "handle", 4: "bfloat", 5: "complex", 6: "bool"}


class Loan:
    """Lent memory; given back when this object goes away."""

    def __init__(self, capsule):
        if not _is_valid(capsule, _FRESH):
            raise BufferError("__dlpack__ did not return an unused DLPack capsule")
        self._managed = ctypes.cast(_get_pointer(capsule, _FRESH), POINTER(_Managed))
        _set_name(capsule, _USED)
        tensor = self._managed.contents.tensor
        self.pointer = (tensor.data or 0) + tensor.byte_offset
        self.device_type, self.device_id = tensor.device_type, tensor.device_id
        self.shape = tuple(tensor.shape[:tensor.ndim])
        self.strides = tuple(tensor.strides[:tensor.ndim]) if tensor.strides else None
        kind = (tensor.type_code, tensor.type_bits)
        self.dtype = _DTYPES.get(kind, f"{_CODES.get(kind[0], kind[0])}{kind[1]}")
        if tensor.type_lanes != 1:
            self.dtype += f"x{tensor.type_lanes}"

    def __del__(self):
        managed = getattr(self, "_managed", None)
        if managed and managed.contents.deleter:
            managed.contents.deleter(managed)

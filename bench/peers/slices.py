"""A rank's slice of the GPU: streams of a green context that owns SMs no other rank has.

torch.cuda.green_contexts always takes the first group of SMs, which would put every rank on
the same ones; so the driver is asked directly, as src/backend/cuda/device.c does."""
import ctypes

SM_RESOURCE = 1  # CU_DEV_RESOURCE_TYPE_SM
DEFAULT_STREAM = 1  # CU_GREEN_CTX_DEFAULT_STREAM
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
MOST_GROUPS = 64


class Resource(ctypes.Structure):
    """CUdevResource of CUDA 12.4 to 13.0, ABI version 1."""
    _fields_ = [("type", ctypes.c_int), ("hidden", ctypes.c_ubyte * 92),
                ("sm_count", ctypes.c_uint), ("rest", ctypes.c_ubyte * 44)]


class Slice:
    def __init__(self, index, sms, device=0):
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._device = ctypes.c_int(device)
        self._green = ctypes.c_void_p()
        group = self._group(index, sms)
        self.sms = group.sm_count
        description = ctypes.c_void_p()
        self._call("cuDevResourceGenerateDesc", ctypes.byref(description), ctypes.byref(group),
                   ctypes.c_uint(1))
        self._call("cuGreenCtxCreate", ctypes.byref(self._green), description, self._device,
                   ctypes.c_uint(DEFAULT_STREAM))

    def _call(self, name, *arguments):
        result = getattr(self._driver, name)(*arguments)
        if result:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(ctypes.c_int(result), ctypes.byref(text))
            raise RuntimeError(f"{name} failed: {(text.value or b'?').decode()} ({result})")

    def _group(self, index, sms):
        whole, groups = Resource(), (Resource * MOST_GROUPS)()
        count = ctypes.c_uint(MOST_GROUPS)
        self._call("cuDeviceGetDevResource", self._device, ctypes.byref(whole),
                   ctypes.c_int(SM_RESOURCE))
        self._call("cuDevSmResourceSplitByCount", groups, ctypes.byref(count),
                   ctypes.byref(whole), None, ctypes.c_uint(0), ctypes.c_uint(sms))
        if index >= count.value:
            raise RuntimeError(f"the GPU's {whole.sm_count} SMs split into {count.value} groups "
                               f"of {sms}, and group {index} is needed")
        return groups[index]

    def stream(self):
        """The address of a new stream whose kernels run in the slice alone."""
        stream = ctypes.c_void_p()
        self._call("cuGreenCtxStreamCreate", ctypes.byref(stream), self._green,
                   ctypes.c_uint(NON_BLOCKING), ctypes.c_int(0))
        return stream.value

    def make_current(self):
        """For drivers that want events and streams to be of one context."""
        context = ctypes.c_void_p()
        self._call("cuCtxFromGreenCtx", ctypes.byref(context), self._green)
        self._call("cuCtxSetCurrent", context)

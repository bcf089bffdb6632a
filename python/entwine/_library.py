"""Finds libentwine, checks that it fits this package, and declares the functions used.

Configs stay opaque: they are made and shown by ew_config_parse and ew_config_print, so a
library with new fields needs no change here.
"""
import ctypes
import os
import sys
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int,
                    c_int32, c_int64, c_size_t, c_uint32, c_void_p)

from ._errors import LibraryError, from_status

__version__ = "0.1.0"
SONAME = "libentwine.so.0"
EXPLAIN_BYTES = 4096
CONFIG_TEXT_BYTES = 384


# ---- Structs ---------------------------------------------------------------------------------

class WorldOptions(Structure):
    _fields_ = [("struct_size", c_uint32), ("timeout_ms", c_uint32), ("link_gbps", c_double),
                ("link_latency_us", c_double), ("grace_ms", c_uint32), ("cancel", c_void_p),
                ("link_header_bytes", c_double)]


class Problem(Structure):
    _fields_ = [("struct_size", c_uint32), ("dtype", c_int), ("weight_layout", c_int),
                ("max_m", c_int64), ("n", c_int64), ("k", c_int64), ("op", c_int)]


class Epilogue(Structure):
    _fields_ = [("struct_size", c_uint32), ("eps", c_float), ("bias", c_void_p),
                ("residual", c_void_p), ("norm_weight", c_void_p), ("normed", c_void_p),
                ("residual_rows", c_int)]


class Product(Structure):
    _fields_ = [("n", c_int64), ("B", c_void_p), ("weight", c_void_p), ("C", c_void_p)]


class Launcher(Structure):
    _fields_ = [("rank", c_int), ("num_ranks", c_int), ("source", c_char_p)]


class Traffic(Structure):
    _fields_ = [("num_hosts", c_int32), ("host", c_int32), ("ranks_here", c_int32),
                ("tile_bytes", c_int64), ("tile_messages", c_int64), ("control_messages", c_int64),
                ("device_bytes", c_int64), ("staged_bytes", c_int64)]


class Numa(Structure):
    _fields_ = [("domains", c_int32), ("domains_per_rank", c_int32), ("unknown", c_char_p)]


class TimingStruct(Structure):
    _fields_ = [("start_ns", c_int64), ("gemm_end_ns", c_int64), ("end_ns", c_int64)]


ALLGATHER = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t)
PROGRESS = CFUNCTYPE(c_int, c_void_p, c_int, c_int, c_char_p, c_double, c_double)


class TuneOptions(Structure):
    _fields_ = [("struct_size", c_uint32), ("budget_s", c_double), ("samples", c_int32),
                ("seed", c_uint32), ("store", c_int32), ("progress", PROGRESS),
                ("context", c_void_p), ("method", c_char_p), ("budget_calls", c_int64),
                ("effort", c_void_p)]


# ---- Finding the library ---------------------------------------------------------------------

def _candidates():
    """(path or soname, what it is), in the order in which they are tried."""
    here = os.path.dirname(os.path.abspath(__file__))
    yield os.path.join(here, SONAME), "beside the package"
    for prefix in dict.fromkeys((sys.prefix, sys.base_prefix, "/usr/local")):
        for folder in ("lib", "lib64"):
            yield os.path.join(prefix, folder, SONAME), "an installed prefix"
    yield SONAME, "LD_LIBRARY_PATH and the system's libraries (ldconfig)"


def _open(path):
    try:
        return ctypes.CDLL(path), None
    except OSError as error:
        return None, str(error)


def _find():
    asked = os.environ.get("ENTWINE_LIBRARY")
    if asked:  # a wish is not second-guessed
        library, why = _open(os.path.abspath(asked))
        if library is None:
            raise LibraryError(f"ENTWINE_LIBRARY={asked} cannot be loaded: {why}\n"
                               f"  fix: set it to the path of {SONAME}, or unset it")
        return library, asked
    tried = ["ENTWINE_LIBRARY (not set)"]
    for path, what in _candidates():
        if os.path.isabs(path) and not os.path.exists(path):
            tried.append(f"{path} ({what}: no such file)")
            continue
        library, why = _open(path)
        if library is not None:
            return library, path
        tried.append(f"{path} ({what}: {why})")
    raise LibraryError(
        f"{SONAME} was not found.  Looked at:\n    " + "\n    ".join(tried) + "\n"
        f"  fix: run `pip install ./python` in Entwine's folder, which builds it, or set "
        f"ENTWINE_LIBRARY to the path of {SONAME}")


def _check_version(library, path):
    try:
        library.ew_version.restype = c_char_p
        found = library.ew_version().decode()
    except AttributeError:
        raise LibraryError(f"{path} is not Entwine's library\n"
                           f"  fix: set ENTWINE_LIBRARY to the path of {SONAME}") from None
    # Before 1.0 a new minor version may change the interface.
    if found.split(".")[:2] != __version__.split(".")[:2]:
        raise LibraryError(
            f"{path} is version {found}, this package is {__version__}\n"
            f"  fix: install both from the same folder (`pip install ./python` does)")


# ---- Declarations ----------------------------------------------------------------------------

_P = c_void_p
_PROTOTYPES = {  # name: (result, arguments); results that are statuses are c_int
    "ew_last_error": (c_char_p, []),
    "ew_status_name": (c_char_p, [c_int]),
    "ew_world_create": (c_int, [c_int, c_int, ALLGATHER, _P, POINTER(WorldOptions), POINTER(_P)]),
    "ew_world_join": (c_int, [_P, POINTER(WorldOptions), POINTER(_P)]),
    "ew_world_rank": (c_int, [_P]),
    "ew_world_size": (c_int, [_P]),
    "ew_world_gpu": (c_int, [_P]),
    "ew_world_traffic": (c_int, [_P, POINTER(Traffic)]),
    "ew_world_allgather": (c_int, [_P, _P, _P, c_size_t]),
    "ew_world_barrier": (c_int, [_P]),
    "ew_world_abort": (None, [_P]),
    "ew_world_shrink": (c_int, [_P, POINTER(_P)]),
    "ew_world_destroy": (None, [_P]),
    "ew_launcher_detect": (c_int, [POINTER(Launcher)]),
    "ew_config_parse": (c_int, [c_char_p, _P]),
    "ew_config_print": (c_int, [_P, c_char_p, c_size_t]),
    "ew_plan_create": (c_int, [_P, POINTER(Problem), _P, POINTER(_P)]),
    "ew_plan_set_weight": (c_int, [_P, _P]),
    "ew_plan_bind_weight": (c_int, [_P, _P]),
    "ew_plan_set_timeout": (c_int, [_P, c_double]),
    "ew_weight_create": (c_int, [_P, POINTER(Problem), _P, _P, POINTER(_P)]),
    "ew_weight_update": (c_int, [_P, _P]),
    "ew_weight_bytes": (c_size_t, [_P]),
    "ew_weight_destroy": (None, [_P]),
    "ew_alloc": (c_int, [_P, c_int, c_size_t, POINTER(_P)]),
    "ew_free": (c_int, [_P, c_int, _P]),
    "ew_gemm_rs": (c_int, [_P, c_int64, _P, _P, _P, _P]),
    "ew_gemm_rs_layer": (c_int, [_P, c_int64, _P, _P, _P, POINTER(Epilogue), _P]),
    "ew_gemm_ar": (c_int, [_P, c_int64, _P, _P, _P, _P]),
    "ew_gemm_ar_layer": (c_int, [_P, c_int64, _P, _P, _P, POINTER(Epilogue), _P]),
    "ew_ag_gemm": (c_int, [_P, c_int64, _P, _P, _P, _P, _P]),
    "ew_ag_gemm_multi": (c_int, [_P, c_int64, _P, POINTER(Product), c_int, _P, _P]),
    "ew_ag_gemm_act": (c_int, [_P, c_int64, _P, POINTER(Product), c_int, c_int, _P, _P, _P]),
    "ew_plan_wait": (c_int, [_P]),
    "ew_plan_config": (c_int, [_P, _P]),
    "ew_plan_explain": (c_int, [_P, c_char_p, c_size_t]),
    "ew_plan_timing": (c_int, [_P, POINTER(TimingStruct)]),
    "ew_plan_destroy": (None, [_P]),
    "ew_forecast_explain": (c_int, [POINTER(Problem), c_int, _P, c_char_p, c_size_t]),
    "ew_gpu_count": (c_int, []),
    "ew_numa_describe": (c_int, [c_int, POINTER(Numa)]),
    "ew_tune": (c_int, [_P, POINTER(Problem), _P, POINTER(TuneOptions), _P]),
}


def _declare(library, path):
    for name, (result, arguments) in _PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise LibraryError(f"{path} has no function {name}\n"
                               f"  fix: install library and package from the same "
                               f"folder") from None
        function.restype = result
        function.argtypes = arguments


library_path: str
lib, library_path = _find()
_check_version(lib, library_path)
_declare(lib, library_path)


def check(status):
    """Raises the exception of a failed status; call it in the thread that failed."""
    if status:
        raise from_status(status, lib.ew_last_error().decode(errors="replace"))


# ---- Configs ---------------------------------------------------------------------------------

CONFIG_BYTES = 92  # sizeof(ew_config)


class Config(c_uint32 * (CONFIG_BYTES // 4)):
    """An ew_config with every field open; its text says what its fields are."""

    def __init__(self):
        super().__init__(CONFIG_BYTES)  # struct_size


class Tuning(Structure):
    _fields_ = [("key", c_char * 320), ("config", Config), ("time_us", c_double),
                ("default_us", c_double), ("when", c_int64), ("profile", c_char * 64)]


class TuneResultStruct(Structure):
    _fields_ = [("tuning", Tuning), ("num_candidates", c_int32), ("num_refused", c_int32),
                ("complete", c_int32), ("stored", c_int32), ("num_left_out", c_int32),
                ("profile", c_char * 64)]


def parse_config(text):
    """A Config from its text."""
    config = Config()
    check(lib.ew_config_parse(text.encode(), config))
    return config


def print_config(config):
    """The text of a Config."""
    text = ctypes.create_string_buffer(CONFIG_TEXT_BYTES)
    check(lib.ew_config_print(config, text, CONFIG_TEXT_BYTES))
    return text.value.decode()
